"""What the model of ZooKeeper did, done again by a real server: one kazoo client per session, one step at a time."""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from epochlake.jobs.testing.zookeeper_recording import Asked, Ended, Forgot, HungUp, Opened, Request, State, Step, Told
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped, KazooException
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import _CONNECTION_DROP, ConnectionHandler
from kazoo.protocol.serialization import Watch
from kazoo.protocol.states import EVENT_TYPE_MAP, Callback, KazooState, ZnodeStat
from kazoo.retry import KazooRetry

PATIENCE_SECONDS = 60.0
"""For a server on a machine that does many other things."""

SESSION_SECONDS = 60.0
"""So that no session ends but by a step."""

CHANGES = ("create", "set", "delete")

EXACT = ("version", "cversion", "aversion", "dataLength", "numChildren")
"""What must be the same of a stat."""

ORDERED = ("czxid", "mzxid", "pzxid")
"""What must be in the same order in all stats."""

_ANSWER = Told(0, "answer", "", None)
"""The answer to the request of a step, among the watches that its session was told of."""


def differences(steps: Sequence[Step], connect: str, most: int = 20) -> list[str]:
    """Let the server at `connect` do what the model did, and say where they differ; a line each, `most` of them.

    Compared are answers, errors and stats; which watches a session was told of by which step, in which order, and
    before the answer or after it; and what it was told of its own state. Raises when the server does not do a step at
    all within PATIENCE_SECONDS.
    """
    replay = _Replay(connect)
    try:
        for number, step in enumerate(steps):
            replay.carry_out(number, step)
            if len(replay.found) >= most:
                break
    finally:
        replay.close()
    return replay.found[:most]


class _Threads(SequentialThreadingHandler):
    """kazoo's threads; each connection needs a permit, so that a client is away for as long as the model's was."""

    def __init__(self) -> None:
        super().__init__()
        self.permits = threading.Semaphore(0)
        self.stopped = False
        self.dispatched: list[Any] = []

    def create_connection(self, *args: Any, **options: Any) -> Any:
        while not self.permits.acquire(timeout=0.02):
            if self.stopped:
                raise ConnectionDropped("not wanted any more")
        return super().create_connection(*args, **options)

    def dispatch_callback(self, callback: Callback) -> None:
        self.dispatched.append(callback.func)
        super().dispatch_callback(callback)


class _Wire(ConnectionHandler):
    """kazoo's connection, which notes what arrives, in order."""

    def __init__(self, client: KazooClient) -> None:
        super().__init__(client, client._conn_retry.copy(), logger=client.logger)
        self.arrived: list[Told] = []
        self.answer_is_noted = False

    def _read_watch_event(self, buffer: Any, offset: int) -> None:
        event, _ = Watch.deserialize(buffer, offset)
        self.handler.dispatched.clear()
        super()._read_watch_event(buffer, offset)
        called = tuple(sorted(watch.number for watch in self.handler.dispatched))
        self.arrived.append(Told(0, EVENT_TYPE_MAP[event.type], self.client.unchroot(event.path), called))

    def _read_response(self, header: Any, buffer: Any, offset: int) -> Any:
        if self.answer_is_noted:
            self.arrived.append(_ANSWER)
            self.answer_is_noted = False
        return super()._read_response(header, buffer, offset)


class _Watch:
    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, event: object) -> None:
        """What is compared is that it was called."""


