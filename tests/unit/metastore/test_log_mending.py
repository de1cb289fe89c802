"""A torn commit of the log is named with its epoch, nothing goes on top of it, and it is mended where certain."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from epochlake.metastore import delta_checkpoints
from epochlake.metastore.checkpoint_seals import seal
from epochlake.metastore.delta_commits import DIGEST, LINES, TornCommit, require_whole
from epochlake.metastore.errors import LogUnreadable, StorageUnavailable
from epochlake.metastore.log.checkpoints import damaged
from epochlake.metastore.log.delta import DeltaLog, create_log_table
from epochlake.metastore.log.entry import Entry, position_of
from epochlake.metastore.log.epoch_log import AppendConflict
from epochlake.metastore.log.files import write_entries
from epochlake.metastore.log.holes import Unfillable
from epochlake.metastore.log.mending import mend, plan_mending
from epochlake.metastore.log.replacing import alone, put_whole

from tests.support.logs import chain, put
from tests.support.slices import sliced
from tests.support.storages import STORAGE, forget

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "no bytes": lambda data: b"",
    "zero bytes": lambda data: bytes(len(data)),
    "half of it": lambda data: data[: len(data) // 2],
    "without its last line": lambda data: data[: data.rstrip().rindex(b"\n") + 1],
    "zero bytes at its end": lambda data: data[:50] + bytes(len(data) - 50),
    "one flipped bit in its last line": lambda data: _flipped(data, data.rstrip().rfind(b"\n") + 4),
    "one flipped bit in the name of its digest": lambda data: _flipped(data, data.index(DIGEST.encode()) + 9, 0x20),
    "one flipped bit where it says how long it is": lambda data: _flipped(data, data.index(LINES.encode()), 0x80),
}


def _flipped(data: bytes, at: int, bit: int = 1) -> bytes:
    return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]


def _hidden(data: bytes) -> bytes:
    """With a bit flipped in the name of a file, and one in the name of the digest that would tell."""
    return _flipped(_flipped(data, data.index(b"part-00000-") + 11, 0x40), data.index(DIGEST.encode()) + 9, 0x20)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    uri = str(tmp_path / "log")
    create_log_table(STORAGE, uri)
    return uri


def commit_file(uri: str, version: int) -> Path:
    return Path(uri) / "_delta_log" / f"{version:020}.json"


def tear(uri: str, version: int, how: str) -> None:
    """Another file in its place, as after a power cut; in this process nothing remembers it either."""
    path = commit_file(uri, version)
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(DAMAGE[how](data))
    forget()


def appended(uri: str, entries: list[Entry]) -> None:
    log = DeltaLog(STORAGE, uri)
    for entry in entries:
        log.read(entry.epoch - 1)
        log.append([entry])


@pytest.mark.parametrize("how", DAMAGE)
def test_a_torn_entry_is_named_with_its_epoch_never_counted_over_and_found_again(uri: str, how: str) -> None:
    entries = chain(5)
    appended(uri, entries[:4])
    knows = DeltaLog(STORAGE, uri)
    knows.read(0)
    tear(uri, 4, how)
    for log in (DeltaLog(STORAGE, uri), knows):
        with pytest.raises(LogUnreadable, match="epoch 4") as caught:
            log.read(3 if log is knows else 0)
        with pytest.raises(AppendConflict):
            log.append(entries[4:])
        assert caught.value.exit_code == 1, "retrying does not help"
        assert caught.value.epochs == (4, 4)
    assert not commit_file(uri, 5).exists()
    assert [(one.first, one.last) for one in plan_mending(STORAGE, uri)] == [(4, 4)]
    assert "epoch 4 again" in str(mend(STORAGE, uri)[0])
    assert DeltaLog(STORAGE, uri).read(0) == entries[:4]
    appended(uri, entries[4:])
    assert DeltaLog(STORAGE, uri).read(0) == entries
    assert mend(STORAGE, uri) == []


@pytest.mark.parametrize("how", DAMAGE)
def test_a_torn_commit_without_an_entry_becomes_an_empty_one(uri: str, how: str) -> None:
    entries = chain(3)
    appended(uri, entries[:2])
    if how == "without its last line":
        DeltaLog(STORAGE, uri).compact()
    else:
        DeltaLog(STORAGE, uri).fence()
    tear(uri, 3, how)
    with pytest.raises(LogUnreadable, match="after epoch 2"):
        DeltaLog(STORAGE, uri).read(0)
    assert [one.first for one in mend(STORAGE, uri)] == [0]
    appended(uri, entries[2:])
    assert DeltaLog(STORAGE, uri).read(0) == entries


def test_no_bit_that_flips_beside_it_hides_one_that_flips_in_the_lines_of_a_commit(uri: str) -> None:
    appended(uri, chain(1))
    path = commit_file(uri, 1)
    whole = path.read_bytes()
    harmed = _flipped(whole, whole.index(b"part-00000-") + 11, 0x40)
    unseen = []
    for at in range(whole.index(b"\n")):
        for bit in range(8):
            path.write_bytes(_flipped(harmed, at, 1 << bit))
            try:
                require_whole(STORAGE, uri)
            except TornCommit:
                continue
            unseen.append((at, bit))
    assert unseen == []


def test_two_holes_are_filled_although_the_digest_of_one_has_lost_its_name(uri: str) -> None:
    entries = chain(4)
    for entry in entries:
        appended(uri, [entry])
    tear(uri, 2, "one flipped bit in its last line")
    path = commit_file(uri, 3)
    path.write_bytes(_hidden(path.read_bytes()))

    assert [one.version for one in mend(STORAGE, uri)] == [2, 3]
    assert DeltaLog(STORAGE, uri).read(0) == entries


def lose(uri: str, version: int) -> None:
    commit_file(uri, version).unlink()
    forget()


def empty(uri: str, version: int) -> None:
    tear(uri, version, "no bytes")


MIDDLE: list[Callable[[str, int], None]] = [lose, empty]


def files_in(uri: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(uri, "_delta_log").iterdir() if path.name[0] != "."}


@pytest.mark.parametrize("damage", MIDDLE)
def test_a_commit_in_the_middle_names_its_entries_again_when_their_hashes_lead_from_neighbour_to_neighbour(
    uri: str, damage: Callable[[str, int], None]
) -> None:
    entries = chain(6)
    appended(uri, entries[:5])
    # Nobody's: it follows epoch 2 as well, and epoch 4 does not follow it.
    write_entries(STORAGE, uri, chain(1, position_of(entries[1]), tag="another"))
    damage(uri, 3)
    with pytest.raises(LogUnreadable, match="epoch 3"):
        DeltaLog(STORAGE, uri).read(0)
    before = files_in(uri)
    assert [(one.version, one.first, one.last) for one in plan_mending(STORAGE, uri)] == [(3, 3, 3)]
    assert files_in(uri) == before
    assert "names epoch 3 again, found whole beside it, and between its neighbours" in str(mend(STORAGE, uri)[0])
    assert DeltaLog(STORAGE, uri).read(0) == entries[:5]
    appended(uri, entries[5:])
    assert DeltaLog(STORAGE, uri).read(0) == entries
    assert mend(STORAGE, uri) == []


@pytest.mark.parametrize("damage", MIDDLE)
def test_holes_side_by_side_apart_and_at_the_end_are_mended_at_once(
    uri: str, damage: Callable[[str, int], None]
) -> None:
    entries = chain(9)
    appended(uri, entries[:2])
    put(DeltaLog(STORAGE, uri), entries[2:5])
    appended(uri, entries[5:])
    for version in (2, 3, 5):
        damage(uri, version)
    tear(uri, 7, "half of it")
    found = [(one.version, one.first, one.last) for one in mend(STORAGE, uri)]
    assert [span for _, *span in found if span[0]] == [[2, 5], [7, 7], [9, 9]]
    assert DeltaLog(STORAGE, uri).read(0) == entries


@pytest.mark.parametrize("damage", MIDDLE)
def test_a_commit_in_the_middle_that_held_no_entry_becomes_empty(uri: str, damage: Callable[[str, int], None]) -> None:
    entries = chain(7)
    appended(uri, entries[:2])
    DeltaLog(STORAGE, uri).fence()
    appended(uri, entries[2:4])
    DeltaLog(STORAGE, uri).compact()
    appended(uri, entries[4:])
    for version in (3, 6):
        damage(uri, version)
    assert ["none is missing" in str(one) for one in mend(STORAGE, uri)] == [True, True]
    assert DeltaLog(STORAGE, uri).read(0) == entries


@pytest.mark.parametrize("damage", MIDDLE)
def test_entries_of_a_lost_commit_that_a_later_compaction_holds_are_not_named_twice(
    uri: str, damage: Callable[[str, int], None]
) -> None:
    entries = chain(4)
    appended(uri, entries)
    DeltaLog(STORAGE, uri).compact()
    damage(uri, 3)
    mend(STORAGE, uri)
    log = DeltaLog(STORAGE, uri)
    assert log.read(0) == entries
    assert log.stored_twice().copies == 0


@pytest.mark.parametrize("damage", MIDDLE)
def test_a_commit_in_the_middle_whose_entries_are_gone_is_refused_and_nothing_is_counted_over_it(
    uri: str, damage: Callable[[str, int], None]
) -> None:
    entries = chain(5)
    appended(uri, entries[:2])
    there = set(Path(uri).glob("*.parquet"))
    appended(uri, entries[2:3])
    [lost] = set(Path(uri).glob("*.parquet")) - there
    appended(uri, entries[3:])
    lost.unlink()
    write_entries(STORAGE, uri, chain(1, position_of(entries[1]), tag="another"))
    damage(uri, 3)
    before = files_in(uri)
    for attempt in (plan_mending, mend):
        with pytest.raises(Unfillable, match="between epochs 2 and 4") as caught:
            attempt(STORAGE, uri)
        assert "if epochs 3 to 5 are lost for good, run `epochlake log accept-loss`" in str(caught.value)
        assert (caught.value.version, caught.value.after, caught.value.last) == (3, 2, 5)
    assert files_in(uri) == before
    with pytest.raises(LogUnreadable):
        DeltaLog(STORAGE, uri).read(0)


def test_a_hole_that_no_entry_follows_is_refused(uri: str) -> None:
    appended(uri, chain(3))
    DeltaLog(STORAGE, uri).fence()
    lose(uri, 3)
    with pytest.raises(Unfillable, match="no entry comes after it"):
        mend(STORAGE, uri)


def test_who_read_the_log_before_a_lost_commit_does_not_put_another_one_in_its_place(uri: str) -> None:
    entries = chain(4)
    appended(uri, entries[:2])
    late = DeltaLog(STORAGE, uri)
    late.read(0)
    appended(uri, entries[2:])
    commit_file(uri, 3).unlink()
    before = files_in(uri)
    with pytest.raises(AppendConflict, match="is missing, and later ones are there"):
        late.append(chain(1, position_of(entries[1]), tag="another"))
    assert files_in(uri) == before
    assert [(one.first, one.last) for one in mend(STORAGE, uri)] == [(3, 3)], "nothing of the late one lies there"


def test_two_who_mend_at_once_are_told_apart(uri: str) -> None:
    entries = chain(4)
    appended(uri, entries)
    lose(uri, 2)
    with alone(STORAGE, uri), pytest.raises(StorageUnavailable, match="another process mends it"):
        mend(STORAGE, uri)
    assert len(mend(STORAGE, uri)) == 1
    with pytest.raises(StorageUnavailable, match="somebody else"):
        fill_meanwhile(uri, 2)
    assert commit_file(uri, 2).read_bytes() == b"somebody"


def fill_meanwhile(uri: str, version: int) -> None:
    """A link finds the name taken that was free when it was looked for."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(STORAGE.disk, "status", lambda path, **_: None)
        commit_file(uri, version).write_bytes(b"somebody")
        put_whole(STORAGE, uri, version, "HEAL", [])


