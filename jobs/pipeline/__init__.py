"""The gate: reading and writing tables while their placement changes (design, section 10)."""

from epochlake.jobs.pipeline.pipeline import Pipeline

__all__ = ["Pipeline"]
