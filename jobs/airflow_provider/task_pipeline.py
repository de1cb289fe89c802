"""A pipeline in the hands of a task: its writes are named after the task in its run, as `task_cluster.py` says."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from epochlake.jobs.airflow_provider.naming import Landed
from epochlake.jobs.gate.pipeline import Pipeline
from epochlake.jobs.gate.writing import Written

if TYPE_CHECKING:
    import pyarrow.compute as pc
    from epochlake.jobs.airflow_provider.task_cluster import TaskCluster
    from epochlake.jobs.gate.merge import Run
    from epochlake.jobs.gate.merging import Merged
    from pyspark.sql import DataFrame, SparkSession


class TaskPipeline(Pipeline):
    """A `Pipeline` that gives a batch to each write, and tells its cluster what was written."""

    def __init__(self, cluster: TaskCluster, name: str, spark: SparkSession, datacenter: str | None) -> None:
        super().__init__(cluster, name, spark, datacenter)
        self._task = cluster
        self._names = cluster.names
        self._landed = cluster.landed

    def write(
        self,
        rows: DataFrame,
        table: str,
        *,
        deletes: DataFrame | None = None,
        consistency: str | None = None,
        batch: str | None = None,
    ) -> Written:
        """As `Pipeline.write`; `batch` is the task's own name for it, below the name of the task in its run."""
        named = self._names.batch("write", table, batch)
        done = super().write(rows, table, deletes=deletes, consistency=consistency, batch=named)
        self._landed.append(Landed(named, done))
        return done

    def overwrite(
        self,
        rows: DataFrame,
        table: str,
        *,
        where: pc.Expression | None = None,
        consistency: str | None = None,
        batch: str | None = None,
    ) -> Merged:
        """As `Pipeline.overwrite`, and named as `write` names."""
        named = self._names.batch("overwrite", table, batch)
        done = super().overwrite(rows, table, where=where, consistency=consistency, batch=named)
        self._landed.append(Landed(named, done))
        return done

    def _around_merges(self, table: str) -> Callable[[Run, str | None], Merged]:
        """Merges are named as `write` names."""
        return self._task._around_merges(table)

    def delete(
        self, keys: DataFrame, table: str, *, consistency: str | None = None, batch: str | None = None
    ) -> Written:
        """As `Pipeline.delete`, and named as `write` names."""
        named = self._names.batch("delete", table, batch)
        done = super().delete(keys, table, consistency=consistency, batch=named)
        self._landed.append(Landed(named, done))
        return done
