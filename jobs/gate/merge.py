"""What a user merges and overwrites: clauses one after another, then `execute`; or all rows of a table at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from epochlake.jobs.gate.arrow_conform import conform_arrow, conform_arrow_keys, held, source_of
from epochlake.jobs.gate.arrow_reading import Question, looked_after, question, round_damage
from epochlake.jobs.gate.arrow_rows import ArrowRows, changes_of, hashes
from epochlake.jobs.gate.arrow_types import arrow_type
from epochlake.jobs.gate.batches import Count, count_of
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.gate.merge_clauses import (
    EVERYTHING,
    Changes,
    Clause,
    asked,
    changes,
    require_all_columns,
    require_fitting_clauses,
    require_fitting_source,
)
from epochlake.jobs.gate.merge_journal import MergeCounts
from epochlake.jobs.gate.merging import Fixed, Merged, Merging
from epochlake.jobs.gate.row_digests import (
    DigestedColumn,
    RowDigest,
    as_then,
    digested_columns,
    is_digested,
    number_of,
    type_then,
)
from epochlake.jobs.gate.rows import Rows
from epochlake.jobs.replicas.row_values import bare_rows, comparables
from epochlake.jobs.replicas.scanning import scan
from epochlake.metastore.metadata.model import Table
from epochlake.placement.consistency import ConsistencyLevel
from epochlake.placement.errors import InvalidRequest

Opened = Callable[[], AbstractContextManager[Gate]]
"""A gate for a `with`."""

Run = Callable[[str | None], Merged]
"""Merges under a name, or none."""


def as_named(run: Run, batch: str | None) -> Merged:
    """Merge under the name that is given."""
    return run(batch)


class Merge:
    """A merge into a table: clauses, each of which gives a new merge, and `execute`, which does it.

    A row of the source whose key is in the table is matched. Of the clauses that a row fits the first one counts; a row
    that fits none changes nothing. Values and conditions are texts (`"target.n + source.n"`), expressions of Arrow over
    the columns `source.…` and `target.…`, or plain values that are no text.
    """

    def __init__(
        self,
        opened: Opened,
        table: str,
        source: object,
        clauses: Sequence[Clause] = (),
        around: Callable[[Run, str | None], Merged] = as_named,
    ) -> None:
        """`around` merges under the name that a merge has beside the one that it is given: a task of Airflow's."""
        self._around = around
        self._opened = opened
        self._table = table
        self._source = source
        self._clauses = tuple(clauses)

    def __repr__(self) -> str:
        clauses = ", ".join(f"{'not ' if one.kind == 'insert' else ''}matched: {one.kind}" for one in self._clauses)
        return f"<merge into {self._table}: {clauses or 'no clause yet'}>"

    def when_matched_update(self, set: Mapping[str, object], condition: object = None) -> Merge:
        """Set columns of rows that are there. The others keep their values."""
        return self._with(Clause("update", _values(set), condition))

    def when_matched_update_all(self, condition: object = None) -> Merge:
        """Set all columns of rows that are there to those of the source.

        It has all of them, but for those that a write may leave out as well: these keep their values.
        """
        return self._with(Clause("update", EVERYTHING, condition))

    def when_matched_delete(self, condition: object = None) -> Merge:
        """Delete rows that are there."""
        return self._with(Clause("delete", {}, condition))

    def when_not_matched_insert(self, values: Mapping[str, object], condition: object = None) -> Merge:
        """Insert a row with the source's key and these values. Others have their default, or are null."""
        return self._with(Clause("insert", _values(values), condition))

    def when_not_matched_insert_all(self, condition: object = None) -> Merge:
        """Insert rows of the source, which has all columns of the table, but for those that a write may leave out."""
        return self._with(Clause("insert", EVERYTHING, condition))

    def execute(self, *, consistency: str | None = None, batch: str | None = None) -> Merged:
        """Do it, after every merge of the table that others have begun before, and before all later ones.

        What a clause reads is what counts when its row lands: nobody has merged in between, and a write that was seen
        has the merge planned again. `batch`: however often it is tried with the same source and clauses, it counts
        once, and others are refused under its name. Levels are QUORUM (where none is given and the configuration's is
        less), EACH_QUORUM and ALL. Rows of the source, and those with their keys, are held in memory.

        Raises InvalidRequest for what does not fit, Rejected, ConsistencyNotReached for what cannot be read,
        MergeContended where others were faster again and again, MergeUnfinished where it counts and has yet to be
        brought to its replicas.
        """
        return self._around(lambda named: self._execute(consistency, named), batch)

    def _execute(self, consistency: str | None, batch: str | None) -> Merged:
        rows = held(self._source)

        def merge(gate: Gate, table: Table) -> Merged:
            require_fitting_clauses(self._clauses, table)
            source = require_fitting_source(source_of(rows, table), table)
            require_all_columns(self._clauses, source, table)
            given = Fixed(Count(source.num_rows, None)) if batch is None else _Given(source, table)

            def plan(gate: Gate, table: Table, level: ConsistencyLevel) -> _PlannedMerge:
                return _PlannedMerge(gate, table, level, source, self._clauses)

            return Merging(gate, table).run("merge", plan, given, consistency, batch, asked(self._clauses))

        with self._opened() as gate:
            return gate.planning.as_it_is(self._table, partial(merge, gate))

    def _with(self, clause: Clause) -> Merge:
        return Merge(self._opened, self._table, self._source, (*self._clauses, clause), self._around)


