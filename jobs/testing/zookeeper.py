"""ZooKeeper as a model of its guarantees, behind the part of kazoo's client that production code uses.

One tree that changes in one order; a session's requests are carried out in the order in which they were sent, and
answered in that order; an ephemeral znode lives as long as its session, and a session as long as its client is heard
from. A connection that breaks says nothing about the requests that were on their way. Watches are told once, in the
client's own thread.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from epochlake.jobs.testing.scheduler import Process, Scheduler
from epochlake.jobs.testing.stdlib import Threading
from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import EventType, KazooState, KeeperState, WatchedEvent, ZnodeStat

LATENCY_SECONDS = (0.0005, 0.003)
"""The least and the most that a request takes to the ensemble, and its answer back."""

RECONNECT_SECONDS = 0.5


class _Znode:
    def __init__(self, data: bytes, zxid: int, owner: int) -> None:
        self.data = data
        self.version = 0
        self.czxid = self.mzxid = zxid
        self.owner = owner
        self.children: set[str] = set()
        self.created = 0
        """How many children were ever created below it: what sequential names count."""

    def stat(self) -> ZnodeStat:
        return ZnodeStat(
            self.czxid, self.mzxid, 0, 0, self.version, 0, 0, self.owner, len(self.data), len(self.children), 0
        )


class _Session(NamedTuple):
    number: int
    process: Process
    timeout: float


class Ensemble:
    """The servers, as one. `lost` says that they have no majority, `forget` that they have lost what they stored."""

    def __init__(self, scheduler: Scheduler, seed: int | str) -> None:
        self.scheduler = scheduler
        self.random = random.Random(repr(("zookeeper", seed)))
        self.process = Process("zookeeper")
        self.down_until = 0.0
        self.life = 1
        self._zxid = 0
        self._tree: dict[str, _Znode] = {"/": _Znode(b"", 0, 0)}
        self._sessions: dict[int, _Session] = {}
        self._heard: dict[int, float] = {}
        self._watches: dict[str, list[tuple[Client, Callable[[WatchedEvent], None]]]] = {}
        self._cut: dict[Process, float] = {}
        self._watched = False

    def is_reached_by(self, process: Process) -> bool:
        """Whether a process has a connection now."""
        now = self.scheduler.now
        return now >= self.down_until and now >= self._cut.get(process, 0.0)

    def cut(self, process: Process, seconds: float) -> None:
        """The network between a process and the servers is broken for so long."""
        self._cut[process] = max(self._cut.get(process, 0.0), self.scheduler.now + seconds)

    def lose_majority(self, seconds: float) -> None:
        """No server answers for so long; sessions are counted anew afterwards."""
        self.down_until = max(self.down_until, self.scheduler.now + seconds)
        self._heard = dict.fromkeys(self._heard, self.down_until)

    def heal(self) -> None:
        """All connections work from now on."""
        self._cut.clear()
        self.down_until = min(self.down_until, self.scheduler.now)

    def forget(self) -> None:
        """All that was stored is gone, with the sessions."""
        self.life += 1
        self._zxid = 0
        self._tree = {"/": _Znode(b"", 0, 0)}
        self._sessions.clear()
        self._heard.clear()
        self._watches.clear()

    def open(self, process: Process, timeout: float) -> int:
        """A new session."""
        number = (self.life << 32) | self.random.getrandbits(31)
        self._sessions[number] = _Session(number, process, timeout)
        self._heard[number] = self.scheduler.now
        if not self._watched:
            self._watched = True
            self.scheduler.spawn(self.process, "sessions", self._expire).awaited = True
        return number

    def is_open(self, number: int) -> bool:
        """Whether a session lives; from then on it was heard from."""
        self._expire_late(number)
        if number in self._sessions:
            self._heard[number] = self.scheduler.now
            return True
        return False

    def close(self, number: int) -> None:
        """End a session, with its ephemeral znodes."""
        self._sessions.pop(number, None)
        self._heard.pop(number, None)
        for path in sorted(path for path, znode in self._tree.items() if znode.owner == number):
            self._remove(path)

    def _expire(self) -> None:
        while self._sessions:
            self.scheduler.sleep(min(session.timeout for session in self._sessions.values()) / 3)
            for number in list(self._sessions):
                self._expire_late(number)
        self._watched = False

    def _expire_late(self, number: int) -> None:
        session = self._sessions.get(number)
        now = self.scheduler.now
        if session is None or now < self.down_until:
            return
        process = session.process
        if process.alive and process.paused_until <= now and self.is_reached_by(process):
            self._heard[number] = now
        elif now - self._heard[number] > session.timeout:
            self.close(number)

    def create(self, path: str, data: bytes, owner: int, sequence: bool) -> str:
        parent_path = path.rpartition("/")[0] or "/"
        parent = self._tree.get(parent_path)
        if parent is None:
            raise NoNodeError
        if sequence:
            path = f"{path}{parent.created:010d}"
        if path in self._tree:
            raise NodeExistsError
        self._zxid += 1
        parent.created += 1
        parent.children.add(path.rpartition("/")[2])
        self._tree[path] = _Znode(data, self._zxid, owner)
        self._tell(path, EventType.CREATED)
        return path

    def ensure(self, path: str) -> bool:
        parts = [part for part in path.split("/") if part]
        for count in range(1, len(parts) + 1):
            one = "/" + "/".join(parts[:count])
            if one not in self._tree:
                self.create(one, b"", 0, False)
        return True

    def get(self, path: str) -> tuple[bytes, ZnodeStat]:
        znode = self._tree.get(path)
        if znode is None:
            raise NoNodeError
        return znode.data, znode.stat()

    def exists(self, path: str) -> ZnodeStat | None:
        znode = self._tree.get(path)
        return None if znode is None else znode.stat()

    def children(self, path: str) -> list[str]:
        znode = self._tree.get(path)
        if znode is None:
            raise NoNodeError
        found = sorted(znode.children)
        self.random.shuffle(found)
        return found

    def set(self, path: str, data: bytes, version: int) -> ZnodeStat:
        znode = self._tree.get(path)
        if znode is None:
            raise NoNodeError
        if version not in (-1, znode.version):
            raise BadVersionError
        self._zxid += 1
        znode.data, znode.version, znode.mzxid = data, znode.version + 1, self._zxid
        self._tell(path, EventType.CHANGED)
        return znode.stat()

    def delete(self, path: str, version: int) -> bool:
        znode = self._tree.get(path)
        if znode is None:
            raise NoNodeError
        if version not in (-1, znode.version):
            raise BadVersionError
        if znode.children:
            raise NotEmptyError
        self._remove(path)
        return True

    def watch(self, path: str, client: Client, callback: Callable[[WatchedEvent], None]) -> None:
        self._watches.setdefault(path, []).append((client, callback))

    def _remove(self, path: str) -> None:
        self._zxid += 1
        del self._tree[path]
        self._tree[path.rpartition("/")[0] or "/"].children.discard(path.rpartition("/")[2])
        self._tell(path, EventType.DELETED)

    def _tell(self, path: str, kind: str) -> None:
        for client, callback in self._watches.pop(path, []):
            client.deliver(callback, WatchedEvent(kind, KeeperState.CONNECTED, path))


class Result:
    """kazoo's `AsyncResult`."""

    def __init__(self, threading: Threading, deliver: Callable[..., None]) -> None:
        self._done = threading.Event()
        self._deliver = deliver
        self.value: Any = None
        self.exception: BaseException | None = None
        self._links: list[Callable[[Result], None]] = []

    def set(self, value: Any, error: BaseException | None) -> None:
        if self._done.is_set():
            return
        self.value, self.exception = value, error
        self._done.set()
        for link in self._links:
            self._deliver(link, self)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self._done.wait(timeout):
            raise KazooTimeoutError("no answer")
        return self.get_nowait()

    def get_nowait(self) -> Any:
        if self.exception is not None:
            raise self.exception
        return self.value

    def successful(self) -> bool:
        return self._done.is_set() and self.exception is None

    def ready(self) -> bool:
        return self._done.is_set()

    def rawlink(self, link: Callable[[Result], None]) -> None:
        if self._done.is_set():
            self._deliver(link, self)
        else:
            self._links.append(link)


