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
from kazoo.exceptions import ConnectionDropped, KazooException, NoNodeError
from kazoo.protocol.connection import AUTH_XID, ConnectionHandler
from kazoo.protocol.serialization import Auth, GetData, Sync

_XID = 1
"""Of the questions: those of the session come after them, and begin anew."""


class Proof(Protocol):
    """What a server has to show."""

    def asked_for(self) -> str:
        """The absolute path of the znode that proves it; empty where nothing is to be proved."""

    def refusal(self, data: bytes | None) -> str:
        """Why a server with this there, or without, is not the right one, else empty. It must not block."""


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
        timeouts = super()._connect(host, hostip, port)
        seconds = timeouts[1] / 1000.0
        if path := self._proof.asked_for():
            refusal = self._proof.refusal(self._read_through(path, seconds))
            if refusal:
                # What a stranger has said of its session and of its changes means nothing to others.
                client.last_zxid = seen
                client._session_id, client._session_passwd = session
                raise ConnectionDropped(f"{host}:{port} is not asked: {refusal}")
        for scheme, credential in self._auth:
            self._invoke(seconds, Auth(0, scheme, credential), xid=AUTH_XID)
        self._proved()
        return timeouts

    def _read_through(self, path: str, seconds: float) -> bytes | None:
        """What a znode holds, no older than the call; None if it is not there."""
        try:
            self._invoke(seconds, Sync(path), xid=_XID)
            self._submit(GetData(path, None), seconds, _XID)
            header, buffer, offset = self._read_header(seconds)
            if header.err == NoNodeError.code:
                return None
            if header.err or header.xid != _XID:
                raise ConnectionDropped(f"it does not say what it is ({header.err})")
            data, _ = GetData.deserialize(buffer, offset)
            return bytes(data or b"")
        except (KazooException, RuntimeError) as error:
            raise ConnectionDropped(f"it does not say what it is ({type(error).__name__})") from error
