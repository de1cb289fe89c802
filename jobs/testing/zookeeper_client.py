"""kazoo's own client in a world: its threads are actors, and its connection leads to the model of ZooKeeper."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from epochlake.jobs.testing.scheduler import Actor, Process, Scheduler
from epochlake.jobs.testing.stdlib import SimpleQueue, Threading
from epochlake.jobs.testing.zookeeper import Answer, Ensemble, Event
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.handlers.utils import AsyncResult
from kazoo.protocol.serialization import Close, Exists, GetChildren, GetChildren2
from kazoo.protocol.states import Callback, EventType, KeeperState, WatchedEvent

RECONNECT_SECONDS = 0.5


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
