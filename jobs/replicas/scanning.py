"""The rows of a read plan as Arrow, read by this process: what Spark would read of it.

Runs that share no token with another one are read as they are. Of sections it is told first which rows do not count,
a slice at a time, and remembered (telling.py); any filter may leave rows out after that. Small slices are read side by
side, a few at a time, so that memory is bounded. Where only some keys are asked for, what is told of their row groups
is told once more for each read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from epochlake.jobs.replicas import superseding
from epochlake.jobs.replicas.reading import ReadPlan
from epochlake.jobs.replicas.row_values import StoredKeys, comparables
from epochlake.jobs.replicas.run_files import CanMatch, rows_of_run
from epochlake.jobs.replicas.schema import DELETED
from epochlake.jobs.replicas.sections import Run, Slice, bytes_of
from epochlake.jobs.replicas.skipping import RowGroups
from epochlake.jobs.replicas.superseding import NOTHING, Told, judged
from epochlake.jobs.replicas.telling import told_once
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.placement.errors import InvalidRequest, words_of
from epochlake.placement.tokens import Interval

ONCE_BYTES = 32 << 20
"""Of slices with so many stored bytes all that is asked for is read at once. Of larger ones a row group at a time."""

SIDE_BY_SIDE = 4
"""So many slices, or runs of one, are read at the same time, with `ONCE_BYTES` stored bytes together at most."""


class Asked(msgspec.Struct, frozen=True, eq=False):
    """What of each row is wanted, and of which rows: the fields of `schema`, where `where` is true, of these `keys`
    only (in the order of `primary_key`, as `comparables` makes them). `needed`: the columns that `where` reads.
    `told_by`: the columns that tell keys of one token apart; there are none where a key has a token of its own.
    """

    schema: pa.Schema
    primary_key: tuple[str, ...]
    where: pc.Expression | None = None
    needed: tuple[str, ...] = ()
    keys: StoredKeys | None = None
    told_by: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.keys is not None and not isinstance(self.keys, StoredKeys):
            raise InvalidRequest(
                "a worker was asked for keys by a driver of an earlier version of Epochlake",
                hint="Have the driver and its workers run the same version",
            )

    @property
    def judged_by(self) -> tuple[str, ...]:
        """`told_by`, or the whole key where that was not said."""
        return self.primary_key if self.told_by is None else self.told_by

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        keys = self.primary_key if self.keys is not None else ()
        return list(dict.fromkeys([*self.schema.names, *self.needed, *keys]))


def scan(plan: ReadPlan, asked: Asked) -> Iterator[pa.RecordBatch]:
    """The rows of a plan, in no order that means anything.

    Raises StorageUnavailable, which names the file, for one that is missing, torn or has other bytes than were written.
    """
    alone = (Slice(*run.extent, (run,)) for run in plan.alone)
    return scan_slices(chain(alone, chain.from_iterable(plan.tasks)), asked)


def scan_slices(
    pieces: Iterable[Slice], asked: Asked, told: Mapping[str, Told] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of slices, as `scan`. `told`: what is told of files, by name, where that is known; then each slice has
    one run.
    """
    for rows in rows_of_slices(pieces, asked, told):
        if rows.num_rows:
            yield from rows.select(asked.schema.names).cast(asked.schema).combine_chunks().to_batches()


def rows_of_slices(pieces: Iterable[Slice], asked: Asked, told: Mapping[str, Told] | None = None) -> Iterator[pa.Table]:
    """The rows of slices that are asked for, with more columns than are. Of a slice with one run every row counts that
    is no delete, and of which nothing else is `told`. Raises as `scan`.
    """
    any_column = _can_match(asked, asked.needed)
    keys_only = _can_match(asked, [name for name in asked.needed if name in asked.primary_key])

    def rows_of(piece: Slice) -> Iterator[pa.Table]:
        if len(piece.runs) == 1:
            [run] = piece.runs
            of_run = NOTHING if told is None else told.get(run.name, NOTHING)
            deletes = run.copy.file.has_tombstones
            return _asked_for(_rows(run, (piece.low, piece.high), asked, any_column, of_run, deletes=deletes), asked)
        return _rows_of_section(piece, asked, any_column, keys_only)

    for few in _side_by_side(pieces):
        if len(few) == 1:
            yield from rows_of(few[0])
        else:
            yield from chain.from_iterable(ThreadWorkers(len(few)).run(lambda piece: list(rows_of(piece)), few))


