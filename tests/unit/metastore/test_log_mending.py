"""A torn commit of the log is named with its epoch, nothing goes on top of it, and it is mended where certain."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from epochlake.metastore import delta_commits
from epochlake.metastore.errors import LogUnreadable
from epochlake.metastore.log.delta import DeltaLog, create_log_table
from epochlake.metastore.log.entry import Entry, position_of
from epochlake.metastore.log.epoch_log import AppendConflict
from epochlake.metastore.log.files import write_entries
from epochlake.metastore.log.mending import mend, plan_mending

from tests.support.logs import chain, put

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "no bytes": lambda data: b"",
    "zero bytes": lambda data: bytes(len(data)),
    "half of it": lambda data: data[: len(data) // 2],
    "without its last line": lambda data: data[: data.rstrip().rindex(b"\n") + 1],
    "zero bytes at its end": lambda data: data[:50] + bytes(len(data) - 50),
    "one flipped bit in its last line": lambda data: _flipped(data, data.rstrip().rfind(b"\n") + 4),
}


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.fixture
def uri(tmp_path: Path) -> str:
    uri = str(tmp_path / "log")
    create_log_table(uri)
    return uri


def commit_file(uri: str, version: int) -> Path:
    return Path(uri) / "_delta_log" / f"{version:020}.json"


def tear(uri: str, version: int, how: str) -> None:
    """Another file in its place, as after a power cut; in this process nothing remembers it either."""
    path = commit_file(uri, version)
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(DAMAGE[how](data))
    delta_commits._synced.clear()


def appended(uri: str, entries: list[Entry]) -> None:
    log = DeltaLog(uri)
    for entry in entries:
        log.read(entry.epoch - 1)
        log.append([entry])


@pytest.mark.parametrize("how", DAMAGE)
def test_a_torn_entry_is_named_with_its_epoch_never_counted_over_and_found_again(uri: str, how: str) -> None:
    entries = chain(5)
    appended(uri, entries[:4])
    knows = DeltaLog(uri)
    knows.read(0)
    tear(uri, 4, how)
    for log in (DeltaLog(uri), knows):
        with pytest.raises(LogUnreadable, match="epoch 4") as caught:
            log.read(3 if log is knows else 0)
        with pytest.raises(AppendConflict):
            log.append(entries[4:])
        assert caught.value.exit_code == 1, "retrying does not help"
        assert caught.value.epochs == (4, 4)
    assert not commit_file(uri, 5).exists()
    assert [(one.first, one.last) for one in plan_mending(uri)] == [(4, 4)]
    assert "epoch 4 again" in str(mend(uri)[0])
    assert DeltaLog(uri).read(0) == entries[:4]
    appended(uri, entries[4:])
    assert DeltaLog(uri).read(0) == entries
    assert mend(uri) == []


@pytest.mark.parametrize("how", DAMAGE)
def test_a_torn_commit_without_an_entry_becomes_an_empty_one(uri: str, how: str) -> None:
    entries = chain(3)
    appended(uri, entries[:2])
    if how == "without its last line":
        DeltaLog(uri).compact()
    else:
        DeltaLog(uri).fence()
    tear(uri, 3, how)
    with pytest.raises(LogUnreadable, match="after epoch 2"):
        DeltaLog(uri).read(0)
    assert [one.first for one in mend(uri)] == [0]
    appended(uri, entries[2:])
    assert DeltaLog(uri).read(0) == entries


def test_a_torn_commit_that_others_were_built_on_is_refused(uri: str) -> None:
    appended(uri, chain(4))
    tear(uri, 3, "no bytes")
    with pytest.raises(LogUnreadable, match="epoch 3"):
        DeltaLog(uri).read(0)
    with pytest.raises(LogUnreadable, match="restore"):
        mend(uri)
    assert commit_file(uri, 3).read_bytes() == b""


def test_a_missing_commit_between_others_is_refused(uri: str) -> None:
    appended(uri, chain(4))
    commit_file(uri, 3).unlink()
    delta_commits._synced.clear()
    with pytest.raises(LogUnreadable, match="is missing"):
        DeltaLog(uri).read(0)
    with pytest.raises(LogUnreadable, match="restore"):
        mend(uri)


def test_of_two_entries_that_a_torn_commit_could_have_named_none_is_guessed(uri: str) -> None:
    entries = chain(3)
    appended(uri, entries)
    write_entries(uri, chain(1, position_of(entries[1]), tag="another"))
    tear(uri, 3, "no bytes")
    with pytest.raises(LogUnreadable, match="Several files"):
        mend(uri)


def test_who_loses_an_append_leaves_no_entry_that_could_be_taken_for_the_winner_s(uri: str) -> None:
    entries = chain(3)
    put(DeltaLog(uri), entries[:2])
    loser = DeltaLog(uri)
    loser.read(0)
    appended(uri, entries[2:])
    with pytest.raises(Exception, match="not appended"):
        loser.append(chain(1, position_of(entries[1]), tag="another"))
    tear(uri, 2, "no bytes")
    assert [(one.first, one.last) for one in mend(uri)] == [(3, 3)]
    assert DeltaLog(uri).read(0) == entries


def test_a_first_commit_that_is_torn_is_refused(uri: str, tmp_path: Path) -> None:
    shutil.copytree(uri, tmp_path / "copy")
    tear(uri, 0, "no bytes")
    with pytest.raises(LogUnreadable):
        DeltaLog(uri).read(0)
    with pytest.raises(LogUnreadable, match="copy"):
        mend(uri)


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
        DeltaLog(uri).read(0)
    assert [mending.checkpoints != () for mending in plan_mending(uri)] == [True]
    assert "put aside" in str(mend(uri)[0])
    assert DeltaLog(uri).read(0) == entries
    assert mend(uri) == []


def test_a_damaged_checkpoint_that_alone_stands_for_commits_stays(uri: str) -> None:
    appended(uri, chain(52))
    [checkpoint] = Path(uri, "_delta_log").glob("*.checkpoint.parquet")
    halved(checkpoint)
    commit_file(uri, 3).unlink()
    assert delta_commits.damaged_checkpoints(uri) == []
    assert checkpoint.exists()
