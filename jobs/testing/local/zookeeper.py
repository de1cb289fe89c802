"""What a local cluster has in place of ZooKeeper: the znodes, in this process, behind kazoo's own client.

The recipes of `metastore/coordination` are used as they are: leases, the election, the head and its watch. There is no
network and no server, so nothing here is ever late, and a session ends only when its client does.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from epochlake.metastore.coordination.client import Coordination
from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError, ZookeeperError
from kazoo.protocol.serialization import Create, Delete, Exists, GetChildren, GetChildren2, GetData, SetData, Sync
from kazoo.protocol.states import Callback, EventType, KazooState, KeeperState, WatchedEvent, ZnodeStat

ADDRESS = "in-this-process:2181"
"""What messages call the server that there is not."""

_EPHEMERAL, _SEQUENCE = 1, 2
"""Flags of a request to create a znode."""


class _Znode:
    def __init__(self, data: bytes, zxid: int, owner: int) -> None:
        self.data = data
        self.version = 0
        self.owner = owner
        self.created_here = 0
        self.children: set[str] = set()
        self.czxid = self.mzxid = self.pzxid = zxid
        self.ctime = self.mtime = int(time.time() * 1000)

    def stat(self) -> ZnodeStat:
        times = (self.czxid, self.mzxid, self.ctime, self.mtime)
        return ZnodeStat(
            *times, self.version, self.created_here, 0, self.owner, len(self.data), len(self.children), self.pzxid
        )


class _Watch(NamedTuple):
    client: LocalClient
    told: Callable[[WatchedEvent], None]


class Znodes:
    """The tree that all sessions share. Each request is carried out by the thread that makes it, one at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tree = {"/": _Znode(b"", 0, 0)}
        self._data_watches: dict[str, dict[_Watch, None]] = {}
        self._child_watches: dict[str, dict[_Watch, None]] = {}
        self._sessions = itertools.count(1)
        self._zxid = 0

    def begin_session(self) -> int:
        """The number of a new session."""
        with self._lock:
            return next(self._sessions)

    def end_session(self, session: int) -> None:
        """Its ephemeral znodes are gone."""
        with self._lock:
            for path in [path for path, znode in self._tree.items() if znode.owner == session]:
                self._remove(path)

    def carry_out(self, client: LocalClient, request: Any) -> Any:
        """The answer to a request. Raises what a server answers with."""
        with self._lock:
            match request:
                case Create(path=path, data=data, flags=flags):
                    owner = client.session if flags & _EPHEMERAL else 0
                    return self._create(path, data, owner, sequence=bool(flags & _SEQUENCE))
                case Delete(path=path, version=version):
                    if self._at(path, version).children:
                        raise NotEmptyError
                    self._remove(path)
                    return True
                case SetData(path=path, data=data, version=version):
                    return self._set(path, data, version)
                case Exists(path=path, watcher=watcher):
                    _watch(self._data_watches, path, client, watcher)  # also for one that is not there yet
                    return self._tree[path].stat() if path in self._tree else None
                case GetData(path=path, watcher=watcher):
                    znode = self._at(path)
                    _watch(self._data_watches, path, client, watcher)
                    return znode.data, znode.stat()
                case GetChildren(path=path, watcher=watcher) | GetChildren2(path=path, watcher=watcher):
                    znode = self._at(path)
                    _watch(self._child_watches, path, client, watcher)
                    names = sorted(znode.children)
                    return (names, znode.stat()) if isinstance(request, GetChildren2) else names
                case Sync(path=path):
                    return path
        raise TypeError(f"a local cluster has no answer to {request!r}")

    def _at(self, path: str, version: int = -1) -> _Znode:
        znode = self._tree.get(path)
        if znode is None:
            raise NoNodeError
        if version not in (-1, znode.version):
            raise BadVersionError
        return znode

    def _create(self, path: str, data: bytes, owner: int, *, sequence: bool) -> str:
        parent = self._at(_parent(path))
        if sequence:
            path = f"{path}{parent.created_here:010d}"
        if path in self._tree:
            raise NodeExistsError
        self._zxid += 1
        parent.created_here += 1
        parent.pzxid = self._zxid
        parent.children.add(path.rpartition("/")[2])
        self._tree[path] = _Znode(data, self._zxid, owner)
        _tell(self._data_watches, path, EventType.CREATED)
        _tell(self._child_watches, _parent(path), EventType.CHILD)
        return path

    def _set(self, path: str, data: bytes, version: int) -> ZnodeStat:
        znode = self._at(path, version)
        self._zxid += 1
        znode.data, znode.version = data, znode.version + 1
        znode.mzxid, znode.mtime = self._zxid, int(time.time() * 1000)
        _tell(self._data_watches, path, EventType.CHANGED)
        return znode.stat()

    def _remove(self, path: str) -> None:
        self._zxid += 1
        del self._tree[path]
        parent = self._tree[_parent(path)]
        parent.children.discard(path.rpartition("/")[2])
        parent.pzxid = self._zxid
        _tell(self._data_watches, path, EventType.DELETED)
        _tell(self._child_watches, path, EventType.DELETED)
        _tell(self._child_watches, _parent(path), EventType.CHILD)


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _watch(watches: dict[str, dict[_Watch, None]], path: str, client: LocalClient, told: Any) -> None:
    if told is not None:
        watches.setdefault(path, {})[_Watch(client, told)] = None


def _tell(watches: dict[str, dict[_Watch, None]], path: str, kind: str) -> None:
    """Watches are told once, by the thread that their client has for it."""
    for watch in watches.pop(path, {}):
        if watch.client.handler.running:
            event = WatchedEvent(kind, KeeperState.CONNECTED, path)
            watch.client.handler.dispatch_callback(Callback("watch", watch.told, (event,)))


class LocalClient(KazooClient):
    """kazoo's client, whose requests are carried out at once."""

    def __init__(self, znodes: Znodes, handler: Any) -> None:
        super().__init__(ADDRESS, handler=handler)
        self.session = 0
        self._znodes = znodes

    def start_async(self) -> Any:
        self.handler.start()
        self.session = self._session_id = self._znodes.begin_session()
        self._live.set()
        self._make_state_change(KazooState.CONNECTED)
        return self._live

    def stop(self) -> None:
        self._znodes.end_session(self.session)
        self._live.clear()
        self.handler.stop()

    def close(self) -> None:
        """There is no connection to close."""

    def _call(self, request: Any, async_object: Any) -> None:
        try:
            answer = self._znodes.carry_out(self, request)
        except ZookeeperError as error:
            async_object.set_exception(error)
        else:
            async_object.set(answer)


class LocalCoordination(Coordination):
    """A session with the znodes of this process."""

    def __init__(self, znodes: Znodes, base: str) -> None:
        self._znodes = znodes
        super().__init__(ADDRESS, base)

    def _new_client(self, hosts: str, session_timeout: float, handler: Any) -> KazooClient:
        return LocalClient(self._znodes, handler)
