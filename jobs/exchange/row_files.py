"""Files of rows that are loaded and written: Parquet, CSV, JSON by the line, Arrow."""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq
from epochlake.jobs.exchange.casting import first_that_cannot_be
from epochlake.jobs.exchange.csv_quotes import holds, require_well_quoted
from epochlake.jobs.exchange.json_rows import read_json
from epochlake.jobs.gate.arrow_types import arrow_type, type_name
from epochlake.metastore.metadata.model import Column
from epochlake.metastore.storage import places
from epochlake.metastore.texts import is_unicode
from epochlake.placement.errors import InvalidRequest, words_of

BLOCK_BYTES = 16 << 20
"""So much of a CSV is looked at to guess the types of columns that nobody declares."""

_MOST_BYTES = 2**31 - 1
"""A block of Arrow is no longer."""


NULLS = ["", "NA", "N/A", "NULL", "null"]
"""What a cell of CSV says that has no value, but in a column of texts. `nan` is a number that is none."""


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


def require_readable_name(name: str) -> None:
    """Raise InvalidRequest for the name of a file that is no text in UTF-8: Arrow opens none, and no log keeps one."""
    if not is_unicode(name):
        raise InvalidRequest(
            f"{name!a} is no name in UTF-8, and cannot be read or written",
            hint="Rename the file, or the directory that has this name",
        )


