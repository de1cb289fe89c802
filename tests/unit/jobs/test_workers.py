"""Tasks side by side."""

from __future__ import annotations

import threading

import pytest
from epochlake.jobs.workers import Workers


def test_results_come_in_the_order_of_the_items() -> None:
    behind = threading.Event()

    def task(number: int) -> int:
        if number == 0:
            assert behind.wait(60)
        if number == 1:
            behind.set()
        return 10 * number

    assert Workers(2).run(task, range(5)) == [0, 10, 20, 30, 40]


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

    Workers(2).run(task, range(6))
    assert most == 2


def test_an_error_is_raised_and_the_first_in_order_is_chosen() -> None:
    def task(number: int) -> int:
        if number % 2:
            raise ValueError(str(number))
        return number

    with pytest.raises(ValueError, match="1"):
        Workers(3).run(task, range(6))


def test_nothing_to_do_is_nothing_done() -> None:
    assert Workers().run(str, []) == []


def test_each_gives_what_has_ended_first() -> None:
    go = threading.Event()

    def task(number: int) -> int:
        if number == 0:
            assert go.wait(60)
        return number

    found = Workers(2).each(task, [0, 1])
    assert next(found) == (1, 1)
    go.set()
    assert list(found) == [(0, 0)]
