"""Stand-ins for what production code takes from the standard library: clock, threads, locks, queues, chance.

Each keeps the contract of what it stands for, as far as production code uses it, on the scheduler's time.
"""

from __future__ import annotations

import random
import time as real_time
import uuid as real_uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from queue import Empty
from typing import Any, NamedTuple

from epochlake.jobs.testing.scheduler import Actor, Process, Scheduler, Waiter


class Time:
    """The module `time`. The wall clock is that of the process that asks; the monotonic one is everybody's."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def time(self) -> float:
        current = self._scheduler.running
        return self._scheduler.now + (0.0 if current is None else current.process.skew)

    def time_ns(self) -> int:
        return int(self.time() * 1_000_000) * 1000

    def monotonic(self) -> float:
        return self._scheduler.now

    perf_counter = monotonic

    def sleep(self, seconds: float) -> None:
        self._scheduler.sleep(seconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(real_time, name)


class Threading:
    """The module `threading`."""

    def __init__(self, scheduler: Scheduler) -> None:
        class Lock(_Lock):
            _scheduler = scheduler

        class RLock(_RLock):
            _scheduler = scheduler

        class Event(_Event):
            _scheduler = scheduler

        class Condition(_Condition):
            _scheduler = scheduler

        class Thread(_Thread):
            _scheduler = scheduler

        class Local(_Local):
            _scheduler = scheduler

        self.Lock, self.RLock, self.Event = Lock, RLock, Event
        self.Condition, self.Thread, self.local = Condition, Thread, Local
        self._scheduler = scheduler

    def get_ident(self) -> int:
        current = self._scheduler.running
        return 0 if current is None else id(current)

    def current_thread(self) -> Actor | None:
        return self._scheduler.running


class _Lock:
    _scheduler: Scheduler

    def __init__(self) -> None:
        self._owner: object | None = None
        self._waiting: deque[Waiter] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._owner is None:
            self._owner = self._me()
            return True
        if not blocking:
            return False
        waiter = Waiter()
        self._waiting.append(waiter)
        if self._scheduler.wait(waiter, None if timeout < 0 else timeout):
            return True  # `release` has made it ours
        self._waiting.remove(waiter)
        return False

    def release(self) -> None:
        self._owner = None
        while self._waiting:
            waiter = self._waiting.popleft()
            if waiter.actor is not None and waiter.actor.process.alive:
                self._owner = waiter.actor
                self._scheduler.wake(waiter)
                return

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _me(self) -> object:
        return self._scheduler.running or self


class _RLock(_Lock):
    def __init__(self) -> None:
        super().__init__()
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._owner is not None and self._owner is self._me():
            self._count += 1
            return True
        if super().acquire(blocking, timeout):
            self._count = 1
            return True
        return False

    def release(self) -> None:
        self._count -= 1
        if self._count == 0:
            super().release()

    def release_all(self) -> int:
        count, self._count = self._count, 0
        super().release()
        return count

    def take_back(self, count: int) -> None:
        super().acquire()
        self._count = count


class _Condition:
    _scheduler: Scheduler

    def __init__(self, lock: _Lock | None = None) -> None:
        if lock is None:
            kind = type("RLock", (_RLock,), {"_scheduler": self._scheduler})
            lock = kind()
        self._lock: Any = lock
        self._waiting: deque[Waiter] = deque()
        self.acquire, self.release = lock.acquire, lock.release

    def __enter__(self) -> bool:
        return bool(self._lock.acquire())

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        waiter = Waiter()
        self._waiting.append(waiter)
        count = self._lock.release_all() if isinstance(self._lock, _RLock) else self._lock.release()
        try:
            woken = self._scheduler.wait(waiter, timeout)
        finally:
            if isinstance(self._lock, _RLock):
                self._lock.take_back(count)
            else:
                self._lock.acquire()
        if not woken:
            self._waiting.remove(waiter)
        return woken

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        end = None if timeout is None else self._scheduler.now + timeout
        while not (found := predicate()):
            left = None if end is None else end - self._scheduler.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return found

    def notify(self, n: int = 1) -> None:
        for _ in range(min(n, len(self._waiting))):
            self._scheduler.wake(self._waiting.popleft())

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class _Event:
    _scheduler: Scheduler

    def __init__(self) -> None:
        self._flag = False
        self._waiting: list[Waiter] = []

    def is_set(self) -> bool:
        return self._flag

    def set(self) -> None:
        self._flag = True
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            self._scheduler.wake(waiter)

    def clear(self) -> None:
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        if self._flag:
            return True
        waiter = Waiter()
        self._waiting.append(waiter)
        if self._scheduler.wait(waiter, timeout):
            return True
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        return self._flag


class _Thread:
    _scheduler: Scheduler

    def __init__(
        self,
        group: None = None,
        target: Callable[..., Any] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self.name = name or "thread"
        self.daemon = daemon
        self._target, self._args, self._kwargs = target, tuple(args), kwargs or {}
        self._actor: Actor | None = None

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def start(self) -> None:
        self._actor = self._scheduler.spawn(self._scheduler.current.process, self.name, self.run)

    def join(self, timeout: float | None = None) -> None:
        if self._actor is not None:
            self._scheduler.join(self._actor, timeout)

    def is_alive(self) -> bool:
        return self._actor is not None and not self._actor.done


class _Local:
    """`threading.local`: attributes of each actor's own."""

    _scheduler: Scheduler

    def _mine(self) -> dict[str, Any]:
        current = self._scheduler.running
        if current is None:
            return self.__dict__
        found: dict[str, Any] = current.locals.setdefault(self, {})
        return found

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_"):
            return object.__getattribute__(self, name)
        try:
            return self._mine()[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self._mine()[name] = value

    def __delattr__(self, name: str) -> None:
        del self._mine()[name]


class SimpleQueue:
    """`queue.SimpleQueue`, of one scheduler (`of`)."""

    _scheduler: Scheduler

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiting: deque[Waiter] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._waiting:
            self._scheduler.wake(self._waiting.popleft())

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        while not self._items:
            waiter = Waiter()
            self._waiting.append(waiter)
            if not block or not self._scheduler.wait(waiter, timeout):
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
                if not self._items:
                    raise Empty
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items


class Future:
    """`concurrent.futures.Future` of a task that runs in an actor."""

    def __init__(self, scheduler: Scheduler, actor: Actor) -> None:
        self._scheduler = scheduler
        self._actor = actor

    def result(self, timeout: float | None = None) -> Any:
        if not self._scheduler.join(self._actor, timeout):
            raise TimeoutError
        if self._actor.error is not None:
            raise self._actor.error
        return self._actor.result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self._scheduler.join(self._actor, timeout):
            raise TimeoutError
        return self._actor.error

    def joins(self, timeout: float | None) -> bool:
        """Wait until it is done, for so long at most."""
        return self._scheduler.join(self._actor, timeout)

    def done(self) -> bool:
        return self._actor.done

    def cancel(self) -> bool:
        return False


class ThreadPoolExecutor:
    """`concurrent.futures.ThreadPoolExecutor`, of one scheduler; every task begins at once."""

    _scheduler: Scheduler

    def __init__(self, max_workers: int | None = None, thread_name_prefix: str = "pool") -> None:
        self._name = thread_name_prefix or "pool"
        self._futures: list[Future] = []
        self._shut = False

    def submit(self, task: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        if self._shut:
            raise CancelledError
        scheduler = self._scheduler
        actor = scheduler.spawn(scheduler.current.process, self._name, lambda: task(*args, **kwargs))
        actor.awaited = True
        future = Future(scheduler, actor)
        self._futures.append(future)
        return future

    def map(self, task: Callable[..., Any], *iterables: Iterable[Any]) -> Iterator[Any]:
        futures = [self.submit(task, *arguments) for arguments in zip(*iterables, strict=False)]
        return (future.result() for future in futures)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._shut = True
        for future in self._futures if wait else ():
            future.exception()

    def __enter__(self) -> ThreadPoolExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


class _Waited(NamedTuple):
    done: set[Future]
    not_done: set[Future]


def wait(futures: Iterable[Future], timeout: float | None = None) -> _Waited:
    """`concurrent.futures.wait`, for all of them."""
    done: set[Future] = set()
    not_done: set[Future] = set()
    for future in futures:
        (done if future.joins(timeout) else not_done).add(future)
    return _Waited(done, not_done)


class Uuid:
    """The module `uuid`, whose `uuid4` the seed decides."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def uuid4(self) -> real_uuid.UUID:
        return real_uuid.UUID(int=self._chance.getrandbits(128), version=4)

    def __getattr__(self, name: str) -> Any:
        return getattr(real_uuid, name)


class Secrets:
    """The module `secrets`, as the seed decides."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def randbits(self, bits: int) -> int:
        return self._chance.getrandbits(bits)

    def token_hex(self, size: int = 16) -> str:
        return f"{self._chance.getrandbits(8 * size):0{2 * size}x}"


def begin(scheduler: Scheduler) -> Callable[[Callable[[], None]], None]:
    """`metastore.threads.begin` on a scheduler: a task that nobody joins, and that does not raise."""

    def begin_task(task: Callable[[], None]) -> None:
        process: Process = scheduler.current.process
        scheduler.spawn(process, "task", task)

    return begin_task
