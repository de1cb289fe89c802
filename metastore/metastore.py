"""A cluster's metadata as a program uses it: the newest state, earlier ones, and committing a change.

Opening it reads the log and nothing else. ZooKeeper is asked only when something is committed, announced or elected,
so that looking at a cluster works while its ensemble is away.
"""

from __future__ import annotations

import getpass
import itertools
import logging
import os
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from epochlake.metastore import configuration as configurations
from epochlake.metastore.committing.arguments import (
    require_epoch_number,
    require_fitting,
    require_reason,
    require_request_id,
    require_seconds,
)
from epochlake.metastore.committing.changes import Call, Change, Preview, commit_change
from epochlake.metastore.committing.committer import Committed, Committer, Planner
from epochlake.metastore.committing.local_queue import LocalQueue
from epochlake.metastore.committing.outcomes import used_for_another_change
from epochlake.metastore.committing.queue import CommitQueue
from epochlake.metastore.committing.submissions import Submission, require_epoch
from epochlake.metastore.configuration import EMBEDDED, Configuration
from epochlake.metastore.coordination.client import CONNECT_TIMEOUT_SECONDS, Coordination
from epochlake.metastore.coordination.commit_queue import ZooKeeperQueue
from epochlake.metastore.coordination.embedded.zookeeper import EmbeddedZooKeeper
from epochlake.metastore.coordination.member_addresses import follow_members
from epochlake.metastore.coordination.root import (
    ROOT,
    compared_in,
    known_root,
    note_comparison,
    register_root,
    replace_root,
)
from epochlake.metastore.coordination.whereabouts import Asked, whereabouts
from epochlake.metastore.errors import ConfigurationError, LogUnreadable, NotInitialised, WrongCluster
from epochlake.metastore.following.follower import Follower
from epochlake.metastore.following.history import metadata_at
from epochlake.metastore.following.snapshots import Snapshots, SnapshotWriter
from epochlake.metastore.following.watcher import Watcher
from epochlake.metastore.log.delta import DeltaLog
from epochlake.metastore.log.entry import Entry
from epochlake.metastore.log.epoch_log import EpochLog
from epochlake.metastore.log.log_place import LogBelowRoot, LogPlace, LogWithMembers
from epochlake.metastore.log.state_ids import next_state_id
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import Event, Initialise
from epochlake.metastore.metadata.features import SUPPORTED
from epochlake.metastore.root import Root, name_log, require_new
from epochlake.metastore.storage import places
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.version import PRODUCT_VERSION

logger = logging.getLogger(__name__)

DEFAULT_NAME = "epochlake"


_opened = itertools.count(1)
"""How many have committed from this process so far."""


