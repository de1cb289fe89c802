"""How long a change of columns takes in a table of many tablets, and that the bytes in it do not matter.

Changes are of the metadata and of each replica table, of which there are as many as volumes: no file is touched.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from epochlake.jobs.administration.altering import alter_table
from epochlake.jobs.administration.schema import create_table
from epochlake.jobs.cluster import Cluster

from benchmarks.clusters import opened
from benchmarks.harness import Result, at_most, medians, ratio_at_most

ROUNDS = 5
TABLETS = 16_384
ROWS, WRITES = 500_000, 4
COLUMNS = ["id bigint not null, note string, address struct<street:string,trips:array<struct<km:int>>>"]
EMPTY, FULL = "air.empty", "air.full"


def fields() -> list[Result]:
    """Fields of structs come, get another name, and go: in a table without a row, and in one with two million."""
    with opened() as (cluster, _):
        for table in (EMPTY, FULL):
            create_table(cluster, table, COLUMNS, ["id"], tablets=TABLETS)
        for number in range(WRITES):
            cluster.write(FULL, _rows(number * ROWS))
        taken = medians(ROUNDS, {table: _changes(cluster, table) for table in (EMPTY, FULL)})
        # The rows are what they were, with whatever fields the struct has by now.
        assert cluster.count(FULL) == ROWS * WRITES
    each = {table: of_all / 3 for table, of_all in taken.items()}
    return [
        Result(f"a change of a field of a struct, {TABLETS:,} tablets", each[EMPTY], "s", target=at_most(5)),
        Result(
            f"the same with {ROWS * WRITES:,} rows", each[FULL], "s", each[EMPTY], "without a row", ratio_at_most(1.5)
        ),
    ]


def _changes(cluster: Cluster, table: str) -> Callable[[], None]:
    """Three changes: a field is added within an array, renamed, and dropped."""
    numbers = itertools.count()

    def change() -> None:
        name = f"address.trips.element.f{next(numbers)}"
        alter_table(cluster, table, add=[f"{name} string"])
        alter_table(cluster, table, rename={name: "other"})
        alter_table(cluster, table, drop=["address.trips.element.other"])

    return change


def _rows(start: int) -> pa.Table:
    keys = np.arange(start, start + ROWS)
    texts = pa.array([f"street {key % 997}" for key in keys])
    trips = pa.ListArray.from_arrays(
        pa.array(np.arange(ROWS + 1, dtype=np.int32)),
        pa.StructArray.from_arrays([pa.array((keys % 100).astype(np.int32))], ["km"]),
    )
    address = pa.StructArray.from_arrays([texts, trips], ["street", "trips"])
    return pa.table({"id": pa.array(keys), "note": texts, "address": address})


BENCHMARKS = {"fields": fields}
