"""Every week: what balancing would move is shown to a person, and moved when that person approves.

Between the weeks balancing is paused (`epochlake balance pause`), so nothing moves only to even out.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import dag
from epochlake.airflow import EpochlakeSettledSensor, rebalance_with_review

RETRIES: dict[str, Any] = {"retries": 3, "retry_delay": timedelta(minutes=5)}


@dag(schedule="@weekly", start_date=datetime(2026, 1, 1), catchup=False, default_args=RETRIES, tags=["epochlake"])
def weekly_rebalance() -> None:
    """Wait until nothing else moves, then plan, ask, apply, verify."""
    settled = EpochlakeSettledSensor(task_id="settled", timeout=timedelta(days=1))
    settled >> rebalance_with_review(response_timeout=timedelta(days=3))


weekly_rebalance()