def author() -> str:
    """Who commits, for the history: user, host and process, and a number where it is not the first in its process.

    No two have the same, so that the entry of a request tells whose call has committed it.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    number = next(_opened)
    return f"{user}@{socket.gethostname()}:{os.getpid()}" + (f".{number}" if number > 1 else "")


def log_below(configuration: Configuration, storage: Storage) -> LogPlace:
    """The log below the root of a configuration. Raises ConfigurationError where `[log] table` names another one."""
    if configuration.log.table:
        raise ConfigurationError(
            f"[log] table names {configuration.log.table}, which needs a session of Spark",
            hint="Open the cluster by epochlake.open_cluster(spark=…), or leave [log] table out",
        )
    root = Root(configuration.root)
    below = LogBelowRoot(storage, root.log, configuration.log.compact_every)
    if configuration.log.acknowledge == "majority":
        return LogWithMembers(storage, configuration.root, below)
    return below._replace(register=root.log_members)


def init_cluster(
    conf: str | Path | Configuration | None = None,
    name: str | None = None,
    *,
    reason: str = "",
    request_id: str | None = None,
    log_place: LogPlace | None = None,
) -> Committed:
    """Begin a cluster at the root of a configuration, or of a file; None: as `configuration.load` finds it.

    `name` goes before the name in the configuration. Of two programs that begin at once, one is Rejected
    (already-initialised). A call that was killed half-way can be made again; with the same `request_id`, also a call
    that was not. Raises Rejected, ConfigurationError, CommitTimeout, CommitUnknown, StorageUnavailable, and
    LogUnreadable where the root has files of a cluster that has lost its log.
    """
    require_request_id(request_id)
    configuration = configurations.given(conf)
    storage = Storage(configuration.storage)
    root = Root(configuration.root)
    log_place = log_place or log_below(configuration, storage)
    require_new(storage, root, log_place)
    storage.create_directory(root.uri, parents=True)
    if log_place.table:
        name_log(storage, root, log_place.table)
    log_place.create()
    follower = Follower(log_place.open())
    there = follower.catch_up()
    event = Initialise(
        # Who does not say a name, and tries again, means the cluster that is there.
        name=name or configuration.cluster.name or (there.identity.name if there.epoch else DEFAULT_NAME),
        cluster_id=next_state_id(""),
        product_version=PRODUCT_VERSION,
        features=SUPPORTED,
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


class Metastore:
    """The metadata of a cluster, open: its log is followed, and can be committed to. Safe for use by several threads.

    Close it, or use it in a `with`.

    `metadata` is the newest metadata known here; `catch_up()` asks the log. `others`: asked where servers of the
    ZooKeeper ensemble are, when they are not where they were; it may be set as long as there is no session.
    """

    others: Asked | None = None

    def __init__(
        self,
        configuration: Configuration,
        *,
        storage: Storage | None = None,
        log: EpochLog | None = None,
        queue: CommitQueue | None = None,
        log_place: LogPlace | None = None,
    ) -> None:
        """`storage`: in place of a new one with the settings of the configuration. `log` and `queue`: in place of the
        Delta table below the root, and of ZooKeeper's line in front of it. `log_place`: where the log is.
        """
        self.storage = Storage(configuration.storage) if storage is None else storage
        self.configuration = configuration
        self.root = Root(configuration.root)
        self.snapshots = Snapshots(self.storage, self.root.snapshots)
        self.log_place = log_place or log_below(configuration, self.storage)
        self.follower = self._follow(log or self.log_place.open())
        self._author = author()
        self._closed = False
        self._compared = False
        self._connecting = threading.RLock()
        self._watching = threading.Lock()
        self._embedded: EmbeddedZooKeeper | None = None
        self._coordination: Coordination | None = None
        self._watcher: Watcher | None = None
        self._committer = self._new_committer(queue or self.commit_queue())
        try:
            metadata = self.follower.catch_up()
        except NotInitialised:
            require_new(self.storage, self.root, self.log_place)
            raise
        if metadata.epoch == 0:
            raise NotInitialised(
                f"{configuration.root} holds a log without an epoch", hint="Run `epochlake init` again"
            )
        expected = configuration.cluster.name
        if expected and expected != metadata.identity.name:
            raise WrongCluster(
                f"{configuration.root} holds cluster {metadata.identity.name!r}, the configuration is for {expected!r}",
                hint="Correct root or [cluster] name",
            )
        self.follower.add_listener(SnapshotWriter(self.snapshots))

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
        what: Event | Planner | Change[Any],
        *,
        request_id: str | None = None,
        reason: str = "",
        timeout: float | None = None,
        expect_epoch: int | None = None,
        asked: str = "",
    ) -> Committed:
        """Commit an event, what a planner makes of the newest metadata, or a change.

        See `Committer.commit`, and `commit_change` for a change, whose words are its own: it needs no `asked`. Raises
        InvalidRequest when it was closed.
        """
        self.require_open()
        require_request_id(request_id)
        require_seconds(timeout)
        require_reason(reason)
        if expect_epoch is not None:
            require_epoch_number(expect_epoch)
        seconds = self.configuration.log.commit_timeout_seconds if timeout is None else timeout
        if not isinstance(what, Change):
            return self._committer.commit(
                what, request_id=request_id, reason=reason, timeout=seconds, expect_epoch=expect_epoch, asked=asked
            )
        require_fitting(what, what.verb)
        words = what.words()
        call = self._call(request_id, reason, preview=False)

        def submit(planned: Event | Planner, within: float) -> Committed:
            return self._committer.commit(
                planned,
                request_id=call.request_id,
                reason=reason,
                timeout=within,
                expect_epoch=expect_epoch,
                asked=words,
                named=request_id is not None,
            )

        return commit_change(what, call, self, submit, timeout=seconds, expect_epoch=expect_epoch)

    def preview(
        self,
        change: Change[Any],
        *,
        request_id: str | None = None,
        reason: str = "",
        expect_epoch: int | None = None,
    ) -> Preview:
        """What committing a change now would do; nothing is prepared or committed. Raises Rejected as the commit would,
        and what planning raises.

        A `request_id` that is in the log already shows what was committed under it.
        """
        require_request_id(request_id)
        require_fitting(change, change.verb)
        require_reason(reason)
        if expect_epoch is not None:
            require_epoch_number(expect_epoch)
        metadata = self.catch_up()
        entry = None if request_id is None else self.follower.request_entry(request_id)
        if entry is not None:
            return self._committed_before(entry, change.words())
        require_epoch(metadata, expect_epoch)
        return Preview.of(metadata, change.plan(metadata, self._call(request_id, reason, preview=True)))

    def _committed_before(self, entry: Entry, words: str) -> Preview:
        """What `entry` has done. Raises Rejected (request-id-used) when it was another change than `words` say."""
        event = entry.decode()
        again = Submission(event, entry.request_id, self._author, "", 0.0, None, words)
        if again.is_for_another_change(entry):
            raise used_for_another_change(again, entry)
        before = self.at(entry.epoch - 1) if entry.epoch > 1 else ClusterMetadata.empty()
        return Preview(before, event, before.apply(event, entry.state_id), already=entry.epoch)

    def at(self, epoch: int | None) -> ClusterMetadata:
        """The metadata as of `epoch`; None: the newest. Raises InvalidRequest for an epoch that is not in the log."""
        if epoch is None:
            return self.catch_up()
        require_epoch_number(epoch)
        metadata = self.catch_up()
        return metadata if epoch == metadata.epoch else metadata_at(self.log(), self.snapshots, epoch)

    def log(self) -> EpochLog:
        """A handle of its own on the log, for reading history."""
        return self.log_place.open()

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
                path = f"{self.configuration.zookeeper.path.rstrip('/')}/{self.metadata.identity.cluster_id}"
                coordination = self._new_session(path, connect_timeout)
                try:
                    self._require_root(coordination, known_root(coordination))
                except BaseException:
                    coordination.close()
                    raise
                self._coordination = coordination
            return self._coordination

    def _new_session(self, path: str, connect_timeout: float) -> Coordination:
        settings = self.configuration.zookeeper
        guide = None
        if settings.connect != EMBEDDED:
            guide = whereabouts(self.configuration, self.storage, self.metadata.identity.cluster_id, self.others)
        coordination = Coordination(
            self._connect_string() if guide is None else guide.first(),
            path,
            session_timeout=settings.session_timeout_seconds,
            connect_timeout=connect_timeout,
            guide=guide,
        )
        if settings.connect != EMBEDDED:
            follow_members(coordination)
        return coordination

    def _call(self, request_id: str | None, reason: str, *, preview: bool) -> Call:
        """A call for a change on this metastore; the request id is made up where none was given."""
        return Call(request_id or next_state_id(""), self.storage, reason, preview, self.configuration, self.root.uri)

    def _follow(self, log: EpochLog) -> Follower:
        return Follower(log, self.snapshots)

    def _new_committer(self, queue: CommitQueue) -> Committer:
        every = self.configuration.log.snapshot_every
        return Committer(self.follower, queue, author=self._author, snapshot_every=every)

    def commit_queue(self) -> CommitQueue:
        """A place of its own in the line in front of the log."""
        return ZooKeeperQueue(self.coordination, self._require_right_log)

    def require_open(self) -> None:
        """Raises InvalidRequest when it was closed: it follows no log and holds no lease any more."""
        if self._closed:
            raise InvalidRequest(
                f"the cluster {self.metadata.identity.name!r} was closed",
                hint="Keep it open, in its `with`, for as long as its pipelines are used, or open it again",
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
        local = places.local_path(self.root.uri)
        if local is None:
            raise ConfigurationError(
                f"the embedded ZooKeeper needs a local root, {self.root.uri} is not", hint="Set [zookeeper] connect"
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

    def _require_right_log(self, coordination: Coordination, known: str | None) -> None:
        """What is compared before each commit, beside the head: the root, and with the embedded ZooKeeper the replicas.

        The embedded one comes back with an older copy of its root, and says the same as the log then. It has to be
        started for that, so this is asked once for each of its runs; a marker of an earlier run does not count.
        """
        self._require_root(coordination, known)
        if self._embedded is None or self._compared:
            return
        run = self._embedded.run()
        if compared_in(coordination) != run:
            self._compare_with_replicas()
            note_comparison(coordination, run)
        self._compared = True

    def _compare_with_replicas(self) -> None:
        """Raise LogWentBack when something on the volumes is of a later epoch than the log has. Here nothing is known
        of volumes.
        """

    def _require_root(self, coordination: Coordination, known: str | None) -> None:
        """Refuse a copy of a root: two logs of one cluster would place rows on the same volumes differently.

        `known` is the root that ZooKeeper knows. The embedded one moves with its root, so one that has gone from where
        it was is one that was moved.
        """
        mine = self.root.uri
        known = known or register_root(coordination, mine)
        if self.storage.is_same_place(known, mine):
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
        raise WrongCluster(f"ZooKeeper knows cluster {name!r} with its root at {known}, not {mine}", hint=advice)

    def _is_root_of_this_cluster(self, uri: str) -> bool:
        """Whether the log below another URI is one of this cluster."""
        if self.log_place.table:
            return self.storage.exists(Root(uri).log_table)
        try:
            first = DeltaLog(self.storage, Root(uri).log).read(0, 1)
            event = first[0].decode() if first else None
        except (NotInitialised, LogUnreadable):
            return False
        return isinstance(event, Initialise) and event.cluster_id == self.metadata.identity.cluster_id
