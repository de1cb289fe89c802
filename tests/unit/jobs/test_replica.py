"""Replica tables: what a snapshot shows, and that a lost one is never taken for an empty one."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from deltalake import DeltaTable
from epochlake.jobs.replicas.commits import commit_files
from epochlake.jobs.replicas.outcomes import Acknowledged, AlreadyApplied, Unreachable
from epochlake.jobs.replicas.replica import create_replica, open_snapshot
from epochlake.jobs.replicas.volumes import MARKER_FILE
from epochlake.metastore.errors import StorageUnavailable, WrongCluster
from epochlake.metastore.metadata.model import Column
from epochlake.placement.errors import InvalidRequest

from tests.support.replicas import TABLE, make_replica, make_volume, marker, store
from tests.support.storages import STORAGE


def test_a_new_replica_is_empty_and_fenced_at_the_epoch_it_was_made_for(tmp_path: Path) -> None:
    snapshot = open_snapshot(make_replica(tmp_path, 1, fence=7))
    assert (snapshot.fence, snapshot.sessions, snapshot.all_files, snapshot.newest_written_at) == (
        7,
        frozenset(),
        {},
        0,
    )
    assert snapshot.applied("load") is None


def test_creating_a_replica_again_changes_nothing(tmp_path: Path) -> None:
    address = make_replica(tmp_path, 1, fence=7)
    file = store(address)
    commit_files(address, [file], epoch=7, app_id="load", app_version=1)
    create_replica(address, TABLE, 3)
    snapshot = open_snapshot(address)
    assert snapshot.fence == 7
    assert snapshot.all_files == {file.file_id: file}


def test_a_committed_file_comes_back_from_the_log_as_it_was_given(tmp_path: Path) -> None:
    address = make_replica(tmp_path, 1)
    file = msgspec.structs.replace(store(address), min_written_at=5, max_written_at=2**53 + 1, has_tombstones=True)
    assert isinstance(commit_files(address, [file], epoch=1, app_id="load", app_version=1), Acknowledged)
    snapshot = open_snapshot(address)
    assert snapshot.all_files == {file.file_id: file}
    assert snapshot.newest_written_at == 2**53 + 1
    assert snapshot.applied("load") == 1


def test_rows_committed_to_a_replica_are_read_by_any_delta_reader(tmp_path: Path) -> None:
    address = make_replica(tmp_path, 1)
    commit_files(address, [store(address, ids=[4, 5])], epoch=1, app_id="load", app_version=1)
    rows = DeltaTable(address.uri).to_pyarrow_table()
    assert rows["id"].to_pylist() == [4, 5]
    assert rows["_tablet"].to_pylist() == ["2-1", "2-1"]


def test_a_snapshot_keeps_showing_what_it_showed(tmp_path: Path) -> None:
    address = make_replica(tmp_path, 1)
    before = open_snapshot(address)
    commit_files(address, [store(address)], epoch=1, app_id="load", app_version=1)
    assert before.all_files == {}


def lose_the_table(volume: Path, replica: Path) -> None:
    shutil.rmtree(replica)


def lose_the_log(volume: Path, replica: Path) -> None:
    shutil.rmtree(replica / "_delta_log")


def put_a_file_in_place_of_the_table(volume: Path, replica: Path) -> None:
    shutil.rmtree(replica)
    replica.write_text("")


def unmount(volume: Path, replica: Path) -> None:
    shutil.rmtree(volume)
    volume.mkdir()


def lose_the_marker(volume: Path, replica: Path) -> None:
    (volume / MARKER_FILE).unlink()


def tear_the_marker(volume: Path, replica: Path) -> None:
    (volume / MARKER_FILE).write_text('{"cluster": "te')


def lose_the_volume(volume: Path, replica: Path) -> None:
    shutil.rmtree(volume)


def tear_the_log(volume: Path, replica: Path) -> None:
    (replica / "_delta_log" / f"{0:020}.json").write_text('{"protocol":{"minRead')


LOSSES = [
    (lose_the_table, "was lost"),
    (lose_the_log, "was lost"),
    (put_a_file_in_place_of_the_table, "was lost|directory"),
    (unmount, "not mounted"),
    (lose_the_marker, "not mounted"),
    (tear_the_marker, "marker"),
    (lose_the_volume, "not mounted"),
    (tear_the_log, "commit 0 of the table"),
]


@pytest.mark.parametrize(("lose", "message"), LOSSES, ids=[lose.__name__ for lose, _ in LOSSES])
def test_what_was_lost_is_unavailable_and_never_empty(tmp_path: Path, lose, message: str) -> None:  # type: ignore[no-untyped-def]
    address = make_replica(tmp_path, 1)
    file = store(address)
    lose(Path(address.volume_uri), Path(address.uri))
    with pytest.raises(StorageUnavailable, match=message) as caught:
        open_snapshot(address)
    assert address.volume_uri in str(caught.value)
    assert isinstance(commit_files(address, [file], epoch=1, app_id="load", app_version=1), Unreachable)
    assert not (Path(address.uri) / "_delta_log" / f"{1:020}.json").exists()


def test_a_replica_of_another_table_or_volume_is_refused(tmp_path: Path) -> None:
    first, second = make_replica(tmp_path, 1), make_replica(tmp_path, 2)
    shutil.rmtree(second.uri)
    shutil.copytree(first.uri, second.uri)
    with pytest.raises(WrongCluster, match="should be the replica of table t-1 on volume 2"):
        open_snapshot(second)


def test_a_volume_of_another_cluster_takes_no_replica(tmp_path: Path) -> None:
    address = msgspec.structs.replace(make_replica(tmp_path, 1), cluster_id="another")
    with pytest.raises(WrongCluster, match="Check which disk is mounted"):
        create_replica(address, TABLE, 1)


def test_no_replica_is_made_on_a_volume_that_is_not_mounted(tmp_path: Path) -> None:
    address = make_replica(tmp_path, 1)
    unmount(Path(address.volume_uri), Path(address.uri))
    with pytest.raises(StorageUnavailable, match="not mounted"):
        create_replica(address, TABLE, 1)
    assert list(Path(address.volume_uri).iterdir()) == []


@pytest.mark.parametrize(
    ("columns", "key", "message"),
    [
        ((Column("id", "bigint"), Column("ID", "int")), ("id",), "'ID' is there twice"),
        ((Column("id", "bigint"), Column("_Token", "int")), ("id",), "'_Token' is there twice, or is one of the"),
        ((Column("id", "bigint"), Column("a b", "int")), ("id",), "cannot be called 'a b'"),
        ((Column("id", "biginteger"),), ("id",), "'biginteger' is unknown"),
        ((Column("id", "array<int"),), ("id",), "ends too early"),
        ((Column("id", "decimal(3,5)"),), ("id",), "precision"),
        ((Column("id", "int int"),), ("id",), "follows a complete type"),
        ((Column("id", "interval day"),), ("id",), "unknown"),
        ((Column("id", "struct<a:map<string,int>>"),), ("id",), "cannot be hashed"),
        ((Column("id", "bigint"),), ("key",), "do not exist: \\['key'\\]"),
        ((Column("id", "bigint"),), (), "primary key"),
    ],
)
def test_columns_that_cannot_be_stored_are_refused_by_name(tmp_path: Path, columns, key, message: str) -> None:  # type: ignore[no-untyped-def]
    address = make_replica(tmp_path, 1)
    shutil.rmtree(address.uri)
    with pytest.raises(InvalidRequest, match=message):
        create_replica(address, msgspec.structs.replace(TABLE, columns=columns, primary_key=key), 1)
    assert not Path(address.uri).exists()


def test_every_type_that_spark_and_delta_share_can_be_stored_beside_the_statistics(tmp_path: Path) -> None:
    types = ["boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary", "date"]
    types += ["timestamp", "timestamp_ntz", "decimal(38, 18)", "numeric"]
    types += ["ARRAY<STRUCT<a: INT, `b c` map<string, array<double>>>>"]
    types += ["struct<x: int, y: string>"]
    columns = tuple(Column(f"c{n}", type_) for n, type_ in enumerate(types))
    address = make_replica(tmp_path, 1, table=msgspec.structs.replace(TABLE, columns=columns, primary_key=("c4",)))
    file = store(address)
    commit_files(address, [file], epoch=1, app_id="load", app_version=1)
    assert open_snapshot(address).all_files == {file.file_id: file}


def test_an_unmounted_volume_is_back_with_its_replicas_when_it_is_mounted_again(tmp_path: Path) -> None:
    address = make_replica(tmp_path, 1)
    file = store(address)
    commit_files(address, [file], epoch=1, app_id="load", app_version=1)
    volume, elsewhere = Path(address.volume_uri), tmp_path / "elsewhere"
    volume.rename(elsewhere)
    volume.mkdir()
    assert isinstance(commit_files(address, [store_nothing(file)], epoch=1, app_id="load", app_version=2), Unreachable)
    volume.rmdir()
    elsewhere.rename(volume)
    assert open_snapshot(address).all_files == {file.file_id: file}
    again = commit_files(address, [file], epoch=1, app_id="load", app_version=1)
    assert again == AlreadyApplied(1)


def store_nothing(file):  # type: ignore[no-untyped-def]
    return msgspec.structs.replace(file, file_id="gone")


def test_preparing_a_volume_twice_is_the_same_and_foreign_ones_are_refused(tmp_path: Path) -> None:
    from epochlake.jobs.replicas.volumes import prepare_volume

    uri = make_volume(tmp_path, 1)
    assert prepare_volume(STORAGE, uri, marker(1)) == marker(1)
    for other in (marker(2), marker(1, host_id="host-9"), marker(1, cluster_id="another")):
        with pytest.raises(WrongCluster, match="it is volume 'd1' \\(number 1\\) of node 'n1'"):
            prepare_volume(STORAGE, uri, other)
    with pytest.raises(InvalidRequest, match="pattern"):
        prepare_volume(STORAGE, f"{tmp_path}/v*", marker(3))