def path_of(name: str) -> Path:
    """The path of a file that is named by it, or by a URI of `file:`. Raises InvalidRequest for another URI, for what
    is no text in UTF-8, and for a blank name, which would be the working directory.
    """
    if not name.strip():
        raise InvalidRequest(f"{name!r} is no name of a file", hint="Give a path")
    require_readable_name(name)
    if "://" not in name:
        return Path(name)
    local = places.local_path(name)
    if local is None:
        raise InvalidRequest(
            f"{name} is no path of a file system, where files are read and written",
            hint="Copy or mount it; or a pipeline does it: pipeline.write(spark.read…), pipeline.read(…).write",
        )
    return Path(local)


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

    A cell of CSV that is empty or says `NA`, `N/A` or `null` is null, but in a column of texts: there it is what it
    says. Raises InvalidRequest for a file that cannot be read, at once or while it is read.
    """
    declared = {column.name: arrow_type(column.type) for column in columns}
    read: dict[Format, Callable[[], tuple[pa.Schema, Iterator[pa.RecordBatch]]]] = {
        Format.PARQUET: lambda: _of_parquet(path),
        Format.CSV: lambda: _of_csv(path, declared),
        Format.JSON: lambda: _of_json(path, declared),
        Format.ARROW: lambda: _of_arrow(path),
    }
    with _told(path, format_, declared):
        schema, batches = read[format_]()
        _require_columns(path, format_, schema)
    return schema, _telling(path, format_, declared, batches)


def _require_columns(path: Path, format_: Format, schema: pa.Schema) -> None:
    """Raises InvalidRequest for columns that cannot be told apart, and for what is not what its format says."""
    if twice := sorted({name for name in schema.names if schema.names.count(name) > 1}):
        raise InvalidRequest(f"the file {path} has two columns {twice[0]!r}", hint="Rename one of them")
    if format_ is Format.CSV and len(schema) == 1 and (found := {";", "\t"} & set(schema.names[0])):
        raise InvalidRequest(
            f"the file {path} has one column, {schema.names[0]!r}: its values have no commas between them",
            hint=f"Write it with commas; or a pipeline loads it: spark.read.csv(…, header=True, sep={found.pop()!r})",
        )


@contextmanager
def _told(path: Path, format_: Format, declared: Mapping[str, pa.DataType]) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"the file {path} has a column whose name is no text in UTF-8", hint="Write it in UTF-8"
        ) from error
    except (OSError, pa.ArrowException) as error:
        if format_ is Format.CSV and isinstance(error, pa.ArrowInvalid) and (wrong := _unfit_text(path, declared)):
            raise _unfit(path, wrong) from error
        if isinstance(error, FileNotFoundError):
            raise InvalidRequest(
                f"there is no file {path}", hint="Check the name; it counts from the working directory"
            ) from error
        if isinstance(error, PermissionError):
            raise InvalidRequest(f"the file {path} may not be read: permission denied", hint=_OWNER) from error
        raise InvalidRequest(
            f"the file {path} cannot be read as {format_}: {words_of(error)}",
            hint=_ADVICE[format_] if os.path.isfile(path) else "",
        ) from error


_ADVICE = dict.fromkeys(Format, "Say what it is with --format") | {
    Format.CSV: "It has to be UTF-8, with commas, a header, and in each row as many values; or say --format",
    Format.JSON: "It has to be UTF-8, an object for each row, with values of the columns' types; or say --format",
}

_OWNER = "Check owner and mode"

_NO_ZONE = "a time without a zone is no moment: add one (2013-01-01T10:00:00Z), or declare the column timestamp_ntz"


def _advice_of(wrong: Sequence[str]) -> str:
    if any(" is timestamp, " in one for one in wrong):
        return f"Correct these rows, or the column's type; {_NO_ZONE}"
    return "Correct these rows, or the column's type"


def _telling(
    path: Path, format_: Format, declared: Mapping[str, pa.DataType], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    with _told(path, format_, declared):
        yield from batches


def _unfit(path: Path, wrong: Sequence[str]) -> InvalidRequest:
    return InvalidRequest(f"the file {path} does not fit: {'; '.join(wrong)}", hint=_advice_of(wrong))


def _of_csv(path: Path, declared: Mapping[str, pa.DataType]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    require_well_quoted(path)
    schema, read = _csv_of_long_rows(path, declared)
    numbers = [field.name for field in schema if pa.types.is_integer(field.type)]
    hexadecimal = bool(numbers) and path.is_file() and holds(path, b"0x", b"0X")
    if hexadecimal and (texts := _with_hexadecimal(path, [name for name in numbers if name not in declared])):
        schema, read = _csv_of_long_rows(path, {**declared, **dict.fromkeys(texts, pa.string())})

    def batches() -> Iterator[pa.RecordBatch]:
        # Arrow makes infinity of a number that is too large, 16 of 0x10, -1 of 0xff as a tinyint, and says nothing.
        # Other readers of CSV take what begins with 0x for a text.
        to_look_for = pa.types.is_integer if hexadecimal else None
        looked = False
        for batch in read:
            if not looked and _has_infinity(batch):
                looked, to_look_for = True, _is_number
            if to_look_for is not None:
                looked_at = {name: type_ if to_look_for(type_) else pa.string() for name, type_ in declared.items()}
                to_look_for = None
                if wrong := _unfit_text(path, looked_at):
                    raise _unfit(path, wrong)
            yield batch

    return schema, batches()


def _csv_of_long_rows(path: Path, types: Mapping[str, pa.DataType]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The rows of a CSV. Where one is longer than a block, as Arrow has it, it goes on with longer blocks."""
    block, whole = BLOCK_BYTES, min(path.stat().st_size + 1, _MOST_BYTES) if path.is_file() else 0

    def longer(error: pa.ArrowInvalid) -> int:
        if "straddl" not in str(error) or block >= whole:
            raise error
        return min(8 * block, whole)

    while True:
        try:
            reader = _csv_reader(path, types, block)
            break
        except pa.ArrowInvalid as error:
            block = longer(error)
    # What nobody declares stays what the first rows say.
    schema = reader.schema
    known = dict(zip(schema.names, schema.types, strict=True))

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal block
        current: pa.RecordBatchReader | None = reader
        given = 0
        while True:
            passed = given
            try:
                for batch in current or _csv_reader(path, known, block):
                    passing = min(passed, batch.num_rows)
                    passed -= passing
                    given += batch.num_rows - passing
                    yield batch.slice(passing)
                return
            except pa.ArrowInvalid as error:
                block, current = longer(error), None

    return schema, batches()


