"""The commit phase while ranges are divided, merged and moved at random between any two of its steps, in a toy world.

The world has no storage: a replica is a set of data files, a file knows its tokens. So many histories are tried in
seconds, and what must hold after each is looked at token by token.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
from epochlake.jobs.gate import commit_phase
from epochlake.jobs.gate.commit_phase import CommitPhase, WriteBatch
from epochlake.jobs.gate.errors import ConsistencyNotReached
from epochlake.jobs.replicas.copying import PartCopy
from epochlake.jobs.replicas.files import DataFile, cut_id, path_of
from epochlake.jobs.replicas.intervals import FilePart, holds
from epochlake.jobs.replicas.outcomes import Acknowledged, AlreadyApplied, CommitOutcome, FencedOff, Unreachable
from epochlake.jobs.replicas.staging import StagedFile
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.metadata.placements import Placement, Since, highs, index_of, ranges_within
from epochlake.placement.consistency import ConsistencyLevel, majority
from epochlake.placement.tokens import MIN_TOKEN, range_label
from numpy.typing import NDArray

from tests.support.replicas import TABLE
from tests.support.slices import some
from tests.support.storages import STORAGE

VOLUMES = range(1, 8)
RUNS = 60

Sets = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class RandomCover:
    """Ranges that begin at `lows`, each with its write sets and the epoch since which it has them."""

    lows: NDArray[np.int64]
    sets: tuple[Sets, ...]
    placed: tuple[int, ...]

    def placement(self, index: int) -> Placement:
        sets = self.sets[index]
        writes = tuple(dict.fromkeys(volume for one in sets for volume in one))
        return Placement(sets[0], writes, sets)

    @property
    def apart(self) -> bool:
        return False

    def since(self, index: int) -> Since:
        return Since(self.placement(index).writes, self.placed[index], None)

    def label(self, index: int) -> str:
        return range_label(int(self.lows[index]), int(highs(self.lows)[index]))

    def unit(self, index: int) -> int:
        return index


@dataclass
class World:
    """Replicas, fences, and a cover that changes by `dice`."""

    dice: random.Random
    epoch: int = 1
    cover: RandomCover = field(init=False)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    live: dict[int, dict[str, DataFile]] = field(default_factory=lambda: defaultdict(dict))
    stored: dict[int, set[DataFile]] = field(default_factory=lambda: defaultdict(set))
    fences: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    away: set[int] = field(default_factory=set)
    object_stores: random.Random = field(init=False)
    """By what storage takes a commit, calls it a conflict, and is found to have taken it."""

    def __post_init__(self) -> None:
        lows = self._some_lows()
        self.cover = RandomCover(lows, tuple(self._some_sets() for _ in lows), (1,) * len(lows))
        self.object_stores = random.Random(repr(self.cover))

    def metadata(self) -> SimpleNamespace:
        nodes = {volume: SimpleNamespace(name=f"n{volume}") for volume in VOLUMES}
        volumes = {volume: SimpleNamespace(name="d1") for volume in VOLUMES}
        cover = self.cover
        return SimpleNamespace(
            epoch=self.epoch,
            fence=self.epoch,
            schema=SimpleNamespace(tables={TABLE.table_id: TABLE}, keyspaces={"air": SimpleNamespace(epoch=0)}),
            directory=SimpleNamespace(
                datacenter_of=lambda volume: "dc1", node_of_volume=nodes, volumes=volumes, lost=frozenset()
            ),
            rings=SimpleNamespace(operations={}),
            placements=lambda table_id: cover,
            is_on_ring=lambda table_id: True,
        )

    def stage(self, files: int) -> list[StagedFile]:
        """Files of some ranges of now, on those of their write replicas that answer."""
        staged = []
        for number, index in enumerate(self.dice.choices(range(len(self.cover.lows)), k=files)):
            low, high = int(self.cover.lows[index]), int(highs(self.cover.lows)[index])
            self.tokens[f"f{number}"] = sorted(self.dice.randint(low, high) for _ in range(self.dice.randint(1, 6)))
            file = self._file(f"f{number}", path_of(self.cover.label(index), f"f{number}"), (low, high))
            holders = [v for v in self.cover.placement(index).writes if v not in self.away]
            for volume in holders:
                self.stored[volume].add(file)
            staged.append(StagedFile(file, frozenset(holders), {}))
        return staged

    def happen(self) -> None:
        """Storage comes and goes; now and then ranges change."""
        self.away = set(self.dice.sample(VOLUMES, self.dice.choice([0, 0, 1, 2])))
        if self.dice.random() < 0.3:
            self.move_on()

    def move_on(self) -> None:
        """The next epoch: other ranges, some with other replicas, which get what one of the earlier ones has."""
        self.epoch += 1
        before, lows = self.cover, self._some_lows()
        sets, placed = [], []
        for low in lows:
            same = int(index_of(before.lows, np.array([low]))[0])
            last = int(highs(lows)[list(lows).index(low)])
            unchanged = len(ranges_within(before.lows, int(low), last)) == 1 and self.dice.random() < 0.6
            sets.append(before.sets[same] if unchanged else self._some_sets())
            placed.append(before.placed[same] if unchanged else self.epoch)
        self.cover = RandomCover(lows, tuple(sets), tuple(placed))
        for volume in VOLUMES:
            self.fences[volume] = self.epoch
        self._stream(before)

    def _stream(self, before: RandomCover) -> None:
        after: dict[int, dict[str, DataFile]] = defaultdict(dict)
        for index, (low, high) in enumerate(
            zip(self.cover.lows.tolist(), highs(self.cover.lows).tolist(), strict=True)
        ):
            for inner in ranges_within(before.lows, low, high):
                window = (max(low, int(before.lows[inner])), min(high, int(highs(before.lows)[inner])))
                source = self.dice.choice(before.placement(inner).writes)
                unchanged = self.cover.placed[index] != self.epoch
                for volume in self.cover.placement(index).writes:
                    kept = unchanged or volume in before.placement(inner).writes
                    for file in self.live[volume if kept else source].values():
                        if piece := self._cut(file, window):
                            after[volume][piece.file_id] = piece
        self.live = after

    def _cut(self, file: DataFile, window: tuple[int, int]) -> DataFile | None:
        low, high = max(window[0], file.window[0]), min(window[1], file.window[1])
        if low > high:
            return None
        if (low, high) == file.window:
            return file
        name = cut_id(file.origin, low, high)
        return self._file(name, f"{file.path.rpartition('/')[0]}/{name}.parquet", (low, high))

    def _file(self, file_id: str, path: str, window: tuple[int, int]) -> DataFile:
        inside = [t for t in self.tokens[file_id.partition(".")[0]] if window[0] <= t <= window[1]]
        first, last = (inside[0], inside[-1]) if inside else (window[0], window[0])
        return DataFile(file_id, "", path, 100, len(inside), first, last, 1, 1, False)

    def _some_lows(self) -> NDArray[np.int64]:
        inner = [self.dice.randrange(-8, 8) << 60 for _ in range(self.dice.randint(0, 6))]
        return np.unique(np.array([MIN_TOKEN, *inner], dtype=np.int64))

    def _some_sets(self) -> Sets:
        old, new = (tuple(self.dice.sample(VOLUMES, self.dice.choice([1, 2, 3, 3]))) for _ in range(2))
        return (old, new) if self.dice.random() < 0.4 else (old,)

    # --- what it asks of storage -------------------------------------------------------------------------------

    def copy_data_file(self, copy: PartCopy) -> DataFile:
        self.happen()
        if {copy.source.volume_id, copy.target.volume_id} & self.away:
            raise StorageUnavailable("away")
        assert copy.file in self.stored[copy.source.volume_id]
        piece = copy.file if copy.part.whole else self._cut(copy.file, (copy.part.low, copy.part.high))
        assert piece is not None
        self.stored[copy.target.volume_id].add(piece)
        return piece

    def commit_files(self, target: SimpleNamespace, files: list[DataFile], *, epoch: int, **_: object) -> CommitOutcome:
        self.happen()
        volume = target.volume_id
        if volume in self.away:
            return Unreachable("away")
        if self.fences[volume] > epoch:
            return FencedOff(self.fences[volume])
        assert set(files) <= self.stored[volume]
        absent = [file for file in files if not holds(self.live[volume].values(), file)]
        if self.object_stores.random() < 0.1:
            # It had landed, and before that was told an operator has given up what it had brought.
            return AlreadyApplied(1, frozenset(file.file_id for file in absent))
        self.live[volume] |= {file.file_id: file for file in absent}
        return Acknowledged(1) if absent else AlreadyApplied(1)


def land(world: World, monkeypatch: pytest.MonkeyPatch) -> list[StagedFile] | None:
    """Stage, let time pass, land; None when the level was not reached."""
    monkeypatch.setattr(commit_phase, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(commit_phase, "THREADS", 1)
    monkeypatch.setattr(commit_phase, "SURE_SECONDS", math.inf)  # nothing goes back here
    monkeypatch.setattr(commit_phase, "copy_data_file", world.copy_data_file)
    monkeypatch.setattr(commit_phase, "commit_files", world.commit_files)
    monkeypatch.setattr(commit_phase, "is_stored", lambda file, where: file in world.stored[where.volume_id])
    monkeypatch.setattr(
        commit_phase, "address_of", lambda storage, metadata, table, volume: SimpleNamespace(volume_id=volume)
    )
    planned = world.metadata()
    staged = world.stage(world.dice.randint(1, 4))
    for _ in range(world.dice.randint(0, 3)):
        world.move_on()
    batch = WriteBatch(TABLE, "test", 0, staged, ConsistencyLevel.QUORUM, None, 1e12)
    try:
        CommitPhase(STORAGE, batch, planned, lambda epoch: world.metadata(), 8).land()  # type: ignore[arg-type, return-value]
    except ConsistencyNotReached:
        return None
    return staged


def run_once(seed: int, run: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """One history, checked; whether the level was reached in it."""
    world = World(random.Random(f"{seed}/{run}"))
    staged = land(world, monkeypatch)
    for one in staged or ():
        for token in world.tokens[one.file.origin]:
            assert_on_quorums(world, one.file.origin, token, run)
    assert_nothing_strays(world, run)
    return staged is not None


def test_what_has_landed_is_on_a_quorum_of_every_write_set_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    runs = some(RUNS, RUNS // 2)
    reached = sum(run_once(seed, run, monkeypatch) for run in range(runs))
    assert reached > runs // 3


def keep_acknowledgements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CommitPhase, "_forget_what_may_be_gone", lambda self, newest: None)


def never_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FilePart, "whole", True)


def count_any_write_set(monkeypatch: pytest.MonkeyPatch) -> None:
    satisfied = commit_phase.is_satisfied
    monkeypatch.setattr(commit_phase, "is_satisfied", lambda level, sets, *rest: satisfied(level, sets[:1], *rest))


def count_what_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = World.commit_files

    def told_of_nothing(world: World, target: SimpleNamespace, files: list[DataFile], **how: int) -> CommitOutcome:
        outcome = commit(world, target, files, **how)
        return AlreadyApplied(outcome.version) if isinstance(outcome, AlreadyApplied) else outcome

    monkeypatch.setattr(World, "commit_files", told_of_nothing)


# Seeds that find it early; others find it as well.
@pytest.mark.parametrize(
    ("broken", "seed"),
    [(keep_acknowledgements, 0), (never_cut, 0), (count_any_write_set, 1), (count_what_is_gone, 0)],
)
def test_these_worlds_catch_a_commit_phase_that_is_broken(
    monkeypatch: pytest.MonkeyPatch, broken: Callable[[pytest.MonkeyPatch], None], seed: int
) -> None:
    broken(monkeypatch)
    with pytest.raises(AssertionError, match="run "):
        [run_once(seed, run, monkeypatch) for run in range(10 * RUNS)]


def assert_on_quorums(world: World, origin: str, token: int, run: int) -> None:
    index = int(index_of(world.cover.lows, np.array([token]))[0])
    have = {
        volume
        for volume, files in world.live.items()
        if any(file.origin == origin and file.window[0] <= token <= file.window[1] for file in files.values())
    }
    for replicas in world.cover.sets[index]:
        assert len(have & set(replicas)) >= majority(len(replicas)), f"run {run}: {origin} at {token} is on {have}"


def assert_nothing_strays(world: World, run: int) -> None:
    for volume, files in world.live.items():
        for file in files.values():
            if file.rows:
                for index in ranges_within(world.cover.lows, *file.extent):
                    low, high = int(world.cover.lows[index]), int(highs(world.cover.lows)[index])
                    if any(low <= token <= high for token in tokens_in(world, file)):
                        assert volume in world.cover.placement(index).writes, f"run {run}: {file} is on {volume}"


def tokens_in(world: World, file: DataFile) -> list[int]:
    return [token for token in world.tokens[file.origin] if file.window[0] <= token <= file.window[1]]
