"""ZooKeeper as a model of its guarantees, behind kazoo's own client.

One tree that changes in one order. A connection keeps the order of what is sent over it, in both directions: what a
session asks for is carried out in the order in which it was sent, and it hears of a change before it sees anything
newer. When a connection breaks, nobody knows how much of what was on its way has arrived. An ephemeral znode lives as
long as its session, and a session as long as its client is heard from. tests/protocol/test_zookeeper_model.py runs what
was recorded here against a real server.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, Protocol

from epochlake.jobs.testing.scheduler import Actor, Process, Scheduler, Waiter
from epochlake.jobs.testing.stdlib import SimpleQueue, Threading
from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    ZookeeperError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.handlers.utils import AsyncResult
from kazoo.protocol.serialization import (
    Close,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetChildren2,
    GetData,
    SetData,
    Sync,
)
from kazoo.protocol.states import Callback, EventType, KeeperState, WatchedEvent, ZnodeStat

LATENCY_SECONDS = (0.0005, 0.003)
"""The least and the most that a request takes to the ensemble, and its answer back."""

RECONNECT_SECONDS = 0.5

LARGEST_REQUEST_BYTES = 0xFFFFF
"""A server hangs up on whoever sends more."""

EPHEMERAL, SEQUENCE = 1, 2
"""The flags of a create."""


class _Znode:
    def __init__(self, data: bytes, zxid: int, now: int, owner: int) -> None:
        self.data = data
        self.version = 0
        self.czxid = self.mzxid = self.pzxid = zxid
        self.ctime = self.mtime = now
        self.owner = owner
        self.children: set[str] = set()
        self.created = 0
        """How many children were ever created below it: what sequential names count."""

    def stat(self) -> ZnodeStat:
        return ZnodeStat(
            czxid=self.czxid,
            mzxid=self.mzxid,
            ctime=self.ctime,
            mtime=self.mtime,
            version=self.version,
            cversion=2 * self.created - len(self.children),  # creates and deletes
            aversion=0,
            ephemeralOwner=self.owner,
            dataLength=len(self.data),
            numChildren=len(self.children),
            pzxid=self.pzxid,
        )


class Event:
    """A watch that the servers tell a session of. `called`: the watches of its client; None until it has arrived."""

    def __init__(self, session: int, kind: str, path: str) -> None:
        self.session = session
        self.kind = kind
        self.path = path
        self.called: list[Callable[[WatchedEvent], None]] | None = None


class Answer(NamedTuple):
    """What the servers have to say to a request."""

    value: Any
    error: ZookeeperError | None


class Observer(Protocol):
    """Who notes what the servers do, in their order, and what clients are told of their sessions."""

    def opened(self, session: int) -> None: ...

    def carried_out(self, session: int, request: Any, answer: Answer, told: list[Event]) -> None: ...

    def ended(self, session: int, told: list[Event], *, expired: bool) -> None: ...

    def hung_up(self, session: int) -> None: ...

    def is_told(self, session: int, state: str) -> None: ...

    def forgot(self) -> None: ...


class Link:
    """A connection, of one session. `arriving`: what is on its way to the client, and when it is there."""

    def __init__(self, session: int, process: Process, news: Callable[[], None]) -> None:
        self.session = session
        self.process = process
        self.open = True
        self.arriving: deque[tuple[float, Event | Answer]] = deque()
        self.news = news
        self.last_sent = 0.0


class _Session:
    def __init__(self, process: Process, timeout: float, now: float) -> None:
        self.process = process
        self.timeout = timeout
        self.heard = now
        self.given_up = False
        self.link: Link | None = None


class Ensemble:
    """The servers, as one."""

    observer: ClassVar[Observer | None] = None

    def __init__(self, scheduler: Scheduler, seed: int | str) -> None:
        self.scheduler = scheduler
        self.random = random.Random(repr(("zookeeper", seed)))
        self.process = Process("zookeeper")
        self.down_until = 0.0
        self.life = 1
        self._zxid = 0
        self._tree: dict[str, _Znode] = {"/": _Znode(b"", 0, 0, 0)}
        self._sessions: dict[int, _Session] = {}
        self._data_watches: dict[str, dict[Link, None]] = {}
        self._child_watches: dict[str, dict[Link, None]] = {}
        self._told: list[Event] = []
        self._cut: dict[Process, float] = {}
        self._arriving: list[tuple[float, int, Link, Any]] = []
        self._count = itertools.count()
        self._request = Waiter()
        self._server: Actor | None = None
        self._watched = False

    def is_reached_by(self, process: Process) -> bool:
        """Whether a process has a connection now."""
        now = self.scheduler.now
        return now >= self.down_until and now >= self._cut.get(process, 0.0)

    def cut(self, process: Process, seconds: float) -> None:
        """The network between a process and the servers is broken for so long.

        A connection over which nothing is sent meanwhile may outlast it.
        """
        self._cut[process] = max(self._cut.get(process, 0.0), self.scheduler.now + seconds)

    def lose_majority(self, seconds: float) -> None:
        """No server answers for so long; sessions are counted anew afterwards."""
        self.down_until = max(self.down_until, self.scheduler.now + seconds)
        for session in self._sessions.values():
            session.heard = self.down_until
            self.hang_up(session.link)

    def heal(self) -> None:
        """All connections work from now on."""
        self._cut.clear()
        self.down_until = min(self.down_until, self.scheduler.now)

    def forget(self) -> None:
        """All that was stored is gone, with the sessions."""
        for session in self._sessions.values():
            self.hang_up(session.link)
        self.life += 1
        self._zxid = 0
        self._tree = {"/": _Znode(b"", 0, 0, 0)}
        self._sessions.clear()
        if self.observer is not None:
            self.observer.forgot()

    def ephemeral_nodes(self) -> list[str]:
        """The paths of what goes with a session."""
        return sorted(path for path, znode in self._tree.items() if znode.owner)

    def open(self, process: Process, timeout: float) -> int:
        """A new session."""
        number = (self.life << 32) | self.random.getrandbits(31)
        self._sessions[number] = _Session(process, timeout, self.scheduler.now)
        if self._server is None:
            self._server = self.scheduler.spawn(self.process, "requests", self._serve)
        if not self._watched:
            self._watched = True
            self.scheduler.spawn(self.process, "sessions", self._expire).awaited = True
        if self.observer is not None:
            self.observer.opened(number)
        return number

    def is_open(self, number: int) -> bool:
        """Whether a session lives; from then on it was heard from."""
        self._expire_late(number)
        session = self._sessions.get(number)
        if session is not None:
            session.heard = self.scheduler.now
        return session is not None

    def connect(self, number: int, news: Callable[[], None]) -> Link:
        """A new connection of an open session. `news` is called when something is on its way to the client."""
        session = self._sessions[number]
        self.hang_up(session.link)
        session.link = Link(number, session.process, news)
        return session.link

    def hang_up(self, link: Link | None) -> None:
        """A connection is broken, with all that was on its way and all watches."""
        if link is not None and link.open:
            link.open = False
            link.news()
            if self.observer is not None:
                self.observer.hung_up(link.session)
            self._unwatch(link)

    def give_up(self, number: int) -> None:
        """Nobody speaks for a session any more: it ends when its time is over."""
        if number in self._sessions:
            self._sessions[number].given_up = True

    def send(self, link: Link, request: Any) -> None:
        """Send a request over a connection; the answer comes over it as well, unless it breaks."""
        link.last_sent = max(link.last_sent, self.scheduler.now + self.latency())
        heapq.heappush(self._arriving, (link.last_sent, next(self._count), link, request))
        self.scheduler.wake(self._request)

    def latency(self) -> float:
        """How long something is on its way, in seconds."""
        return self.random.uniform(*LATENCY_SECONDS)

    def _serve(self) -> None:
        """Carry out what arrives. In an actor of the servers': what was sent arrives though its sender has died."""
        while True:
            now = self.scheduler.now
            if self._arriving and self._arriving[0][0] <= now:
                _, _, link, request = heapq.heappop(self._arriving)
                self._receive(link, request)
            else:
                self._request = Waiter()
                self.scheduler.wait(self._request, self._arriving[0][0] - now if self._arriving else None)

    def _receive(self, link: Link, request: Any) -> None:
        if not link.open:
            return
        too_large = len(getattr(request, "data", None) or b"") > LARGEST_REQUEST_BYTES
        if too_large or not self.is_reached_by(link.process):
            self.hang_up(link)
            return
        if not self.is_open(link.session):
            return  # it has just ended, or this was sent behind its end
        moment = f"zookeeper {type(request).__name__.lower()}"
        self.scheduler.saw(f"{link.process.name}/sent", f"{moment} {getattr(request, 'path', '')}")
        self.scheduler.meet(link.process, moment)
        if not self.is_reached_by(link.process):
            self.hang_up(link)
        if not link.open:
            return
        if isinstance(request, Close):
            self._end(link.session, expired=False)
            self._unwatch(link)
            self._reply(link, Answer(None, None))
            return
        try:
            answer = Answer(self._carry_out(link, request), None)
        except ZookeeperError as error:
            answer = Answer(None, error)
        told, self._told = self._told, []
        if self.observer is not None:
            self.observer.carried_out(link.session, request, answer, told)
        self.scheduler.meet(link.process, f"{moment}, done")
        if not self.is_reached_by(link.process):
            self.hang_up(link)
        self._reply(link, answer)

    def _carry_out(self, link: Link, request: Any) -> Any:
        match request:
            case Create(path=path, data=data, flags=flags):
                return self._create(path, data, link.session if flags & EPHEMERAL else 0, bool(flags & SEQUENCE))
            case Delete(path=path, version=version):
                return self._delete(path, version)
            case SetData(path=path, data=data, version=version):
                return self._set(path, data, version)
            case Exists(path=path, watcher=watcher):
                self._watch(self._data_watches, path, link, watcher)  # also for one that is not there yet
                return self._at(path).stat()
            case GetData(path=path, watcher=watcher):
                znode = self._at(path)
                self._watch(self._data_watches, path, link, watcher)
                return znode.data, znode.stat()
            case GetChildren(path=path, watcher=watcher) | GetChildren2(path=path, watcher=watcher):
                znode = self._at(path)
                self._watch(self._child_watches, path, link, watcher)
                names = sorted(znode.children)
                self.random.shuffle(names)
                return (names, znode.stat()) if isinstance(request, GetChildren2) else names
            case Sync(path=path):
                return path
        raise TypeError(f"the model of ZooKeeper does not know {request!r}")

    def _at(self, path: str) -> _Znode:
        znode = self._tree.get(path)
        if znode is None:
            raise NoNodeError
        return znode

    def _create(self, path: str, data: bytes, owner: int, sequence: bool) -> str:
        parent = self._at(_parent(path))
        if sequence:
            path = f"{path}{parent.created:010d}"
        if path in self._tree:
            raise NodeExistsError
        if parent.owner:
            raise NoChildrenForEphemeralsError
        self._zxid += 1
        parent.created += 1
        parent.pzxid = self._zxid
        parent.children.add(path.rpartition("/")[2])
        self._tree[path] = _Znode(data, self._zxid, self._now_ms(), owner)
        self._tell(self._data_watches, path, EventType.CREATED)
        self._tell(self._child_watches, _parent(path), EventType.CHILD)
        return path

    def _set(self, path: str, data: bytes, version: int) -> ZnodeStat:
        znode = self._at(path)
        if version not in (-1, znode.version):
            raise BadVersionError
        self._zxid += 1
        znode.data, znode.version = data, znode.version + 1
        znode.mzxid, znode.mtime = self._zxid, self._now_ms()
        self._tell(self._data_watches, path, EventType.CHANGED)
        return znode.stat()

    def _delete(self, path: str, version: int) -> bool:
        znode = self._at(path)
        if version not in (-1, znode.version):
            raise BadVersionError
        if znode.children:
            raise NotEmptyError
        self._zxid += 1
        self._remove(path)
        return True

    def _remove(self, path: str) -> None:
        del self._tree[path]
        parent = self._tree[_parent(path)]
        parent.children.discard(path.rpartition("/")[2])
        parent.pzxid = self._zxid
        # A session that watches both the data and the children is told once.
        self._child_watches.setdefault(path, {}).update(self._data_watches.pop(path, {}))
        self._tell(self._child_watches, path, EventType.DELETED)
        self._tell(self._child_watches, _parent(path), EventType.CHILD)

    def _now_ms(self) -> int:
        return int(self.scheduler.now * 1000)

    def _watch(self, watches: dict[str, dict[Link, None]], path: str, link: Link, watcher: object) -> None:
        if watcher is not None:
            watches.setdefault(path, {})[link] = None

    def _unwatch(self, link: Link) -> None:
        for watches in (self._data_watches, self._child_watches):
            for links in watches.values():
                links.pop(link, None)

    def _tell(self, watches: dict[str, dict[Link, None]], path: str, kind: str) -> None:
        for link in watches.pop(path, {}):
            event = Event(link.session, kind, path)
            self._told.append(event)
            self._reply(link, event)

    def _reply(self, link: Link, message: Event | Answer) -> None:
        at = self.scheduler.now + self.latency()
        if link.arriving:
            at = max(at, link.arriving[-1][0])
        link.arriving.append((at, message))
        link.news()

    def _end(self, number: int, *, expired: bool) -> None:
        """A session ends, and its ephemeral znodes are gone in one change."""
        session = self._sessions.pop(number)
        self._zxid += 1
        for path in sorted(path for path, znode in self._tree.items() if znode.owner == number):
            self._remove(path)
        told, self._told = self._told, []
        if self.observer is not None:
            self.observer.ended(number, told, expired=expired)
        if expired:
            self.hang_up(session.link)

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
        speaks = process.alive and process.paused_until <= now and not session.given_up
        if speaks and self.is_reached_by(process):
            session.heard = now
        elif now - session.heard > session.timeout:
            self._end(number, expired=True)


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


