"""One directory that keeps a copy of the log: what it has promised, and how entries come to it.

For each generation it has a log of its own, `generations/<number>/log`, in the format of the root's, which counts from
when `adopted` lies beside it. Nothing is ever taken out of a copy: another generation begins another one.

A directory runs no code, and still keeps its promise. Who seals it puts the promise down first and fences its logs
then; who appends reads the log first, looks for promises then, and appends against what he read. So either the promise
is seen, or the append conflicts with the fence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from epochlake.metastore.errors import HashMismatch, LogUnreadable, NotInitialised, StorageUnavailable
from epochlake.metastore.log import generations, seats
from epochlake.metastore.log.delta import DeltaLog, create_log_table
from epochlake.metastore.log.entry import Entry, Position, position_of, verify_next
from epochlake.metastore.log.epoch_log import AppendConflict, AppendUncertain, PreparedLog
from epochlake.metastore.log.generations import Generation, Seat
from epochlake.metastore.storage import failures, places
from epochlake.metastore.storage.storage import Storage

TRIES = 20
"""How often an append to a copy is tried while others append the same entries to it."""

OVER = ".over"
"""How the name of a generation ends that is being deleted."""

PART = 1000
"""The most entries of one append to a copy."""

Source = Callable[[int, int], Sequence[Entry]]
"""The entries after an epoch and up to another one, of the log that is copied."""


class Sealed(StorageUnavailable):
    """A member has promised a later generation, or another one of this number: nothing of the earlier one is taken any
    more. `number`: that of the promise.
    """

    number = 0


def promised_to(uri: str, number: int) -> Sealed:
    """The error of a member, or a root, that knows a later generation."""
    error = Sealed(
        f"{uri} has promised generation {number} of the log members",
        hint="A change of the log members, or a recovery of the root, is under way or was not ended: see "
        "`epochlake metadata describe`",
    )
    error.number = number
    return error


class NotAdopted(StorageUnavailable):
    """A member has no copy of this generation, or not a whole one."""


class Diverged(HashMismatch):
    """A copy holds what the log does not: an older copy of the log, or another log, is in its place."""


class MemberLogs(Protocol):
    """How the logs of members are made and opened."""

    def is_there(self, uri: str) -> bool:
        """Whether one was made."""

    def create(self, uri: str) -> None:
        """Make an empty log in a directory that is there; one that is there stays."""

    def open(self, uri: str) -> PreparedLog:
        """A handle of its own."""

    def delete(self, uri: str) -> None:
        """Delete one that nobody needs, if it is there. Raises StorageUnavailable."""


class DeltaMemberLogs:
    """Copies in the format of the root's log."""

    def __init__(self, storage: Storage, compact_every: int = 32) -> None:
        self._storage = storage
        self._compact_every = compact_every

    def is_there(self, uri: str) -> bool:
        return self._storage.exists(places.join(uri, "_delta_log"))

    def create(self, uri: str) -> None:
        create_log_table(self._storage, uri)

    def open(self, uri: str) -> PreparedLog:
        return DeltaLog(self._storage, uri, compact_every=self._compact_every)

    def delete(self, uri: str) -> None:
        self._storage.delete_directory(uri)


