"""What a test holds back by hand: the commits of a participant of a local cluster, and the news that it gets."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import Enum
from threading import Condition, Lock
from typing import Any

from epochlake.jobs.testing.local.blocks import entered
from epochlake.metastore.committing.committer import Committed, Committer, Planner
from epochlake.metastore.committing.queue import CommitQueue
from epochlake.metastore.errors import CommitTimeout, CommitUnknown, Rejected
from epochlake.metastore.following.follower import Follower
from epochlake.metastore.log.delta import DeltaLog
from epochlake.metastore.log.entry import Entry
from epochlake.metastore.log.epoch_log import AppendConflict
from epochlake.metastore.log.state_ids import next_state_id
from epochlake.metastore.metadata.events import Event
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import EpochlakeError


class Fate(Enum):
    """What becomes of a commit that is not held."""

    REFUSED = "refused"
    LOST_BEFORE = "nothing is appended, and the caller does not hear of it"
    LOST_AFTER = "it is appended, and the caller does not hear of it"


class HeldCommits:
    """The commits of one participant that wait for their release: what `LocalCluster.hold_commits` gives.

    Each call that would commit waits before it asks for the commit lock, so others commit meanwhile. Released, it is
    planned on the metadata of that moment. A commit whose time is over while it waits ends as a refused one.
    """

    def __init__(self, name: str, turn: Condition) -> None:
        self._name = name
        self._turn = turn
        self._waiting: list[object] = []
        self._over = False

    @property
    def waiting(self) -> int:
        """How many commits wait now."""
        with self._turn:
            return len(self._waiting)

    def wait_for(self, count: int = 1, timeout: float = 30.0) -> None:
        """Return when so many commits wait. Raises AssertionError after `timeout` seconds."""
        with self._turn:
            if not self._turn.wait_for(lambda: len(self._waiting) >= count, timeout):
                raise AssertionError(
                    f"{len(self._waiting)} of {count} commits of {self._name!r} wait after {timeout:g} seconds"
                )

    def release(self, count: int | None = None) -> None:
        """Let the first `count` of the commits that wait go on, while later ones wait; None: all, from now on."""
        with self._turn:
            if count is None:
                self._over = True
                self._waiting.clear()
            else:
                del self._waiting[:count]
            self._turn.notify_all()

    def pass_through(self, deadline: float) -> bool:
        """Wait for the release; False when that had not come at the deadline."""
        one = object()
        with self._turn:
            if self._over:
                return True
            self._waiting.append(one)
            self._turn.notify_all()
            try:
                return self._turn.wait_for(lambda: one not in self._waiting, max(0.0, deadline - time.monotonic()))
            finally:
                if one in self._waiting:
                    self._waiting.remove(one)


class Commits:
    """What is done with the commits of one participant, called `name`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._turn = Condition()
        self._held: list[HeldCommits] = []
        self._fates: dict[object, Fate] = {}

    @contextmanager
    def hold(self) -> Iterator[HeldCommits]:
        """Commits wait until they are released, or the block ends."""
        held = HeldCommits(self.name, self._turn)
        with self._turn:
            self._held.append(held)
        try:
            yield held
        finally:
            with self._turn:
                self._held.remove(held)
            held.release()

    def meet(self, fate: Fate) -> AbstractContextManager[None]:
        """Commits that are not held meet this fate; of several the last one that was begun counts."""
        return entered(self._turn, self._fates, object(), fate)

    def fate(self, deadline: float) -> Fate | None:
        """Wait while commits are held, and then the fate of this one; None: none. Raises TimeoutError."""
        passed: set[HeldCommits] = set()
        while True:
            with self._turn:
                held = next((held for held in self._held if held not in passed), None)
                if held is None:
                    return list(self._fates.values())[-1] if self._fates else None
            if not held.pass_through(deadline):
                raise TimeoutError(f"commits of {self.name!r} were held until its time was over")
            passed.add(held)


class NewsHeld(EpochlakeError):
    """A commit needs epochs that its participant is not to see now."""

    exit_code = 75


