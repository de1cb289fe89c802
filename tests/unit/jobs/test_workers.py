"""Tasks side by side, in threads."""

from __future__ import annotations

import threading

import pytest
from epochlake.jobs.workers.pace import Pace, Paced, divided
from epochlake.jobs.workers.threads import ThreadWorkers

from tests.support.workers import WorkersContract


class TestThreads(WorkersContract):
    @pytest.fixture
    def workers(self) -> ThreadWorkers:
        return ThreadWorkers(2)


def test_results_come_in_the_order_of_the_items_whichever_ends_first() -> None:
    behind = threading.Event()

    def task(number: int) -> int:
        if number == 0:
            assert behind.wait(60)
        if number == 1:
            behind.set()
        return 10 * number

    assert ThreadWorkers(2).run(task, range(5)) == [0, 10, 20, 30, 40]


def test_so_many_run_at_a_time_and_not_more() -> None:
    running, most, lock = 0, 0, threading.Lock()
    both = threading.Barrier(2)

    def task(_: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        both.wait(60)
        with lock:
            running -= 1

    ThreadWorkers(2).run(task, range(6))
    assert most == 2


def test_the_copies_of_a_task_for_other_processes_share_its_limit_and_callers_wait_for_each_other() -> None:
    def task(size: int, pace: Pace) -> None: ...

    limited = Paced(task, 40.0)
    with divided(limited, 4) as share:
        assert isinstance(share, Paced)
        assert share.bytes_per_second == 10.0
        assert limited.turn.locked()
    assert not limited.turn.locked()
    for unlimited in (Paced(task, 0), str):
        with divided(unlimited, 4) as share, divided(unlimited, 4) as again:
            assert share is again is unlimited
