"""A small HTTP server for JSON: what it reads is bounded in bytes, connections and seconds, whoever asks.

One request for each connection. It knows no route: what answers is given. Parsing is left to h11.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import parse_qsl, urlsplit

import h11
import msgspec
from epochlake.jobs.agent.messages import LARGEST, Refusal
from epochlake.jobs.agent.refusals import RefusalLog
from epochlake.jobs.agent.tls_listening import TlsListener

logger = logging.getLogger(__name__)

LARGEST_HEAD = 16 * 1024
MOST_CONNECTIONS = 256
SECONDS = 10.0
"""A request has to have come, and its answer to have gone, within so many seconds each."""

SLOWEST = 64 * 1024
"""Bytes in a second that whoever is sent a long answer has to take at least, on average."""

TLS = b"\x16\x03"
"""How a connection begins that is meant for TLS."""


class Request(msgspec.Struct, frozen=True):
    method: str
    path: str
    query: dict[str, str]
    body: bytes
    peer: str


class Response(msgspec.Struct, frozen=True):
    status: int
    body: bytes
    content_type: str = "application/json"


class Streamed(msgspec.Struct, frozen=True):
    """An answer of `size` bytes that come in chunks, each of which has to have gone within the seconds of an answer.

    What raises before the end of the chunks ends the connection. `straight`, where there is one, sends all of them to
    the descriptor of a socket that is not encrypted, with as many seconds for each part. `close` is called in any case.
    """

    size: int
    chunks: AsyncIterator[bytes]
    headers: tuple[tuple[str, str], ...] = ()
    status: int = 200
    close: Callable[[], None] = lambda: None
    straight: Callable[[int, float], Awaitable[None]] | None = None


class Refused(Exception):
    """A request that is not answered; `status` is HTTP's."""

    def __init__(self, status: int, code: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.refusal = Refusal(code, reason)


class _Gone(Exception):
    """Whoever asked has closed the connection, or lost it, before the request was there: nobody waits for an answer."""


Answering = Callable[[Request], Awaitable[Response | Streamed]]


class HttpServer:
    """Serves `answer` on one port. `token`: what requests have to bear, but for those of `open_to_all` paths."""

    def __init__(
        self,
        answer: Answering,
        *,
        token: str | None = None,
        open_to_all: frozenset[str] = frozenset(),
        tls: ssl.SSLContext | None = None,
        seconds: float = SECONDS,
    ) -> None:
        self.refused: Counter[str] = Counter()
        self.answered: Counter[int] = Counter()
        self._refusals = RefusalLog()
        self._answer = answer
        self._token = token
        self._open_to_all = open_to_all
        self._tls = tls
        self._seconds = seconds
        self._connections = 0
        self._server: asyncio.Server | TlsListener | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; the port, which is chosen when 0 was given."""
        if self._tls is None:
            self._server = await asyncio.start_server(self._serve, host, port, limit=LARGEST_HEAD)
            return int(self._server.sockets[0].getsockname()[1])
        self._server = TlsListener(
            self._serve,
            self._tls,
            self._not_shaken,
            limit=LARGEST_HEAD,
            seconds=self._seconds,
            most=MOST_CONNECTIONS,
        )
        return await self._server.start(host, port)

    def _not_shaken(self, peer: str, error: OSError) -> None:
        if isinstance(error, ConnectionResetError):  # as who only looks whether somebody listens
            self.refused["gone"] += 1
        else:
            reason = error.reason.replace("_", " ").lower() if isinstance(error, ssl.SSLError) else str(error)
            self._note(Refused(400, "tls", f"its TLS handshake failed: {reason}"), peer)

    async def stop(self) -> None:
        if isinstance(self._server, TlsListener):
            await self._server.stop()
        elif self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        self._refusals.end()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = str((writer.get_extra_info("peername") or ("?",))[0])
        self._connections += 1
        # What was drained has left this process: the end of a long answer is not cut off when the connection closes.
        # Over TLS, nothing at all counts as more than none.
        writer.transport.set_write_buffer_limits(high=0 if self._tls is None else 1, low=0)
        try:
            response = await self._respond(reader, writer, peer)
            self.answered[response.status] += 1
            if isinstance(response, Streamed):
                await self._send_chunks(writer, response)
                return
            async with asyncio.timeout(self._seconds):
                await self._send(writer, response)
        except (OSError, TimeoutError, _Gone):
            self.refused["gone"] += 1
        except Refused as refused:  # in the middle of an answer: what is left of it is not sent
            self._note(refused, peer)
        finally:
            self._connections -= 1
            writer.transport.abort() if self._stuck(writer) else writer.close()

    def _stuck(self, writer: asyncio.StreamWriter) -> bool:
        """Whether bytes wait for somebody who does not take them."""
        return writer.transport.get_write_buffer_size() > 0

    async def _respond(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str
    ) -> Response | Streamed:
        try:
            if self._connections > MOST_CONNECTIONS:
                raise Refused(503, "too-many", f"{MOST_CONNECTIONS} requests are being answered already")
            try:
                async with asyncio.timeout(self._seconds):
                    request = await self._read(reader, writer, peer)
            except TimeoutError:
                raise Refused(408, "slow", f"the request did not come within {self._seconds:g} s") from None
            async with asyncio.timeout(2 * self._seconds):
                return await self._answer(request)
        except Refused as refused:
            self._note(refused, peer)
            return Response(refused.status, msgspec.json.encode(refused.refusal))
        except TimeoutError:
            return Response(504, msgspec.json.encode(Refusal("late", "the answer took too long")))
        except _Gone:
            raise
        except Exception:
            logger.exception("a request of %s failed", peer)
            return Response(500, msgspec.json.encode(Refusal("failed", "the agent failed; its own log says why")))

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str) -> Request:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=LARGEST_HEAD)
        head: h11.Request | None = None
        body = bytearray()
        begins = True
        while True:
            try:
                event = connection.next_event()
            except h11.RemoteProtocolError as error:
                raise _not_understood(error.error_status_hint) from None
            if event is h11.NEED_DATA:
                received = await _received(reader)
                if begins and received.startswith(TLS):
                    raise Refused(400, "malformed", "it speaks TLS, which this agent was not started with")
                begins = False
                connection.receive_data(received)
            elif isinstance(event, h11.Request):
                head = event
                self._look_at(event)
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > LARGEST:
                    raise Refused(413, "too-large", f"a body has at most {LARGEST:,} bytes")
            elif isinstance(event, h11.EndOfMessage):
                break
            else:
                raise _Gone
        assert head is not None
        path, query = _parts(head)
        return Request(head.method.decode(), path, dict(parse_qsl(query)), bytes(body), peer)

    def _look_at(self, head: h11.Request) -> None:
        """Refuse by the head alone what need not be read: who has no token is not listened to."""
        if len(head.target) + sum(len(name) + len(value) for name, value in head.headers) > LARGEST_HEAD:
            raise _not_understood(431)
        headers = {name.decode().lower(): value.decode("latin-1") for name, value in head.headers}
        path, _ = _parts(head)
        if self._token is not None and path not in self._open_to_all:
            given = headers.get("authorization", "").encode("utf-8", "replace")
            if not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
                raise Refused(401, "token", "the request bears no token of this cluster")
        length = headers.get("content-length", "0")
        if len(length) > 12 or int(length) > LARGEST:
            raise Refused(413, "too-large", f"a body has at most {LARGEST:,} bytes")

    async def _send(self, writer: asyncio.StreamWriter, response: Response) -> None:
        writer.write(_head(response.status, response.content_type, len(response.body)) + response.body)
        await writer.drain()

    async def _send_chunks(self, writer: asyncio.StreamWriter, response: Streamed) -> None:
        """Send chunk by chunk: who does not take one in time, or all of them at a least pace, is not waited for."""
        try:
            async with asyncio.timeout(self._seconds + response.size / SLOWEST):
                writer.write(_head(response.status, "application/octet-stream", response.size, response.headers))
                if response.straight is not None and self._tls is None:
                    async with asyncio.timeout(self._seconds):
                        await writer.drain()
                    await response.straight(writer.get_extra_info("socket").fileno(), self._seconds)
                    return
                async for chunk in response.chunks:
                    writer.write(chunk)
                    async with asyncio.timeout(self._seconds):
                        await writer.drain()
                async with asyncio.timeout(self._seconds):
                    await writer.drain()
        except BaseException:
            # An answer that is cut off must not look like one that has ended.
            writer.transport.abort()
            raise
        finally:
            response.close()

    def _note(self, refused: Refused, peer: str) -> None:
        self.refused[refused.refusal.code] += 1
        self._refusals.note(peer, refused.refusal.code, refused.refusal.reason)


def _head(status: int, content_type: str, size: int, headers: tuple[tuple[str, str], ...] = ()) -> bytes:
    reason = {200: "OK"}.get(status, "Refused")
    lines = [f"HTTP/1.1 {status} {reason}", f"Content-Type: {content_type}", f"Content-Length: {size}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return ("\r\n".join([*lines, "Connection: close"]) + "\r\n\r\n").encode("ascii")


def _parts(head: h11.Request) -> tuple[str, str]:
    """Path and query of a target. Raises Refused."""
    try:
        parts = urlsplit(head.target.decode("ascii", "replace"))
    except ValueError:
        raise Refused(400, "malformed", "what is asked for is no path") from None
    return parts.path, parts.query


async def _received(reader: asyncio.StreamReader) -> bytes:
    """More bytes of a request. Raises _Gone when no more come."""
    try:
        received = await reader.read(64 * 1024)
    except OSError as error:
        raise _Gone from error
    if not received:
        raise _Gone
    return received


def _not_understood(hint: int) -> Refused:
    """The refusal of what is not HTTP, in words of ours: those of the parser repeat what somebody has sent."""
    said = {431: f"a head has at most {LARGEST_HEAD:,} bytes", 501: "this encoding of a body is not understood"}
    return Refused(hint or 400, "malformed", said.get(hint, "this is no request of HTTP/1.1"))
