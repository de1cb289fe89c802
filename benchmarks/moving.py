"""Many small tablets on the move: a node joins, and a third of all replicas go to it."""

from __future__ import annotations

import time

import msgspec
import pyarrow as pa
from epochlake.jobs.administration.nodes import add_node
from epochlake.jobs.administration.schema import create_table
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.coordinator.coordinator import Coordinator
from epochlake.metastore.metadata.model import Column

from benchmarks.clusters import opened
from benchmarks.harness import Result, ratio_at_most

TABLETS = 256
ROWS = 100_000
COLUMNS = (Column("id", "bigint", False), Column("note", "string"))


def small_tablets() -> list[Result]:
    """256 tablets of some 400 rows, RF 3: streams that tablets share, beside a stream for each."""
    seconds, epochs = _joined(None)
    alone, epochs_alone = _joined(0)
    name = f"a node joins three with {TABLETS} tablets of {ROWS // TABLETS} rows, RF 3"
    return [
        Result(name, seconds, "s", alone, "a stream for each tablet", ratio_at_most(0.5)),
        Result(f"{name}: epochs", epochs, "", epochs_alone, "a stream for each tablet"),
    ]


def _joined(shared: int | None) -> tuple[float, int]:
    """Seconds and epochs from the order to join to rest; `shared`: bytes of a stream, None: as the defaults say."""
    with opened() as (cluster, directory):
        create_table(cluster, "air.here", COLUMNS, ("id",), tablets=TABLETS)
        cluster.write("air.here", pa.table({"id": range(ROWS), "note": [f"row {n}" for n in range(ROWS)]}))
        coordinator = Coordinator(_with(cluster, shared))
        coordinator.run(until_idle=True)
        add_node(cluster, "n4", "dc1", "r1", [("v1", str(directory / "node-4"), 10**12)])
        before, started = cluster.catch_up().epoch, time.perf_counter()
        coordinator.run(until_idle=True)
        return time.perf_counter() - started, cluster.catch_up().epoch - before


def _with(cluster: Cluster, shared: int | None) -> Cluster:
    if shared is None:
        return cluster
    settings = msgspec.structs.replace(cluster.configuration.coordinator, shared_stream_bytes=shared)
    cluster.configuration = msgspec.structs.replace(cluster.configuration, coordinator=settings)
    return cluster


BENCHMARKS = {"small_tablets": small_tablets}
