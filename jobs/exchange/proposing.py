"""A table as somebody's file or Delta table suggests it: its columns, and a primary key that its rows allow."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import count, islice
from pathlib import Path

import msgspec
import pyarrow as pa
from deltalake.exceptions import DeltaError
from epochlake.jobs.exchange.delta_sources import is_delta, open_delta, rows_of_delta
from epochlake.jobs.exchange.row_files import SUFFIXES, Format, batches_of
from epochlake.jobs.exchange.sources import ROWS_OF_PART, in_parts, sources_of
from epochlake.jobs.gate.arrow_types import type_name
from epochlake.jobs.replicas.schema import can_be_called, possible_name
from epochlake.metastore.metadata.model import Column
from epochlake.placement.column_ddl import delta_type
from epochlake.placement.errors import InvalidRequest, words_of

KEY_NAMES = re.compile(r"(^|_)(id|key|uuid|guid)$", re.IGNORECASE)
MOST_KEY_COLUMNS = 5

_OF_SQL = (Format.PARQUET, Format.CSV, Format.JSON)
"""Formats that DuckDB reads by the name of a file."""

_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
}
"""Types that Spark has not, and the next one that holds all of their values."""


class Proposal(msgspec.Struct, frozen=True):
    """Columns, a primary key, and why it is one."""

    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    why: str


def propose(
    place: str, primary_key: Sequence[str] = (), format_: Format | None = None, instead: Sequence[Column] = ()
) -> Proposal:
    """What a table for the rows of a file, a directory, a pattern or a Delta table would be.

    `instead`: columns that are declared otherwise than the rows suggest. The first 500,000 rows are looked at for a
    key: a single column that is unique there and never null, those first whose name says that they are one; else the
    first columns that are so together. Raises InvalidRequest for types that no column can have, and where there is no
    such key.
    """
    schema, rows = _looked_at(place, format_)
    _require_names(place, schema.names)
    columns, strange = [], {}
    declared = {column.name: column for column in instead}
    for field in schema:
        if field.name in declared:
            columns.append(declared[field.name])
            continue
        try:
            columns.append(_column(field))
        except InvalidRequest as error:
            strange[field.name] = f"{field.name} ({field.type}): {error.reason}"
    if strange and not len(rows):
        raise InvalidRequest(
            f"{place} has no rows, and does not say of which types they are", hint="Declare all columns"
        )
    if strange:
        raise InvalidRequest(
            f"{place} has columns that no table can have: {'; '.join(strange.values())}",
            hint=_of_no_type(place, schema, list(strange)),
        )
    if unknown := sorted(set(declared) - set(schema.names)):
        raise InvalidRequest(f"{place} has no column {', '.join(unknown)}", hint="Leave it out, or declare all columns")
    if primary_key:
        return Proposal(tuple(columns), tuple(primary_key), "as it was said")
    return Proposal(tuple(columns), *_key_of(place, columns, rows))


def _require_names(place: str, names: Sequence[str]) -> None:
    """Raises InvalidRequest with a command that gives a file's columns names that a table's can have."""
    wrong = [name for name in names if not can_be_called(name)]
    if not wrong:
        return
    path = Path(place)
    hint = "Give them other names there: use no space and none of ,;{}()=`"
    if _is_of_sql(path, names):
        renamed: dict[str, str] = {}
        for name in wrong:
            others = {one.lower() for one in (*names, *renamed.values())}
            like = possible_name(name)
            numbered = (like if number == 1 else f"{like}_{number}" for number in count(1))
            renamed[name] = next(new for new in numbered if new.lower() not in others)
        pairs = ", ".join(f"{_name(name)} AS {_name(new)}" for name, new in renamed.items())
        hint = _made_anew(path, f"RENAME ({pairs})", "renamed")
    raise InvalidRequest(f"{place} has columns that cannot be called so: {', '.join(map(repr, wrong))}", hint=hint)


def _of_no_type(place: str, schema: pa.Schema, strange: Sequence[str]) -> str:
    """What to do about columns of types that no table has."""
    unknown = [name for name in strange if not pa.types.is_null(schema.field(name).type)]
    if not unknown:
        # Each by itself: a quote in a name hides the comma after it.
        return f"Say what they are to be: {' '.join(map(_declaration, strange))}"
    if not _is_of_sql(Path(place), schema.names):
        return f"Store {', '.join(unknown)} as texts or numbers there"
    texts = ", ".join(f"CAST({_name(name)} AS VARCHAR) AS {_name(name)}" for name in unknown)
    return _made_anew(Path(place), f"REPLACE ({texts})", "as-texts")


def _is_of_sql(path: Path, names: Sequence[str]) -> bool:
    """Whether DuckDB reads it by its name alone, as a file whose columns it can tell apart."""
    return path.is_file() and SUFFIXES.get(path.suffix.lower()) in _OF_SQL and len(set(names)) == len(names)


def _made_anew(path: Path, how: str, what: str) -> str:
    """A hint with a command that makes another file of one, in which its columns are otherwise.

    Cells of CSV stay the texts that they are: DuckDB takes a column of numbers with an `NA` in it for one of texts.
    """
    source, suffix = "'" + str(path).replace("'", "''") + "'", "parquet"
    if SUFFIXES.get(path.suffix.lower()) is Format.CSV:
        source, suffix = f"read_csv({source}, all_varchar=true)", "csv"
    to = f"{path.stem}-{what}.{suffix}"
    question = f"SELECT * {how} FROM {source}"
    return f"Take {to}, which this makes: epochlake query {_in_a_shell(question)} --to {_in_a_shell(to)}"


def _declaration(name: str) -> str:
    return f"--column {_in_a_shell(f'{name} string')}"


def _name(name: str) -> str:
    """A name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def _in_a_shell(text: str) -> str:
    """A text as one word of a shell, in the quotes that need the fewest signs."""
    if "'" not in text or "!" in text:  # which a shell that people type into replaces within other quotes
        return shlex.quote(text)
    return '"' + re.sub(r'([\\"$`])', r"\\\1", text) + '"'


