"""Epochlake in Airflow: hook, sensors, operators and assets, for the top of a DAG's file.

The names in `__all__` are public, as those of `epochlake` are. docs/airflow.md shows how they are used. Importing them
imports neither Spark nor Delta nor ZooKeeper's client: a DAG is parsed again and again.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epochlake.jobs.airflow_provider.assets import table_asset
    from epochlake.jobs.airflow_provider.hook import EpochlakeHook
    from epochlake.jobs.airflow_provider.operators import (
        EpochlakeClusterOperator,
        EpochlakeCompactOperator,
        EpochlakeCoordinatorOperator,
        EpochlakePipelineOperator,
        EpochlakeRepairOperator,
    )
    from epochlake.jobs.airflow_provider.reviewing import (
        EpochlakeBalanceOperator,
        EpochlakePlanBalanceOperator,
        rebalance_with_review,
    )
    from epochlake.jobs.airflow_provider.sensors import (
        EpochlakeBatchSensor,
        EpochlakeEpochSensor,
        EpochlakeFreshnessSensor,
        EpochlakeRequestSensor,
        EpochlakeSettledSensor,
    )
    from epochlake.jobs.airflow_provider.submitting import (
        EpochlakeCommandOperator,
        EpochlakeSubmitOperator,
        EpochlakeVerifyOperator,
    )

__all__ = [
    "EpochlakeBalanceOperator",
    "EpochlakeBatchSensor",
    "EpochlakeClusterOperator",
    "EpochlakeCommandOperator",
    "EpochlakeCompactOperator",
    "EpochlakeCoordinatorOperator",
    "EpochlakeEpochSensor",
    "EpochlakeFreshnessSensor",
    "EpochlakeHook",
    "EpochlakePipelineOperator",
    "EpochlakePlanBalanceOperator",
    "EpochlakeRepairOperator",
    "EpochlakeRequestSensor",
    "EpochlakeSettledSensor",
    "EpochlakeSubmitOperator",
    "EpochlakeVerifyOperator",
    "rebalance_with_review",
    "table_asset",
]

_HOMES = {
    "EpochlakeBalanceOperator": "reviewing",
    "EpochlakeBatchSensor": "sensors",
    "EpochlakeClusterOperator": "operators",
    "EpochlakeCommandOperator": "submitting",
    "EpochlakeCompactOperator": "operators",
    "EpochlakeCoordinatorOperator": "operators",
    "EpochlakeEpochSensor": "sensors",
    "EpochlakeFreshnessSensor": "sensors",
    "EpochlakeHook": "hook",
    "EpochlakePipelineOperator": "operators",
    "EpochlakePlanBalanceOperator": "reviewing",
    "EpochlakeRepairOperator": "operators",
    "EpochlakeRequestSensor": "sensors",
    "EpochlakeSettledSensor": "sensors",
    "EpochlakeSubmitOperator": "submitting",
    "EpochlakeVerifyOperator": "submitting",
    "rebalance_with_review": "reviewing",
    "table_asset": "assets",
}

# Hidden from type checkers: they would accept every name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
        value = getattr(importlib.import_module(f"epochlake.jobs.airflow_provider.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
