"""The track of splits and merges: decided from sizes, made ready without moving anything, and ended in one epoch.

A split is ready when no replica table has a file that straddles a middle, a merge when siblings are on the same
volumes. Their end changes numbers only: every token keeps its replicas, so it takes as long for a terabyte as for a
row. Labels of files follow afterwards, in one commit for each replica table (docs/decisions/011-resizing.md).

Topology requests come first, and so does an operator who has paused balancing: as long as either lasts, nothing of this
goes on but the labels.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial

import msgspec
import numpy as np
from epochlake.jobs.coordinator.effects.pre_split import PreSplit, PreSplitOutcome, PreSplitter
from epochlake.jobs.coordinator.fencing import Patience
from epochlake.jobs.coordinator.loads import Meter, measure_loads
from epochlake.jobs.replicas.commits import relabel
from epochlake.jobs.replicas.fences import raise_fence
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.outcomes import Acknowledged, AlreadyApplied, Unreachable
from epochlake.jobs.replicas.store import Store
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import (
    DecideResize,
    FinishResize,
    StartTransitions,
)
from epochlake.metastore.metadata.model import TableId, VolumeId
from epochlake.metastore.metadata.placements import TablePlacements, index_of
from epochlake.metastore.planning.balancing import Loads
from epochlake.metastore.planning.resizing import (
    colocating_transitions,
    planned_resizes,
    replica_sets_with,
    volumes_of,
)
from epochlake.metastore.planning.streams import StreamLimits
from epochlake.placement.consistency import BarrierLevel, barrier_passed
from epochlake.placement.tablets.resizing import Resize

logger = logging.getLogger(__name__)

THREADS = 16
SLICE_BYTES = 256 << 20
"""What is cut of a replica table before it is looked again whether it is still to be: at least one boundary."""

PATIENCE_SECONDS = 5.0
"""How long a round waits for cutting that is under way; a topology request that comes meanwhile waits for no more."""

MEASURE_SECONDS = 10.0
"""How old the loads may be that a decision is made from, while nothing about the tablets has changed."""

RETRY_SECONDS = 10.0
"""How long a replica that did not answer is left alone when nothing waits for it."""

ResizeKey = tuple[TableId, int]
"""A table and the number of its decision: what work for it is known by, and is stale without."""


class _Cutting(msgspec.Struct, frozen=True):
    """Cutting that is under way beside the rounds."""

    decided: ResizeKey
    asked: list[PreSplit]
    results: Future[list[PreSplitOutcome]]


class ResizingTrack:
    """Splits and merges tablets.

    `avoided` gives the volumes that a tablet was just taken back from, `measure` the sizes that are decided from.
    `held` are the tables that balancing leaves alone until their merge, or their split that is ready, has ended: an end
    needs a moment without transitions of the table.
    """

    def __init__(
        self,
        cluster: Store,
        pre_splitter: PreSplitter | None = None,
        avoided: Callable[[], Collection[VolumeId]] = frozenset,
        measure: Callable[[ClusterMetadata], Loads] | None = None,
    ) -> None:
        self._cluster = cluster
        self._settings = cluster.configuration.coordinator
        self._pre_splitter = pre_splitter or PreSplitter(bytes_per_second=self._settings.bytes_per_second)
        self._avoided = avoided
        self._meter = Meter(measure or partial(measure_loads, cluster.storage), MEASURE_SECONDS)
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="epochlake-cutting")
        self._cutting: _Cutting | None = None
        self._ready: dict[ResizeKey, dict[VolumeId, int]] = {}
        self._away: dict[ResizeKey, dict[VolumeId, str]] = {}
        self._patience = Patience(self._settings)
        self._labelled: dict[tuple[TableId, VolumeId], int] = {}
        self._retry_at: dict[tuple[TableId, VolumeId], float] = {}
        self.held: frozenset[TableId] = frozenset()
        self.blocked: list[str] = []

    def advance(self, metadata: ClusterMetadata) -> bool:
        self.held = frozenset()
        progressed = self._label(metadata)
        if not self._may_go_on(metadata):
            return progressed
        progressed = self._decide(metadata) or progressed
        metadata = self._cluster.catch_up()
        if not self._may_go_on(metadata):
            return progressed
        self._forget_stale(metadata)
        for resize, work in ((Resize.SPLIT, self._split), (Resize.MERGE, self._merge)):
            for table_id in _in_force(metadata, resize):
                newest = self._cluster.catch_up()
                if newest.tablets.maps.get(table_id) is not metadata.tablets.maps[table_id]:
                    continue
                try:
                    progressed = work(newest, table_id) or progressed
                except Rejected as rejected:
                    # Somebody else changed what this was planned on; other tables are not concerned.
                    self.blocked.append(str(rejected))
        return progressed

    def idle(self, metadata: ClusterMetadata) -> bool:
        """Whether no decision is in force, or none may be carried out now."""
        return not metadata.switches.balancing or not any(
            _in_force(metadata, one) for one in (Resize.SPLIT, Resize.MERGE)
        )

    def _may_go_on(self, metadata: ClusterMetadata) -> bool:
        return bool(metadata.tablets.maps and metadata.switches.balancing and not any(metadata.open_requests()))

    # --- deciding ---------------------------------------------------------------------------------------------------

    def _decide(self, metadata: ClusterMetadata) -> bool:
        decided = False
        for planned in planned_resizes(metadata, self._measured(metadata), self._cluster.configuration.tablets):
            if not planned.decision.changes:
                continue
            number = metadata.tablets.maps[planned.table_id].resize_seq_number + 1
            decision = planned.decision
            self._cluster.commit(DecideResize(planned.table_id, decision.resize, number, decision.why))
            decided = True
            newest = self._cluster.catch_up()
            if decision.resize is Resize.NONE and planned.table_id in newest.tablets.maps:
                # Whoever still cuts for what was decided before is refused from here on.
                self._fence(newest, planned.table_id)
        return decided

    def _measured(self, metadata: ClusterMetadata) -> Loads:
        """The loads of now, or of a moment ago when no map has changed."""
        known = {
            table_id: (one.count, one.resize_type, one.resize_seq_number)
            for table_id, one in metadata.tablets.maps.items()
        }
        return msgspec.structs.replace(self._meter.loads(metadata, known), avoided=frozenset(self._avoided()))

    def _forget_stale(self, metadata: ClusterMetadata) -> None:
        for known in (self._ready, self._away):
            for decided in [decided for decided in known if not _is_current(metadata, decided)]:
                known.pop(decided)

    # --- splitting --------------------------------------------------------------------------------------------------

    def _split(self, metadata: ClusterMetadata, table_id: TableId) -> bool:
        """Cut where files straddle a middle; end the split when every replica that answers is ready."""
        tablet_map = metadata.tablets.maps[table_id]
        decided = (table_id, tablet_map.resize_seq_number)
        ready = self._ready.setdefault(decided, {})
        due = [volume for volume in volumes_of(tablet_map) if volume not in ready]
        cut = self._pre_split(metadata, decided, due, fence=metadata.fence_at(tablet_map.epoch))
        if not self._acknowledged(metadata, decided, set(ready)):
            return cut
        if self._is_moving(metadata, table_id):
            self.held |= {table_id}
            return cut
        # What is ready stays so but for what came by transitions meanwhile: each is looked at once more, in this epoch.
        seen_before = [volume for volume, epoch in ready.items() if epoch < metadata.epoch]
        for volume in seen_before:
            ready.pop(volume)
        cut = self._pre_split(metadata, decided, seen_before, fence=metadata.fence) or cut
        return self._end(metadata, decided, set(ready)) or cut

    def _pre_split(
        self, metadata: ClusterMetadata, decided: ResizeKey, volumes: Collection[VolumeId], fence: int
    ) -> bool:
        """One slice of cutting on each of the volumes; whether anything was cut, or still is."""
        halves = 2 * metadata.tablets.maps[decided[0]].count
        outcomes = self._cut(metadata, decided, list(volumes), halves, fence)
        away = self._away.setdefault(decided, {})
        for asked, outcome in outcomes:
            volume = asked.address.volume_id
            away.pop(volume, None)
            if outcome.ready:
                self._ready[decided][volume] = asked.epoch
            elif outcome.away:
                away[volume] = outcome.failure
            elif outcome.failure:
                self.blocked.append(f"{metadata.describe(volume)} is not ready for a split: {outcome.failure}")
        return self._cutting is not None or any(outcome.cut for _, outcome in outcomes)

    def _cut(
        self, metadata: ClusterMetadata, decided: ResizeKey, volumes: list[VolumeId], count: int, fence: int
    ) -> list[tuple[PreSplit, PreSplitOutcome]]:
        """What has become of cutting for a decision, when it is done within a round's patience.

        One is under way at a time, beside the rounds, so that nothing else waits for it. It is not stopped when its
        decision is revoked: the fences are raised then, and it is refused.
        """
        if (
            self._cutting is not None
            and self._cutting.results.done()
            and not _is_current(metadata, self._cutting.decided)
        ):
            self._cutting = None
        if self._cutting is None:
            if not volumes:
                return []
            rate = self._settings.bytes_per_second
            limit = min(SLICE_BYTES, int(rate * PATIENCE_SECONDS) // len(volumes)) if rate else SLICE_BYTES
            table = metadata.schema.tables[decided[0]]
            asked = [
                PreSplit(
                    address_of(self._cluster.storage, metadata, table, volume),
                    count,
                    metadata.fence,
                    fence,
                    max(1, limit),
                    self._cluster.configuration.pipeline.shared_file_bytes,
                )
                for volume in volumes
            ]
            self._cutting = _Cutting(decided, asked, self._beside.submit(self._pre_splitter.pre_split, asked))
        cutting = self._cutting
        if cutting.decided != decided or not wait([cutting.results], timeout=PATIENCE_SECONDS).done:
            return []
        self._cutting = None
        return list(zip(cutting.asked, cutting.results.result(), strict=True))

    # --- merging ----------------------------------------------------------------------------------------------------

    def _merge(self, metadata: ClusterMetadata, table_id: TableId) -> bool:
        """Bring siblings together; end the merge when all are and nothing of the table moves any more."""
        tablet_map = metadata.tablets.maps[table_id]
        if len(tablet_map.siblings_apart()):
            streams = StreamLimits.of(self._settings)
            begun, stuck = colocating_transitions(metadata, table_id, self._measured(metadata), streams)
            name = metadata.schema.tables[table_id].full_name
            self.blocked += [f"{name}: {reason}" for reason in stuck]
            if begun or not stuck:
                # What is stuck may need the balancer to get on.
                self.held |= {table_id}
            if begun:
                self._cluster.commit(StartTransitions(tuple(begun)), reason=begun[0].reason)
            return bool(begun)
        if self._is_moving(metadata, table_id):
            self.held |= {table_id}
            return False
        decided = (table_id, tablet_map.resize_seq_number)
        return self._end(metadata, decided, self._fence(metadata, table_id))

    # --- ending -----------------------------------------------------------------------------------------------------

    def _end(self, metadata: ClusterMetadata, decided: ResizeKey, fenced: set[VolumeId]) -> bool:
        """Commit the end behind its barrier, and give the files their new labels."""
        if not self._acknowledged(metadata, decided, fenced):
            return False
        self._patience.tell(self._cluster.commit)
        self._cluster.commit(FinishResize(*decided))
        self._label(self._cluster.catch_up())
        return True

    def _acknowledged(self, metadata: ClusterMetadata, decided: ResizeKey, fenced: set[VolumeId]) -> bool:
        """Whether the replicas in `fenced` are all that answer, and meet every quorum of every tablet.

        As everywhere (decision 003): storage that is declared lost is not waited for and counts for nothing, and the
        level relaxes with time.
        """
        tablet_map = metadata.tablets.maps[decided[0]]
        away = self._away.get(decided, {})
        lost = metadata.directory.lost
        uncounted = [v for v in volumes_of(tablet_map) if v not in fenced or v in lost]
        if any(volume not in away for volume in uncounted):
            return False
        datacenter_of = metadata.directory.datacenter_of

        def passes(level: BarrierLevel) -> bool:
            return all(
                barrier_passed(level, replicas, (), set(replicas).difference(uncounted), datacenter_of, lost)
                for replicas in replica_sets_with(tablet_map, uncounted)
            )

        said = "; ".join(f"{metadata.describe(volume)}: {reason}" for volume, reason in away.items())
        name = metadata.schema.tables[decided[0]].full_name
        if self._patience.is_enough(decided, passes, lambda: said, f"the {tablet_map.resize_type} of {name}"):
            return True
        self.blocked.append(f"the {tablet_map.resize_type} of {name} waits for replicas: {said}")
        return False

    def _fence(self, metadata: ClusterMetadata, table_id: TableId) -> set[VolumeId]:
        """Fence every replica table of a table at the epoch of `metadata`; those that are."""
        tablet_map, table = metadata.tablets.maps[table_id], metadata.schema.tables[table_id]
        volumes = volumes_of(tablet_map)
        outcomes = ThreadWorkers(THREADS).run(
            lambda volume: raise_fence(address_of(self._cluster.storage, metadata, table, volume), metadata.fence),
            volumes,
        )
        found = dict(zip(volumes, outcomes, strict=True))
        self._away[(table_id, tablet_map.resize_seq_number)] = {
            volume: outcome.reason for volume, outcome in found.items() if isinstance(outcome, Unreachable)
        }
        return {volume for volume, outcome in found.items() if not isinstance(outcome, Unreachable)}

    def _is_moving(self, metadata: ClusterMetadata, table_id: TableId) -> bool:
        return any(key[0] == table_id for key in metadata.tablets.transitions)

    # --- labels -----------------------------------------------------------------------------------------------------

    def _label(self, metadata: ClusterMetadata) -> bool:
        """Give files the labels of their tablets where a decision has ended; whether anything was changed.

        A replica that was away is cut now where it still has to be. Nothing waits for any of it.
        """
        now = time.monotonic()
        due = [
            (table_id, volume)
            for table_id, tablet_map in metadata.tablets.maps.items()
            if tablet_map.resize_seq_number and tablet_map.resize_type == Resize.NONE
            for volume in volumes_of(tablet_map)
            if self._labelled.get((table_id, volume)) != tablet_map.resize_seq_number
            and self._retry_at.get((table_id, volume), 0) < now
        ]
        changed = False
        for table_id in dict.fromkeys(table_id for table_id, _ in due):
            volumes = [volume for of_table, volume in due if of_table == table_id]
            tablet_map = metadata.tablets.maps[table_id]
            decided = (table_id, tablet_map.resize_seq_number)
            for asked, outcome in self._cut(metadata, decided, volumes, tablet_map.count, 0):
                volume = asked.address.volume_id
                changed |= bool(outcome.cut)
                if outcome.ready:
                    changed |= self._relabel(metadata, table_id, volume)
                elif not outcome.cut:
                    self._retry_at[(table_id, volume)] = now + RETRY_SECONDS
            changed |= self._cutting is not None
        return changed

    def _relabel(self, metadata: ClusterMetadata, table_id: TableId, volume: VolumeId) -> bool:
        address = address_of(self._cluster.storage, metadata, metadata.schema.tables[table_id], volume)
        outcome = relabel(address, _labels(metadata.placements(table_id)), metadata.fence)
        if isinstance(outcome, Acknowledged | AlreadyApplied):
            self._labelled[(table_id, volume)] = metadata.tablets.maps[table_id].resize_seq_number
            self._retry_at.pop((table_id, volume), None)
        else:
            logger.info("%s keeps its labels for now: %s", address.uri, outcome)
            self._retry_at[(table_id, volume)] = time.monotonic() + RETRY_SECONDS
        return isinstance(outcome, Acknowledged)


def _labels(placements: TablePlacements) -> Callable[[DataFile], str]:
    """The label of each file: that of the range that its rows are in; its old one when they are in several."""

    def label_of(file: DataFile) -> str:
        tokens = file.extent if file.rows else file.window
        first, last = index_of(placements.lows, np.array(tokens, dtype=np.int64)).tolist()
        return placements.label(first) if first == last or not file.rows else file.label

    return label_of


def _is_current(metadata: ClusterMetadata, decided: ResizeKey) -> bool:
    """Whether no later decision about the table has been made."""
    tablet_map = metadata.tablets.maps.get(decided[0])
    return tablet_map is not None and tablet_map.resize_seq_number == decided[1]


def _in_force(metadata: ClusterMetadata, resize: Resize) -> list[TableId]:
    """Tables whose tablets are to be split, or merged, in the order of their ids."""
    return sorted(table_id for table_id, one in metadata.tablets.maps.items() if one.resize_type == resize)
