"""A cluster as a program uses it: its metadata, committing to it, and pipelines through its gate.

Opening one reads the log and nothing else. ZooKeeper is asked only when something is committed, announced or elected,
so that looking at a cluster works while its ensemble is away.
"""

from __future__ import annotations

import getpass
import logging
import os
import socket
import threading
import warnings
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from epochlake.jobs.dataplane.damage_notes import DamageNotes
from epochlake.jobs.dataplane.ledger import Ledger
from epochlake.jobs.dataplane.receipts import Receipts
from epochlake.metastore import configuration as configurations
from epochlake.metastore import storage
from epochlake.metastore.commit import Committed, Committer, Planner
from epochlake.metastore.commit_queue import CommitQueue
from epochlake.metastore.configuration import EMBEDDED, Configuration
from epochlake.metastore.coordination.client import CONNECT_TIMEOUT_SECONDS, Coordination
from epochlake.metastore.coordination.commit_queue import ZooKeeperQueue
from epochlake.metastore.coordination.embedded import EmbeddedZooKeeper
from epochlake.metastore.coordination.root import ROOT, known_root, register_root, replace_root
from epochlake.metastore.errors import ConfigurationError, LogUnreadable, NotInitialised, WrongCluster
from epochlake.metastore.follower import Follower
from epochlake.metastore.local_queue import LocalQueue
from epochlake.metastore.log.delta import DeltaLog, create_log_table
from epochlake.metastore.log.state_ids import next_state_id
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import Event, Initialise
from epochlake.metastore.snapshots import Snapshots, SnapshotWriter
from epochlake.metastore.watcher import Watcher
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.version import PRODUCT_VERSION

if TYPE_CHECKING:
    from epochlake.jobs.pipeline.pipeline import Pipeline
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

DEFAULT_NAME = "epochlake"


class Root:
    """Where things are below the root of a cluster."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.log = storage.join(uri, "log")
        self.snapshots = storage.join(uri, "snapshots")
        self.batches = storage.join(uri, "batches")
        self.compactions = storage.join(uri, "compactions")
        self.damaged = storage.join(uri, "damaged")
        self.leases = storage.join(uri, "leases")
        self.receipts = storage.join(uri, "receipts")


def author() -> str:
    """Who commits from this process: user, host and process, for the history."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}:{os.getpid()}"


def init_cluster(
    conf: str | Path | Configuration | None = None,
    name: str | None = None,
    *,
    reason: str = "",
    request_id: str | None = None,
) -> Committed:
    """Begin a cluster at the root of a configuration, or of a file; None: as `configuration.load` finds it.

    `name` goes before the name in the configuration. Of two programs that begin at once, one is Rejected
    (already-initialised). A call that was killed half-way can be made again; with the same `request_id`, also a call
    that was not. Raises Rejected, ConfigurationError, CommitTimeout, CommitUnknown, StorageUnavailable, and
    LogUnreadable where the root has files of a cluster that has lost its log.
    """
    configuration = _configuration(conf)
    storage.use_settings(configuration.storage)
    root = Root(configuration.root)
    require_new(root)
    storage.create_directory(root.uri, parents=True)
    create_log_table(root.log)
    follower = Follower(DeltaLog(root.log))
    there = follower.catch_up()
    event = Initialise(
        # Who does not say a name, and tries again, means the cluster that is there.
        name=name or configuration.cluster.name or (there.identity.name if there.epoch else DEFAULT_NAME),
        cluster_id=next_state_id(""),
        product_version=PRODUCT_VERSION,
    )
    # There is no cluster id yet to find a lock by: the log alone decides which of two beginnings is the first epoch.
    committer = Committer(follower, LocalQueue(), author=author())
    return committer.commit(
        event,
        request_id=request_id,
        reason=reason,
        timeout=configuration.log.commit_timeout_seconds,
        asked=f"initialise cluster {event.name}",
    )


def require_new(root: Root) -> None:
    """Refuse to begin a cluster where another one has lost its log: its tables would be taken for files of nobody.

    A root with a log passes: the log itself refuses a second beginning. Raises LogUnreadable.
    """
    storage.require_fit_for_tables(root.uri)
    log = storage.join(root.log, "_delta_log")
    if storage.exists(log):
        return
    places = (root.log, root.snapshots, root.batches, root.compactions, root.damaged, root.receipts, root.leases)
    left = [place for place in places if _holds_files(place)]
    # Of two that begin at once the other may have made the log, and more, since it was looked for.
    if left and not storage.exists(log):
        raise LogUnreadable(
            f"{root.uri} holds what a cluster has left ({', '.join(left)}), but no log: {storage.join(root.log, '')} "
            f"has lost its _delta_log, or has gone. Restore it from a backup and do not begin another cluster here; "
            f"to give that cluster up for good, choose another root"
        )


