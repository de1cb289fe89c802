"""Executors hold to what threads do, and say what only they can run into."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from epochlake.jobs.workers.spark import SparkWorkers, TaskFailed
from epochlake.metastore.configuration import StorageSettings
from epochlake.metastore.errors import Rejected
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.rejections import Code

from tests.support.workers import WorkersContract

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class TestExecutors(WorkersContract):
    @pytest.fixture
    def workers(self, spark: SparkSession) -> SparkWorkers:
        return SparkWorkers(spark, 2)


def test_tasks_use_storage_with_the_settings_of_the_driver(spark: SparkSession) -> None:
    def task(_: int) -> float:
        return used.settings.deadline_seconds

    used = Storage(StorageSettings(deadline_seconds=1234.0))
    assert SparkWorkers(spark).run(task, range(2), returns=float) == [1234.0] * 2


def test_an_error_says_where_in_the_executor_it_was_raised(spark: SparkSession) -> None:
    def divide(number: int) -> float:
        return 1 / number

    with pytest.raises(ZeroDivisionError) as raised:
        SparkWorkers(spark).run(divide, [1, 0], returns=float)
    assert "in divide" in raised.value.__notes__[0]


def test_a_rejection_arrives_whole(spark: SparkSession) -> None:
    def reject(_: int) -> int:
        raise Rejected(Code.OPERATION_REFUSED, "because", hint="Do it otherwise")

    with pytest.raises(Rejected, match=r"rejected \(operation-refused\): because") as raised:
        SparkWorkers(spark).run(reject, [1], returns=int)
    assert (raised.value.code, raised.value.hint) == (Code.OPERATION_REFUSED, "Do it otherwise")


def test_an_error_that_cannot_be_pickled_is_told_by_its_words(spark: SparkSession) -> None:
    def fail(_: int) -> int:
        error = ValueError("because")
        error.held = threading.Lock()  # type: ignore[attr-defined]
        raise error

    with pytest.raises(TaskFailed, match=r"ValueError: because"):
        SparkWorkers(spark).run(fail, [1], returns=int)