class _InOrder:
    """A set of kazoo's, whose order does not depend on where its members lie in memory."""

    def __init__(self) -> None:
        self._members: dict[Any, None] = {}

    def add(self, member: object) -> None:
        self._members[member] = None

    def discard(self, member: object) -> None:
        self._members.pop(member, None)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._members)


class Client(KazooClient):
    """kazoo's client, over a model of the network: two threads that call back, and one that has the connection."""

    def __init__(self, ensemble: Ensemble, threading: Threading, timeout: float) -> None:
        self.ensemble = ensemble
        process = ensemble.scheduler.current.process
        super().__init__("world:2181", timeout=timeout, handler=_Threads(ensemble.scheduler, threading, process))
        self.state_listeners = _InOrder()
        self._connection = _Connection(self, ensemble, process, timeout)

    def _reset_watchers(self) -> None:
        super()._reset_watchers()
        self._child_watchers: defaultdict[str, _InOrder] = defaultdict(_InOrder)
        self._data_watchers: defaultdict[str, _InOrder] = defaultdict(_InOrder)

    def _make_state_change(self, state: str) -> None:
        if self.ensemble.observer is not None and self.state != state and self._session_id is not None:
            self.ensemble.observer.is_told(self._session_id, state)
        super()._make_state_change(state)


