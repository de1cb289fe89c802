"""Vacuum against a worker that was paused for long: no file that is committed is deleted, no deleted one committed.

The worker stores its files, and is paused right before its commit, before or after its last look at them; meanwhile its
lease has ended, its files have grown old, and vacuum runs. All of it with real files and a real vacuum.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from epochlake.jobs.replicas import commits
from epochlake.jobs.replicas.commits import commit_files, drop_ranges, pre_split
from epochlake.jobs.replicas.copying import copy_data_file, file_copy
from epochlake.jobs.replicas.files import DataFile, path_of
from epochlake.jobs.replicas.intervals import all_of
from epochlake.jobs.replicas.ledger import Ledger, Merge, Replaced, merged_id
from epochlake.jobs.replicas.outcomes import Acknowledged, AlreadyApplied, Unreachable
from epochlake.jobs.replicas.replica import ReplicaAddress, open_snapshot
from epochlake.jobs.replicas.streaming import Copier
from epochlake.jobs.upkeep import vacuum
from epochlake.placement.tokens import range_label

from tests.support.replicas import make_replica, store
from tests.support.storages import STORAGE

Work = Callable[[ReplicaAddress, ReplicaAddress], object]


def everything_is_old_and_vacuumed(address: ReplicaAddress) -> vacuum.Vacuumed:
    """Days later, with nobody's lease."""
    for path in Path(address.uri).rglob("*.parquet"):
        if "_delta_log" not in path.parts:
            os.utime(path, (time.time() - 86_400,) * 2)
    return vacuum.vacuum(address, time.time_ns() // 1_000_000)


def rows_of(address: ReplicaAddress) -> list[int]:
    """The rows of a replica; fails where a live file is not there."""
    return sorted(
        row
        for file in open_snapshot(address).all_files.values()
        for row in pq.ParquetFile(f"{address.uri}/{file.path}").read(columns=["id"])["id"].to_pylist()
    )


def write(source: ReplicaAddress, target: ReplicaAddress) -> object:
    """A pipeline's, also one that retries a named batch: the files were staged long ago."""
    return commit_files(target, [store(target, ids=[7, 8, 9])], epoch=5, app_id="load", app_version=1)


def bring(source: ReplicaAddress, target: ReplicaAddress) -> object:
    """What repair and streaming do."""
    files = list(open_snapshot(source).all_files.values())
    copied = Copier().copy([file_copy(file, source, target) for file in files])
    return commit_files(target, copied.arrived, epoch=5, app_id="repair", app_version=1)


def cut(source: ReplicaAddress, target: ReplicaAddress) -> object:
    """What a coordinator does before a split."""
    [file] = open_snapshot(target).all_files.values()
    return pre_split(target, [file.min_token], 5)


def sweep(source: ReplicaAddress, target: ReplicaAddress) -> object:
    """What a coordinator does after a move."""
    [file] = open_snapshot(target).all_files.values()
    return drop_ranges(target, [(file.max_token, file.max_token)], 5)


def compact(source: ReplicaAddress, target: ReplicaAddress) -> object:
    [file] = open_snapshot(target).all_files.values()
    low, high = file.window
    made = store(target, ids=[1, 2, 3])
    merged = merged_id()
    path = path_of(range_label(low, high), merged)
    (Path(target.uri) / path).parent.mkdir()
    os.rename(Path(target.uri) / made.path, Path(target.uri) / path)
    ledger = Ledger(STORAGE, str(Path(target.volume_uri).parent / "ledger"))
    ledger.record([[Merge("t-1", merged, low, high, 5, 0, (Replaced(file.file_id, low, high),))]])
    new = DataFile(merged, file.label, path, made.size, 3, made.min_token, made.max_token, 100, 100, False)
    return commit_files(target, [new], epoch=5, app_id="compaction", app_version=1, ledger=ledger)


CASES: list[tuple[Work, list[int]]] = [
    (write, [7, 8, 9]),
    (bring, [4, 5, 6]),
    (cut, []),
    (sweep, []),
    (compact, []),
]


@pytest.mark.parametrize("pause", ["before its last look", "after its last look"])
@pytest.mark.parametrize(("work", "added"), CASES, ids=[work.__name__ for work, _ in CASES])
def test_a_worker_that_vacuum_overtook_loses_no_row_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Work, added: list[int], pause: str
) -> None:
    source, target = make_replica(tmp_path, 1), make_replica(tmp_path, 2)
    commit_files(source, [store(source, ids=[4, 5, 6])], epoch=1, app_id="other", app_version=1)
    commit_files(target, [store(target, ids=[1, 2, 3])], epoch=1, app_id="first", app_version=1)
    paused: list[vacuum.Vacuumed] = []
    look = commits.require_stored

    def looks(files: list[DataFile], where: ReplicaAddress) -> None:
        if not paused and pause == "before its last look":
            paused.append(everything_is_old_and_vacuumed(where))
        look(files, where)
        if not paused:
            paused.append(everything_is_old_and_vacuumed(where))

    monkeypatch.setattr(commits, "require_stored", looks)
    outcome = work(source, target)
    assert paused, "the worker has to be paused for this test to say something"
    assert paused[0].files, "vacuum has to take the files for this test to say something"
    kept = [1, 2] if work is sweep and isinstance(outcome, Acknowledged) else [1, 2, 3]
    done = isinstance(outcome, Acknowledged | AlreadyApplied) or outcome == 0
    assert rows_of(target) == sorted(kept + (added if done else []))
    if not done:
        assert isinstance(outcome, Unreachable)
        assert "is not there any more" in outcome.reason


