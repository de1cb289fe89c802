"""A cluster in the hands of a task: what the task writes and changes is named after the task in its run.

So none of it counts twice, however often the task is tried, also where the one who wrote the task has given no names.
What the task has written is kept, for the assets that it updates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from epochlake.jobs.airflow_provider.naming import Landed, Names
from epochlake.jobs.cluster import Cluster
from epochlake.metastore.committing.changes import Change
from epochlake.metastore.committing.committer import Committed, Planner
from epochlake.metastore.configuration import Configuration
from epochlake.metastore.metadata.events import Event

if TYPE_CHECKING:
    import pyarrow.compute as pc
    from epochlake.jobs.airflow_provider.task_pipeline import TaskPipeline
    from epochlake.jobs.gate.merge import Run
    from epochlake.jobs.gate.merging import Merged
    from epochlake.jobs.gate.writing import Written
    from pyspark.sql import SparkSession


class TaskCluster(Cluster):
    """A `Cluster` that gives a batch or a request id to what has none. `landed`: its writes, in order."""

    def __init__(self, configuration: Configuration, names: Names) -> None:
        super().__init__(configuration)
        self.names = names
        self.landed: list[Landed] = []

    def pipeline(self, name: str, spark: SparkSession, *, datacenter: str | None = None) -> TaskPipeline:
        """As `Cluster.pipeline`; its writes are named and kept as well."""
        from epochlake.jobs.airflow_provider.task_pipeline import TaskPipeline  # only here: it imports PySpark

        self.require_open()
        return TaskPipeline(self, name, spark, datacenter)

    def write(
        self,
        table: str,
        rows: object,
        *,
        deletes: object = None,
        consistency: str | None = None,
        batch: str | None = None,
        datacenter: str | None = None,
    ) -> Written:
        """As `Cluster.write`; `batch` is the task's own name for it, below the name of the task in its run."""
        named = self.names.batch("write", table, batch)
        done = super().write(table, rows, deletes=deletes, consistency=consistency, batch=named, datacenter=datacenter)
        self.landed.append(Landed(named, done))
        return done

    def overwrite(
        self,
        table: str,
        rows: object,
        *,
        where: pc.Expression | None = None,
        consistency: str | None = None,
        batch: str | None = None,
        datacenter: str | None = None,
    ) -> Merged:
        """As `Cluster.overwrite`, and named as `write` names."""
        named = self.names.batch("overwrite", table, batch)
        done = super().overwrite(table, rows, where=where, consistency=consistency, batch=named, datacenter=datacenter)
        self.landed.append(Landed(named, done))
        return done

    def _around_merges(self, table: str) -> Callable[[Run, str | None], Merged]:
        """Merges are named as `write` names."""

        def around(run: Run, batch: str | None) -> Merged:
            named = self.names.batch("merge", table, batch)
            done = run(named)
            self.landed.append(Landed(named, done))
            return done

        return around

    def delete(
        self,
        table: str,
        keys: object,
        *,
        consistency: str | None = None,
        batch: str | None = None,
        datacenter: str | None = None,
    ) -> Written:
        """As `Cluster.delete`, and named as `write` names."""
        named = self.names.batch("delete", table, batch)
        done = super().delete(table, keys, consistency=consistency, batch=named, datacenter=datacenter)
        self.landed.append(Landed(named, done))
        return done

    def commit(
        self,
        what: Event | Planner | Change[Any],
        *,
        request_id: str | None = None,
        reason: str = "",
        timeout: float | None = None,
        expect_epoch: int | None = None,
        asked: str = "",
    ) -> Committed:
        """As `Metastore.commit`; a change that an operator asks for, without a request id, gets one of the task's."""
        if request_id is None and isinstance(what, Change):
            request_id = self.names.request(what.words())
            reason = reason or f"Airflow: {self.names.base}"
        return super().commit(
            what, request_id=request_id, reason=reason, timeout=timeout, expect_epoch=expect_epoch, asked=asked
        )
