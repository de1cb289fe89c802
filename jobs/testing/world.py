"""A world: machines, disks, an ensemble and a log, in which production code runs until a seed has had its way.

with World(7) as world:
    world.found()
    process = world.process("p1")
    world.run(process, lambda: pause_balancing(world.cluster(process)))
    world.until_done()
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self
from unittest.mock import patch

import msgspec
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.replicas import replica
from epochlake.jobs.testing.delta_rs import REMEMBERED, NoTable, table_class
from epochlake.jobs.testing.disk import MEMBERS, ROOT, Troubles, WorldDisk
from epochlake.jobs.testing.folder_disk import FolderDisk
from epochlake.jobs.testing.log import LogInMemory, WorldLog
from epochlake.jobs.testing.member_logs import LogsInMemory
from epochlake.jobs.testing.power import CuttableDisk, copied, restore
from epochlake.jobs.testing.scenario import Scenario, Settings
from epochlake.jobs.testing.scheduler import Actor, Process, Scheduler, ended_afterwards
from epochlake.jobs.testing.substitution import substituted
from epochlake.jobs.testing.zookeeper import Ensemble
from epochlake.jobs.upkeep import log_members, vacuum
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
from epochlake.metastore.log import delta, moving_members, seats
from epochlake.metastore.log.delta import DeltaLog, create_log_table
from epochlake.metastore.log.entry import Entry
from epochlake.metastore.log.epoch_log import EpochLog
from epochlake.metastore.log.in_memory import SharedEntries
from epochlake.metastore.log.log_place import LogBelowRoot, LogPlace, LogWithMembers
from epochlake.metastore.metadata.events import Initialise
from epochlake.metastore.metadata.features import SUPPORTED
from epochlake.metastore.root import Root
from epochlake.metastore.storage.disk import Disk
from epochlake.metastore.storage.memory_disk import MemoryDisk
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.version import PRODUCT_VERSION

CONFIGURATION = Configuration(
    root=ROOT,
    zookeeper=ZooKeeperSettings(connect="world:2181"),
    log=LogSettings(commit_timeout_seconds=60.0, snapshot_every=0),
    storage=StorageSettings(deadline_seconds=30.0),
    coordinator=CoordinatorSettings(backoff_seconds=1.0),
    pipeline=PipelineSettings(attempts=3, shared_file_bytes=0),
)


def configured(settings: Settings) -> Configuration:
    """The configuration of a scenario's cluster."""
    log = msgspec.structs.replace(
        CONFIGURATION.log,
        snapshot_every=settings.snapshot_every,
        compact_every=settings.compact_every,
        acknowledge="majority" if settings.members else "root",
    )
    zookeeper = msgspec.structs.replace(CONFIGURATION.zookeeper, session_timeout_seconds=settings.session)
    storage = msgspec.structs.replace(CONFIGURATION.storage, deadline_seconds=settings.deadline)
    coordinator = msgspec.structs.replace(CONFIGURATION.coordinator, barrier_timeout_seconds=settings.barrier)
    pipeline = msgspec.structs.replace(
        CONFIGURATION.pipeline, attempts=settings.attempts, shared_file_bytes=settings.shared_file_bytes
    )
    return msgspec.structs.replace(
        CONFIGURATION, log=log, zookeeper=zookeeper, storage=storage, coordinator=coordinator, pipeline=pipeline
    )


def world_of(scenario: Scenario) -> World:
    """A world for a scenario."""
    settings = scenario.settings
    return World(
        scenario.seed,
        configured(settings),
        delta=settings.delta,
        latency=settings.latency,
        clock_margin=settings.clock_margin,
        log_checkpoints=settings.log_checkpoints,
        members=settings.members,
    )


DIRECTORIES = 7
"""So many directories there are that may be log members, where some are."""


def member(number: int) -> str:
    """The directory of that number, from 1 on, that may be a log member."""
    return f"{MEMBERS}/m{number}"


