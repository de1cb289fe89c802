"""PreSplit of a replica table: nothing straddles afterwards, a slice at a time, and nothing stale has an effect."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from epochlake.jobs.coordinator.effects import pre_split
from epochlake.jobs.coordinator.effects.pre_split import (
    PreSplit,
    PreSplitter,
    boundaries_within,
    pre_split_replica,
)
from epochlake.jobs.replicas import cutting
from epochlake.jobs.replicas.commits import commit_files, straddling
from epochlake.jobs.replicas.copying import PartCopy, copy_data_file
from epochlake.jobs.replicas.fences import raise_fence
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.replica import ReplicaAddress, open_snapshot
from epochlake.jobs.replicas.streaming import Copier
from epochlake.jobs.replicas.volumes import MARKER_FILE
from epochlake.jobs.workers.pace import Pace
from epochlake.metastore.errors import StorageUnavailable
from epochlake.placement.tokens import MIN_TOKEN, tablet_ranges, tokens_of_label
from hypothesis import given
from hypothesis import strategies as st

from tests.support.replicas import make_replica, store

COUNT = 8
ENDS = tablet_ranges(COUNT)[1].tolist()
NO_LIMIT = 1 << 40


@pytest.fixture
def address(tmp_path: Path) -> ReplicaAddress:
    return make_replica(tmp_path, 1, fence=5)


def fill(address: ReplicaAddress, seed: int, files: int = 6, rows: int = 40) -> set[int]:
    """Files of two tablets whose rows lie anywhere in them; the ids of all rows."""
    dice = random.Random(seed)
    stored = []
    for number in range(files):
        label = f"1-{number % 2}"
        low, high = tokens_of_label(label)
        tokens = sorted(dice.randint(low, high) for _ in range(rows))
        stored.append(store(address, label, ids=range(number * rows, (number + 1) * rows), tokens=tokens))
    commit_files(address, stored, epoch=5, app_id="test", app_version=1)
    return set(range(files * rows))


def asked(address: ReplicaAddress, *, epoch: int = 9, fence: int = 7, limit: int = NO_LIMIT) -> PreSplit:
    return PreSplit(address, COUNT, epoch, fence, limit)


def rows_of(address: ReplicaAddress) -> list[int]:
    files = open_snapshot(address).all_files.values()
    return sorted(row for f in files for row in pq.read_table(f"{address.uri}/{f.path}")["id"].to_pylist())


def test_afterwards_no_file_straddles_a_boundary_and_every_row_is_there_once(
    address: ReplicaAddress, seed: int
) -> None:
    rows = fill(address, seed)
    result = pre_split_replica(asked(address), Pace(0))
    assert result.ready
    assert result.cut > 0
    snapshot = open_snapshot(address)
    assert straddling(snapshot, ENDS[:-1]) == []
    assert snapshot.fence == 9
    assert rows_of(address) == sorted(rows)
    again = pre_split_replica(asked(address, epoch=10), Pace(0))
    assert (again.ready, again.cut) == (True, 0)
    assert open_snapshot(address).fence == 9  # high enough already: pipelines are not disturbed again


@pytest.mark.parametrize("well", [True, False], ids=["well", "failing"])
def test_what_was_cut_beforehand_is_committed_and_not_cut_again_and_what_was_not_is_cut_then(
    address: ReplicaAddress, seed: int, monkeypatch: pytest.MonkeyPatch, well: bool
) -> None:
    rows = fill(address, seed)
    beforehand, written = [], []

    def how(copy: PartCopy) -> DataFile:
        if not well:
            raise StorageUnavailable("nobody cuts here")
        beforehand.append(copy.key)
        return copy_data_file(copy)

    write = cutting._write_piece
    monkeypatch.setattr(cutting, "_write_piece", lambda *given: (written.append(given[-1]), write(*given)))
    [result] = PreSplitter(cutter=Copier(how=how)).pre_split([asked(address)])
    assert result.ready
    assert rows_of(address) == sorted(rows)
    assert len({*written}) == len(written) > 0, "a piece was cut twice"
    assert len(beforehand) == (len(written) if well else 0)
    assert {*beforehand} <= {*open_snapshot(address).all_files}


def test_a_limit_stops_it_between_two_commits_and_it_goes_on_from_there(address: ReplicaAddress, seed: int) -> None:
    rows = fill(address, seed)
    sizes = [file.size for file in open_snapshot(address).all_files.values()]
    steps = 0
    while not (result := pre_split_replica(asked(address, limit=max(sizes)), Pace(0))).ready:
        assert result.cut > 0
        assert result.left > 0
        assert rows_of(address) == sorted(rows)
        steps += 1
    assert steps > 0
    assert rows_of(address) == sorted(rows)


def test_what_was_planned_before_the_fence_changes_nothing(address: ReplicaAddress, seed: int) -> None:
    fill(address, seed)
    raise_fence(address, 12)
    before = open_snapshot(address).version
    result = pre_split_replica(asked(address, epoch=11), Pace(0))
    assert not result.ready
    assert "fenced at 12" in result.failure
    assert not result.away
    assert open_snapshot(address).version == before


def test_a_fence_that_is_raised_while_it_cuts_stops_it(
    address: ReplicaAddress, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decision that is revoked fences its replicas: an executor that still works for it must not go on."""
    rows = fill(address, seed)
    cut = pre_split.pre_split
    done = []

    def revoked_after_the_first(where: ReplicaAddress, boundaries: list[int], epoch: int, spared: int) -> object:
        result = cut(where, boundaries, epoch, spared)
        done.append(boundaries)
        raise_fence(where, 20)
        return result

    monkeypatch.setattr(pre_split, "pre_split", revoked_after_the_first)
    result = pre_split_replica(asked(address, limit=1 << 12), Pace(0))
    assert len(done) == 1
    assert "fenced at 20" in pre_split_replica(asked(address), Pace(0)).failure
    assert not result.ready
    assert rows_of(address) == sorted(rows)


def test_a_replica_that_does_not_answer_is_away(tmp_path: Path, address: ReplicaAddress, seed: int) -> None:
    fill(address, seed)
    marker = tmp_path / "v1" / MARKER_FILE
    os.rename(marker, tmp_path / "away")
    [result] = PreSplitter().pre_split([asked(address)])
    assert result.away
    assert not result.ready


def test_a_limit_of_bytes_a_second_is_kept(address: ReplicaAddress, seed: int) -> None:
    fill(address, seed)
    size = sum(file.size for file in open_snapshot(address).all_files.values())
    started = time.monotonic()
    [result] = PreSplitter(bytes_per_second=size).pre_split([asked(address, limit=size)])
    assert result.ready
    assert result.cut == size
    # Two tablets, two commits: the second waits for the time of the first.
    assert time.monotonic() - started > 0.4


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), max_size=8), st.integers(0, 6))
def test_boundaries_are_those_between_the_rows_of_a_file(extents: list[tuple[int, int]], bits: int) -> None:
    files = [
        DataFile(
            str(n), "0-0", f"_tablet=0-0/{n}.parquet", 1, 2, min(pair) + MIN_TOKEN, max(pair) + MIN_TOKEN, 0, 0, False
        )
        for n, pair in enumerate(extents)
    ]
    ends = tablet_ranges(1 << bits)[1].tolist()
    expected = {
        end: [file for file in files if file.min_token <= end < file.max_token]
        for end in ends[:-1]
        if any(file.min_token <= end < file.max_token for file in files)
    }
    assert boundaries_within(files, 1 << bits) == expected
