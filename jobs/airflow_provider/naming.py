"""The names under which a task's writes and changes go: those of the task in its run, the same for each try.

A name is made of dag id, run id, task id and map index, never of the number of the try. So a task that was killed and
is tried again finds its own batches and requests, and what it has done counts once.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from epochlake.jobs.gate.merging import Merged
    from epochlake.jobs.gate.writing import Written


class TaskOfRun(NamedTuple):
    """A task in a run of its DAG. `map_index` is -1 for a task that is not mapped."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1

    @classmethod
    def of(cls, context: Mapping[str, Any]) -> TaskOfRun:
        """The task that a context of Airflow is for."""
        instance = context["ti"]
        return cls(instance.dag_id, instance.run_id, instance.task_id, instance.map_index)

    @property
    def name(self) -> str:
        """The name for logs, batches and requests: the four parts have no slash in them."""
        mapped = "" if self.map_index < 0 else f"[{self.map_index}]"
        return f"{self.dag_id}/{self.run_id}/{self.task_id}{mapped}"


class Names:
    """Names for what one try of a task does, below a `base` that each of its tries has. Safe for several threads.

    What has no name of its own is counted: the second write to a table is the second one in each try. Who writes in an
    order that changes from try to try gives names; an order that changed all the same is Rejected (batch-used), as the
    rows are others, and never lands twice.
    """

    def __init__(self, base: str) -> None:
        self.base = base
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()

    def batch(self, operation: str, table: str, given: str | None) -> str:
        """The name of a batch: what the task calls it, below the base."""
        return f"{self.base}/{given}" if given is not None else self._counted(self.base, operation, table)

    def request(self, words: str) -> str:
        """The request id of a change with these words."""
        return self._counted(f"{self.base}/{hashlib.sha256(words.encode()).hexdigest()[:12]}", "request", words)

    def _counted(self, name: str, operation: str, about: str) -> str:
        with self._lock:
            self._counts[operation, about] += 1
            number = self._counts[operation, about]
        return name if number == 1 else f"{name}#{number}"


class Landed(NamedTuple):
    """A write of a task: the whole name of its batch, and what it did."""

    batch: str
    written: Written | Merged