class _Waits:
    """kazoo's handler: what its recipes wait with."""

    def __init__(self, threading: Threading, scheduler: Scheduler) -> None:
        self.event_object, self.lock_object, self.rlock_object = threading.Event, threading.Lock, threading.RLock
        self.sleep_func = scheduler.sleep
        self.timeout_exception = KazooTimeoutError


class Client:
    """As much of `KazooClient` as production code uses. Everything happens in one actor of the client's process."""

    def __init__(self, ensemble: Ensemble, threading: Threading, timeout: float) -> None:
        self.ensemble = ensemble
        self.scheduler = ensemble.scheduler
        self.process = self.scheduler.current.process
        self.handler = _Waits(threading, self.scheduler)
        self.last_zxid = 0
        self._threading = threading
        self._timeout = timeout
        self._session: int | None = None
        self._listeners: list[Callable[[str], Any]] = []
        self._queue: deque[tuple[Callable[[], Any], Result]] = deque()
        self._told: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self._work = threading.Event()
        self._stopped = False
        self._connected = False

    @property
    def client_id(self) -> tuple[int, bytes] | None:
        return (self._session, b"") if self._session is not None and self._connected else None

    def add_listener(self, listener: Callable[[str], Any]) -> None:
        self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[str], Any]) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    def set_hosts(self, hosts: str) -> None:
        """There is one ensemble."""

    def start_async(self) -> None:
        self.scheduler.spawn(self.process, "kazoo", self._run)

    def stop(self) -> None:
        self._stopped = True
        if self._session is not None and self.ensemble.is_reached_by(self.process):
            self.ensemble.close(self._session)
        self._session = None
        self._work.set()

    def close(self) -> None:
        """`stop` has ended it."""

    def deliver(self, callback: Callable[..., Any], *arguments: Any) -> None:
        """Have something called in the client's own thread."""
        self._told.append((callback, arguments))
        self._work.set()

    def create_async(
        self,
        path: str,
        value: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        makepath: bool = False,
    ) -> Result:
        def request() -> str:
            if makepath:
                self.ensemble.ensure(path.rpartition("/")[0])
            return self.ensemble.create(path, value, (self._session or 0) if ephemeral else 0, sequence)

        return self._send(request)

    def ensure_path_async(self, path: str) -> Result:
        return self._send(lambda: self.ensemble.ensure(path))

    def get_async(self, path: str, watch: Callable[[WatchedEvent], None] | None = None) -> Result:
        def request() -> tuple[bytes, ZnodeStat]:
            found = self.ensemble.get(path)
            if watch is not None:
                self.ensemble.watch(path, self, watch)
            return found

        return self._send(request)

    def exists_async(self, path: str, watch: Callable[[WatchedEvent], None] | None = None) -> Result:
        def request() -> ZnodeStat | None:
            if watch is not None:
                self.ensemble.watch(path, self, watch)
            return self.ensemble.exists(path)

        return self._send(request)

    def get_children_async(self, path: str) -> Result:
        return self._send(lambda: self.ensemble.children(path))

    def set_async(self, path: str, value: bytes, version: int = -1) -> Result:
        return self._send(lambda: self.ensemble.set(path, value, version))

    def delete_async(self, path: str, version: int = -1) -> Result:
        return self._send(lambda: self.ensemble.delete(path, version))

    def sync_async(self, path: str) -> Result:
        return self._send(lambda: path)

    def _send(self, request: Callable[[], Any]) -> Result:
        result = Result(self._threading, self.deliver)
        if self._stopped:
            result.set(None, SessionExpiredError())
            return result
        self._queue.append((request, result))
        self._work.set()
        return result

    def _run(self) -> None:
        while not self._stopped:
            if not self.ensemble.is_reached_by(self.process):
                self._suspend()
                self.scheduler.sleep(RECONNECT_SECONDS)
                continue
            if not self._connected and not self._connect():
                continue
            if self._told:
                callback, arguments = self._told.popleft()
                callback(*arguments)
            elif self._queue:
                self._carry_out(*self._queue.popleft())
            else:
                self._work.clear()
                self._work.wait(self._timeout / 3)
                if self._session is not None and self._connected and not self.ensemble.is_open(self._session):
                    self._expire()
        self._fail_all(SessionExpiredError())

    def _connect(self) -> bool:
        self.scheduler.sleep(self._latency())
        if self._stopped or not self.ensemble.is_reached_by(self.process):
            return False
        if self._session is None or not self.ensemble.is_open(self._session):
            if self._session is not None:
                self._tell(KazooState.LOST)
            self._session = self.ensemble.open(self.process, self._timeout)
        self._connected = True
        self._tell(KazooState.CONNECTED)
        return True

    def _suspend(self) -> None:
        if self._connected:
            self._connected = False
            self._fail_all(ConnectionLoss())
            self._tell(KazooState.SUSPENDED)

    def _expire(self) -> None:
        self._connected = False
        self._session = None
        self._fail_all(SessionExpiredError())
        self._tell(KazooState.LOST)

    def _carry_out(self, request: Callable[[], Any], result: Result) -> None:
        self.scheduler.sleep(self._latency())
        if self._stopped:
            result.set(None, SessionExpiredError())
            return
        if not self.ensemble.is_reached_by(self.process):
            result.set(None, ConnectionLoss())  # on its way to the servers when the connection broke
            return
        if self._session is None or not self.ensemble.is_open(self._session):
            self._expire()
            result.set(None, SessionExpiredError())
            return
        try:
            value, error = request(), None
        except Exception as raised:
            value, error = None, raised
        self.scheduler.sleep(self._latency())
        if not self.ensemble.is_reached_by(self.process):
            result.set(None, ConnectionLoss())  # carried out, and the answer is lost
            return
        result.set(value, error)

    def _fail_all(self, error: BaseException) -> None:
        waiting, self._queue = list(self._queue), deque()
        for _, result in waiting:
            result.set(None, error)

    def _tell(self, state: str) -> None:
        for listener in list(self._listeners):
            if listener(state) is True:
                self.remove_listener(listener)

    def _latency(self) -> float:
        return self.ensemble.random.uniform(*LATENCY_SECONDS)
