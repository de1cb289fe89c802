"""What all workers hold to, whether they are threads or executors: the cases, for a test module of each."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from epochlake.jobs.replicas.damage import Checked
from epochlake.jobs.workers.pace import Pace, Paced
from epochlake.jobs.workers.workers import Workers

SECONDS = 60.0


class WorkersContract:
    """A test class of workers: it has a fixture `workers` that does two items at a time.

    Tasks are defined in the tests: an executor cannot import a module of tests.
    """

    def test_results_come_in_the_order_of_the_items(self, workers: Workers) -> None:
        def task(number: int) -> int:
            return 10 * number

        assert workers.run(task, range(5), returns=int) == [0, 10, 20, 30, 40]

    def test_nothing_to_do_is_nothing_done(self, workers: Workers) -> None:
        assert workers.run(str, [], returns=str) == []
        assert list(workers.each(str, [], returns=str)) == []

    def test_a_struct_comes_back_as_it_was(self, workers: Workers) -> None:
        items = [Checked("a", None), Checked(None, "torn"), Checked(None, 'ünlike "b"')]

        def task(item: Checked) -> Checked:
            return Checked(item.damage, item.digest)

        swapped = [Checked(item.damage, item.digest) for item in items]
        assert workers.run(task, items, returns=Checked) == swapped
        each = list(workers.each(task, items, returns=Checked))
        assert sorted(each, key=lambda pair: items.index(pair[0])) == list(zip(items, swapped, strict=True))

    def test_a_failure_that_is_a_value_stops_nothing(self, workers: Workers) -> None:
        def task(path: str) -> str:
            try:
                return Path(path).read_text()
            except OSError as error:
                return type(error).__name__

        found = workers.run(task, [__file__, "not there", __file__], returns=str)
        assert found == [Path(__file__).read_text(), "FileNotFoundError", Path(__file__).read_text()]

    def test_the_first_error_in_order_is_raised_when_all_have_ended(self, workers: Workers, tmp_path: Path) -> None:
        def task(number: int) -> int:
            if number % 2:
                raise ValueError(f"number {number}")
            (tmp_path / str(number)).touch()
            return number

        with pytest.raises(ValueError, match="number 1"):
            workers.run(task, range(6), returns=int)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "2", "4"]

    def test_each_raises_the_error_of_a_task(self, workers: Workers) -> None:
        def task(number: int) -> int:
            if number == 2:
                raise ValueError(f"number {number}")
            return number

        with pytest.raises(ValueError, match="number 2"):
            list(workers.each(task, range(3), returns=int))

    def test_each_gives_what_has_ended_while_others_are_done(self, workers: Workers, tmp_path: Path) -> None:
        go = tmp_path / "go"

        def task(number: int) -> bool:
            deadline = time.monotonic() + SECONDS
            while number == 0 and not go.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            return go.exists()

        found = workers.each(task, [0, 1], returns=bool)
        assert next(found) == (1, False)
        go.touch()
        assert list(found) == [(0, True)]

    def test_all_tasks_together_keep_to_a_pace(self, workers: Workers) -> None:
        def task(size: int, pace: Pace) -> int:
            pace.take(size)
            return size

        began = time.monotonic()
        assert workers.run(Paced(task, 40.0), [10] * 4, returns=int) == [10] * 4
        # Two executors have half of the limit each, and wait once for their first item; threads wait for three of four.
        assert time.monotonic() - began >= 0.4
        assert workers.run(Paced(task, 0), [10**9] * 4, returns=int) == [10**9] * 4