class _Threads:
    """kazoo's handler: what its client waits with, and the two threads that call back."""

    timeout_exception = KazooTimeoutError

    def __init__(self, scheduler: Scheduler, threading: Threading, process: Process) -> None:
        self.event_object, self.lock_object, self.rlock_object = threading.Event, threading.Lock, threading.RLock
        self.sleep_func = scheduler.sleep
        self.running = False
        self._condition = lambda: threading.Condition(threading.RLock())
        self._scheduler = scheduler
        self._process = process
        self._queue_type = type("SimpleQueue", (SimpleQueue,), {"_scheduler": scheduler})
        self._actors: list[Actor] = []
        self._make_queues()

    def start(self) -> None:
        self.running = True
        for queue, name in ((self.completion_queue, "kazoo answers"), (self.callback_queue, "kazoo watches")):
            self._actors.append(self._scheduler.spawn(self._process, name, lambda queue=queue: self._work(queue)))  # type: ignore[misc]

    def stop(self) -> None:
        if not self.running:
            return
        self.running = False
        for queue in (self.completion_queue, self.callback_queue):
            queue.put(None)
        while self._actors:
            self._scheduler.join(self._actors.pop())
        self._make_queues()

    def async_result(self) -> AsyncResult:
        return AsyncResult(self, self._condition, KazooTimeoutError)

    def dispatch_callback(self, callback: Callback) -> None:
        self.callback_queue.put(lambda: callback.func(*callback.args))

    def _make_queues(self) -> None:
        self.completion_queue = self._queue_type()
        self.callback_queue = self._queue_type()

    def _work(self, queue: SimpleQueue) -> None:
        while (call := queue.get()) is not None:
            try:
                call()
            except Exception as error:
                # kazoo logs it and goes on. In a world somebody has to hear of it.
                logging.getLogger(__name__).exception("a callback failed")
                self._scheduler.spawn(self._process, "callback", lambda error=error: _raise(error))  # type: ignore[misc]


