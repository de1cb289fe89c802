"""A log whose entries count when a majority of its members have them as well (docs/decisions/107-log-members.md).

The root's log decides which entry comes next, as without members. Nobody who reads through this handle is given an
entry before a majority of the newest generation has it on disk, and no append succeeds before: whoever comes brings to
the members what somebody else has left half done.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial

from epochlake.metastore import threads
from epochlake.metastore.errors import EpochlakeError, LogWentBack, StorageUnavailable
from epochlake.metastore.log import generations
from epochlake.metastore.log.entry import Entry, Position, position_of
from epochlake.metastore.log.epoch_log import AppendConflict, AppendFailed, AppendUncertain, EpochLog
from epochlake.metastore.log.generations import Generation
from epochlake.metastore.log.log_member import Diverged, LogMember, MemberLogs, Sealed, Source
from epochlake.metastore.storage.storage import Storage

logger = logging.getLogger(__name__)

ACKNOWLEDGE_SECONDS = 30.0
"""How long a majority is waited for."""

RETRY_SECONDS = 0.05


class _Copying:
    """One member, and the thread that brings it on; a thread that hangs keeps only this member."""

    def __init__(self, member: LogMember) -> None:
        self.member = member
        self.busy = False


class _Busy(StorageUnavailable):
    """What a member was asked before has not ended."""


class _Asked:
    """What came of bringing members to one position."""

    def __init__(self, count: int) -> None:
        self.changed = threading.Condition()
        self.done: set[str] = set()
        self.ends: list[Position] = []
        self.failed: dict[str, Exception] = {}
        self.count = count


class MajorityLog:
    """A handle on the root's log and the copies of its members; see `EpochLog` for its promises.

    `open_root`: another handle on the root's log. `register`: the directory of the root's generations.
    Reading raises StorageUnavailable also while a majority of members does not answer, if what is at the tail is not
    known to be on one.
    """

    def __init__(
        self,
        storage: Storage,
        register: str,
        open_root: Callable[[], EpochLog],
        logs: MemberLogs,
        *,
        patience: float = ACKNOWLEDGE_SECONDS,
    ) -> None:
        self.root = open_root()
        self._open_root = open_root
        self._storage = storage
        self._register = register
        self._logs = logs
        self._patience = patience
        self._generation: Generation | None = None
        self._members: dict[str, _Copying] = {}
        self._durable: Position | None = None
        self._ends: list[Position] = []
        self._tail: Position | None = None

    def read(self, after: int, up_to: int | None = None) -> list[Entry]:
        self._know_members()
        found = self.root.read(after, up_to)
        if found:
            tail = position_of(found[-1])
        elif after:
            tail = position_of(self.root.entry(min(after, up_to or after)))
        else:
            tail = Position()
        if up_to is not None:
            self._make_durable(tail, found)
            return found
        self._tail = None
        durable = self._durable
        if durable is not None and tail.epoch < durable.epoch:
            raise LogWentBack(tail.epoch, durable.epoch, durable.hash, "a majority of the log members")
        # Also where nothing is new: another root may have been restored from the members since, and go on.
        self._ask_until_durable(tail, found)
        self._require_whole(tail)
        self._tail = tail
        return found

    def _require_whole(self, tail: Position) -> None:
        """Refuse a root that ends before its copies: what was acknowledged is on one of those that were asked."""
        ahead = max(self._ends, key=lambda end: end.epoch, default=Position())
        if ahead.epoch <= tail.epoch:
            return
        now = self._open_root().read(tail.epoch)
        if not now or now[-1].epoch < ahead.epoch:
            raise LogWentBack(now[-1].epoch if now else tail.epoch, ahead.epoch, ahead.hash, "a log member")
        self._ends = []

    def version(self) -> int | None:
        return self.root.version()

    def append(self, entries: Sequence[Entry]) -> None:
        if self._tail is None:
            raise AppendConflict("the log was not read to its end before it was appended to")
        if self._generation is None and self._tail.epoch:
            raise AppendFailed(
                "[log] acknowledge is 'majority', and the cluster has no log members",
                hint="Name them by `epochlake metadata reconfigure`, or leave [log] acknowledge at 'root'",
            )
        self._tail = None
        self.root.append(entries)
        tail = position_of(entries[-1])
        try:
            self._make_durable(tail, entries)
        except EpochlakeError as error:
            raise AppendUncertain(
                f"epoch {tail.epoch} is in the log at the root, and not known to be on a majority of the log members: "
                f"{error.statement}"
            ) from error
        self._tail = tail

    def fence(self) -> None:
        self.root.fence()

    def request_epochs(self, up_to: int) -> dict[str, int]:
        self._know_members()
        found = self.root.request_epochs(up_to)
        newest = max(found.values(), default=0)
        if newest and (self._durable is None or newest > self._durable.epoch):
            self.entry(newest)
        return found

    def entry(self, epoch: int) -> Entry:
        self._know_members()
        found = self.root.entry(epoch)
        self._make_durable(position_of(found), [found])
        return found

    def compact_if_due(self) -> bool:
        compacted = self.root.compact_if_due()
        if compacted:
            self._tail = None
            for copying in self._members.values():
                if not copying.busy:
                    copying.busy = True
                    threads.begin(partial(_compact, copying))
        return compacted

    def _make_durable(self, tail: Position, entries: Sequence[Entry]) -> None:
        """Return when a majority of the newest generation holds the log up to `tail`."""
        durable = self._durable
        if durable is None or (tail != durable and tail.epoch >= durable.epoch):
            self._ask_until_durable(tail, entries)

    def _ask_until_durable(self, tail: Position, entries: Sequence[Entry]) -> None:
        deadline = time.monotonic() + self._patience
        said: dict[str, Exception] = {}
        before = self._generation
        while True:
            generation = self._newest()
            if generation is None:
                return
            if generation is not before:
                # It may be that of a root which was restored without this entry: its members would take it as well.
                self._require_at_root(tail)
                before = generation
            asked = self._ask(generation, tail, entries, deadline)
            if len(asked.done) >= generation.majority:
                self._durable = tail
                self._ends = asked.ends
                return
            failed = dict(asked.failed)  # those that were not waited for may still fail
            # One that was asked a moment before the end has said why before.
            said |= {uri: error for uri, error in failed.items() if not isinstance(error, _Busy) or uri not in said}
            diverged = [error for error in failed.values() if isinstance(error, Diverged)]
            if diverged:
                raise diverged[0]
            # A change of the members, which is under way, ends with a generation that is newer here.
            under_way = any(isinstance(error, Sealed | _Busy) for error in failed.values())
            if not under_way or time.monotonic() >= deadline:
                raise _too_few(generation, set(asked.done), said)
            time.sleep(RETRY_SECONDS)

    def _require_at_root(self, tail: Position) -> None:
        """Refuse to bring to the members what the root does not hold any more."""
        if not tail.epoch:
            return
        there = self._open_root().read(tail.epoch - 1, tail.epoch)
        if not there or position_of(there[0]) != tail:
            raise LogWentBack(there[0].epoch if there else tail.epoch - 1, tail.epoch, tail.hash, "this process")

    def _know_members(self) -> None:
        """Know a generation before the root is read: by a later one it is seen that the root may be another one."""
        if self._generation is None:
            self._newest()

    def _newest(self) -> Generation | None:
        known = self._generation
        there = generations.numbers(self._storage, self._register)
        if known is not None and (not there or there[-1] < known.number):
            raise StorageUnavailable(
                f"{self._register} has lost generation {known.number} of the log members",
                hint="Restore it from a member",
            )
        if there and (known is None or there[-1] > known.number):
            newest = generations.newest(self._storage, self._register)
            assert newest is not None
            self._generation = newest
            self._members = {uri: _Copying(LogMember(self._storage, uri, self._logs)) for uri in newest.members}
        return self._generation

    def _ask(self, generation: Generation, tail: Position, entries: Sequence[Entry], deadline: float) -> _Asked:
        asked = _Asked(len(generation.members))
        copied = tuple(entries)

        def source(after: int, up_to: int) -> Sequence[Entry]:
            if copied and copied[0].epoch <= after + 1 and copied[-1].epoch >= up_to:
                return copied[after + 1 - copied[0].epoch : up_to + 1 - copied[0].epoch]
            return self._open_root().read(after, up_to)

        with asked.changed:
            for uri, copying in self._members.items():
                if copying.busy:
                    asked.failed[uri] = _Busy("it has not answered yet")
                    continue
                copying.busy = True
                threads.begin(_task(copying, generation.number, tail, source, asked))
            while len(asked.done) < generation.majority and len(asked.done) + len(asked.failed) < asked.count:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                asked.changed.wait(left)
        return asked


def _compact(copying: _Copying) -> None:
    try:
        copying.member.compact_if_due()
    except Exception as error:
        logger.warning("the copy of the log in %s was not compacted: %s", copying.member.uri, error)
    finally:
        copying.busy = False


def _task(copying: _Copying, number: int, tail: Position, source: Source, asked: _Asked) -> Callable[[], None]:
    def run() -> None:
        failure: Exception | None = None
        end = Position()
        try:
            copying.member.push(number, tail, source)
            end = copying.member.tail()
        except Exception as error:
            failure = error
        with asked.changed:
            copying.busy = False
            if failure is None:
                asked.done.add(copying.member.uri)
                asked.ends.append(end)
            else:
                asked.failed[copying.member.uri] = failure
            asked.changed.notify_all()

    return run


def _too_few(generation: Generation, done: Set[str], failed: Mapping[str, Exception]) -> StorageUnavailable:
    told = [
        f"{uri}: {str(failed[uri]).rstrip('. ')}" if uri in failed else f"{uri} has not answered"
        for uri in sorted(set(generation.members) - done)
    ]
    return StorageUnavailable(
        f"{len(done)} of {len(generation.members)} log members have the end of the log, "
        f"{generation.majority} are needed ({'; '.join(told)})",
        hint="Mend those, or replace them by `epochlake metadata reconfigure`",
    )