class LogMember:
    """One handle on a member; not safe for use by several threads at once.

    Its methods raise StorageUnavailable where the directory does not answer.
    """

    def __init__(self, storage: Storage, uri: str, logs: MemberLogs) -> None:
        self.uri = uri
        self._storage = storage
        self._logs = logs
        self._promises = places.join(uri, "promises")
        self._generations = places.join(uri, "generations")
        self._log: PreparedLog | None = None
        self._number = 0
        self._position = Position()

    def require_there(self) -> None:
        """Raise StorageUnavailable where its directory is not there."""
        if not self._storage.exists(self.uri):
            raise StorageUnavailable(f"{self.uri} is not there", hint="Make the directory, or mount its disk")

    def promises(self) -> list[Generation]:
        """What it has promised, by number."""
        return generations.kept(self._storage, self._promises)

    def adopted(self) -> int:
        """The newest generation of which it has a whole copy; 0: none."""
        try:
            names = self._storage.list_names(self._generations)
        except failures.MissingFile:
            return 0
        there = sorted((int(name) for name in names if name.isdecimal()), reverse=True)
        return next((number for number in there if self._is_adopted(number)), 0)

    def seal(self, generation: Generation) -> None:
        """Take nothing of earlier generations from now on. Raises Sealed when it has promised a later one, or another
        one of this number; HashMismatch when it belongs to another cluster.
        """
        self.require_there()
        for promise in self.promises():
            if promise.cluster_id != generation.cluster_id:
                raise HashMismatch(
                    f"{self.uri} keeps a copy of the log of another cluster ({promise.cluster_id})",
                    hint="Name an empty directory",
                )
            if promise.number > generation.number:
                raise promised_to(self.uri, promise.number)
        if not generations.put(self._storage, self._promises, generation):
            raise promised_to(self.uri, generation.number)
        for number in self._begun():
            if number < generation.number and self._logs.is_there(self._log_of(number)):
                # One whose making was cut off holds nothing; who makes it after all looks for the promise afterwards.
                try:
                    with suppress(NotInitialised):
                        self._logs.open(self._log_of(number)).fence()
                except LogUnreadable as error:
                    raise StorageUnavailable(
                        f"its copy of generation {number} cannot be fenced: {error.statement}", hint=error.hint
                    ) from error

    def entries(self, number: int) -> list[Entry]:
        """The whole copy of a generation, its chain verified. Raises LogUnreadable, HashMismatch."""
        return verified(self._logs.open(self._log_of(number)).read(0))

    def give_seat(self, token: str) -> Seat:
        """Give it a seat in a generation that nobody has promised yet."""
        self.require_there()
        return seats.give(self._storage, self.uri, token)

    def doubt(self, generation: Generation) -> str:
        """Why it may have lost what it held of a generation, so that its word does not count there; "": it has not."""
        number = generation.number
        held = seats.Held(number in generations.numbers(self._storage, self._promises), self._is_adopted(number))
        return seats.doubt(self._storage, self.uri, generation, held)

    def adopt(self, generation: Generation, tail: Position, source: Source) -> None:
        """Make its copy of a generation, which it has promised, whole up to `tail`, at least. Raises as `push` does:
        NotAdopted without its seat.
        """
        if generation.token and generation.seat_of(self.uri) is None:
            raise NotAdopted(f"{self.uri} did not answer when generation {generation.number} of the log members began")
        if doubt := self.doubt(generation):
            raise NotAdopted(f"{self.uri} has no copy of generation {generation.number} of the log: {doubt}")
        self.begin(generation, tail, source)
        if not self._storage.put_if_absent(self._adopted_at(generation.number), b"") and not self._is_adopted(
            generation.number
        ):
            raise StorageUnavailable(f"{self.uri} does not keep what is written to it")
        seats.note_whole(self._storage, self.uri, generation)

    def clear_before(self, number: int) -> None:
        """Delete what it keeps of generations before `number`, if it has a whole copy of that one: whoever asks it is
        told of that copy, and looks for nothing older. Raises StorageUnavailable.
        """
        if not self._is_adopted(number):
            return
        for name in self._storage.list_names(self._generations):
            if name.endswith(OVER):
                self._storage.delete_directory(places.join(self._generations, name))
        for begun in [one for one in self._begun() if one < number]:
            # In one step: a log of which a part is gone may have lost its fence, and is none that can be fenced anew.
            place = places.join(self._generations, f"{begun:020}")
            self._storage.move_file(place, place + OVER)
            self._storage.sync_always(directories=[self._generations])
            self._logs.delete(self._log_of(begun))
            self._storage.delete_directory(place + OVER)
        for promise in [one for one in self.promises() if one.number < number]:
            seats.take_back(self._storage, self.uri, promise)
            generations.delete(self._storage, self._promises, promise.number)

    def begin(self, generation: Generation, tail: Position, source: Source) -> None:
        """Copy ahead, before the generation counts: what is left for `adopt` is short then."""
        self.require_there()
        place = places.join(self._generations, f"{generation.number:020}")
        self._storage.create_directory(place, parents=True)
        self._logs.create(self._log_of(generation.number))
        self._copy(generation.number, tail, source, ahead=True)

    def prepare(self, number: int, entries: Sequence[Entry]) -> None:
        """Have on its disk what a push of these entries will write, where its copy of generation `number` is known to
        end before them; else nothing, and the push does it all. Raises StorageUnavailable.
        """
        if self._log is not None and self._number == number and self._position.hash == entries[0].previous_hash:
            self._log.prepare(entries)

    def forget(self) -> None:
        """Delete what was prepared and not pushed. Never raises."""
        if self._log is not None:
            self._log.forget()

    def push(self, number: int, tail: Position, source: Source) -> None:
        """Return when the copy of generation `number` holds the log up to `tail`, on its disk.

        Raises Sealed, NotAdopted, Diverged, StorageUnavailable, LogUnreadable.
        """
        if number != self._number and not self._is_adopted(number):
            raise NotAdopted(f"{self.uri} has no whole copy of generation {number} of the log")
        self._copy(number, tail, source)

    def _copy(self, number: int, tail: Position, source: Source, *, ahead: bool = False) -> None:
        """`ahead`: also before the generation was promised."""
        try:
            self._copy_on(number, tail, source, ahead=ahead)
        except BaseException:
            self.forget()
            self._log, self._number = None, 0
            raise

    def _copy_on(self, number: int, tail: Position, source: Source, *, ahead: bool) -> None:
        if self._log is None or self._number != number:
            self.forget()
            self._log, self._number, self._position = self._logs.open(self._log_of(number)), number, Position()
        tries = 0
        # What follows what was read here before needs no other look: an append to a log that has moved on is refused.
        is_read = 0 < self._position.epoch < tail.epoch
        while True:
            if not is_read:
                self._read_on(self._log)
            is_read = False
            # After the log was read, and before it is appended to: see above.
            promised = generations.numbers(self._storage, self._promises)
            if promised and promised[-1] > number:
                raise promised_to(self.uri, promised[-1])
            if number not in promised and not ahead:
                raise NotAdopted(f"{self.uri} has lost its promise of generation {number}, and what it held of it")
            here = self._position
            if here.epoch >= tail.epoch:
                self._require_same(self._log, tail)
                return
            entries = source(here.epoch, min(tail.epoch, here.epoch + PART))
            if not entries:
                raise LogUnreadable(f"epoch {here.epoch + 1} is not in the log that {self.uri} copies")
            if entries[0].previous_hash != here.hash:
                raise self._diverged(here)
            position = here
            for entry in entries:
                position = verify_next(position, entry)
            try:
                self._log.append(entries)
                self._position = position
                if position.epoch >= tail.epoch:
                    self._require_same(self._log, tail)
                    return
            except (AppendConflict, AppendUncertain):
                # Somebody else copies as well, or has fenced it.
                tries += 1
                if tries == TRIES:
                    raise

    def _read_on(self, log: PreparedLog) -> None:
        for entry in log.read(self._position.epoch):
            self._position = verify_next(self._position, entry)

    def _require_same(self, log: PreparedLog, tail: Position) -> None:
        if not tail.epoch:
            return
        found = self._position if tail.epoch == self._position.epoch else position_of(log.entry(tail.epoch))
        if found != tail:
            raise self._diverged(found)

    def _diverged(self, here: Position) -> Diverged:
        return Diverged(
            f"the copy of the log in {self.uri} holds another epoch {here.epoch} ({here.hash[:12]}) than the log",
            hint="An older copy of the log, or another log, is in its place: restore the root from its members by "
            "`epochlake metadata recover`",
        )

    def compact_if_due(self) -> None:
        """Put small files of the copy that was pushed to last together, when there are many."""
        if self._log is not None:
            self._log.compact_if_due()

    def tail(self) -> Position:
        """Where the copy that was pushed to last ends, as far as it was read."""
        return self._position

    def _begun(self) -> list[int]:
        try:
            return sorted(int(name) for name in self._storage.list_names(self._generations) if name.isdecimal())
        except failures.MissingFile:
            return []

    def _is_adopted(self, number: int) -> bool:
        return self._storage.exists(self._adopted_at(number))

    def _adopted_at(self, number: int) -> str:
        return places.join(self._generations, f"{number:020}", "adopted")

    def _log_of(self, number: int) -> str:
        return places.join(self._generations, f"{number:020}", "log")


def verified(entries: Sequence[Entry]) -> list[Entry]:
    """The entries of a whole log, each of which continues the one before. Raises as `verify_next`."""
    position = Position()
    for entry in entries:
        position = verify_next(position, entry)
    return list(entries)
