"""Asking another agent: one request, one bounded answer, within a time."""

from __future__ import annotations

import asyncio
import ssl

import h11
from epochlake.jobs.agent.messages import LARGEST
from epochlake.placement.errors import EpochlakeError, InvalidRequest

LARGEST_ANSWER = 16 * LARGEST


class AgentUnreachable(EpochlakeError):
    """An agent does not answer, or not as an agent does."""

    exit_code = 75


class AgentDistrusted(AgentUnreachable):
    """An agent is there, and TLS does not begin with it. `why`: in words that name no address."""

    why = ""


def _distrusted(address: str, error: ssl.SSLError) -> AgentDistrusted:
    if isinstance(error, ssl.SSLCertVerificationError):
        why = f"its certificate is not believed: {error.verify_message}"
    else:
        why = f"TLS does not begin: {(error.reason or str(error)).replace('_', ' ').lower()}"
    told = AgentDistrusted(
        f"the agent at {address} cannot be asked: {why}",
        hint="Both need certificates of one authority that are valid now, or neither TLS",
    )
    told.why = why
    return told


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`; an IPv6 host is in brackets. Raises InvalidRequest."""
    host, colon, port = address.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    strange = not host.isascii() or any(c.isspace() or not c.isprintable() or c in "/?#@" for c in host)
    if not colon or not host or strange or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise InvalidRequest(f"{address!r} is no address of an agent", hint="Give HOST:PORT")
    return host, int(port)


class HttpClient:
    """Asks agents. `token` and `tls` as the agents want them."""

    def __init__(self, *, token: str | None = None, tls: ssl.SSLContext | None = None) -> None:
        self._token = token
        self._tls = tls

    async def ask(
        self, address: str, path: str, body: bytes | None = None, *, timeout: float, largest: int = LARGEST_ANSWER
    ) -> tuple[int, bytes]:
        """Status and body of an answer. With a `body` it is a POST. Raises AgentUnreachable,
        of which AgentDistrusted is one, and InvalidRequest.
        """
        host, port = split_address(address)
        try:
            async with asyncio.timeout(timeout):
                return await self._ask(host, port, path, body, largest)
        except TimeoutError:
            raise AgentUnreachable(f"the agent at {address} did not answer within {timeout:g} s") from None
        except h11.ProtocolError:
            # In the words of the parser it would be about its own states.
            raise AgentUnreachable(f"the agent at {address} cannot be asked: what comes is no answer in HTTP") from None
        except ssl.SSLError as error:
            raise _distrusted(address, error) from None
        except OSError as error:
            raise AgentUnreachable(f"the agent at {address} cannot be asked: {error or type(error).__name__}") from None

    async def _ask(self, host: str, port: int, path: str, body: bytes | None, largest: int) -> tuple[int, bytes]:
        reader, writer = await asyncio.open_connection(host, port, ssl=self._tls)
        try:
            connection = h11.Connection(h11.CLIENT)
            headers = [("Host", host), ("Connection", "close"), ("Content-Length", str(len(body or b"")))]
            headers += [("Authorization", f"Bearer {self._token}")] if self._token is not None else []
            method = "GET" if body is None else "POST"
            sent = connection.send(h11.Request(method=method, target=path, headers=headers)) or b""
            sent += (connection.send(h11.Data(data=body)) or b"") if body else b""
            sent += connection.send(h11.EndOfMessage()) or b""
            writer.write(sent)
            await writer.drain()
            return await self._read(connection, reader, largest)
        finally:
            writer.transport.abort()

    async def _read(self, connection: h11.Connection, reader: asyncio.StreamReader, largest: int) -> tuple[int, bytes]:
        status, body = 0, bytearray()
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                received = await reader.read(64 * 1024)
                if not received:
                    raise ConnectionError("it closed the connection before its answer was there")
                connection.receive_data(received)
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > largest:
                    raise ConnectionError(f"the answer has more than {largest:,} bytes")
            elif isinstance(event, h11.EndOfMessage):
                return status, bytes(body)
            else:
                raise ConnectionError("it closed the connection")
