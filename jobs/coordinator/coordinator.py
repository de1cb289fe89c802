"""The coordinator: the elected process that moves requests and tablets forward, a round at a time.

It keeps no state but the metadata. A round looks at the newest metadata, fences what is in transition, does the side
effects of every stage, and commits the stages that may follow, many tablets in one epoch. Dying between any two of
these steps loses nothing: the next coordinator starts from the log. Being one of two is harmless: what the slower one
does is refused by fences, sessions and the events' own conditions.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
from epochlake.jobs.coordinator.effects.pre_split import PreSplitter
from epochlake.jobs.coordinator.effects.sweeping import Sweeper
from epochlake.jobs.coordinator.fencing import Fences
from epochlake.jobs.coordinator.tracks.forgetting import ForgettingTrack
from epochlake.jobs.coordinator.tracks.operations import OperationTrack
from epochlake.jobs.coordinator.tracks.request_scheduling import RequestTrack
from epochlake.jobs.coordinator.tracks.resizing import ResizingTrack
from epochlake.jobs.coordinator.tracks.tablets import TabletTrack
from epochlake.jobs.coordinator.tracks.track import Tally, Track, WorksAside
from epochlake.jobs.replicas.store import Store
from epochlake.jobs.replicas.streaming import Copier
from epochlake.metastore.coordination.election import Candidacy
from epochlake.metastore.errors import (
    CommitTimeout,
    CommitUnknown,
    CoordinationUnavailable,
    Rejected,
    StorageUnavailable,
    WaitTimeout,
)
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.planning.balancing import Loads
from epochlake.placement.showing import Shown

logger = logging.getLogger(__name__)

ELECTION_SECONDS = 5.0

CATCH_UP_SECONDS = 30.0
"""How long the log may take to show an epoch that a replica is fenced at, before it is said to have gone back."""

ASIDE_SECONDS = 60.0
"""How long after its last round a coordinator waits for what goes on beside its rounds, before it leaves it to the next
one."""

PATIENCE = 10
"""Rounds without any progress after which a run until idle gives up and says what it waits for."""


class Progress(msgspec.Struct, frozen=True):
    """Where a coordinator is, for a progress bar: what is in flight by stage, what has ended, what is waited for."""

    epoch: int
    stages: dict[str, int]
    tablets_done: int
    tablets_left: int
    bytes_streamed: int
    blocked: tuple[str, ...]


class CoordinatorReport(Shown, msgspec.Struct, frozen=True):
    """What a run did. `idle`: nothing was left to do; otherwise `blocked` says what it waits for."""

    idle: bool
    first_epoch: int
    last_epoch: int
    rounds: int
    tablets_moved: int
    tablets_reverted: int
    bytes_streamed: int
    requests_finished: int
    blocked: tuple[str, ...]

    def require_idle(self) -> None:
        """Raise WaitTimeout, which is worth a retry, where something is left to do."""
        if self.idle:
            return
        waits = "; ".join(reason.rstrip(".") for reason in self.blocked[:3])
        raise WaitTimeout(
            f"not everything could be done; {len(self.blocked)} thing(s) are waited for: {waits}",
            hint="See `epochlake status`, and run the coordinator again",
        )


class Coordinator:
    """One coordinator of a cluster; `run` until it is idle, or as a service.

    `copier` copies the files of a stream, `pre_splitter` cuts files for a split and `measure` measures what is decided
    from: threads of this process by default, or executors of a Spark job. `beside`: further tracks, after its own;
    `woken` is set when one of them wants a round before it is time. `on_trouble` is called, and must not raise, after
    a round that the log, storage or ZooKeeper did not answer.
    """

    def __init__(
        self,
        cluster: Store,
        copier: Copier | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        pre_splitter: PreSplitter | None = None,
        measure: Callable[[ClusterMetadata], Loads] | None = None,
        beside: Sequence[Track] = (),
        woken: threading.Event | None = None,
        on_trouble: Callable[[], None] = lambda: None,
    ) -> None:
        self._woken = woken or threading.Event()
        self._on_trouble = on_trouble
        self._cluster = cluster
        self._settings = cluster.configuration.coordinator
        self._copier = copier or Copier(bytes_per_second=self._settings.bytes_per_second)
        self._on_progress = on_progress
        self._tally = Tally()
        fences = Fences(cluster.storage, lambda fence: cluster.follower.wait_for_fence(fence, CATCH_UP_SECONDS))
        self.tablets = TabletTrack(cluster, self._copier, fences, self._tally)
        self.resizing = ResizingTrack(cluster, pre_splitter, self.tablets.avoided, measure)
        self.tablets.held = lambda: self.resizing.held
        sweeper = Sweeper(cluster.storage)
        self.tracks: list[Track] = [
            RequestTrack(cluster, sweeper, self._tally),
            OperationTrack(cluster, self._copier, fences, sweeper, self._tally),
            self.resizing,
            self.tablets,
            ForgettingTrack(cluster),
            *beside,
        ]
        self._aside = [track for track in self.tracks if isinstance(track, WorksAside)]
        self._blocked: list[str] = []

    def run(
        self, until_idle: bool, *, most_rounds: int | None = None, should_stop: Callable[[], bool] = lambda: False
    ) -> CoordinatorReport:
        """Be a candidate, lead when elected. Returns when idle or stuck with `until_idle`, else on `should_stop`.

        Returns after `most_rounds` rounds in any case; None: as many as it takes. What goes on beside the last round is
        waited for, for a minute; what is left then, or where it is asked to stop, the report names.
        """
        first = self._cluster.catch_up().epoch
        candidacy = Candidacy(self._cluster.coordination(), f"{socket.gethostname()}:{os.getpid()}")
        rounds = fruitless = 0
        idle = progressed = False
        try:
            while not should_stop() and (most_rounds is None or rounds < most_rounds):
                if not self._lead(candidacy):
                    if until_idle and self._is_idle(self._cluster.catch_up()):
                        idle = True
                        break
                    continue
                rounds += 1
                progressed = self._round_safely()
                self._report()
                idle = not self._blocked and not progressed and self._is_idle(self._cluster.metadata)
                works = any(track.working for track in self._aside)
                fruitless = 0 if progressed or works else fruitless + 1
                if progressed:
                    continue
                if until_idle and (idle or fruitless >= PATIENCE):
                    break
                if idle:
                    self._cluster.wait_for_news(
                        self._cluster.metadata.epoch, self._cluster.configuration.log.poll_seconds
                    )
                elif self._woken.wait(self._settings.backoff_seconds):
                    self._woken.clear()
            if self._settle(lambda: not should_stop() and candidacy.leader):
                idle = not self._blocked and not progressed and self._is_idle(self._cluster.metadata)
        finally:
            self._stand_down()
            candidacy.release()
        return CoordinatorReport(
            idle=idle,
            first_epoch=first,
            last_epoch=self._cluster.metadata.epoch,
            rounds=rounds,
            tablets_moved=self._tally.tablets_moved,
            tablets_reverted=self._tally.tablets_reverted,
            bytes_streamed=self._tally.bytes_streamed,
            requests_finished=self._tally.requests_finished,
            blocked=tuple(self._blocked),
        )

    def round(self) -> bool:
        """Each track looks once at what could go on; whether anything was committed.

        What somebody else has changed meanwhile stops one track, not the round. Raises what the log and ZooKeeper
        raise when they do not answer.
        """
        self._blocked = []
        progressed = False
        for track in self.tracks:
            track.blocked.clear()
            try:
                progressed |= track.advance(self._cluster.catch_up())
            except Rejected as rejected:
                # Somebody else changed what this was planned on, or changes are paused.
                logger.info("%s", rejected)
                self._blocked.append(str(rejected))
            self._blocked += track.blocked
        self._blocked = list(dict.fromkeys(self._blocked))
        return progressed

    def _round_safely(self) -> bool:
        try:
            return self.round()
        except (CommitTimeout, CommitUnknown, CoordinationUnavailable, StorageUnavailable) as error:
            logger.warning("%s", error)
            self._blocked = [str(error)]
            self._on_trouble()
        return False

    def _lead(self, candidacy: Candidacy) -> bool:
        if candidacy.leader:
            return True
        self._stand_down()
        try:
            return candidacy.acquire(ELECTION_SECONDS)
        except CoordinationUnavailable as error:
            logger.warning("no election: %s", error)
            time.sleep(self._settings.backoff_seconds)
            return False

    def _settle(self, may_wait: Callable[[], bool]) -> bool:
        """Wait for what goes on beside the rounds, and take what comes of it; False where nothing went on."""
        going_on = [track for track in self._aside if track.working]
        if not going_on:
            return False
        said = {reason for track in going_on for reason in track.blocked}
        self._blocked = [reason for reason in self._blocked if reason not in said]
        deadline = time.monotonic() + ASIDE_SECONDS
        while True:
            for track in going_on:
                track.blocked.clear()
                track.settle()
            left = deadline - time.monotonic()
            if left <= 0 or not may_wait() or not any(track.working for track in going_on):
                break
            self._woken.wait(min(left, self._settings.backoff_seconds))
            self._woken.clear()
        self._blocked += [reason for track in going_on for reason in track.blocked if reason not in self._blocked]
        return True

    def _stand_down(self) -> None:
        for track in self._aside:
            track.stand_down()

    def _is_idle(self, metadata: ClusterMetadata) -> bool:
        return all(track.idle(metadata) for track in self.tracks)

    def _report(self) -> None:
        if self._on_progress is None:
            return
        metadata = self._cluster.metadata
        stages = Counter(str(t.stage) for t in metadata.tablets.transitions.values())
        self._on_progress(
            Progress(
                epoch=metadata.epoch,
                stages=dict(stages),
                tablets_done=self._tally.tablets_moved + self._tally.tablets_reverted,
                tablets_left=sum(stages.values()),
                bytes_streamed=self._tally.bytes_streamed,
                blocked=tuple(self._blocked),
            )
        )
