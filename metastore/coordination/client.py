"""The connection to ZooKeeper: one session of one process, every answer awaited for a bounded time.

Nothing here blocks for ever and nothing here is trusted. kazoo's own calls wait without an end while a
server is away (requests are queued until there is a connection again), so every request goes out asynchronously and
its answer is awaited until a deadline; after that the caller gets `CoordinationUnavailable`. A request whose answer
did not come may still be carried out later: callers say what that means for them.

State changes arrive in kazoo's connection thread, where blocking stops everything. The listener therefore only sets
flags; what has to be *done* after a reconnect (announce a lease again, look at the head again) runs in a worker thread
of this object, through `on_connected`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self

from epochlake.metastore.coordination.proved_connection import Proof, ProvedConnection
from epochlake.metastore.errors import ConfigurationError, CoordinationUnavailable
from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionDropped,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NoNodeError,
    OperationTimeoutError,
    RequestTimeoutError,
    SessionExpiredError,
    SessionMovedError,
    ThrottledOpError,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry

logger = logging.getLogger(__name__)

SESSION_TIMEOUT_SECONDS = 10.0
REQUEST_TIMEOUT_SECONDS = 5.0
CONNECT_TIMEOUT_SECONDS = 15.0

_RETRY_PAUSE_SECONDS = 0.05
_CLOSE_SECONDS = 2.0
_SEEK_SECONDS = 3.0
"""How long a session without a connection waits until it looks for its servers elsewhere, and looks again."""
_FIRST_HANDSHAKE_SECONDS = 1.0
_REFUSALS_BELIEVED = 3

# No answer, or one that says nothing about whether the request was carried out. `SessionExpiredError` includes
# `ConnectionClosedError`.
NO_ANSWER = (
    KazooTimeoutError,
    ConnectionLoss,
    ConnectionDropped,
    OperationTimeoutError,
    RequestTimeoutError,
    SessionExpiredError,
    SessionMovedError,
    ThrottledOpError,
    AuthFailedError,
)

Request = Callable[[KazooClient], Any]


class NotAllowed(CoordinationUnavailable):
    """An access list of ZooKeeper forbids what was asked: to ask again is of no use before somebody has changed it."""

    exit_code = 2


class Value(NamedTuple):
    """What a znode held: its data, and the version that a conditional `set` has to name."""

    data: bytes
    version: int


class Guide(Proof, Protocol):
    """What knows where the servers are, and what they have to show."""

    refused: str
    """Why the server that was met last was left, else empty."""

    @property
    def number(self) -> int:
        """Of what was published last, as far as it has been seen."""

    def look(self) -> str:
        """Where else they may be, as a connect string. It may raise, and take its time."""


class Coordination:
    """One ZooKeeper session, with all its paths below `base` (for instance `/epochlake/<cluster id>`).

    `connect` is a ZooKeeper connect string (`host:port,host:port`, optionally with a chroot, which is put before
    `base`). The constructor waits at most `connect_timeout` seconds for a server and raises `CoordinationUnavailable`
    if none answers; afterwards the object reconnects by itself, for as long as it is open, also with a new session when
    the old one expired. A connect string that cannot be read is a `ConfigurationError`. `operator` is whom the session
    acts for, as `name:password` of ZooKeeper's digest scheme, where it has to prove that. `guide`: where the servers
    are when they do not answer at `connect`; with it no server is asked that does not prove to be the right one.

    Guarantees: every method returns or raises within the time that it is given, whatever ZooKeeper does. Failure
    modes: an ephemeral znode vanishes with the session, at the latest `session_timeout` after the process died or
    was paused; whoever relies on one must not need it for safety.
    """

    def __init__(
        self,
        connect: str,
        base: str,
        *,
        session_timeout: float = SESSION_TIMEOUT_SECONDS,
        request_timeout: float = REQUEST_TIMEOUT_SECONDS,
        connect_timeout: float = CONNECT_TIMEOUT_SECONDS,
        operator: str = "",
        guide: Guide | None = None,
    ) -> None:
        self.connect_string = connect
        self.request_timeout = request_timeout
        hosts, _, chroot = connect.partition("/")
        self.base = "/" + "/".join(part for part in f"{chroot}/{base}".split("/") if part)
        try:
            self._threads = _ImpatientThreads()
            self.client = self._new_client(hosts, session_timeout, self._threads)
        except ValueError as error:
            raise ConfigurationError(
                f"cannot connect to ZooKeeper at {connect!r}: this is no connect string ({error})",
                hint="Write host:port, several of them with commas in between",
            ) from error
        self.guide = guide
        if guide is not None:
            auth = (("digest", operator),) if operator else ()
            self.client._connection = ProvedConnection(self.client, guide, self._connection_made, auth)
        elif operator:
            self.client.auth_data.add(("digest", operator))
        self._threads.refused_everywhere = self._forget_what_was_seen
        self.interruptions = 0
        self._connected = threading.Event()
        self._news = threading.Event()
        self._closed = threading.Event()
        self._ensured: dict[str, int] = {}
        self._callbacks: list[Callable[[], None]] = []
        self._callbacks_lock = threading.Lock()
        self._worker = threading.Thread(target=self._attend, name="epochlake-zookeeper", daemon=True)
        self.client.add_listener(self._state_changed)
        self._seek_seconds = min(_SEEK_SECONDS, connect_timeout / 3)
        if guide is not None:
            self._worker.start()  # it looks for servers elsewhere, also for the first time
        self.client.start_async()
        try:
            if not self._connected.wait(connect_timeout):
                raise self._unavailable("open a session", f"no server answered within {connect_timeout:g} s")
            self.call("create the base path", lambda client: client.ensure_path_async(self.base), connect_timeout)
        except BaseException:
            self.close()
            raise
        if guide is None:
            self._worker.start()
        self._seek_seconds = _SEEK_SECONDS

    def _new_client(self, hosts: str, session_timeout: float, handler: SequentialThreadingHandler) -> KazooClient:
        # The default policy of kazoo doubles the pause between two attempts up to an hour: after a long outage
        # nobody would come back.
        forever = KazooRetry(max_tries=-1, delay=0.05, backoff=1.5, max_jitter=0.2, max_delay=1.0)
        return KazooClient(
            hosts, timeout=session_timeout, handler=handler, connection_retry=forever, logger=_quiet_logger()
        )

    def _seek(self) -> None:
        assert self.guide is not None
        try:
            self.moved_to(self.guide.look())
        except Exception as error:
            logger.info("it is not known where else ZooKeeper may be: %s", error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session, so that its ephemeral znodes vanish at once. Never raises, takes a few seconds at most."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._news.set()
        # kazoo waits for at least ten seconds when the server does not answer; the session then ends by its timeout.
        stopping = threading.Thread(target=self._stop_client, name="epochlake-zookeeper-close", daemon=True)
        stopping.start()
        stopping.join(_CLOSE_SECONDS)

    def moved_to(self, connect: str) -> None:
        """The servers are at these addresses (host:port, …) from now on: they are used when the connection breaks.
        Paths stay below the chroot that the session began with, whatever somebody else names.
        """
        _, slash, chroot = self.connect_string.partition("/")
        connect = connect.partition("/")[0] + slash + chroot
        if connect == self.connect_string:
            return
        logger.info("ZooKeeper serves at %s now, and not at %s", connect, self.connect_string)
        self.connect_string = connect
        self.client.set_hosts(connect.partition("/")[0])

    @property
    def connected(self) -> bool:
        """True while there is a connection; False as soon as kazoo reports it SUSPENDED or LOST."""
        return self._connected.is_set()

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    @property
    def session_id(self) -> int | None:
        """The id of the current session, None while there is no connection."""
        identity = self.client.client_id
        return None if identity is None else identity[0]

    def wait_connected(self, timeout: float) -> bool:
        """Wait until there is a connection, at most `timeout` seconds. Did it come?"""
        return self._connected.wait(timeout)

    def path(self, *parts: str) -> str:
        """The absolute path of a znode below the base."""
        return "/".join((self.base, *parts))

    def on_connected(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` in a worker thread after every reconnect; returns the function that takes it off again.

        Between a connection loss and the call, watches are gone and, if the session expired, ephemeral znodes too.
        Calls can be merged when connections change quickly. Exceptions are logged: the next reconnect tries again.
        """
        with self._callbacks_lock:
            self._callbacks.append(callback)

        def remove() -> None:
            with self._callbacks_lock:
                if callback in self._callbacks:
                    self._callbacks.remove(callback)

        return remove

    def answer(self, asked: str, result: Any, timeout: float | None = None) -> Any:
        """Wait for the answer of one asynchronous request.

        Raises `CoordinationUnavailable` when none comes within `timeout` seconds (default: the request timeout), or
        when the connection breaks meanwhile. **The request may be carried out all the same, now or later.** Raises
        `NotAllowed` where an access list forbids it. Other answers that are errors (`NoNodeError`, `BadVersionError`,
        …) are raised as they are.
        """
        timeout = self.request_timeout if timeout is None else timeout
        try:
            return result.get(timeout=max(0.0, timeout))
        except KazooTimeoutError as error:
            raise self._unavailable(asked, f"no answer within {timeout:.3g} s") from error
        except NO_ANSWER as error:
            raise self._unavailable(asked, f"the connection broke ({type(error).__name__})") from error
        except NoAuthError as error:
            raise NotAllowed(
                f"ZooKeeper at {self.connect_string} does not let this process {asked}",
                hint="Look at the access lists of its znodes (`getAcl` in zkCli.sh): a cluster uses all below its "
                "chroot and [zookeeper] path, and the znodes at the top whose names begin with /epochlake-ensemble",
            ) from error

    def call(self, asked: str, request: Request, timeout: float | None = None) -> Any:
        """Send a request that may be carried out twice without harm, until it is answered.

        Connection losses are waited out, within `timeout` seconds (default: the request timeout); then
        `CoordinationUnavailable`. While there is no connection, a request waits in kazoo's queue and is sent first
        thing after the reconnect.
        """
        deadline = time.monotonic() + (self.request_timeout if timeout is None else timeout)
        while True:
            try:
                return self.answer(asked, request(self.client), deadline - time.monotonic())
            except NotAllowed:
                raise
            except CoordinationUnavailable:
                left = deadline - time.monotonic()
                if left <= 0 or self._closed.is_set():
                    raise
                self._closed.wait(min(_RETRY_PAUSE_SECONDS, left))

    def barrier(self, path: str, timeout: float | None = None) -> Value | None:
        """A read barrier: what the znode at the absolute `path` holds, no older than the moment of the call.

        `sync` and read are sent together and answered in order, so that it takes one round trip. None if there is no
        such znode. Raises `CoordinationUnavailable` within `timeout` seconds.
        """

        try:
            data, stat = self.call(f"read {path}", _after_sync(path, lambda client: client.get_async(path)), timeout)
        except NoNodeError:
            return None
        return Value(data, stat.version)

    def children(self, path: str, timeout: float | None = None) -> list[str]:
        """Names of the children of the absolute `path`, no older than the call; empty if it is not there."""

        def listing(client: KazooClient) -> Any:
            return client.get_children_async(path)

        try:
            names: list[str] = self.call(f"list {path}", _after_sync(path, listing), timeout)
        except NoNodeError:
            return []
        return names

    def owner(self, path: str, timeout: float | None = None) -> int | None:
        """The session that the ephemeral znode at `path` belongs to, no older than the call; None if it is gone."""

        def look(client: KazooClient) -> Any:
            return client.exists_async(path)

        stat = self.call(f"look at {path}", _after_sync(path, look), timeout)
        return None if stat is None else stat.ephemeralOwner

    def read_all(self, paths: list[str], timeout: float | None = None) -> list[tuple[bytes, Any] | None]:
        """Data and stat of many znodes in one round trip; None for those that are gone."""
        deadline = time.monotonic() + (self.request_timeout if timeout is None else timeout)
        results = [(path, self.client.get_async(path)) for path in paths]
        found: list[tuple[bytes, Any] | None] = []
        for path, result in results:
            try:
                found.append(self.answer(f"read {path}", result, deadline - time.monotonic()))
            except NoNodeError:
                found.append(None)
        return found

    def ensure(self, name: str, timeout: float | None = None) -> str:
        """The absolute path of `name` below the base, created when it is missing; asked once per session."""
        path = self.path(name)
        session = self.session_id
        if session is None or self._ensured.get(path) != session:
            self.call(f"create {path}", lambda client: client.ensure_path_async(path), timeout)
            # Per session: an ensemble that was set up anew knows neither our session nor our paths.
            if session is not None:
                self._ensured[path] = session
        return path

    def forget(self, path: str) -> None:
        """Create an `ensure`d path again when it is needed next: it has gone, somebody has deleted it."""
        self._ensured.pop(path, None)

    def _forget_what_was_seen(self) -> None:
        """Take any server, however far it is. In kazoo's connection thread.

        A server refuses a client that has seen newer changes than itself, so that it looks for a more recent one. When
        all of them do, again and again, ZooKeeper has lost its data or was restored, and the client would stay out for
        as long as it lives. Nothing here needs what it saw before: reads go behind a `sync`.
        """
        self.client.last_zxid = 0

    def remove_later(self, directory: str, prefix: str) -> None:
        """Delete the children of `directory` that start with `prefix`, as soon as ZooKeeper answers, in the background.

        For znodes that a request without an answer may have left behind: an ephemeral contender of a lock would
        otherwise block everybody for as long as this process lives. Ends when it succeeded, or with this object.
        """

        def remove() -> None:
            while not self._closed.is_set():
                try:
                    for name in self.children(directory):
                        if name.startswith(prefix):
                            self._delete_if_there(f"{directory}/{name}")
                    return
                except (CoordinationUnavailable, KazooException):
                    self._closed.wait(_RETRY_PAUSE_SECONDS)

        if not self._closed.is_set():
            threading.Thread(target=remove, name="epochlake-zookeeper-sweep", daemon=True).start()

    def _delete_if_there(self, path: str) -> None:
        try:
            self.call(f"delete {path}", lambda client: client.delete_async(path))
        except NoNodeError:
            return

    def _state_changed(self, state: str) -> None:
        # In kazoo's connection thread: set flags, nothing else.
        if state == KazooState.CONNECTED:
            # With a guide the server has to show first that it is the right one.
            if self.guide is None:
                self._connection_made()
            return
        self._connected.clear()
        self.interruptions += 1

    def _connection_made(self) -> None:
        self._threads.handshakes = 0
        self._connected.set()
        self._news.set()

    def _attend(self) -> None:
        while True:
            if not self._news.wait(None if self.guide is None else self._seek_seconds):
                if not self._connected.is_set():
                    self._seek()
                continue
            self._news.clear()
            if self._closed.is_set():
                return
            with self._callbacks_lock:
                callbacks = list(self._callbacks)
            for callback in callbacks:
                try:
                    callback()
                except Exception as error:
                    logger.warning("after a reconnect to ZooKeeper: %s", error)

    def _stop_client(self) -> None:
        try:
            self.client.stop()
            self.client.close()
        except Exception as error:
            logger.debug("closing the ZooKeeper session: %s", error)

    def _unavailable(self, asked: str, reason: str) -> CoordinationUnavailable:
        hint = "Try again when the server is up"
        if self.guide is not None and self.guide.refused:
            reason += f"; a server was not asked: {self.guide.refused}"
            hint += "; where the published ensemble is gone for good, see `metadata reconfigure --coordination --adopt`"
        return CoordinationUnavailable(
            f"could not {asked} in ZooKeeper at {self.connect_string}: {reason}. Nothing that was committed "
            "depends on it",
            hint=hint,
        )