class _Given:
    """The source of a named merge. Values of Python have the types of the table, and others when these are widened."""

    def __init__(self, source: pa.Table, table: Table) -> None:
        self._source = source
        self._typed = {
            number_of(column): column
            for column in table.numbered
            if is_digested(column)
            and column.name in source.column_names
            and source.schema.field(column.name).type == arrow_type(column.type)
        }

    @property
    def columns(self) -> tuple[DigestedColumn, ...]:
        return tuple(DigestedColumn(number, type_then(column)) for number, column in self._typed.items())

    def counted(self, columns: tuple[DigestedColumn, ...] | None) -> Count:
        """How many rows, and the sum of their digests: values that fit the types of then have these."""
        source = self._source
        for one in columns or ():
            column = self._typed.get(one.number)
            if column is not None and type_then(column) != one.type:
                narrow, same = as_then(source.column(column.name), column, one)
                if same.all():
                    source = source.set_column(source.column_names.index(column.name), column.name, narrow)
        return _counted(source)


class _PlannedMerge:
    """What a merge has read, and what its clauses make of it."""

    def __init__(
        self, gate: Gate, table: Table, level: ConsistencyLevel, source: pa.Table, clauses: Sequence[Clause]
    ) -> None:
        self._gate = gate
        self._table = table
        self._level = level
        self._of = question(table, keys=source.select(list(table.primary_key)))
        self._files, self._target = _read(gate, self._of, level)
        self._changes: Changes = changes(source, self._target, clauses, table)

    @cached_property
    def rows(self) -> ArrowRows:
        return changes_of(self._changes.upserts, self._changes.deletes, self._table)

    @property
    def counts(self) -> MergeCounts:
        return self._changes.counts

    def still_holds(self) -> bool:
        """Whether the same files have the keys, or the same rows do."""
        plan = self._gate.planned_read(self._table, self._level, self._of.windows)
        if _files_of(plan) == self._files:
            return True
        return _sorted(_read(self._gate, self._of, self._level)[1]) == _sorted(self._target)


class NewRows(Protocol):
    """Rows that are to be the rows of a table, as an engine holds them: they fit it."""

    def keys(self) -> pa.Table:
        """Their primary keys."""
        ...

    def count_outside(self, where: pc.Expression) -> int:
        """For how many of them a condition is not true."""
        ...

    @property
    def columns(self) -> tuple[DigestedColumn, ...]:
        """What they are digested by."""
        ...

    def counted(self, columns: tuple[DigestedColumn, ...] | None) -> Count:
        """How many they are, and the sum of their digests; None: as earlier versions have made them."""
        ...

    def with_deletes(self, deletes: pa.Table) -> Rows:
        """They, and deletes of other keys, as a batch of changes."""
        ...


def overwrite(
    opened: Opened,
    table: str,
    rows: object,
    where: pc.Expression | None,
    consistency: str | None,
    batch: str | None,
) -> Merged:
    """See `Cluster.overwrite`."""
    rows = held(rows)

    def put(gate: Gate, target: Table) -> Merged:
        given = require_fitting_source(conform_arrow(rows, target), target)
        return overwrite_by(gate, target, _InMemory(given, target), where, consistency, batch)

    with opened() as gate:
        return gate.planning.as_it_is(table, partial(put, gate))


