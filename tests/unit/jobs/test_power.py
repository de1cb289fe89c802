"""The power is cut after every single sync; whatever was acknowledged before is there when the cluster is opened again.

The disk of these tests keeps exactly what was synced (tests/support/power.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from epochlake.jobs.gate.batches import decide, decided
from epochlake.jobs.replicas.commits import commit_files, drop_ranges, pre_split
from epochlake.jobs.replicas.copying import file_copy
from epochlake.jobs.replicas.encoding import encode_rows
from epochlake.jobs.replicas.fences import open_session, raise_fence
from epochlake.jobs.replicas.files import DataFile, path_of
from epochlake.jobs.replicas.ledger import Ledger, Merge, Replaced
from epochlake.jobs.replicas.merging import MergePlan, RangeMerge, encode
from epochlake.jobs.replicas.outcomes import Acknowledged, AlreadyApplied
from epochlake.jobs.replicas.replica import ReplicaAddress, open_snapshot
from epochlake.jobs.replicas.staging_plan import StagingPlan
from epochlake.jobs.replicas.streaming import Copier
from epochlake.jobs.replicas.volumes import require_volume
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore.configuration import Configuration, StorageSettings
from epochlake.metastore.log.delta import DeltaLog, create_log_table
from epochlake.metastore.log.entry import Entry
from epochlake.metastore.metastore import init_cluster
from epochlake.metastore.storage import local_disk
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.tokens import TOKEN

from tests.support.logs import chain, put
from tests.support.power import Disk, disk
from tests.support.replicas import CLUSTER_ID, TABLE, make_replica, tablets_on
from tests.support.slices import sliced
from tests.support.storages import STORAGE

__all__ = ["disk"]


def log_has(entries: Sequence[Entry]) -> Callable[[Path], None]:
    def holds(root: Path) -> None:
        found = {entry.epoch: entry.hash for entry in DeltaLog(STORAGE, f"{root}/root/log").read(0)}
        assert {entry.epoch: entry.hash for entry in entries}.items() <= found.items()

    return holds


def at(address: ReplicaAddress, disk: Disk, root: Path) -> ReplicaAddress:
    """The same replica in another tree."""
    return msgspec.structs.replace(address, volume_uri=address.volume_uri.replace(str(disk.root), str(root)))


def rows_of(address: ReplicaAddress) -> list[int]:
    """The ids of all rows of a replica."""
    return sorted(
        row
        for file in open_snapshot(address).all_files.values()
        for row in pq.ParquetFile(f"{address.uri}/{file.path}").read(columns=["id"])["id"].to_pylist()
    )


def replica_has(disk: Disk, address: ReplicaAddress, ids: Sequence[int], fence: int = 0) -> Callable[[Path], None]:
    def holds(root: Path) -> None:
        there = at(address, disk, root)
        assert set(ids) <= set(rows_of(there))
        assert open_snapshot(there).fence >= fence

    return holds


def staged(replicas: Sequence[ReplicaAddress], ids: Sequence[int], tokens: Sequence[int]) -> list[DataFile]:
    """What a staging task does with some rows of a table with one tablet."""
    cover = tablets_on(1, {0: replicas})
    plan = StagingPlan(TABLE, cover, 100, False, 1 << 20, replicas[0].storage)
    batch = pa.record_batch({"id": list(ids), "note": [f"n{i}" for i in ids], TOKEN: list(tokens)})
    rows = [row for made in encode_rows(plan, [batch]) for row in made.to_pylist()]
    assert all(not row["failed"] for row in rows)
    return [
        DataFile(
            file_id=row["file_id"],
            label=row["label"],
            path=path_of(row["label"], row["file_id"]),
            size=row["size"],
            rows=row["rows"],
            min_token=row["min_token"],
            max_token=row["max_token"],
            min_written_at=100,
            max_written_at=100,
            has_tombstones=False,
        )
        for row in rows
    ]


def commit(address: ReplicaAddress, files: Sequence[DataFile], version: int) -> None:
    outcome = commit_files(address, files, epoch=5, app_id="load", app_version=version)
    assert isinstance(outcome, Acknowledged | AlreadyApplied), outcome


@pytest.mark.parametrize("torn", [False, True], ids=["names are lost", "names stay"])
def test_every_acknowledged_epoch_survives_a_power_cut(disk: Disk, tmp_path: Path, torn: bool) -> None:
    uri = f"{disk.root}/root/log"
    STORAGE.create_directory(f"{disk.root}/root", parents=True)
    create_log_table(STORAGE, uri)
    entries = chain(8)
    logs = [DeltaLog(STORAGE, uri, compact_every=4), DeltaLog(STORAGE, uri, compact_every=4)]
    for number, entry in enumerate(entries):
        log = logs[number % 2]
        log.read(number)
        if number == 3:
            with disk.unsynced():  # its process is killed, or is slow, before the entry is on the disk
                log.append([entry])
            continue
        log.append([entry])
        disk.promise("the log", log_has(entries[: entry.epoch]))
        if number == 6:
            log.fence()
            log.compact()
            disk.promise("the log", log_has(entries[: entry.epoch]))
    assert disk.check_all(tmp_path / "cuts", torn=torn) > 20


def test_epochs_that_are_only_in_a_checkpoint_survive_a_power_cut(disk: Disk, tmp_path: Path) -> None:
    uri = f"{disk.root}/root/log"
    STORAGE.create_directory(f"{disk.root}/root", parents=True)
    create_log_table(STORAGE, uri)
    log, entries = DeltaLog(STORAGE, uri), chain(52)
    with disk.unsynced():
        put(log, entries[:1])
        for entry in entries[1:-1]:
            log.read(entry.epoch - 1)
            log.append([entry])
    log.read(51)
    log.append(entries[-1:])
    log.compact()
    disk.promise("epoch 52", log_has(entries[-1:]))
    disk.check_all(tmp_path / "cuts")


@sliced()
@pytest.mark.parametrize("torn", [False, True], ids=["names are lost", "names stay"])
def test_every_acknowledged_row_fence_and_piece_survives_a_power_cut(disk: Disk, tmp_path: Path, torn: bool) -> None:
    replicas = [make_replica(disk.root, volume) for volume in (1, 2)]
    first = staged(replicas, range(10), range(0, 1000, 100))
    for replica in replicas:
        commit(replica, first, 1)
        disk.promise(replica.uri, replica_has(disk, replica, range(10)))
    assert raise_fence(replicas[0], 3) == 3
    disk.promise(replicas[0].uri, replica_has(disk, replicas[0], range(10), fence=3))

    second = staged(replicas, range(10, 20), range(2000, 3000, 100))
    with disk.unsynced():  # a pipeline that is killed just before its commit is on the disk
        commit(replicas[0], second, 2)
    commit(replicas[0], second, 2)  # another one relies on it
    disk.promise(replicas[0].uri, replica_has(disk, replicas[0], range(20), fence=3))

    with disk.unsynced():  # a coordinator that is killed before its fence is on the disk
        assert open_session(replicas[0], 4, "session") == 4
    assert open_session(replicas[0], 4, "session") == 4
    disk.promise(replicas[0].uri, replica_has(disk, replicas[0], range(20), fence=4))

    third = make_replica(disk.root, 3)
    copied = Copier(ThreadWorkers(2)).copy([file_copy(file, replicas[0], third) for file in (*first, *second)])
    commit(third, copied.arrived, 3)
    disk.promise(third.uri, replica_has(disk, third, range(20)))

    for_good = [*range(5), *range(10, 20)]
    assert pre_split(third, [450], 5) == 0
    disk.promise(third.uri, replica_has(disk, third, for_good))
    assert isinstance(drop_ranges(third, [(450, 999)], 5), Acknowledged)
    disk.promise(third.uri, replica_has(disk, third, for_good))
    landed: list[int] = []
    for version in range(4, 16):  # past a checkpoint
        commit(replicas[1], staged(replicas[1:2], [version * 100], [version]), version)
        landed.append(version * 100)
        disk.promise(replicas[1].uri, replica_has(disk, replicas[1], [*range(10), *landed]))
    assert disk.check_all(tmp_path / "cuts", torn=torn) > 50


def test_merged_files_and_what_they_replace_survive_a_power_cut(disk: Disk, tmp_path: Path) -> None:
    replicas = [make_replica(disk.root, volume) for volume in (1, 2)]
    [file] = staged(replicas, range(10), range(0, 1000, 100))
    for replica in replicas:
        commit(replica, [file], 1)
    low, high = file.window
    merge = RangeMerge(0, 0, file.label, low, high, (), f"{replicas[0].uri}/{file.path}", tuple(replicas), 0)
    batch = pq.ParquetFile(f"{replicas[0].uri}/{file.path}").read().to_batches()[0]
    [made] = encode(MergePlan(TABLE, (merge,), 1 << 20, replicas[0].storage), [batch])
    assert not made.failed
    STORAGE.create_directory(f"{disk.root}/root", parents=True)
    ledger = Ledger(STORAGE, f"{disk.root}/root/compactions")
    entry = Merge("t-1", made.file.file_id, low, high, 5, 0, (Replaced(file.file_id, low, high),))
    assert ledger.record([[entry]]) == (entry,)

    def recorded(root: Path) -> None:
        assert made.file.file_id in Ledger(STORAGE, f"{root}/root/compactions").merges("t-1")

    disk.promise("the ledger's entry", recorded)
    for replica in replicas:
        outcome = commit_files(replica, [made.file], epoch=5, app_id="compaction", app_version=1, ledger=ledger)
        assert isinstance(outcome, Acknowledged)
        disk.promise(replica.uri, replica_has(disk, replica, range(10)))
    disk.check_all(tmp_path / "cuts")


def test_decisions_markers_and_tables_survive_a_power_cut(disk: Disk, tmp_path: Path) -> None:
    configuration = Configuration(root=f"{disk.root}/deep/root")
    init_cluster(configuration, "power")

    def is_there(root: Path) -> None:
        assert len(DeltaLog(STORAGE, f"{root}/deep/root/log").read(0)) == 1

    disk.promise("the new cluster", is_there)
    address = make_replica(disk.root, 1)

    def prepared(root: Path) -> None:
        require_volume(STORAGE, at(address, disk, root).volume_uri, CLUSTER_ID, 1)
        assert open_snapshot(at(address, disk, root)).fence == 1

    disk.promise("the volume and its table", prepared)
    decisions = f"{disk.root}/deep/root/batches"
    decide(STORAGE, decisions, "ab-1", TABLE, decided(STORAGE, decisions, "ab-1"), [])

    def is_decided(root: Path) -> None:
        assert decided(STORAGE, f"{root}/deep/root/batches", "ab-1").generations == 1

    disk.promise("the batch's decision", is_decided)
    assert disk.check_all(tmp_path / "cuts")


def test_where_rows_rely_on_the_replicas_fences_and_the_log_are_synced_all_the_same(disk: Disk, tmp_path: Path) -> None:
    relying = Storage(StorageSettings(durability="replicas"))
    replicas = [make_replica(disk.root, volume, storage=relying) for volume in (1, 2)]
    before = len(disk.moments)
    files = staged(replicas, range(10), range(0, 1000, 100))
    for replica in replicas:
        commit(replica, files, 1)
    assert len(disk.moments) == before, "a write syncs nothing"
    assert raise_fence(replicas[0], 9) == 9

    def is_fenced(root: Path) -> None:
        assert open_snapshot(at(replicas[0], disk, root)).fence == 9

    disk.promise("the fence", is_fenced)
    assert disk.check_all(tmp_path / "cuts")


def test_a_disk_that_fails_to_sync_acknowledges_nothing_and_is_not_believed_the_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = make_replica(tmp_path, 1)
    files = staged([address], [1], [1])
    failing = [True]

    def fsync(descriptor: int) -> None:
        if failing and failing.pop():
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(local_disk, "fsync", fsync)
    monkeypatch.setattr(local_disk, "_lost", set())
    for _ in range(2):
        outcome = commit_files(address, files, epoch=5, app_id="load", app_version=1)
        assert not isinstance(outcome, Acknowledged | AlreadyApplied)
