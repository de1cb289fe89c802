"""The tasks that an agent was asked for: orders and what became of them, and the process that does them.

An order lives as long as somebody asks about it. The process is started for the first task, and ended when there was
none for a while; one that says nothing hangs, and is killed, and what it had to do is not done.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import sys
import time
from collections import Counter

import msgspec
from epochlake.jobs.agent.processes import ended
from epochlake.jobs.agent.task_messages import (
    FromProcess,
    ResolvedPlace,
    Task,
    TaskOrder,
    TaskResult,
    TasksSeen,
    ToProcess,
    Work,
)
from epochlake.placement.decoding import decodable

logger = logging.getLogger(__name__)

PROCESS = "epochlake.jobs.agent.task_process"

MOST_OPEN = 512
"""Tasks that are not done yet, of all orders. Who asks for more does them himself."""

MOST_ORDERS = 256
"""Orders that are remembered."""

ASKED_SECONDS = 60.0
"""An order that nobody has asked about for so long is given up."""

LONG_POLL_SECONDS = 5.0
SILENT_SECONDS = 60.0
IDLE_SECONDS = 30.0


class TaskPlaces(msgspec.Struct, frozen=True):
    """A task with where its replica tables are."""

    task: Task
    target: ResolvedPlace
    source: ResolvedPlace | None


class _Order:
    def __init__(self) -> None:
        self.results: list[TaskResult] = []
        self.open: dict[int, int] = {}
        """The number of the task -> the key of its work."""
        self.asked_at = time.monotonic()
        self.changed = asyncio.Event()

    def ended(self, number: int, result: TaskResult) -> None:
        if self.open.pop(number, None) is not None:
            self.results.append(result)
            self.changed.set()


class Tasking:
    """The orders of one agent. `words`: how the process finds the configuration, and asks other agents."""

    def __init__(
        self,
        words: list[str],
        *,
        asked_seconds: float = ASKED_SECONDS,
        silent_seconds: float = SILENT_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._words = words
        self._asked_seconds = asked_seconds
        self._silent_seconds = silent_seconds
        self._idle_seconds = idle_seconds
        self._orders: dict[str, _Order] = {}
        self._works: dict[int, tuple[_Order, int]] = {}
        self._stopping: list[int] = []
        """The keys of works that nobody waits for, of which the process has not been told yet."""
        self._keys = itertools.count(1)
        self._process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._counts: Counter[str] = Counter()
        self._received = self._received_before = 0
        self.signs = 0
        self._last_signs = 0
        self._idle_since = time.monotonic()

    @property
    def pid(self) -> int | None:
        """The process that does tasks, while there is one."""
        return None if self._process is None else self._process.pid

    def seen(self, served: int) -> TasksSeen:
        return TasksSeen(self._counts["done"], self._counts["undone"], self._received_before + self._received, served)

    def knows(self, order_id: str) -> bool:
        return order_id in self._orders

    def has_room(self, tasks: int) -> bool:
        """Whether so many more tasks may be asked for. Orders that nobody asks about make room."""
        self._give_up_forgotten()
        return len(self._works) + tasks <= MOST_OPEN and len(self._orders) < MOST_ORDERS

    async def begin(self, order: TaskOrder, tasks: list[TaskPlaces]) -> None:
        """Take an order that is not known yet."""
        made = self._orders[order.order_id] = _Order()
        works = []
        for one in tasks:
            key = next(self._keys)
            made.open[one.task.number] = key
            self._works[key] = (made, one.task.number)
            task = one.task
            works.append(
                Work(
                    key=key,
                    kind=task.kind,
                    file=task.file,
                    low=task.low,
                    high=task.high,
                    target=one.target,
                    source=one.source,
                    pace=order.pace,
                    bytes_per_second=order.bytes_per_second,
                    merge=task.merge,
                )
            )
        if works:
            await self._tell([ToProcess(work=work) for work in works])

    def refuse(self, order_id: str, number: int, why: str) -> None:
        """Say that a task of a known order is not done here."""
        order = self._orders[order_id]
        order.open.setdefault(number, 0)
        order.ended(number, TaskResult(number, why=why))

    async def results(self, order_id: str, after: int) -> tuple[tuple[TaskResult, ...], bool]:
        """The results of a known order after so many, waited for a while when there are none; whether it goes on."""
        order = self._orders[order_id]
        order.asked_at = time.monotonic()
        if len(order.results) <= after and order.open:
            order.changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(order.changed.wait(), LONG_POLL_SECONDS)
            order.asked_at = time.monotonic()
        if not order.open:
            # Who does not get this answer asks for all of it again, and what was stored is there.
            self._orders.pop(order_id, None)
        return tuple(order.results[after:]), bool(order.open)

    async def cancel(self, order_id: str) -> None:
        """Forget an order; what is under way for it ends at its next sign."""
        order = self._orders.pop(order_id, None)
        if order is not None:
            self._forget(order)
            await self._tell_to_stop()

    async def run(self) -> None:
        """Give up what nobody asks about, and end a process that has nothing to do; until cancelled."""
        try:
            while True:
                await asyncio.sleep(min(1.0, self._idle_seconds, self._asked_seconds))
                self._give_up_forgotten()
                await self._tell_to_stop()
                if self._works:
                    self._idle_since = time.monotonic()
                elif self._process is not None and time.monotonic() - self._idle_since > self._idle_seconds:
                    await self._end()
        finally:
            await self._end()

    def _give_up_forgotten(self) -> None:
        now = time.monotonic()
        for order_id, order in list(self._orders.items()):
            if now - order.asked_at > self._asked_seconds:
                self._forget(self._orders.pop(order_id))

    def _forget(self, order: _Order) -> None:
        """Make room at once; the process is told to stop afterwards."""
        keys = [key for key in order.open.values() if key]
        for key in keys:
            self._works.pop(key, None)
        self._stopping += keys
        order.open.clear()
        order.changed.set()

    async def _tell_to_stop(self) -> None:
        keys, self._stopping = tuple(self._stopping), []
        if keys and self._process is not None:
            await self._tell([ToProcess(stop=keys)])

    async def _tell(self, messages: list[ToProcess]) -> None:
        try:
            async with self._starting:
                if self._process is None:
                    await self._start()
            process = self._process
            if process is None or process.stdin is None:
                raise OSError("it has ended already")
            process.stdin.write(b"".join(msgspec.json.encode(message) + b"\n" for message in messages))
            await process.stdin.drain()
        except OSError as error:
            self._none_done(f"no process can do tasks here: {error}")

    async def _start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", PROCESS, *self._words),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 20,
        )
        self._idle_since = time.monotonic()
        self._listening = asyncio.ensure_future(self._listen(self._process))

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        why = "the process that does tasks has ended"
        try:
            while line := await asyncio.wait_for(process.stdout.readline(), self._silent_seconds):
                self._heard(msgspec.json.decode(line, type=decodable(FromProcess)))
        except TimeoutError:
            why = f"the process that does tasks said nothing for {self._silent_seconds:g} s, and was killed"
            logger.warning("%s", why)
        except (ValueError, msgspec.MsgspecError) as error:
            why = f"the process that does tasks said what cannot be understood: {error}"
            logger.warning("%s", why)
        finally:
            if self._process is process:
                self._process = None
                self._received_before, self._received = self._received_before + self._received, 0
                self._none_done(why)
            await ended(process)

    def _heard(self, said: FromProcess) -> None:
        self._received = said.received
        # Not the number itself: a process that was started again begins with none.
        self.signs += said.signs != self._last_signs
        self._last_signs = said.signs
        if said.key is None:
            return
        order, number = self._works.pop(said.key, (None, 0))
        self._counts["undone" if said.why else "done"] += 1
        if order is None:
            logger.info("a task has ended whose order was given up before: %s", said.why or "done")
            return
        if said.why:
            logger.warning("a task was not done: %s", said.why)
        order.ended(number, TaskResult(number, said.result, said.why))

    def _none_done(self, why: str) -> None:
        """Nothing of what is open will be done."""
        works, self._works = self._works, {}
        self._counts["undone"] += len(works)
        for order, number in works.values():
            order.ended(number, TaskResult(number, why=why))

    async def _end(self) -> None:
        """Let the process end. What it has stored is whole, and what it has not is nothing."""
        process, self._process = self._process, None
        if process is not None:
            self._received_before, self._received = self._received_before + self._received, 0
            await ended(process)
