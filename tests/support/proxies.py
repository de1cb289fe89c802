"""Proxies in front of real ZooKeeper servers: the way of one process to them, which can be cut, silent and slow.

They listen on loopback, in a thread of their own, until they are closed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, Self

HOST = "127.0.0.1"
PIECE = 1 << 16


class Way:
    """One process's way to one server."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._open: set[asyncio.StreamWriter] = set()
        self._is_cut = False
        self._delay = 0.0
        self._there, self._back = asyncio.Event(), asyncio.Event()
        self._there.set()
        self._back.set()
        self.port = 0

    async def listen(self) -> None:
        """Begin to take connections, on a free port."""
        server = await asyncio.start_server(self._accept, HOST, 0)
        self.port = server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Break all connections, and take no other."""
        self._is_cut = True
        for writer in list(self._open):
            writer.transport.abort()

    def hush(self, *, answers_only: bool) -> None:
        """Connections stay open, and what is sent is held back until the way is mended, or only what is answered."""
        self._back.clear()
        if not answers_only:
            self._there.clear()

    def slow(self, seconds: float) -> None:
        """Each piece comes so much later from now on."""
        self._delay = seconds

    def mend(self) -> None:
        """Everything passes again; what was held back goes on its way, also what a dead process has sent."""
        self._is_cut, self._delay = False, 0.0
        self._there.set()
        self._back.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        try:
            answers, requests = await asyncio.open_connection(HOST, self._to)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, requests}
        try:
            await asyncio.gather(
                self._pass_on(reader, requests, self._there), self._pass_on(answers, writer, self._back)
            )
        except OSError:
            writer.transport.abort()
            requests.transport.abort()
        finally:
            self._open -= {writer, requests}
            writer.close()
            requests.close()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, may_pass: asyncio.Event
    ) -> None:
        while piece := await reader.read(PIECE):
            if self._delay:
                await asyncio.sleep(self._delay)
            await may_pass.wait()
            writer.write(piece)
            await writer.drain()
        # Who has ended is seen to end, after the last of what it has sent.
        if writer.can_write_eof() and not writer.is_closing():
            writer.write_eof()


class Proxies:
    """Ways to servers; use it in a `with`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def ways(self, ports: Sequence[int]) -> list[Way]:
        """New ways to the servers at these ports."""
        return self._do(self._listening(ports))

    def cut(self, ways: Sequence[Way]) -> None:
        self._each(ways, lambda way: way.cut())

    def hush(self, ways: Sequence[Way], *, answers_only: bool) -> None:
        self._each(ways, lambda way: way.hush(answers_only=answers_only))

    def slow(self, ways: Sequence[Way], seconds: float) -> None:
        self._each(ways, lambda way: way.slow(seconds))

    def mend(self, ways: Sequence[Way]) -> None:
        self._each(ways, lambda way: way.mend())

    async def _listening(self, ports: Sequence[int]) -> list[Way]:
        ways = [Way(port) for port in ports]
        for way in ways:
            await way.listen()
        return ways

    def _each(self, ways: Sequence[Way], what: Any) -> None:
        async def do() -> None:
            for way in ways:
                what(way)

        self._do(do())

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _do(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result()
