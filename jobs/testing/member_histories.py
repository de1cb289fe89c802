"""Log members in histories of commits: operators who change them and restore lost roots, and what is looked at from
outside meanwhile.

What the members hold is read from their files, past the world's troubles. Nothing here asks production code whether an
epoch is durable.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from epochlake.jobs.testing.disk import MEMBERS, ROOT
from epochlake.jobs.testing.member_drawing import MOST_LOST
from epochlake.jobs.testing.nemesis import DATA, Nemesis
from epochlake.jobs.testing.power import is_below
from epochlake.jobs.testing.scenario import Fault, Operation
from epochlake.jobs.testing.world import DIRECTORIES, World, member
from epochlake.jobs.upkeep import log_members
from epochlake.metastore.configuration import EMBEDDED
from epochlake.metastore.errors import LogUnreadable, StorageUnavailable
from epochlake.metastore.log.entry import Entry
from epochlake.metastore.log.generations import DIRECTORY, Generation
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.decoding import decodable
from epochlake.placement.errors import EpochlakeError, InvalidRequest

if TYPE_CHECKING:
    from epochlake.jobs.testing.playing import Player, Playing

TRIES = 8
"""So often an operator tries to bring the members in order when nothing goes wrong any more."""

RETRY_SECONDS = 1.0


class Members:
    """The log members of one history. `unexpected`: what does not hold of them."""

    def __init__(self, world: World, unexpected: list[str]) -> None:
        self._world = world
        self._unexpected = unexpected
        self._nemesis: Nemesis | None = None
        self._restored = 0
        """How many exchanges of the root have been answered by a recovery."""
        self._followed: dict[int, str] = {}
        """The state of each epoch that somebody has followed to."""
        self._held_once: dict[str, set[tuple[int, str]]] = {}
        """By directories: the epochs that were in whole copies there when it was destroyed, with their states."""
        self._adopted_once: dict[str, set[int]] = {}
        """And of which generations these copies were."""
        self._whole: set[str] = set()
        """The directories that have had a whole copy since they were destroyed, if they were."""
        self._may_be_refused = False
        """Whether more is destroyed than a set of members can lose."""
        self.was_given_up = False
        """Whether what was lost was given up by people, as a recovery was refused."""
        compared = random.Random(repr(("compared", world.seed))).random() < 0.5
        alone = msgspec.structs.replace(world.configuration.zookeeper, connect=EMBEDDED)
        self._recovering = (
            world.configuration if compared else msgspec.structs.replace(world.configuration, zookeeper=alone)
        )
        """What recoveries are configured with: of two histories one does without what ZooKeeper knows."""

    def watch(self, nemesis: Nemesis, faults: Iterable[Fault]) -> None:
        """Know what is done to the directories from now on; of all that is to be done `faults`."""
        self._nemesis = nemesis
        nemesis.before_exchange = self._note_what_goes
        lost = {fault.place for fault in faults if fault.kind in DATA and is_below(fault.place, MEMBERS)}
        self._may_be_refused = len(lost) > MOST_LOST

    # What operators do

    def play(self, playing: Playing, player: Player, thread: int) -> None:
        """All that a thread of an operator has to do."""
        for _, operation in player.left(thread):
            self._world.scheduler.sleep(operation.wait)
            playing.doing(player, thread, operation)
            self._do(operation)
            playing.done(player, thread)

    def _do(self, operation: Operation) -> None:
        self._require_named_copies()
        self._require_kept()
        world = self._world
        configuration, storage = world.configuration, world.storage(world.scheduler.current.process)
        match operation.kind:
            case "reconfigure":
                chosen = log_members.named(configuration, storage, [member(number) for number in operation.keys])
                done: object = self._end(
                    lambda: log_members.reconfigure(configuration, storage, chosen, lambda: "world")
                )
            case "resume members":
                done = self._end(lambda: log_members.resume(configuration, storage))
            case "cancel members":
                done = self._end(lambda: log_members.cancel(configuration, storage))
            case "describe members":
                done = log_members.describe(configuration, storage).unfinished
            case "recover":
                done = self._recover()
            case unknown:
                raise ValueError(f"nobody knows the operation {unknown!r}")
        world.scheduler.note(f"{operation.kind}: {done}")

    def _end(self, change: Callable[[], Generation]) -> object:
        """Make or end a change, after which no number is unfinished that was there before it."""
        world = self._world
        storage = world.storage(world.scheduler.current.process)
        before = log_members.unfinished(world.configuration, storage)
        try:
            ended = change().number
        except InvalidRequest as error:
            return str(error)
        left = log_members.unfinished(world.configuration, storage)
        if left is not None and left <= max(ended, before or 0):
            self._unexpected.append(f"generation {ended} of the log members was ended, and {left} is unfinished")
        return ended

    def _recover(self) -> object:
        """Restore the root from all directories that are left, if it was lost, or has come back as it was."""
        world, exchanged = self._world, self._exchanged()
        if exchanged <= self._restored:
            return None
        storage = world.storage(world.scheduler.current.process)
        followed = dict(self._followed)
        done = log_members.recover(self._recovering, storage, [member(n) for n in range(1, DIRECTORIES + 1)])
        self._restored = max(self._restored, exchanged)
        self._require_restored(followed, done)
        return done

    def _require_restored(self, followed: dict[int, str], done: log_members.RootRestored) -> None:
        """What a recovery was content with has whatever somebody had followed to before it began."""
        held = self._held(done.source, done.generation)
        # The member may have been emptied since.
        lost = [epoch for epoch, state in followed.items() if held.get(epoch) != state] if held else []
        if lost:
            self._unexpected.append(
                f"the root was restored up to epoch {done.epoch} without epochs {sorted(lost)}, which somebody knew"
            )

    def _held(self, uri: str, number: int) -> dict[int, str]:
        """The state of each epoch in the copy of a generation on a member, past the world's troubles; in another copy
        where it has gone on.
        """
        disk, generations = self._world.disk, f"{uri}/generations"
        there = sorted(disk.names(generations)) if disk.status(generations) is not None else []
        if f"{number:020}" not in there and there:
            number = int(there[-1].partition(".")[0])
        return self._copy_of(uri, number)

    def _exchanged(self) -> int:
        return self._nemesis.exchanged[ROOT] if self._nemesis is not None else 0

    @property
    def has_root(self) -> bool:
        """Whether the root is as it was left, or restored."""
        return self._exchanged() <= self._restored

    def bring_in_order(self) -> None:
        """Restore a root that is lost, and end what is unfinished: what people do when nothing goes wrong any more."""
        world = self._world
        self._require_named_copies()
        storage = world.storage(world.scheduler.current.process)
        chance = random.Random(repr(("members", world.seed)))
        said = ""
        for _ in range(TRIES):
            try:
                world.scheduler.note(f"at peace, recover: {self._recover()}")
                if log_members.unfinished(world.configuration, storage) is None:
                    self._without_doubts(storage)
                    return
                end = chance.choice([log_members.resume, log_members.cancel])
                ended = self._end(partial(end, world.configuration, storage))
                world.scheduler.note(f"at peace, {end.__name__}: {ended}")
            except EpochlakeError as error:
                said = str(error)
                world.scheduler.note(f"at peace: {error}")
            world.scheduler.sleep(RETRY_SECONDS)
        if not self._may_be_refused:
            self._unexpected.append(f"the log members do not come in order: {said}")
        self.was_given_up = True
        world.scheduler.note(f"at peace, given up: {self._give_up(storage)}")

    def _give_up(self, storage: Storage) -> object:
        """Go on without what is lost, as people are told to."""
        configuration, everybody = self._world.configuration, [member(n) for n in range(1, DIRECTORIES + 1)]
        try:
            if self._exchanged() > self._restored:
                return log_members.recover(configuration, storage, everybody, accept_loss=True)
            chosen = log_members.named(configuration, storage, everybody[:3])
            return log_members.reconfigure(configuration, storage, chosen, lambda: "world", accept_loss=True)
        except LogUnreadable as error:
            return error  # no member has a copy
        except EpochlakeError as error:
            self._unexpected.append(f"what is lost cannot be given up: {error}")
            return error

    # What is looked at from outside

    def require_durable(self, metadata: ClusterMetadata) -> None:
        """Whoever follows to an epoch has it from a log that outlives the root: a majority of the newest members that
        have whole copies holds it there. What was destroyed has held what was there right before.
        """
        self._require_kept()
        self._followed[metadata.epoch] = metadata.state_id
        adopted = [one for one in self._generations() if self._is_adopted(one)]
        if not adopted:
            if metadata.epoch > 1:
                self._unexpected.append(f"epoch {metadata.epoch} was followed to, and no log member has a copy")
            return
        newest = max(adopted, key=lambda one: one.number)
        epoch = (metadata.epoch, metadata.state_id)
        holding = [
            uri
            for uri in newest.members
            if epoch in self._held_once.get(uri, ()) or self._holds(uri, newest.number, metadata)
        ]
        if not _is_majority(len(holding), newest):
            self._unexpected.append(
                f"{self._world.scheduler.current.process.name} has followed to epoch {metadata.epoch}, and of the log "
                f"members {[_name(uri) for uri in newest.members]} only {[_name(uri) for uri in holding]} have it"
            )

    def _note_what_goes(self, place: str) -> None:
        """A directory is about to be destroyed."""
        self._whole.discard(place)
        if not is_below(place, MEMBERS):
            return
        for number in self._whole_copies(place):
            self._adopted_once.setdefault(place, set()).add(number)
            self._held_once.setdefault(place, set()).update(self._copy_of(place, number).items())

    def _require_kept(self) -> None:
        """Whoever had a whole copy of the log keeps one until he has a later one, which is the last resort of all."""
        for number in range(1, DIRECTORIES + 1):
            uri = member(number)
            if self._whole_copies(uri):
                self._whole.add(uri)
            elif uri in self._whole:
                self._whole.discard(uri)
                self._unexpected.append(f"{_name(uri)} had a whole copy of the log, and has none any more")

    def _whole_copies(self, uri: str) -> list[int]:
        """The generations of which a directory has a whole copy, and has promised to have it."""
        disk, there = self._world.disk, f"{uri}/generations"
        if disk.status(there) is None:
            return []
        return [int(name) for name in disk.names(there) if name.isdecimal() and self._is_whole(uri, int(name))]

    def _is_whole(self, uri: str, number: int) -> bool:
        disk = self._world.disk
        promised = disk.status(f"{uri}/promises/{number:020}.json") is not None
        return promised and disk.status(f"{_copy(uri, number)}/adopted") is not None

    def _generations(self) -> list[Generation]:
        """All that any directory has promised."""
        disk, found = self._world.disk, dict[str, Generation]()
        for number in range(1, DIRECTORIES + 1):
            place = f"{member(number)}/promises"
            if disk.status(place) is None:
                continue
            for name in disk.names(place):
                if name.endswith(".json") and name not in found:
                    one = msgspec.json.decode(disk.read(f"{place}/{name}"), type=decodable(Generation))
                    found[f"{name} {one.members}"] = one
        return list(found.values())

    def _is_adopted(self, generation: Generation) -> bool:
        """Whether a majority of its members has whole copies, or had before they were destroyed."""
        count = sum(
            self._is_whole(uri, generation.number) or generation.number in self._adopted_once.get(uri, ())
            for uri in generation.members
        )
        return _is_majority(count, generation)

    def _require_named_copies(self) -> None:
        """The root names a generation when a majority of its members has the log, and not before. A root that has come
        back as it was may name a generation whose copies are over, until it is restored.
        """
        if self._exchanged() > self._restored:
            return
        disk, register = self._world.disk, f"{ROOT}/{DIRECTORY}"
        if disk.status(register) is None:
            return
        names = [name for name in disk.names(register) if name.endswith(".json")]
        if not names:
            return
        named = msgspec.json.decode(disk.read(f"{register}/{max(names)}"), type=decodable(Generation))
        if not self._is_adopted(named):
            self._unexpected.append(
                f"the root names generation {named.number} of the log members, and no majority has whole copies"
            )

    def _holds(self, uri: str, number: int, metadata: ClusterMetadata) -> bool:
        return self._is_whole(uri, number) and self._copy_of(uri, number).get(metadata.epoch) == metadata.state_id

    def _copy_of(self, uri: str, number: int) -> dict[int, str]:
        """The state of each epoch in a directory's copy of a generation, past the world's troubles."""
        place = f"{_copy(uri, number)}/log"
        if self._world.disk.status(f"{place}/_delta_log") is None:
            return {}
        if self._world.folder is None:
            return {entry.epoch: entry.state_id for entry in self._world.logs.entries(place)}
        return {row["epoch"]: row["state_id"] for row in self._world.folder.rows(place)}

    # At rest

    def _without_doubts(self, storage: Storage) -> log_members.LogMembers:
        """The members, when those that were emptied or restored from a copy were made whole, as people are told."""
        configuration = self._world.configuration
        now = log_members.describe(configuration, storage)
        if now.unfinished is not None or not any(row.doubt for row in now.members):
            return now
        self._world.scheduler.note(f"in doubt: {[_name(row.member) for row in now.members if row.doubt]}")
        same = log_members.named(configuration, storage, [row.member for row in now.members])
        try:
            log_members.reconfigure(configuration, storage, same, lambda: "world")
        except StorageUnavailable as error:
            if not self._may_be_refused:
                self._unexpected.append(f"at rest: {error}")
            log_members.reconfigure(configuration, storage, same, lambda: "world", accept_loss=True)
        return log_members.describe(configuration, storage)

    def lose_the_root(self, entries: list[Entry]) -> list[str]:
        """The root is lost, and as many members as their majority can do without: a recovery gives all entries back."""
        world = self._world
        process = world.scheduler.current.process
        storage = world.storage(process)
        self._require_kept()
        now = self._without_doubts(storage)
        if now.unfinished is not None:
            return [f"generation {now.unfinished} of the log members is unfinished at rest"]
        if late := [row for row in now.members if row.trouble]:
            return [f"at rest the log member {_name(row.member)} says {row.trouble}" for row in late]
        holding = [row.member for row in now.members if row.adopted == now.generation and row.epoch == len(entries)]
        # Those go first that have everything, as far as they may.
        going = sorted(holding)[: (len(now.members) - 1) // 2]
        if len(holding) < len(now.members):
            # Who was late or blank counts as one of those that are gone.
            going = going[: max(0, len(holding) - len(now.members) // 2 - 1)]
        for place in (ROOT, *going):
            world.empty(place)
            world.cuttable.forget(place)
        world.scheduler.note(f"the root and {[_name(uri) for uri in going]} are lost")
        log_members.recover(
            world.configuration, storage, [member(n) for n in range(1, DIRECTORIES + 1) if member(n) not in going]
        )
        found = world.log(process).read(0)
        if found == entries:
            return []
        return [f"the root was lost at epoch {len(entries)}, and what was restored ends at {len(found)}"]


def _is_majority(count: int, generation: Generation) -> bool:
    return 2 * count > len(generation.members)


def _copy(uri: str, number: int) -> str:
    return f"{uri}/generations/{number:020}"


def _name(uri: str) -> str:
    return uri.removeprefix(f"{MEMBERS}/")
