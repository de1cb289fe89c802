"""DAGs whose task is killed in its first try, at a point that matters, and tried again by the scheduler."""

from __future__ import annotations

import os
import signal
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import dag
from epochlake.airflow import (
    EpochlakeClusterOperator,
    EpochlakePipelineOperator,
    EpochlakeSubmitOperator,
    rebalance_with_review,
    table_asset,
)

TABLE = "air.events"
ONCE: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(seconds=1)}


def first_try(point: str) -> bool:
    """Whether nobody has come to a point before: kept outside of Airflow, which a killed task tells nothing."""
    flag = Path(os.environ["KILLED_BELOW"], point)
    try:
        flag.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_after_the_write(spark: Any, pipeline: Any, run: str) -> int:
    written = pipeline.write(spark.range(5_000).selectExpr("id", f"'{run}' AS note"), TABLE, consistency="ALL")
    if first_try("after-the-write"):
        die()
    assert written.already
    return written.rows


def killed_between_two_replicas(cluster: Any, run: str) -> int:
    from epochlake.jobs.gate import commit_phase

    if first_try("between-two-replicas"):
        committing, commits = commit_phase.commit_files, []

        def dies(*arguments: Any, **options: Any) -> Any:
            commits.append(committing(*arguments, **options))
            die()

        commit_phase.commit_files = dies
    rows = [{"id": number, "note": run} for number in range(1_000)]
    return cluster.write(TABLE, rows, consistency="ALL").rows


@dag(schedule=None, start_date=datetime(2026, 1, 1), default_args=ONCE)
def tried_again() -> None:
    EpochlakePipelineOperator(
        task_id="with_spark",
        python_callable=killed_after_the_write,
        op_kwargs={"run": "spark"},
        outlets=[table_asset(TABLE)],
        master="local[1]",
    )
    EpochlakeClusterOperator(
        task_id="without_spark",
        python_callable=killed_between_two_replicas,
        op_kwargs={"run": "arrow"},
        outlets=[table_asset(TABLE)],
    )


@dag(schedule=None, start_date=datetime(2026, 1, 1), default_args=ONCE)
def left_behind() -> None:
    EpochlakeSubmitOperator(
        task_id="submitted", application=str(Path(__file__).with_name("left_behind_job.py")), master="local[1]"
    )


@dag(schedule=None, start_date=datetime(2026, 1, 1))
def unanswered() -> None:
    rebalance_with_review(response_timeout=timedelta(seconds=5))


tried_again()
left_behind()
unanswered()
