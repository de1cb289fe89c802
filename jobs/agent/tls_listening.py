"""Listening for connections over TLS, so that a handshake that fails is seen: servers of asyncio say nothing of it."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 1.0
"""How long nobody is let in after the system had no descriptor for one more."""

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class TlsListener:
    """Serves each connection whose handshake has ended well, within `seconds`; `failed` is told of the others.

    At most `most` handshakes go on at once. `limit`: of the readers, as `asyncio.start_server` has it.
    """

    def __init__(
        self,
        serve: Serve,
        tls: ssl.SSLContext,
        failed: Callable[[str, OSError], None],
        *,
        limit: int,
        seconds: float,
        most: int,
    ) -> None:
        self._serve = serve
        self._tls = tls
        self._failed = failed
        self._limit = limit
        self._seconds = seconds
        self._most = most
        self._listening: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen on all addresses of the host; the port of the first, chosen when 0 was given. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
                listening = socket.create_server((address[0], address[1]), family=family, backlog=100)
                listening.setblocking(False)
                self._listening.append(listening)
        except OSError:
            await self.stop()
            raise
        for listening in self._listening:
            self._begin(self._accept(listening))
        return int(self._listening[0].getsockname()[1])

    async def stop(self) -> None:
        """Let nobody in any more; what is being served goes on."""
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listening in self._listening:
            listening.close()
        self._listening.clear()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listening)
            except ConnectionError:  # it was gone again
                continue
            except OSError as error:
                logger.warning("nobody is let in for %g s: %s", PAUSE_SECONDS, error)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            if len(self._tasks) > self._most:
                connection.close()
                self._failed(str(address[0]), OSError(f"{self._most} handshakes are going on already"))
                continue
            self._begin(self._shake_hands(connection, str(address[0])))

    async def _shake_hands(self, connection: socket.socket, peer: str) -> None:
        loop = asyncio.get_running_loop()

        def protocol() -> asyncio.StreamReaderProtocol:
            reader = asyncio.StreamReader(limit=self._limit, loop=loop)
            return asyncio.StreamReaderProtocol(reader, self._serve, loop=loop)

        connection.setblocking(False)
        try:
            await loop.connect_accepted_socket(protocol, connection, ssl=self._tls, ssl_handshake_timeout=self._seconds)
        except OSError as error:  # of which those of TLS are
            self._failed(peer, error)
        except BaseException:
            connection.close()
            raise

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
