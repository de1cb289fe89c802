"""What every storage holds to on local paths: one test class, run on a real disk and in memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from epochlake.jobs.testing.folder_disk import FolderDisk
from epochlake.jobs.testing.power import CuttableDisk
from epochlake.metastore import delta_commits
from epochlake.metastore.configuration import StorageSettings
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.storage.disk import LockNotHad
from epochlake.metastore.storage.failures import MissingFile, StorageFull, StorageMisconfigured
from epochlake.metastore.storage.memory import MemoryStorage
from epochlake.metastore.storage.memory_disk import MemoryDisk
from epochlake.metastore.storage.storage import Storage


class StorageContract:
    """`storage`, with an empty directory `root`."""

    @pytest.fixture
    def root(self, storage: Storage, tmp_path: Path) -> str:
        storage.create_directory(str(tmp_path), parents=True)
        return str(tmp_path)

    def test_a_file_is_what_was_written_last(self, storage: Storage, root: str) -> None:
        for data in (b"long data", b"short", b""):
            storage.write_bytes(f"{root}/x", data)
            assert storage.read_bytes(f"file://{root}/x") == data
            assert storage.size_of(f"{root}/x") == len(data)
        storage.replace_bytes(f"{root}/x", b"replaced")
        assert storage.read_tail(f"{root}/x", 4) == b"aced"
        assert storage.read_tail(f"{root}/x", 400) == b"replaced"
        assert storage.disk.names(root) == ["x"]

    def test_of_many_that_put_one_file_one_succeeds(self, storage: Storage, root: str) -> None:
        contents = [f"writer {n}".encode() for n in range(8)]
        with ThreadPoolExecutor(8) as pool:
            written = list(pool.map(lambda data: storage.put_if_absent(f"{root}/x", data), contents))
        assert written.count(True) == 1
        assert storage.read_bytes(f"{root}/x") == contents[written.index(True)]
        assert storage.disk.names(root) == ["x"]

    def test_a_stream_appears_when_it_is_whole(self, storage: Storage, root: str) -> None:
        storage.write_bytes(f"{root}/x", b"old")
        with pytest.raises(TypeError), storage.new_file(f"{root}/x") as stream:
            stream.writelines([b"half", None])
        assert storage.read_bytes(f"{root}/x") == b"old"
        with storage.new_file(f"{root}/x") as stream:
            stream.write(b"new ")
            assert stream.tell() == 4
            stream.write(b"file")
            assert storage.read_bytes(f"{root}/x") == b"old"
        assert storage.read_bytes(f"{root}/x") == b"new file"
        assert storage.disk.names(root) == ["x"]

    def test_a_link_is_the_same_file_and_counts_as_new(self, storage: Storage, root: str) -> None:
        storage.write_bytes(f"{root}/x", b"data")
        before = storage.modified_ms(f"{root}/x") or 0
        assert [storage.hard_link(f"{root}/x", f"{root}/y") for _ in range(2)] == [True, True]
        assert (storage.modified_ms(f"{root}/x") or 0) >= before
        x, y = storage.disk.status(f"{root}/x"), storage.disk.status(f"{root}/y")
        assert x is not None
        assert x.is_same_as(y)
        storage.write_bytes(f"{root}/z", b"another")
        assert not storage.hard_link(f"{root}/x", f"{root}/z")
        assert storage.delete_file(f"{root}/x")
        assert storage.read_bytes(f"{root}/y") == b"data"

    def test_a_copy_is_another_file_with_the_same_bytes(self, storage: Storage, root: str) -> None:
        data = os.urandom(9_000_000)
        storage.write_bytes(f"{root}/x", data)
        assert storage.copy_file(f"{root}/x", f"{root}/y") == len(data)
        assert storage.read_bytes(f"{root}/y") == data
        x, y = storage.disk.status(f"{root}/x"), storage.disk.status(f"{root}/y")
        assert x is not None
        assert not x.is_same_as(y)

    def test_what_is_replaced_is_told_from_what_was_there(self, storage: Storage, root: str) -> None:
        table, uri = f"{root}/t", delta_commits.commit_uri(f"{root}/t", 0)
        storage.create_directory(f"{table}/_delta_log", parents=True)
        assert delta_commits.identity(storage, table, 0) is None
        storage.replace_bytes(uri, b"one")
        first = delta_commits.identity(storage, table, 0)
        assert delta_commits.identity(storage, table, 0) == first
        storage.replace_bytes(uri, b"one")
        assert delta_commits.identity(storage, table, 0) != first

    def test_files_are_listed_by_name_however_deep_they_are(self, storage: Storage, root: str) -> None:
        storage.create_directory(f"{root}/a/b", parents=True)
        for name in ("z", "a/y", "a/b/x"):
            storage.write_bytes(f"{root}/{name}", name.encode())
        listed = storage.list_files(root)
        assert [(entry.name, entry.size) for entry in listed] == [("a/b/x", 5), ("a/y", 3), ("z", 1)]
        assert [entry.modified_ms for entry in listed] == [storage.modified_ms(f"{root}/{e.name}") for e in listed]
        assert sorted(storage.list_names(root)) == ["a", "z"]
        assert storage.sizes_of([f"{root}/z", f"{root}/a", f"{root}/q"]) == [1, None, None]

    def test_files_and_directories_move_and_go(self, storage: Storage, root: str) -> None:
        storage.create_directory(f"{root}/a")
        storage.write_bytes(f"{root}/a/x", b"data")
        assert storage.move_file(f"{root}/a", f"{root}/b")
        assert not storage.move_file(f"{root}/a", f"{root}/c")
        assert storage.read_bytes(f"{root}/b/x") == b"data"
        storage.within_deadline("delete", root, lambda: storage.delete_tree(f"{root}/b"))
        assert not storage.exists(f"{root}/b")
        assert [storage.delete_file(f"{root}/b/x") for _ in range(2)] == [False, False]

    def test_a_file_that_is_touched_counts_as_just_written(self, storage: Storage, root: str) -> None:
        storage.write_bytes(f"{root}/x", b"data")
        before = storage.modified_ms(f"{root}/x") or 0
        assert storage.touch(f"{root}/x")
        assert (storage.modified_ms(f"{root}/x") or 0) >= before
        assert (storage.touch(f"{root}/y"), storage.modified_ms(f"{root}/y")) == (False, None)

    MISSING: tuple[Callable[[Storage, str], object], ...] = (
        lambda storage, root: storage.read_bytes(f"{root}/missing/x"),
        lambda storage, root: storage.write_bytes(f"{root}/missing/x", b""),
        lambda storage, root: storage.put_if_absent(f"{root}/missing/x", b""),
        lambda storage, root: storage.replace_bytes(f"{root}/missing/x", b""),
        lambda storage, root: storage.create_directory(f"{root}/missing/x"),
        lambda storage, root: storage.list_files(f"{root}/missing"),
        lambda storage, root: storage.copy_file(f"{root}/missing/x", f"{root}/y"),
        lambda storage, root: storage.space(f"{root}/missing"),
        lambda storage, root: storage.sync_always([f"{root}/missing"]),
    )

    @pytest.mark.parametrize("call", MISSING)
    def test_a_missing_place_is_named(
        self, storage: Storage, root: str, call: Callable[[Storage, str], object]
    ) -> None:
        with pytest.raises(MissingFile, match=r"missing.*it is not there .*Check that the disk is mounted"):
            call(storage, root)

    def test_a_file_in_place_of_a_directory_is_named(self, storage: Storage, root: str) -> None:
        storage.write_bytes(f"{root}/x", b"")
        with pytest.raises(StorageMisconfigured, match="a file stands where a directory should be"):
            storage.write_bytes(f"{root}/x/y", b"")
        assert not storage.exists(f"{root}/x/y")
        with pytest.raises(StorageUnavailable):
            storage.create_directory(f"{root}/x", parents=True)
        with pytest.raises(StorageMisconfigured, match="a directory stands where a file should be"):
            storage.read_bytes(root)

    def test_parquet_is_written_and_read_by_arrow(self, storage: Storage, root: str) -> None:
        rows = pa.table({"id": list(range(1000))})
        with storage.new_file(f"{root}/x.parquet") as sink:
            pq.write_table(rows, sink)
        filesystem, path = storage.filesystem(f"{root}/x.parquet")
        assert pq.read_table(path, filesystem=filesystem) == rows
        with pytest.raises(FileNotFoundError):
            filesystem.open_input_file(f"{path}-missing")

    def test_a_commit_is_put_once_and_found_whole(self, storage: Storage, root: str) -> None:
        table = f"{root}/t"
        storage.create_directory(f"{table}/_delta_log", parents=True)
        actions = [[{"txn": {"appId": f"writer-{writer}", "version": 1}}] for writer in range(6)]
        for version in range(3):
            with ThreadPoolExecutor(6) as pool:
                put = list(
                    pool.map(
                        lambda lines, version=version: delta_commits.put_commit(
                            storage, delta_commits.CommitName(table, version), "W", lines
                        ),
                        actions,
                    )
                )
            assert put.count(True) == 1
        commits = delta_commits.commits_after(storage, delta_commits.CommitName(table, -1))
        assert commits is not None
        assert [len(commit) for commit in commits] == [2, 2, 2]
        assert delta_commits.newest_version(storage, table) == 2
        storage.delete_file(delta_commits.commit_uri(table, 1))
        assert [torn.version for torn in delta_commits.torn_commits(storage, table)] == [1]
        with pytest.raises(delta_commits.TornCommit):
            delta_commits.put_commit(storage, delta_commits.CommitName(table, 1), "W", [])

    def test_a_lock_is_held_by_one(self, storage: Storage, root: str) -> None:
        with storage.disk.locked(f"{root}/lock"), pytest.raises(LockNotHad), storage.disk.locked(f"{root}/lock"):
            raise AssertionError("two have it")
        with storage.disk.locked(f"{root}/lock"):
            pass


class TestLocalDisk(StorageContract):
    @pytest.fixture
    def storage(self) -> Storage:
        return Storage(StorageSettings())


class TestMemory(StorageContract):
    @pytest.fixture
    def storage(self) -> Storage:
        return MemoryStorage()


class TestWorldFolder(StorageContract):
    @pytest.fixture
    def storage(self) -> Iterator[Storage]:
        disk = FolderDisk(time.time_ns)
        yield Storage(StorageSettings(), disk=disk)
        disk.close()
        assert not os.path.exists(disk.base)


class TestCuttable(StorageContract):
    @pytest.fixture
    def storage(self) -> Storage:
        return MemoryStorage(disk=CuttableDisk(MemoryDisk()))


def test_storages_in_memory_share_a_disk_or_nothing() -> None:
    disk = MemoryDisk()
    one, other, apart = MemoryStorage(disk=disk), MemoryStorage(disk=disk), MemoryStorage()
    one.create_directory("/a", parents=True)
    one.write_bytes("/a/x", b"data")
    assert other.read_bytes("/a/x") == b"data"
    assert not apart.exists("/a")
    assert one == other != apart


def test_a_disk_in_memory_goes_by_its_clock_and_can_be_full() -> None:
    now = [7_000_000_000]
    storage = MemoryStorage(disk=MemoryDisk(lambda: now[0], total=1000))
    storage.write_bytes("/x", b"x" * 900)
    assert storage.modified_ms("/x") == 7000
    with pytest.raises(StorageFull):
        storage.write_bytes("/y", b"y" * 200)
    space = storage.space("/")
    assert space is not None
    assert (space.total, space.free) == (1000, 100)
    now[0] = 9_000_000_000
    storage.touch("/x")
    assert storage.modified_ms("/x") == 9000
    storage.delete_file("/x")
    storage.write_bytes("/y", b"y" * 900)
