"""`local_cluster`: a real cluster below a directory, without ZooKeeper, in which a test can hold back and break things.

with local_cluster(tmp_path) as lake:
    epochlake.create_table(lake.cluster, "test.events", [("id", "bigint", False)], ["id"])
    with lake.cluster.pipeline("load", spark) as pipeline:
        pipeline.write(spark.range(100), "test.events")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from threading import Lock

import msgspec
from epochlake.jobs.administration import add_node, create_keyspace
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.coordinator.coordinator import Coordinator, CoordinatorReport
from epochlake.jobs.testing.local.blocks import entered
from epochlake.jobs.testing.local.faults import Faults, FaultyDisk, lose, marker_that_hangs, unmounted
from epochlake.jobs.testing.local.holding import (
    Commits,
    Fate,
    HeldCommits,
    News,
    ParticipantCommitter,
    ParticipantLog,
)
from epochlake.jobs.testing.local.zookeeper import ADDRESS, LocalCoordination, Znodes
from epochlake.metastore.committing.committer import Committer
from epochlake.metastore.committing.local_queue import LocalQueue
from epochlake.metastore.committing.queue import CommitQueue
from epochlake.metastore.configuration import (
    Configuration,
    CoordinatorSettings,
    LogSettings,
    StorageSettings,
    TabletSettings,
    ZooKeeperSettings,
)
from epochlake.metastore.coordination.client import Coordination
from epochlake.metastore.coordination.head import Head, publish_head_soon
from epochlake.metastore.following.follower import Follower
from epochlake.metastore.log.delta import DeltaLog
from epochlake.metastore.log.entry import Position
from epochlake.metastore.metastore import init_cluster
from epochlake.metastore.root import Root
from epochlake.metastore.storage import places
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import InvalidRequest

DATACENTER = "dc1"

CONFIGURATION = Configuration(
    log=LogSettings(commit_timeout_seconds=30.0, poll_seconds=0.2),
    coordinator=CoordinatorSettings(backoff_seconds=0.05),
    tablets=TabletSettings(initial_count=4),
    storage=StorageSettings(deadline_seconds=5.0, durability="replicas"),
)
"""What a local cluster is configured with unless its test says otherwise: small, and quick to give up."""


@contextmanager
def local_cluster(
    directory: str | Path,
    *,
    nodes: int = 3,
    replication: int = 3,
    racks: int | None = None,
    keyspace: str | None = "test",
    configuration: Configuration | None = None,
) -> Iterator[LocalCluster]:
    """A new cluster below a directory, for one test: its nodes have joined, and one keyspace is there.

    `nodes`: n1, n2, … in datacenter dc1, each with a volume; `racks`: r1, r2, …, which they take turns in; None: as
    many as there are replicas. `keyspace` is placed by tablets with `replication` replicas; None: there is none.
    `configuration` goes before the one for tests, but for its root and its ZooKeeper.

    Log, replicas and files are real, so real Spark pipelines read and write them. There is no ZooKeeper: commits,
    leases and elections go through this process, and another process cannot commit. Bytes are not synced to the disk.
    Raises Rejected when the directory has a cluster already, PlacementImpossible for too few nodes.
    """
    for name, number, least in (("nodes", nodes, 0), ("replication", replication, 1), ("racks", racks, 1)):
        if number is not None and number < least:
            raise InvalidRequest(f"a local cluster cannot have {number} as its {name}", hint=f"Give at least {least}")
    base = Path(directory).resolve()
    configuration = msgspec.structs.replace(
        configuration or CONFIGURATION, root=str(base / "root"), zookeeper=ZooKeeperSettings(connect=ADDRESS)
    )
    init_cluster(configuration)
    with ExitStack() as opened:
        lake = LocalCluster(configuration, base, opened)
        for number in range(nodes):
            name, rack = f"n{number + 1}", f"r{number % (racks or replication) + 1}"
            add_node(lake.cluster, name, DATACENTER, rack, [("d1", str(lake.volume(name)), None)])
        lake.coordinate()
        if keyspace is not None:
            create_keyspace(lake.cluster, keyspace, {DATACENTER: replication})
        yield lake


class LocalCluster:
    """A cluster for one test: see `local_cluster`. Safe for use by several threads.

    What is held back or broken is so for a `with`, for one participant or for one node. A participant is a Cluster of
    its own on the same log, as another process has one.
    """

    def __init__(self, configuration: Configuration, directory: Path, opened: ExitStack) -> None:
        """`opened`: what is closed at the end."""
        self.configuration = configuration
        self._directory = directory
        self._faults = Faults()
        self._lock = Lock()
        self._away: dict[Path, Path] = {}
        """Where the volumes are that are away: the volume of each such place."""
        self._znodes = Znodes()
        self._line = Lock()
        self._opened = opened
        self._opening = Lock()
        self._participants: dict[str, Participant] = {}
        storage = self._new_storage()
        self._follower = Follower(DeltaLog(storage, Root(configuration.root).log))
        """Sees all that is in the log, whatever is held back."""
        self.cluster: Cluster = self.participant("test")
        """The participant that the test itself is."""

    @property
    def epoch(self) -> int:
        """The last epoch in the log, also for whom it is held back."""
        return self._follower.catch_up().epoch

    def participant(self, name: str) -> Cluster:
        """The participant of that name, which is opened when it is first asked for, and closed with the cluster."""
        with self._opening:
            if name not in self._participants:
                made = Participant(name, self.configuration, self._new_storage(), self._znodes, self._line)
                self._participants[name] = self._opened.enter_context(made)
            return self._participants[name]

    def coordinate(self) -> CoordinatorReport:
        """Let a coordinator run until it is idle, or stuck: its report says which, and what it waits for.

        It is the participant "coordinator".
        """
        return Coordinator(self.participant("coordinator")).run(until_idle=True)

    def volume(self, node: str) -> Path:
        """Where the volume of a node is; of a node that is not there yet, where it may be."""
        known = {one.name: one for one in self._follower.catch_up().directory.nodes.values()}
        local = places.local_path(known[node].volumes[0].uri) if node in known else None
        return Path(local) if local is not None else self._directory / "volumes" / node

    def hold_commits(self, participant: Cluster) -> AbstractContextManager[HeldCommits]:
        """Commits of a participant wait until they are released, or the `with` ends: none is in the log before.

        They wait in the threads that call, so a test calls in another thread than the one that releases. A commit whose
        `timeout` is over ends as a refused one. Meanwhile the participant reads, and others commit.
        """
        return self._own(participant).commits.hold()

    def refuse_commits(self, participant: Cluster) -> AbstractContextManager[None]:
        """Commits of a participant end at once, with nothing in the log: by CommitTimeout, or by CommitUnknown when the
        caller has given a `request_id`, with which an earlier try may have landed.
        """
        return self._own(participant).commits.meet(Fate.REFUSED)

    def lose_commits(self, participant: Cluster, *, landed: bool) -> AbstractContextManager[None]:
        """Commits of a participant end with CommitUnknown. `landed`: they are in the log, only the answer is lost."""
        return self._own(participant).commits.meet(Fate.LOST_AFTER if landed else Fate.LOST_BEFORE)

    def hold_news(self, participant: Cluster) -> AbstractContextManager[None]:
        """A participant does not see epochs after its present one; when the `with` has ended it has seen all.

        A pipeline of it that meets a replica with a newer fence waits for that epoch, for up to 30 seconds. A commit of
        it ends as a refused one once others have committed: whoever commits has to know all that is in the log.

        The log is a table: what Spark reads of it is not held back.
        """
        own = self._own(participant)
        return own.news.hold(own.follower)

    @contextmanager
    def away(self, node: str) -> Iterator[None]:
        """The node's volume is not mounted: there is an empty directory, for this process, delta-rs and Spark."""
        volume = self._present(node)
        with unmounted(volume, self._aside) as kept, entered(self._lock, self._away, kept, volume):
            yield

    @contextmanager
    def full(self, node: str) -> Iterator[None]:
        """There is no room on the node's volume for what this process writes: commits of replicas, fences, copies.

        Spark's workers, which stage the files of a write, and delta-rs still find room: such a write ends without the
        node, as its commit is missing there.
        """
        with self._faults.full(str(self._present(node))):
            yield

    @contextmanager
    def hangs(self, node: str) -> Iterator[None]:
        """The node's volume does not answer, so whoever asks gives up after `[storage] deadline_seconds`, here 5.

        This process hangs at each file of it; Spark's workers hang where they look whose volume it is, before they
        write. What Spark and delta-rs read there is read. What hangs goes on when the `with` ends.
        """
        volume = self._present(node)
        with self._faults.hangs(str(volume)), marker_that_hangs(volume, self._aside):
            yield

    @contextmanager
    def slow(self, node: str, seconds: float) -> Iterator[None]:
        """Each access of this process to the node's volume takes `seconds` longer; not those of Spark and delta-rs."""
        with self._faults.slow(str(self._present(node)), seconds):
            yield

    def kill(self, node: str) -> None:
        """The node's storage is gone for good; the next step is `epochlake.remove_node` or `epochlake.replace_node`."""
        volume = self._present(node)
        with self._lock:
            away = [kept for kept, place in self._away.items() if place == volume]
        for place in away or [volume]:
            lose(place)

    @property
    def _aside(self) -> Path:
        return self._directory / "aside"

    def _new_storage(self) -> Storage:
        return Storage(self.configuration.storage, disk=FaultyDisk(self._faults))

    def _own(self, participant: Cluster) -> Participant:
        if isinstance(participant, Participant) and participant in self._participants.values():
            return participant
        raise InvalidRequest(
            f"{participant!r} is no participant of this cluster",
            hint="Take `cluster` or `participant(…)` of the local cluster",
        )

    def _present(self, node: str) -> Path:
        """Raises Rejected for an unknown node."""
        self._follower.catch_up().node(node)
        return self.volume(node)