class News:
    """Up to which epoch one participant, called `name`, sees the log."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = Lock()
        self._ceilings: dict[object, int] = {}

    @property
    def ceiling(self) -> int | None:
        """The last epoch that it sees; None: all."""
        with self._lock:
            return min(self._ceilings.values(), default=None)

    def committed(self, epoch: int) -> None:
        """It has committed this epoch itself, right after all that it sees."""
        with self._lock:
            self._ceilings = {hold: max(ceiling, epoch) for hold, ceiling in self._ceilings.items()}

    @contextmanager
    def hold(self, follower: Follower) -> Iterator[None]:
        """Epochs after the present one are not seen. They are when the block has ended."""
        hold = object()
        with follower.exclusively(), self._lock:
            self._ceilings[hold] = follower.position.epoch
        try:
            yield
        finally:
            with self._lock:
                del self._ceilings[hold]
            follower.catch_up()


class ParticipantLog(DeltaLog):
    """A handle on the log that ends where the news of its participant do."""

    def __init__(self, storage: Storage, uri: str, news: News, *, compact_every: int = 32) -> None:
        super().__init__(storage, uri, compact_every=compact_every)
        self._news = news
        self._withheld = False

    def read(self, after: int, up_to: int | None = None) -> list[Entry]:
        ceiling = self._news.ceiling
        if ceiling is None:
            self._withheld = False
            return super().read(after, up_to)
        found = super().read(after)
        self._withheld = bool(found) and found[-1].epoch > ceiling
        last = ceiling if up_to is None else min(ceiling, up_to)
        return [entry for entry in found if entry.epoch <= last]

    def version(self) -> int | None:
        """Asked for by commits alone. What was withheld from a commit could make its answer wrong, a rejection too."""
        if self._withheld:
            if self._news.ceiling is None:
                raise AppendConflict("the news were released after the log was read")
            raise NewsHeld(f"others have committed what {self._news.name!r} is not to see now")
        return super().version()

    def append(self, entries: Sequence[Entry]) -> None:
        super().append(entries)
        self._news.committed(entries[-1].epoch)


class ParticipantCommitter(Committer):
    """Commits as long as nothing is held back."""

    def __init__(
        self, follower: Follower, queue: CommitQueue, commits: Commits, *, author: str, snapshot_every: int
    ) -> None:
        super().__init__(follower, queue, author=author, snapshot_every=snapshot_every)
        self._commits = commits

    def commit(
        self,
        what: Event | Planner,
        *,
        request_id: str | None = None,
        reason: str = "",
        timeout: float = 120.0,
        expect_epoch: int | None = None,
        asked: str = "",
        named: bool = True,
    ) -> Committed:
        deadline = time.monotonic() + timeout
        named = named and request_id is not None
        request_id = request_id or next_state_id("")
        try:
            fate = self._commits.fate(deadline)
        except TimeoutError as error:
            raise self._nothing_came_of(request_id, named, str(error)) from error
        if fate is Fate.REFUSED:
            raise self._nothing_came_of(request_id, named, "it was refused, as the test asked")
        if fate is Fate.LOST_BEFORE:
            raise CommitUnknown(request_id, "it was lost, as the test asked")
        options: dict[str, Any] = {"reason": reason, "expect_epoch": expect_epoch, "asked": asked, "named": named}
        left = max(0.0, deadline - time.monotonic())
        try:
            committed = super().commit(what, request_id=request_id, timeout=left, **options)
        except Rejected:
            if fate is None:
                raise
        except NewsHeld as error:
            raise self._nothing_came_of(request_id, named, str(error)) from error
        else:
            if fate is None:
                return committed
        raise CommitUnknown(request_id, "its answer was lost, as the test asked")

    def _nothing_came_of(self, request_id: str, named: bool, why: str) -> EpochlakeError:
        """Nothing came of this try. An earlier one with the same id may be in the log, where the log is not asked."""
        if named:
            return CommitUnknown(request_id, why)
        return CommitTimeout(f"request {request_id} was not committed: {why}", hint="Try again")
