"""What the model of ZooKeeper did, step by step in the order of its servers, so that a real server can do the same.

with recorded() as recorder:
    log_history(7)
steps = recorder.steps()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from epochlake.jobs.testing.zookeeper import EPHEMERAL, SEQUENCE, Answer, Ensemble, Event
from kazoo.exceptions import NoNodeError
from kazoo.protocol.serialization import Create, Delete, Exists, GetChildren, GetChildren2, GetData, SetData, Sync

OPERATIONS = {
    Create: "create",
    Delete: "delete",
    Exists: "exists",
    GetChildren: "children",
    GetChildren2: "children and stat",
    GetData: "get",
    SetData: "set",
    Sync: "sync",
}


class Told(NamedTuple):
    """A watch that a session was told of. `called`: numbers of its client's watches; None: it has not arrived."""

    session: int
    kind: str
    path: str
    called: tuple[int, ...] | None


class Request(NamedTuple):
    """One request. `watch`: the number that the session's watch has; one that is left again keeps its number."""

    operation: str
    path: str
    data: bytes = b""
    version: int = -1
    ephemeral: bool = False
    sequence: bool = False
    watch: int | None = None

    def __str__(self) -> str:
        flags = [name for name in ("ephemeral", "sequence") if getattr(self, name)]
        version = [f"version {self.version}"] if self.version != -1 else []
        watch = [f"watch {self.watch}"] if self.watch is not None else []
        return " ".join([self.operation, self.path, *flags, *version, *watch])


class Opened(NamedTuple):
    """A session begins."""

    session: int


class Asked(NamedTuple):
    """A request was carried out. `error` is the name of a class, or empty; `told` came before the answer."""

    session: int
    request: Request
    value: Any
    error: str
    told: tuple[Told, ...]


class Ended(NamedTuple):
    """A session has ended, by its client or because nothing was heard of it."""

    session: int
    expired: bool
    told: tuple[Told, ...]


class HungUp(NamedTuple):
    """The connection of a session is broken."""

    session: int


class State(NamedTuple):
    """A client was told the state of its session: CONNECTED, SUSPENDED or LOST."""

    session: int
    state: str


class Forgot(NamedTuple):
    """The servers have lost what they stored."""


Step = Opened | Asked | Ended | HungUp | State | Forgot


class Recorder:
    """Notes steps while histories run. Sessions are numbered as the ensemble does."""

    def __init__(self) -> None:
        self._noted: list[Callable[[], Step]] = []
        self._watches: dict[tuple[int, Callable[..., Any]], int] = {}

    def steps(self) -> list[Step]:
        """What was noted until now."""
        return [step() for step in self._noted]

    def opened(self, session: int) -> None:
        self._noted.append(lambda: Opened(session))

    def carried_out(self, session: int, request: Any, answer: Answer, told: list[Event]) -> None:
        asked = self._request(session, request)
        # An `exists` of what is not there is answered by None.
        failed = answer.error is not None and not (
            asked.operation == "exists" and isinstance(answer.error, NoNodeError)
        )
        error = type(answer.error).__name__ if failed else ""
        # A list that the servers have answered with is the client's now.
        value = tuple(answer.value) if type(answer.value) is list else answer.value
        self._noted.append(lambda: Asked(session, asked, value, error, self._told(told)))

    def ended(self, session: int, told: list[Event], *, expired: bool) -> None:
        self._noted.append(lambda: Ended(session, expired, self._told(told)))

    def hung_up(self, session: int) -> None:
        self._noted.append(lambda: HungUp(session))

    def is_told(self, session: int, state: str) -> None:
        self._noted.append(lambda: State(session, state))

    def forgot(self) -> None:
        self._noted.append(Forgot)

    def _request(self, session: int, request: Any) -> Request:
        flags = getattr(request, "flags", 0)
        watcher = getattr(request, "watcher", None)
        return Request(
            OPERATIONS[type(request)],
            request.path,
            getattr(request, "data", b""),
            getattr(request, "version", -1),
            bool(flags & EPHEMERAL),
            bool(flags & SEQUENCE),
            None if watcher is None else self._watches.setdefault((session, watcher), len(self._watches)),
        )

    def _told(self, events: list[Event]) -> tuple[Told, ...]:
        return tuple(Told(event.session, event.kind, event.path, self._called(event)) for event in events)

    def _called(self, event: Event) -> tuple[int, ...] | None:
        """Known only later: an event is on its way for a while, and may be lost."""
        if event.called is None:
            return None
        return tuple(sorted(self._watches[event.session, watcher] for watcher in event.called))


@contextmanager
def recorded() -> Iterator[Recorder]:
    """Note what all ensembles of the block do: let one history run in it."""
    before, recorder = Ensemble.observer, Recorder()
    Ensemble.observer = recorder
    try:
        yield recorder
    finally:
        Ensemble.observer = before