class Participant(Cluster):
    """A cluster as one of several processes has it open, all of which are this process."""

    def __init__(self, name: str, configuration: Configuration, storage: Storage, znodes: Znodes, line: Lock) -> None:
        """`line`: the commit lock of all participants."""
        self.commits = Commits(name)
        self.news = News(name)
        self._znodes = znodes
        self._line = line
        super().__init__(configuration, storage=storage, log=_log(configuration, storage, self.news))

    def log(self) -> DeltaLog:
        return _log(self.configuration, self.storage, self.news)

    def commit_queue(self) -> CommitQueue:
        return _AnnouncingQueue(self._line, self.coordination)

    def _new_committer(self, queue: CommitQueue) -> Committer:
        every = self.configuration.log.snapshot_every
        return ParticipantCommitter(self.follower, queue, self.commits, author=self._author, snapshot_every=every)

    def _new_session(self, path: str, connect_timeout: float) -> Coordination:
        return LocalCoordination(self._znodes, path)


def _log(configuration: Configuration, storage: Storage, news: News) -> ParticipantLog:
    return ParticipantLog(storage, Root(configuration.root).log, news, compact_every=configuration.log.compact_every)


class _AnnouncingQueue(LocalQueue):
    """The line that all participants wait in; those who follow are told of each epoch by the head."""

    def __init__(self, line: Lock, connect: Callable[[], Coordination]) -> None:
        super().__init__(line)
        self._connect = connect

    def publish(self, position: Position) -> None:
        head = Head(position.epoch, position.state_id, position.hash, position.incarnation)
        publish_head_soon(self._connect(), head, None)
