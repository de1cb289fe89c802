"""What was told of slices: the same whether files are looked at or it is remembered, within what may be remembered."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import pytest
from epochlake.jobs.replicas import superseding
from epochlake.jobs.replicas.known_tokens import KnownTokens
from epochlake.jobs.replicas.replica import ReplicaAddress
from epochlake.jobs.replicas.sections import Run, sections, tasks
from epochlake.jobs.replicas.superseding import WORD_BITS, Told
from epochlake.jobs.replicas.telling import Memory, SliceKey, positions_of, tell_here, told_once, words_of_files
from epochlake.metastore.errors import StorageUnavailable

from tests.support.files import stored_versions
from tests.support.replicas import make_replica


@pytest.fixture
def replica(tmp_path: Path) -> ReplicaAddress:
    return make_replica(tmp_path, 1)


def batches(replica: ReplicaAddress, dice: random.Random, count: int) -> list[Run]:
    return [
        stored_versions(replica, [(token, token, at, False) for token in dice.sample(range(900), 300)])
        for at in range(count)
    ]


def told_of(runs: list[Run], task_rows: int = 500) -> dict[str, list[int]]:
    return positions_of(tell_here((), tasks(sections(runs), task_rows)))


def told_anew(runs: list[Run], task_rows: int = 500) -> dict[str, list[int]]:
    """As the files say it."""
    work = tasks(sections(runs), task_rows)
    return positions_of([one for task in work for piece in task for one in superseding.told((), piece)])


def a_key(number: int) -> SliceKey:
    return SliceKey((), number, number, (("file", 1, 1, ()),))


def test_what_is_remembered_is_what_files_say(replica: ReplicaAddress, seed: int) -> None:
    """Batches come and are merged away, so that slices are cut differently each time; every answer is told anew too."""
    dice = random.Random(seed)
    runs = batches(replica, dice, 6)
    for _ in range(20):
        some = dice.sample(runs, dice.randint(2, 6))
        task_rows = dice.choice([100, 500, 10_000])
        assert told_of(some, task_rows) == told_anew(some, task_rows)
        if dice.random() < 0.1:
            replica.storage.kept(Memory).clear()
            replica.storage.kept(KnownTokens).clear()


def test_words_of_files_have_the_bits_of_all_that_was_told(replica: ReplicaAddress, seed: int) -> None:
    """However small the slices are, of which several tell of rows in one word; and no row is beyond a file's words."""
    dice = random.Random(seed)
    runs = batches(replica, dice, 4)
    rows = {run.name: run.copy.file.rows for run in runs}
    for task_rows in (20, 100, 500, 10_000):
        told = tell_here((), tasks(sections(runs), task_rows))
        words = words_of_files(told, rows)
        found = {}
        for name, ones in words.items():
            assert len(ones) * WORD_BITS >= rows[name]
            bits = np.array([ones[at // WORD_BITS] >> (at % WORD_BITS) & 1 for at in range(rows[name])])
            found[name] = np.flatnonzero(bits).tolist()
        assert found == {name: sorted(at) for name, at in positions_of(told).items()}


def test_words_of_the_largest_files_come_first() -> None:
    told = [Told(name, 0, 0, np.ones(1, np.int64), 1) for name in ("few", "many", "some")]
    assert list(words_of_files(told, {"few": 1, "some": 70, "many": 700})) == ["many", "some", "few"]


def test_files_that_were_told_of_are_not_looked_at_again(replica: ReplicaAddress, seed: int) -> None:
    runs = batches(replica, random.Random(seed), 3)
    first = told_of(runs)
    for run in runs:
        Path(run.copy.uri).unlink()
    assert told_of(runs) == first
    with pytest.raises(StorageUnavailable):
        told_anew(runs)
    with pytest.raises(StorageUnavailable):
        told_of(runs[:2])


def test_the_wanted_rows_of_a_file_are_part_of_what_is_remembered(replica: ReplicaAddress) -> None:
    old = stored_versions(replica, [(token, token, 1, False) for token in range(100)])
    new = stored_versions(replica, [(token, token, 2, False) for token in range(100)])
    assert told_of([old, new]) == {old.name: list(range(100))}
    part = stored_versions(replica, [(token, token, 2, False) for token in range(100)], intervals=((10, 19),))
    assert told_of([old, part]) == {old.name: list(range(10, 20))}


def test_no_more_is_remembered_than_there_is_room(replica: ReplicaAddress) -> None:
    memory = Memory(5_000)
    words = np.zeros(100, dtype=np.int64)
    for number in range(50):
        memory.put(a_key(number), (Told("file", 0, 6399, words, 1),))
        memory.get(a_key(0))
    kept = [number for number in range(50) if memory.get(a_key(number)) is not None]
    assert kept == [0, *range(51 - len(kept), 50)], "who is asked for stays, and the last ones"
    assert 2 <= len(kept) <= 5_000 // words.nbytes
    memory.put(a_key(99), (Told("file", 0, 10**6, np.zeros(10**6 // WORD_BITS, dtype=np.int64), 1),))
    assert memory.get(a_key(99)) is None
    assert memory.get(a_key(0)) is not None, "what never has room displaces nothing"


def test_nothing_is_told_of_files_without_an_older_version(replica: ReplicaAddress) -> None:
    even = stored_versions(replica, [(token, token, 1, False) for token in range(0, 100, 2)])
    odd = stored_versions(replica, [(token, token, 2, False) for token in range(1, 100, 2)])
    assert told_of([even, odd]) == {}
    assert superseding.as_table([]).num_rows == 0


@pytest.mark.parametrize("first", [0, 64, 192])
def test_rows_that_count_are_told_of_any_positions(first: int, seed: int) -> None:
    """Before, within and beyond the words; of row groups that are read whole and of some of their rows."""
    chance = np.random.default_rng(seed)
    words = chance.integers(-(2**63), 2**63 - 1, 3, dtype=np.int64, endpoint=True)
    one = Told("a", first, first + 191, words, int(np.bitwise_count(words.view(np.uint64)).sum()))
    dead = set(one.positions.tolist())
    assert len(dead) == one.count
    for begin, end in itertools.combinations([0, 1, first, first + 5, first + 190, first + 192, first + 300], 2):
        whole = np.arange(begin, end)
        some = np.flatnonzero(chance.random(first + 300) < 0.3)
        for positions in (whole, some):
            assert one.counting(positions).tolist() == [int(at) not in dead for at in positions]


def test_a_slice_is_told_of_once(replica: ReplicaAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [stored_versions(replica, [(token, token, at, False) for token in range(9)]) for at in (1, 2)]
    [[piece]] = tasks(sections(runs))
    first = told_once((), piece)
    assert [one.count for one in first] == [9]
    monkeypatch.setattr(superseding, "told", None)
    assert told_once((), piece) is first
    assert tell_here((), [(piece,)]) == list(first)
