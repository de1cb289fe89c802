"""Storage: the same calls for paths and URIs, and errors that name the place and what to do."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from epochlake.metastore.configuration import StorageSettings
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.storage import failures, places
from epochlake.metastore.storage.storage import Storage

from tests.support.failures import mounted, no_room_to_write, remount
from tests.support.storages import STORAGE


def test_a_path_and_its_file_uri_are_the_same_place(tmp_path: Path) -> None:
    STORAGE.create_directory(f"file://{tmp_path}/a%20b")
    STORAGE.write_bytes(f"{tmp_path}/a b/x", b"data")
    assert STORAGE.read_bytes(f"file://{tmp_path}/a%20b/x") == b"data"
    assert places.spark_uri(f"{tmp_path}/a b") == places.spark_uri(f"file://{tmp_path}/a%20b")


def test_any_other_file_system_of_arrow_works_alike() -> None:
    STORAGE.create_directory("mock://bucket/dir", parents=True)
    STORAGE.write_bytes("mock://bucket/dir/x", b"data")
    assert STORAGE.read_bytes("mock://bucket/dir/x") == b"data"
    assert STORAGE.read_tail("mock://bucket/dir/x", 2) == b"ta"
    assert STORAGE.copy_file("mock://bucket/dir/x", "mock://bucket/dir/y") == 4
    assert not STORAGE.put_if_absent("mock://bucket/dir/y", b"other")
    assert [entry.name for entry in STORAGE.list_files("mock://bucket/dir")] == ["x", "y"]
    assert (STORAGE.list_names("mock://bucket"), sorted(STORAGE.list_names("mock://bucket/dir"))) == (
        ["dir"],
        ["x", "y"],
    )
    with pytest.raises(failures.MissingFile):
        STORAGE.list_names("mock://bucket/nowhere")
    assert [STORAGE.delete_file("mock://bucket/dir/x") for _ in range(2)] == [True, False]
    assert not STORAGE.hard_link("mock://bucket/dir/y", "mock://bucket/dir/z")
    assert STORAGE.space("mock://bucket/dir") is None


def test_a_new_file_appears_when_it_is_whole_and_in_place_of_the_old_one(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/x"
    (tmp_path / "x").write_bytes(b"old")
    with pytest.raises(TypeError), STORAGE.new_file(uri) as stream:
        stream.writelines([b"half", None])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"x": b"old"}
    with STORAGE.new_file(uri) as stream:
        stream.write(b"new")
        assert STORAGE.read_bytes(uri) == b"old"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"x": b"new"}
    with pytest.raises(StorageUnavailable, match="cannot write"), STORAGE.new_file(f"{uri}/y"):
        raise AssertionError("there is no directory to write into")
    STORAGE.create_directory("mock://streamed", parents=True)
    with STORAGE.new_file("mock://streamed/x") as stream:
        stream.write(b"data")
    assert STORAGE.read_bytes("mock://streamed/x") == b"data"


def test_a_file_that_is_touched_counts_as_just_written(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"data")
    os.utime(tmp_path / "x", (7, 7))
    assert STORAGE.modified_ms(f"{tmp_path}/x") == 7000
    assert STORAGE.touch(f"{tmp_path}/x")
    assert (STORAGE.modified_ms(f"{tmp_path}/x") or 0) > 10**12
    assert (STORAGE.touch(f"{tmp_path}/y"), STORAGE.modified_ms(f"{tmp_path}/y")) == (False, None)
    assert not STORAGE.touch("mock://streamed/x"), "where it cannot be said, it has to be written again"


def test_files_are_copied_between_different_file_systems(tmp_path: Path) -> None:
    data = os.urandom(20_000_000)
    (tmp_path / "x").write_bytes(data)
    STORAGE.create_directory("mock://other", parents=True)
    assert STORAGE.copy_file(f"{tmp_path}/x", "mock://other/x") == len(data)
    assert STORAGE.copy_file("mock://other/x", f"{tmp_path}/y") == len(data)
    assert (tmp_path / "y").read_bytes() == data


def test_of_many_that_put_the_same_file_one_succeeds_and_nothing_is_left_over(tmp_path: Path) -> None:
    contents = [f"writer {n}".encode() for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        written = list(pool.map(lambda data: STORAGE.put_if_absent(f"{tmp_path}/x", data), contents))
    assert written.count(True) == 1
    assert STORAGE.read_bytes(f"{tmp_path}/x") == contents[written.index(True)]
    assert os.listdir(tmp_path) == ["x"]


def test_a_replaced_file_is_whole_or_old(tmp_path: Path) -> None:
    STORAGE.replace_bytes(f"{tmp_path}/x", b"old")
    with no_room_to_write(), pytest.raises(StorageUnavailable):
        STORAGE.replace_bytes(f"{tmp_path}/x", b"new")
    assert STORAGE.read_bytes(f"{tmp_path}/x") == b"old"
    STORAGE.replace_bytes(f"{tmp_path}/x", b"new")
    assert STORAGE.read_bytes(f"{tmp_path}/x") == b"new"
    assert os.listdir(tmp_path) == ["x"]


def test_a_failed_copy_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"data")
    with no_room_to_write(), pytest.raises(StorageUnavailable):
        STORAGE.copy_file(f"{tmp_path}/x", f"{tmp_path}/y")
    assert os.listdir(tmp_path) == ["x"]


def test_a_hard_link_is_one_file_with_two_names_that_counts_as_new(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"data")
    os.utime(tmp_path / "x", (0, 0))
    assert [STORAGE.hard_link(f"{tmp_path}/x", f"{tmp_path}/y") for _ in range(2)] == [True, True]
    assert (tmp_path / "x").samefile(tmp_path / "y")
    assert (tmp_path / "y").stat().st_mtime > 0
    (tmp_path / "z").write_bytes(b"another")
    assert not STORAGE.hard_link(f"{tmp_path}/x", f"{tmp_path}/z")


CALLS: list[Callable[[str], object]] = [
    lambda root: STORAGE.read_bytes(f"{root}/missing/x"),
    lambda root: STORAGE.write_bytes(f"{root}/missing/x", b""),
    lambda root: STORAGE.put_if_absent(f"{root}/missing/x", b""),
    lambda root: STORAGE.replace_bytes(f"{root}/missing/x", b""),
    lambda root: STORAGE.create_directory(f"{root}/missing/x"),
    lambda root: STORAGE.list_files(f"{root}/missing"),
    lambda root: STORAGE.copy_file(f"{root}/missing/x", f"{root}/y"),
    lambda root: STORAGE.space(f"{root}/missing"),
]


@pytest.mark.parametrize("call", CALLS)
def test_a_missing_place_is_named(tmp_path: Path, call: Callable[[str], object]) -> None:
    with pytest.raises(failures.MissingFile, match=r"missing.*it is not there .*Check that the disk is mounted"):
        call(str(tmp_path))


def test_a_full_and_a_read_only_disk_are_told_apart(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "64k") as small:
        STORAGE.write_bytes(f"{small}/x", b"x" * 1000)
        with pytest.raises(StorageUnavailable, match=r"small/y: the disk is full .*Make room"):
            STORAGE.write_bytes(f"{small}/y", b"x" * 1_000_000)
        remount(small, "ro")
        with pytest.raises(StorageUnavailable, match=r"small/z: it is mounted read-only"):
            STORAGE.put_if_absent(f"{small}/z", b"x")
        assert STORAGE.read_bytes(f"{small}/x") == b"x" * 1000


def test_a_file_in_place_of_a_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(StorageUnavailable, match="a file stands where a directory should be"):
        STORAGE.write_bytes(f"{tmp_path}/x/y", b"")
    with pytest.raises(StorageUnavailable):
        STORAGE.create_directory(f"{tmp_path}/x", parents=True)


def test_an_unknown_kind_of_uri_is_named() -> None:
    with pytest.raises(StorageUnavailable, match="nosuch://place"):
        STORAGE.read_bytes("nosuch://place/x")


def test_options_are_for_places_that_are_not_local(tmp_path: Path) -> None:
    american, european = (Storage(StorageSettings({"aws_region": region})) for region in ("us-east-1", "eu-west-1"))
    assert european.delta_options(str(tmp_path)) == {}
    assert european.delta_options("s3://bucket/x") == {"aws_region": "eu-west-1"}
    assert american.delta_options("s3://bucket/x") == {"aws_region": "us-east-1"}
