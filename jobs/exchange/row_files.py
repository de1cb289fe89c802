"""Files of rows that are loaded and written: Parquet, CSV, JSON by the line, Arrow."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq
from epochlake.jobs.gate.arrow_types import arrow_type, type_name
from epochlake.metastore.metadata.model import Column
from epochlake.placement.errors import InvalidRequest, words_of

BLOCK_BYTES = 16 << 20
"""So much of a CSV is looked at to guess the types of columns that nobody declares."""


class Format(StrEnum):
    """Of a file of rows."""

    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"
    ARROW = "arrow"


SUFFIXES = {
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
    found = given or SUFFIXES.get(path.suffix.lower())
    if found is None:
        raise InvalidRequest(
            f"the name of {path} does not say what is in it",
            hint=f"Say it with --format: {', '.join(Format)}",
        )
    return found


def batches_of(
    path: Path, format_: Format, columns: Sequence[Column] = ()
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The rows of a file, as it has them, a batch at a time. Texts of CSV and JSON are read as the columns declare.

    An empty cell of CSV is null, but in a column of texts: there it is an empty one. Raises InvalidRequest for a file
    that cannot be read, at once or while it is read.
    """
    declared = {column.name: arrow_type(column.type) for column in columns}
    read: dict[Format, Callable[[], tuple[pa.Schema, Iterator[pa.RecordBatch]]]] = {
        Format.PARQUET: lambda: _of_parquet(path),
        Format.CSV: lambda: _of_reader(
            csv.open_csv(
                path,
                read_options=csv.ReadOptions(block_size=BLOCK_BYTES),
                convert_options=csv.ConvertOptions(column_types=declared),
            )
        ),
        Format.JSON: lambda: _of_table(
            pa_json.read_json(
                path, parse_options=pa_json.ParseOptions(explicit_schema=pa.schema(list(declared.items())))
            )
        ),
        Format.ARROW: lambda: _of_arrow(path),
    }
    with _told(path, format_, declared):
        schema, batches = read[format_]()
    return schema, _telling(path, format_, declared, batches)


@contextmanager
def _told(path: Path, format_: Format, declared: Mapping[str, pa.DataType]) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        if format_ is Format.CSV and isinstance(error, pa.ArrowInvalid) and (wrong := _unfit_text(path, declared)):
            raise InvalidRequest(
                f"the file {path} does not fit: {'; '.join(wrong)}", hint="Correct these rows, or the column's type"
            ) from error
        raise InvalidRequest(
            f"the file {path} cannot be read as {format_}: {words_of(error)}",
            hint="Say what it is with --format" if path.is_file() else "",
        ) from error


def _telling(
    path: Path, format_: Format, declared: Mapping[str, pa.DataType], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    with _told(path, format_, declared):
        yield from batches


def _unfit_text(path: Path, declared: Mapping[str, pa.DataType]) -> list[str]:
    """What is wrong in a CSV, by column, with the first row of each from 0; nothing where no text is at fault."""
    wrong: dict[str, str] = {}
    as_text = csv.ConvertOptions(column_types=dict.fromkeys(declared, pa.string()))
    row = 0
    try:
        for batch in csv.open_csv(path, convert_options=as_text):
            for name, wanted in declared.items():
                if name in batch.schema.names and name not in wrong:
                    values = batch.column(name)
                    number = _first_unfit(values, wanted)
                    if number is not None:
                        value = values[number].as_py()
                        wrong[name] = f"column {name} is {type_name(wanted)}, and row {row + number} has {value!r}"
            row += batch.num_rows
    except (OSError, pa.ArrowException):
        return []
    return list(wrong.values())


def _first_unfit(values: pa.Array, wanted: pa.DataType) -> int | None:
    texts = pc.if_else(pc.equal(values, ""), None, values)
    try:
        texts.cast(wanted)
    except pa.ArrowException:
        for number, text in enumerate(texts):
            try:
                text.cast(wanted)
            except pa.ArrowException:
                return number
    return None


def _of_parquet(path: Path) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    file = pq.ParquetFile(path, page_checksum_verification=True)

    def batches() -> Iterator[pa.RecordBatch]:
        with file:
            yield from file.iter_batches()

    return file.schema_arrow, batches()


def _of_reader(reader: pa.RecordBatchReader) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    return reader.schema, iter(reader)


def _of_table(table: pa.Table) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    return table.schema, iter(table.to_batches())


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


def _of_arrow(path: Path) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    source = pa.memory_map(str(path))
    try:
        file = pa.ipc.open_file(source)
    except pa.ArrowInvalid:
        source.seek(0)
        return _of_reader(pa.ipc.open_stream(source))
    return file.schema, (file.get_batch(number) for number in range(file.num_record_batches))


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
