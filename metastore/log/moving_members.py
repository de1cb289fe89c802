"""Changing the log members, and restoring a lost root from them (docs/decisions/107-log-members.md).

Both are one procedure. A new generation is promised by a majority of every generation that may have acknowledged
something, so that none of these acknowledges anything any more; then whatever they hold is copied to a majority of the
new members; then the root names the generation. Every step can be repeated, by anybody, after a kill at any point.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from epochlake.metastore.errors import LogUnreadable, LogWentBack, NotInitialised, StorageUnavailable
from epochlake.metastore.log import generations
from epochlake.metastore.log.entry import Entry, Position, position_of
from epochlake.metastore.log.epoch_log import AppendUncertain, EpochLog
from epochlake.metastore.log.generations import Generation, Seat
from epochlake.metastore.log.log_member import PART, LogMember, MemberLogs, Sealed, Source, promised_to, verified
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import EpochlakeError, InvalidRequest

logger = logging.getLogger(__name__)

RESUME = "Mend those, and run the command again with --resume"
RECOVER_AGAIN = (
    "Where another recovery has passed this one, see what it restored by `epochlake metadata describe`; else mend "
    "those, and run the command again"
)

TRIES = 3
"""How often a change is begun under a new number when a member turns out to have promised its number to another one."""


Require = Callable[[str, Position], None]
"""Refuses, by the id of the cluster, a position at which its log would end."""


class MemberState(NamedTuple):
    """A member as it answers: the newest generation that it has promised and that it has a whole copy of, and the last
    epoch of that copy; `trouble`: why it does not answer, else empty. `doubt`: why its word does not count when the
    members change or a root is restored, else empty.
    """

    uri: str
    promised: int
    adopted: int
    epoch: int
    trouble: str
    doubt: str = ""


class Recovered(NamedTuple):
    """`epoch`: the last one of the root that was restored; `source`: the member whose copy it is."""

    generation: Generation
    epoch: int
    source: str


class _Asked(NamedTuple):
    """Members that were asked: who `answered`, why others did not, and the generations that they know. Of two that were
    begun at once both have one number.
    """

    answered: set[str]
    failed: dict[str, str]
    relevant: set[Generation]


class MemberMover:
    """Changes the members of one log. `register`: the directory of the root's generations, whose parent is there.

    `accept_loss`: members that do not answer are gone for good, however many. The log at a root that is there has
    whatever they acknowledged; of a root that is lost, what only they had is lost as well.
    """

    def __init__(
        self, storage: Storage, root: str, register: str, logs: MemberLogs, *, accept_loss: bool = False
    ) -> None:
        self._accept_loss = accept_loss
        self._storage = storage
        self._root = root
        self._register = register
        self._logs = logs

    def describe(self) -> tuple[Generation | None, list[MemberState]]:
        """The newest generation of the root, and its members as they answer."""
        generation = generations.newest(self._storage, self._register)
        return generation, [] if generation is None else [self.state_of(uri, generation) for uri in generation.members]

    def state_of(self, uri: str, generation: Generation | None = None) -> MemberState:
        """What one member answers, as one of a generation."""
        member = self._member(uri)
        try:
            promised = max((promise.number for promise in member.promises()), default=0)
            adopted = member.adopted()
            entries = member.entries(adopted) if adopted else []
            doubt = "" if generation is None else member.doubt(generation)
        except EpochlakeError as error:
            return MemberState(uri, 0, 0, 0, error.statement)
        return MemberState(uri, promised, adopted, entries[-1].epoch if entries else 0, "", doubt)

    def copied(self) -> list[Entry]:
        """The longest copy of the log that a member of the newest generation has: whatever was acknowledged and a
        majority answers is in it. Nothing in it was ever missing in the log. Empty without members, and where none
        answers.
        """
        current = generations.newest(self._storage, self._register)
        longest: list[Entry] = []
        for uri in current.members if current is not None else ():
            try:
                adopted, entries = self._copy_of(uri)
            except EpochlakeError as error:
                logger.warning("the log member %s was not asked for what the log has lost: %s", uri, error)
                continue
            if current is not None and adopted == current.number and len(entries) > len(longest):
                longest = entries
        return longest

    def unfinished(self) -> Generation | None:
        """The generation that members have promised and that the root does not name, if there is one."""
        current = generations.newest(self._storage, self._register)
        if current is None:
            return None
        later = [
            promise
            for uri in current.members
            for promise in self._promises(uri)
            if promise.number > current.number and promise.root == self._root
        ]
        return max(later, key=lambda promise: promise.number, default=None)

    def reconfigure(self, cluster_id: str, uris: Iterable[str], root: EpochLog) -> Generation:
        """Make these directories the log members; the generation. `root`: a handle on the log at the root.

        The first call of a cluster begins with members. Raises InvalidRequest, StorageUnavailable when too few answer,
        HashMismatch for a directory of another cluster.
        """
        members = generations.members_of(uris)
        tries = taken = 0
        while True:
            current = self._current()
            seen = self._require_counting(current, members)
            number = max([*seen, taken, current.number if current is not None else 0]) + 1
            try:
                return self.carry_out(self._seated(number, cluster_id, members), root)
            except Sealed as sealed:
                # A member of neither set has promised more: to somebody who was killed before he came to the others,
                # or who is at work now. Who has come to his end is not passed over.
                tries += 1
                if tries == TRIES or generations.newest(self._storage, self._register) != current:
                    raise
                taken = sealed.number

    def resume(self, root: EpochLog) -> Generation | None:
        """End the change that is unfinished, under a number of its own where another change has taken its number
        meanwhile; None where there is none. Raises as `reconfigure`.
        """
        unfinished = self.unfinished()
        if unfinished is None:
            return None
        self._require_counting(self._current(), unfinished.members, below=unfinished.number)
        try:
            return self.carry_out(unfinished, root)
        except Sealed:
            current = generations.newest(self._storage, self._register)
            if current is not None and current.number >= unfinished.number:
                raise
            return self.reconfigure(unfinished.cluster_id, unfinished.members, root)

    def _current(self) -> Generation | None:
        """The newest generation of the root. Raises LogUnreadable while its log is only partly restored."""
        generations.require_restored(self._storage, self._register)
        return generations.newest(self._storage, self._register)

    def _require_counting(self, current: Generation | None, members: Iterable[str], below: float = inf) -> list[int]:
        """Refuse a change, before anything is written, that would find too few members of generations `below` its own;
        the numbers that are promised.
        """
        before = [current] if current is not None else []
        self._require_own(current, {*members, *(current.members if current is not None else ())})
        asked = self._ask(_looked_at, before, members)
        self._require_majorities([one for one in self._that_count(asked) if one.number < below], asked)
        return [promise.number for uri in sorted(asked.answered) for promise in self._promises(uri)]

    def _seated(self, number: int, cluster_id: str, members: tuple[str, ...]) -> Generation:
        """A generation whose members have their seats, those that answer. Raises StorageUnavailable for too few."""
        token, failed = uuid.uuid4().hex, dict[str, str]()
        seats: list[Seat] = []
        for uri in members:
            try:
                seats.append(self._member(uri).give_seat(token))
            except EpochlakeError as error:
                failed[uri] = error.statement
        generation = Generation(number, cluster_id, self._root, members, token=token, seats=tuple(seats))
        self._require_majority(generation, {seat.member for seat in seats}, failed, new=True)
        return generation

    def carry_out(self, generation: Generation, root: EpochLog) -> Generation:
        """Begin a generation, or go on with one that was left unfinished. Raises as `reconfigure`."""
        current = self._current()
        if current is not None and current.number >= generation.number:
            if current == generation:
                return generation
            raise promised_to(self._register, current.number)
        self._require_own(current, {*generation.members, *(current.members if current is not None else ())})
        # Ahead of the promises, which stop all commits: what is left afterwards is short.
        entries = verified(root.read(0))
        self._on_each(generation, lambda member: member.begin(generation, _end(entries), _source(entries)))
        before = [current] if current is not None else []
        sealed = self._seal(generation, before)
        self._require_own(current, sealed)
        entries = verified(root.read(0))
        self._require_whole(current, entries, sealed, generation)
        self._adopt(generation, entries)
        self._name(generation)
        if current is None:
            self._take_over(generation, root)
        self._clear_up(generation)
        return generation

    def _take_over(self, generation: Generation, root: EpochLog) -> None:
        """Have no append succeed any more that was begun when the root had no members, and their members all others."""
        root.fence()
        entries = verified(root.read(0))
        failed = self._on_each(
            generation, lambda member: member.push(generation.number, _end(entries), _source(entries))
        )
        self._require_copied(generation, failed)

    def recover(
        self,
        uris: Iterable[str],
        create_root: Callable[[], EpochLog],
        *,
        members: Iterable[str] = (),
        require: Require = lambda cluster_id, end: None,
    ) -> Recovered:
        """Restore the log at this root from copies. `create_root`: makes it, if it is not there, and opens it.

        `uris`: every member that is left. What is restored is the longest copy of the newest generation that any has
        adopted: whatever was acknowledged is in it, as a majority of each generation that could acknowledge is asked.
        `members`: the new ones; none: `uris`. `require`: refuses an end of the log after which others know of more.

        Until its members are asked nothing is written, and until the end nobody takes the root for whole; killed at any
        point it is to be repeated. Raises StorageUnavailable when they are too few, InvalidRequest when the log that
        lies at the root is not the beginning of what is restored.
        """
        old = generations.members_of(uris)
        chosen = tuple(members)
        new = generations.members_of(chosen) if chosen else old
        known = [promise for uri in old for promise in self._promises(uri)]
        if not known:
            raise StorageUnavailable(
                f"none of {', '.join(old)} is a log member that answers", hint="Name the directories of its members"
            )
        looked = self._ask(_looked_at, known, (*old, *new))
        self._longest(looked, known[0].cluster_id, require)
        here = generations.numbers(self._storage, self._register)
        promised = [promise.number for uri in sorted(looked.answered) for promise in self._promises(uri)]
        generation = self._seated(max([*here, *promised]) + 1, known[0].cluster_id, new)
        # What the members have adopted is looked at when they can adopt and take nothing of it any more.
        asked = self._ask(lambda member: _sealed(member, generation), known, (*old, *new))
        self._require_majority(generation, asked.answered, asked.failed, new=True)
        source, entries = self._longest(asked, generation.cluster_id, require)
        generations.begin_restoring(self._storage, self._register, generation)
        self._restore(create_root(), entries)
        self._adopt(generation, entries, RECOVER_AGAIN)
        self._name(generation)
        generations.end_restoring(self._storage, self._register)
        self._clear_up(generation)
        return Recovered(generation, entries[-1].epoch, source)

    def _longest(self, asked: _Asked, cluster_id: str, require: Require) -> tuple[str, list[Entry]]:
        """The copy that has all that was acknowledged, and whose it is. Raises StorageUnavailable for too few members
        that have not lost theirs, LogUnreadable where there is none.
        """
        found: dict[str, tuple[int, list[Entry]]] = {}
        for uri in sorted(asked.answered):
            try:
                found[uri] = self._copy_of(uri)
            except (LogUnreadable, NotInitialised, StorageUnavailable) as error:
                asked.answered.discard(uri)
                asked.failed[uri] = error.statement
        self._require_majorities(self._that_count(asked), asked)
        source = max(sorted(found), key=lambda uri: (found[uri][0], len(found[uri][1])), default="")
        entries = found[source][1] if source else []
        if not entries:
            raise LogUnreadable("no member has a copy of the log that counts", hint="Name more of its members")
        require(cluster_id, position_of(entries[-1]))
        return source, entries

    def _require_own(self, current: Generation | None, uris: Iterable[str]) -> None:
        """Refuse a root that was given up: its members have been asked to restore another one."""
        for uri in sorted(uris):
            for promise in self._promises(uri):
                if promise.root != self._root and promise.number > (current.number if current is not None else 0):
                    raise InvalidRequest(
                        f"{uri} is a log member of {promise.root}, since generation {promise.number}",
                        hint=f"Use the root {promise.root}; {self._root} was given up when that one was restored",
                    )

    def _require_whole(
        self, current: Generation | None, entries: Sequence[Entry], sealed: Iterable[str], generation: Generation
    ) -> None:
        """Refuse a root that does not hold what its members have: it is an older copy.

        Compared are copies of the generation that the root names and of later ones: what is acknowledged is in each of
        them, and one that counts is here. A copy from before may end with what its member alone had when the root was
        lost, which nobody was told. Only where most members are given up, such a copy may be all that is left.
        """
        adopted = {uri: self._member(uri).adopted() for uri in sorted(sealed)}
        newest = max(adopted.values(), default=0)
        since = min(newest, current.number if current is not None else 0)
        for uri, number in adopted.items():
            if not max(1, since) <= number < generation.number:
                continue
            held = self._member(uri).entries(number)
            if held and (len(held) > len(entries) or entries[len(held) - 1].hash != held[-1].hash):
                raise LogWentBack(len(entries), held[-1].epoch, held[-1].hash, f"the log member {uri}")

    def _copy_of(self, uri: str) -> tuple[int, list[Entry]]:
        member = self._member(uri)
        adopted = member.adopted()
        return adopted, member.entries(adopted) if adopted else []

    def _restore(self, root: EpochLog, entries: Sequence[Entry]) -> None:
        there = root.read(0)
        if [entry.hash for entry in there] != [entry.hash for entry in entries[: len(there)]]:
            raise InvalidRequest(
                f"the log at {self._root} is not the beginning of what its members have",
                hint="If that log was lost, or goes back, move it away and try again, or choose an empty root; that "
                "of a cluster that goes on needs no recovery",
            )
        for start in range(len(there), len(entries), PART):
            root.append(entries[start : start + PART])

    def _seal(self, generation: Generation, before: Sequence[Generation]) -> set[str]:
        """Have `generation` promised by a majority of every one that may have acknowledged something, and of its own
        members; by whom it was.
        """
        asked = self._ask(lambda member: _sealed(member, generation), before, generation.members)
        self._require_majorities(self._that_count(asked), asked)
        self._require_majority(generation, asked.answered, asked.failed, new=True)
        return asked.answered

    def _ask(
        self,
        ask: Callable[[LogMember], Sequence[Generation]],
        before: Sequence[Generation],
        others: Iterable[str],
    ) -> _Asked:
        """Ask these, the members of generations before, and of all those that any of them says to have promised."""
        asked = _Asked(set(), {}, set(before))
        while True:
            everybody = {*others, *(uri for one in asked.relevant for uri in one.members)}
            new = sorted(everybody - asked.answered - set(asked.failed))
            if not new:
                return asked
            for uri in new:
                try:
                    # Who was promised before may have gone on to members that are not known here.
                    asked.relevant.update(ask(self._member(uri)))
                    asked.answered.add(uri)
                except Sealed:
                    raise
                except (StorageUnavailable, AppendUncertain) as error:
                    asked.failed[uri] = error.statement

    def _that_count(self, asked: _Asked) -> list[Generation]:
        """The generations that may have acknowledged what no later one has: from the newest that was adopted on.

        One is adopted only after a majority of all before it has promised it, and what is adopted holds all of theirs;
        another one of its number has not been promised by so many, and never will be.
        """
        by_whom = {uri: self._member(uri).adopted() for uri in sorted(asked.answered)}
        adopted = max(by_whom.values(), default=0)
        theirs = {
            promise
            for uri, number in by_whom.items()
            if number == adopted
            for promise in self._promises(uri)
            if promise.number == adopted
        }
        # Who has lost the promise under which he adopted does not say which one it was.
        newest = theirs or {one for one in asked.relevant if one.number == adopted}
        later = {one for one in asked.relevant if one.number > adopted}
        return sorted(newest | later, key=lambda one: (one.number, one.members, one.token))

    def _require_majorities(self, earlier: Sequence[Generation], asked: _Asked) -> None:
        """Refuse to go on without a majority of each of these that answers and has not lost what it held."""
        for one in () if self._accept_loss else earlier:
            counting, failed = set[str](), dict(asked.failed)
            for uri in sorted(asked.answered & set(one.members)):
                if doubt := self._member(uri).doubt(one):
                    failed[uri] = doubt
                else:
                    counting.add(uri)
            self._require_majority(one, counting, failed)

    def _require_majority(
        self, one: Generation, counting: Collection[str], failed: Mapping[str, str], *, new: bool = False
    ) -> None:
        if len(set(counting) & set(one.members)) >= one.majority:
            return
        said = "; ".join(f"{uri}: {failed[uri]}" for uri in one.members if uri in failed and uri not in counting)
        raise StorageUnavailable(
            f"too few members of generation {one.number} of the log members answer and have what they held: "
            f"{one.majority} of {', '.join(one.members)} are needed ({said or 'the others were not named'})",
            hint="Mount the disks of those that are missing, and try again"
            + ("" if new else "; if they are gone for good, give --accept-loss"),
        )

    def _clear_up(self, generation: Generation) -> None:
        """Delete what members of a generation that the root names keep of those before it. Nothing depends on it."""
        for uri, error in self._on_each(generation, lambda member: member.clear_before(generation.number)).items():
            logger.warning("%s still keeps generations of the log members that are over: %s", uri, error)

    def _adopt(self, generation: Generation, entries: Sequence[Entry], again: str = RESUME) -> None:
        """Copy the log to a majority of the new members, and to the others as far as they answer."""

        def adopt(member: LogMember) -> None:
            # Whoever has a copy that counts can say of which generation.
            _sealed(member, generation)
            member.adopt(generation, _end(entries), _source(entries))

        self._require_copied(generation, self._on_each(generation, adopt), again)

    def _require_copied(
        self, generation: Generation, failed: Mapping[str, EpochlakeError], again: str = RESUME
    ) -> None:
        if len(generation.members) - len(failed) < generation.majority:
            raise StorageUnavailable(
                f"generation {generation.number} of the log members was not copied to {generation.majority} of them: "
                + "; ".join(f"{uri}: {error.statement}" for uri, error in sorted(failed.items())),
                hint=again,
            )

    def _on_each(self, generation: Generation, step: Callable[[LogMember], None]) -> dict[str, EpochlakeError]:
        failed: dict[str, EpochlakeError] = {}
        for uri in generation.members:
            try:
                step(self._member(uri))
            except EpochlakeError as error:
                failed[uri] = error
        return failed

    def _name(self, generation: Generation) -> None:
        if not generations.put(self._storage, self._register, generation):
            raise promised_to(self._register, generation.number)

    def _promises(self, uri: str) -> list[Generation]:
        try:
            return self._member(uri).promises()
        except StorageUnavailable:
            return []

    def _member(self, uri: str) -> LogMember:
        return LogMember(self._storage, uri, self._logs)


def _looked_at(member: LogMember) -> list[Generation]:
    """What a member has promised. Raises StorageUnavailable where its directory is not there."""
    member.require_there()
    return member.promises()


def _sealed(member: LogMember, generation: Generation) -> list[Generation]:
    """Have a member promise a generation; what it has promised before."""
    member.seal(generation)
    return [one for one in member.promises() if one.number < generation.number]


def _end(entries: Sequence[Entry]) -> Position:
    return position_of(entries[-1]) if entries else Position()


def _source(entries: Sequence[Entry]) -> Source:
    return lambda after, up_to: entries[after:up_to]