class _ImpatientThreads(SequentialThreadingHandler):
    """kazoo's threads and sockets, with a handshake that is given up and tried again.

    A server that is starting accepts connections before it can answer, and can lose the first request of one. kazoo
    would wait for that answer as long as for a session to expire; here it is a second, then two, then four, until
    there is a connection again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.handshakes = 0
        self.refused_everywhere: Callable[[], None] = lambda: None
        self._servers: dict[Any, int] = {}

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        connection = super().create_connection(*args, **kwargs)
        if self.handshakes == 0:
            self._servers.clear()
        self.handshakes += 1
        server = kwargs.get("address")
        self._servers[server] = self._servers.get(server, 0) + 1
        # Every server that takes connections has taken several of them, and no handshake has come to an end.
        if min(self._servers.values()) > _REFUSALS_BELIEVED:
            self.refused_everywhere()
        return connection

    def select(self, readable: Any, writable: Any, exceptional: Any, timeout: float | None = None) -> Any:
        waits_for_an_answer = len(readable) == 1 and self.handshakes > 0
        if waits_for_an_answer and timeout is not None:
            timeout = min(timeout, _FIRST_HANDSHAKE_SECONDS * 2 ** min(self.handshakes - 1, 10))
        return super().select(readable, writable, exceptional, timeout)


class _SyncedAnswer:
    """The answer of a read that was sent behind a `sync`, good only if the `sync` was."""

    def __init__(self, sync: Any, read: Any) -> None:
        self._sync = sync
        self._read = read

    def get(self, timeout: float) -> Any:
        deadline = time.monotonic() + timeout
        self._sync.get(timeout=timeout)
        return self._read.get(timeout=max(0.0, deadline - time.monotonic()))


def _after_sync(path: str, read: Request) -> Request:
    def request(client: KazooClient) -> _SyncedAnswer:
        # Sent together: a session's requests are carried out in order.
        return _SyncedAnswer(client.sync_async(path), read(client))

    return request


def _quiet_logger() -> logging.Logger:
    # kazoo warns at every attempt to connect; what matters is reported by the error of the call that needed it.
    kazoo_logger = logging.getLogger("epochlake.kazoo")
    if kazoo_logger.level == logging.NOTSET:
        kazoo_logger.setLevel(logging.ERROR)
    return kazoo_logger
