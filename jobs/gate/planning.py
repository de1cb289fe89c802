"""What a run at the gate plans with: the metadata of one epoch, and the replicas that answer as of it.

A replica that has acknowledged a newer epoch is ahead: then there is news, and it is planned again with that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from epochlake.jobs.gate.errors import ConsistencyNotReached, TableAltered
from epochlake.jobs.gate.kept import KeptByTable
from epochlake.jobs.gate.routing import Grouped, choose_for_read, grouped, named, ranges_of, routes
from epochlake.jobs.gate.stretches import Stretches
from epochlake.jobs.replicas.intervals import overlap
from epochlake.jobs.replicas.opening import open_all, open_to_read
from epochlake.jobs.replicas.reading import Asked
from epochlake.jobs.replicas.replica import ReplicaSnapshot
from epochlake.jobs.replicas.staging_plan import Routing
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import Table, TableId, VolumeId
from epochlake.metastore.metadata.placements import TablePlacements, highs, ranges_within
from epochlake.placement.consistency import ConsistencyLevel, is_satisfied
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.rejections import Code
from epochlake.placement.tokens import Interval

if TYPE_CHECKING:
    from epochlake.jobs.replicas.store import Store

T = TypeVar("T")

CATCH_UP_SECONDS = 30.0
"""How long a replica may be ahead of the log that this process can read before the run gives up."""


class HybridClock:
    """Times of writes in microseconds: never at or below anything seen, so that a later write wins everywhere."""

    def __init__(self) -> None:
        self._last = 0

    @property
    def seen(self) -> int:
        """The newest time that was seen or given, 0 for none."""
        return self._last

    def see(self, snapshots: Iterable[ReplicaSnapshot]) -> None:
        """Later times are above all rows of these."""
        self._last = max([self._last, *(snapshot.newest_written_at for snapshot in snapshots)])

    def see_time(self, written_at: int) -> None:
        """Later times are above this one, microseconds."""
        self._last = max(self._last, written_at)

    def next(self, snapshots: Iterable[ReplicaSnapshot]) -> int:
        """A time above all rows of these, and above every time before."""
        self.see(snapshots)
        self._last = max(time.time_ns() // 1000, self._last + 1)
        return self._last


class Planning:
    """The metadata that a run plans at, which moves on when a replica or the log has news.

    `moved` is told of each new epoch. `datacenter`: where LOCAL_QUORUM counts, and reads are preferred. Raises Rejected
    for one that no node is in, or was in: what is misspelt would make a read ask far replicas, and nobody would know.
    """

    def __init__(self, cluster: Store, datacenter: str | None, moved: Callable[[int], None]) -> None:
        self.cluster = cluster
        self.datacenter = datacenter
        self.metadata = cluster.catch_up()
        self.metadata.require_datacenter(datacenter)
        self._moved = moved
        self.stretches = Stretches(cluster.configuration.pipeline.shared_file_bytes)
        self._first: dict[TableId, Table] = {}
        self._grouped: KeptByTable[Grouped] = KeptByTable()
        self._routing: KeptByTable[Routing] = KeptByTable()

    @property
    def epoch(self) -> int:
        return self.metadata.epoch

    def catch_up(self, fence: int) -> ClusterMetadata:
        """Plan at the newest metadata from now on, at or above a replica's fence (0: whatever is newest)."""
        before = self.metadata.epoch
        self.metadata = self.cluster.follower.wait_for_fence(fence, CATCH_UP_SECONDS)
        if self.metadata.epoch != before:
            self._moved(self.metadata.epoch)
        return self.metadata

    def table(self, name: str) -> Table:
        """A table by its full name. Raises Rejected for an unknown one."""
        try:
            return self.metadata.table(name)
        except Rejected:
            # It may have been created after this run began.
            self.catch_up(0)
            return self.metadata.table(name)

    def follow_names(self, name: str) -> None:
        """Catch up where the table that is known by a name has another one by now: rows that are given from then on are
        for the table that is called so, or for none. Raises StorageUnavailable for a log that cannot be read.
        """
        known = self.metadata.schema.by_name.get(name)
        if known is None:
            return  # `table` looks for it
        now = self.cluster.follower.catch_up().schema.tables.get(known.table_id)
        if now is not None and now.full_name != name:
            self.catch_up(0)

    def require(self, table: Table) -> None:
        """Raises Rejected for a table that was dropped."""
        if table.table_id not in self.metadata.schema.tables:
            raise Rejected(
                Code.UNKNOWN_TABLE,
                f"table {table.full_name} was dropped by epoch {self.epoch}",
                hint=self.metadata.restoration_hint(table.full_name),
            )

    def as_it_is(self, name: str, read: Callable[[Table], T]) -> T:
        """What `read` makes of a table as it is now: called again when the columns are found to have changed since."""
        while True:
            table = self.table(name)
            try:
                return read(table)
            except TableAltered:
                continue
            except InvalidRequest:
                # Who asks may know of columns that are not known here yet.
                if self._newer(table) is None:
                    raise

    def conformed(self, name: str, conform: Callable[[Table], T]) -> tuple[T, Table]:
        """Rows as `conform` makes them for a table, and the table with the columns that they are made for.

        Those are the columns of now. Rows that do not fit them, and fit the columns that this run has known first, are
        of a program that began before the change: they are written as such, and read as the table is now. Raises what
        `conform` raises.
        """
        table = self.table(name)
        first = self._first.setdefault(table.table_id, table)
        try:
            return conform(table), table
        except InvalidRequest as misfit:
            newer = self._newer(table)
            if newer is not None:
                with suppress(InvalidRequest):
                    return conform(newer), newer
            if first.version == (newer or table).version:
                raise
            try:
                return conform(first), first
            except InvalidRequest:
                raise misfit from None

    def _newer(self, table: Table) -> Table | None:
        """A table as the log has it now, None where its columns are those that are known."""
        self.catch_up(0)
        now = self.metadata.schema.tables.get(table.table_id)
        return None if now is None or now.version == table.version else now

    def _require_unaltered(self, table: Table) -> None:
        """Raises Rejected for a table that was dropped, TableAltered for one with other columns by now."""
        self.require(table)
        now = self.metadata.schema.tables[table.table_id]
        if now.version != table.version:
            raise TableAltered(table.full_name, now.epoch)

    def level(self, consistency: str | None) -> ConsistencyLevel:
        """The level of that name; None: the configuration's. Raises InvalidRequest."""
        default = self.cluster.configuration.pipeline.consistency
        return default if consistency is None else ConsistencyLevel.parse(consistency)

    def placements(self, table: Table) -> Grouped:
        """The placements of all ranges at this epoch."""
        return self._grouped.of(self.epoch, table.table_id, lambda: grouped(self.metadata.placements(table.table_id)))

    def routing(self, table: Table) -> Routing:
        """By what rows are staged at this epoch."""
        return self._routing.of(
            self.epoch,
            table.table_id,
            lambda: routes(self.cluster.storage, self.metadata, table, self.placements(table)),
        )

    def open_for_write(self, table: Table) -> tuple[dict[VolumeId, ReplicaSnapshot], dict[VolumeId, str]]:
        """Snapshots of the write replicas that answer, none fenced ahead of this epoch; what others said.

        A replica that is ahead says that writes may have been acknowledged in a placement which is not known here.
        """
        while True:
            volumes = self.placements(table).write_volumes
            opened, failed = open_all(self.cluster.storage, self.metadata, table, volumes, self.cluster.receipts)
            ahead = max((snapshot.fence for snapshot in opened.values()), default=0)
            if ahead <= self.metadata.fence:
                return opened, failed
            self.catch_up(ahead)
            self.require(table)

    def open_for_read(
        self,
        table: Table,
        level: ConsistencyLevel,
        without: Mapping[VolumeId, str] | None = None,
        within: Collection[Interval] | None = None,
    ) -> tuple[dict[VolumeId, ReplicaSnapshot], list[Asked]]:
        """Snapshots of the replicas that a read at `level` asks, none of them fenced ahead of this epoch.

        And which of them are asked for which tokens: from a first to a last one, in token order. `without`: replicas
        that count as if they did not answer, and why. `within`: only these tokens are read, intervals that do not meet.
        """
        self.catch_up_before(table)
        self._require_unaltered(table)
        unreachable: dict[VolumeId, str] = dict(without or {})
        for _ in range(10 * self.cluster.configuration.pipeline.attempts):
            metadata, among = self.metadata, self.placements(table)
            chosen, short = choose_for_read(metadata, among, level, unreachable, self.datacenter)
            pieces = list(_pieces(metadata.placements(table.table_id), among, within))
            groups = {group for _, _, group in pieces}
            short = [group for group in short if group in groups]
            if short:
                newest = self.catch_up(0)
                if newest.epoch != metadata.epoch:
                    self.require(table)
                    continue
                raise ConsistencyNotReached(
                    f"the read of {table.full_name}",
                    level,
                    metadata.epoch,
                    named(metadata, table, among.ranges_in(short)),
                    {metadata.describe(v): reason for v, reason in (unreachable | _not_read(metadata, among)).items()},
                )
            asked = {volume for group in groups for volume in chosen[group]}
            opened, failed = open_to_read(self.cluster.storage, metadata, table, asked, self.cluster.receipts)
            ahead = max((snapshot.fence for snapshot in opened.values()), default=0)
            if ahead > metadata.fence:
                self.catch_up(ahead)
                self._require_unaltered(table)
            elif not failed:
                snapshots = {group: [opened[volume] for volume in chosen[group]] for group in groups}
                return opened, [(low, high, snapshots[group]) for low, high, group in pieces]
            unreachable |= failed
        raise ConsistencyNotReached(
            f"the read of {table.full_name}", level, self.epoch, named(self.metadata, table, ()), {}
        )

    def too_few(
        self, table: Table, level: ConsistencyLevel, windows: Iterable[Interval], volumes: Collection[VolumeId]
    ) -> list[int]:
        """The ranges with tokens of `windows` for which `volumes` do not reach the level in each write set."""
        among = self.placements(table)
        ranges = ranges_of(self.metadata.placements(table.table_id), windows)
        enough = {group: self._is_satisfied(level, among, group, volumes) for group in among.groups_of(ranges)}
        return [index for index in ranges if not enough[among.group[index]]]

    def refuse_senseless_levels(self, table: Table, level: ConsistencyLevel) -> None:
        """Raise InvalidRequest for a level that some range of the table cannot have, whatever answers."""
        among = self.placements(table)
        for group in range(len(among.distinct)):
            self._is_satisfied(level, among, group, ())

    def is_satisfied(self, table: Table, level: ConsistencyLevel, index: int, volumes: Collection[VolumeId]) -> bool:
        """Whether acknowledgements of `volumes` reach the level in each write set of a range."""
        among = self.placements(table)
        return self._is_satisfied(level, among, int(among.group[index]), volumes)

    def _is_satisfied(self, level: ConsistencyLevel, among: Grouped, group: int, volumes: Collection[VolumeId]) -> bool:
        sets, datacenter_of = among.distinct[group].write_sets, self.metadata.directory.datacenter_of
        return is_satisfied(level, sets, volumes, datacenter_of, self.datacenter)

    def catch_up_before(self, table: Table) -> None:
        """Ask the log for news before a read, so that whatever was committed before the read began holds for it.

        A fence tells of steps that have passed a replica; of storage that was declared lost, and is back as if nothing
        had happened, only the log tells.
        """
        self.catch_up(0)
        self.require(table)


def _pieces(
    placements: TablePlacements, among: Grouped, within: Collection[Interval] | None
) -> Iterator[tuple[int, int, int]]:
    """First and last token of what is read, and the group that it is in: all, or what is in these intervals."""
    lows, last = placements.lows, highs(placements.lows)
    if within is None:
        yield from ((int(lows[i]), int(last[j]), group) for i, j, group in among.runs())
        return
    for window in sorted(within):
        for index in ranges_within(lows, *window):
            low, high = overlap(window, (int(lows[index]), int(last[index])))
            yield low, high, int(among.group[index])


def _not_read(metadata: ClusterMetadata, among: Grouped) -> dict[VolumeId, str]:
    """The replicas of some ranges that are not to be read, and why: declared lost, or being rebuilt."""
    directory = metadata.directory
    rebuilt = {v: "it is being rebuilt, rows may be missing on it" for one in among.distinct for v in one.unread}
    return rebuilt | {v: directory.why_lost(v) for one in among.distinct for v in one.reads if v in directory.lost}
