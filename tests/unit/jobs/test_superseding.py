"""Superseded rows: of files with anything in them exactly the rows that do not count are told, by their positions."""

from __future__ import annotations

import datetime
import math
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from epochlake.jobs.replicas import shared_tokens
from epochlake.jobs.replicas import superseding as superseding_module
from epochlake.jobs.replicas.replica import ReplicaAddress
from epochlake.jobs.replicas.sections import Run, sections, tasks
from epochlake.jobs.replicas.superseding import FILE, FIRST, WORDS, superseded, tell_superseded
from epochlake.metastore.errors import StorageUnavailable

from tests.support.files import Version, stored_versions
from tests.support.replicas import flip_in_a_page, make_replica

NAN = math.nan
MOMENT = datetime.datetime(2026, 3, 29, 1, 30, tzinfo=datetime.UTC)
KEYS: dict[str, tuple[pa.DataType, Sequence[object]]] = {
    "bigint": (pa.int64(), [1, 2, -(2**63)]),
    "boolean": (pa.bool_(), [True, False]),
    "double": (pa.float64(), [0.0, -0.0, NAN, 1.5]),
    "string": (pa.string(), ["", "a", "ä", "a "]),
    "binary": (pa.binary(), [b"", b"\x00", b"\xff"]),
    "decimal": (pa.decimal128(30, 2), [Decimal("1.00"), Decimal("-1.10"), Decimal("9" * 20)]),
    "date": (pa.date32(), [datetime.date(1, 1, 1), datetime.date(2026, 1, 1)]),
    "timestamp": (pa.timestamp("us", "UTC"), [MOMENT, MOMENT + datetime.timedelta(microseconds=1)]),
    "timestamp_ntz": (pa.timestamp("us"), [MOMENT.replace(tzinfo=None), datetime.datetime(1600, 1, 1)]),
    "struct": (pa.struct([("x", pa.float64()), ("y", pa.date32())]), [{"x": -0.0, "y": None}, {"x": 0.0, "y": None}]),
    "array": (pa.list_(pa.timestamp("us", "UTC")), [[], [None], [MOMENT]]),
}


@pytest.fixture
def replica(tmp_path: Path) -> ReplicaAddress:
    return make_replica(tmp_path, 1)


def told(runs: Sequence[Run], task_rows: int = 1000) -> set[tuple[str, int]]:
    """Names of files and positions of rows, as Spark gets them."""
    work = tasks(sections(runs), task_rows)
    numbers = pa.RecordBatch.from_pydict({"id": range(len(work))})
    found: list[tuple[str, int]] = []
    for batch in tell_superseded(("id",), work, [numbers]):
        for row in batch.to_pylist():
            bits = np.unpackbits(np.array(row[WORDS], "<i8").view(np.uint8), bitorder="little")
            found += [(row[FILE], row[FIRST] + int(bit)) for bit in np.flatnonzero(bits)]
    assert len(found) == len(set(found)), "no position is told twice"
    return set(found)


def same(value: object) -> object:
    """Equal for keys that Spark takes for equal."""
    return repr(value).replace("-0.0", "0.0")


def expected(contents: dict[Run, Sequence[Version]]) -> set[tuple[str, int]]:
    """By sorting all versions: those that do not count."""
    rows = [
        ((at, deleted, run.name), (token, same(key)), (run.name, position))
        for run, versions in contents.items()
        for position, (token, key, at, deleted) in enumerate(sorted(versions, key=lambda one: one[0]))
        if not run.intervals or any(low <= token <= high for low, high in run.intervals)
    ]
    newest = {key: (rank, place) for rank, key, place in sorted(rows, key=lambda one: one[0])}
    counting = {place for rank, place in newest.values() if not rank[1]}
    return {place for _, _, place in rows} - counting


