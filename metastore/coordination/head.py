"""The head: the newest epoch that somebody published, a hint where the log's tail is.

The head notifies, the log decides. It is published after the commit point, so it can lag behind the log
(a committer died in between) and it can be lost; whoever reads it goes on to the log in any case.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec
from epochlake.metastore.coordination.client import NO_ANSWER, Coordination, Value
from epochlake.metastore.log.entry import Position
from epochlake.placement.decoding import decodable
from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
)

logger = logging.getLogger(__name__)

HEAD = "head"


class Head(msgspec.Struct, frozen=True):
    """The entry at the tail of the log, as its committer published it."""

    epoch: int
    state_id: str
    hash: str
    incarnation: int = 1

    @property
    def order(self) -> tuple[int, int]:
        """What heads are compared by: epochs of a later incarnation come after all of an earlier one."""
        return self.incarnation, self.epoch


def position_of_head(head: Head) -> Position:
    """The place in the log that a head names."""
    return Position(head.epoch, head.state_id, head.hash, head.incarnation)


def read_head(coordination: Coordination, timeout: float | None = None) -> Head | None:
    """The head behind a read barrier; None when nobody published one, or when what is there cannot be read.

    Raises `CoordinationUnavailable` within `timeout` seconds (default: the request timeout).
    """
    value = coordination.barrier(coordination.path(HEAD), timeout)
    return None if value is None else decode_head(value.data)


def publish_head(coordination: Coordination, head: Head, timeout: float | None = None) -> bool:
    """Raise the head to `head`; False when it already is there or further on. It is never lowered.

    Written with a version check, again and again until it is written or overtaken, so that of any number of racing
    publishers the highest epoch stays. Raises `CoordinationUnavailable` within `timeout` seconds; then it may or may
    not have been published, and the next committer repairs it from the log.
    """
    return _write(coordination, head, lambda there: there.order < head.order, timeout)


def publish_head_soon(coordination: Coordination, head: Head, known: Value | None) -> None:
    """Raise the head without waiting for it, as `publish_head` does; never raises.

    `known`: what the head was when it was last read: then one request is enough, which is sent before this returns.
    """
    _Publication(coordination, head).begin(known)


def correct_head(coordination: Coordination, head: Head, timeout: float | None = None) -> bool:
    """Set the head to what the log says, also downwards; False when it says that already.

    For a head that the log contradicts (an epoch beyond the tail, another hash): a restored root, a ZooKeeper that
    somebody else used. Call it with the commit lock held and the log just read: otherwise a committer can have moved
    on in between, which costs the others a slow poll.
    """
    return _write(coordination, head, lambda there: there != head, timeout)


def watch_head(coordination: Coordination, callback: Callable[[Head], None]) -> Callable[[], None]:
    """Call `callback` with the head now and after every change; returns the function that stops it.

    The callback runs in a thread of kazoo and must only set flags or put the head somewhere: while it blocks, no
    answer and no watch gets through. It sees the newest head, not every one of them. After a reconnect, also with a
    new session, the watch is set again and a change that happened meanwhile is reported. A watch can still be late
    or, when ZooKeeper is away, silent: poll the log slowly as well (design, section 7).
    """
    watch = _HeadWatch(coordination, callback)
    watch.look()
    return watch.stop


class _Publication:
    """All asynchronous: write, and when somebody else has written meanwhile, look and write again."""

    def __init__(self, coordination: Coordination, head: Head) -> None:
        self._client: KazooClient = coordination.client
        self._path = coordination.path(HEAD)
        self._head = head
        self._data = msgspec.json.encode(head)

    def begin(self, known: Value | None) -> None:
        if known is None:
            self._create()
        else:
            self._raise_from(known)

    def _create(self) -> None:
        self._client.create_async(self._path, self._data, makepath=True).rawlink(self._written)

    def _look(self) -> None:
        self._client.get_async(self._path).rawlink(self._read)

    def _read(self, result: Any) -> None:
        try:
            data, stat = result.get_nowait()
        except NoNodeError:
            self._create()
        except (KazooException, *NO_ANSWER) as error:
            logger.debug("epoch %d is not announced: %s", self._head.epoch, error)
        else:
            self._raise_from(Value(data, stat.version))

    def _raise_from(self, there: Value) -> None:
        head = decode_head(there.data)
        if head is None or head.order < self._head.order:
            self._client.set_async(self._path, self._data, there.version).rawlink(self._written)

    def _written(self, result: Any) -> None:
        try:
            result.get_nowait()
        except (BadVersionError, NoNodeError, NodeExistsError):
            self._look()
        except (KazooException, *NO_ANSWER) as error:
            logger.debug("epoch %d is not announced: %s", self._head.epoch, error)


class _HeadWatch:
    """All asynchronous: look (and leave a watch), read the answer, look again when the watch fires."""

    def __init__(self, coordination: Coordination, callback: Callable[[Head], None]) -> None:
        self._client: KazooClient = coordination.client
        self._path = coordination.path(HEAD)
        self._callback = callback
        self._delivered: Head | None = None
        self._stopped = False
        self._unsubscribe = coordination.on_connected(self.look)

    def stop(self) -> None:
        self._stopped = True
        self._unsubscribe()

    def look(self) -> None:
        if not self._stopped:
            self._client.get_async(self._path, watch=self._changed).rawlink(self._read)

    def _changed(self, _event: Any) -> None:
        self.look()

    def _read(self, result: Any) -> None:
        try:
            data, _stat = result.get_nowait()
        except NoNodeError:
            # Not there yet: a watch on its creation.
            self._client.exists_async(self._path, watch=self._changed).rawlink(self._appeared)
            return
        except (KazooException, *NO_ANSWER):
            return  # the reconnect looks again
        head = decode_head(data)
        if head is None or head == self._delivered or self._stopped:
            return
        self._delivered = head
        try:
            self._callback(head)
        except Exception:
            logger.exception("the callback of a watch on the head failed")

    def _appeared(self, result: Any) -> None:
        if result.successful() and result.value is not None:
            self.look()


def _write(coordination: Coordination, head: Head, is_wanted: Callable[[Head], bool], timeout: float | None) -> bool:
    path = coordination.path(HEAD)
    data = msgspec.json.encode(head)
    deadline = time.monotonic() + (coordination.request_timeout if timeout is None else timeout)

    def left() -> float:
        return deadline - time.monotonic()

    while True:
        # No `sync`: a stale answer only makes the conditional write fail, and then we look again.
        value = _read(coordination, path, left())
        there = None if value is None else decode_head(value.data)
        if there is not None and not is_wanted(there):
            return False
        try:
            if value is None:
                coordination.answer(
                    f"create {path}", coordination.client.create_async(path, data, makepath=True), left()
                )
            else:
                coordination.answer(
                    f"publish epoch {head.epoch}", coordination.client.set_async(path, data, value.version), left()
                )
            return True
        except (BadVersionError, NoNodeError, NodeExistsError):
            continue


def _read(coordination: Coordination, path: str, timeout: float) -> Value | None:
    try:
        data, stat = coordination.call(f"read {path}", lambda client: client.get_async(path), timeout)
    except NoNodeError:
        return None
    return Value(data, stat.version)


def decode_head(data: bytes) -> Head | None:
    """The head in the data of its znode; None when it cannot be read."""
    try:
        return msgspec.json.decode(data, type=decodable(Head))
    except msgspec.MsgspecError:
        return None
