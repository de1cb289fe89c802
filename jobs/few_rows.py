"""The rows of a DataFrame that has few, taken once: this process stages them sooner than a Spark job does.

How many rows a DataFrame has is known only when it was executed, but often they are surely few: Catalyst bounds what
comes of local rows, ranges and limits. Of a list of Python it knows nothing; there the size of what Python has sent
tells. Rows that are taken here are all of the rows, and nobody executes the DataFrame for others.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

MOST_ROWS = 1 << 12
MOST_BYTES = 1 << 20
"""Of what Python has sent, as it has sent it."""

_ONE_TO_ONE = {"Project", "Filter", "SubqueryAlias", "Drop", "ToDF", "WithColumns", "WithColumnsRenamed", "Sort"}
"""Operators by the names that they have in the plans of Catalyst or of Connect."""

_RDDS = {"MapPartitionsRDD", "PythonRDD"}
"""What `createDataFrame` puts around a list."""

_TOO_LARGE = "spark.driver.maxResultSize"
"""Spark's error for more bytes than a driver takes names this setting."""


def few_rows(df: DataFrame) -> pa.Table | None:
    """All rows of `df` where they are few; None where that is not known, or there are more.

    Raises what executing it raises.
    """
    try:
        sure, likely = _classic(df) if hasattr(df, "_jdf") else _connect(df)
    except Exception:  # another Spark calls it something else, and whatever is wrong with the rows a job will say
        return None
    if not sure and not likely:
        return None
    try:
        # A function of the user may have made many rows of few. Then none of these is taken.
        taken = (df if sure else df.limit(MOST_ROWS + 1)).toArrow()
    except Exception as error:
        if _TOO_LARGE in str(error):
            return None
        raise
    return taken if taken.num_rows <= MOST_ROWS else None


def _classic(df: Any) -> tuple[bool, bool]:
    """Whether the rows are surely few, and whether they come of a short list of Python."""
    plan = df._jdf.queryExecution().optimizedPlan()
    most = plan.maxRows()
    if most.isDefined():
        return most.get() <= MOST_ROWS, False
    while plan.getClass().getSimpleName() in _ONE_TO_ONE:
        plan = plan.children().head()
    if plan.getClass().getSimpleName() != "LogicalRDD":
        return False, False
    rdd = plan.rdd()
    while rdd.getClass().getSimpleName() in _RDDS and rdd.dependencies().size() == 1:
        rdd = rdd.dependencies().head().rdd()
    if rdd.getClass().getSimpleName() != "ParallelCollectionRDD":
        return False, False
    estimator = df.sparkSession._jvm.org.apache.spark.util.SizeEstimator
    return False, estimator.estimate(rdd.partitions()) <= MOST_BYTES


def _connect(df: Any) -> tuple[bool, bool]:
    """`_classic` of a plan that has not been sent; how many rows come of it only the server knows."""
    plan = df._plan
    while type(plan).__name__ in _ONE_TO_ONE and plan._child is not None:
        plan = plan._child
    match type(plan).__name__:
        case "LocalRelation":
            return False, plan._table is None or plan._table.nbytes <= MOST_BYTES
        case "Range":
            return False, len(range(plan._start, plan._end, plan._step)) <= MOST_ROWS
        case _:
            return False, False
