"""Following: every epoch once and in order, whatever arrives how; stopping for good at what cannot be trusted."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable

import msgspec
import pytest
from epochlake.metastore.errors import HashMismatch, LogGap, LogUnreadable, UnknownFormat, WaitTimeout
from epochlake.metastore.following.follower import Follower
from epochlake.metastore.log.entry import Entry, position_of
from epochlake.metastore.log.in_memory import InMemoryLog
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import FinishRequest, SwitchBalancing

from tests.support.logs import ScriptedLog, chain, put, resealed, sealed


class Recorder:
    """A listener that keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int, int]] = []

    def before(self, entry: Entry, metadata: ClusterMetadata) -> None:
        self.told.append(("before", entry.epoch, metadata.epoch))

    def after(self, entry: Entry, metadata: ClusterMetadata) -> None:
        self.told.append(("after", entry.epoch, metadata.epoch))


def expected(first: int, last: int) -> list[tuple[str, int, int]]:
    return [
        told for epoch in range(first, last + 1) for told in (("before", epoch, epoch - 1), ("after", epoch, epoch))
    ]


def following(entries: list[Entry]) -> tuple[Follower, InMemoryLog]:
    log = InMemoryLog()
    put(log, entries)
    return Follower(InMemoryLog(log.shared)), log


def test_a_follower_of_an_empty_log_is_at_epoch_0() -> None:
    follower, _ = following([])
    assert follower.catch_up() == ClusterMetadata.empty()
    assert follower.position.epoch == 0


def test_catching_up_is_incremental_and_tells_listeners_before_and_after_each_epoch() -> None:
    entries = chain(6)
    follower, log = following(entries[:2])
    recorder = Recorder()
    follower.add_listener(recorder)
    assert follower.catch_up().epoch == 2
    put(log, entries[2:])
    assert follower.catch_up().epoch == 6
    assert follower.catch_up().epoch == 6
    assert recorder.told == expected(1, 6)
    assert follower.position == position_of(entries[-1])