def test_of_two_entries_that_a_torn_commit_could_have_named_none_is_guessed(uri: str) -> None:
    entries = chain(3)
    appended(uri, entries)
    write_entries(STORAGE, uri, chain(1, position_of(entries[1]), tag="another"))
    tear(uri, 3, "no bytes")
    with pytest.raises(LogUnreadable, match="Several files"):
        mend(STORAGE, uri)


def test_who_loses_an_append_leaves_no_entry_that_could_be_taken_for_the_winner_s(uri: str) -> None:
    entries = chain(3)
    put(DeltaLog(STORAGE, uri), entries[:2])
    loser = DeltaLog(STORAGE, uri)
    loser.read(0)
    appended(uri, entries[2:])
    with pytest.raises(Exception, match="not appended"):
        loser.append(chain(1, position_of(entries[1]), tag="another"))
    tear(uri, 2, "no bytes")
    assert [(one.first, one.last) for one in mend(STORAGE, uri)] == [(3, 3)]
    assert DeltaLog(STORAGE, uri).read(0) == entries


def test_a_first_commit_that_is_torn_is_refused(uri: str, tmp_path: Path) -> None:
    shutil.copytree(uri, tmp_path / "copy")
    tear(uri, 0, "no bytes")
    with pytest.raises(LogUnreadable):
        DeltaLog(STORAGE, uri).read(0)
    with pytest.raises(LogUnreadable, match="copy"):
        mend(STORAGE, uri)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damage", [Path.unlink, emptied, halved])
