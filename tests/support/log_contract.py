"""The contract of an epoch log: tests that each kind of log imports beside a fixture `open_log`, which opens one more
handle on the same log. Logs that have pieces to put together do so every 8 epochs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from epochlake.metastore.errors import LogUnreadable
from epochlake.metastore.log.entry import position_of
from epochlake.metastore.log.epoch_log import AppendConflict, EpochLog
from epochlake.metastore.log.in_memory import InMemoryLog

from tests.support.logs import chain

Opener = Callable[[], EpochLog]


def test_an_empty_log_has_no_entries_and_no_request_ids(open_log: Opener) -> None:
    assert open_log().read(0) == []
    assert open_log().request_epochs(0) == {}


def test_what_was_appended_is_read_by_everybody_column_by_column(open_log: Opener) -> None:
    entries = chain(5)
    writer, reader = open_log(), open_log()
    writer.read(0)
    writer.append(entries[:2])
    assert reader.read(0) == entries[:2]
    writer.append(entries[2:])
    assert reader.read(2) == entries[2:]
    assert open_log().read(0) == entries


@pytest.mark.parametrize("after", range(8))
def test_a_log_is_read_from_any_epoch_to_any_other(open_log: Opener, after: int) -> None:
    entries = chain(8)
    writer = open_log()
    for start, end in ((0, 1), (1, 4), (4, 8)):
        writer.read(start)
        writer.append(entries[start:end])
    assert open_log().read(after) == entries[after:]
    for up_to in range(after, 9):
        assert open_log().read(after, up_to) == entries[after:up_to]


def test_an_append_conflicts_when_another_handle_has_appended(open_log: Opener) -> None:
    entries = chain(2)
    one, two = open_log(), open_log()
    one.read(0)
    two.read(0)
    one.append(entries)
    with pytest.raises(AppendConflict):
        two.append(chain(2, tag="other"))
    assert open_log().read(0) == entries


def test_an_append_conflicts_when_the_handle_never_read(open_log: Opener) -> None:
    with pytest.raises(AppendConflict):
        open_log().append(chain(1))
    assert open_log().read(0) == []


def test_after_a_conflict_the_log_has_to_be_read_again(open_log: Opener) -> None:
    one, two = open_log(), open_log()
    [first, second] = chain(2)
    one.read(0)
    two.read(0)
    one.append([first])
    for _ in range(2):
        with pytest.raises(AppendConflict):
            two.append([second])
    assert two.read(1) == []
    two.append([second])
    assert open_log().read(0) == [first, second]


def test_a_handle_that_has_appended_appends_again_without_reading(open_log: Opener) -> None:
    entries = chain(4)
    log = open_log()
    log.read(0)
    for entry in entries:
        log.append([entry])
    assert open_log().read(0) == entries


@pytest.mark.parametrize("own", [True, False])
def test_an_append_conflicts_after_a_fence_whoever_raised_it(open_log: Opener, own: bool) -> None:
    log = open_log()
    log.read(0)
    (log if own else open_log()).fence()
    with pytest.raises(AppendConflict):
        log.append(chain(1))
    log.read(0)
    log.append(chain(1))
    assert len(open_log().read(0)) == 1


def test_a_fence_adds_no_entry_and_changes_none(open_log: Opener) -> None:
    entries = chain(3)
    log = open_log()
    log.read(0)
    log.append(entries)
    open_log().fence()
    assert log.read(0) == entries
    assert log.read(3) == []


def test_asking_for_request_ids_does_not_let_an_append_overtake_what_came_since(open_log: Opener) -> None:
    [first, second] = chain(2)
    one, two = open_log(), open_log()
    one.read(0)
    one.append([first])
    two.read(0)
    one.append([second])
    assert two.request_epochs(1) == {first.request_id: 1}
    with pytest.raises(AppendConflict):
        two.append(chain(1, position_of(first), tag="other"))
    assert open_log().read(0) == [first, second]


def test_request_ids_are_those_of_entries_up_to_an_epoch(open_log: Opener) -> None:
    entries = chain(6)
    log = open_log()
    log.read(0)
    log.append(entries[:3])
    log.append(entries[3:])
    assert open_log().request_epochs(4) == {entry.request_id: entry.epoch for entry in entries[:4]}


def test_of_many_who_append_the_same_epoch_exactly_one_succeeds(open_log: Opener) -> None:
    handles = [open_log() for _ in range(6)]
    for handle in handles:
        handle.read(0)
    everybody = threading.Barrier(len(handles))
    landed: list[str] = []

    def race(number: int, handle: EpochLog) -> None:
        entries = chain(2, tag=f"racer-{number}")
        everybody.wait()
        try:
            handle.append(entries)
        except AppendConflict:
            return
        landed.extend(entry.request_id for entry in entries)

    racers = [threading.Thread(target=race, args=pair) for pair in enumerate(handles)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert [entry.request_id for entry in open_log().read(0)] == landed
    assert len(landed) == 2


def test_compaction_changes_no_entry_and_goes_on_being_due(open_log: Opener) -> None:
    entries = chain(20)
    compacted = 0
    for entry in entries:
        log = open_log()  # as many short processes would
        log.read(0)
        log.append([entry])
        compacted += log.compact_if_due()
        assert open_log().read(0) == entries[: entry.epoch]
    assert compacted == (0 if isinstance(open_log(), InMemoryLog) else 2)
    assert open_log().request_epochs(20) == {entry.request_id: entry.epoch for entry in entries}


def test_compaction_between_reading_and_appending_lets_the_append_conflict_or_land_in_full(open_log: Opener) -> None:
    entries = chain(10)
    writer, other = open_log(), open_log()
    writer.read(0)
    for entry in entries[:9]:
        writer.append([entry])
    other.read(0)
    other.compact_if_due()
    try:
        writer.append(entries[9:])
    except AppendConflict:
        writer.read(9)
        writer.append(entries[9:])
    assert open_log().read(0) == entries


def test_a_log_that_is_shorter_than_what_was_known_is_an_error_with_both_epochs(open_log: Opener) -> None:
    log = open_log()
    log.read(0)
    log.append(chain(3))
    assert log.read(3) == []
    with pytest.raises(LogUnreadable, match=r"ends at epoch 3, but epoch 7"):
        log.read(7)