@pytest.mark.parametrize("times_longer", [0, 1 << 30], ids=["searched", "sorted"])
@pytest.mark.parametrize("mixed", [False, True], ids=["batches", "merged-files"])
@pytest.mark.parametrize("kind", KEYS)
def test_exactly_the_rows_that_do_not_count_are_told(
    replica: ReplicaAddress,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    mixed: bool,
    times_longer: int,
    seed: int,
) -> None:
    """Few tokens, so that different keys share them; few times, so that versions tie."""
    monkeypatch.setattr(shared_tokens, "LONG_TO_SHORT", times_longer)
    chance = random.Random(seed)
    type_, keys = KEYS[kind]
    contents: dict[Run, Sequence[Version]] = {}
    for _ in range(8):
        at, deleted = chance.randrange(4), chance.random() < 0.3
        versions = {}
        for _ in range(12):
            token, key = chance.randrange(10), chance.choice(keys)
            when, gone = (chance.randrange(4), chance.random() < 0.3) if mixed else (at, deleted)
            versions[token, same(key)] = (token, key, when, gone)
        asked = ((chance.randrange(5), 9),) if chance.random() < 0.3 else ()
        contents[stored_versions(replica, list(versions.values()), type_, asked)] = list(versions.values())
    # A file whose rows were not asked for takes part in nothing.
    contents = {run: versions for run, versions in contents.items() if run.spans}
    alone = {group[0].name for group in sections(contents) if len(group) == 1}
    for task_rows in (5, 1000):
        found = told(list(contents), task_rows)
        assert {one for one in found if one[0] not in alone} == {
            one for one in expected(contents) if one[0] not in alone
        }


def test_batches_are_ranked_by_their_files_so_that_times_are_not_read(replica: ReplicaAddress) -> None:
    first = stored_versions(replica, [(1, 1, 10, False), (2, 2, 10, False)])
    second = stored_versions(replica, [(2, 2, 20, False), (3, 3, 20, False)])
    assert told([second, first]) == {(first.name, 1)}


def test_what_compaction_has_made_of_two_tablets_is_ranked_below_a_batch_that_both_share(
    replica: ReplicaAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = stored_versions(replica, [(1, 1, 10, False), (2, 2, 30, False)])
    other = stored_versions(replica, [(7, 7, 20, False), (8, 8, 40, False)])
    batch = stored_versions(replica, [(2, 2, 50, False), (7, 7, 50, False)])
    monkeypatch.setattr(superseding_module, "WRITTEN_AT", "a column that no file has")
    assert told([batch, one, other]) == {(one.name, 1), (other.name, 0)}
    late = stored_versions(replica, [(2, 2, 25, False)])
    with pytest.raises(StorageUnavailable):
        told([late, one])


def test_files_of_a_slice_are_read_side_by_side(replica: ReplicaAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    """No one of them is read before all have been begun."""
    runs = [
        stored_versions(replica, [(1, 1, at, False), (at + 2, 1, at, False)])
        for at in range(superseding_module.READERS)
    ]
    all_begun = threading.Barrier(len(runs))
    read = superseding_module.rows_of_run

    def waits(*asked: Any, **more: Any) -> Iterator[tuple[pa.Table, Any]]:
        all_begun.wait(60)
        yield from read(*asked, **more)

    monkeypatch.setattr(superseding_module, "rows_of_run", waits)
    assert told(runs) == {(run.name, 0) for run in runs[:-1]}


def test_a_file_that_spans_two_slices_is_told_in_both(replica: ReplicaAddress) -> None:
    old = stored_versions(replica, [(token, token, 1, False) for token in range(100)], group=30)
    new = stored_versions(replica, [(token, token, 2, False) for token in range(0, 100, 2)], group=30)
    work = tasks(sections([old, new]), 20)
    assert len(work) > 5
    assert told([old, new], 20) == {(old.name, position) for position in range(0, 100, 2)}
    pieces = [piece for task in work for piece in task]
    sizes = [sum(len(positions) for _, positions in superseded(("id",), piece)) for piece in pieces]
    assert max(sizes) <= 10, "no slice has the rows of others"


@pytest.mark.parametrize("damage", [flip_in_a_page, Path.unlink], ids=["flipped", "missing"])
def test_a_damaged_file_is_an_error_that_names_it(replica: ReplicaAddress, damage: Callable[[Path], object]) -> None:
    runs = [
        stored_versions(replica, [(n * n * 7919, n * n, at, False) for n in range(200)], group=200) for at in (1, 2)
    ]
    path = Path(runs[0].copy.uri)
    damage(path)
    with pytest.raises(StorageUnavailable, match=runs[0].name):
        told(runs)
