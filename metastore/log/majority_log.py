"""A log whose entries count when a majority of its members have them as well (docs/decisions/107-log-members.md).

The root's log decides which entry comes next, as without members. Nobody who reads through this handle is given an
entry before a majority of the newest generation has it on disk, and no append succeeds before: whoever comes brings to
the members what somebody else has left half done.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence, Set

from epochlake.metastore.errors import EpochlakeError, LogWentBack, StorageUnavailable
from epochlake.metastore.log import generations
from epochlake.metastore.log.asked_members import AskedMembers, Busy, Copying, compact
from epochlake.metastore.log.entry import Entry, Position, position_of
from epochlake.metastore.log.epoch_log import AppendConflict, AppendFailed, AppendUncertain, EpochLog
from epochlake.metastore.log.generations import Generation
from epochlake.metastore.log.log_member import Diverged, LogMember, MemberLogs, Sealed
from epochlake.metastore.storage.storage import Storage

logger = logging.getLogger(__name__)

ACKNOWLEDGE_SECONDS = 30.0
"""How long a majority is waited for."""

RETRY_SECONDS = 0.05


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
        self._members: dict[str, Copying] = {}
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
        tail = position_of(entries[-1])
        asked = None if self._generation is None else self._asked(self._generation, tail, entries, begun=None)
        try:
            self.root.append(entries)
        except BaseException:
            if asked is not None:
                asked.settle(False)
            raise
        try:
            if asked is not None:
                asked.settle(True)
            self._make_durable(tail, entries, asked)
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
                compact(copying)
        return compacted

    def _make_durable(self, tail: Position, entries: Sequence[Entry], asked: AskedMembers | None = None) -> None:
        """Return when a majority of the newest generation holds the log up to `tail`.

        `asked`: the members of the generation that was the newest when it was looked at last, if they were asked.
        """
        durable = self._durable
        if durable is None or (tail != durable and tail.epoch >= durable.epoch):
            self._ask_until_durable(tail, entries, asked)

    def _ask_until_durable(self, tail: Position, entries: Sequence[Entry], asked: AskedMembers | None = None) -> None:
        deadline = time.monotonic() + self._patience
        said: dict[str, Exception] = {}
        before = self._generation
        while True:
            # Those that were asked before need no other look: a majority that takes it has promised nothing later.
            generation = self._newest() if asked is None else self._generation
            if generation is None:
                return
            if generation is not before:
                # It may be that of a root that was restored without this entry: its members would take it all the same.
                self._require_at_root(tail)
                before = generation
            asked = asked or self._asked(generation, tail, entries)
            if asked.wait_for(generation.majority, deadline):
                self._durable = tail
                self._ends = asked.ends
                return
            failed, done, asked = asked.failed(), set(asked.done), None
            # One that was asked a moment before the end has said why before.
            said |= {uri: error for uri, error in failed.items() if not isinstance(error, Busy) or uri not in said}
            diverged = [error for error in failed.values() if isinstance(error, Diverged)]
            if diverged:
                raise diverged[0]
            # A change of the members, which is under way, ends with a generation that is newer here.
            under_way = any(isinstance(error, Sealed | Busy) for error in failed.values())
            if not under_way or time.monotonic() >= deadline:
                raise _too_few(generation, done, said)
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
        if known is None:
            # What is restored so far may be less than what was acknowledged.
            generations.require_restored(self._storage, self._register)
        if there and (known is None or there[-1] > known.number):
            newest = generations.newest(self._storage, self._register)
            assert newest is not None
            self._generation = newest
            self._members = {uri: Copying(LogMember(self._storage, uri, self._logs)) for uri in newest.members}
        return self._generation

    def _asked(
        self, generation: Generation, tail: Position, entries: Sequence[Entry], *, begun: bool | None = True
    ) -> AskedMembers:
        members = tuple(self._members.values())
        return AskedMembers(members, generation.number, tail, entries, self._read_anew, begun=begun)

    def _read_anew(self, after: int, up_to: int) -> Sequence[Entry]:
        return self._open_root().read(after, up_to)


def _too_few(generation: Generation, done: Set[str], failed: Mapping[str, Exception]) -> StorageUnavailable:
    told = [
        f"{uri}: {str(failed[uri]).rstrip('. ')}" if uri in failed else f"{uri} has not answered"
        for uri in sorted(set(generation.members) - done)
    ]
    return StorageUnavailable(
        f"{len(done)} of {len(generation.members)} log members have the end of the log, "
        f"{generation.majority} are needed ({'; '.join(told)})",
        hint="Mend those; `epochlake metadata reconfigure` replaces them, or says of which other root they are by now",
    )