def overwrite_by(
    gate: Gate,
    table: Table,
    given: NewRows,
    where: pc.Expression | None,
    consistency: str | None,
    batch: str | None,
) -> Merged:
    """Make these the rows of a table, or of the part of it for which `where` is true: see `Cluster.overwrite`."""
    require_overwritable(table)
    if where is not None:
        question(table, where=where)
        if outside := given.count_outside(where):
            raise InvalidRequest(
                f"{outside} of the rows that are to replace a part of {table.full_name} are not in that part",
                hint="Give only rows for which the condition is true",
            )

    def plan(gate: Gate, table: Table, level: ConsistencyLevel) -> _PlannedOverwrite:
        return _PlannedOverwrite(gate, table, level, given, where)

    part = "" if where is None else str(where)
    return Merging(gate, table).run("overwrite", plan, given, consistency, batch, part)


def require_overwritable(table: Table) -> None:
    """Raises InvalidRequest for a table whose rows are never deleted."""
    if table.append_only:
        raise InvalidRequest(f"table {table.full_name} is append-only: its rows cannot be deleted")


class _InMemory:
    """New rows that are in memory."""

    def __init__(self, rows: pa.Table, table: Table) -> None:
        self._rows = rows
        self._table = table

    def keys(self) -> pa.Table:
        return self._rows.select(list(self._table.primary_key))

    def count_outside(self, where: pc.Expression) -> int:
        return self._rows.num_rows - self._rows.filter(where).num_rows

    @property
    def columns(self) -> tuple[DigestedColumn, ...]:
        return digested_columns(self._table)

    def counted(self, columns: tuple[DigestedColumn, ...] | None) -> Count:
        if columns is None:
            return _counted(self._rows)
        return count_of(RowDigest(columns, self._table, self._table).of_arrow(self._rows))

    def with_deletes(self, deletes: pa.Table) -> ArrowRows:
        return changes_of(self._rows, deletes, self._table)


class _PlannedOverwrite:
    """New rows, and deletes of the keys that are there and not among them."""

    def __init__(
        self, gate: Gate, table: Table, level: ConsistencyLevel, given: NewRows, where: pc.Expression | None
    ) -> None:
        _, there = _read(gate, question(table, columns=table.primary_key, where=where), level)
        keys = given.keys()
        among = _among(there, keys, table)
        replaced = int(among.sum())
        self._given = given
        self._deletes = conform_arrow_keys(there.filter(pa.array(~among)), table)
        self.counts = MergeCounts(keys.num_rows - replaced, replaced, self._deletes.num_rows)

    @cached_property
    def rows(self) -> Rows:
        return self._given.with_deletes(self._deletes)

    def still_holds(self) -> bool:
        """What was written since stays, with or without being read: nothing follows from values that are there."""
        return True


def _among(there: pa.Table, keys: pa.Table, table: Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which keys that are there are among others."""
    names = list(table.primary_key)
    found = np.isin(hashes(there.select(names)), hashes(keys))
    wanted = set(comparables(keys))
    suspects = np.flatnonzero(found)
    for number, key in zip(suspects.tolist(), comparables(there.select(names).take(pa.array(suspects))), strict=True):
        found[number] = key in wanted
    return found


def _read(gate: Gate, of: Question, level: ConsistencyLevel) -> tuple[frozenset[str], pa.Table]:
    """The rows that are asked for, and the files that were asked."""

    def read() -> tuple[frozenset[str], pa.Table]:
        plan = gate.planned_read(of.table, level, of.windows)
        batches = list(looked_after(gate, scan(plan, of.asked)))
        return _files_of(plan), pa.Table.from_batches(batches, of.asked.schema)

    return round_damage(read)


def _files_of(plan: Any) -> frozenset[str]:
    return frozenset(copy.file.file_id for copy in plan.copies)


def _sorted(rows: pa.Table) -> list[str]:
    """Rows as what can be compared, whatever their order, and numbers that are none."""
    return sorted(map(repr, bare_rows(rows).to_pylist()))


def _counted(source: pa.Table) -> Count:
    """How many rows, and the sum of their digests; None where they have what nobody hashes."""
    try:
        digests = hashes(source.select(sorted(source.column_names)))
    except (KeyError, NotImplementedError, TypeError, ValueError):
        return Count(source.num_rows, None)
    return count_of(digests)


def _values(given: object) -> Mapping[str, object]:
    if not isinstance(given, Mapping) or not given:
        raise InvalidRequest(
            f"the values of a merge are {given!r}", hint='Give a dict by column: {"n": "target.n + source.n"}'
        )
    return dict(given)