def test_a_vacuum_that_was_paused_takes_nothing_that_was_committed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = make_replica(tmp_path, 1)
    file = store(address)
    acted = vacuum.change_properties
    outcomes: list[object] = []

    def slept(*arguments: object) -> bool:
        if not outcomes:
            # It was looked for before it was set aside, and is committed now.
            monkeypatch.setattr(commits, "require_stored", lambda files, where: None)
            outcomes.append(commit_files(address, [file], epoch=5, app_id="load", app_version=1))
        return acted(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(vacuum, "change_properties", slept)
    assert everything_is_old_and_vacuumed(address).files == 0
    assert isinstance(outcomes[0], Acknowledged)
    assert rows_of(address) == [1, 2, 3]


def test_what_a_killed_vacuum_set_aside_is_put_back_or_deleted_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = make_replica(tmp_path, 1)
    live, unused = store(address, ids=[1, 2]), store(address, ids=[3])

    def killed(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(vacuum, "change_properties", killed)
        with pytest.raises(KeyboardInterrupt):
            everything_is_old_and_vacuumed(address)
    monkeypatch.setattr(commits, "require_stored", lambda files, where: None)  # it had looked before
    commit_files(address, [live], epoch=5, app_id="load", app_version=1)
    monkeypatch.undo()
    everything_is_old_and_vacuumed(address)
    vacuum.vacuum(address, time.time_ns() // 1_000_000 + 86_400_000)
    assert rows_of(address) == [1, 2]
    assert not (Path(address.uri) / unused.path).exists()
    assert not list(Path(address.uri).rglob("*vacuum*"))


def test_a_copy_that_vacuum_took_is_made_again(tmp_path: Path) -> None:
    source, target = make_replica(tmp_path, 1), make_replica(tmp_path, 2)
    file = store(source)
    commit_files(source, [file], epoch=1, app_id="load", app_version=1)
    copy = file_copy(file, source, target)
    copy_data_file(copy)
    assert everything_is_old_and_vacuumed(target).files == 1
    assert STORAGE.size_of(f"{target.uri}/{all_of(file).file.path}") is None
    copy_data_file(copy)
    assert isinstance(commit_files(target, [file], epoch=5, app_id="repair", app_version=1), Acknowledged)
    assert rows_of(target) == [1, 2, 3]
