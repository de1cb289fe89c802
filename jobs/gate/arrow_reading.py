"""Rows that are read without Spark, as batches of Arrow: planned as those of pipelines, read by this process."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from epochlake.jobs.gate.arrow_conform import conform_arrow_keys
from epochlake.jobs.gate.arrow_rows import hashes
from epochlake.jobs.gate.arrow_types import arrow_type
from epochlake.jobs.gate.errors import ReadDisturbed
from epochlake.jobs.gate.expiry import bounds_of, live_rows
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.gate.moments import micros_of
from epochlake.jobs.replicas.counting import count_of
from epochlake.jobs.replicas.row_values import NO_WORD, StoredKeys, comparables
from epochlake.jobs.replicas.scanning import Asked, scan
from epochlake.jobs.replicas.superseding import judged_by
from epochlake.metastore.metadata.model import Table
from epochlake.placement.errors import EpochlakeError, InvalidRequest, words_of
from epochlake.placement.tokens import Interval

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

TRIES = 3
"""So often a lookup is planned: what it has met damaged it has noted, and it is read on another replica then."""


_NOT_APPLIED = (pa.ArrowException, TypeError)
"""What Arrow raises for a filter that rows cannot have."""

_MAY_BE_DAMAGE = (EpochlakeError, pa.ArrowException, OSError)
"""What a read raises that has met a damaged file."""


class Keys(NamedTuple):
    """Keys that are asked for: `windows` have their tokens, `values` them as `comparables`."""

    windows: Sequence[Interval]
    values: StoredKeys


class Question(NamedTuple):
    """What is asked of a table: `asked` of each row, and which keys' rows, None for all; `as_of`: as they were then, in
    microseconds since 1970, None for now. `bounds`: by column, before when rows have expired; `asked` leaves them out.
    """

    table: Table
    asked: Asked
    keys: Keys | None
    as_of: int | None
    bounds: Mapping[str, int]

    @property
    def windows(self) -> Sequence[Interval] | None:
        """The tokens of the keys; None for all tokens."""
        return None if self.keys is None else self.keys.windows


def question(
    table: Table,
    columns: Iterable[str] | None = None,
    where: pc.Expression | None = None,
    keys: object = None,
    as_of: datetime | str | None = None,
) -> Question:
    """What a read asks for, of rows that have not expired at `as_of`, or by the clock of now, which is pinned here.

    Raises InvalidRequest for columns that there are not, for a filter that cannot be applied to the table's rows, for
    keys that do not fit, and for a time without a zone.
    """
    declared = pa.schema([pa.field(column.name, arrow_type(column.type)) for column in table.columns])
    names = declared.names if columns is None else _known_columns(table, columns)
    chosen = None if keys is None else _keys(table, keys)
    schema = pa.schema([declared.field(name) for name in names])
    needed = () if where is None else _needed(table, where, declared)
    values = None if chosen is None else chosen.values
    then = None if as_of is None else micros_of(as_of)
    bounds = bounds_of(table, then)
    live = live_rows(table, bounds)
    if live is not None:
        where = live if where is None else live & where
        needed = tuple(dict.fromkeys([*needed, *bounds]))
    asked = Asked(schema, table.primary_key, where, needed, values, judged_by(table))
    return Question(table, asked, chosen, then, bounds)


def key_of(table: Table, key: object) -> list[Mapping[str, object]]:
    """A key as rows that have only it. Where it is one column its value suffices. Raises InvalidRequest."""
    if isinstance(key, Mapping):
        missing = [name for name in table.primary_key if name not in key]
        if not missing:
            return [{name: key[name] for name in table.primary_key}]
        said = f"it has no {', '.join(missing)}"
    elif len(table.primary_key) == 1:
        return [{table.primary_key[0]: key}]
    else:
        said = f"it is {key!r}"
    raise InvalidRequest(
        f"this is no key of table {table.full_name}: {said}",
        hint=f"Give a dict with {', '.join(table.primary_key)}",
    )


def read_one(gate: Gate, of: Question, consistency: str | None) -> Mapping[str, object] | None:
    """The row of the one key that is asked for; None where there is none.

    Raises as `Gate.plan_read`, and ReadDisturbed when files go on being found damaged.
    """
    return round_damage(lambda: _only(_scanned(gate, of, consistency)))


def round_damage(read: Callable[[], T]) -> T:
    """What `read` plans and reads; it is called again where it met damage, which is noted by then.

    Raises ReadDisturbed when files go on being found damaged.
    """
    for _ in range(TRIES - 1):
        with suppress(ReadDisturbed):
            return read()
    return read()


def _only(batches: Iterator[pa.RecordBatch]) -> Mapping[str, object] | None:
    """The row of one key: there is no other one."""
    found = [batch for batch in list(batches) if batch.num_rows]
    try:
        return next((row for batch in found for row in batch.to_pylist()), None)
    except NO_WORD as error:
        raise InvalidRequest(
            f"the row has a value that Python has no word for: {words_of(error)}",
            hint="Ask for it with `scan(…, keys=…)`, which gives it as Arrow",
        ) from error


def count_all(gate: Gate, of: Question, consistency: str | None, spark: SparkSession | None = None) -> int:
    """How many rows there are of those that are asked for. Raises as `read_one`."""

    asked = msgspec.structs.replace(of.asked, schema=pa.schema([]))

    def counted() -> int:
        plan = gate.plan_read(of.table, consistency, of.windows, of.as_of)
        try:
            return count_of(plan, asked, spark)
        except _MAY_BE_DAMAGE as error:
            gate.look_for_damage(error)
            raise

    return round_damage(counted)


def read_all(gate: Gate, gate_ends: ExitStack, of: Question, consistency: str | None) -> pa.RecordBatchReader:
    """The rows as a stream, planned now. Raises as `Gate.plan_read`, and leaves `gate_ends` alone then.

    `gate_ends` is closed when the stream has been read, has failed, or is not held any more; until then files stay.
    """
    batches = _scanned(gate, of, consistency)
    return pa.RecordBatchReader.from_batches(of.asked.schema, _Batches(batches, gate_ends.pop_all()))


class _Batches:
    """Batches, and what ends with them, also when nobody has read them to the end."""

    def __init__(self, batches: Iterator[pa.RecordBatch], ends: ExitStack) -> None:
        self._batches = batches
        self._end = weakref.finalize(self, ends.close)

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> pa.RecordBatch:
        try:
            return next(self._batches)
        except BaseException:
            self._end()
            raise


def _scanned(gate: Gate, of: Question, consistency: str | None) -> Iterator[pa.RecordBatch]:
    """Batches of what is planned now. What is found damaged while they are read is noted, and raises ReadDisturbed."""
    plan = gate.plan_read(of.table, consistency, of.windows, of.as_of)
    return looked_after(gate, scan(plan, of.asked))


def looked_after(gate: Gate, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches. What is found damaged by them is noted, and raises ReadDisturbed."""
    try:
        yield from batches
    except _MAY_BE_DAMAGE as error:
        gate.look_for_damage(error)
        raise


