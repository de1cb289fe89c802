"""DDL that is told to Spark means the same in every session, also where `timestamp` is one without a zone."""

from __future__ import annotations

import pytest
from epochlake.jobs.replicas.schema import spark_ddl
from epochlake.metastore.metadata.model import Column
from epochlake.placement.column_ddl import ddl_of, delta_type, spark_type

TYPES = {
    "bigint": "bigint",
    "timestamp": "timestamp_ltz",
    "TIMESTAMP_LTZ": "timestamp_ltz",
    "timestamp_ntz": "timestamp_ntz",
    "struct<timestamp:timestamp,`at.x`:timestamp_ntz>": "struct<timestamp:timestamp_ltz,`at.x`:timestamp_ntz>",
    "array<map<timestamp,struct<a:array<timestamp>>>>": "array<map<timestamp_ltz,struct<a:array<timestamp_ltz>>>>",
}


@pytest.mark.parametrize("declared", TYPES)
def test_a_moment_has_its_zone_wherever_it_is_in_a_type(declared: str) -> None:
    assert spark_type(declared) == TYPES[declared]
    assert delta_type(spark_type(declared)) == delta_type(declared)
    assert ddl_of(delta_type(spark_type(declared))) == ddl_of(delta_type(declared))


def test_columns_are_told_to_spark_with_such_types() -> None:
    columns = [Column("timestamp", "timestamp"), Column("a.b", "array<timestamp>")]
    assert spark_ddl(columns) == "`timestamp` timestamp_ltz, `a.b` array<timestamp_ltz>"