def _csv_reader(path: Path, types: Mapping[str, pa.DataType], block: int) -> pa.RecordBatchReader:
    return csv.open_csv(
        path,
        read_options=csv.ReadOptions(block_size=block),
        # Without it a text of several lines that crosses a block is taken apart into rows.
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=csv.ConvertOptions(column_types=types, null_values=NULLS),
    )


def _has_infinity(batch: pa.RecordBatch) -> bool:
    return any(pa.types.is_floating(values.type) and pc.any(pc.is_inf(values)).as_py() for values in batch.columns)


def _with_hexadecimal(path: Path, names: Sequence[str]) -> list[str]:
    """Which of the columns, whose cells are whole numbers as Arrow has it, have one that begins with 0x."""
    found: set[str] = set()
    if names:
        for batch in _csv_of_long_rows(path, dict.fromkeys(names, pa.string()))[1]:
            found |= {name for name in names if pc.any(pc.match_substring(batch[name], "x", ignore_case=True)).as_py()}
    return [name for name in names if name in found]


def _unfit_text(path: Path, declared: Mapping[str, pa.DataType]) -> list[str]:
    """What is wrong in a CSV, by column, with the first row of each from 0; nothing where no text is at fault."""
    wrong: dict[str, str] = {}
    row = 0
    try:
        for batch in _csv_of_long_rows(path, dict.fromkeys(declared, pa.string()))[1]:
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
    texts = values if _is_text(wanted) else pc.if_else(pc.is_in(values, pa.array(NULLS)), None, values)
    try:
        found = texts.cast(wanted)
    except pa.ArrowException:
        return first_that_cannot_be(texts, wanted)
    if pa.types.is_floating(wanted):
        other = pc.and_(pc.is_inf(found), pc.invert(pc.match_substring(texts, "inf", ignore_case=True)))
    elif pa.types.is_integer(wanted):
        other = pc.match_substring(texts, "x", ignore_case=True)
    else:
        return None
    return next((number for number, is_so in enumerate(other.to_pylist()) if is_so), None)


def _is_number(type_: pa.DataType) -> bool:
    return pa.types.is_integer(type_) or pa.types.is_floating(type_)


def _is_text(type_: pa.DataType) -> bool:
    return pa.types.is_string(type_) or pa.types.is_binary(type_)


def _of_parquet(path: Path) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    file = pq.ParquetFile(path, page_checksum_verification=True)

    def batches() -> Iterator[pa.RecordBatch]:
        with file:
            yield from file.iter_batches()

    return file.schema_arrow, batches()


