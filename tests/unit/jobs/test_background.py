"""Tasks beside the one that asks for them."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
from epochlake.jobs.workers.background import Background

from tests.support.waiting import eventually


def test_results_come_in_the_order_of_the_items_and_not_of_the_ends() -> None:
    background, second_has_ended = Background(2), threading.Event()

    def task(number: int) -> int:
        if number:
            second_has_ended.set()
        else:
            assert second_has_ended.wait(60)
        return number

    assert background.map(task, [0, 1]) == [0, 1]


def test_at_most_so_many_run_at_a_time_and_the_others_follow() -> None:
    background, may_end = Background(2), threading.Event()
    running: list[int] = []

    def task(number: int) -> int:
        running.append(number)
        assert may_end.wait(60)
        return number

    outcomes = [background.submit(task, number) for number in range(5)]
    eventually(lambda: len(running) == 2)
    assert sorted(running) == [0, 1]
    may_end.set()
    assert [outcome.result() for outcome in outcomes] == [0, 1, 2, 3, 4]


def test_an_error_is_raised_where_the_result_is_asked_for_and_others_go_on() -> None:
    background = Background(1)

    def fail() -> None:
        raise OSError("full")

    failed, done = background.submit(fail), background.submit(lambda: "done")
    assert done.result() == "done"
    for _ in range(2):
        with pytest.raises(OSError, match="full"):
            failed.result()
    background.close()


def test_closing_waits_for_what_nobody_asked_for() -> None:
    background, may_end = Background(1), threading.Event()
    ended: list[int] = []

    def task(number: int) -> None:
        assert may_end.wait(60)
        ended.append(number)

    for number in range(3):
        background.submit(task, number)
    threading.Thread(target=may_end.set).start()
    background.close()
    assert ended == [0, 1, 2]


def test_what_a_task_holds_is_let_go_when_it_has_ended() -> None:
    class Data:
        pass

    background, data = Background(1), Data()
    held = weakref.ref(data)
    outcome = background.submit(lambda given: type(given), data)
    assert outcome.result() is Data
    background.close()
    del data
    eventually(lambda: gc.collect() >= 0 and held() is None)


def test_a_system_without_threads_says_so_and_the_next_task_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    background = Background(1)
    with monkeypatch.context() as patched:

        def begin(task: object) -> None:
            raise RuntimeError("can't start new thread")

        patched.setattr("epochlake.metastore.threads.begin", begin)
        with pytest.raises(RuntimeError):
            background.submit(int)
    assert background.submit(int).result() == 0
    background.close()
