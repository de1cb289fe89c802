"""A log with a hole that nothing fills is cut there by one entry, at once or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from epochlake.metastore.errors import LogUnreadable, LogWentBack, StorageUnavailable
from epochlake.metastore.log.cutting import CutLog, behind
from epochlake.metastore.log.delta import DeltaLog, create_log_table
from epochlake.metastore.log.entry import Entry, position_of
from epochlake.metastore.log.epoch_log import AppendConflict, AppendFailed
from epochlake.metastore.log.files import write_entries
from epochlake.metastore.log.holes import Unfillable
from epochlake.metastore.log.mending import plan_mending

from tests.support.failures import no_room_to_write
from tests.support.logs import chain
from tests.support.storages import STORAGE, forget

ENTRIES = chain(6)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A log of six epochs that has lost the third."""
    uri = str(tmp_path / "log")
    create_log_table(STORAGE, uri)
    log = DeltaLog(STORAGE, uri)
    for entry in ENTRIES:
        there = set(Path(uri).glob("*.parquet"))
        log.read(entry.epoch - 1)
        log.append([entry])
        if entry.epoch == 3:
            [lost] = set(Path(uri).glob("*.parquet")) - there
    lost.unlink()
    Path(uri, "_delta_log", f"{3:020}.json").unlink()
    forget()
    return uri


def hole(uri: str) -> Unfillable:
    with pytest.raises(Unfillable) as caught:
        plan_mending(STORAGE, uri)
    return caught.value


def another(tag: str) -> list[Entry]:
    return chain(1, position_of(ENTRIES[1]), tag=tag)


def test_what_comes_before_the_hole_is_read_and_the_first_entry_takes_its_place(uri: str) -> None:
    found = behind(STORAGE, uri, 3)
    assert (found.position, found.epoch) == (position_of(ENTRIES[-1]), 6)
    cut = CutLog(STORAGE, uri, hole(uri))
    assert cut.read(0) == ENTRIES[:2]
    assert cut.read(1, 1) == []
    assert cut.entry(2) == ENTRIES[1]
    assert cut.request_epochs(1) == {"request-1": 1}
    with pytest.raises(LogWentBack):
        cut.read(3)
    first = another("first")
    cut.append(first)
    assert cut.read(0) == cut.entries() == DeltaLog(STORAGE, uri).read(0) == [*ENTRIES[:2], *first]
    assert behind(STORAGE, uri, 3) == found, "what was put aside still says what is lost"
    second = chain(1, position_of(first[0]))
    cut.append(second)
    assert DeltaLog(STORAGE, uri).read(0) == [*ENTRIES[:2], *first, *second]


def test_of_two_who_cut_at_once_one_does(uri: str) -> None:
    one, two = CutLog(STORAGE, uri, hole(uri)), CutLog(STORAGE, uri, hole(uri))
    two.read(0)
    one.append(another("one"))
    with pytest.raises(AppendConflict):
        two.append(another("two"))
    assert two.read(2) == one.read(2)
    assert two.read(2)[0].request_id == "one-3"


def test_a_full_disk_leaves_the_log_torn(uri: str) -> None:
    cut = CutLog(STORAGE, uri, hole(uri))
    cut.read(0)
    with no_room_to_write(), pytest.raises(AppendFailed):
        cut.append(another("late"))
    with pytest.raises(LogUnreadable):
        DeltaLog(STORAGE, uri).read(0)
    cut.append(another("again"))
    assert DeltaLog(STORAGE, uri).read(2)[0].request_id == "again-3"


def test_who_knows_the_log_behind_the_hole_does_not_go_on_behind_the_cut(uri: str) -> None:
    commit = Path(uri, "_delta_log", f"{3:020}.json")
    # As if it had been put there.
    data = Path(uri, "_delta_log", f"{4:020}.json").read_bytes()
    commit.write_bytes(data.replace(b'"epochlakeVersion":"4"', b'"epochlakeVersion":"3"'))
    knows = DeltaLog(STORAGE, uri)
    knows._table, knows._read_at = knows._open(), 6
    commit.unlink()
    CutLog(STORAGE, uri, hole(uri)).append(another("cut"))
    with pytest.raises(AppendConflict):
        knows.append(chain(1, position_of(ENTRIES[-1])))
    assert [entry.epoch for entry in DeltaLog(STORAGE, uri).read(0)] == [1, 2, 3]


def test_storage_that_does_not_answer_is_no_hole(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise OSError(5, "Input/output error")

    write_entries(STORAGE, uri, another("nobody's"))
    monkeypatch.setattr("epochlake.metastore.log.holes.read_columns", away)
    with pytest.raises(StorageUnavailable):
        plan_mending(STORAGE, uri)
    monkeypatch.undo()
    monkeypatch.setattr("epochlake.metastore.log.files._read_rows", away)
    with pytest.raises(LogUnreadable) as caught:
        plan_mending(STORAGE, uri)
    assert not isinstance(caught.value, Unfillable)