def _side_by_side(pieces: Iterable[Slice]) -> Iterator[list[Slice]]:
    """Slices in their order, as many together as are read at the same time."""
    few: list[Slice] = []
    for piece in pieces:
        if few and (len(few) == SIDE_BY_SIDE or sum(map(bytes_of, [*few, piece])) > ONCE_BYTES):
            yield few
            few = []
        few.append(piece)
    if few:
        yield few


def _rows_of_section(
    piece: Slice, asked: Asked, any_column: CanMatch | None, keys_only: CanMatch | None
) -> Iterator[pa.Table]:
    """Of a slice with several runs."""
    is_selective = keys_only is not None or asked.keys is not None
    if is_selective and bytes_of(piece) <= ONCE_BYTES:
        for one in judged(asked.judged_by, piece, keys_only, asked.columns):
            yield from _asked_for([one.rows.filter(pa.array(~one.dead))], asked)
        return
    told = superseding.told(asked.judged_by, piece, keys_only) if is_selective else told_once(asked.judged_by, piece)
    told_of = {one.file: one for one in told}
    runs = [run for run in piece.runs if run.name not in told_of or told_of[run.name].count < run.copy.file.rows]

    def rows_of(run: Run) -> Iterator[pa.Table]:
        # Deletes are among what is told.
        of_run = told_of.get(run.name, NOTHING)
        return _asked_for(_rows(run, (piece.low, piece.high), asked, any_column, of_run, deletes=False), asked)

    if bytes_of(piece) <= ONCE_BYTES:
        yield from chain.from_iterable(ThreadWorkers(SIDE_BY_SIDE).run(lambda run: list(rows_of(run)), runs))
    else:
        yield from chain.from_iterable(map(rows_of, runs))


def _can_match(asked: Asked, columns: Collection[str]) -> CanMatch | None:
    """Which row groups can have rows that are asked for, by what their footers say of some columns."""
    return None if asked.where is None or not columns else RowGroups(asked.where, columns).can_match


def _rows(
    run: Run, window: Interval, asked: Asked, can_match: CanMatch | None, told: Told, *, deletes: bool
) -> Iterator[pa.Table]:
    """The rows of a run that count, by what is told of it; `deletes`: there may be some of which nothing is told."""
    marks = [DELETED] if deletes else []
    for rows, positions in rows_of_run(run, window, [*asked.columns, *marks], _as_stored, can_match):
        if told.count:
            counting = pa.array(told.counting(positions))
            rows = rows.filter(pc.and_not(counting, rows.column(DELETED)) if deletes else counting)
        elif deletes:
            rows = rows.filter(pc.invert(rows.column(DELETED)))
        yield rows


def _asked_for(tables: Iterable[pa.Table], asked: Asked) -> Iterator[pa.Table]:
    for rows in tables:
        if asked.keys is not None:
            rows = rows.filter(pa.array(_are_among(rows.select(list(asked.primary_key)), asked.keys), pa.bool_()))
        yield rows if asked.where is None else _filtered(rows, asked.where)


def _filtered(rows: pa.Table, where: pc.Expression) -> pa.Table:
    try:
        return rows.filter(where)
    except pa.ArrowException as error:
        # The file is as it was written: it is some row that the filter cannot be computed of.
        raise InvalidRequest(
            f"this filter cannot be computed of all rows: {words_of(error)}",
            hint="Write it so that it has a value for every row, with pyarrow.compute.if_else for example",
        ) from error


def _are_among(rows: pa.Table, keys: StoredKeys) -> Sequence[bool]:
    return [key in keys for key in comparables(rows)]


def _as_stored(type_: pa.DataType) -> pa.DataType:
    return type_