class World:
    """One world; use it in a `with`. Everything in it follows from `seed`.

    `delta`: the log, the replicas and the ledger are real Delta tables, in a folder in memory; else all of it is in
    this process, and the log is the one for tests. `latency`: how slow disks are, beside the network.
    `clock_margin`: by how much vacuum takes clocks to be apart, in seconds. `log_checkpoints`: after how many commits
    the log has a checkpoint. `members`: the first log members by number; (): there are none.
    """

    def __init__(
        self,
        seed: int | str,
        configuration: Configuration = CONFIGURATION,
        *,
        delta: bool = False,
        latency: float = 1.0,
        clock_margin: float = 300.0,
        log_checkpoints: int = 50,
        members: Sequence[int] = (),
        most_steps: int = 2_000_000,
    ) -> None:
        self.seed = seed
        self.configuration = configuration
        self.scheduler = Scheduler(seed, most_steps)
        self.ensemble = Ensemble(self.scheduler, seed)
        self.troubles = Troubles(self.scheduler, seed)
        self.folder = FolderDisk(self._now_ns) if delta else None
        self.disk: Disk = self.folder or MemoryDisk(now_ns=self._now_ns)
        self.cuttable = CuttableDisk(self.disk)
        self.seen = WorldDisk(self.scheduler, self.cuttable, self.troubles, latency)
        self.rotted: dict[str, int] = {}
        """In which files bits were flipped, and at which step the last time."""
        self.rotted_ends: dict[str, bytes] = {}
        """What that has left of those in whose ends it was, behind all rows."""
        self.holes: dict[str, float] = {}
        """Which commits of replica tables have vanished, and at which step."""
        self.keeper = Process("world")
        """The process of what nobody in the world does, which never ends."""
        self.processes: list[Process] = []
        self.actors: list[Actor] = []
        self._storages: dict[Process, Storage] = {}
        self._clock_margin = clock_margin
        self._log_checkpoints = log_checkpoints
        self._members = [member(number) for number in members]
        self.logs = LogsInMemory(self.scheduler, self.troubles)
        self._open = ExitStack()

    def __enter__(self) -> Self:
        table: type = NoTable
        if self.folder is not None:
            table = table_class(self.scheduler, self.folder, self.cuttable, self.seen)
            self._open.callback(self.folder.close)
            self._open.enter_context(patch.dict(replica.DELTA_PROPERTIES, REMEMBERED))
        self._open.enter_context(substituted(self.scheduler, self.ensemble, self.seed, table))
        self._open.enter_context(patch.object(vacuum, "CLOCK_MARGIN_MS", int(self._clock_margin * 1000)))
        every = {"delta.checkpointInterval": str(self._log_checkpoints)}
        self._open.enter_context(patch.dict(delta.PROPERTIES, every))
        # Histories are short: what is brought back is a few seconds old.
        self._open.enter_context(patch.object(seats, "TOLERANCE_MS", 0))
        # And few entries long: a root that is restored is seen before all of them are there.
        self._open.enter_context(patch.object(moving_members, "PART", 3))
        self._open.enter_context(ended_afterwards(self.scheduler))
        self._shared = SharedEntries()
        if self._members:
            self._open.enter_context(patch.object(log_members, "log_below", lambda _, storage: self.log_place(storage)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def _now_ns(self) -> int:
        return int(self.scheduler.now * 1e9)

    def process(self, name: str, skew: float = 0.0) -> Process:
        """A new process; `skew`: how far its clock is off, in seconds."""
        process = Process(name)
        process.skew = skew
        self.processes.append(process)
        return process

    def storage(self, process: Process) -> Storage:
        """What a process has of the disks."""
        if process not in self._storages:
            self._storages[process] = Storage(self.configuration.storage, disk=self.seen)
        return self._storages[process]

    def log_place(self, storage: Storage) -> LogWithMembers:
        """Where the log is that has members, as a process has it."""
        if self.folder is None:
            return self.logs.place(storage, ROOT)
        below = LogBelowRoot(storage, Root(ROOT).log, self.configuration.log.compact_every)
        return LogWithMembers(storage, ROOT, below)

    def copy(self, place: str) -> Callable[[], None]:
        """What puts a place back as it is now."""
        files, logs = copied(self.disk, place), self.logs.copy(place)

        def put_back() -> None:
            restore(self.disk, place, files)
            self.logs.restore(place, logs)

        return put_back

    def empty(self, place: str, keeping: Collection[str] = ()) -> None:
        """Leave an empty directory, but for files of these names that are in it."""
        kept = {path: data for path, data in copied(self.disk, place).items() if path.rpartition("/")[2] in keeping}
        restore(self.disk, place, kept)
        self.logs.restore(place, {})

    def log(self, process: Process) -> EpochLog:
        """A handle of its own on the log."""
        if self._members:
            return self.log_place(self.storage(process)).open()
        if self.folder is None:
            return WorldLog(self.scheduler, self._shared, self.troubles, f"{ROOT}/log")
        settings = self.configuration.log
        return DeltaLog(self.storage(process), Root(ROOT).log, compact_every=settings.compact_every)

    def cluster(self, process: Process) -> Cluster:
        """The cluster, opened by a process."""
        storage = self.storage(process)
        place: LogPlace | None = None
        if self._members:
            place = self.log_place(storage)
        elif self.folder is None:
            place = LogInMemory(f"{ROOT}/log", lambda: self.log(process))
        return Cluster(self.configuration, storage=storage, log=self.log(process), log_place=place)

    def entries(self) -> list[Entry]:
        """The log as somebody reads it who comes last."""
        process = self.process("who reads the log")
        actor = self.run(process, lambda: self.log(process).read(0))
        self.until_done(actor)
        if actor.error is not None:
            raise actor.error
        entries: list[Entry] = actor.result
        return entries

    @property
    def is_busy(self) -> bool:
        """Whether something that `run` has begun is not done."""
        self.actors = [actor for actor in self.actors if not actor.done]
        return bool(self.actors)

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
            storage = self.storage(process)
            storage.create_directory(ROOT, parents=True)
            if self._members:
                self.log_place(storage).create()
            elif self.folder is not None:
                create_log_table(storage, Root(ROOT).log)
            committer = Committer(Follower(self.log(process)), LocalQueue(), author="founder@world")
            committer.commit(Initialise(name, "world", PRODUCT_VERSION, features=SUPPORTED))
            if self._members:
                for number in range(1, DIRECTORIES + 1):
                    storage.create_directory(member(number), parents=True)
                first = log_members.named(self.configuration, storage, self._members)
                log_members.reconfigure(self.configuration, storage, first, lambda: "world")

        process = self.process("founder")
        actor = self.run(process, begin)
        self.until_done(actor)
        if actor.error is not None:
            raise actor.error

    def ephemeral_nodes_after(self, seconds: float) -> list[str]:
        """What is in ZooKeeper on behalf of sessions when so long nothing has happened: nobody should wait there."""
        actor = self.scheduler.spawn(self.keeper, "look at ZooKeeper", lambda: self.scheduler.sleep(seconds))
        self.scheduler.run(lambda: actor.done)
        return self.ensemble.ephemeral_nodes()

    def heal(self) -> None:
        """From now on nothing goes wrong any more."""
        self.troubles.heal()
        for process in self.processes:
            process.paused_until = 0.0
        self.ensemble.heal()
