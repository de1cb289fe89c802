"""What has changed in the rows of a table between two times, and taking it back by new writes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from epochlake.jobs.gate.arrow_reading import question, round_damage
from epochlake.jobs.gate.arrow_rows import rows_to_change
from epochlake.jobs.gate.batches import Live
from epochlake.jobs.gate.errors import ConsistencyNotReached
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.gate.moments import micros_of, moment_of, words_of_moment
from epochlake.jobs.gate.routing import named
from epochlake.jobs.gate.writing import is_acknowledged
from epochlake.jobs.replicas.reading import ReadPlan
from epochlake.jobs.replicas.row_values import bare_rows, comparable
from epochlake.jobs.replicas.scanning import Asked, scan
from epochlake.jobs.upkeep.repair import repair
from epochlake.metastore.metadata.model import Table
from epochlake.placement.consistency import ConsistencyLevel
from epochlake.placement.errors import EpochlakeError, InvalidRequest
from epochlake.placement.showing import Shown
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN, Interval

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster

CHANGE = "_change"
BEFORE = "_before"
"""Columns beside those of the table, none of which begins with `_`."""

ADDED, REMOVED, CHANGED = "added", "removed", "changed"

WORTH_RETRYING = 75

WINDOW_ROWS = 1 << 18
"""About so many rows are compared at once, and held in memory for that."""


class RolledBack(Shown, msgspec.Struct, frozen=True):
    """What `rollback` did (with `dry_run`: would do): rows that were written as they had been at `to`, and deleted that
    came between `to` and `until`.

    `rewritten` of them had been changed, `brought_back` deleted. `epoch`: at which it was acknowledged, null where
    there was nothing to do.
    """

    table: str
    to: str
    until: str
    rewritten: int
    brought_back: int
    deleted: int
    dry_run: bool
    already: bool = False
    epoch: int | None = None


def changed_rows(
    cluster: Cluster,
    table: str,
    since: datetime | str,
    until: datetime | str | None = None,
    *,
    consistency: str | None = None,
    datacenter: str | None = None,
) -> pa.RecordBatchReader:
    """The rows that differ between two times, as a stream of batches of Arrow, in no order.

    The columns of the table, as they were at `until` (None: now), of a removed row as they were at `since`; `_change`,
    which is `added`, `removed` or `changed`; and `_before`, a struct of the row as it was at `since`, null for an added
    one. A row that was changed and changed back is none of them: it is a difference of two times, and no list of what
    happened in between. In memory are the rows of a part of the token space. Raises as `Cluster.scan`, InvalidRequest
    where `until` is before `since`.
    """
    first = micros_of(since)
    asking = Gate(cluster, "diff", datacenter)
    target, last = asking.planning.as_it_is(
        table, lambda found: (found, _end(asking, found, first, until, consistency))
    )
    schema = _schema(target)

    def batches() -> Iterator[pa.RecordBatch]:
        with Gate(cluster, "diff", datacenter) as gate:
            # The columns are those that were told. Who changes them meanwhile ends the stream, by name.
            gate.newest_of(target, consistency)
            for found in _differences(gate, target, (first, last), (first, last), consistency):
                yield from _batches(found, schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def rollback(
    cluster: Cluster,
    table: str,
    to: datetime | str,
    *,
    until: datetime | str | None = None,
    consistency: str | None = None,
    datacenter: str | None = None,
    dry_run: bool = False,
) -> RolledBack:
    """Undo what was written to a table between two times, by new writes: rows are written as they were at `to`, and
    rows that came since are deleted. `until`: None for now.

    It is one batch, which is named after both times: where a call has failed, the same call with the same `until` lands
    what is missing, and nothing twice. What others write meanwhile to rows that are rolled back is overwritten, unless
    it is later than this batch; other rows of theirs stay. With `dry_run` nothing is written.

    Raises InvalidRequest for a table that is append-only, HistoryNotKept, and as `Cluster.write`.
    """
    first = micros_of(to)
    with Gate(cluster, "rollback", datacenter) as gate:

        def differing(target: Table) -> tuple[Table, int, list[_Found]]:
            if target.append_only:
                raise InvalidRequest(
                    f"table {table} is append-only: its rows cannot be deleted, so it is not rolled back"
                )
            last = _end(gate, target, first, until, consistency)
            if not dry_run:
                _acknowledge(cluster, gate, target, first, consistency)
            return target, last, list(_differences(gate, target, (first, last), (last, last), consistency))

        target, last, found = gate.planning.as_it_is(table, differing)
        kinds = Counter(kind for one in found for kind in one.kinds)
        done = RolledBack(
            table,
            words_of_moment(first),
            words_of_moment(last),
            kinds[CHANGED],
            kinds[REMOVED],
            kinds[ADDED],
            dry_run,
        )
        if dry_run or not kinds:
            return done
        lost = [one.before.filter(pa.array(_are(one, REMOVED, CHANGED), pa.bool_())) for one in found]
        new = [one.after.filter(pa.array(_are(one, ADDED), pa.bool_())) for one in found]
        batch = f"rollback to {done.to} of what came until {done.until}"
        keys = pa.concat_tables(new).select(list(target.primary_key))
        # Rows from before a column was generated get it now.
        before = pa.concat_tables(lost).drop_columns([column.name for column in target.generated])
        rows = rows_to_change(before, keys, target)
        with _told_until(done):
            written = gate.write(rows, target, consistency, batch, changes=True)
        return msgspec.structs.replace(done, epoch=written.epoch, already=written.already)


def time_of_newest(
    cluster: Cluster, table: str, *, consistency: str | None = None, datacenter: str | None = None
) -> datetime:
    """A time at or after that of every write to a table which was acknowledged before the call, as the writes say it.

    Clocks of machines play no part in it. Raises as `Cluster.scan`.
    """
    gate = Gate(cluster, "diff", datacenter)
    return moment_of(gate.planning.as_it_is(table, lambda target: gate.newest_of(target, consistency)))


def _end(gate: Gate, table: Table, first: int, until: datetime | str | None, consistency: str | None) -> int:
    """Until when two times are compared: as far as anything was written, where nothing is said.

    Raises InvalidRequest for an end before the beginning.
    """
    newest = gate.newest_of(table, consistency)
    if until is None:
        return max(first, newest)
    last = micros_of(until)
    if last < first:
        raise InvalidRequest(
            f"{words_of_moment(last)} is before {words_of_moment(first)}", hint="Give the earlier time first"
        )
    return last


def _acknowledge(cluster: Cluster, gate: Gate, table: Table, first: int, consistency: str | None) -> None:
    """See to it that what was written after `first` is on enough replicas, whichever reads show it.

    Rows that are as they should be are not written again. Where that is so by a write which has failed, an earlier try
    of a rollback perhaps, the next read may not meet it. Raises ConsistencyNotReached.
    """
    level = gate.planning.level(consistency)
    if _are_acknowledged(cluster, gate, table, level, first):
        return
    repair(cluster, table.full_name)
    gate.planning.catch_up(0)
    if not _are_acknowledged(cluster, gate, table, level, first):
        metadata = gate.planning.metadata
        ranges = named(metadata, table, range(len(metadata.placements(table.table_id).lows)))
        silent = {metadata.describe(volume): why for volume, why in gate.planning.open_for_write(table)[1].items()}
        raise ConsistencyNotReached(f"what a write to {table.full_name} that failed", level, gate.epoch, ranges, silent)


def _are_acknowledged(cluster: Cluster, gate: Gate, table: Table, level: ConsistencyLevel, first: int) -> bool:
    opened, _ = gate.planning.open_for_write(table)
    every = {file.file_id: file for snapshot in opened.values() for file in snapshot.all_files.values()}
    live = Live(opened, cluster.ledger.lineage(table.table_id, every.values()))
    return is_acknowledged(
        gate.planning, table, level, [file for file in every.values() if file.max_written_at > first], live
    )


@contextmanager
def _told_until(done: RolledBack) -> Iterator[None]:
    """An error of what is worth trying again says with which `until` it is the same rollback."""
    try:
        yield
    except EpochlakeError as error:
        if error.exit_code == WORTH_RETRYING:
            error.hint = f"{error.hint}. " if error.hint else ""
            error.hint += f"The same rollback with until {done.until} lands what is missing, and nothing twice"
        raise


class _Found(NamedTuple):
    """Rows that differ, one below the other: what each was before and after, where it was, and in what way it differs.

    In `before` stands of an added row what it is, in `after` of a removed one what it was, so that both have all rows.
    """

    kinds: Sequence[str]
    before: pa.Table
    after: pa.Table


def _are(found: _Found, *kinds: str) -> list[bool]:
    return [kind in kinds for kind in found.kinds]


def _schema(table: Table) -> pa.Schema:
    rows = question(table).asked.schema
    return pa.schema([pa.field(CHANGE, pa.string(), nullable=False), *rows, pa.field(BEFORE, pa.struct(list(rows)))])


def _batches(found: _Found, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    before = pa.chunked_array(
        [
            pa.StructArray.from_arrays(batch.columns, fields=list(batch.schema))
            for batch in found.before.combine_chunks().to_batches()
        ],
        schema.field(BEFORE).type,
    )
    had = pa.array([kind != ADDED for kind in found.kinds], pa.bool_())
    nulls = pa.nulls(len(found.kinds), before.type)
    struct = pc.if_else(had, before.combine_chunks(), nulls)
    columns = [pa.array(found.kinds, pa.string()), *found.after.columns, struct]
    yield from pa.table(columns, schema=schema).combine_chunks().to_batches()


def _differences(
    gate: Gate, table: Table, times: tuple[int, int], judged: tuple[int, int], consistency: str | None
) -> Iterator[_Found]:
    """What differs between two times, a window of tokens after the other. `judged`: as of when rows of either expire.

    A rollback judges both as of the later one: what has expired by then it neither brings back nor deletes, and the
    same call with the same times finds the same rows.
    """
    asked = [question(table, as_of=moment_of(when)) for when in judged]
    expires = asked[0].bounds != asked[1].bounds
    rows = gate.plan_read(table, consistency, None, times[1])
    count = sum(run.copy.file.rows for run in (*rows.alone, *(run for section in rows.sections for run in section)))
    for window in _windows(max(1, math.ceil(count / WINDOW_ROWS))):

        def read(window: Interval = window) -> _Found | None:
            plans = [gate.plan_read(table, consistency, [window], when) for when in times]
            if not expires and _reads_the_same(*plans):
                return None
            before, after = (_rows(plan, one.asked) for plan, one in zip(plans, asked, strict=True))
            return _compared(table, before, after)

        found = round_damage(read)
        if found is not None and found.kinds:
            yield found


def _windows(count: int) -> Iterator[Interval]:
    """The token space in so many parts."""
    width = (MAX_TOKEN - MIN_TOKEN + 1) // count
    for number in range(count):
        low = MIN_TOKEN + number * width
        yield low, MAX_TOKEN if number == count - 1 else low + width - 1


def _reads_the_same(one: ReadPlan, other: ReadPlan) -> bool:
    """Whether two plans read the same rows of the same files."""

    def runs(plan: ReadPlan) -> set[tuple[str, tuple[Interval, ...]]]:
        found = (*plan.alone, *(run for section in plan.sections for run in section))
        return {(run.copy.file.file_id, tuple(run.intervals)) for run in found}

    return runs(one) == runs(other)


def _rows(plan: ReadPlan, asked: Asked) -> pa.Table:
    return pa.Table.from_batches(scan(plan, asked), asked.schema)


def _compared(table: Table, before: pa.Table, after: pa.Table) -> _Found:
    was, now = _values(before), _values(after)
    if table.append_only:
        left = Counter(was)
        added = []
        for number, row in enumerate(now):
            if left[row]:
                left[row] -= 1
            else:
                added.append(number)
        rows = after.take(pa.array(added, pa.int64()))
        return _Found([ADDED] * len(added), rows, rows)
    keys = [before.schema.names.index(name) for name in table.primary_key]

    def by_key(rows: Sequence[tuple[object, ...]]) -> dict[tuple[object, ...], int]:
        return {tuple(row[key] for key in keys): number for number, row in enumerate(rows)}

    old, new = by_key(was), by_key(now)
    kinds, of_before, of_after = [], [], []
    both = pa.concat_tables([before, after])
    for key, number in new.items():
        if key not in old:
            kinds.append(ADDED)
            of_before.append(len(was) + number)
            of_after.append(len(was) + number)
        elif was[old[key]] != now[number]:
            kinds.append(CHANGED)
            of_before.append(old[key])
            of_after.append(len(was) + number)
    for key, number in old.items():
        if key not in new:
            kinds.append(REMOVED)
            of_before.append(number)
            of_after.append(number)
    return _Found(kinds, both.take(pa.array(of_before, pa.int64())), both.take(pa.array(of_after, pa.int64())))


def _values(rows: pa.Table) -> list[tuple[object, ...]]:
    """Rows as values that are equal where Spark says so, and can be looked up."""
    columns = [[comparable(value) for value in column.to_pylist()] for column in bare_rows(rows).columns]
    return list(zip(*columns, strict=True))
