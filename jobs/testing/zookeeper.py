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
import random
from collections import deque
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, ClassVar, NamedTuple, Protocol

from epochlake.jobs.testing.lagging import Lagging, Sight
from epochlake.jobs.testing.scheduler import Actor, Process, Scheduler, Waiter
from kazoo.exceptions import (
    BadVersionError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    ZookeeperError,
)
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
from kazoo.protocol.states import EventType, WatchedEvent, ZnodeStat

LATENCY_SECONDS = (0.0005, 0.003)
"""The least and the most that a request takes to the ensemble, and its answer back."""

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

    def copy(self) -> _Znode:
        """As it is now."""
        other = copy(self)
        other.children = {*self.children}
        return other

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
        self.kept: dict[str, list[bytes]] = {}
        """Of znodes with these names all values that they ever had."""
        self._sessions: dict[int, _Session] = {}
        self._data_watches: dict[str, dict[Link, None]] = {}
        self._child_watches: dict[str, dict[Link, None]] = {}
        self._told: list[Event] = []
        self._lagging: dict[Process, Lagging[_Znode, Link]] = {}
        """By processes: the servers that they are connected to, where these lag behind."""
        self._changed: dict[str, None] = {}
        self._sights: list[Sight] = []
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

    def lag(self, process: Process, seconds: float, by: float) -> bool:
        """The server that a process is connected to is `by` seconds behind the others, for so long; False: it is."""
        if process in self._lagging:
            return False
        lagging = self._lagging[process] = Lagging(self._tree, by, self._tell_of)
        for children, watches in ((False, self._data_watches), (True, self._child_watches)):
            for path, links in watches.items():
                for link in [link for link in links if link.process is process]:
                    del links[link]
                    lagging.watch(path, link, children=children)
        self.scheduler.after(seconds, lambda: self._catch_up(process, lagging), self.process)
        return True

    def _catch_up(self, process: Process, lagging: Lagging[_Znode, Link]) -> None:
        """A server lags no more."""
        if self._lagging.get(process) is not lagging:
            return
        lagging.apply()
        del self._lagging[process]
        for (children, path), links in lagging.watches.items():
            watches = self._child_watches if children else self._data_watches
            watches.setdefault(path, {}).update(links)

    def heal(self) -> None:
        """All connections work from now on."""
        for process, lagging in list(self._lagging.items()):
            self._catch_up(process, lagging)
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
        self._lagging.clear()
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
                for lagging in self._lagging.values():
                    lagging.apply(now)
                times = [at for one in self._lagging.values() if (at := one.next_at) is not None]
                times += [self._arriving[0][0]] if self._arriving else []
                self._request = Waiter()
                self.scheduler.wait(self._request, min(times) - now if times else None)

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
        self._meet(link, moment, request)
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
        self._pass_on()
        if link.process in self._lagging and not isinstance(request, Exists | GetData | GetChildren | GetChildren2):
            # It was led through the server of the session, after all that came before it.
            self._lagging[link.process].apply()
        told, self._told = self._told, []
        if self.observer is not None:
            self.observer.carried_out(link.session, request, answer, told)
        self._meet(link, moment, request, ", done")
        if not self.is_reached_by(link.process):
            self.hang_up(link)
        self._reply(link, answer)

    def _meet(self, link: Link, moment: str, request: Any, done: str = "") -> None:
        """A process comes to a moment, named also by what it is about: "zookeeper delete of proposals"."""
        self.scheduler.meet(link.process, f"{moment}{done}")
        *_, above, _ = f"//{getattr(request, 'path', '')}".split("/")
        self.scheduler.meet(link.process, f"{moment} of {above}{done}")

    def _carry_out(self, link: Link, request: Any) -> Any:
        match request:
            case Create(path=path, data=data, flags=flags):
                return self._create(path, data, link.session if flags & EPHEMERAL else 0, bool(flags & SEQUENCE))
            case Delete(path=path, version=version):
                return self._delete(path, version)
            case SetData(path=path, data=data, version=version):
                return self._set(path, data, version)
            case Exists(path=path, watcher=watcher):
                self._watch(path, link, watcher)  # also for one that is not there yet
                return self._at(path, link).stat()
            case GetData(path=path, watcher=watcher):
                znode = self._at(path, link)
                self._watch(path, link, watcher)
                return znode.data, znode.stat()
            case GetChildren(path=path, watcher=watcher) | GetChildren2(path=path, watcher=watcher):
                znode = self._at(path, link)
                self._watch(path, link, watcher, children=True)
                names = sorted(znode.children)
                self.random.shuffle(names)
                return (names, znode.stat()) if isinstance(request, GetChildren2) else names
            case Sync(path=path):
                return path
        raise TypeError(f"the model of ZooKeeper does not know {request!r}")

    def _at(self, path: str, link: Link | None = None) -> _Znode:
        """A znode as it is, or as the server shows it that somebody is connected to."""
        lagging = None if link is None else self._lagging.get(link.process)
        if lagging is not None:
            lagging.apply(self.scheduler.now)
        znode = (self._tree if lagging is None else lagging.tree).get(path)
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
        self._changed |= {path: None, _parent(path): None}
        self.kept.get(path.rpartition("/")[2], []).append(data)
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
        self._changed[path] = None
        self.kept.get(path.rpartition("/")[2], []).append(data)
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
        self._changed |= {path: None, _parent(path): None}
        # A session that watches both the data and the children is told once.
        self._child_watches.setdefault(path, {}).update(self._data_watches.pop(path, {}))
        self._tell(self._child_watches, path, EventType.DELETED)
        self._tell(self._child_watches, _parent(path), EventType.CHILD)

    def _now_ms(self) -> int:
        return int(self.scheduler.now * 1000)

    def _watch(self, path: str, link: Link, watcher: object, *, children: bool = False) -> None:
        if watcher is None:
            return
        if (lagging := self._lagging.get(link.process)) is not None:
            lagging.watch(path, link, children=children)
        else:
            (self._child_watches if children else self._data_watches).setdefault(path, {})[link] = None

    def _unwatch(self, link: Link) -> None:
        if link.process in self._lagging:
            self._lagging[link.process].forget(link)
        for watches in (self._data_watches, self._child_watches):
            for links in watches.values():
                links.pop(link, None)

    def _tell(self, watches: dict[str, dict[Link, None]], path: str, kind: str) -> None:
        self._sights.append(Sight(watches is self._child_watches, path, kind))
        for link in watches.pop(path, {}):
            self._tell_of(link, path, kind)

    def _tell_of(self, link: Link, path: str, kind: str) -> None:
        event = Event(link.session, kind, path)
        self._told.append(event)
        self._reply(link, event)

    def _pass_on(self) -> None:
        """Tell servers that lag behind what has changed."""
        changed: Mapping[str, _Znode | None] = {path: self._tree.get(path) for path in self._changed}
        if changed:
            for lagging in self._lagging.values():
                lagging.hear(self.scheduler.now, changed, self._sights)
            self.scheduler.wake(self._request)
        self._changed, self._sights = {}, []

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
        self._pass_on()
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
