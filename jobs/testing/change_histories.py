"""Change streams in histories of rows: followers that read while everything goes on, and what they must be given.

The checker knows what was asked and said: writes, what they were told, and what followers were given at which position.
Of the index, of intents and replicas it knows nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from epochlake.jobs.administration.change_streams import keep_changes
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.replicas.change_index import ChangesGone
from epochlake.jobs.testing.disk import ACCESS_SECONDS
from epochlake.jobs.testing.nemesis import FOLLOWING
from epochlake.jobs.testing.rows import TABLE
from epochlake.jobs.testing.scenario import Settings
from epochlake.jobs.upkeep.change_streams import keep_up
from epochlake.jobs.views.change_streams import stream_statuses
from epochlake.metastore.announcing import EXPIRE_SECONDS, stored_leases

if TYPE_CHECKING:
    from epochlake.jobs.testing.row_checkers import Access
    from epochlake.jobs.testing.world import World

SHORT_SECONDS = 4.0
"""For how long changes are kept in histories in which they go: followers have to keep up, or begin again."""

MARGIN_SECONDS = 60.0

HELD_SECONDS = 1e6
"""For so long they are kept at most for followers that have not read them, where all others go at once: for longer than
clocks go wrong.
"""


class Change(NamedTuple):
    """A change as a follower was given it; `written_at` microseconds."""

    position: int
    key: int
    kind: str
    note: str | None
    written_at: int
    late: bool


class Pass(NamedTuple):
    """A follower has read up to a position: it began and ended at these steps of the scheduler."""

    who: str
    began: float
    ended: float
    position: int


class Follower(msgspec.Struct):
    """What a follower keeps of its own, whoever of its processes is killed: what it has dealt with, up to where.

    `restarted`: at which positions it had to begin again.
    """

    name: str
    position: int | None = None
    given: list[Change] = []
    restarted: list[int] = []


class PartReaders:
    """Readers of single streams, one for each of a generation, and of the next one when all of them have finished.

    What they keep is their own, whoever of their processes is killed. `given`: all changes, by generation and in the
    order in which they were dealt with; `began_again`: what they needed was dropped.
    """

    def __init__(self) -> None:
        self.given: list[tuple[int, Change]] = []
        self.began_again = False
        self.generation = 1
        self._positions: dict[int, int] = {}
        self._finished: set[int] = set()
        self._turn = 0

    def read_some(self, cluster: Cluster) -> None:
        """Let the reader whose turn it is read what there is for it."""
        left = self._left(cluster)
        self._turn += 1
        for stream in left[self._turn % max(len(left), 1) :][:1]:
            self._read(cluster, stream)

    def read_rest(self, cluster: Cluster) -> None:
        """Let all of them read what there is, generation by generation."""
        done = 0
        while done != self.generation and not self.began_again:
            done = self.generation
            for stream in self._left(cluster):
                self._read(cluster, stream)
            self._left(cluster)

    def _left(self, cluster: Cluster) -> list[int]:
        """The streams of the generation that is read which have not ended; where all have, of the next one."""
        known = {one.generation: one for one in cluster.change_generations(TABLE) if one.begins is not None}
        mine = known.get(self.generation)
        if mine is not None and len(self._finished) == len(mine.streams):
            self.generation, self._positions, self._finished = self.generation + 1, {}, set()
            mine = known.get(self.generation)
        self.began_again = self.began_again or (bool(known) and self.generation < min(known))
        if mine is None or self.began_again:
            return []
        return [one.stream for one in mine.streams if one.stream not in self._finished]

    def _read(self, cluster: Cluster, stream: int) -> None:
        generation, after = self.generation, self._positions.get(stream)
        try:
            changes = cluster.changes(TABLE, after=after, generation=generation, stream=stream)
            news = [_change(row) for batch in changes for row in batch.to_pylist()]
        except ChangesGone:
            self.began_again = True
            return
        if (self.generation, self._positions.get(stream)) != (generation, after):
            return  # another of its processes was faster: what this one was given counts for nothing
        self.given += [(self.generation, change) for change in news]
        self._positions[stream] = changes.position
        if changes.finished:
            self._finished.add(stream)


class ChangeFollowers:
    """All followers of a history, and how far they came when."""

    def __init__(self, world: World) -> None:
        self.given: Callable[[Cluster, Iterable[Change]], None] = lambda *_: None
        """Told of the changes that somebody has just been given."""
        self._world = world
        self._followers: dict[str, Follower] = {}
        self.passes: list[Pass] = []
        self.parts = PartReaders()

    def begin(self, cluster: Cluster, changes: str, names: Iterable[str]) -> None:
        """Let the table's changes be kept, as nothing goes wrong yet. `names`: of those who will follow them, for whom
        all are kept from now on where they are "held".
        """
        match changes:
            case "short":
                keep_changes(cluster, TABLE, retention_seconds=0.0, limit_seconds=SHORT_SECONDS)
            case "held":
                keep_changes(cluster, TABLE, retention_seconds=0.0, limit_seconds=HELD_SECONDS)
                for name in names:
                    position = cluster.changes(TABLE, reader=name).position
                    self._followers[name] = Follower(name, position, given=[], restarted=[])
            case _:
                keep_changes(cluster, TABLE)

    def follow(self, cluster: Cluster, name: str) -> None:
        """Read what there is after what was dealt with, and tell so now and then, as somebody does who may die."""
        follower = self._followers.setdefault(name, Follower(name, given=[], restarted=[]))
        began = self._world.scheduler.steps
        try:
            changes = cluster.changes(TABLE, after=follower.position, reader=name)
            pending: list[Change] = []
            for batch in changes:
                news = [_change(row) for row in batch.to_pylist()]
                self.given(cluster, news)
                pending += news
                _deal_with(follower, pending, changes.position)
                self._world.scheduler.access(FOLLOWING, ACCESS_SECONDS)
                self._world.scheduler.meet(self._world.scheduler.current.process, FOLLOWING)
            _deal_with(follower, pending, changes.position)
            self.passes.append(Pass(name, began, self._world.scheduler.steps, changes.position))
            changes.commit()
            self.parts.read_some(cluster)
        except ChangesGone as gone:
            follower.position = gone.position
            follower.restarted.append(gone.position)

    def everything(self, cluster: Cluster) -> list[Change]:
        """The whole stream, as somebody reads it who comes last; with what is kept of it only."""
        found: list[Change] = []
        for batch in cluster.changes(TABLE):
            found += [_change(row) for row in batch.to_pylist()]
        return found

    def at_rest(
        self, cluster: Cluster, shown: dict[int, list[str | None]], settings: Settings, *, in_time: bool
    ) -> StreamHistory:
        """The stream as it is when nothing goes on and reads show `shown`, and what followers were given of it."""
        for follower in self.all:
            self.follow(cluster, follower.name)
        # Where changes go as soon as all followers have them, they are what is left of the stream.
        held = settings.changes == "held" and self.all
        whole = self.all[0].given if held else self.everything(cluster)
        short = settings.changes == "short"
        told = [] if held else _told_otherwise(cluster, whole)
        known = _generations(cluster)
        self.parts.read_rest(cluster)
        parts = None if held else tuple(self.parts.given)  # nothing is kept for who has no name
        return StreamHistory(
            whole,
            self.all,
            self.passes,
            shown,
            settings.append_only,
            in_time,
            short,
            told,
            parts,
            known,
            self.parts.generation,
        )

    @property
    def all(self) -> list[Follower]:
        return list(self._followers.values())


def _generations(cluster: Cluster) -> dict[int, tuple[int, int | None]]:
    """Where each generation of streams begins and ends that has begun, as programs are told."""
    return {
        one.generation: (one.begins, one.ends) for one in cluster.change_generations(TABLE) if one.begins is not None
    }


def _told_otherwise(cluster: Cluster, stream: Sequence[Change]) -> list[str]:
    """What operators are told of the stream as it is at rest, and readers are not given."""
    [status] = stream_statuses(cluster, cluster.catch_up())
    found = []
    if status.rows != len(stream):
        found.append(f"the stream is said to have {status.rows} rows, and readers are given {len(stream)}")
    positions = {change.position for change in stream}
    for reader in status.readers:
        behind = sum(position > reader.position for position in positions)
        if not reader.gone and reader.behind != behind:
            found.append(f"reader {reader.name} is said to be {reader.behind} writes behind, and is given {behind}")
    return found


def settled(world: World, cluster: Cluster) -> list[str]:
    """Bring into the stream what has landed; what is left afterwards that a healed world should not leave."""
    [stream] = cluster.catch_up().change_streams.by_table.values()
    report = keep_up(cluster, stream)
    report = keep_up(cluster, stream) if report.open else report
    if report.open and stored_leases(cluster.storage, cluster.root.leases):
        # Who has died when he did not reach ZooKeeper is taken for alive by what he has left at the root.
        world.scheduler.sleep(EXPIRE_SECONDS + MARGIN_SECONDS)
        report = keep_up(cluster, stream)
    return [] if report.begun else [f"at rest the stream of changes has not begun: {report}"]


def _deal_with(follower: Follower, pending: list[Change], position: int) -> None:
    """Keep what is whole, in one step with the position, as a transaction does."""
    follower.given += [change for change in pending if change.position <= position]
    follower.position = position
    pending[:] = [change for change in pending if change.position > position]


def _change(row: dict[str, object]) -> Change:
    written = row["_written_at"]
    micros = round(written.timestamp() * 1_000_000)  # type: ignore[attr-defined]
    return Change(row["_position"], row["id"], row["_change"], row["note"], micros, row["_late"])  # type: ignore[arg-type]


class StreamHistory(NamedTuple):
    """What followers of a history were given. `stream`: what is there at rest, from the beginning unless `short`.

    `at_rest`: the rows that a read shows then, all notes of each key. `told`: what is said of it that is not so.
    `parts`: what readers of streams were given, each change with its generation; None where there were none.
    `generations`: where each of them begins and ends, as known before the readers were asked for the last time, and
    `came_to`: the one that they have come to.
    """

    stream: Sequence[Change]
    followers: Sequence[Follower]
    passes: Sequence[Pass]
    at_rest: dict[int, list[str | None]]
    append_only: bool
    in_time: bool
    short: bool
    told: Sequence[str] = ()
    parts: Sequence[tuple[int, Change]] | None = None
    generations: Mapping[int, tuple[int, int | None]] = MappingProxyType({})
    came_to: int = 1


def violations(history: StreamHistory, writes: Sequence[Access], lossy: Sequence[Access] = ()) -> list[str]:
    """What does not hold of a stream; empty when all of it does. `lossy`: writes that one replica may have had alone,
    where storage was lost for good.
    """
    found = list(history.told)
    if not history.short:
        found += _not_once(history.stream, writes)
        found += _not_in_time(history, writes)
        found += _ends_elsewhere(history, lossy)
    found += _out_of_order(history.stream) if not history.append_only else []
    found += _parted_otherwise(history)
    known = Counter(history.stream)
    for follower in history.followers:
        found += _given_otherwise(follower, history, known)
    return found


def _not_once(stream: Sequence[Change], writes: Sequence[Access]) -> list[str]:
    """Each row of an acknowledged write is in the stream once, of a failed one at most once, and nothing else is."""
    found = []
    given: dict[tuple[int, str | None], list[Change]] = defaultdict(list)
    for change in stream:
        given[change.key, change.note].append(change)
    asked: dict[tuple[int, str | None], list[Access]] = defaultdict(list)
    for write in writes:
        for key, note in write.notes.items():
            asked[key, note].append(write)
    for key, note in given.keys() - asked.keys():
        found.append(f"the stream has {key, str(note)[:20]}, which nobody has written")
    for (key, note), those in asked.items():
        changes = given.get((key, note), [])
        least = sum(write.acknowledged for write in those)
        if not least <= len(changes) <= len(those):
            name = (note or "a delete")[:20]
            found.append(
                f"the stream has {len(changes)} changes of key {key} to {name}: {least} of {len(those)} writes of it "
                "were acknowledged"
            )
        times = {time for write in those for time in write.times}
        found += [
            f"the stream has a change of key {key} at a time at which nobody wrote it: {change}"
            for change in changes
            if change.written_at not in times
        ]
        for write in those:
            mine = [change for change in changes if change.written_at in write.times]
            if write.acknowledged and not mine:
                found.append(f"an acknowledged {write.kind} of key {key} by {write.who} is not in the stream")
    return found


def _not_in_time(history: StreamHistory, writes: Sequence[Access]) -> list[str]:
    """Who begins to read after a write was acknowledged is given it by the time that he has read all."""
    found = []
    for write in writes:
        if not write.acknowledged:
            continue
        first: dict[int, int] = {}
        for change in history.stream:
            # Two deletes of a key at the same microsecond cannot be told apart: the later one may be another's.
            is_alike = change.key in write.notes and change.note == write.notes[change.key]
            if is_alike and change.written_at in write.times:
                first.setdefault(change.key, change.position)
        position = max(first.values(), default=0)
        late = [one for one in history.passes if write.ended < one.began and one.position < position]
        found += [
            f"{one.who} read up to position {one.position} after a write by {write.who} was acknowledged, which is at "
            f"{position}"
            for one in late[:1]
        ]
    return found


def _ends_elsewhere(history: StreamHistory, lossy: Sequence[Access]) -> list[str]:
    """Who applies the changes that are not late, in their order, has what reads show.

    But for what was lost with storage: of a change at ONE reads may show nothing any more, only what was before it.
    """
    if history.append_only:
        there = Counter((key, note) for key, notes in history.at_rest.items() for note in notes)
        stream = Counter((change.key, change.note) for change in history.stream)
        may_lack = Counter((one.key, one.note) for one in history.stream if _is_of(one, lossy))
        if not there - stream and not stream - there - may_lack:
            return []
        return [f"reads show {there - stream} and the stream has {stream - there} besides"]
    if not history.in_time:
        return []
    state: dict[int, str | None] = {}
    changes: dict[int, list[Change]] = defaultdict(list)
    for change in history.stream:
        changes[change.key].append(change)
        if change.late:
            continue
        if change.kind == "delete":
            state.pop(change.key, None)
        else:
            state[change.key] = change.note
    shown = {key: notes[0] for key, notes in history.at_rest.items()}
    found = []
    for key in sorted({*state, *shown}):
        times = [change.written_at for change in changes[key]]
        # Two at the same microsecond: which of them counts may change once, when one is merged (decision 012).
        if times.count(max(times, default=0)) > 1 or (key in state, state.get(key)) == (key in shown, shown.get(key)):
            continue
        if (key in shown, shown.get(key)) not in _after_losses(changes[key], lossy):
            found.append(
                f"of key {key} a read shows {str(shown.get(key))[:20]!r} and the stream ends with "
                f"{str(state.get(key))[:20]!r}"
            )
    return found


def _after_losses(changes: Sequence[Change], lossy: Sequence[Access]) -> list[tuple[bool, str | None]]:
    """What may be left of a key: whether there is a row, and its note. The newest change, or the one before it where
    that is lossy, and so on; nothing, where all of them are.
    """
    left: list[tuple[bool, str | None]] = []
    for change in sorted(changes, key=lambda change: (change.written_at, change.position), reverse=True):
        left.append((change.kind != "delete", None if change.kind == "delete" else change.note))
        if not _is_of(change, lossy):
            return left
    return [*left, (False, None)]


def _is_of(change: Change, writes: Sequence[Access]) -> bool:
    """Whether a change is that of one of these writes."""
    return any(
        change.written_at in one.times and change.key in one.notes and one.notes[change.key] == change.note
        for one in writes
    )


def _out_of_order(stream: Sequence[Change]) -> list[str]:
    """Changes of a key that are not late are in the order of their times; late ones come after a newer one."""
    found = []
    newest: dict[int, int] = {}
    for change in stream:
        before = newest.get(change.key)
        if not change.late and before is not None and change.written_at < before:
            found.append(f"{change} comes after a newer change of its key, and is not late")
        if change.late and before is not None and change.written_at > before:
            found.append(f"{change} is late, and nothing newer of its key comes before it")
        newest[change.key] = max(change.written_at, before or 0)
    return found


def _given_otherwise(follower: Follower, history: StreamHistory, known: Counter[Change]) -> list[str]:
    """A follower is given the stream in its order, nothing twice, and all of it where none is dropped."""
    found = []
    positions = [change.position for change in follower.given]
    if positions != sorted(positions):
        found.append(f"{follower.name} was given changes out of the order of the stream")
    given = Counter(follower.given)
    found += [f"{follower.name} was given {change} {times} times" for change, times in given.items() if times > 1]
    if follower.restarted and not history.short:
        found.append(f"{follower.name} had to begin again at {follower.restarted}, and nothing was dropped")
    if not history.short:
        until = follower.position or 0
        expected = Counter(_up_to(known, until))
        found += [f"{follower.name} was not given {change}" for change in (expected - given)]
        found += [f"{follower.name} was given {change}, which is not in the stream" for change in (given - expected)]
    return found


def _parted_otherwise(history: StreamHistory) -> list[str]:
    """Readers of single streams are given what the whole stream has, once, and changes of a key in its order; of a
    generation what it has, and then they go on with the next one.
    """
    if history.parts is None or history.short:
        return []
    given, known = Counter(change for _, change in history.parts), Counter(history.stream)
    found = [f"readers of single streams were not given {change}" for change in known - given]
    found += [f"readers of single streams were given {change} besides" for change in given - known]
    newest: dict[int, tuple[int, int]] = {}
    for generation, change in history.parts:
        place = generation, change.position
        if place < newest.get(change.key, place):
            found.append(f"readers of single streams were given {change} after a later one of its key")
        newest[change.key] = place
        begins, ends = history.generations.get(generation, (0, None))
        if change.position <= begins or (ends is not None and change.position > ends):
            found.append(
                f"readers of generation {generation}, after position {begins} and up to {ends}, were given {change}"
            )
    if history.came_to < max(history.generations, default=1):
        found.append(
            f"readers of single streams have not finished generation {history.came_to}, and generation "
            f"{max(history.generations)} has begun"
        )
    return found


def _up_to(changes: Iterable[Change], position: int) -> list[Change]:
    return [change for change in changes if change.position <= position]