class _Session:
    """A real session in place of one of the model's."""

    def __init__(self, connect: str) -> None:
        self.threads = _Threads()
        retry = KazooRetry(max_tries=-1, delay=0.005, max_delay=0.02)
        self.client = KazooClient(connect, timeout=SESSION_SECONDS, handler=self.threads, connection_retry=retry)
        self.wire = self.client._connection = _Wire(self.client)
        self.states: list[str] = []
        self.states_asked = 0
        self.client.add_listener(self.states.append)
        self.watches: dict[int, _Watch] = {}
        self.ended = False
        self.threads.permits.release()
        self.client.start(timeout=PATIENCE_SECONDS)
        self.identity = self.client.client_id

    def ask(self, request: Request) -> tuple[Any, str]:
        """The answer, and the name of an error or an empty string."""
        client = self.client
        watch = None if request.watch is None else self.watches.setdefault(request.watch, _Watch(request.watch))
        self.wire.answer_is_noted = True
        match request.operation:
            case "create":
                flags = {"ephemeral": request.ephemeral, "sequence": request.sequence}
                result = client.create_async(request.path, request.data, **flags)
            case "set":
                result = client.set_async(request.path, request.data, request.version)
            case "delete":
                result = client.delete_async(request.path, request.version)
            case "exists":
                result = client.exists_async(request.path, watch)
            case "get":
                result = client.get_async(request.path, watch)
            case "children" | "children and stat":
                with_stat = request.operation != "children"
                result = client.get_children_async(request.path, watch, include_data=with_stat)
            case "sync":
                result = client.sync_async(request.path)
            case other:
                raise TypeError(other)
        try:
            return result.get(timeout=PATIENCE_SECONDS), ""
        except KazooException as error:
            return None, type(error).__name__

    def close(self) -> None:
        self.threads.stopped = True
        self.client.stop()
        self.client.close()


