"""A connection to ZooKeeper that is used only when its server has shown to be of the right ensemble.

kazoo connects to whichever of its hosts answers. One of them may have been given to somebody else meanwhile, or be
a server that was restored from yesterday. So the first question of each connection, before any request of the session
goes out, is for what proves it (published.py); a server that cannot prove it is left, and the next one is tried. The
operator's password is told to nobody who has not proved it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped, KazooException, NoNodeError, SessionExpiredError
from kazoo.protocol.connection import AUTH_XID, ConnectionHandler
from kazoo.protocol.serialization import Auth, GetData, Sync

_XID = 1
"""Of the questions: those of the session come after them, and begin anew."""


class Proof(Protocol):
    """What a server has to show."""

    def asked_for(self) -> str:
        """The absolute path of the znode that proves it; empty where nothing is to be proved."""

    def refusal(self, data: bytes | None) -> str:
        """Why a server with this there, or without, is not the right one, else empty. It may read the root: the
        connection waits for it.
        """

    def unproved(self, why: str) -> None:
        """A server has answered, and did not say what is there. It must not block."""


class ProvedConnection(ConnectionHandler):
    """The connection of one client. `proved` is called, and must not block, when a server has proved what it is; kazoo
    says that it is connected before that. `auth`: (scheme, credential) of who the session acts for.
    """

    def __init__(
        self, client: KazooClient, proof: Proof, proved: Callable[[], None], auth: tuple[tuple[str, str], ...] = ()
    ) -> None:
        super().__init__(client, client._conn_retry.copy(), logger=client.logger)
        self._proof = proof
        self._proved = proved
        self._auth = auth

    def _connect(self, host: Any, hostip: Any, port: Any) -> Any:
        client = self.client
        seen, session = client.last_zxid, (client._session_id, client._session_passwd)
        try:
            timeouts = self._connect_and_prove(host, hostip, port)
        except SessionExpiredError:
            raise
        except Exception as error:
            # What a stranger has said of its session and of its changes means nothing to others. Nor is anything that
            # it may say a reason for kazoo's thread to end.
            client.last_zxid = seen
            client._session_id, client._session_passwd = session
            if isinstance(error, (ConnectionDropped, self.handler.timeout_exception)):
                raise
            raise ConnectionDropped(f"{host}:{port} does not speak as ZooKeeper does ({error!r})") from error
        for scheme, credential in self._auth:
            self._invoke(timeouts[1] / 1000.0, Auth(0, scheme, credential), xid=AUTH_XID)
        self._proved()
        return timeouts

    def _connect_and_prove(self, host: Any, hostip: Any, port: Any) -> Any:
        client = self.client
        path = self._proof.asked_for()
        try:
            timeouts = super()._connect(host, hostip, port)
        except SessionExpiredError as error:
            if not path or not client._session_id:
                raise
            # So says each server that has never heard of the session. It counts from one that proves to know; one that
            # does not leaves the session to the servers that do. What is begun here for the question ends by itself.
            self._socket.close()
            client._session_id, client._session_passwd = None, bytes(16)
            try:
                timeouts = super()._connect(host, hostip, port)
            except SessionExpiredError:
                raise ConnectionDropped(f"{host}:{port} gives nobody a session") from error
            self._prove(path, host, port, timeouts)
            raise
        if path:
            self._prove(path, host, port, timeouts)
        return timeouts

    def _prove(self, path: str, host: Any, port: Any, timeouts: Any) -> None:
        """Raise ConnectionDropped for a server that does not show that it is the right one."""
        refusal = self._proof.refusal(self._read_through(path, timeouts[1] / 1000.0))
        if refusal:
            raise ConnectionDropped(f"{host}:{port} is not asked: {refusal}")

    def _read_through(self, path: str, seconds: float) -> bytes | None:
        """What a znode holds, no older than the call; None if it is not there."""
        try:
            self._invoke(seconds, Sync(path), xid=_XID)
            self._submit(GetData(path, None), seconds, _XID)
            header, buffer, offset = self._read_header(seconds)
            if header.err == NoNodeError.code:
                return None
            if header.err or header.xid != _XID:
                self._proof.unproved(f"it does not show {path} (error {header.err})")
                raise ConnectionDropped(f"it does not say what it is ({header.err})")
            data, _ = GetData.deserialize(buffer, offset)
            return bytes(data or b"")
        except (KazooException, RuntimeError) as error:
            raise ConnectionDropped(f"it does not say what it is ({type(error).__name__})") from error
