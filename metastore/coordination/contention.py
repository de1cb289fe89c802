"""A fair queue of contenders, from which the commit lock and the election are made.

Kazoo's `Lock` keeps the queue (an ephemeral sequential znode per contender, each watching the one
before it), and this module takes away what makes it unsafe to wait with:

- its requests wait for ever when no server answers: here each has a deadline;
- it waits for the whole timeout anew whenever the contender before it changes: here the wait ends at the deadline;
- it says "not acquired" by `LockTimeout` or by `False`: here it is always False;
- a contender can be left behind when the connection breaks at the wrong moment, and then blocks everybody for as long
  as its process lives: here it is removed in the background as soon as ZooKeeper answers;
- an object that is used again searches for its old znode first: here each attempt has a `Lock` of its own, which
  costs two round trips to get and none to give back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from epochlake.metastore.committing.queue import Meanwhile
from epochlake.metastore.coordination.client import NO_ANSWER, Coordination
from epochlake.metastore.errors import CoordinationUnavailable
from epochlake.placement.errors import words_of
from kazoo.exceptions import (
    CancelledError,
    KazooException,
    LockTimeout,
    NoNodeError,
    OperationTimeoutError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.recipe.lock import Lock

# Even an attempt that may not wait in the queue has to wait for answers.
_SHORTEST_REQUEST_SECONDS = 0.5


class Contention:
    """One contender at a time in the queue at `name`; `identifier` is what others read about it.

    Use it from one thread at a time, as often as wanted.
    """

    def __init__(self, coordination: Coordination, name: str, identifier: str = "") -> None:
        self._coordination = coordination
        self._name = name
        self._identifier = identifier
        self._held: Lock | None = None
        self._attempt: Lock | None = None
        self.seconds_waited = 0.0
        """How long the last attempt has waited for those before it; requests do not count."""
        self.contenders = 0
        """How many were in the queue when the last attempt looked, itself included."""

    def interrupt(self) -> None:
        """Let the attempt that waits now, if there is one, end with False. From any thread; does not block."""
        attempt = self._attempt
        if attempt is not None:
            attempt.cancel()

    def acquire(
        self, timeout: float, unless: Callable[[], bool] = lambda: False, meanwhile: Meanwhile | None = None
    ) -> bool:
        """Wait in the queue for at most `timeout` seconds. Are we first now?

        Who calls `interrupt` makes `unless` true before: then there is no need to be first any more. False: we are not
        first, and no contender of ours is left (at the latest as soon as ZooKeeper answers again).
        `CoordinationUnavailable`: the time passed without an answer from ZooKeeper; outages that are shorter than
        the timeout are waited out.
        """
        coordination = self._coordination
        deadline = time.monotonic() + timeout
        requests = _BoundedRequests(coordination, deadline)
        directory = coordination.ensure(self._name, requests.seconds_left())
        lock = Lock(requests, directory, self._identifier)
        lock.assured_path = True
        lock.wake_event = waiting = _EventUntil(deadline, meanwhile)
        self._attempt = lock
        try:
            if unless():
                return False
            if lock.acquire(timeout=max(0.0, timeout)):
                self._held = lock
                return True
        except (LockTimeout, CancelledError):
            pass
        except NoNodeError as error:
            # Somebody has deleted the directory: it is there again for the next attempt.
            coordination.forget(directory)
            if time.monotonic() < deadline:
                return self.acquire(deadline - time.monotonic(), unless, meanwhile)
            raise CoordinationUnavailable(f"{directory} was deleted in ZooKeeper", hint="Try again") from error
        except KazooException as error:
            coordination.remove_later(directory, lock.prefix)
            raise CoordinationUnavailable(
                f"could not queue up at {directory} in ZooKeeper at {coordination.connect_string}: {words_of(error)}",
                hint="Try again when the server is up",
            ) from error
        except BaseException:
            # Somebody has interrupted the wait, in a notebook for instance, and the process lives on.
            coordination.remove_later(directory, lock.prefix)
            raise
        finally:
            self._attempt = None
            self.seconds_waited = waiting.seconds
            self.contenders = requests.contenders
        if not requests.all_answered:
            coordination.remove_later(directory, lock.prefix)
        if not requests.last_answered:
            raise CoordinationUnavailable(
                f"could not queue up at {directory} within {timeout:.3g} s: ZooKeeper at "
                f"{coordination.connect_string} does not answer",
                hint="Try again when the server is up",
            )
        return False

    def release(self) -> None:
        """Leave the queue. Never raises and does not wait: without an answer the znode is removed in the background."""
        lock, self._held = self._held, None
        if lock is None or self._coordination.closed:
            return
        directory, prefix = lock.path, lock.prefix

        def check(result: Any) -> None:
            if not result.successful() and not isinstance(result.exception, NoNodeError):
                self._coordination.remove_later(directory, prefix)

        self._coordination.client.delete_async(f"{directory}/{lock.node}").rawlink(check)

    def is_in_queue(self, timeout: float | None = None) -> bool:
        """Is the znode of what was acquired still there, and of the present session? (A session can have expired.)"""
        lock = self._held
        if lock is None:
            return False
        owner = self._coordination.owner(f"{lock.path}/{lock.node}", timeout)
        return owner is not None and owner == self._coordination.session_id


class _BoundedRequests:
    """As much of a `KazooClient` as kazoo's `Lock` uses, where each request is answered before a deadline or fails."""

    def __init__(self, coordination: Coordination, deadline: float) -> None:
        self._coordination = coordination
        self._client = coordination.client
        self._deadline = deadline
        self.handler = self._client.handler
        self.add_listener = self._client.add_listener
        self.remove_listener = self._client.remove_listener
        self.all_answered = True
        self.last_answered = True
        self.contenders = 0

    def seconds_left(self) -> float:
        return max(_SHORTEST_REQUEST_SECONDS, self._deadline - time.monotonic())

    def create(self, path: str, value: bytes, *, ephemeral: bool, sequence: bool) -> Any:
        return self._answer(self._client.create_async(path, value, ephemeral=ephemeral, sequence=sequence))

    def get(self, path: str, watch: Any) -> Any:
        return self._answer(self._client.get_async(path, watch=watch))

    def get_children(self, path: str) -> Any:
        children = self._answer(self._client.get_children_async(path))
        self.contenders = self.contenders or len(children)
        return children

    def delete(self, path: str) -> Any:
        return self._answer(self._client.delete_async(path))

    def _answer(self, result: Any) -> Any:
        self.last_answered = False
        try:
            answer = result.get(timeout=self.seconds_left())
        except NO_ANSWER as error:
            self.all_answered = False
            if isinstance(error, KazooTimeoutError):
                # Not a `KazooException`, so kazoo's own clean-up would let it through.
                raise OperationTimeoutError("no answer before the deadline") from error
            raise
        except KazooException:
            self.last_answered = True
            raise
        self.last_answered = True
        return answer


