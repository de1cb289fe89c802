"""What a table is exported as; apart, as commands name it before anything else is imported."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from epochlake.placement.errors import InvalidRequest


class ExportFormat(StrEnum):
    """One file, or a Delta table."""

    PARQUET = "parquet"
    CSV = "csv"
    ARROW = "arrow"
    DELTA = "delta"


def ending(destination: Path) -> ExportFormat:
    """The format that a name says, delta for one without an ending. Raises InvalidRequest."""
    suffix = destination.suffix.lower().removeprefix(".")
    if not suffix:
        return ExportFormat.DELTA
    if suffix in (one.value for one in ExportFormat):
        return ExportFormat(suffix)
    raise InvalidRequest(
        f"the name of {destination} does not say what to write",
        hint=f"Say it with --format: {', '.join(ExportFormat)}",
    )