def _raise(error: Exception) -> None:
    raise error


class _Connection:
    """kazoo's connection: sends what its client has queued, and tells it what arrives."""

    def __init__(self, client: Client, ensemble: Ensemble, process: Process, timeout: float) -> None:
        self._client = client
        self._ensemble = ensemble
        self._scheduler = ensemble.scheduler
        self._process = process
        self._timeout = timeout
        self._work = client.handler.event_object()
        self._stopped = client.handler.event_object()
        self._stopped.set()
        self._write_sock = self

    def send(self, _: bytes) -> None:
        """Something is queued."""
        self._work.set()

    def start(self) -> None:
        self._stopped.clear()
        self._scheduler.spawn(self._process, "kazoo", self._run)

    def stop(self, timeout: float | None = None) -> bool:
        return bool(self._stopped.wait(timeout))

    def close(self) -> None:
        """There is nothing to release."""

    def _run(self) -> None:
        client = self._client
        while not client._stopped.is_set():
            if self._attempt():
                break
            again = self._scheduler.now + RECONNECT_SECONDS
            while not client._stopped.is_set() and (left := again - self._scheduler.now) > 0:
                self._work.clear()
                self._work.wait(left)
        if client._session_id is not None:
            self._ensemble.give_up(client._session_id)
        self._stopped.set()
        client._session_callback(KeeperState.CLOSED)

    def _attempt(self) -> bool:
        """Connect, and serve the client until the connection breaks; True when the session is closed."""
        client, ensemble = self._client, self._ensemble
        if client._state != KeeperState.CONNECTING:
            client._session_callback(KeeperState.CONNECTING)
        self._scheduler.sleep(ensemble.latency())
        if not ensemble.is_reached_by(self._process):
            return False
        if client._session_id is None:
            client._session_id = ensemble.open(self._process, self._timeout)
        elif not ensemble.is_open(client._session_id):
            client._session_callback(KeeperState.EXPIRED_SESSION)
            return False
        link = ensemble.connect(client._session_id, self._work.set)
        client._session_callback(KeeperState.CONNECTED)
        while link.open and ensemble.is_reached_by(self._process):
            now = self._scheduler.now
            if link.arriving and link.arriving[0][0] <= now:
                _, message = link.arriving.popleft()
                if isinstance(message, Event):
                    self._tell(message)
                elif self._answer(message):
                    client._session_callback(KeeperState.CLOSED)
                    return True
            elif client._queue:
                request, result = client._queue.popleft()
                client._pending.append((request, result, 0))
                ensemble.send(link, request)
            else:
                self._work.clear()
                self._work.wait(min(self._timeout / 3, link.arriving[0][0] - now if link.arriving else self._timeout))
        ensemble.hang_up(link)
        client._session_callback(KeeperState.CONNECTING)
        return False

    def _tell(self, event: Event) -> None:
        client = self._client
        watchers: list[Callable[[WatchedEvent], None]] = []
        if event.kind != EventType.CHILD:
            watchers += client._data_watchers.pop(event.path, ())
        if event.kind in (EventType.CHILD, EventType.DELETED):
            watchers += client._child_watchers.pop(event.path, ())
        event.called = watchers
        if client._stopped.is_set():
            return
        for watcher in watchers:
            told = WatchedEvent(event.kind, client._state, event.path)
            client.handler.dispatch_callback(Callback("watch", watcher, (told,)))

    def _answer(self, answer: Answer) -> bool:
        """Tell whoever has asked; True when the session is closed."""
        client = self._client
        request, result, _ = client._pending.popleft()
        if isinstance(request, Close):
            return True
        absent = isinstance(request, Exists) and isinstance(answer.error, NoNodeError)
        if answer.error is not None and not absent:
            result.set_exception(answer.error)
            return False
        result.set(answer.value)
        watcher = getattr(request, "watcher", None)
        if watcher is not None and not client._stopped.is_set():
            children = isinstance(request, GetChildren | GetChildren2)
            (client._child_watchers if children else client._data_watchers)[request.path].add(watcher)
        return False
