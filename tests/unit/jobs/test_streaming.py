"""Streaming a tablet: files, not rows; checked, resumable, and refused when it comes too late."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pyarrow.parquet as pq
import pytest
from epochlake.jobs.replicas import row_groups, sealing
from epochlake.jobs.replicas.commits import commit_files, drop_ranges, pre_split
from epochlake.jobs.replicas.copying import PartCopy, file_copy, link_data_file
from epochlake.jobs.replicas.fences import raise_fence
from epochlake.jobs.replicas.files import DataFile, cut_id, new_file_id
from epochlake.jobs.replicas.intervals import FilePart, select
from epochlake.jobs.replicas.outcomes import Acknowledged, AlreadyApplied, SessionClosed
from epochlake.jobs.replicas.replica import ReplicaAddress, open_snapshot
from epochlake.jobs.replicas.sealing import require_intact, require_sealed
from epochlake.jobs.replicas.streaming import Copied, Copier, plan_streaming
from epochlake.jobs.workers import pace
from epochlake.metastore.errors import StorageUnavailable
from epochlake.placement.tokens import tokens_of_label

from tests.support.failures import mounted
from tests.support.replicas import make_replica, store
from tests.support.storages import STORAGE

LABEL = "2-1"
RANGE = tokens_of_label(LABEL)


def load(replica: ReplicaAddress, *files: DataFile, epoch: int = 1) -> None:
    """Commit files that lie in another replica's directory or in this one's."""
    outcome = commit_files(replica, files, epoch=epoch, app_id=f"load-{files[0].file_id}", app_version=1)
    assert isinstance(outcome, Acknowledged), outcome


def spread(file: DataFile, source: ReplicaAddress, *targets: ReplicaAddress) -> DataFile:
    """The same file on several replicas, committed, as a write at ALL leaves it."""
    for target in targets:
        assert Copier().copy([file_copy(file, source, target)]).failed == {}
    for replica in (source, *targets):
        load(replica, file, epoch=open_snapshot(replica).fence)
    return file


def test_only_what_the_target_lacks_is_copied_each_file_from_one_source(tmp_path: Path) -> None:
    a, b, target = (make_replica(tmp_path, volume) for volume in (1, 2, 3))
    everywhere = spread(store(a), a, b, target)
    both = spread(store(a), a, b)
    only_b, other_tablet = store(b), store(a, "2-3")
    load(b, only_b)
    load(a, other_tablet)
    copies = plan_streaming([open_snapshot(a), open_snapshot(b)], open_snapshot(target), *RANGE)
    assert {copy.file for copy in copies} == {both, only_b}
    assert everywhere not in [copy.file for copy in copies]
    assert {copy.file.file_id: copy.source for copy in copies}[only_b.file_id] == b
    assert {copy.target for copy in copies} == {target}


@pytest.mark.parametrize("turned", [False, True])
def test_a_piece_that_has_other_bytes_elsewhere_is_copied_as_its_source_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turned: bool
) -> None:
    """Else whole pieces would be taken for damaged ones, each time anew, and the operation would never end."""
    a, b, target = (make_replica(tmp_path, volume) for volume in (1, 2, 3))
    file = spread(store(a, ids=range(20)), a, b)
    middle = file.min_token + 9
    assert pre_split(a, [middle], 1) == 0
    monkeypatch.setattr(row_groups, "ROW_GROUP_ROWS", 2)
    assert pre_split(b, [middle], 1) == 0
    sources = [open_snapshot(a), open_snapshot(b)]
    assert sources[0].all_files.keys() == sources[1].all_files.keys()
    assert {*sources[0].all_files.values()}.isdisjoint(sources[1].all_files.values())
    copies = plan_streaming(sources[::-1] if turned else sources, open_snapshot(target), *RANGE)
    assert {copy.source for copy in copies} == {a, b}
    copied = Copier().copy(copies)
    assert (len(copied.arrived), copied.failed) == (2, {})
    load(target, *copied.arrived)
    for arrived in open_snapshot(target).all_files.values():
        require_intact(STORAGE, arrived, f"{target.uri}/{arrived.path}")


def test_a_streamed_tablet_has_the_same_files_and_bytes(tmp_path: Path) -> None:
    source, target = make_replica(tmp_path, 1), make_replica(tmp_path, 2)
    files = [store(source, ids=range(n)) for n in (5, 500, 50)]
    load(source, *files)
    raise_fence(target, 2, open_sessions=["s1"])
    arrived: list[int] = []
    copies = plan_streaming([open_snapshot(source)], open_snapshot(target), *RANGE)
    copied = Copier().copy(copies, lambda size, rows: arrived.append(size))
    assert copied.failed == {}
    assert sum(arrived) == sum(file.size for file in files)
    assert open_snapshot(target).all_files == {}, "nothing is visible before the driver's commit"
    outcome = commit_files(target, copied.arrived, epoch=2, app_id="s1", app_version=1, session="s1")
    assert isinstance(outcome, Acknowledged)
    assert open_snapshot(target).all_files == open_snapshot(source).all_files
    for file in files:
        assert (Path(target.uri) / file.path).read_bytes() == (Path(source.uri) / file.path).read_bytes()
    assert plan_streaming([open_snapshot(source)], open_snapshot(target), *RANGE) == []


def test_a_late_streaming_does_not_resurrect_what_was_deleted(tmp_path: Path) -> None:
    """Seed 000, "Topology guards", steps 1 to 9, with the migration of tablet T from A to D."""
    a, b, c, d = (make_replica(tmp_path, volume) for volume in (1, 2, 3, 4))
    w1 = spread(store(a, ids=[1], at=10), a, b, c)  # 1, 2: {A, B, C} all have w1
    raise_fence(d, 2, open_sessions=["s1"])  # 3: the migration from A to D starts
    late = plan_streaming([open_snapshot(a)], open_snapshot(d), *RANGE)
    late_copied = Copier().copy(late)  # 4: it fails, and leaves s1 behind with the file in hand
    raise_fence(d, 3, open_sessions=[])
    raise_fence(d, 4, open_sessions=["s2"])  # 5: it is tried again under a session of its own, and completes
    again = Copier().copy(plan_streaming([open_snapshot(a)], open_snapshot(d), *RANGE))
    outcome = commit_files(d, again.arrived, epoch=4, app_id="s2", app_version=1, session="s2")
    assert isinstance(outcome, Acknowledged)
    raise_fence(d, 5, open_sessions=[])
    drop_ranges(a, [RANGE], 5)
    w2 = spread(msgspec.structs.replace(store(d, ids=[1], at=20), has_tombstones=True), d, b, c)  # 6: w2 deletes
    assert open_snapshot(d).all_files == open_snapshot(b).all_files == open_snapshot(c).all_files  # 7: repaired
    for replica in (d, b, c):  # 8: w1 and its tombstone w2 are collected everywhere
        commit_files(replica, [], removes=[w1, w2], epoch=6, app_id="collect", app_version=1)
    for session in ("s1", "s2"):  # 9: the late streaming arrives
        late_outcome = commit_files(
            d, late_copied.arrived, epoch=6, app_id=f"late-{session}", app_version=1, session=session
        )
        assert late_outcome == SessionClosed(session)
    assert open_snapshot(d).all_files == {}, "w1 is back from the dead"


def test_a_torn_or_wrong_copy_is_found_and_not_reported_as_arrived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = make_replica(tmp_path, 1), make_replica(tmp_path, 2)
    file = store(source, ids=range(100))
    load(source, file)
    copied = STORAGE.copy_file
    tampering: list[tuple[Callable[[bytes], bytes], str]] = [
        (lambda data: data[:-1], "bytes of"),
        (lambda data: data[:-4] + b"PAR?", "no readable footer"),
        (lambda data: b"", "bytes of"),
        (lambda data: (Path(source.uri) / store(source, ids=range(3)).path).read_bytes(), "bytes of"),
    ]
    for tamper, reason in tampering:

        def copy_and_tamper(one: str, other: str, tamper: Callable[[bytes], bytes] = tamper) -> int:
            size = copied(one, other)
            Path(other).write_bytes(tamper(Path(other).read_bytes()))
            return size

        monkeypatch.setattr(STORAGE, "copy_file", copy_and_tamper)
        answer = Copier().copy([file_copy(file, source, target)])
        assert answer.arrived == ()
        assert reason in answer.failed[file.file_id]
    with pytest.raises(StorageUnavailable, match="another file lies under its name"):
        require_sealed(STORAGE, msgspec.structs.replace(file, file_id=new_file_id()), f"{source.uri}/{file.path}")


def test_a_large_footer_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_replica(tmp_path, 1)
    monkeypatch.setattr(sealing, "FOOTER_GUESS", 16)
    file = store(source)
    require_sealed(STORAGE, file, f"{source.uri}/{file.path}")


def test_one_copy_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    source, target = make_replica(tmp_path, 1), make_replica(tmp_path, 2)
    here, gone = store(source), store(source)
    (Path(source.uri) / gone.path).unlink()
    copied = Copier().copy([file_copy(file, source, target) for file in (here, gone)])
    assert copied.arrived == (here,)
    assert list(copied.failed) == [gone.file_id]
    assert gone.path in copied.failed[gone.file_id]


def test_nothing_is_copied_to_a_volume_that_is_not_mounted(tmp_path: Path) -> None:
    source, target = make_replica(tmp_path, 1), make_replica(tmp_path, 2)
    file = store(source)
    (Path(target.volume_uri) / "epochlake-volume.json").unlink()
    copied = Copier().copy([file_copy(file, source, target)])
    assert "not mounted" in copied.failed[file.file_id]
    assert not (Path(target.uri) / "_tablet=2-1").exists()


def test_a_copy_onto_a_full_volume_leaves_nothing_behind(tmp_path: Path) -> None:
    source = make_replica(tmp_path, 1)
    file = store(source, ids=[number * number for number in range(200_000)])
    with mounted(tmp_path / "v2", "512k"):
        target = make_replica(tmp_path, 2)
        copied = Copier().copy([file_copy(file, source, target)])
        assert "disk is full" in copied.failed[file.file_id]
        assert os.listdir(f"{target.uri}/_tablet={LABEL}") == []


def test_an_intranode_migration_links_the_files(tmp_path: Path) -> None:
    source, target = make_replica(tmp_path, 1), make_replica(tmp_path, 2)
    file = store(source)
    copies = [file_copy(file, source, target)]
    assert Copier(how=link_data_file).copy(copies) == Copied((file,), {})
    assert (Path(target.uri) / file.path).samefile(Path(source.uri) / file.path)
    with mounted(tmp_path / "v3"):
        apart = make_replica(tmp_path, 3)
        assert Copier(how=link_data_file).copy([file_copy(file, source, apart)]).failed == {}
        assert not (Path(apart.uri) / file.path).samefile(Path(source.uri) / file.path)


def test_streaming_that_was_cut_off_goes_on_where_it_stopped(tmp_path: Path) -> None:
    source, target = make_replica(tmp_path, 1), make_replica(tmp_path, 2)
    files = [store(source) for _ in range(4)]
    load(source, *files)
    raise_fence(target, 2, open_sessions=["s1"])
    first = Copier().copy(plan_streaming([open_snapshot(source)], open_snapshot(target), *RANGE)[:2])
    commit_files(target, first.arrived, epoch=2, app_id="s1", app_version=1, session="s1")
    rest = plan_streaming([open_snapshot(source)], open_snapshot(target), *RANGE)
    assert {copy.file for copy in rest} == set(files) - set(first.arrived)
    commit_files(target, Copier().copy(rest).arrived, epoch=2, app_id="s1", app_version=2, session="s1")
    assert open_snapshot(target).all_files == open_snapshot(source).all_files
    outcome = commit_files(target, files, epoch=2, app_id="s1", app_version=3, session="s1")
    assert isinstance(outcome, AlreadyApplied)


def test_only_the_piece_that_the_target_is_to_have_is_brought(tmp_path: Path) -> None:
    source, target = make_replica(tmp_path, 1), make_replica(tmp_path, 2)
    first, last = RANGE
    straddling, inside, outside = (
        store(source, ids=range(3), tokens=[first + at for at in tokens])
        for tokens in ((10, 20, 30), (21, 22, 25), (1, 2, 3))
    )
    load(source, straddling, inside, outside)
    copies = plan_streaming([open_snapshot(source)], open_snapshot(target), first + 15, first + 25)
    assert {(copy.file, copy.part.whole) for copy in copies} == {(straddling, False), (inside, True)}
    assert {copy.part.low for copy in copies} == {first + 15}
    told: list[tuple[int, int]] = []
    copied = Copier().copy(copies, lambda size, rows: told.append((size, rows)))
    assert sorted(file.rows for file in copied.arrived) == [1, 3]
    assert sorted(told) == sorted((file.size, file.rows) for file in copied.arrived)
    load(target, *copied.arrived)
    assert plan_streaming([open_snapshot(source)], open_snapshot(target), first + 15, first + 25) == []
    rest = plan_streaming([open_snapshot(source)], open_snapshot(target), first, last)
    assert {(copy.part.low - first, min(copy.part.high - first, 100)) for copy in rest if copy.file == straddling} == {
        (0, 14),
        (26, 100),
    }


def test_replicas_that_were_cut_differently_stream_to_each_other_what_they_lack(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    replicas = [make_replica(tmp_path, volume) for volume in (1, 2, 3)]
    first, _ = RANGE
    offsets = sorted(chance.sample(range(1000), 40))
    spread(store(replicas[0], ids=range(40), tokens=[first + n for n in offsets]), *replicas)
    for replica in replicas:
        pre_split(replica, [first + chance.randrange(1000) for _ in range(3)], 1)
    for _ in range(6):
        target, *sources = chance.sample(replicas, 3)
        low = first + chance.randrange(1000)
        drop_ranges(target, [(low, low + 300)], 1)
        copies = plan_streaming([open_snapshot(source) for source in sources], open_snapshot(target), *RANGE)
        copied = Copier().copy(copies)
        assert copied.failed == {}
        if copied.arrived:
            commit_files(target, copied.arrived, epoch=1, app_id=new_file_id(), app_version=1)
        parts = select(open_snapshot(target).all_files.values(), *RANGE)
        tokens = [
            token
            for part in parts
            for token in pq.read_table(Path(target.uri) / part.file.path, partitioning=None)["_token"].to_pylist()
            if part.low <= token <= part.high
        ]
        assert sorted(tokens) == [first + n for n in offsets]


def test_a_copy_of_every_kind_that_fails_is_told_by_the_name_that_it_would_have(tmp_path: Path) -> None:
    source, target = make_replica(tmp_path, 1), make_replica(tmp_path, 2)
    file = store(source, ids=range(100))
    (Path(source.uri) / file.path).unlink()
    piece = PartCopy(FilePart(file, file.min_token, file.min_token + 9), source, target)
    copied = Copier().copy([piece])
    assert list(copied.failed) == [cut_id(file.file_id, file.min_token, file.min_token + 9)]


def test_all_copies_of_a_copier_share_its_pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=lambda: 100.0, sleep=slept.append))
    source, target = make_replica(tmp_path, 1), make_replica(tmp_path, 2)
    files = [store(source) for _ in range(4)]
    copier = Copier(bytes_per_second=files[0].size * 2)
    copier.copy([file_copy(file, source, target) for file in files[:3]])
    copier.copy([file_copy(files[3], source, target)])
    assert [round(seconds, 6) for seconds in sorted(slept)] == [0, 0.5, 1, 1.5]
    slept.clear()
    Copier().copy([file_copy(file, source, target) for file in files])
    assert slept == [], "no limit, no waiting"
