"""Leases: what pipelines are alive, at which epoch, reading and writing which tables.

A lease is an ephemeral znode, so it ends with its process, however that ends. It is shown to people
(`pipeline list`) and keeps cleaning up (vacuum) away from what a live pipeline may still read; nothing that was
acknowledged depends on it. While a process is cut off for longer than its session lives, its lease is gone and comes
back with the connection: who cleans up must therefore leave a margin of time as well.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from typing import Any

import msgspec
from epochlake.metastore.coordination.client import Coordination
from epochlake.metastore.errors import CoordinationUnavailable, UnknownFormat
from epochlake.placement.decoding import decodable
from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError

logger = logging.getLogger(__name__)

LEASES = "leases"


class Lease(msgspec.Struct, frozen=True, omit_defaults=True):
    """A live pipeline. `tables` are full names, `started_at` is in milliseconds since 1970 by the clock of `host`.

    `reads_from`: the earliest time that it reads rows as of, in the same milliseconds; None where it reads none.
    `features`: what its version supports; None where it does not say, as versions before features do not.
    """

    name: str
    pipeline_id: str
    epoch: int
    tables: tuple[str, ...]
    started_at: int
    host: str
    pid: int
    reads_from: int | None = None
    features: tuple[str, ...] | None = None

    @property
    def needs_from(self) -> int:
        """What was taken out after this time it may still read."""
        return self.started_at if self.reads_from is None else min(self.started_at, self.reads_from)


class Announcement:
    """A lease that is kept up: announced again when the session expired, until `release`."""

    def __init__(self, coordination: Coordination, lease: Lease) -> None:
        self._coordination = coordination
        self._lease = lease
        self._name = uuid.uuid4().hex
        self._writing = threading.Lock()
        self._released = False
        self._session: int | None = None
        self._unsubscribe = coordination.on_connected(self._announce_again)

    @property
    def lease(self) -> Lease:
        """What is, or after the next reconnect will be, announced."""
        return self._lease

    @property
    def held(self) -> bool:
        """Whether the znode was written in the session that there is a connection for; else it has ended, or may."""
        return self._coordination.connected and self._session == self._coordination.session_id

    def update(
        self, epoch: int, tables: tuple[str, ...], timeout: float | None = None, reads_from: int | None = None
    ) -> None:
        """Announce that the pipeline went on to `epoch`, uses `tables`, and reads rows as of `reads_from` and later.

        Raises `CoordinationUnavailable` within `timeout` seconds; the next reconnect then announces the new epoch.
        """
        self._lease = msgspec.structs.replace(self._lease, epoch=epoch, tables=tables, reads_from=reads_from)
        self.write(timeout)

    def release(self) -> None:
        """End the lease. Never raises and does not wait."""
        if self._released:
            return
        self._released = True
        self._unsubscribe()
        self._delete()

    def write(self, timeout: float | None = None) -> None:
        """Bring the znode to what it should be, in the present session."""
        coordination = self._coordination
        deadline = time.monotonic() + (coordination.request_timeout if timeout is None else timeout)

        def left() -> float:
            return deadline - time.monotonic()

        if not self._writing.acquire(timeout=max(0.0, left())):
            raise CoordinationUnavailable(
                f"could not announce pipeline {self._lease.name!r}: ZooKeeper at {coordination.connect_string} "
                "does not answer",
                hint="Try again when the server is up",
            )
        try:
            while not self._released:
                directory = coordination.ensure(LEASES, left())
                path = f"{directory}/{self._name}"
                data = msgspec.json.encode(self._lease)
                session = coordination.session_id
                try:
                    if coordination.owner(path, left()) == session:
                        coordination.call(f"update {path}", _set(path, data), left())
                    else:
                        # Not there, or of a session of ours that ended.
                        _delete_if_there(coordination, path, left())
                        coordination.call(f"create {path}", _create(path, data), left())
                    self._session = session
                    break
                except NoNodeError:
                    coordination.forget(directory)
                except NodeExistsError:
                    continue
        finally:
            self._writing.release()
        if self._released:
            self._delete()

    def _announce_again(self) -> None:
        if not self._released:
            self.write()

    def _delete(self) -> None:
        if self._coordination.closed:
            return
        directory = self._coordination.path(LEASES)

        def check(result: Any) -> None:
            if not result.successful() and not isinstance(result.exception, NoNodeError):
                self._coordination.remove_later(directory, self._name)

        self._coordination.client.delete_async(f"{directory}/{self._name}").rawlink(check)


def announce(coordination: Coordination, lease: Lease, timeout: float | None = None) -> Announcement:
    """Announce a live pipeline. Raises `CoordinationUnavailable` within `timeout` seconds; then none is announced."""
    announcement = Announcement(coordination, lease)
    try:
        announcement.write(timeout)
    except BaseException:
        announcement.release()
        raise
    return announcement


def live_leases(coordination: Coordination, timeout: float | None = None) -> list[Lease]:
    """The leases of all live pipelines, the oldest first, no older than the moment of the call.

    Raises `UnknownFormat` when a lease cannot be read: a pipeline that is not understood is there all the same.
    """
    directory = coordination.path(LEASES)
    deadline = time.monotonic() + (coordination.request_timeout if timeout is None else timeout)
    paths = [f"{directory}/{name}" for name in coordination.children(directory, timeout)]
    found = coordination.read_all(paths, deadline - time.monotonic())
    leases = [decode(path, answer[0]) for path, answer in zip(paths, found, strict=True) if answer is not None]
    return sorted(leases, key=lambda lease: (lease.started_at, lease.pipeline_id))


def decode(path: str, data: bytes) -> Lease:
    """The lease that is kept at `path`. Raises UnknownFormat."""
    try:
        return msgspec.json.decode(data, type=decodable(Lease))
    except msgspec.MsgspecError as error:
        raise UnknownFormat(
            f"could not list the live pipelines: the lease {path} cannot be read ({error}). It was written by "
            "another version of Epochlake",
            hint="Use that version, or wait until its pipeline has ended",
        ) from error


def _set(path: str, data: bytes) -> Any:
    def request(client: KazooClient) -> Any:
        return client.set_async(path, data)

    return request


def _create(path: str, data: bytes) -> Any:
    def request(client: KazooClient) -> Any:
        return client.create_async(path, data, ephemeral=True)

    return request


def _delete_if_there(coordination: Coordination, path: str, timeout: float) -> None:
    try:
        coordination.call(f"delete {path}", lambda client: client.delete_async(path), timeout)
    except NoNodeError:
        return
