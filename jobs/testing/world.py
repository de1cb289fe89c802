"""A world: machines, disks, an ensemble and a log, in which production code runs until a seed has had its way.

with World(7) as world:
    world.found()
    process = world.process("p1")
    world.run(process, lambda: pause_balancing(world.cluster(process)))
    world.until_done()
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from epochlake.jobs.cluster import Cluster
from epochlake.jobs.testing.disk import Troubles, WorldDisk
from epochlake.jobs.testing.log import LogTroubles, WorldLog
from epochlake.jobs.testing.scheduler import Actor, Process, Scheduler, ended_afterwards
from epochlake.jobs.testing.substitution import substituted
from epochlake.jobs.testing.zookeeper import Ensemble
from epochlake.metastore.committing.committer import Committer
from epochlake.metastore.committing.local_queue import LocalQueue
from epochlake.metastore.configuration import (
    Configuration,
    CoordinatorSettings,
    LogSettings,
    PipelineSettings,
    StorageSettings,
    ZooKeeperSettings,
)
from epochlake.metastore.following.follower import Follower
from epochlake.metastore.log.in_memory import SharedEntries
from epochlake.metastore.metadata.events import Initialise
from epochlake.metastore.storage.memory_disk import MemoryDisk
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.version import PRODUCT_VERSION

ROOT = "/lake"

CONFIGURATION = Configuration(
    root=ROOT,
    zookeeper=ZooKeeperSettings(connect="world:2181"),
    log=LogSettings(commit_timeout_seconds=60.0, snapshot_every=0),
    storage=StorageSettings(deadline_seconds=30.0),
    coordinator=CoordinatorSettings(backoff_seconds=1.0),
    pipeline=PipelineSettings(attempts=3),
)


class World:
    """One world; use it in a `with`. Everything in it follows from `seed`."""

    def __init__(
        self, seed: int | str, configuration: Configuration = CONFIGURATION, most_steps: int = 2_000_000
    ) -> None:
        self.seed = seed
        self.configuration = configuration
        self.scheduler = Scheduler(seed, most_steps)
        self.ensemble = Ensemble(self.scheduler, seed)
        self.disk = MemoryDisk(now_ns=lambda: int(self.scheduler.now * 1e9))
        self.troubles = Troubles(self.scheduler, seed)
        self.log_troubles = LogTroubles(seed)
        self.processes: list[Process] = []
        self.actors: list[Actor] = []
        self._storages: dict[Process, Storage] = {}
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._open.enter_context(substituted(self.scheduler, self.ensemble, self.seed))
        self._open.enter_context(ended_afterwards(self.scheduler))
        self.entries = SharedEntries()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def process(self, name: str, skew: float = 0.0) -> Process:
        """A new process; `skew`: how far its clock is off, in seconds."""
        process = Process(name)
        process.skew = skew
        self.processes.append(process)
        return process

    def storage(self, process: Process) -> Storage:
        """What a process has of the disks."""
        if process not in self._storages:
            disk = WorldDisk(self.scheduler, self.disk, self.troubles)
            self._storages[process] = Storage(self.configuration.storage, disk=disk)
        return self._storages[process]

    def log(self) -> WorldLog:
        """A handle of its own on the log."""
        return WorldLog(self.scheduler, self.entries, self.log_troubles)

    def cluster(self, process: Process) -> Cluster:
        """The cluster, opened by a process."""
        return Cluster(self.configuration, storage=self.storage(process), log=self.log())

    @property
    def is_busy(self) -> bool:
        """Whether something that `run` has begun is not done."""
        return any(not actor.done for actor in self.actors)

    def run(self, process: Process, what: Callable[[], Any], name: str = "main") -> Actor:
        """Let a process do something; its outcome is `result` or `error` of the actor."""
        actor = self.scheduler.spawn(process, name, what)
        actor.awaited = True
        self.actors.append(actor)
        return actor

    def until_done(self, *actors: Actor) -> None:
        """Let the world go on until these are done, or all that `run` has begun."""
        waited = actors or tuple(self.actors)
        self.scheduler.run(lambda: all(actor.done for actor in waited))

    def found(self, name: str = "lake") -> None:
        """Begin the cluster."""

        def begin() -> None:
            self.storage(process).create_directory(ROOT, parents=True)
            committer = Committer(Follower(self.log()), LocalQueue(), author="founder@world")
            committer.commit(Initialise(name=name, cluster_id="world", product_version=PRODUCT_VERSION))

        process = self.process("founder")
        actor = self.run(process, begin)
        self.until_done(actor)
        if actor.error is not None:
            raise actor.error

    def heal(self) -> None:
        """From now on nothing goes wrong any more."""
        self.troubles.heal()
        self.log_troubles.heal()
        for process in self.processes:
            process.paused_until = 0.0
        self.ensemble.heal()
