"""A Delta table of somebody else, read without Spark: only where every value of it is read as it is."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as pads
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from epochlake.placement.errors import InvalidRequest, words_of

WITH_SPARK = "Create the table, and write to it: pipeline.write(spark.read.format('delta').load(…), …, batch=…)"

_MAPPING = "delta.columnMapping.mode"


def is_delta(place: str) -> bool:
    """Whether a place is a Delta table. Raises InvalidRequest where that cannot be told."""
    try:
        return DeltaTable.is_deltatable(place) if "://" in place else (Path(place) / "_delta_log").is_dir()
    except PermissionError as error:
        raise InvalidRequest(f"{place} may not be read: permission denied", hint="Check owner and mode") from error
    except (OSError, DeltaError) as error:
        hint = "Delta's own variables say who asks a store: AWS_ACCESS_KEY_ID, …" if "://" in place else ""
        raise InvalidRequest(
            f"whether {place} is a Delta table cannot be told: {words_of(error)}", hint=hint
        ) from error


def open_delta(place: str, version: int | None = None) -> DeltaTable:
    """A Delta table at a version, None: the newest. Raises InvalidRequest."""
    try:
        return DeltaTable(place, version=version)
    except (OSError, DeltaError) as error:
        which = "" if version is None else f" at version {version}, from which it was begun,"
        raise InvalidRequest(f"the Delta table {place}{which} cannot be read: {words_of(error)}") from error


def rows_of_delta(source: DeltaTable, place: str) -> pads.FileSystemDataset:
    """The rows of a Delta table. Raises InvalidRequest for one with features that delta-rs does not read.

    Of columns that have other names in files than in the table (column mapping) delta-rs 1.6 makes nulls, and says
    nothing.
    """
    mapping = source.metadata().configuration.get(_MAPPING, "none")
    if mapping != "none":
        raise InvalidRequest(
            f"the Delta table {place} has column mapping ({mapping}), which cannot be read without Spark",
            hint=WITH_SPARK,
        )
    try:
        return source.to_pyarrow_dataset()
    except (OSError, DeltaError, pa.ArrowException) as error:
        raise InvalidRequest(
            f"the Delta table {place} has what cannot be read without Spark: {words_of(error)}", hint=WITH_SPARK
        ) from error
