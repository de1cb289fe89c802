"""A table into files of others: whole or not at all, and pinned to one moment."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

import msgspec
import pyarrow as pa
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError
from epochlake.jobs.exchange.export_formats import ExportFormat
from epochlake.jobs.exchange.row_files import Format, write_rows
from epochlake.placement.errors import InvalidRequest, words_of


class Exported(msgspec.Struct, frozen=True):
    """What was written where. `epoch`: at which the rows were read."""

    table: str
    destination: str
    format: str
    rows: int
    epoch: int


def export(rows: pa.RecordBatchReader, destination: Path, format_: ExportFormat, *, overwrite: bool = False) -> int:
    """Write rows to a file or a Delta table that is not there yet, or takes the place of one; how many.

    They are written beside it, and get its name when all of them are there. Raises InvalidRequest when it cannot be
    written, or is there already without `overwrite`.
    """
    if destination.exists() and not overwrite:
        raise InvalidRequest(f"{destination} is there already", hint="Name another place, or say --overwrite")
    if format_ is not ExportFormat.DELTA:
        if destination.is_dir():
            raise InvalidRequest(f"{destination} is a directory, and {format_} is one file", hint="Name a file in it")
        return write_rows(rows, destination, Format(format_))
    if destination.exists() and not (destination / "_delta_log").is_dir():
        raise InvalidRequest(f"{destination} is no Delta table, and is not replaced by one", hint="Name another place")
    return _export_delta(rows, destination)


def _export_delta(rows: pa.RecordBatchReader, destination: Path) -> int:
    temporary = destination.with_name(f".{destination.name}.{uuid.uuid4().hex}")
    before = destination.with_name(f".{destination.name}.before-{uuid.uuid4().hex}")
    written = 0

    def counted() -> object:
        nonlocal written
        for batch in rows:
            written += batch.num_rows
            yield batch

    try:
        write_deltalake(str(temporary), pa.RecordBatchReader.from_batches(rows.schema, counted()))
        if destination.exists():
            os.rename(destination, before)
        os.rename(temporary, destination)
    except (OSError, DeltaError, pa.ArrowException) as error:
        raise InvalidRequest(f"{destination} cannot be written as a Delta table: {words_of(error)}") from error
    finally:
        # Also where somebody has interrupted it between the two renames.
        if before.exists() and not destination.exists():
            os.rename(before, destination)
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(before, ignore_errors=True)
    return written
