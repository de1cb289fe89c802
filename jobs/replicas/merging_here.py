"""A merger that needs no Spark: this process reads the sources in token order, a row group of each at a time.

Each source is sorted by token already. What all of them have below a token that each has reached is complete, so it is
put in order, keeps of each key the version that counts, and goes on to the encoder. Memory: a row group of each source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from epochlake.jobs.replicas.file_columns import columns_to_read
from epochlake.jobs.replicas.merging import MergedFile, MergePlan, RangeMerge, Source, encode
from epochlake.jobs.replicas.row_values import bare_rows
from epochlake.jobs.replicas.run_files import rows_of_file
from epochlake.jobs.replicas.schema import DELETED, WRITTEN_AT
from epochlake.jobs.replicas.superseding import has_newer
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore.metadata.model import Table
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.tokens import TOKEN
from numpy.typing import NDArray

THREADS = 4
"""So many merges go on side by side."""


FEW_ROWS = 1 << 16
"""A row group with fewer is read together with the next one, if there is one."""


def merge_here(plan: MergePlan) -> list[MergedFile]:
    """The `Merger`. Raises StorageUnavailable, which names the file, for a source that cannot be read or is damaged."""
    # Neighbours go one after the other, as the files of one are synced while the next one is encoded.
    each = -(-len(plan.merges) // THREADS)
    groups = [plan.merges[start : start + each] for start in range(0, len(plan.merges), each)]

    def merge(merges: Sequence[RangeMerge]) -> list[MergedFile]:
        return list(encode(plan, merged_rows(plan, merges)))

    return [made for group in ThreadWorkers(THREADS).run(merge, groups) for made in group]


def merge_in_turn(plan: MergePlan) -> list[MergedFile]:
    """The `Merger` that leaves the machine to others as far as it can: one merge after the other."""
    return list(encode(plan, merged_rows(plan, plan.merges)))


def merged_rows(plan: MergePlan, merges: Sequence[RangeMerge]) -> Iterator[pa.RecordBatch]:
    """The rows of some merges that count, in token order."""
    for merge in merges:
        for rows in _in_order(plan, merge):
            yield from rows.combine_chunks().to_batches()


def _in_order(plan: MergePlan, merge: RangeMerge) -> Iterator[pa.Table]:
    # The names of files rank rows that were written at once, so they are in the order of these.
    sources = sorted(merge.sources, key=_name)
    streams = [_Stream(plan.storage, plan.table, source) for source in sources]
    while True:
        for stream in streams:
            if not stream.rows:
                stream.load()
        there = [number for number, stream in enumerate(streams) if stream.rows]
        if not there:
            return
        reached = [stream.last for stream in streams if stream.rows and stream.may_go_on]
        parts = [streams[number].below(min(reached) if reached else None) for number in there]
        if any(part.num_rows for part in parts):
            yield _counting(plan.table, parts, there)
            continue
        # The rows of one token fill what is there of a source: more of them may come.
        for stream in streams:
            if stream.rows and stream.may_go_on and stream.last == min(reached):
                stream.load()


class _Stream:
    """What a source has, in token order, as far as it was read and not taken."""

    def __init__(self, storage: Storage, table: Table, source: Source) -> None:
        self._columns = [*(column.name for column in table.columns), TOKEN, WRITTEN_AT, DELETED]
        spans = None if source.whole else [(source.low, source.high)]
        known_as = columns_to_read(table)
        self._groups = rows_of_file(storage, source.uri, spans, self._columns, _in_utc, known_as=known_as)
        self._ahead: pa.Table | None = None
        self._there: pa.Table | None = None
        self._tokens: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.may_go_on = True

    @property
    def rows(self) -> int:
        return len(self._tokens)

    @property
    def last(self) -> int:
        return int(self._tokens[-1])

    def load(self) -> None:
        """Read on until there are more rows, or no more."""
        before = self.rows
        while self.rows == before and self.may_go_on:
            group, self._ahead = self._next() if self._ahead is None else self._ahead, None
            if group is None:
                self.may_go_on = False
            else:
                self._keep(group if self._there is None else pa.concat_tables([self._there, group]))
        if self.may_go_on and self.rows < FEW_ROWS:
            # A small group is mostly the last one. Not to know it costs a round for each of thousands of small files.
            self._ahead = self._next()
            self.may_go_on = self._ahead is not None

    def _next(self) -> pa.Table | None:
        rows, _ = next(self._groups, (None, None))
        return rows

    def below(self, token: int | None) -> pa.Table:
        """Take the rows below a token; all of them, for None."""
        assert self._there is not None
        count = self.rows if token is None else int(np.searchsorted(self._tokens, token))
        taken = self._there.slice(0, count)
        self._keep(self._there.slice(count))
        return taken.select(self._columns)

    def _keep(self, rows: pa.Table) -> None:
        self._there = rows
        self._tokens = rows.column(TOKEN).to_numpy()


def _counting(table: Table, parts: Sequence[pa.Table], ranks: Sequence[int]) -> pa.Table:
    """The rows that count, in token order. All versions of a key are here. `ranks`: those of the parts' names."""
    rows = pa.concat_tables([part.cast(parts[0].schema) for part in parts]).combine_chunks()
    tokens = rows.column(TOKEN).to_numpy()
    if table.append_only:
        return rows.take(pa.array(np.argsort(tokens, kind="stable")))
    rank = np.repeat(ranks, [part.num_rows for part in parts])
    deleted = rows.column(DELETED).to_numpy().astype(bool)
    order = np.lexsort((rank, deleted, rows.column(WRITTEN_AT).to_numpy(), tokens))
    keys = rows.select(list(table.primary_key))
    older = has_newer(bare_rows(keys), tokens, order)
    return rows.take(pa.array(order[~older[order]]))


def _name(source: Source) -> str:
    return source.uri.rpartition("/")[2]


def _in_utc(type_: pa.DataType) -> pa.DataType:
    """Of timestamps those in UTC, as files are staged; every other type as it is."""
    return pa.timestamp("us", "UTC") if pa.types.is_timestamp(type_) and type_.tz else type_
