"""`Gate`: how rows come into replicated tables and out of them, whatever engine holds the rows.

A run at the gate plans at one committed epoch and announces it. It holds nothing up: topology changes go on, and every
replica that has acknowledged a newer epoch refuses what was planned before it. Then the run catches up, plans again for
what moved, and keeps everything that it has staged.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Collection
from types import TracebackType
from typing import TYPE_CHECKING, Self

from epochlake.jobs.gate.errors import ConsistencyNotReached, ReadDisturbed, RowsUnreadable
from epochlake.jobs.gate.past_reading import require_made_by, require_past
from epochlake.jobs.gate.planning import HybridClock, Planning
from epochlake.jobs.gate.rows import Rows
from epochlake.jobs.gate.verified_reading import damage_behind, plan_verified_read
from epochlake.jobs.gate.writing import Writing, Written
from epochlake.jobs.replicas.damage import ExpectedFile
from epochlake.jobs.replicas.reading import ReadPlan
from epochlake.metastore.announcing import Presence
from epochlake.metastore.metadata.model import Table, VolumeId
from epochlake.metastore.texts import is_unicode
from epochlake.placement.consistency import ConsistencyLevel
from epochlake.placement.errors import EpochlakeError, InvalidRequest
from epochlake.placement.tokens import Interval

if TYPE_CHECKING:
    from epochlake.jobs.replicas.store import Store


class Gate:
    """One run at the gate; use it in a `with`. Its methods are not for several threads at once.

    `name` is shown to operators. `datacenter` is where it runs: LOCAL_QUORUM counts there, and reads prefer it.
    """

    def __init__(self, cluster: Store, name: str, datacenter: str | None = None) -> None:
        if not isinstance(name, str) or not name:
            raise InvalidRequest("a pipeline needs a name, which operators see", hint=f"Give a text, not {name!r}")
        self.cluster = cluster
        self.name = name
        self.pipeline_id = str(uuid.uuid4())
        self.clock = HybridClock()
        self.planning = Planning(cluster, datacenter, lambda _: self._announce())
        self.writing = Writing(self.planning, self.clock, self.pipeline_id, name)
        self._tables: set[str] = set()
        self._reads = 0
        self._newest = 0
        self._reads_from: int | None = None
        self._read: dict[Table, dict[ExpectedFile, None]] = {}
        self._presence: Presence | None = None
        self._ended = False

    @property
    def epoch(self) -> int:
        """The committed epoch that it plans at."""
        return self.planning.epoch

    @property
    def is_announced(self) -> bool:
        """Whether it has begun, and not ended."""
        return self._presence is not None

    def __enter__(self) -> Self:
        """Announce the run. Raises CoordinationUnavailable when that is impossible: see `Presence.begin`."""
        if self._presence is not None or self._ended:
            raise InvalidRequest(
                f"pipeline {self.name!r} was begun before", hint="Open another one with cluster.pipeline(…)"
            )
        presence = Presence(self.cluster, self.name, self.pipeline_id, self.epoch)
        presence.begin()
        self._presence = presence
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        presence, self._presence = self._presence, None
        if presence is not None:
            presence.end()
        if isinstance(error, Exception) and not isinstance(error, EpochlakeError):
            self.look_for_damage(error)

    def require_open(self) -> None:
        """Refuse to work without a lease: vacuum would not know of it."""
        if self._ended:
            raise InvalidRequest(f"pipeline {self.name!r} has ended with its `with`", hint="Open another one")
        if self._presence is None:
            raise InvalidRequest(
                f"pipeline {self.name!r} has not begun, so that nothing protects what it reads and writes",
                hint=f"Use it in `with cluster.pipeline({self.name!r}, spark) as pipeline:`",
            )
        self.cluster.require_open()

    def write(
        self,
        rows: Rows,
        table: Table,
        consistency: str | None,
        batch: str | None,
        *,
        deleted: bool = False,
        changes: bool = False,
    ) -> Written:
        """Write rows, or with `deleted` tombstones for their keys, or a batch of `changes`, which has both.

        See `Writing.write` for what it promises.
        """
        self.require_open()
        level = self.planning.level(consistency)
        require_name(batch)
        if (deleted or changes) and table.append_only:
            raise InvalidRequest(f"table {table.full_name} is append-only: its rows cannot be deleted")
        self._touch(table)
        return self.writing.write(rows, table, level, batch, deleted=deleted, changes=changes)

    def newest_of(self, table: Table, consistency: str | None = None) -> int:
        """A time at or after that of every write to a table which was acknowledged before, in microseconds since 1970.

        It is told by what the replicas have, and by no clock of this machine: writers whose clock was ahead have later
        times. Compactions count, as they forget deletes, which no file tells of then. 0 for a table that was never
        written to. Raises ConsistencyNotReached, StorageUnavailable.
        """
        level = self.planning.level(consistency)
        opened, _ = self.planning.open_for_read(table, level)
        self.clock.see(opened.values())
        merges = self.cluster.ledger.merges(table.table_id).values()
        newest = max([0, *(one.newest_written_at for one in opened.values()), *(merge.at for merge in merges)])
        self._newest = max(self._newest, newest)
        return newest

    def plan_read(
        self,
        table: Table,
        consistency: str | None = None,
        within: Collection[Interval] | None = None,
        as_of: int | None = None,
    ) -> ReadPlan:
        """What a read reads, and where: files that stay for the run, whose ends were looked at just now. All rows, or
        those with tokens in some intervals, which do not meet. `as_of`: the rows as they were then, in microseconds
        since 1970.

        Raises ConsistencyNotReached when too few replicas can be read, RowsUnreadable when no replica has whole copies
        of all rows, Rejected for a table that was dropped, HistoryNotKept, InvalidRequest for a time to come.
        """
        self.require_open()
        level = self.planning.level(consistency)
        self._touch(table, as_of)
        return self.planned_read(table, level, within, as_of)

    def planned_read(
        self,
        table: Table,
        level: ConsistencyLevel,
        within: Collection[Interval] | None = None,
        as_of: int | None = None,
    ) -> ReadPlan:
        """`plan_read` without announcing that the table is used."""
        without: dict[VolumeId, str] = {}
        refused: RowsUnreadable | None = None
        while True:
            try:
                opened, asked = self.planning.open_for_read(table, level, without, within)
            except ConsistencyNotReached:
                if refused is None:
                    raise
                raise refused from None
            self.clock.see(opened.values())
            if as_of is not None:
                require_past(as_of, max(self.clock.seen, self._newest))
            turn = zlib.crc32(f"{self.name} {self._reads}".encode())
            self._reads += 1
            try:
                plan, live = plan_verified_read(self.cluster, self.planning.metadata, table, asked, turn, as_of)
            except RowsUnreadable as error:
                # Nobody else has these rows, so no level has acknowledged them without this replica: where the others
                # reach the level, it counts as one that does not answer.
                if not error.volumes - without.keys():
                    raise
                refused = refused or error
                without |= dict.fromkeys(error.volumes, error.reason)
                continue
            if as_of is not None and not plan.copies:
                require_made_by(self.cluster, table, as_of)
            self._read.setdefault(table, {}).update(dict.fromkeys(live))
            return plan

    def look_for_damage(self, error: Exception) -> None:
        """What was planned is read long after: note what was found damaged then, and raise ReadDisturbed for it.

        Returns when the error is another one.
        """
        for table, copies in self._read.items():
            damaged = damage_behind(error, copies)
            if damaged:
                self.cluster.damage.add(table.table_id, damaged)
                named = {
                    f"{self.planning.metadata.describe(one.address.volume_id)}: {one.file.path}": damage
                    for one, damage in damaged
                }
                raise ReadDisturbed(table.full_name, named) from error

    def _touch(self, table: Table, as_of: int | None = None) -> None:
        """Show in the lease that this run uses a table, and as of when."""
        self.planning.require(table)
        earlier = as_of is not None and (self._reads_from is None or as_of // 1000 < self._reads_from)
        if table.full_name not in self._tables or earlier:
            self._tables.add(table.full_name)
            if as_of is not None and earlier:
                self._reads_from = as_of // 1000
            self._announce()

    def _announce(self) -> None:
        if self._presence is not None:
            self._presence.update(self.epoch, tuple(sorted(self._tables)), self._reads_from)


def require_name(batch: str | None) -> None:
    """Raises InvalidRequest for what is no name of a batch."""
    if batch is not None and not _is_text(batch):
        raise InvalidRequest(f"the batch name {batch!r} cannot be used", hint="Give a text that is not empty, or none")


def _is_text(batch: object) -> bool:
    """Whether it is a name that files can carry: half a surrogate pair is in a `str` and in no UTF-8."""
    return isinstance(batch, str) and bool(batch.strip()) and is_unicode(batch)
