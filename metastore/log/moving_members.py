"""Changing the log members, and restoring a lost root from them (docs/decisions/107-log-members.md).

Both are one procedure. A new generation is promised by a majority of every generation that may have acknowledged
something, so that none of these acknowledges anything any more; then whatever they hold is copied to a majority of the
new members; then the root names the generation. Every step can be repeated, by anybody, after a kill at any point.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from epochlake.metastore.errors import LogUnreadable, LogWentBack, StorageUnavailable
from epochlake.metastore.log import generations
from epochlake.metastore.log.entry import Entry, Position, position_of
from epochlake.metastore.log.epoch_log import AppendUncertain, EpochLog
from epochlake.metastore.log.generations import Generation
from epochlake.metastore.log.log_member import PART, LogMember, MemberLogs, Sealed, Source, promised_to, verified
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import EpochlakeError, InvalidRequest

logger = logging.getLogger(__name__)

TRIES = 3
"""How often a change is begun under a new number when a member turns out to have promised its number to another one."""


class MemberState(NamedTuple):
    """A member as it answers: the newest generation that it has promised and that it has a whole copy of, and the last
    epoch of that copy; `trouble`: why it does not answer, else empty.
    """

    uri: str
    promised: int
    adopted: int
    epoch: int
    trouble: str


class Recovered(NamedTuple):
    """`epoch`: the last one of the root that was restored; `source`: the member whose copy it is."""

    generation: Generation
    epoch: int
    source: str


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
        return generation, [] if generation is None else [self.state_of(uri) for uri in generation.members]

    def state_of(self, uri: str) -> MemberState:
        """What one member answers."""
        member = self._member(uri)
        try:
            promised = max((promise.number for promise in member.promises()), default=0)
            adopted = member.adopted()
            entries = member.entries(adopted) if adopted else []
        except EpochlakeError as error:
            return MemberState(uri, 0, 0, 0, error.statement)
        return MemberState(uri, promised, adopted, entries[-1].epoch if entries else 0, "")

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
            current = generations.newest(self._storage, self._register)
            asked = {*members, *(current.members if current is not None else ())}
            seen = [promise.number for uri in asked for promise in self._promises(uri)]
            number = max([*seen, taken, current.number if current is not None else 0]) + 1
            try:
                return self.carry_out(Generation(number, cluster_id, self._root, members), root)
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
        try:
            return self.carry_out(unfinished, root)
        except Sealed:
            current = generations.newest(self._storage, self._register)
            if current is not None and current.number >= unfinished.number:
                raise
            return self.reconfigure(unfinished.cluster_id, unfinished.members, root)

    def carry_out(self, generation: Generation, root: EpochLog) -> Generation:
        """Begin a generation, or go on with one that was left unfinished. Raises as `reconfigure`."""
        current = generations.newest(self._storage, self._register)
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
        self._require_whole(entries, sealed, generation)
        self._adopt(generation, entries)
        self._name(generation)
        return generation

    def recover(self, uris: Iterable[str], create_root: EpochLog, *, members: Iterable[str] = ()) -> Recovered:
        """Restore the log at this root from copies; `create_root`: a handle on it, empty or left by an earlier try.

        `uris`: every member that is left. What is restored is the longest copy of the newest generation that any has
        adopted: whatever was acknowledged is in it, as a majority of each generation that could acknowledge is asked.
        `members`: the new ones; none: `uris`. Raises StorageUnavailable when they are too few, InvalidRequest when the
        log that lies at the root is not the beginning of what is restored.
        """
        old = generations.members_of(uris)
        chosen = tuple(members)
        new = generations.members_of(chosen) if chosen else old
        known = [promise for uri in old for promise in self._promises(uri)]
        if not known:
            raise StorageUnavailable(
                f"none of {', '.join(old)} is a log member that answers", hint="Name the directories of its members"
            )
        here = generations.numbers(self._storage, self._register)
        number = max([*here, *(promise.number for promise in known)]) + 1
        generation = Generation(number, known[0].cluster_id, self._root, new)
        # What the members have adopted is looked at when they can adopt and take nothing of it any more.
        sealed = self._seal(generation, known, old)
        found = {uri: self._copy_of(uri) for uri in sealed}
        source = max(found, key=lambda uri: (found[uri][0], len(found[uri][1])))
        entries = found[source][1]
        if not entries:
            raise LogUnreadable("no member has a copy of the log that counts", hint="Name more of its members")
        self._restore(create_root, entries)
        self._adopt(generation, entries)
        self._name(generation)
        return Recovered(generation, entries[-1].epoch, source)

    def _require_own(self, current: Generation | None, uris: Iterable[str]) -> None:
        """Refuse a root that was given up: its members have been asked to restore another one."""
        for uri in sorted(uris):
            for promise in self._promises(uri):
                if promise.root != self._root and promise.number > (current.number if current is not None else 0):
                    raise InvalidRequest(
                        f"{uri} is a log member of {promise.root}, since generation {promise.number}",
                        hint=f"Use the root {promise.root}; {self._root} was given up when that one was restored",
                    )

    def _require_whole(self, entries: Sequence[Entry], sealed: Iterable[str], generation: Generation) -> None:
        """Refuse a root that does not hold what its members have: it is an older copy."""
        for uri in sorted(sealed):
            adopted, held = self._copy_of(uri)
            if (
                held
                and adopted < generation.number
                and (len(held) > len(entries) or entries[len(held) - 1].hash != held[-1].hash)
            ):
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
                hint="Choose an empty root; that of a cluster that goes on needs no recovery",
            )
        for start in range(len(there), len(entries), PART):
            root.append(entries[start : start + PART])

    def _seal(self, generation: Generation, before: Sequence[Generation], others: Sequence[str] = ()) -> set[str]:
        """Have `generation` promised by a majority of every one that may have acknowledged something, and of its own
        members; by whom it was.
        """
        sealed: set[str] = set()
        failed: dict[str, EpochlakeError] = {}
        relevant = {one.number: one for one in before}
        while True:
            asked = {*generation.members, *others, *(uri for one in relevant.values() for uri in one.members)}
            new = sorted(asked - sealed - set(failed))
            if not new:
                break
            for uri in new:
                member = self._member(uri)
                try:
                    member.seal(generation)
                    sealed.add(uri)
                    # Who was promised before may have gone on to members that are not known here.
                    relevant |= {one.number: one for one in member.promises() if one.number < generation.number}
                except Sealed:
                    raise
                except (StorageUnavailable, AppendUncertain) as error:
                    failed[uri] = error
        earlier = [] if self._accept_loss else self._that_count(relevant, sealed)
        for one in [*earlier, generation]:
            if len(sealed & set(one.members)) < one.majority:
                said = "; ".join(f"{uri}: {error.statement}" for uri, error in sorted(failed.items()))
                raise StorageUnavailable(
                    f"too few members of generation {one.number} of the log members answer: {one.majority} of "
                    f"{', '.join(one.members)} are needed ({said or 'the others were not named'})",
                    hint="Mount the disks of those that are missing, and try again"
                    + ("; if they are gone for good, give --accept-loss" if one is not generation else ""),
                )
        return sealed

    def _that_count(self, relevant: dict[int, Generation], sealed: set[str]) -> list[Generation]:
        """The generations that may have acknowledged what no later one has: from the newest that was adopted on.

        One is adopted only after a majority of all before it has promised it, and what is adopted holds all of theirs.
        """
        adopted = max((self._member(uri).adopted() for uri in sealed), default=0)
        return [one for number, one in sorted(relevant.items()) if number >= adopted]

    def _adopt(self, generation: Generation, entries: Sequence[Entry]) -> None:
        """Copy the log to a majority of the new members, and to the others as far as they answer."""

        def adopt(member: LogMember) -> None:
            # Whoever has a copy that counts can say of which generation.
            member.seal(generation)
            member.adopt(generation, _end(entries), _source(entries))

        failed = self._on_each(generation, adopt)
        if len(generation.members) - len(failed) < generation.majority:
            raise StorageUnavailable(
                f"generation {generation.number} of the log members was not copied to {generation.majority} of them: "
                + "; ".join(f"{uri}: {error.statement}" for uri, error in sorted(failed.items())),
                hint="Mend those, and run the command again with --resume",
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


def _end(entries: Sequence[Entry]) -> Position:
    return position_of(entries[-1]) if entries else Position()


def _source(entries: Sequence[Entry]) -> Source:
    return lambda after, up_to: entries[after:up_to]
