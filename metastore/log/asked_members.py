"""Bringing log members to one position of the log, side by side, each in a thread of its own.

They can be asked while the root is appended to: then each has what it will write on its disk already, and waits to hear
whether it may take it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial

from epochlake.metastore import threads
from epochlake.metastore.errors import EpochlakeError, StorageUnavailable
from epochlake.metastore.log.entry import Entry, Position
from epochlake.metastore.log.log_member import LogMember

logger = logging.getLogger(__name__)


class Copying:
    """One member, and the thread that brings it on; a thread that hangs keeps only this member."""

    def __init__(self, member: LogMember) -> None:
        self.member = member
        self.busy = False


class Busy(StorageUnavailable):
    """What a member was asked before has not ended."""


class AskedMembers:
    """What comes of bringing members to the position `tail` of generation `number`.

    `entries`: the last ones before it. `read`: gives others, as `Source` does. `begun`: whether the root has what they
    are to take; None as long as that is not known (`settle`).
    """

    def __init__(
        self,
        members: Collection[Copying],
        number: int,
        tail: Position,
        entries: Sequence[Entry],
        read: Callable[[int, int], Sequence[Entry]],
        *,
        begun: bool | None = True,
    ) -> None:
        self.done: set[str] = set()
        self.ends: list[Position] = []
        self._failed: dict[str, Exception] = {}
        self._changed = threading.Condition()
        self._members = members
        self._number = number
        self._tail = tail
        self._entries = tuple(entries)
        self._read = read
        self._begun = begun
        with self._changed:
            for copying in members:
                self._ask(copying)

    def settle(self, begun: bool) -> None:
        """Let them take what they were asked to, those as well that were busy; or forget what they have prepared."""
        with self._changed:
            self._begun = begun
            self._changed.notify_all()
            for copying in self._members if begun else ():
                if isinstance(self._failed.get(copying.member.uri), Busy):
                    del self._failed[copying.member.uri]
                    self._ask(copying)

    def wait_for(self, enough: int, deadline: float) -> bool:
        """Wait until so many are done, none is left who could be, or the time is over; whether so many are."""
        with self._changed:
            while len(self.done) < enough and len(self.done) + len(self._failed) < len(self._members):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            return len(self.done) >= enough

    def failed(self) -> dict[str, Exception]:
        """Why members are not done, so far: those that were not waited for may still fail."""
        with self._changed:
            return dict(self._failed)

    def _ask(self, copying: Copying) -> None:
        """Hand the member to a thread; the lock is held."""
        if copying.busy:
            self._failed[copying.member.uri] = Busy("it has not answered yet")
            return
        copying.busy = True
        try:
            threads.begin(partial(self._bring_on, copying))
        except RuntimeError as error:  # the system has no thread left
            copying.busy = False
            self._failed[copying.member.uri] = error

    def _bring_on(self, copying: Copying) -> None:
        member, failure, end = copying.member, None, Position()
        try:
            if self._begun is None:
                with suppress(EpochlakeError, OSError):  # then the push does it all, and tells
                    member.prepare(self._number, self._entries)
            if self._may_begin():
                member.push(self._number, self._tail, self._source)
                end = member.tail()
            else:
                member.forget()
        except Exception as error:
            failure = error
        with self._changed:
            copying.busy = False
            if failure is not None:
                self._failed[member.uri] = failure
            elif self._begun:
                self.done.add(member.uri)
                self.ends.append(end)
            self._changed.notify_all()

    def _may_begin(self) -> bool:
        with self._changed:
            while self._begun is None:
                self._changed.wait()
            return self._begun

    def _source(self, after: int, up_to: int) -> Sequence[Entry]:
        entries = self._entries
        if entries and entries[0].epoch <= after + 1 and entries[-1].epoch >= up_to:
            return entries[after + 1 - entries[0].epoch : up_to + 1 - entries[0].epoch]
        return self._read(after, up_to)


def compact(copying: Copying) -> None:
    """Put small files of a member's copy together, in a thread, when it is not busy. Nothing depends on it."""
    if copying.busy:
        return
    copying.busy = True

    def run() -> None:
        try:
            copying.member.compact_if_due()
        except Exception as error:
            logger.warning("the copy of the log in %s was not compacted: %s", copying.member.uri, error)
        finally:
            copying.busy = False

    threads.begin(run)
