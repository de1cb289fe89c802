"""Which stored rows do not count: older versions of a key, and deletes. Told by their positions in their files.

That follows from tokens, keys and times of writing alone, so nothing else is read here: Spark reads the other columns
by itself, only those that are asked for, and leaves these positions out. Files have their rows in token order, so they
are runs that a merge sort puts together, and the versions of a key become neighbours. Runs on executors: it imports no
Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from epochlake.jobs.replicas.known_tokens import KnownTokens
from epochlake.jobs.replicas.row_values import bare_rows, comparable
from epochlake.jobs.replicas.run_files import CanMatch, Positions, rows_of_run
from epochlake.jobs.replicas.schema import DELETED, WRITTEN_AT
from epochlake.jobs.replicas.sections import Run, Slice, Task
from epochlake.jobs.replicas.shared_tokens import Numbers, shared_rows
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore.metadata.model import Table
from epochlake.placement.hashing import has_token_of_its_own
from epochlake.placement.tokens import TOKEN, Interval
from numpy.typing import NDArray

FILE = "superseded file"
FIRST = "first position"
WORDS = "superseded positions"
"""Columns of SUPERSEDED. No column of a table has a space in its name, so these stand beside all of them."""

SUPERSEDED = pa.schema([(FILE, pa.string()), (FIRST, pa.int64()), (WORDS, pa.list_(pa.int64()))])
SUPERSEDED_DDL = f"`{FILE}` string, `{FIRST}` bigint, `{WORDS}` array<bigint>"
"""Of a file in a slice: bit i (the lowest first) of word j says that row FIRST + 64 j + i does not count."""

WORD_BITS = 64
"""Rows of which a word tells."""

READERS = 4
"""Runs of a slice that are read at the same time: decoding them is most of what telling costs."""

MOST_COMPARED = 1024
"""Of so many runs it is found out whether one is later than the other as a whole: that takes the square of it."""


def tell_superseded(
    told_by: tuple[str, ...], tasks: Sequence[Task], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: numbers of `tasks` in, rows of SUPERSEDED out; `told_by` as for `judged`.

    Raises StorageUnavailable, which names the file, for one that is missing, torn or has a page with other bytes than
    were written.
    """
    for batch in batches:
        for number in batch.column(0).to_pylist():
            for piece in tasks[number]:
                yield from as_table(told(told_by, piece)).to_batches()


class Told(msgspec.Struct, frozen=True):
    """Which rows of a part of a file, from position `first`, a multiple of WORD_BITS, to `last` do not count.

    `words`: int64 array of shape (words,), as in SUPERSEDED. `count`: of the rows that do not count, at least one.
    """

    file: str
    first: int
    last: int
    words: NDArray[np.int64]
    count: int

    @property
    def positions(self) -> Positions:
        """Of the rows that do not count, ascending."""
        return self.first + np.flatnonzero(self._bits)

    def counting(self, positions: Positions) -> NDArray[np.bool_]:
        """Which of the rows at these positions count, as far as this tells."""
        bits, at = self._bits, positions - self.first
        if len(at) and at[0] >= 0 and at[-1] < len(bits) and at[-1] - at[0] == len(at) - 1:
            counting: NDArray[np.bool_] = bits[at[0] : at[-1] + 1] == 0  # rows one after the other, as most often
            return counting
        counting = np.ones(len(at), dtype=bool)
        within = (at >= 0) & (at < len(bits))
        counting[within] = bits[at[within]] == 0
        return counting

    @property
    def _bits(self) -> NDArray[np.uint8]:
        return np.unpackbits(self.words.astype("<i8").view(np.uint8), bitorder="little")


NOTHING = Told("", 0, -1, np.zeros(0, np.int64), 0)
"""What is told of a run all of whose rows count."""


def told(told_by: Sequence[str], piece: Slice, can_match: CanMatch | None = None) -> tuple[Told, ...]:
    """What is to be told of a slice; as for `judged`. Raises StorageUnavailable, which names the file."""
    return tuple(_told(run.name, positions) for run, positions in superseded(told_by, piece, can_match))


def as_table(told: Sequence[Told]) -> pa.Table:
    """As rows of SUPERSEDED."""
    if not told:
        return SUPERSEDED.empty_table()
    ends = np.cumsum([0, *(len(one.words) for one in told)])
    words = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(np.concatenate([one.words for one in told])))
    return pa.table([[one.file for one in told], [one.first for one in told], words], schema=SUPERSEDED)