def test_a_failing_listener_is_logged_and_neither_stops_the_follower_nor_the_other_listeners(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(Recorder):
        def before(self, entry: Entry, metadata: ClusterMetadata) -> None:
            raise ValueError("before")

        after = before

    follower, _ = following(chain(3))
    recorder = Recorder()
    follower.add_listener(Failing())
    follower.add_listener(recorder)
    assert follower.catch_up().epoch == 3
    assert recorder.told == expected(1, 3)
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 6
    assert "epoch 2" in caplog.text


def test_a_listener_that_asks_for_more_gets_an_error_and_nothing_is_applied_twice() -> None:
    class Eager(Recorder):
        def __init__(self, follower: Follower) -> None:
            super().__init__()
            self.follower = follower
            self.errors: list[str] = []

        def before(self, entry: Entry, metadata: ClusterMetadata) -> None:
            super().before(entry, metadata)
            for ask in (self.follower.catch_up, lambda: self.follower.receive(chain(3))):
                with pytest.raises(RuntimeError, match="listener") as error:
                    ask()
                self.errors.append(str(error.value))

    follower, _ = following(chain(3))
    eager = Eager(follower)
    follower.add_listener(eager)
    assert follower.catch_up().epoch == 3
    assert eager.told == expected(1, 3)
    assert len(eager.errors) == 6


def test_entries_that_arrive_twice_or_early_change_nothing_until_their_turn() -> None:
    entries = chain(5)
    follower, _ = following([])
    recorder = Recorder()
    follower.add_listener(recorder)
    for arriving, epoch in (([5, 3], 0), ([1], 1), ([1, 1], 1), ([2], 3), ([3, 2], 3), ([5, 4], 5)):
        assert follower.receive([entries[number - 1] for number in arriving]).epoch == epoch
    assert recorder.told == expected(1, 5)


def test_an_early_entry_that_the_log_has_overtaken_is_forgotten() -> None:
    entries = chain(4)
    follower, log = following([])
    follower.receive([entries[2]])
    put(log, entries[:3])
    assert follower.catch_up().epoch == 3
    assert follower.receive([entries[3]]).epoch == 4


def test_slices_of_ten_appenders_that_overlap_in_any_order_give_every_epoch_once_in_order(seed: int) -> None:
    dice = random.Random(seed)
    entries = chain(200)
    for _ in range(2000):
        # Each appender has a slice; some begin before what is known, some after it, and they come in any order.
        known = dice.randrange(0, 150)
        until = known + dice.randrange(1, 50)
        cuts = sorted(dice.choices(range(known, until + 1), k=9))
        bounds = zip([0, *cuts], [*cuts, until], strict=True)
        slices = [entries[max(0, start - dice.randrange(8)) : end + dice.randrange(8)] for start, end in bounds]
        dice.shuffle(slices)
        follower = Follower(InMemoryLog())
        recorder = Recorder()
        follower.receive(entries[:known])
        follower.add_listener(recorder)
        highest = max((part[-1].epoch for part in slices if part), default=known)
        for part in slices:
            follower.receive(dice.sample(part, len(part)))
        assert follower.metadata.epoch == max(highest, known)
        assert recorder.told == expected(known + 1, follower.metadata.epoch)


def test_appenders_and_readers_in_threads_see_every_epoch_once_in_order(seed: int) -> None:
    dice = random.Random(seed)
    entries = chain(300)
    follower = Follower(InMemoryLog())
    recorder = Recorder()
    follower.add_listener(recorder)
    slices = [entries[max(0, start - dice.randrange(20)) : start + 20] for start in range(0, 300, 10)]
    seen: list[list[int]] = []
    everybody = threading.Barrier(20)

    def appender(parts: list[list[Entry]]) -> None:
        everybody.wait()
        for part in parts:
            follower.receive(part)

    def reader() -> None:
        everybody.wait()
        epochs = [0]
        while epochs[-1] < 300 and len(epochs) < 1_000_000:
            epochs.append(follower.metadata.epoch)
        seen.append(epochs)

    dice.shuffle(slices)
    threads = [threading.Thread(target=appender, args=(slices[number::10],)) for number in range(10)]
    threads += [threading.Thread(target=reader) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recorder.told == expected(1, 300)
    assert all(epochs == sorted(epochs) for epochs in seen)


def with_wrong_kind(entry: Entry) -> Entry:
    return resealed(entry, event="Fly")


@pytest.mark.parametrize(
    ("damaged", "error", "message"),
    [
        (lambda e: [*e[:2], e[3]], LogGap, "epoch 3 is missing"),
        (lambda e: [*e[:2], msgspec.structs.replace(e[2], author="x")], HashMismatch, "epoch 3 is not what its hash"),
        (lambda e: [*e[:2], resealed(e[2], previous_hash="1" * 64)], HashMismatch, "epoch 3 does not continue"),
        (lambda e: [*e[:2], resealed(e[2], format=7)], UnknownFormat, "epoch 3 is written in format 7"),
        (lambda e: [*e[:2], with_wrong_kind(e[2])], UnknownFormat, "epoch 3 holds an event 'Fly'"),
        (lambda e: [*e[:2], sealed(FinishRequest("no"), position_of(e[1]))], LogUnreadable, "epoch 3 .FinishRequest."),
        (lambda e: [*e[:3], e[1]], LogUnreadable, "epoch 2 is in the log twice"),
    ],
)
def test_what_cannot_be_trusted_stops_a_follower_for_good_and_is_named_by_epoch(
    damaged: Callable[[list[Entry]], list[Entry]], error: type[LogUnreadable], message: str
) -> None:
    entries = chain(4)
    follower, log = following(damaged(entries))
    recorder = Recorder()
    follower.add_listener(recorder)
    with pytest.raises(error, match=message):
        follower.catch_up()
    sound = max(epoch for _, epoch, _ in recorder.told)
    assert follower.metadata.epoch == sound
    assert follower.position == position_of(entries[sound - 1])
    # Also when the log is repaired: who has seen a wrong log must not go on as if nothing had been.
    log.shared.entries[:] = entries
    for ask in (follower.catch_up, lambda: follower.receive(entries), lambda: follower.wait_for(1, 1)):
        with pytest.raises(error, match=message):
            ask()
    assert Follower(log).catch_up().epoch == 4


def test_a_received_entry_that_does_not_chain_stops_the_follower() -> None:
    entries = chain(3)
    follower, _ = following(entries)
    with pytest.raises(HashMismatch, match="epoch 2"):
        follower.receive(
            [entries[0], sealed(SwitchBalancing(on=False), position_of(entries[0]), previous_hash="0" * 64)]
        )
    with pytest.raises(HashMismatch, match="epoch 2"):
        follower.catch_up()


def test_a_log_that_cannot_be_read_now_does_not_stop_the_follower() -> None:
    log = ScriptedLog(InMemoryLog())
    put(log.log, chain(2))

    def unreadable(*_: object) -> list[Entry]:
        raise LogUnreadable("not now")

    log.plan("read", unreadable)
    follower = Follower(log)
    with pytest.raises(LogUnreadable, match="not now"):
        follower.catch_up()
    assert follower.catch_up().epoch == 2


def test_waiting_for_an_epoch_returns_when_it_is_there() -> None:
    entries = chain(3)
    follower, log = following(entries[:1])
    assert follower.wait_for(1, 0).epoch == 1
    later = threading.Timer(0.1, lambda: put(log, entries[1:]))
    later.start()
    assert follower.wait_for(3, 10, poll_seconds=0.01).epoch == 3
    later.join()


def test_waiting_is_woken_by_what_this_process_receives() -> None:
    entries = chain(2)
    follower, log = following(entries[:1])
    later = threading.Timer(0.1, lambda: (put(log, entries[1:]), follower.receive(entries[1:])))
    started = time.monotonic()
    later.start()
    assert follower.wait_for(2, 30, poll_seconds=20).epoch == 2
    assert time.monotonic() - started < 10
    later.join()


def test_waiting_for_an_epoch_that_does_not_come_ends_in_time_and_says_where_the_log_is() -> None:
    follower, _ = following(chain(2))
    started = time.monotonic()
    with pytest.raises(WaitTimeout, match=r"epoch 3 was not committed within 0.2 s; the log is at epoch 2"):
        follower.wait_for(3, 0.2)
    assert 0.2 <= time.monotonic() - started < 15


def test_what_this_process_has_appended_is_taken_over_like_what_is_read() -> None:
    entries = chain(4)
    follower, log = following(entries[:1])
    recorder = Recorder()
    follower.catch_up()
    follower.add_listener(recorder)
    put(log, entries[1:])
    follower.appended(entries[1:], Follower(log).catch_up())
    assert recorder.told == expected(2, 4)
    assert follower.position == position_of(entries[-1])
    assert [follower.request_epoch(entry.request_id) for entry in entries] == [1, 2, 3, 4]
    assert follower.catch_up() == Follower(log).catch_up()
