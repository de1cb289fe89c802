"""`epochlake demo`: real data, a cluster that grows under a running pipeline, and a node that is lost for good."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit code: 0 only if everything that it checks holds."""
    from epochlake.jobs.demo.command import run

    return run(argv)