def _holds_files(place: str) -> bool:
    try:
        return bool(storage.list_files(place))
    except storage.MissingFile:
        return False


def open_cluster(conf: str | Path | Configuration | None = None) -> Cluster:
    """Open the cluster of a configuration, or of a file; None: as `configuration.load` finds it.

    Use it in a `with`. Only the log is read: ZooKeeper and Spark start when something needs them. Raises
    NotInitialised where there is no cluster, WrongCluster where there is another one than the configuration names,
    ConfigurationError, StorageUnavailable, and LogUnreadable.
    """
    return Cluster(_configuration(conf))


def initialise(
    configuration: Configuration, name: str | None = None, *, reason: str = "", request_id: str | None = None
) -> Committed:
    """`init_cluster`, by the name that it had before the public API. Goes with release 0.3."""
    _warn_of("initialise", "init_cluster")
    return init_cluster(configuration, name, reason=reason, request_id=request_id)


def _warn_of(old: str, new: str) -> None:
    message = f"epochlake.jobs.cluster.{old} is now epochlake.{new}; release 0.3 drops the old name"
    warnings.warn(message, DeprecationWarning, stacklevel=3)


def _configuration(conf: str | Path | Configuration | None) -> Configuration:
    return conf if isinstance(conf, Configuration) else configurations.load(conf)