class _EventUntil(threading.Event):
    """An event whose waits end at one deadline, however often it is waited for; `meanwhile` is for all of them."""

    def __init__(self, deadline: float, meanwhile: Meanwhile | None) -> None:
        super().__init__()
        self._deadline = deadline
        self._meanwhile = meanwhile
        self.seconds = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        meanwhile = self._meanwhile
        if meanwhile is not None and (first := meanwhile.after - self.seconds) < self._deadline - time.monotonic():
            if self._wait(first):
                return True
            self._meanwhile = None
            meanwhile.do()
        return self._wait(self._deadline - time.monotonic())

    def _wait(self, timeout: float) -> bool:
        started = time.monotonic()
        try:
            return super().wait(max(0.0, timeout))
        finally:
            self.seconds += time.monotonic() - started


def first_in_queue(coordination: Coordination, name: str, timeout: float | None = None) -> str | None:
    """What the first contender at `name` says about itself; None when nobody is there. No older than the call."""
    directory = coordination.path(name)
    deadline = time.monotonic() + (coordination.request_timeout if timeout is None else timeout)
    while True:
        contenders = coordination.children(directory, deadline - time.monotonic())
        if not contenders:
            return None
        first = min(contenders, key=lambda contender: contender.rpartition("__")[2])
        [found] = coordination.read_all([f"{directory}/{first}"], deadline - time.monotonic())
        if found is not None:
            data: bytes = found[0]
            return data.decode()
