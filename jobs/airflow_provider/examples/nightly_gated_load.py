"""Every night: load a day's rows through the gate, look at them, compact the table, when nothing moves in the cluster.

What a run writes lands once, however often its tasks are tried. The DAG that follows is scheduled by the table itself.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import dag
from epochlake.airflow import (
    EpochlakeBatchSensor,
    EpochlakeClusterOperator,
    EpochlakeCompactOperator,
    EpochlakePipelineOperator,
    EpochlakeSettledSensor,
    table_asset,
)

if TYPE_CHECKING:
    from epochlake import Cluster, Pipeline
    from pyspark.sql import SparkSession

TABLE = "air.flights"
FLIGHTS = table_asset(TABLE)
RETRIES: dict[str, Any] = {"retries": 3, "retry_delay": timedelta(minutes=5)}


def load(spark: SparkSession, pipeline: Pipeline, day: str) -> int:
    """The rows of a day; a retry has to bring the same ones, so they depend on the day and on nothing else."""
    rows = spark.range(1_000).selectExpr(f"xxhash64(id, '{day}') AS id", f"'{day}' AS note")
    return pipeline.write(rows, TABLE, consistency="QUORUM").rows


def check(cluster: Cluster, day: str) -> int:
    """How many rows of the day there are: without Spark, by what a reader would see."""
    import pyarrow.compute as pc  # only here: the scheduler parses this file again and again

    found = cluster.scan(TABLE, columns=["id"], where=pc.field("note") == day, consistency="QUORUM").read_all()
    if found.num_rows != 1_000:
        raise ValueError(f"{found.num_rows} rows of {day}, not 1,000")
    return found.num_rows


@dag(schedule="@daily", start_date=datetime(2026, 1, 1), catchup=False, default_args=RETRIES, tags=["epochlake"])
def nightly_gated_load() -> None:
    """Load, look, tidy up."""
    day = "{{ (dag_run.logical_date or dag_run.run_after) | ds }}"
    loaded = EpochlakePipelineOperator(
        task_id="load", python_callable=load, op_kwargs={"day": day}, outlets=[FLIGHTS], max_active_tis_per_dag=1
    )
    # By its name, not by a time: a run that is cleared finds the batch that it has written before.
    landed = EpochlakeBatchSensor(
        task_id="landed", table=TABLE, batch="nightly_gated_load/{{ run_id }}/load", timeout=timedelta(hours=1)
    )
    checked = EpochlakeClusterOperator(task_id="check", python_callable=check, op_kwargs={"day": day})
    settled = EpochlakeSettledSensor(task_id="settled", timeout=timedelta(hours=6))
    compacted = EpochlakeCompactOperator(task_id="compact", table=TABLE, seconds=3600)
    loaded >> landed >> checked >> settled >> compacted


nightly_gated_load()