def _known_columns(table: Table, columns: Iterable[str]) -> list[str]:
    if isinstance(columns, str):
        raise InvalidRequest(f"columns are {columns!r}, one text", hint=f"Give a list: [{columns!r}]")
    if not isinstance(columns, Iterable):
        raise InvalidRequest(f"columns are a {type(columns).__name__}", hint="Give a list of names")
    columns = list(columns)
    names = [column.name for column in table.columns]
    unknown = [str(name) for name in columns if name not in names]
    if unknown or not columns or len(set(columns)) < len(columns):
        said = f"it has no column {', '.join(unknown)}" if unknown else "each column once, and at least one"
        raise InvalidRequest(
            f"these columns of table {table.full_name} cannot be read: {said}", hint=f"It has {', '.join(names)}"
        )
    return list(columns)


def _needed(table: Table, where: object, declared: pa.Schema) -> tuple[str, ...]:
    """The columns that a filter reads: those without which it cannot be applied."""
    if not isinstance(where, pc.Expression):
        raise InvalidRequest(
            f"a filter of table {table.full_name} is a {type(where).__name__}",
            hint="Give an expression of Arrow: pyarrow.compute.field('delay') > 30",
        )
    if _counts_columns(where):
        raise InvalidRequest(
            f"a filter of table {table.full_name} names a column by its place, and a read has only the columns that it "
            "needs",
            hint=f"Name it: pyarrow.compute.field({declared.names[0]!r})",
        )
    # Of no rows at all Arrow compares what cannot be compared.
    one = pa.table([pa.nulls(1, field.type) for field in declared], schema=declared)
    try:
        one.filter(where)
    except _NOT_APPLIED as error:
        decimal = next((field.name for field in declared if pa.types.is_decimal(field.type)), None)
        hint = f"It has {', '.join(f'{field.name} ({field.type})' for field in declared)}"
        if decimal is not None and "Precision" in str(error):
            hint = f"Compare a decimal with one: pyarrow.compute.field({decimal!r}) < decimal.Decimal(10)"
        raise InvalidRequest(
            f"this filter cannot be applied to rows of table {table.full_name}: {words_of(error)}", hint=hint
        ) from error
    return tuple(_needed_of(declared.names, where, one))


def _needed_of(names: Sequence[str], where: pc.Expression, rows: pa.Table) -> list[str]:
    """Those of `names` without which a filter cannot be applied to rows, in their order.

    Halves that a filter does without are left at once: a table may have thousands of columns, and a filter names few.
    """
    if not names or _applies(where, rows.drop_columns(list(names))):
        return []
    if len(names) == 1:
        return list(names)
    half = len(names) // 2
    return _needed_of(names[:half], where, rows) + _needed_of(names[half:], where, rows)


def _counts_columns(where: pc.Expression) -> bool:
    """Whether an expression has `field(0)` in it: Arrow can store none such. In its text a value may look like one."""
    try:
        where.__reduce__()
    except pa.ArrowNotImplementedError as error:
        return "field_ref" in str(error)
    return False


def _applies(where: pc.Expression, rows: pa.Table) -> bool:
    try:
        rows.filter(where)
    except _NOT_APPLIED:
        return False
    return True


def _keys(table: Table, keys: object) -> Keys:
    rows = conform_arrow_keys(keys, table).select(list(table.primary_key))
    nulls = [name for name in table.primary_key if rows.column(name).null_count]
    if nulls:
        raise InvalidRequest(f"a key of table {table.full_name} has no {', '.join(nulls)}: a key is never null")
    tokens = np.unique(hashes(rows)).tolist()
    return Keys([(token, token) for token in tokens], StoredKeys(comparables(rows)))
