"""What replicas hold while a history goes on, seen from outside: no quorum may ever miss what was acknowledged.

A reader who asks the right replicas at the right moment would be shown that a row is missing; seldom anybody does. So
this looks at the files of all replicas whenever a write is acknowledged and whenever an epoch becomes known. A write
that was acknowledged at QUORUM is missed where so many of the replicas that are read now lack it as make a quorum; one
at ALL where a single one does, one at ONE where all do. It costs the world no step, and nothing of production code is
asked but who is read.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from epochlake.jobs.replicas.reading import ReadPlan
from epochlake.jobs.testing.replica_files import Mark, ReplicaFiles, Row, Unreadable, decoded, read, receipts
from epochlake.jobs.testing.rows import TABLE, token_of
from epochlake.jobs.testing.world import World
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.fence import Fence
from epochlake.metastore.metadata.model import Node, Table, TabletKey, Volume, VolumeId
from epochlake.metastore.metadata.placements import TablePlacements

_WHOLE = re.compile(r"[0-9a-f-]+\.parquet")
"""What files are called that were not cut: each replica cuts its own pieces."""


class Acknowledged(NamedTuple):
    """A row that was written and acknowledged at a level: one key of a write."""

    key: int
    note: str
    level: str


class Holdings:
    """What the replicas of a world's table hold. `harmed`: places whose storage is destroyed in this history: what they
    lack is known to be lost, and a cluster does without them. `forgets`: deletes are forgotten while it lasts; what was
    deleted may leave no trace then. `loses_power`: what a replica has dropped may be there again. `is_behind`: whether
    the log went back, and nobody has accepted that.
    """

    def __init__(
        self,
        world: World,
        harmed: Collection[str],
        *,
        append_only: bool = False,
        forgets: bool = False,
        loses_power: bool = False,
        is_behind: Callable[[], bool] = lambda: False,
    ) -> None:
        self.missing: list[str] = []
        """What was found missing, each row once."""
        self._world = world
        self._harmed = harmed
        self._append_only = append_only
        self._forgets = forgets
        self._loses_power = loses_power
        self._is_behind = is_behind
        self._metadata: ClusterMetadata | None = None
        self._acknowledged: dict[Acknowledged, None] = {}
        self._deleted: set[int] = set()
        self._files: dict[bytes, tuple[Row, ...]] = {}
        self._bytes: dict[str, bytes] = {}
        self._other: set[str] = set()
        self._times: dict[tuple[int, str | None], int] = {}
        self._replicas: dict[str, ReplicaFiles] = {}
        self._arrived: dict[tuple[TabletKey, int], dict[Acknowledged, None]] = {}
        """By transitions, with the epochs at which they began: what their pending replicas have acknowledged."""
        self._arrived_on_ring: dict[tuple[VolumeId, Acknowledged], None] = {}
        """What replicas on the ring have acknowledged that are written, and not read yet."""
        self._adrift: dict[Acknowledged, None] = {}
        """What was acknowledged in epochs that were lost, or before them: until a repair it may lie where nobody reads.
        """
        self._strewn: set[tuple[VolumeId, int]] = set()
        """Which rows by their keys lay where they do not belong, when lost epochs were accepted: those stay there until
        their range comes to that replica, which is emptied before.
        """

    def deleting(self, keys: Iterable[int]) -> None:
        """From now on these keys may have been deleted."""
        if self._forgets:
            self._deleted.update(keys)

    def acknowledge(
        self, rows: Iterable[Acknowledged], judged: ClusterMetadata | None = None, *, incarnation: int = 0
    ) -> None:
        """These have just been acknowledged. `judged`: the metadata by which that was said, if it is known.
        `incarnation`: which the one knows to whom that was said, 0 for the newest.
        """
        found = dict.fromkeys(rows)
        if self._is_behind() or 0 < incarnation < self.newest.incarnation:
            self._adrift |= found
            return
        self._acknowledged |= found
        if judged is not None:
            self._judge(judged, found)
        if self._metadata is not None:
            self._look(self._metadata, found)
            self._look_at_pending(self._metadata)
            self._arrive(self._metadata, found)

    def learn(self, metadata: ClusterMetadata) -> None:
        """An epoch has become known to somebody, who has not acted on it yet."""
        before, self._metadata = self._metadata, metadata
        if before is not None and before.identity.incarnation < metadata.identity.incarnation:
            self._lose_epochs(metadata)
            return
        if self._strewn:
            placements, lows, _ = self._lookup(metadata)
            self._strewn = {one for one in self._strewn if one[0] not in _written(placements, lows, one[1])}
        if before is None or _who_is_read(before) != _who_is_read(metadata):
            self._look(metadata, list(self._acknowledged))
        if before is not None and (before.tablets is not metadata.tablets or before.rings is not metadata.rings):
            self._look_at_pending(metadata)
        if before is not None and before.tablets is not metadata.tablets and not self._loses_power:
            for text in self._given_up(metadata):
                if text not in self.missing:
                    self.missing.append(text)

    def _lose_epochs(self, metadata: ClusterMetadata) -> None:
        """Where replicas were in the lost epochs nobody knows any more."""
        self._adrift |= self._acknowledged
        self._acknowledged.clear()
        self._arrived.clear()
        self._arrived_on_ring.clear()
        self._strewn = {(volume.volume_id, key) for node, volume, keys in self._not_written(metadata) for key in keys}

    def streamed(self, rows: Iterable[tuple[Acknowledged, int]], metadata: ClusterMetadata) -> None:
        """These are in the stream of changes, with these times, as somebody was told who knows this metadata: a quorum
        shows them.
        """
        if metadata.fence < self.newest:
            return
        placements, lows, rows_of = self._lookup(metadata)
        for row, written_at in rows:
            self._times.setdefault((row.key, row.note), written_at)
            placement = placements.placement(bisect_right(lows, token_of(row.key)) - 1)
            held = {volume: rows_of(volume) for volume in placement.writes}  # who has the row says when it was written
            lacking = [volume for volume in placement.reads if not self._is_held(row, held[volume])]
            if len(lacking) > len(placement.reads) - (len(placement.reads) // 2 + 1) and row.key not in self._deleted:
                self.missing.append(
                    f"the row {row.key, row.note[:20]} is in the stream of changes, and missing at {lacking} of "
                    f"{list(placement.reads)}, which are read at epoch {metadata.epoch}"
                )
                return

    @property
    def newest(self) -> Fence:
        """The newest epoch that somebody has followed to; 0 before that."""
        return Fence(0) if self._metadata is None else self._metadata.fence

    def everywhere(self, rows: Iterable[Acknowledged], epoch: int) -> None:
        """A repair says that it is complete, planned at this epoch: what was acknowledged before it, at any level, is
        at each replica, unless these are others by now.
        """
        metadata = self._metadata
        if metadata is None or metadata.epoch != epoch:
            return
        placements, lows, rows_of = self._lookup(metadata)
        for row in rows:
            placement = placements.placement(bisect_right(lows, token_of(row.key)) - 1)
            if row.key in self._deleted or {*placement.reads} != {*placement.writes}:
                continue
            held = {volume: rows_of(volume) for volume in placement.writes}  # who has the row says when it was written
            for volume, rows_there in held.items():
                if not self._is_held(row, rows_there):
                    self.missing.append(
                        f"a repair was complete at epoch {epoch}, and the row {row.key, row.note[:20]} of before is "
                        f"missing at volume {volume}"
                    )
            if row in self._adrift:
                del self._adrift[row]
                self._acknowledged[row] = None

    @property
    def acknowledged(self) -> list[Acknowledged]:
        """What was acknowledged so far."""
        return [*self._acknowledged, *self._adrift]

    def rows(self, metadata: ClusterMetadata) -> frozenset[tuple[int, str | None]] | None:
        """The rows that are in live files of replicas, by key and note; None where not all can be read."""
        table, found = metadata.table(TABLE), set()
        for node in metadata.directory.members():
            for volume in node.volumes:
                if self._world.disk.status(f"{volume.uri}/{table.directory}/{table.table_id}") is None:
                    continue
                rows = self._held(volume.uri, table)
                if rows is None:
                    return None
                found |= {(row.key, row.note) for of_key in rows.values() for row in of_key if not row.deleted}
        return frozenset(found)

    def not_owned(self, metadata: ClusterMetadata) -> list[str]:
        """Rows that live files of replicas have where they do not belong: at rest there are none."""
        found = []
        for node, volume, keys in self._not_written(metadata):
            strange = [key for key in keys if (volume.volume_id, key) not in self._strewn]
            if strange:
                found.append(f"{node.name} still has rows of the keys {strange}, which it does not own any more")
        return found

    def _not_written(self, metadata: ClusterMetadata) -> Iterator[tuple[Node, Volume, list[int]]]:
        """The keys of which a replica has rows, and is none where they are written."""
        table = metadata.table(TABLE)
        placements = metadata.placements(table.table_id)
        lows: list[int] = placements.lows.tolist()
        for node in metadata.directory.members():
            for volume in node.volumes:
                rows = self._held(volume.uri, table) or {}
                yield (
                    node,
                    volume,
                    [key for key in sorted(rows) if volume.volume_id not in _written(placements, lows, key)],
                )

    def _given_up(self, metadata: ClusterMetadata) -> list[str]:
        """Rows of tablets that a replica has which is none of theirs now: it was fenced before it gave them up, and
        gave them up before it was none.
        """
        table, found = metadata.table(TABLE), []
        tablet_map = metadata.tablets.maps.get(table.table_id)
        if tablet_map is None:
            return []
        placements = metadata.placements(table.table_id)
        lows: list[int] = placements.lows.tolist()
        named = [{*tablet_map.replicas(placements.unit(index))} for index in range(len(lows))]
        for (table_id, tablet), moving in metadata.tablets.transitions.items():
            for index, volumes in enumerate(named):
                if table_id == table.table_id and placements.unit(index) == tablet:
                    volumes |= {*moving.replicas, *moving.new_replicas}
        for node in metadata.directory.members():
            for volume in node.volumes:
                rows = self._held(volume.uri, table) or {}
                strange = [
                    key
                    for key in sorted(rows)
                    if volume.volume_id not in named[bisect_right(lows, token_of(key)) - 1]
                    and (volume.volume_id, key) not in self._strewn
                ]
                if strange:
                    found.append(f"{node.name} has rows of the keys {strange}, which it had given up before")
        return found

    def _judge(self, metadata: ClusterMetadata, rows: Iterable[Acknowledged]) -> None:
        """What was acknowledged counts at its level without storage that whoever says so knows to be lost."""
        placements, lows, rows_of = self._lookup(metadata)
        is_now = self.newest == metadata.fence
        table = metadata.table(TABLE)
        given = receipts(self._world, table.table_id)
        for row in rows:
            if row.key in self._deleted:
                continue
            placement = placements.placement(bisect_right(lows, token_of(row.key)) - 1)
            for volume in placement.writes:
                rows_of(volume)  # whoever has the row says when it was written
            for replicas in placement.write_sets:
                enough = {"ALL": len(replicas), "ONE": 1}.get(row.level, len(replicas) // 2 + 1)
                usable = [volume for volume in replicas if volume not in metadata.directory.lost]
                having = [volume for volume in usable if not is_now or self._is_held(row, rows_of(volume))]
                if len(having) < enough:
                    self.missing.append(
                        f"the row {row.key, row.note[:20]} was acknowledged at {row.level} at epoch {metadata.epoch}, "
                        f"and of {list(replicas)} only {having} have it that are not lost"
                    )
                    continue
                vouched = [one for one in usable if self._is_vouched_for(row, metadata, one, given.get(one, ()))]
                if len(vouched) < enough:
                    self.missing.append(
                        f"the row {row.key, row.note[:20]} was acknowledged at {row.level} at epoch {metadata.epoch}, "
                        f"and of {list(replicas)} the root has a receipt of {vouched} only"
                    )

    def _is_vouched_for(
        self, row: Acknowledged, metadata: ClusterMetadata, volume: VolumeId, given: Collection[Mark]
    ) -> bool:
        """Whether the root would notice it if the replica went back to before it had the row: one of its receipts is of
        the commit that brought it, or a later one. True where nobody can tell.
        """
        uri = metadata.directory.volumes[volume].uri
        if uri in self._harmed:
            return True
        replica = self._replica(uri, metadata.table(TABLE))
        try:
            brought = False
            for commit in replica.commits():
                for path in (f"{replica.path}/{action['add']['path']}" for action in commit if "add" in action):
                    # What is deleted by now may have been it.
                    brought = brought or self._world.disk.status(path) is None
                    brought = brought or any((one.key, one.note) == (row.key, row.note) for one in self._rows(path))
                marks = {(a["txn"]["appId"], a["txn"]["version"]) for a in commit if "txn" in a}
                if brought and not marks.isdisjoint(given):
                    return True
        except Unreadable:
            return True
        return False

    def _arrive(self, metadata: ClusterMetadata, rows: Iterable[Acknowledged]) -> None:
        """Remember which of these the pending replicas have."""
        table = metadata.table(TABLE)
        if metadata.is_on_ring(table.table_id):
            return self._arrive_on_ring(metadata, rows)
        if not metadata.tablets.transitions:
            return None
        placements, lows, rows_of = self._lookup(metadata)
        for row in rows:
            tablet = placements.unit(bisect_right(lows, token_of(row.key)) - 1)
            moving = metadata.tablets.transitions.get((table.table_id, tablet))
            if moving is None or not moving.comes or moving.error is not None:
                continue
            there = rows_of(moving.pending)
            if there is not None and self._is_held(row, there):
                self._arrived.setdefault((moving.key, moving.started_epoch), {})[row] = None
        return None

    def _arrive_on_ring(self, metadata: ClusterMetadata, rows: Iterable[Acknowledged]) -> None:
        """Remember which of these the replicas have that gain ranges."""
        if not metadata.rings.operations:
            return
        placements, lows, rows_of = self._lookup(metadata)
        for row in rows:
            for volume in _pending(placements, lows, row.key):
                there = rows_of(volume)
                if there is not None and self._is_held(row, there):
                    self._arrived_on_ring[volume, row] = None

    def _look_at_pending_on_ring(self, metadata: ClusterMetadata) -> None:
        """A replica is made ready once for each operation: what has come to it stays there until it is read, or the
        operation goes back.
        """
        if not self._arrived_on_ring:
            return
        placements, lows, rows_of = self._lookup(metadata)
        for volume, row in list(self._arrived_on_ring):
            if volume not in _pending(placements, lows, row.key):
                del self._arrived_on_ring[volume, row]
            elif row.key not in self._deleted and not self._is_held(row, rows_of(volume)):
                del self._arrived_on_ring[volume, row]
                self.missing.append(
                    f"the row {row.key, row.note[:20]} had come to {metadata.describe(volume)}, which is about to get "
                    f"its range, and is not there any more at epoch {metadata.epoch}"
                )

    def _look_at_pending(self, metadata: ClusterMetadata) -> None:
        """A replica is made ready once for each transition: what it has got of it stays there until its end."""
        self._look_at_pending_on_ring(metadata)
        for (key, started_epoch), rows in list(self._arrived.items()):
            moving = metadata.tablets.transitions.get(key)
            if moving is None or moving.started_epoch != started_epoch or moving.error is not None:
                del self._arrived[key, started_epoch]
                continue
            _, _, rows_of = self._lookup(metadata)
            there = rows_of(moving.pending)
            for row in list(rows):
                if row.key not in self._deleted and not self._is_held(row, there):
                    del rows[row]
                    self.missing.append(
                        f"the row {row.key, row.note[:20]} had come to {metadata.describe(moving.pending)}, and is not "
                        f"there any more at epoch {metadata.epoch}, in {moving.stage}"
                    )

    def is_shown_too_much(self, plan: ReadPlan, metadata: ClusterMetadata) -> str:
        """What a read that was planned at an epoch has taken from a replica that was fenced at a newer one, or that a
        rebuild has not filled yet; or "".
        """
        for copy in plan.copies:
            volume = copy.address.volume_id
            replica = self._replica(metadata.directory.volumes[volume].uri, metadata.table(TABLE))
            with suppress(Unreadable):
                if replica.is_unfilled_since(copy.file.path):
                    return (
                        f"has planned to read {copy.file.path} of {metadata.describe(volume)}, which is being rebuilt"
                    )
                fence = replica.fence_before(copy.file.path)
                # Instead of a damaged copy others are taken, of whichever replica.
                if fence > metadata.fence and not self._harmed:
                    return (
                        f"has planned a read at epoch {metadata.epoch}, and {metadata.describe(volume)} had got "
                        f"{copy.file.path} when it was fenced at {fence}"
                    )
        return ""

    def live_files(self, metadata: ClusterMetadata) -> dict[str, int]:
        """How many live files with rows each replica has that can be read, by the place of its volume; not where rows
        of lost epochs lie, which nobody merges.
        """
        table, found = metadata.table(TABLE), {}
        strewn = {volume for volume, _ in self._strewn}
        for node in metadata.directory.members():
            for volume in node.volumes:
                if volume.uri not in self._harmed and volume.volume_id not in strewn:
                    with suppress(Unreadable):
                        replica = self._replica(volume.uri, table)
                        found[volume.uri] = sum(
                            bool(self._rows(f"{replica.path}/{file}")) for file in replica.live_files()
                        )
        return found

    def _replica(self, volume: str, table: Table) -> ReplicaFiles:
        path = f"{volume}/{table.directory}/{table.table_id}"
        return self._replicas.setdefault(path, ReplicaFiles(self._world, path))

    def _look(self, metadata: ClusterMetadata, rows: Iterable[Acknowledged]) -> None:
        placements, lows, rows_of = self._lookup(metadata)
        for row in list(rows):
            if row.key in self._deleted or (row.level == "ONE" and self._harmed):
                continue
            placement = placements.placement(bisect_right(lows, token_of(row.key)) - 1)
            reads = placement.reads
            for volume in placement.writes:
                rows_of(volume)  # whoever has the row says when it was written
            lacking = [volume for volume in reads if not self._is_held(row, rows_of(volume))]
            enough = {"ALL": 1, "ONE": len(reads)}.get(row.level, len(reads) // 2 + 1)
            if len(lacking) >= enough:
                del self._acknowledged[row]
                self.missing.append(
                    f"the row {row.key, row.note[:20]}, acknowledged at {row.level}, is missing at {len(lacking)} of "
                    f"the {len(reads)} replicas {list(reads)} that are read at epoch {metadata.epoch}"
                )

    def _lookup(
        self, metadata: ClusterMetadata
    ) -> tuple[TablePlacements, list[int], Callable[[VolumeId], dict[int, list[Row]] | None]]:
        """Where rows are to be, and what is there."""
        table = metadata.table(TABLE)
        placements = metadata.placements(table.table_id)
        held: dict[VolumeId, dict[int, list[Row]] | None] = {}

        def rows_of(volume: VolumeId) -> dict[int, list[Row]] | None:
            if volume not in held:
                held[volume] = self._held(metadata.directory.volumes[volume].uri, table)
            return held[volume]

        return placements, placements.lows.tolist(), rows_of

    def _is_held(self, row: Acknowledged, rows: dict[int, list[Row]] | None) -> bool:
        """Whether who reads that replica is shown the row, or a later one of its key, or nothing of the replica."""
        if rows is None:
            return True
        there = rows.get(row.key, [])
        if self._append_only:
            return any(one.note == row.note for one in there)
        since = self._times.get((row.key, row.note), 0)
        return any(one.written_at >= since for one in there)

    def _held(self, volume: str, table: Table) -> dict[int, list[Row]] | None:
        """The rows of a replica's live files, by key; None when nobody can read it."""
        if volume in self._harmed:
            return None
        replica = self._replica(volume, table)
        try:
            found: dict[int, list[Row]] = {}
            for file in sorted(replica.live_files()):
                path = f"{replica.path}/{file}"
                self._compare(path)
                for row in self._rows(path):
                    found.setdefault(row.key, []).append(row)
        except Unreadable:
            return None
        return found

    def _compare(self, path: str) -> None:
        """A file is the same wherever it is copied, but for copies that something has damaged."""
        name = path.rpartition("/")[2]
        if self._loses_power or path in self._world.rotted or not _WHOLE.fullmatch(name):
            return
        data = read(self._world, path)
        if self._bytes.setdefault(name, data) != data and path not in self._other:
            self._other.add(path)
            self.missing.append(f"{path} has other bytes than it was written with, and nothing has damaged it")

    def _rows(self, path: str) -> tuple[Row, ...]:
        data = read(self._world, path)
        found = self._files.get(data)
        if found is None:
            found = self._files[data] = tuple(decoded(data))
            for row in found:
                if not row.deleted:
                    known = self._times.get((row.key, row.note), row.written_at)
                    self._times[row.key, row.note] = min(known, row.written_at)
        return found


def _written(placements: TablePlacements, lows: list[int], key: int) -> Sequence[VolumeId]:
    """The replicas of a key that are written."""
    return placements.placement(bisect_right(lows, token_of(key)) - 1).writes


def _pending(placements: TablePlacements, lows: list[int], key: int) -> list[VolumeId]:
    """Who is written and not read yet of a key."""
    placement = placements.placement(bisect_right(lows, token_of(key)) - 1)
    return [volume for volume in placement.writes if volume not in placement.reads]


def _who_is_read(metadata: ClusterMetadata) -> object:
    """Compares equal while nothing changes in who is read."""
    found = next((one for one in metadata.schema.tables.values() if one.full_name == TABLE), None)
    if found is None:
        return None
    placements = metadata.placements(found.table_id)
    return [(int(low), tuple(placements.placement(i).reads)) for i, low in enumerate(placements.lows)]