def test_a_log_whose_newest_checkpoint_is_damaged_is_read_from_its_commits_once_it_was_mended(
    uri: str, damage: Callable[[Path], None]
) -> None:
    entries = chain(52)
    appended(uri, entries)
    [checkpoint] = Path(uri, "_delta_log").glob("*.checkpoint.parquet")
    damage(checkpoint)
    with pytest.raises(LogUnreadable, match="log heal"):
        DeltaLog(STORAGE, uri).read(0)
    assert [mending.checkpoints != () for mending in plan_mending(STORAGE, uri)] == [True]
    assert "put aside" in str(mend(STORAGE, uri)[0])
    assert DeltaLog(STORAGE, uri).read(0) == entries
    assert mend(STORAGE, uri) == []


def checkpoint_of(uri: str) -> Path:
    [found] = Path(uri, "_delta_log").glob("*.checkpoint.parquet")
    return found


def replaced(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


def test_a_bit_that_flips_in_a_checkpoint_is_found_wherever_it_is(uri: str) -> None:
    entries = chain(52)
    appended(uri, entries)
    assert damaged(STORAGE, uri) == []
    checkpoint = checkpoint_of(uri)
    whole = checkpoint.read_bytes()
    for at in range(7, len(whole), len(whole) // 40):
        replaced(checkpoint, _flipped(whole, at))
        [found] = damaged(STORAGE, uri)
        assert (found.name, found.spare) == (checkpoint.name, True)
    assert "put aside" in str(mend(STORAGE, uri)[0])
    assert (damaged(STORAGE, uri), DeltaLog(STORAGE, uri).read(0)) == ([], entries)


def _with(changed: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes]:
    """A checkpoint that a bit flip has made say something else: it can be read, and nothing is wrong with its pages."""

    def change(data: bytes) -> bytes:
        table = pq.read_table(pa.BufferReader(data))
        rows = table.to_pylist()
        for row in rows:
            changed(row)
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows, table.schema), sink)
        return bytes(sink.getvalue())

    return change