def _of_json(path: Path, declared: Mapping[str, pa.DataType]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    table, unfit = read_json(path, declared)
    if unfit:
        wrong = [
            f"column {name} is {type_name(declared[name])}, and row {row} has {value!r}"
            for name, (row, value) in unfit.items()
        ]
        raise _unfit(path, wrong)
    return table.schema, iter(table.to_batches())


def write_rows(rows: pa.RecordBatchReader, path: Path, format_: Format, *, replace: bool = True) -> int:
    """Write rows as a file, whole or not at all; how many. When it returns they survive a power cut.

    Raises InvalidRequest when it cannot be written there, or without `replace` when a file is there by then.
    """
    path = _place_of(path, format_)
    # No longer than a name of a file may be.
    shortened = path.name.encode()[:200].decode(errors="ignore")
    temporary = path.with_name(f".{shortened}.{uuid.uuid4().hex}")
    if not path.parent.is_dir():
        raise InvalidRequest(f"there is no directory {path.parent}", hint="Make it, or name another place")
    if format_ is Format.CSV:
        _require_flat(path, rows.schema)
    written = 0
    try:
        with _writer(temporary, format_, rows.schema) as writer:
            for batch in rows:
                writer.write_batch(batch)
                written += batch.num_rows
        synced(temporary)
        if replace:
            os.replace(temporary, path)
        else:
            _put_new(temporary, path)
        synced(path.parent)
    except FileExistsError as error:
        raise already_there(path) from error
    except PermissionError as error:
        raise InvalidRequest(f"no file may be written to {path.parent}: permission denied", hint=_OWNER) from error
    except (OSError, pa.ArrowException) as error:
        raise InvalidRequest(
            f"the file {path} cannot be written as {format_}: {words_of(error)}",
            # What Arrow says is of the rows, as of bytes that a CSV cannot have.
            hint="Name another place" if isinstance(error, OSError) else "Write Parquet or Arrow, or other columns",
        ) from error
    finally:
        with suppress(OSError):  # what is told is why it could not be written
            temporary.unlink()
    return written


def _place_of(path: Path, format_: Format) -> Path:
    """Where the file has to be: a link is followed. Raises InvalidRequest for what is there and is no file.

    A file takes the place of what has its name. In that of a pipe or a device, which root may do, whoever reads the
    pipe waits for ever, and the machine has a file for `/dev/null`.
    """
    try:
        mode = path.stat().st_mode
    except OSError:
        pass  # nothing is there; what else it may be, is told where the file is made
    else:
        if stat.S_ISDIR(mode):
            raise InvalidRequest(f"{path} is a directory, and {format_} is one file", hint="Name a file in it")
        if not stat.S_ISREG(mode):
            raise InvalidRequest(
                f"{path} is a pipe or a device, and rows are written as a file, whole or not at all",
                hint="Name a file; or print the rows: epochlake query --output json",
            )
    return Path(os.path.realpath(path)) if os.path.islink(path) else path


def _require_flat(path: Path, schema: pa.Schema) -> None:
    """Raises InvalidRequest for columns that a CSV has no writing for."""
    if nested := [f"{field.name} ({type_name(field.type)})" for field in schema if pa.types.is_nested(field.type)]:
        raise InvalidRequest(
            f"the file {path} cannot be written as csv, which has no lists, maps and structs: {', '.join(nested)}",
            hint="Write Parquet or Arrow, or other columns",
        )


def already_there(path: Path) -> InvalidRequest:
    """What is written takes no place unasked."""
    return InvalidRequest(f"{path} is there already", hint="Name another place, or say --overwrite")


def synced(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _put_new(temporary: Path, path: Path) -> None:
    """Give a file its name, if nobody has it. Raises FileExistsError."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError as error:  # there are file systems without links
        if path.exists():
            raise FileExistsError(path) from error
        os.rename(temporary, path)


def _of_arrow(path: Path) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    # Not mapped into memory: where somebody cuts such a file off, the process ends by a signal, and where he changes
    # it, rows change that have been looked at.
    source = pa.OSFile(str(path))
    try:
        file = pa.ipc.open_file(source)
    except pa.ArrowInvalid:
        source.seek(0)
        reader = pa.ipc.open_stream(source)
        return reader.schema, map(_whole, reader)
    return file.schema, (_whole(file.get_batch(number)) for number in range(file.num_record_batches))


def _whole(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Raises ArrowInvalid for a batch that points out of itself: whatever reads its values ends by a signal.

    A text need not be UTF-8, as Spark and Parquet have such: it is looked at as its bytes.
    """
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid:
        for values in batch.columns:
            values.view(_of_bytes(values.type)).validate(full=True)
    return batch


_BYTES = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}


def _of_bytes(type_: pa.DataType) -> pa.DataType:
    """The type with the bytes of texts in place of the texts, at any depth."""
    if pa.types.is_dictionary(type_):
        return pa.dictionary(type_.index_type, _of_bytes(type_.value_type), type_.ordered)
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_of_bytes(field.type)) for field in type_])
    if pa.types.is_map(type_):
        key, item = (field.with_type(_of_bytes(field.type)) for field in (type_.key_field, type_.item_field))
        return pa.map_(key, item, keys_sorted=type_.keys_sorted)
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_of_bytes(type_.value_type)))
    if pa.types.is_large_list(type_):
        return pa.large_list(type_.value_field.with_type(_of_bytes(type_.value_type)))
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(type_.value_field.with_type(_of_bytes(type_.value_type)), type_.list_size)
    return _BYTES.get(type_, type_)


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
