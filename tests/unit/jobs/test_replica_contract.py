"""What every form of a replica table holds to: one test class, run on Delta tables of a disk and in memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from epochlake.jobs.replicas.commits import commit_files, drop_ranges, pre_split, relabel
from epochlake.jobs.replicas.copying import copy_data_file, file_copy, link_data_file
from epochlake.jobs.replicas.damage import ExpectedFile, check_bytes
from epochlake.jobs.replicas.fences import close_sessions, mark_filled, open_session, raise_fence
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.outcomes import Acknowledged, AlreadyApplied, FencedOff, PartlyApplied, SessionClosed
from epochlake.jobs.replicas.receipts import Receipt, Receipts, went_back
from epochlake.jobs.replicas.replica import ReplicaAddress, create_replica, open_snapshot
from epochlake.jobs.replicas.states import KeptStates
from epochlake.metastore import delta_commits
from epochlake.metastore.configuration import StorageSettings
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.storage.memory import MemoryStorage
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.tokens import tokens_of_label

from tests.support.replicas import TABLE, make_replica, store

LABEL = "2-1"


def rows_of(address: ReplicaAddress) -> list[int]:
    """The ids of all rows of a replica, ascending."""
    found = []
    for file in open_snapshot(address).all_files.values():
        filesystem, path = address.storage.filesystem(f"{address.uri}/{file.path}")
        found += pq.read_table(path, filesystem=filesystem, columns=["id"])["id"].to_pylist()
    return sorted(found)


def load(address: ReplicaAddress, file: DataFile, version: int, epoch: int = 5) -> object:
    return commit_files(address, [file], epoch=epoch, app_id="load", app_version=version)


class ReplicaContract:
    """`storage`, and replicas on it."""

    @pytest.fixture
    def one(self, storage: Storage, tmp_path: Path) -> ReplicaAddress:
        storage.create_directory(str(tmp_path), parents=True)
        return make_replica(tmp_path, 1, storage=storage)

    @pytest.fixture
    def other(self, one: ReplicaAddress, tmp_path: Path) -> ReplicaAddress:
        return make_replica(tmp_path, 2, storage=one.storage)

    def test_it_is_made_once_and_empty(self, one: ReplicaAddress) -> None:
        first = open_snapshot(one)
        create_replica(one, TABLE, 9)
        again = open_snapshot(one)
        assert (again.version, again.fence, again.sessions, again.all_files) == (first.version, 1, frozenset(), {})
        assert again.metadata == first.metadata

    def test_one_that_is_not_there_is_lost_and_never_empty(self, one: ReplicaAddress) -> None:
        with pytest.raises(StorageUnavailable, match="was lost"):
            open_snapshot(msgspec.structs.replace(one, table_id="t-2"))
        one.storage.delete_file(f"{one.volume_uri}/epochlake-volume.json")
        with pytest.raises(StorageUnavailable, match="its marker"):
            open_snapshot(one)

    def test_files_are_committed_once_under_their_mark(self, one: ReplicaAddress) -> None:
        file = store(one, LABEL)
        assert isinstance(load(one, file, 1), Acknowledged)
        assert isinstance(load(one, file, 1), AlreadyApplied)
        assert open_snapshot(one).all_files == {file.file_id: file}
        assert rows_of(one) == [1, 2, 3]
        assert open_snapshot(one).applied("load") == 1
        assert open_snapshot(one).applied("nobody") is None

    def test_writers_at_once_all_land(self, one: ReplicaAddress) -> None:
        files = [store(one, LABEL, ids=[number]) for number in range(12)]

        def write(number: int) -> object:
            return commit_files(one, [files[number]], epoch=5, app_id=f"writer-{number}", app_version=1)

        with ThreadPoolExecutor(4) as pool:
            outcomes = list(pool.map(write, range(12)))
        assert [outcome for outcome in outcomes if not isinstance(outcome, Acknowledged)] == []
        assert rows_of(one) == list(range(12))

    def test_a_fence_only_rises_and_refuses_what_was_planned_before(self, one: ReplicaAddress) -> None:
        assert [raise_fence(one, epoch) for epoch in (7, 3, 9)] == [7, 7, 9]
        assert load(one, store(one, LABEL), 1, epoch=8) == FencedOff(9)
        assert isinstance(load(one, store(one, LABEL), 1, epoch=9), Acknowledged)

    def test_work_under_a_closed_session_is_refused(self, one: ReplicaAddress) -> None:
        assert open_session(one, 3, "s") == 3
        file = store(one, LABEL)
        streamed = {"epoch": 3, "app_id": "s", "session": "s"}
        assert isinstance(commit_files(one, [file], app_version=1, **streamed), Acknowledged)  # type: ignore[arg-type]
        assert close_sessions(one, 4, ["s"]) == 4
        late = commit_files(one, [store(one, LABEL)], epoch=4, app_id="s", app_version=2, session="s")
        assert late == SessionClosed("s")
        assert rows_of(one) == [1, 2, 3]

    def test_sessions_share_a_commit_while_all_of_them_are_open(self, one: ReplicaAddress) -> None:
        for session in ("s", "t"):
            open_session(one, 3, session)
        before, files = open_snapshot(one).version, [store(one, LABEL, ids=[number]) for number in range(4)]

        def together(version: int, *sessions: str, epoch: int = 3, file: int) -> object:
            return commit_files(
                one,
                [files[file]],
                epoch=epoch,
                app_id=sessions[0],
                app_version=version,
                session=sessions[0],
                beside=sessions[1:],
                leaves_mark=True,
            )

        assert isinstance(together(1, "s", "t", file=0), Acknowledged)
        there = open_snapshot(one)
        assert (there.version, there.applied("s"), there.applied("t")) == (before + 1, 1, 1)
        assert isinstance(together(1, "t", "s", file=0), AlreadyApplied)
        assert isinstance(together(2, "t", file=1), Acknowledged)
        for sessions in (("s", "t"), ("t", "s")):
            assert together(2, *sessions, file=2) == PartlyApplied(before + 2)
        assert open_snapshot(one).applied("s") == 1
        close_sessions(one, 4, ["t"])
        assert together(3, "s", "t", epoch=4, file=2) == SessionClosed("t")
        assert isinstance(together(3, "s", epoch=4, file=3), Acknowledged)
        assert rows_of(one) == [0, 1, 3]

    def test_what_a_rebuild_has_made_is_read_when_it_is_filled(self, one: ReplicaAddress) -> None:
        made = msgspec.structs.replace(one, table_id="t-2")
        create_replica(made, msgspec.structs.replace(TABLE, table_id="t-2"), 2, unfilled="rebuild")
        assert open_snapshot(made).unfilled == "rebuild"
        assert mark_filled(made, 3, "rebuild") == 3
        assert open_snapshot(made).unfilled == ""

    def test_ranges_are_dropped_and_files_cut_and_labelled_anew(self, one: ReplicaAddress) -> None:
        first = tokens_of_label(LABEL)[0]
        file = store(one, LABEL, ids=range(10), tokens=range(first, first + 1000, 100))
        assert isinstance(load(one, file, 1), Acknowledged)
        assert pre_split(one, [first + 449], 5) == 0
        pieces = sorted(open_snapshot(one).all_files.values(), key=lambda piece: piece.min_token)
        assert [piece.rows for piece in pieces] == [5, 5]
        assert isinstance(drop_ranges(one, [(first, first + 250)], 5), Acknowledged)
        assert rows_of(one) == [3, 4, 5, 6, 7, 8, 9]
        assert isinstance(relabel(one, lambda _: "4-2", 5), Acknowledged)
        assert {one.label for one in open_snapshot(one).all_files.values()} == {"4-2"}
        assert isinstance(relabel(one, lambda _: "4-2", 5), AlreadyApplied)

    def test_a_file_is_copied_and_linked_whole(self, one: ReplicaAddress, other: ReplicaAddress) -> None:
        first, second = store(one, LABEL), store(one, LABEL, ids=[7])
        for version, (file, bring) in enumerate([(first, copy_data_file), (second, link_data_file)], start=1):
            load(one, file, version)
            assert bring(file_copy(file, one, other)) == file
            assert check_bytes(ExpectedFile(file, other)).damage is None
            load(other, file, version)
        assert rows_of(other) == rows_of(one) == [1, 2, 3, 7]

    def test_a_damaged_source_is_not_copied(self, one: ReplicaAddress, other: ReplicaAddress) -> None:
        file = store(one, LABEL)
        data = bytearray(one.storage.read_bytes(f"{one.uri}/{file.path}"))
        data[10] ^= 1
        one.storage.write_bytes(f"{one.uri}/{file.path}", bytes(data))
        with pytest.raises(StorageUnavailable, match="its bytes are not those that were written"):
            copy_data_file(file_copy(file, one, other))
        assert check_bytes(ExpectedFile(file, one)).damage is not None

    def test_one_that_went_back_is_told_by_its_receipts(self, one: ReplicaAddress, tmp_path: Path) -> None:
        receipts = Receipts(one.storage, str(tmp_path / "receipts"))
        load(one, store(one, LABEL), 1)
        load(one, store(one, LABEL), 2)
        receipts.add(one.table_id, Receipt(1, 2, "load"))
        known = receipts.of(one.table_id)[1]
        assert went_back(open_snapshot(one), known) == ""
        one.storage.delete_file(delta_commits.commit_uri(one.uri, open_snapshot(one).version))
        assert "went back" in went_back(open_snapshot(one), known)

    def test_what_is_kept_is_carried_on_as_what_is_read_anew(self, one: ReplicaAddress) -> None:
        for version in range(1, 15):  # past a checkpoint
            load(one, store(one, LABEL, ids=[version]), version)
            carried = open_snapshot(one)
            one.storage.kept(KeptStates)._kept.clear()
            anew = open_snapshot(one)
            assert (anew.version, anew.all_files, anew.metadata) == (
                carried.version,
                carried.all_files,
                carried.metadata,
            )
            assert anew.applied("load") == carried.applied("load") == version

    def test_a_torn_commit_is_named_and_nothing_is_read_over_it(self, one: ReplicaAddress) -> None:
        for version in range(1, 4):
            load(one, store(one, LABEL, ids=[version]), version)
        one.storage.replace_bytes(delta_commits.commit_uri(one.uri, 2), b"")
        one.storage._kept.clear()
        with pytest.raises(StorageUnavailable, match=r"commit 2 of the table .* is empty"):
            open_snapshot(one)


class TestDeltaTables(ReplicaContract):
    @pytest.fixture
    def storage(self) -> Storage:
        return Storage(StorageSettings())


class TestInMemory(ReplicaContract):
    @pytest.fixture
    def storage(self) -> Storage:
        return MemoryStorage()


def test_replicas_in_memory_are_seen_by_all_who_share_the_disk(tmp_path: Path) -> None:
    mine = MemoryStorage()
    mine.create_directory(str(tmp_path), parents=True)
    address = make_replica(tmp_path, 1, storage=mine)
    theirs = msgspec.structs.replace(address, storage=MemoryStorage(disk=mine.disk))
    load(address, store(address, LABEL), 1)
    assert rows_of(theirs) == [1, 2, 3]
    assert raise_fence(theirs, 9) == 9
    assert load(address, store(address, LABEL), 2, epoch=8) == FencedOff(9)
    assert list(tmp_path.iterdir()) == [], "nothing of it is on a real disk"