class _Replay:
    def __init__(self, connect: str) -> None:
        self.found: list[str] = []
        self._connect = connect
        self._number = 0
        self._sessions: dict[int, _Session] = {}
        self._names: dict[int, str] = {}
        self._admin = KazooClient(connect, timeout=SESSION_SECONDS)
        self._admin.start(timeout=PATIENCE_SECONDS)
        self._begin_life()

    def close(self) -> None:
        self._close_all()
        self._admin.stop()
        self._admin.close()

    def carry_out(self, number: int, step: Step) -> None:
        self._number = number
        if not isinstance(step, Forgot | Opened) and step.session not in self._sessions:
            return  # of a session that the servers have forgotten
        match step:
            case Opened(session):
                self._names[session] = f"session {len(self._names) + 1}"
                self._sessions[session] = _Session(f"{self._connect}{self._base}")
            case Asked():
                self._ask(step)
            case Ended():
                self._end(step)
            case HungUp(session):
                self._drop(self._sessions[session])
            case State(session, state):
                self._be_told(session, state)
            case Forgot():
                self._close_all()
                self._begin_life()

    def _begin_life(self) -> None:
        self._base = f"/replay-{uuid4().hex}"
        self._admin.create(self._base)
        self._zxids: list[tuple[int, int]] = []

    def _close_all(self) -> None:
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    def _ask(self, step: Asked) -> None:
        session = self._sessions[step.session]
        value, error = session.ask(step.request)
        asked = f"{self._names[step.session]}: {step.request}"
        if error != step.error:
            self._differ(asked, step.error or "no error", error or "no error")
        elif isinstance(value, ZnodeStat):
            self._compare_stats(asked, step.value, value)
        elif isinstance(value, tuple):
            self._compare_values(asked, step.value[0], value[0])
            self._compare_stats(asked, step.value[1], value[1])
        else:
            self._compare_values(asked, step.value, value)
        if step.request.operation in CHANGES:
            self._fence()
        told = (*step.told, _ANSWER._replace(session=step.session))
        self._compare_told(asked, told, ordered=True)

    def _end(self, step: Ended) -> None:
        session = self._sessions[step.session]
        session.ended = True
        if step.expired:
            # As the server does when it heard nothing for too long: somebody takes the session over and closes it.
            thief = KazooClient(self._connect, client_id=session.identity, timeout=SESSION_SECONDS)
            thief.start(timeout=PATIENCE_SECONDS)
            thief.stop()
            thief.close()
            self._until(lambda: session.states[-1] != KazooState.CONNECTED, "hears that its connection is broken")
        else:
            session.close()
        self._fence()
        session.wire.arrived.clear()
        told = [one for one in step.told if one.session != step.session]
        # All in one change: the servers have no order of the znodes of a session.
        self._compare_told(f"the end of {self._names[step.session]}", told, ordered=False)

    def _drop(self, session: _Session) -> None:
        if session.states[-1] == KazooState.CONNECTED:
            session.client._call(_CONNECTION_DROP, session.client.handler.async_result())
            self._until(lambda: session.states[-1] != KazooState.CONNECTED, "drops its connection")
        session.wire.arrived.clear()

    def _be_told(self, number: int, state: str) -> None:
        session = self._sessions[number]
        if session.threads.stopped:
            return  # the answer to its closing was lost there
        count = session.states_asked
        session.states_asked += 1
        if len(session.states) <= count:
            if state == KazooState.CONNECTED or session.ended:
                session.threads.permits.release()
            elif state == KazooState.LOST:
                session.close()  # while it was not connected
            self._until(lambda: len(session.states) > count, f"is told {state}")
        self._compare_values(f"the state of {self._names[number]}", state, session.states[count])

    def _fence(self) -> None:
        """Whatever sessions are told by what has happened is there when this returns."""
        watching = [one for one in self._sessions.values() if one.watches and one.states[-1] == KazooState.CONNECTED]
        for result in [session.client.sync_async("/") for session in watching]:
            result.get(timeout=PATIENCE_SECONDS)

    def _compare_told(self, what: str, told: Sequence[Told], *, ordered: bool) -> None:
        for number, session in self._sessions.items():
            here = [one._replace(session=number) for one in session.wire.arrived]
            del session.wire.arrived[: len(here)]
            there = [one for one in told if one.session == number]
            if not ordered:
                here, there = sorted(here, key=str), sorted(there, key=str)
            # What the model's client never heard of says nothing about whom it would have called.
            lost = {(one.kind, one.path) for one in there if one.called is None}
            here = [one._replace(called=None) if (one.kind, one.path) in lost else one for one in here]
            if here != there:
                self._differ(f"{what}: told to {self._names[number]}", _words(there), _words(here))

    def _compare_values(self, what: str, model: Any, server: Any) -> None:
        if isinstance(server, list):
            model, server = sorted(model), sorted(server)
        if model != server:
            self._differ(what, model, server)

    def _compare_stats(self, what: str, model: ZnodeStat | None, server: ZnodeStat | None) -> None:
        if model is None or server is None:
            self._compare_values(what, model, server)
            return
        for name in EXACT:
            self._compare_values(f"{what}: {name}", getattr(model, name), getattr(server, name))
        for name in ORDERED:
            self._compare_zxids(f"{what}: {name}", getattr(model, name), getattr(server, name))
        owner = self._sessions.get(model.ephemeralOwner)
        self._compare_values(
            f"{what}: ephemeralOwner", 0 if owner is None else owner.identity[0], server.ephemeralOwner
        )

    def _compare_zxids(self, what: str, model: int, server: int) -> None:
        """Later here is later there, and the same is the same."""
        at = bisect.bisect_left(self._zxids, (model, server))
        if at < len(self._zxids) and self._zxids[at] == (model, server):
            return
        for other_model, other_server in self._zxids[max(0, at - 1) : at + 1]:
            if (other_model < model) != (other_server < server) or (other_model == model) != (other_server == server):
                self._differ(what, f"{model} beside {other_model}", f"{server} beside {other_server}")
                return
        self._zxids.insert(at, (model, server))

    def _differ(self, what: str, model: object, server: object) -> None:
        self.found.append(f"step {self._number}, {what}: the model says {model!s}, the server {server!s}")

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"step {self._number}: the client {what}, but not within {PATIENCE_SECONDS:g} s")
            time.sleep(0.001)


def _words(told: Sequence[Told]) -> str:
    return ", ".join(f"{one.kind} {one.path} {one.called or ''}".strip() for one in told) or "nothing"