def _told(name: str, positions: Positions) -> Told:
    first, last = int(positions[0]) // WORD_BITS * WORD_BITS, int(positions[-1])
    bits = np.zeros(((last - first) // WORD_BITS + 1) * WORD_BITS, dtype=bool)
    bits[positions - first] = True
    words = np.packbits(bits, bitorder="little").view("<i8").astype(np.int64)
    return Told(name, first, last, words, len(positions))


def judged_by(table: Table) -> tuple[str, ...]:
    """The columns that tell keys of one token apart; none where each key of the table has a token of its own."""
    types = {column.name: column.type for column in table.columns}
    alone = has_token_of_its_own([types[name] for name in table.primary_key])
    return () if alone else table.primary_key


class Judged(NamedTuple):
    """Rows of a run, as they are stored, their positions in its file, and which of them are `dead`: do not count."""

    run: Run
    rows: pa.Table
    positions: Positions
    dead: NDArray[np.bool_]


def superseded(
    told_by: Sequence[str], piece: Slice, can_match: CanMatch | None = None
) -> Iterator[tuple[Run, Positions]]:
    """For each run of a slice with some: the positions in its file, ascending, of its rows there that do not count."""
    for one in judged(told_by, piece, can_match):
        if one.dead.any():
            yield one.run, one.positions[one.dead]


def judged(
    told_by: Sequence[str], piece: Slice, can_match: CanMatch | None = None, columns: Sequence[str] = ()
) -> Iterator[Judged]:
    """The rows of each run of a slice, with these columns and those of `told_by`, and which of them do not count.

    `told_by`: the columns that tell keys of one token apart: those of the key, or none where each key has a token of
    its own (`judged_by`).

    Per key the highest `_written_at` counts, then a tombstone, then the highest file id; a tombstone never counts as a
    row. The versions of a key are all in the slice. Row groups of which `can_match` says no are left out: it may ask
    for nothing but key columns, which all versions of a row have in common.
    """
    runs = sorted(piece.runs, key=_age)
    ranked = _are_ranked(runs)
    needed = [TOKEN, *told_by, *([] if ranked else [WRITTEN_AT])]

    def read(run: Run) -> tuple[pa.Table, Positions]:
        deletes = [DELETED] if run.copy.file.has_tombstones else []
        names = list(dict.fromkeys([*needed, *deletes, *columns]))
        return _read(run, (piece.low, piece.high), names, can_match)

    parts = ThreadWorkers(READERS).run(read, runs)
    deleted = [_deleted(part) for part, _ in parts]
    # Of all other rows the token is their own: there is nothing to compare them with.
    compared = shared_rows([part.column(TOKEN).to_numpy() for part, _ in parts])
    kept = [_rows_of(part.select(needed), numbers) for (part, _), numbers in zip(parts, compared, strict=True)]
    rows = pa.concat_tables([bare_rows(part) for part in kept]).combine_chunks()
    tokens = rows.column(TOKEN).to_numpy()
    if ranked:
        order = np.argsort(tokens, kind="stable")
    else:
        ranks = {name: rank for rank, name in enumerate(sorted({run.name for run in runs}))}
        rank = np.repeat([ranks[run.name] for run in runs], [part.num_rows for part in kept])
        tombstones = np.concatenate([of_run[numbers] for of_run, numbers in zip(deleted, compared, strict=True)])
        order = np.lexsort((rank, tombstones, rows.column(WRITTEN_AT).to_numpy(), tokens))
    older = has_newer(rows.select(list(told_by)), tokens, order)
    ends = np.cumsum([part.num_rows for part in kept])[:-1]
    for number, older_ones in enumerate(np.split(older, ends)):
        dead = deleted[number]
        dead[compared[number]] |= older_ones
        yield Judged(runs[number], *parts[number], dead)


def told_outside(run: Run) -> Told | None:
    """Which rows of a file are in none of the intervals of a run; None where all are in one. Raises StorageUnavailable.

    So Spark may scan the whole file, with others, where it would scan parts of it by themselves.
    """
    rows, positions = _read(Run(run.copy, (), run.columns), run.copy.file.extent, [TOKEN], None)
    tokens = rows.column(TOKEN).to_numpy()
    outside = np.ones(len(tokens), dtype=bool)
    for low, high in run.intervals:
        outside[np.searchsorted(tokens, low) : np.searchsorted(tokens, high, side="right")] = False
    return _told(run.name, positions[outside]) if outside.any() else None


def different_tokens(piece: Slice) -> int:
    """How many tokens the rows of a slice have, each counted once. Raises StorageUnavailable."""
    parts = [_read(run, (piece.low, piece.high), [TOKEN], None)[0].column(TOKEN) for run in piece.runs]
    tokens = np.sort(pa.chunked_array([chunk for part in parts for chunk in part.chunks], pa.int64()).to_numpy())
    return int(len(tokens) and 1 + np.count_nonzero(tokens[1:] != tokens[:-1]))


def _age(run: Run) -> tuple[int, int, str]:
    return run.copy.file.min_written_at, run.copy.file.max_written_at, run.name


def _are_ranked(runs: Sequence[Run]) -> bool:
    """Whether of two runs, by `_age`, every row of the later one counts more than an equal key's in the earlier one.

    So it is with batches: each has one time of writing, and later ones are written later. What compaction has made of
    each tablet has many times, but shares no token with that of another tablet.
    """
    if len(runs) > MOST_COMPARED:
        return False
    files = [run.copy.file for run in runs]
    lows, highs = np.array([run.extent for run in runs], dtype=np.int64).T
    oldest = np.array([file.min_written_at for file in files], dtype=np.int64)
    newest = np.array([file.max_written_at for file in files], dtype=np.int64)
    tombstones = np.array([file.has_tombstones for file in files], dtype=bool)
    later = newest[:, None] < oldest[None, :]
    at_once = (oldest[:, None] == newest[None, :]) & ~(tombstones[:, None] | tombstones[None, :])
    apart = (highs[:, None] < lows[None, :]) | (highs[None, :] < lows[:, None])
    pairs = np.triu_indices(len(runs), 1)
    return bool((later | at_once | apart)[pairs].all())


def has_newer(keys: pa.Table, tokens: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Of each row, whether there is another one with its key that counts more; `order`: by token, then ascending."""
    ordered = tokens[order]
    older = np.zeros(len(tokens), dtype=bool)
    same = np.flatnonzero(ordered[1:] == ordered[:-1])
    older[order[same]] = True
    apart = same[~_are_equal(keys, order[same], order[same + 1])]
    for token in np.unique(ordered[apart]):
        members = order[np.searchsorted(ordered, token) : np.searchsorted(ordered, token, side="right")]
        older[members] = _has_newer_of_one_token(keys.take(members))
    return older


def _are_equal(keys: pa.Table, one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether the keys of two rows are surely equal. What Arrow cannot compare, or not as Spark does, is not sure."""
    equal = np.ones(len(one), dtype=bool)
    for column in keys.columns:
        if pa.types.is_nested(column.type):
            return np.zeros(len(one), dtype=bool)
        equal &= pc.equal(column.take(one), column.take(other)).to_numpy(zero_copy_only=False).astype(bool)
    return equal


def _has_newer_of_one_token(keys: pa.Table) -> list[bool]:
    """`_has_newer` of rows in ascending order: keys of one token are few, but may differ."""
    newest: dict[object, int] = {}
    older = [False] * keys.num_rows
    for number, key in enumerate(keys.to_pylist()):
        earlier = newest.get(known := comparable(key))
        if earlier is not None:
            older[earlier] = True
        newest[known] = number
    return older


def _rows_of(part: pa.Table, numbers: Numbers) -> pa.Table:
    return part if isinstance(numbers, slice) else part.take(pa.array(numbers))


def _deleted(part: pa.Table) -> NDArray[np.bool_]:
    if DELETED not in part.column_names:
        return np.zeros(part.num_rows, dtype=bool)
    deleted: NDArray[np.bool_] = part.column(DELETED).to_numpy().astype(bool)
    return deleted


def _read(run: Run, window: Interval, columns: list[str], can_match: CanMatch | None) -> tuple[pa.Table, Positions]:
    """The rows of a run with tokens in a window, and their positions in the file. Raises StorageUnavailable."""
    file, known = run.copy.file, run.copy.address.storage.kept(KnownTokens)
    is_whole = can_match is None and not run.intervals and window[0] <= file.min_token and file.max_token <= window[1]
    tokens, others = known.get(file) if is_whole else None, [name for name in columns if name != TOKEN]
    if tokens is not None and not others:
        return pa.table({TOKEN: tokens}), np.arange(len(tokens))
    parts = list(rows_of_run(run, window, columns if tokens is None else others, lambda type_: type_, can_match))
    rows, positions = pa.concat_tables([rows for rows, _ in parts]), np.concatenate([at for _, at in parts])
    if tokens is not None:
        return rows.append_column(TOKEN, pa.array(tokens)).select(columns), positions
    if is_whole:
        known.put(file, rows.column(TOKEN).to_numpy())
    return rows, positions
