"""Whatever a server says that does not prove what it is, the session stays as it was, for the servers that do.

The server here speaks as much of ZooKeeper's protocol as a connection begins with, in a thread of the test.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest
from epochlake.metastore.coordination.proved_connection import ProvedConnection
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped, NoAuthError, NoNodeError, SessionExpiredError

SESSION, PASSWORD, SEEN = 0x77, b"p" * 16, 9
THEIRS = 0x666
SYNC, READ = 9, 4
SEAL = b"seal"
OPERATOR = "super:secret"

Answer = Callable[[int, int], bytes | None]
"""The answer to a request, by its xid and what it asks; None: the connection is closed instead."""


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def session(seconds: int, number: int) -> bytes:
    return frame(struct.pack(">iiqi", 0, seconds * 1000, number, 16) + b"x" * 16 + b"\0")


def head(xid: int, error: int = 0) -> bytes:
    return struct.pack(">iqi", xid, 5, error)


def shows(data: bytes) -> Answer:
    def answer(xid: int, asked: int) -> bytes:
        held = b"/" if asked == SYNC else data
        return frame(head(xid) + struct.pack(">i", len(held)) + held + bytes(68))

    return answer


def fails(code: int) -> Answer:
    return lambda xid, asked: frame(head(xid, code)) if asked == READ else shows(b"")(xid, asked)


class Server:
    """`knows_sessions`: it takes any session over; else it says of each that it has expired."""

    def __init__(self, answer: Answer, *, knows_sessions: bool = True, begins: bool = True) -> None:
        self._answer = answer
        self._knows_sessions = knows_sessions
        self._begins = begins
        self.heard: list[bytes] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError, EOFError):
                self._converse(connection)

    def _converse(self, connection: socket.socket) -> None:
        asked_for = struct.unpack(">q", self._next(connection)[16:24])[0]
        is_known = self._begins if asked_for == 0 else self._knows_sessions
        connection.sendall(session(60, THEIRS) if is_known else session(0, 0))
        while is_known:
            request = self._next(connection)
            self.heard.append(request)
            answer = self._answer(*struct.unpack(">ii", request[:8]))
            if answer is None:
                return
            connection.sendall(answer)

    def _next(self, connection: socket.socket) -> bytes:
        return self._whole(connection, struct.unpack(">i", self._whole(connection, 4))[0])

    def _whole(self, connection: socket.socket, length: int) -> bytes:
        found = b""
        while len(found) < length:
            part = connection.recv(length - len(found))
            if not part:
                raise EOFError
            found += part
        return found


class Sealed:
    """A proof: the seal is there."""

    why = ""

    def asked_for(self) -> str:
        return "/seal"

    def refusal(self, data: bytes | None) -> str:
        return "" if data == SEAL else "it is another one"

    def unproved(self, why: str) -> None:
        self.why = why


class Client:
    """One that has a session already, and connects once."""

    def __init__(self, server: Server) -> None:
        self.kazoo = KazooClient(f"127.0.0.1:{server.port}", timeout=60.0, client_id=(SESSION, PASSWORD))
        self.kazoo.last_zxid = SEEN
        self.proof = Sealed()
        self.proved = 0
        self._port = server.port
        self._connection = ProvedConnection(self.kazoo, self.proof, self._count, (("digest", OPERATOR),))

    def _count(self) -> None:
        self.proved += 1

    def connect(self) -> None:
        try:
            self._connection._connect("127.0.0.1", "127.0.0.1", self._port)
        finally:
            self._connection._socket.close()

    @property
    def session(self) -> tuple[object, ...]:
        return (self.kazoo._session_id, self.kazoo._session_passwd, self.kazoo.last_zxid)


@pytest.fixture
def serving() -> Iterator[Callable[..., Server]]:
    with contextlib.ExitStack() as servers:

        def begin(answer: Answer, **how: bool) -> Server:
            server = Server(answer, **how)
            servers.callback(server.close)
            return server

        yield begin


@pytest.mark.parametrize(
    "answer",
    [
        shows(b"another"),
        fails(NoNodeError.code),
        fails(NoAuthError.code),
        lambda xid, asked: None,
        lambda xid, asked: frame(b"\1\2"),
        lambda xid, asked: frame(head(xid) + struct.pack(">i", 900) + b"short"),
        lambda xid, asked: frame(head(xid + 7) + b"of another request"),
    ],
    ids=["another", "nothing", "forbidden", "closed", "garbage", "torn", "of-another-request"],
)
@pytest.mark.parametrize("knows_sessions", [True, False])
def test_who_does_not_prove_what_it_is_changes_nothing_of_the_session(
    serving: Callable[..., Server], answer: Answer, *, knows_sessions: bool
) -> None:
    server = serving(answer, knows_sessions=knows_sessions)
    client = Client(server)
    before = client.session
    with pytest.raises(ConnectionDropped):
        client.connect()
    assert (client.session, client.proved) == (before, 0)
    assert server.heard, "it was asked what it is"
    assert not any(OPERATOR.encode() in request for request in server.heard)


def test_what_a_server_does_not_let_be_read_is_told(serving: Callable[..., Server]) -> None:
    client = Client(serving(fails(NoAuthError.code)))
    with pytest.raises(ConnectionDropped):
        client.connect()
    assert client.proof.why == "it does not show /seal (error -102)"


def test_who_gives_nobody_a_session_ends_none(serving: Callable[..., Server]) -> None:
    client = Client(serving(shows(SEAL), knows_sessions=False, begins=False))
    before = client.session
    with pytest.raises(ConnectionDropped, match="gives nobody a session"):
        client.connect()
    assert client.session == before


def test_a_session_has_expired_when_a_server_says_so_that_has_proved_what_it_is(
    serving: Callable[..., Server],
) -> None:
    client = Client(serving(shows(SEAL), knows_sessions=False))
    with pytest.raises(SessionExpiredError):
        client.connect()
    assert client.proved == 0


def test_who_proves_what_it_is_is_told_the_password_then(serving: Callable[..., Server]) -> None:
    server = serving(shows(SEAL))
    client = Client(server)
    client.connect()
    assert client.proved == 1
    assert [OPERATOR.encode() in request for request in server.heard] == [False, False, True]
