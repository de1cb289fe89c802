"""Replica tables, files, the ledger and what is stored beside the log: as earlier versions wrote them, read for ever.

See `tests/data/formats/README.md`. Each replica table was made by the code of its generation: three files committed,
one taken out again, sessions opened and closed, from generation 2 on a file cut in two, from 3 on a fence of a second
incarnation. In 5 the file that is cut has three row groups, and each of them a digest. From 6 on commits say which
they are.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from epochlake.jobs.administration.schema import table_id_of
from epochlake.jobs.coordinator.effects import tablets as side_effects
from epochlake.jobs.gate.batches import BatchContents, Count, Generation, batch_id, decided
from epochlake.jobs.gate.merge_journal import Intent, MergeCounts, MergeEntry, MergeJournal
from epochlake.jobs.gate.row_digests import DigestedColumn
from epochlake.jobs.replicas.change_entries import TAG, ChangeEntry, Said, Totals, added, entry_of
from epochlake.jobs.replicas.change_index import ChangeIndex
from epochlake.jobs.replicas.change_intents import Intent as ChangeIntent
from epochlake.jobs.replicas.change_intents import Intents
from epochlake.jobs.replicas.change_readers import Reader, Readers
from epochlake.jobs.replicas.commits import commit_files
from epochlake.jobs.replicas.cutting import cut
from epochlake.jobs.replicas.damage import ExpectedFile
from epochlake.jobs.replicas.damage_notes import DamageNote, DamageNotes
from epochlake.jobs.replicas.fences import raise_fence
from epochlake.jobs.replicas.files import MERGED, DataFile, add_line, cut_id, id_in, path_of, remove_line
from epochlake.jobs.replicas.intervals import FilePart
from epochlake.jobs.replicas.ledger import Ledger, Merge, Replaced, entry_hash
from epochlake.jobs.replicas.outcomes import Acknowledged, AlreadyApplied
from epochlake.jobs.replicas.receipts import Receipt, Receipts
from epochlake.jobs.replicas.replica import ReplicaAddress, create_replica, open_snapshot
from epochlake.jobs.replicas.sealing import DamagedBytes, read_seal, require_intact, require_sealed
from epochlake.jobs.replicas.staging import StagedFile
from epochlake.jobs.replicas.stamped import stamped
from epochlake.jobs.replicas.volumes import MARKER_FILE, prepare_volume, read_marker
from epochlake.metastore import delta_commits
from epochlake.metastore.announcing import stored_leases
from epochlake.metastore.coordination.leases import Lease
from epochlake.metastore.errors import LogUnreadable
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.fence import Fence
from epochlake.metastore.metadata.model import Identity, Transition
from epochlake.metastore.root import Root
from epochlake.placement.tablets.transitions import Kind, Stage

from tests.support.golden import FORMATS
from tests.support.replicas import CLUSTER_ID, TABLE, make_replica, marker, store
from tests.support.storages import STORAGE

FILES = [f"00000000-0000-4000-8000-{number:012}" for number in range(7)]
REPLICAS = pytest.mark.parametrize("generation", [1, 2, 3, 4, 5, 6, 7])
MERGES = (
    Merge(
        "t-1",
        f"c-{FILES[1]}",
        -100,
        99,
        7,
        1_700_000_000_000_000,
        (Replaced(FILES[2], -100, 99), Replaced(FILES[3], 0, 9)),
    ),
    Merge("t-1", f"c-{FILES[4]}", 100, 200, 8, 1_700_000_000_000_001, (Replaced(FILES[5], 100, 200),)),
    Merge("t-2", f"c-{FILES[6]}", -(2**63), 2**63 - 1, 9, 1_700_000_000_000_002, ()),
)


def stored(name: str) -> bytes:
    return (FORMATS / "jobs" / name).read_bytes()


def names() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(stored("names.json"))
    return found


def replica(tmp_path: Path, generation: int) -> tuple[ReplicaAddress, dict[str, Any]]:
    """A copy of a replica table as a generation left it, and what that generation saw in it."""
    directory = Path(shutil.copytree(FORMATS / "replicas" / str(generation), tmp_path / str(generation)))
    address = ReplicaAddress(STORAGE, CLUSTER_ID, 1, str(directory / "v1"), TABLE.keyspace, TABLE.table_id)
    return address, json.loads((directory / "expected.json").read_text())


def commits_of(generation: int) -> list[list[dict[str, Any]]]:
    log = FORMATS / "replicas" / str(generation) / "v1" / "air" / "t-1" / "_delta_log"
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in sorted(log.glob("*.json"))]


# Replica tables


@REPLICAS
def test_a_replica_table_is_read_as_it_was_written(tmp_path: Path, generation: int) -> None:
    address, expected = replica(tmp_path, generation)
    snapshot = open_snapshot(address)
    assert (snapshot.version, str(snapshot.fence)) == (expected["version"], expected["fence"])
    assert (sorted(snapshot.sessions), snapshot.unfilled) == (expected["sessions"], "")
    files = msgspec.convert(expected["files"], list[DataFile])
    assert snapshot.all_files == {file.file_id: file for file in files}
    assert {name: snapshot.applied(name) for name in expected["applied"]} == expected["applied"]


@REPLICAS
def test_the_rows_of_its_files_are_read_as_they_were_written(tmp_path: Path, generation: int) -> None:
    address, expected = replica(tmp_path, generation)
    for file in open_snapshot(address).all_files.values():
        uri = f"{address.uri}/{file.path}"
        assert pq.ParquetFile(uri, page_checksum_verification=True).read().to_pylist() == expected["rows"][file.file_id]
        # Files from before they were sealed have no digest of their bytes, and are read all the same.
        assert (require_sealed(STORAGE, file, uri) is not None) is (generation >= 3)
        assert (read_seal(STORAGE, file, uri).groups is not None) is (generation >= 5)


@REPLICAS
def test_its_files_are_cut_and_their_damage_is_noticed(tmp_path: Path, generation: int) -> None:
    address, expected = replica(tmp_path, generation)
    for file in open_snapshot(address).all_files.values():
        path = Path(address.uri) / file.path
        require_intact(STORAGE, file, str(path))
        if file.min_token == file.max_token:
            continue
        piece = cut(address, FilePart(file, file.window[0], file.max_token - 1), address)
        rows = pq.ParquetFile(Path(address.uri) / piece.path).read().to_pylist()
        assert rows == [row for row in expected["rows"][file.file_id] if row["_token"] < file.max_token]
        if generation >= 3:
            data = bytearray(path.read_bytes())
            for place in range(0, len(data), 7):
                path.write_bytes(data[:place] + bytes([data[place] ^ 16]) + data[place + 1 :])
                with pytest.raises(DamagedBytes):
                    require_intact(STORAGE, file, str(path))


@REPLICAS
def test_work_on_an_old_replica_table_goes_on(tmp_path: Path, generation: int) -> None:
    address, expected = replica(tmp_path, generation)
    fence = Fence.decode(expected["fence"]) + 1
    assert raise_fence(address, fence) == fence
    new = store(address, "2-2", ids=(7,))
    outcome = commit_files(address, [new], epoch=fence, app_id="batch-3", app_version=1)
    assert isinstance(outcome, Acknowledged)
    again = commit_files(address, [new], epoch=fence, app_id="batch-2", app_version=7)
    assert isinstance(again, AlreadyApplied)
    assert len(open_snapshot(address).all_files) == len(expected["files"]) + 1


def test_a_new_replica_table_has_the_properties_and_columns_that_it_had(tmp_path: Path) -> None:
    [golden] = [action["metaData"] for action in commits_of(7)[0] if "metaData" in action]
    made = open_snapshot(make_replica(tmp_path, 1, fence=1)).metadata
    for part in ("configuration", "partitionColumns", "format"):
        assert made[part] == golden[part]
    assert json.loads(made["schemaString"]) == json.loads(golden["schemaString"])


def test_a_replica_table_in_the_place_of_a_lost_one_names_its_rebuild(tmp_path: Path) -> None:
    address = make_replica(tmp_path, 1)
    shutil.rmtree(address.uri)
    create_replica(address, TABLE, Fence(2, 3), unfilled="rebuild-n1")
    properties = open_snapshot(address).metadata["configuration"]
    said = {name: value for name, value in properties.items() if name.startswith("epochlake.")}
    assert said == {**names()["unfilled"], delta_commits.MADE_ONCE: "true"}


def test_commits_are_written_today_as_in_the_newest_replica_table(monkeypatch: pytest.MonkeyPatch) -> None:
    log = FORMATS / "replicas" / "7" / "v1" / "air" / "t-1" / "_delta_log"
    for file in sorted(log.glob("*.json")):
        lines = file.read_bytes().splitlines()
        information = json.loads(lines[0])["commitInfo"]
        monkeypatch.setattr(delta_commits.time, "time_ns", lambda at=information["timestamp"]: at * 1_000_000)
        actions = [json.loads(line) for line in lines[1:]]
        commit = delta_commits.CommitName("", int(file.stem), information[delta_commits.TABLE])
        assert delta_commits.encoded(commit, information["operation"], actions) == file.read_bytes()


def test_files_are_added_and_removed_by_the_lines_that_they_were() -> None:
    commits = commits_of(5)
    known: dict[str, DataFile] = {}
    for action in [action for commit in commits for action in commit]:
        if "add" in action:
            added = action["add"]
            file = known[added["path"]] = golden_file(added)
            assert json.dumps(add_line(file, added["modificationTime"])) == json.dumps(action)
        elif "remove" in action:
            removed = action["remove"]
            line = remove_line(known[removed["path"]], removed["deletionTimestamp"])
            assert json.dumps(line) == json.dumps(action)
    assert len(known) == 5  # three that were staged, two that one of them was cut into


def golden_file(added: dict[str, Any]) -> DataFile:
    statistics = json.loads(added["stats"])
    low, high = statistics["minValues"], statistics["maxValues"]
    return DataFile(
        file_id=id_in(added["path"]),
        label=added["partitionValues"]["_tablet"],
        path=added["path"],
        size=added["size"],
        rows=statistics["numRecords"],
        min_token=low["_token"],
        max_token=high["_token"],
        min_written_at=low["_written_at"],
        max_written_at=high["_written_at"],
        has_tombstones=high["_deleted"],
    )


@REPLICAS
def test_the_marker_of_a_volume(tmp_path: Path, generation: int) -> None:
    there = FORMATS / "replicas" / str(generation) / "v1"
    assert read_marker(STORAGE, str(there)) == marker(1)
    prepare_volume(STORAGE, str(tmp_path / "v1"), marker(1))
    assert (tmp_path / "v1" / MARKER_FILE).read_bytes() == (there / "epochlake-volume.json").read_bytes()


# Beside the log


@pytest.mark.parametrize("generation", [2, 4])
def test_the_ledger_of_compactions(tmp_path: Path, generation: int) -> None:
    ledger = Ledger(STORAGE, str(shutil.copytree(FORMATS / "ledgers" / str(generation), tmp_path / "compactions")))
    first, voided, other = MERGES
    assert ledger.merges("t-1") == {first.file_id: first}
    assert ledger.merges("t-2") == {other.file_id: other}
    again = msgspec.structs.replace(voided, file_id="c-again")
    assert ledger.record([[again]]) == (again,)
    assert Ledger(STORAGE, ledger.uri).merges("t-1") == {first.file_id: first, "c-again": again}


def test_an_entry_of_the_ledger_has_the_hash_that_it_had() -> None:
    hashes = names()["hashes of the ledger"]
    assert [entry_hash(merge) for merge in (*MERGES, msgspec.structs.replace(MERGES[1], void=True))] == hashes


def generation_of_a_batch(generation: int) -> Generation:
    file = DataFile(FILES[1], "2-1", f"_tablet=2-1/{FILES[1]}.parquet", 1322, 3, -(2**62), -(2**62) + 2, 100, 101, True)
    staged = StagedFile(file, frozenset({1, 2}), {3: "no space left"}, -(2**63) if generation >= 3 else None)
    replaces = "2-1" if generation == 1 else "4000000000000000-7fffffffffffffff"
    columns = (DigestedColumn(1, "bigint"), DigestedColumn(7, "struct<a:int>")) if generation >= 4 else msgspec.UNSET
    return Generation("b-1", "air.flights", (staged,), (replaces,), columns)


@pytest.mark.parametrize("generation", [1, 2, 3, 4, 5])
def test_what_a_batch_is_made_of(tmp_path: Path, generation: int) -> None:
    expected = generation_of_a_batch(generation)
    place = tmp_path / names()["decision of batch b-1"]
    place.parent.mkdir()
    place.write_bytes(stored(f"batch.{generation}.json"))
    assert decided(STORAGE, str(tmp_path), "b-1") == BatchContents(
        1, expected.files, None if generation < 4 else expected.columns
    )
    assert msgspec.json.decode(place.read_bytes(), type=Generation) == expected
    if generation >= 3:
        written = msgspec.json.encode(expected) if generation < 5 else stamped(expected)
        assert written == place.read_bytes()


def test_a_flipped_bit_in_what_a_batch_is_made_of_is_noticed(tmp_path: Path) -> None:
    place = tmp_path / names()["decision of batch b-1"]
    place.parent.mkdir()
    whole, expected = stored("batch.5.json"), generation_of_a_batch(5).files
    noticed = 0
    for at in range(len(whole)):
        place.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            assert decided(STORAGE, str(tmp_path), "b-1").files == expected, f"byte {at}"
        except LogUnreadable:
            noticed += 1
    assert noticed > len(whole) - len(',"digest":"') - 1


@pytest.mark.parametrize("generation", [1, 2])
def test_a_merge_in_the_journal_of_its_table(tmp_path: Path, generation: int) -> None:
    journal = MergeJournal(STORAGE, str(tmp_path), "t-1")
    entry = MergeEntry("a-1", "air.flights", generation_of_a_batch(3).files, MergeCounts(1, 2, 3), Count(7, -5), "b-1")
    intent = Intent(1, "a-1", Count(7, -5))
    places = {
        "t-1/batches/b-/b-1.1.json": stored(f"merge-intent.{generation}.json"),
        "t-1/entries/000000/000000001.json": stored(f"merge.{generation}.json"),
        "t-1/entries/000000/000000001.json.done": b"",
        "t-1/hint": b"1",
    }
    if generation == 2:
        assert journal.intend("b-1", 0, intent)
        assert journal.put(1, entry)
        journal.finish(1)
        made = {str(file.relative_to(tmp_path)): file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
        assert made == places
    for place, data in places.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_bytes(data)
    assert (journal.entry(1), journal.intents("b-1"), journal.is_finished(1)) == (entry, [intent], True)


@pytest.mark.parametrize("generation", [1, 2])
def test_a_write_that_may_land_in_a_change_stream(tmp_path: Path, generation: int) -> None:
    intent = ChangeIntent("i-1", "w-1", "QUORUM", "flights", "p-1", 100, generation_of_a_batch(3).files)
    reader = Reader("search", 7, "w-1", 100)
    if generation == 2:
        assert stamped(intent) == stored("change-intent.2.json")
        assert stamped(reader) == stored("change-reader.2.json")
    index = ChangeIndex(STORAGE, str(tmp_path))
    for place, kind, name in (("_open", "intent", "i-1"), ("_readers", "reader", "search")):
        (tmp_path / place).mkdir()
        (tmp_path / place / f"{name}.json").write_bytes(stored(f"change-{kind}.{generation}.json"))
    assert Intents(STORAGE, index).all() == [intent]
    assert Readers(STORAGE, index).all() == [reader]


@pytest.mark.parametrize("generation", [1, 2])
def test_an_entry_of_a_change_stream(generation: int) -> None:
    [staged] = generation_of_a_batch(3).files
    said = Said("w-1", 17, "QUORUM", "flights", 100, 101, staged.file)
    if generation == 2:
        said = msgspec.structs.replace(said, totals=Totals(2, 30, 5000))
        assert added(said)["add"]["tags"] == {TAG: stored("change-entry.2.json").decode()}  # type: ignore[index]
    action = {"add": {"tags": {TAG: stored(f"change-entry.{generation}.json").decode()}}}
    entry = entry_of(4, [action], "here")
    assert entry == ChangeEntry(4, "w-1", 17, "QUORUM", "flights", 100, 101, (staged.file,), said.totals)


def test_a_receipt_is_a_name(tmp_path: Path) -> None:
    receipts = Receipts(STORAGE, str(tmp_path))
    receipt = Receipt(3, 17, "batch-1.x")
    receipts.add("t-1", receipt)
    assert [str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()] == names()["receipts"]
    assert receipts.of("t-1") == {3: [receipt]}


def test_a_note_of_a_damaged_copy(tmp_path: Path) -> None:
    address = ReplicaAddress(STORAGE, CLUSTER_ID, 3, "/v3", "air", "t-1")
    [staged] = generation_of_a_batch(1).files
    notes = DamageNotes(STORAGE, str(tmp_path))
    notes.add("t-1", [(ExpectedFile(staged.file, address), "torn")])
    [found] = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert str(found.relative_to(tmp_path)) == names()["note of a damaged copy"]
    found.write_bytes(stored("damage-note.json"))
    [note] = notes.of("t-1")
    assert note == DamageNote("t-1", 3, staged.file.path, "torn", 1_700_000_000_000)
    assert msgspec.json.encode(note) == stored("damage-note.json")


def test_a_lease_at_the_root(tmp_path: Path) -> None:
    (tmp_path / names()["lease"]).write_bytes((FORMATS / "metastore" / "lease.json").read_bytes())
    lease = Lease("nightly", "p-1", 7, ("air.flights", "sky.stars"), 1_700_000_000_000, "host-1", 4711)
    assert stored_leases(STORAGE, str(tmp_path)) == [lease]
    os.utime(tmp_path / names()["lease"], (0, 0))
    assert stored_leases(STORAGE, str(tmp_path)) == []


def test_names_of_files_and_places() -> None:
    known = names()
    # The names are frozen; log members and published ensembles came later, and formats grow.
    later = {"log_members": "root/log-members", "coordination": "root/coordination"}
    assert vars(Root("root")) == known["places below the root"] | later
    assert path_of("2-1", FILES[1]) == known["a data file of a tablet"]
    assert path_of("0000000000000000-4000000000000000", FILES[1]) == known["a data file of a range"]
    assert f"{cut_id(FILES[1], -(2**63), -1)}.parquet" == known["a piece"]
    assert known["a merged file begins with"] == MERGED
    assert ReplicaAddress(STORAGE, CLUSTER_ID, 1, "/v1", "air", "t-1").uri == known["a replica table"]
    assert batch_id("t-1", "write", "nightly") == known["batch nightly"]
    metadata = msgspec.structs.replace(ClusterMetadata.empty(), identity=Identity("main", CLUSTER_ID))
    assert table_id_of(metadata, "create-flights") == known["table of request create-flights"]


def test_the_mark_of_a_replica_that_was_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    marks: list[str] = []
    monkeypatch.setattr(side_effects, "_should_exist", lambda *_: True)
    monkeypatch.setattr(side_effects, "tokens_of", lambda *_: (0, 1))
    monkeypatch.setattr(side_effects, "drop_before", lambda *given: marks.extend(one.name for one in given[-1]))
    transition = Transition("t-1", 5, Kind.MIGRATION, Stage.STREAMING, (1, 2), (2, 3), 1, 3, started_epoch=17)
    side_effects.prepare_pending(STORAGE, ClusterMetadata.empty(), [transition])
    assert marks == names()["marks of prepared replicas"]


@pytest.mark.parametrize(("kind", "tokens"), [("tablet", (-(2**62), -1)), ("range", (-(2**63), -(2**62)))])
def test_the_window_of_a_data_file_is_in_its_path(kind: str, tokens: tuple[int, int]) -> None:
    [staged] = generation_of_a_batch(1).files
    assert msgspec.structs.replace(staged.file, path=names()[f"a data file of a {kind}"]).window == tokens
    piece = f"_tablet=2-1/{names()['a piece']}"
    cut = msgspec.structs.replace(staged.file, path=piece, file_id=id_in(piece))
    assert (cut.origin, cut.window) == (FILES[1], (-(2**63), -1))
