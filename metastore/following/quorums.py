"""Quorum intersection over the history of a log: could any read have missed a write that was acknowledged?

Between two steps of the same range or tablet stands a barrier, so only views one epoch apart are ever in
use at once. For every epoch and the one after it, every read quorum of either view has to meet every write quorum of
the other (design, section 8). Storage that is declared lost at an epoch is in no quorum of that epoch, which needs as
many replicas as if it were there. Ring ranges are checked exhaustively by `placement/simulation/quorums.py`,
tablets by counting; at QUORUM, and within each datacenter at LOCAL_QUORUM.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from epochlake.metastore.following.verification import Finding
from epochlake.metastore.log.entry import Position, verify_next
from epochlake.metastore.log.epoch_log import EpochLog
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import TableId, VolumeId
from epochlake.metastore.metadata.names import node_names, volume_names
from epochlake.metastore.metadata.placements import Placement
from epochlake.metastore.metadata.ring_state import ring_state
from epochlake.placement.consistency import majorities_meet
from epochlake.placement.simulation.quorums import Counterexample, RangeView, disjoint_in_history
from epochlake.placement.tablets.tablet_map import NO_REPLICA, TabletMap
from epochlake.placement.tokens import tablet_label

Lost = frozenset[VolumeId]
Views = tuple[Placement, Placement, Lost, Lost]

QUORUM = "quorums-disjoint"
"""The code of a finding: a read quorum and a write quorum that may be in use at once have no replica in common."""


def verify_quorums(log: EpochLog) -> tuple[Finding, ...]:
    """Every epoch whose placements, with those of the epoch before it, allow a read that misses a write; by epoch.

    Replays the whole log and changes nothing. Raises like replaying does, LogUnreadable, when it cannot be trusted: use
    `verify` first.
    """
    return quorums_of(_versions(log))


def quorums_of(versions: Iterable[ClusterMetadata]) -> tuple[Finding, ...]:
    """The same for versions of the metadata that follow each other."""
    rings: list[ClusterMetadata] = []
    found: list[Finding] = []
    known: set[Views] = set()
    previous: ClusterMetadata | None = None
    for metadata in versions:
        declared = previous is not None and metadata.directory.lost != previous.directory.lost
        if previous is None or declared or metadata.rings is not previous.rings:
            rings.append(metadata)
        if previous is not None and (declared or metadata.tablets is not previous.tablets):
            found += list(_of_tablets(previous, metadata, known))
        previous = metadata
    return tuple(sorted([*found, *_of_rings(rings)], key=lambda finding: finding.epoch))


def _versions(log: EpochLog) -> Iterator[ClusterMetadata]:
    metadata, position = ClusterMetadata.empty(), Position()
    yield metadata
    for entry in log.read(0):
        position = verify_next(position, entry)
        metadata = metadata.apply(entry.decode(), entry.state_id)
        yield metadata


def _of_rings(versions: Sequence[ClusterMetadata]) -> Iterator[Finding]:
    """`versions` are those in which the rings have changed, or what is declared lost."""
    for position, counterexample in disjoint_in_history(map(ring_state, versions)):
        metadata = versions[position]
        yield Finding(metadata.epoch, QUORUM, _told(counterexample, node_names(metadata.directory)))


def _told(found: Counterexample, names: Mapping[int, str]) -> str:
    def view(one: RangeView) -> str:
        reads, writes = (", ".join(sorted(names[node] for node in nodes)) for nodes in (one.reads, one.writes))
        return f"reads of {reads}, writes to {writes}"

    quorum = ", ".join(sorted(names[node] for node in found.quorum))
    return f"{found.what}, {quorum}: {view(found.earlier)}; then {view(found.later)}"


def _of_tablets(before: ClusterMetadata, after: ClusterMetadata, known: set[Views]) -> Iterator[Finding]:
    """`known`: pairs of placements that were found good already; those found good now are added."""
    for table_id, tablet_map in after.tablets.maps.items():
        earlier = before.tablets.maps.get(table_id)
        if earlier is None:
            continue
        finer = max(earlier.count, tablet_map.count)
        for tablet in sorted(_touched(before, after, table_id)):
            was = before.placement(table_id, tablet * earlier.count // finer)
            now = after.placement(table_id, tablet * tablet_map.count // finer)
            named = {*was.reads, *was.writes, *now.reads, *now.writes}
            views = (was, now, before.directory.lost & named, after.directory.lost & named)
            if views in known:
                continue
            reason = _missed(*views, after)
            if reason is None:
                known.add(views)
                continue
            name = f"{after.schema.tables[table_id].full_name}/{tablet_label(tablet, finer)}"
            yield Finding(after.epoch, QUORUM, f"tablet {name}: {reason}")


def _touched(before: ClusterMetadata, after: ClusterMetadata, table_id: TableId) -> set[int]:
    """Tablets of a table whose transition or replicas are not the same; of the finer map where the count differs."""
    was, now = before.tablets.maps[table_id], after.tablets.maps[table_id]
    finer = max(was.count, now.count)
    touched = set() if was is now else set(_rows_that_differ(was, now))
    old, new = before.tablets.transitions, after.tablets.transitions
    for transitions, count in ((old, was.count), (new, now.count)):
        for key, transition in transitions.items():
            # What is no longer declared lost is in the quorums of a transition again.
            same = old.get(key) is new.get(key) is transition and before.directory.lost == after.directory.lost
            if key[0] == table_id and not same:
                touched.update(range(key[1] * finer // count, (key[1] + 1) * finer // count))
    return touched


def _rows_that_differ(was: TabletMap, now: TabletMap) -> list[int]:
    """Tablets of the finer of two maps that have other replicas in the other one."""
    finer = max(was.count, now.count)
    width = max(was.width, now.width)
    old, new = (np.repeat(_sorted(one, width), finer // one.count, axis=0) for one in (was, now))
    rows: list[int] = np.flatnonzero((old != new).any(axis=1)).tolist()
    return rows


def _sorted(tablet_map: TabletMap, width: int) -> np.ndarray:
    whole = np.full((tablet_map.count, width), NO_REPLICA, dtype=np.int32)
    whole[:, : tablet_map.width] = tablet_map.to_array()
    return np.sort(whole, axis=1)


def _missed(was: Placement, now: Placement, lost: Lost, lost_now: Lost, metadata: ClusterMetadata) -> str | None:
    """Which reader may miss which writer when the two placements are in use at once.

    `lost` and `lost_now`: the replicas that are declared lost at the first and at the second.
    """
    earlier, later = (was, lost), (now, lost_now)
    for (reading, unread), (writing, unwritten) in ((earlier, later), (later, earlier), (later, later)):
        for datacenter in _datacenters(reading, writing, metadata):
            read = _within(reading.reads, datacenter, metadata)
            sets = [_within(replicas, datacenter, metadata) for replicas in writing.write_sets]
            if read and not any(majorities_meet(read, one, unread, unwritten) for one in sets if one):
                where = f" in datacenter {datacenter}" if datacenter else ""
                names = volume_names(metadata.directory)
                readers, writers = (", ".join(names[v] for v in who) for who in (read, sorted({*sum(sets, ())})))
                return f"a quorum{where} of the readers {readers} may miss a write to {writers}"
    return None


def _datacenters(reading: Placement, writing: Placement, metadata: ClusterMetadata) -> list[str]:
    """All of them together (""), and each of them where there are several."""
    used = {metadata.directory.datacenter_of(volume) for volume in (*reading.reads, *writing.writes)}
    return ["", *(sorted(used) if len(used) > 1 else ())]


def _within(volumes: Sequence[VolumeId], datacenter: str, metadata: ClusterMetadata) -> tuple[VolumeId, ...]:
    return tuple(v for v in volumes if datacenter in ("", metadata.directory.datacenter_of(v)))
