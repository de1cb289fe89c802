"""A server that is far away: what goes to and fro is passed on later, as over a long line. It needs no network."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

HOST = "127.0.0.1"


@contextmanager
def far(address: str, round_trip_seconds: float) -> Iterator[str]:
    """An address at which `host:port` answers so much later."""
    host, _, port = address.partition(":")
    loop = asyncio.new_event_loop()
    started: list[asyncio.Server] = []
    ready = threading.Event()

    async def serve() -> None:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                there, back = await asyncio.open_connection(host, int(port))
                await asyncio.gather(_pass_on(reader, back, half), _pass_on(there, writer, half))

        started.append(await asyncio.start_server(connected, HOST, 0))
        ready.set()

    half = round_trip_seconds / 2
    loop.create_task(serve())  # noqa: RUF006
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    ready.wait(30)
    try:
        yield f"{HOST}:{started[0].sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            loop.call_later(seconds, writer.write, data)
    loop.call_later(seconds, writer.close)