def _another_size(row: dict[str, Any]) -> None:
    if row["add"] and '"epoch": 7}' in row["add"]["stats"]:
        row["add"]["size"] += 1


def _other_statistics(row: dict[str, Any]) -> None:
    if row["add"]:
        row["add"]["stats"] = row["add"]["stats"].replace('"epoch": 7}', '"epoch": 5}')


def _without_a_file(row: dict[str, Any]) -> None:
    if row["add"] and '"epoch": 7}' in row["add"]["stats"]:
        row["add"] = None


def _another_transaction(row: dict[str, Any]) -> None:
    if row["txn"]:
        row["txn"]["version"] = 3


def _another_protocol(row: dict[str, Any]) -> None:
    if row["protocol"]:
        row["protocol"]["minWriterVersion"] = 7


def _another_setting(row: dict[str, Any]) -> None:
    if row["metaData"]:
        row["metaData"]["configuration"] = [("delta.appendOnly", "false")]


@sliced(at_least=3)
@pytest.mark.parametrize(
    "changed",
    [_another_size, _other_statistics, _without_a_file, _another_transaction, _another_protocol, _another_setting],
)
def test_a_checkpoint_without_a_digest_is_compared_with_the_commits(
    uri: str, changed: Callable[[dict[str, Any]], None]
) -> None:
    entries = chain(52)
    appended(uri, entries)
    checkpoint = checkpoint_of(uri)
    [digest] = Path(uri, "_delta_log").glob(".*.sha256")
    digest.unlink()
    replaced(checkpoint, _with(lambda row: None)(checkpoint.read_bytes()))
    assert damaged(STORAGE, uri) == [], "nothing that it says was changed"
    replaced(checkpoint, _with(changed)(checkpoint.read_bytes()))
    assert [(one.name, one.spare) for one in damaged(STORAGE, uri)] == [(checkpoint.name, True)]
    mend(STORAGE, uri)
    assert DeltaLog(STORAGE, uri).read(0) == entries


def test_a_damaged_checkpoint_whose_commits_are_gone_is_named_and_stays(uri: str) -> None:
    entries = chain(52)
    appended(uri, entries)
    checkpoint = checkpoint_of(uri)
    for version in range(40):
        commit_file(uri, version).unlink()
    assert damaged(STORAGE, uri) == []
    whole = checkpoint.read_bytes()
    replaced(checkpoint, _flipped(whole, len(whole) // 3))
    [found] = damaged(STORAGE, uri)
    assert (found.spare, "restore it from a copy" in str(found)) == (False, True)
    assert mend(STORAGE, uri) == []
    replaced(checkpoint, whole[:100])
    with pytest.raises(LogUnreadable, match=f"{checkpoint.name}.*restore it from a copy"):
        DeltaLog(STORAGE, uri).read(0)


def test_the_digest_of_a_checkpoint_that_has_gone_goes_with_the_next_one(uri: str) -> None:
    appended(uri, chain(52))
    checkpoint_of(uri).unlink()
    Path(uri, "_delta_log", "_last_checkpoint").unlink()
    seal(STORAGE, uri, 99)
    assert list(Path(uri, "_delta_log").glob(".*.sha256")) == []


def test_a_damaged_checkpoint_that_alone_stands_for_commits_stays(uri: str) -> None:
    appended(uri, chain(52))
    [checkpoint] = Path(uri, "_delta_log").glob("*.checkpoint.parquet")
    halved(checkpoint)
    commit_file(uri, 3).unlink()
    assert delta_checkpoints.damaged_checkpoints(STORAGE, uri) == []
    assert checkpoint.exists()
