"""Files of rows that the command line reads and writes: Parquet, CSV, JSON by the line, Arrow."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq
from epochlake.jobs.gate.arrow_types import arrow_type
from epochlake.metastore.metadata.model import Column
from epochlake.placement.errors import InvalidRequest, words_of


class Format(StrEnum):
    """Of a file of rows."""

    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"
    ARROW = "arrow"


_SUFFIXES = {
    ".parquet": Format.PARQUET,
    ".csv": Format.CSV,
    ".json": Format.JSON,
    ".jsonl": Format.JSON,
    ".ndjson": Format.JSON,
    ".arrow": Format.ARROW,
    ".feather": Format.ARROW,
}


def format_of(path: Path, given: Format | None) -> Format:
    """The format that was given, or that of the file's name. Raises InvalidRequest."""
    found = given or _SUFFIXES.get(path.suffix.lower())
    if found is None:
        raise InvalidRequest(
            f"the name of {path} does not say what is in it",
            hint=f"Say it with --format: {', '.join(Format)}",
        )
    return found


def read_rows(path: Path, format_: Format, columns: tuple[Column, ...]) -> pa.Table:
    """The rows of a file, as it has them. Texts of CSV and JSON are read as the types that the columns declare.

    An empty cell of CSV is null, but in a column of texts: there it is an empty one. Raises InvalidRequest for a file
    that cannot be read.
    """
    declared = {column.name: arrow_type(column.type) for column in columns}
    read: dict[Format, Callable[[], pa.Table]] = {
        Format.PARQUET: lambda: pq.read_table(path, partitioning=None),
        Format.CSV: lambda: csv.read_csv(path, convert_options=csv.ConvertOptions(column_types=declared)),
        Format.JSON: lambda: pa_json.read_json(
            path, parse_options=pa_json.ParseOptions(explicit_schema=pa.schema(list(declared.items())))
        ),
        Format.ARROW: lambda: _of_arrow(path),
    }
    try:
        return read[format_]()
    except (OSError, pa.ArrowException) as error:
        raise InvalidRequest(
            f"the file {path} cannot be read as {format_}: {words_of(error)}",
            hint="Say what it is with --format" if path.is_file() else "",
        ) from error


def write_rows(rows: pa.RecordBatchReader, path: Path, format_: Format) -> int:
    """Write rows as a file, whole or not at all; how many. Raises InvalidRequest when it cannot be written there."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    written = 0
    try:
        with _writer(temporary, format_, rows.schema) as writer:
            for batch in rows:
                writer.write_batch(batch)
                written += batch.num_rows
        os.replace(temporary, path)
    except (OSError, pa.ArrowException) as error:
        raise InvalidRequest(f"the file {path} cannot be written as {format_}: {words_of(error)}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return written


def _of_arrow(path: Path) -> pa.Table:
    with pa.OSFile(str(path)) as file:
        try:
            return pa.ipc.open_file(file).read_all()
        except pa.ArrowInvalid:
            file.seek(0)
            return pa.ipc.open_stream(file).read_all()


def _writer(path: Path, format_: Format, schema: pa.Schema) -> Any:
    """Whatever takes batches and is closed at the end of a `with`."""
    match format_:
        case Format.PARQUET:
            return pq.ParquetWriter(path, schema)
        case Format.CSV:
            return csv.CSVWriter(path, schema)
        case Format.ARROW:
            return pa.ipc.new_file(str(path), schema)
    raise InvalidRequest(f"rows are not written as {format_} files", hint="Print them: --output json")
