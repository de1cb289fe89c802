"""Letting other agents read data files of this node's volumes: nothing but these, and a few at a time.

Each file is read by a thread of its own. One that hangs is left alone, and its volume is not read for others until it
comes back.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import select
import stat
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from queue import SimpleQueue
from typing import Any

from epochlake.jobs.agent.http_server import Refused, Streamed
from epochlake.jobs.agent.task_messages import is_stored_file
from epochlake.jobs.agent.volumes import local_path

logger = logging.getLogger(__name__)

MOST_READS = 8
"""Files that are read for others at the same time; who comes then is refused, and the coordinator copies by itself."""

CHUNK = 1 << 20
DEADLINE_SECONDS = 30.0

_NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)


class FileServing:
    """The reads that an agent answers. `served`: bytes that others have got."""

    def __init__(self, deadline: float = DEADLINE_SECONDS, opening: Callable[[str, str], int] | None = None) -> None:
        self.served = 0
        self._deadline = deadline
        self._opening = opening or open_below
        self._reading = 0
        self._hanging: Counter[str] = Counter()

    async def read(self, volume_uri: str, path: str, start: int, size: int | None, cluster_id: str) -> Streamed:
        """`size` bytes of a data file from `start` on, or all that follow. A negative start counts from the end.

        Raises Refused.
        """
        directory = local_path(volume_uri)
        if directory is None:
            raise Refused(409, "no-disk", "the volume is in an object store: read it there")
        if not is_stored_file(path):
            raise Refused(400, "malformed", f"{path[:200]!r} is no path of a data file")
        if self._hanging[volume_uri]:
            raise Refused(503, "hanging", f"a read of {volume_uri} has not come back")
        if self._reading >= MOST_READS:
            raise Refused(503, "too-many", f"{MOST_READS} files are being read already")
        self._reading += 1
        hand = _Hand()
        try:
            asked = hand.ask(lambda: _opened(self._opening(directory, path)))
            descriptor, total = await self._came(asked, volume_uri)
        except BaseException as error:
            self._reading -= 1
            hand.end()
            if isinstance(error, OSError):
                raise _refused(error, path) from None
            raise
        first = max(0, total + start) if start < 0 else min(start, total)
        last = total if size is None else min(total, first + size)

        def close() -> None:
            self._reading -= 1
            # By its thread, which may hang there; whatever it was asked before comes first.
            hand.end(lambda: os.close(descriptor))

        return Streamed(
            size=last - first,
            chunks=self._chunks(hand, volume_uri, descriptor, first, last),
            headers=(("Epochlake-Size", str(total)), ("Epochlake-Cluster", cluster_id)),
            close=close,
            straight=lambda to, seconds: self._straight(
                hand, volume_uri, _Sending(descriptor, first, last, to, seconds)
            ),
        )

    async def _chunks(
        self, hand: _Hand, volume_uri: str, descriptor: int, first: int, last: int
    ) -> AsyncIterator[bytes]:
        def read(start: int) -> asyncio.Future[Any]:
            return hand.ask(lambda: os.pread(descriptor, min(CHUNK, last - start), start))

        # The next chunk is read while this one is sent.
        ahead = read(first)
        while first < last:
            chunk = await self._came(ahead, volume_uri)
            if not chunk:
                raise ConnectionError("the file ends early")
            first += len(chunk)
            ahead = read(first)
            self.served += len(chunk)
            yield chunk

    async def _straight(self, hand: _Hand, volume_uri: str, sending: _Sending) -> None:
        """Have the system send a part of a file. Raises Refused when the disk hangs, OSError."""
        asked, before = hand.ask(sending.run), -1
        try:
            while before != sending.at:
                before = sending.at
                done, _ = await asyncio.wait([asked], timeout=self._deadline)
                if done:
                    asked.result()
                    return
            await self._came(asked, volume_uri)
        finally:
            sending.stopped = True
            self.served += sending.at - sending.first

    async def _came(self, asked: asyncio.Future[Any], volume_uri: str) -> Any:
        """What was asked of a thread that may hang. Raises Refused when it is late, and what it raises."""
        done, _ = await asyncio.wait([asked], timeout=self._deadline)
        if done:
            return asked.result()
        self._hanging[volume_uri] += 1
        asked.add_done_callback(lambda _: self._came_back(volume_uri))
        logger.warning("a read of %s has not come back within %g s", volume_uri, self._deadline)
        raise Refused(503, "hanging", f"a read of {volume_uri} has not come back")

    def _came_back(self, volume_uri: str) -> None:
        self._hanging[volume_uri] -= 1


class _Hand:
    """A thread that does one thing after another, and that nobody has to wait for."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._asked: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any] | None] | None] = SimpleQueue()
        threading.Thread(target=self._work, name="read-for-agent", daemon=True).start()

    def ask(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._asked.put((call, future))
        return future

    def end(self, last: Callable[[], None] = lambda: None) -> None:
        """Do one thing more, and end."""
        self._asked.put((last, None))
        self._asked.put(None)

    def _work(self) -> None:
        while (asked := self._asked.get()) is not None:
            call, future = asked
            result, failure = None, None
            try:
                result = call()
            except Exception as error:
                failure = error
            if future is not None:
                try:
                    self._loop.call_soon_threadsafe(_settle, future, result, failure)
                except RuntimeError:  # the agent has ended meanwhile
                    return


class _Sending:
    """Bytes from `first` to `last` of a file to a socket, by the system; `at` is how far it is."""

    def __init__(self, descriptor: int, first: int, last: int, to: int, seconds: float) -> None:
        self.first = self.at = first
        self.stopped = False
        self._descriptor = descriptor
        self._last = last
        self._seconds = seconds
        # Its own, so that it never is that of another connection.
        self._to = os.dup(to)

    def run(self) -> None:
        try:
            ready = select.poll()
            ready.register(self._to, select.POLLOUT)
            while self.at < self._last and not self.stopped:
                try:
                    sent = os.sendfile(self._to, self._descriptor, self.at, min(CHUNK, self._last - self.at))
                except BlockingIOError:
                    if not ready.poll(1000 * self._seconds):
                        raise TimeoutError("nobody takes what was asked for") from None
                    continue
                if not sent:
                    raise ConnectionError("the file ends early")
                self.at += sent
        finally:
            os.close(self._to)


def _settle(future: asyncio.Future[Any], result: Any, failure: Exception | None) -> None:
    if future.cancelled():
        return
    if failure is not None:
        future.set_exception(failure)
    else:
        future.set_result(result)


def open_below(directory: str, path: str) -> int:
    """Open a file for reading by a path below a directory, of which no step is a link. Raises OSError."""
    *steps, name = path.split("/")
    at = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for step in steps:
            below = os.open(step, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = below
        # A pipe that somebody has put there is not waited for.
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
    finally:
        os.close(at)


def _opened(descriptor: int) -> tuple[int, int]:
    """A descriptor with the size of its file; one of something else is closed. Raises OSError."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    return descriptor, found.st_size


def _refused(error: OSError, path: str) -> Refused:
    if error.errno in _NOTHING_THERE:
        return Refused(404, "no-file", f"there is no file {path}")
    if error.errno == errno.ELOOP:
        return Refused(403, "link", f"a step on the way to {path} is a link, which is not followed")
    return Refused(503, "volume", f"{path} cannot be read: {error.strerror}")