def _looked_at(place: str, format_: Format | None) -> tuple[pa.Schema, pa.Table]:
    """The schema, and the first rows."""
    if is_delta(place):
        data = rows_of_delta(open_delta(place), place)
        try:
            return data.schema, data.head(ROWS_OF_PART)
        except (OSError, DeltaError, pa.ArrowException) as error:
            raise InvalidRequest(f"the Delta table {place} cannot be read: {words_of(error)}") from error
    source = sources_of([place], format_)[0]
    rows = source.placed(next(islice(in_parts(*batches_of(source.path, source.format)), 1)))
    return rows.schema, rows


def _column(field: pa.Field) -> Column:
    type_ = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if pa.types.is_null(type_):
        raise InvalidRequest("it has nothing but nulls")
    name = type_name(_WIDER.get(type_, type_))
    try:
        delta_type(name)
    except InvalidRequest:
        raise InvalidRequest("there is no such type of a column") from None
    return Column(field.name, name, field.nullable)


def _key_of(place: str, columns: Sequence[Column], rows: pa.Table) -> tuple[tuple[str, ...], str]:
    looked = f"in the {'first ' if len(rows) == ROWS_OF_PART else ''}{len(rows):,} rows"
    if not len(rows):
        raise InvalidRequest(f"{place} has no rows to find a key by", hint="Say it by --primary-key")
    may_be = [column.name for column in columns if _may_be_key(column) and rows.column(column.name).null_count == 0]
    for name in sorted(may_be, key=lambda name: KEY_NAMES.search(name) is None):
        if len(rows.column(name).unique()) == len(rows):
            return (name,), f"{name} is unique {looked}"
    for several in range(2, min(MOST_KEY_COLUMNS, len(may_be)) + 1):
        names = may_be[:several]
        if rows.group_by(names).aggregate([]).num_rows == len(rows):
            return tuple(names), f"{', '.join(names)} together are unique {looked}"
    raise InvalidRequest(
        f"no columns of {place} are a key: none is unique {looked}, nor are the first {MOST_KEY_COLUMNS} together",
        hint="Say it by --primary-key",
    )


def _may_be_key(column: Column) -> bool:
    """Numbers that are measured, and what has parts, make bad keys even where they are unique."""
    name = column.type.partition("(")[0].partition("<")[0]
    return name not in ("float", "double", "boolean", "array", "map", "struct", "binary")
