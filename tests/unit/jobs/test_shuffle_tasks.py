"""Shuffles have as many tasks as a session says, and some where it says no number."""

from __future__ import annotations

from typing import cast

import pytest
from epochlake.jobs.replicas.shuffles import DEFAULT, shuffle_tasks
from pyspark.sql import SparkSession


class _Session:
    """What is set, as a session gives it."""

    def __init__(self, said: str | None) -> None:
        self.conf = self
        self._said = said

    def get(self, _name: str, default: str) -> str:
        return default if self._said is None else self._said


@pytest.mark.parametrize(
    ("said", "tasks"), [("4", 4), ("1000", 1000), ("auto", DEFAULT), ("", DEFAULT), ("0", DEFAULT), (None, DEFAULT)]
)
def test_tasks_of_a_shuffle(said: str | None, tasks: int) -> None:
    assert shuffle_tasks(cast(SparkSession, _Session(said))) == tasks