class Cluster:
    """An open cluster: see `open_cluster`. Safe for use by several threads; close it, or use it in a `with`.

    `metadata` is the newest metadata known here; `catch_up()` asks the log.
    """

    def __init__(self, configuration: Configuration) -> None:
        storage.use_settings(configuration.storage)
        self.configuration = configuration
        self.root = Root(configuration.root)
        self.snapshots = Snapshots(self.root.snapshots)
        self.ledger = Ledger(self.root.compactions)
        self.damage = DamageNotes(self.root.damaged)
        self.receipts = Receipts(self.root.receipts)
        log = DeltaLog(self.root.log, compact_every=configuration.log.compact_every)
        self.follower = self._follow(log)
        self._closed = False
        self._connecting = threading.RLock()
        self._watching = threading.Lock()
        self._embedded: EmbeddedZooKeeper | None = None
        self._coordination: Coordination | None = None
        self._watcher: Watcher | None = None
        self._committer = Committer(
            self.follower,
            self.commit_queue(),
            author=author(),
            snapshot_every=configuration.log.snapshot_every,
        )
        try:
            metadata = self.follower.catch_up()
        except NotInitialised:
            require_new(self.root)
            raise
        if metadata.epoch == 0:
            raise NotInitialised(f"{configuration.root} holds a log without an epoch: run `epochlake init` again")
        expected = configuration.cluster.name
        if expected and expected != metadata.identity.name:
            raise WrongCluster(
                f"{configuration.root} holds cluster {metadata.identity.name!r}, the configuration is for "
                f"{expected!r}: correct root or [cluster] name"
            )
        self.follower.add_listener(SnapshotWriter(self.snapshots))

    @classmethod
    def open(cls, conf: str | Path | Configuration | None = None) -> Self:
        """`open_cluster`, by the name that it had before the public API. Goes with release 0.3."""
        _warn_of("Cluster.open", "open_cluster")
        return cls(_configuration(conf))

    @property
    def metadata(self) -> ClusterMetadata:
        """The newest metadata known here; its `epoch` is at least that of each commit made through this cluster."""
        if self.follower.metadata.epoch < self._committer.told_epoch:
            return self.follower.catch_up()
        return self.follower.metadata

    def catch_up(self) -> ClusterMetadata:
        """Read the log to its end; the newest metadata. Raises StorageUnavailable, LogUnreadable."""
        return self.follower.catch_up()

    def commit(
        self,
        what: Event | Planner,
        *,
        request_id: str | None = None,
        reason: str = "",
        timeout: float | None = None,
        expect_epoch: int | None = None,
        asked: str = "",
    ) -> Committed:
        """Commit an event or what a planner makes of the newest metadata: see `Committer.commit`."""
        return self._committer.commit(
            what,
            request_id=request_id,
            reason=reason,
            timeout=self.configuration.log.commit_timeout_seconds if timeout is None else timeout,
            expect_epoch=expect_epoch,
            asked=asked,
        )

    def pipeline(self, name: str, spark: SparkSession, *, datacenter: str | None = None) -> Pipeline:
        """A run of a Spark job at the gate of this cluster; use it in a `with`, while the cluster is open.

        `name` is shown to operators. LOCAL_QUORUM counts in `datacenter`, and reads prefer its replicas. Raises
        InvalidRequest when the cluster was closed.
        """
        from epochlake.jobs.pipeline.pipeline import Pipeline  # only here: most commands start no Spark

        self.require_open()
        return Pipeline(self, name, spark, datacenter)

    def wait_for_news(self, after: int, timeout: float) -> bool:
        """Wait until an epoch greater than `after` is known here; False after `timeout` seconds.

        From the first call on this process follows the log in the background, by a watch on the head where ZooKeeper
        answers and by looking at the log every `[log] poll_seconds`.
        """
        with self._watching:
            if self._watcher is None:
                self._watcher = Watcher(self.follower, self.coordination, self.configuration.log.poll_seconds)
            watcher = self._watcher
        return watcher.wait(after, timeout)

    def coordination(self, connect_timeout: float = CONNECT_TIMEOUT_SECONDS) -> Coordination:
        """The ZooKeeper session of this process, opened on first use, for which a server is given `connect_timeout`
        seconds. Raises CoordinationUnavailable.
        """
        with self._connecting:
            self.require_open()
            if self._coordination is None:
                settings = self.configuration.zookeeper
                coordination = Coordination(
                    self._connect_string(),
                    f"{settings.path.rstrip('/')}/{self.metadata.identity.cluster_id}",
                    session_timeout=settings.session_timeout_seconds,
                    connect_timeout=connect_timeout,
                )
                try:
                    self._require_root(coordination, known_root(coordination))
                except BaseException:
                    coordination.close()
                    raise
                self._coordination = coordination
            return self._coordination

    def _follow(self, log: DeltaLog) -> Follower:
        return Follower(log, self.snapshots)

    def commit_queue(self) -> CommitQueue:
        """A place of its own in the line in front of the log."""
        return ZooKeeperQueue(self.coordination, self._require_root)

    def require_open(self) -> None:
        """Raises InvalidRequest when it was closed: it follows no log and holds no lease any more."""
        if self._closed:
            raise InvalidRequest(
                f"the cluster {self.metadata.identity.name!r} was closed: keep it open, in its `with`, for as long as "
                f"its pipelines are used, or open it again"
            )

    def close(self) -> None:
        """Stop what follows the log, and leave ZooKeeper. Closing twice does no harm."""
        with self._watching:
            watcher, self._watcher = self._watcher, None
        if watcher is not None:
            # Not under the lock that the watcher's own thread may be waiting for.
            watcher.stop()
        with self._connecting:
            self._closed = True
            if self._coordination is not None:
                self._coordination.close()
                self._coordination = None
            if self._embedded is not None:
                self._embedded.release()
                self._embedded = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _connect_string(self) -> str:
        settings = self.configuration.zookeeper
        if settings.connect != EMBEDDED:
            return settings.connect
        local = storage.local_path(self.root.uri)
        if local is None:
            raise ConfigurationError(
                f"the embedded ZooKeeper needs a local root, {self.root.uri} is not: set [zookeeper] connect"
            )
        if self._embedded is None:
            self._embedded = EmbeddedZooKeeper(
                Path(local), linger_seconds=settings.embedded_linger_seconds, serves_at=self._coordination_is_at
            )
        return self._embedded.start()

    def _coordination_is_at(self, connect: str) -> None:
        coordination = self._coordination
        if coordination is not None:
            coordination.moved_to(connect)

    def _require_root(self, coordination: Coordination, known: str | None) -> None:
        """Refuse a copy of a root: two logs of one cluster would place rows on the same volumes differently.

        `known` is the root that ZooKeeper knows. The embedded one moves with its root, so one that has gone from where
        it was is one that was moved.
        """
        mine = self.root.uri
        known = known or register_root(coordination, mine)
        if storage.is_same_place(known, mine):
            return
        name = self.metadata.identity.name
        if self.configuration.zookeeper.connect == EMBEDDED:
            if not self._is_root_of_this_cluster(known):
                logger.warning("the root of cluster %r was moved from %s to %s", name, known, mine)
                replace_root(coordination, mine)
                return
            advice = f"Use the cluster at {known}; if this copy is to go on in its place, move {known} away first"
        else:
            path = coordination.path(ROOT)
            advice = f"If it was moved there, delete the znode {path}; a copy must not be used"
        raise WrongCluster(f"ZooKeeper knows cluster {name!r} with its root at {known}, not {mine}. {advice}")

    def _is_root_of_this_cluster(self, uri: str) -> bool:
        """Whether the log below another URI is one of this cluster."""
        try:
            first = DeltaLog(Root(uri).log).read(0, 1)
            event = first[0].decode() if first else None
        except (NotInitialised, LogUnreadable):
            return False
        return isinstance(event, Initialise) and event.cluster_id == self.metadata.identity.cluster_id
