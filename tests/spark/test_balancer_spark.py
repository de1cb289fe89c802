"""The balancer through Spark: DataFrames in, the same plan out as from arrays, with words for every row."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from epochlake.placement.dataframes.balancing import balance, balance_in_parallel
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.tablets.allocation import VolumeTable, allocate_tablets
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.unit.placement.balancing_clusters import GIB, Outline, allocated, load_of
from tests.unit.placement.balancing_clusters import after as carried_out

pytestmark = pytest.mark.connect

PLAN_COLUMNS = ["wave", "table_id", "tablet", "kind", "source_volume", "target_volume", "bytes", "reason"]
TABLES = ("air.flights", "air.planes")


class Frames:
    """A cluster as DataFrames: a node of two volumes in each of three racks, and one that joined the third."""

    def __init__(self, spark: SparkSession, roles: tuple[str, ...] = ("active",) * 4) -> None:
        racks = (0, 1, 2, 2)
        self.spark = spark
        self.replicas = allocated(racks[:3], 16, 3, 2, ())
        self.nodes = spark.createDataFrame(
            pa.table(
                {
                    "node_id": pa.array([10, 11, 12, 13], pa.int32()),
                    "datacenter": ["dc1"] * 4,
                    "rack": [f"r{rack}" for rack in racks],
                    "role": list(roles),
                }
            )
        )
        self.volumes = spark.createDataFrame(
            pa.table(
                {
                    "volume_id": pa.array(range(100, 108), pa.int32()),
                    "node_id": pa.array([10, 10, 11, 11, 12, 12, 13, 13], pa.int32()),
                    "capacity": [1 << 40] * 8,
                }
            )
        )

    def tablets(self) -> DataFrame:
        """Two tables of 8 tablets, the volumes of each tablet as an array."""
        rows = [(TABLES[i // 8], i % 8, [int(v) + 100 for v in row]) for i, row in enumerate(self.replicas)]
        return self.spark.createDataFrame(rows, "table_id string, tablet int, replicas array<int>")

    def sizes(self) -> DataFrame:
        return (
            self.tablets()
            .select("table_id", "tablet", F.explode("replicas").alias("volume_id"))
            .withColumn("bytes", F.lit(GIB))
        )


def test_the_plan_has_moves_in_waves_each_with_its_reason(spark: SparkSession) -> None:
    frames = Frames(spark)
    plan = balance(frames.nodes, frames.volumes, frames.tablets(), frames.sizes())
    assert plan.columns == PLAN_COLUMNS
    rows = plan.collect()
    assert len(rows) == 8
    assert {row.kind for row in rows} == {"migration"}
    assert {row.source_volume for row in rows} == {104, 105}
    assert {row.target_volume for row in rows} == {106, 107}
    assert {row.bytes for row in rows} == {GIB}
    assert {row.wave for row in rows} == {1, 2}
    assert {row.table_id for row in rows} == set(TABLES)
    assert all("node 12 holds 200.0 % of its share" in row.reason and "node 13" in row.reason for row in rows)


def test_what_cannot_move_is_in_the_plan_with_the_reason(spark: SparkSession) -> None:
    frames = Frames(spark, ("draining", "active", "active", "maintenance"))
    rows = balance(frames.nodes, frames.volumes, frames.tablets(), frames.sizes()).collect()
    assert {row.kind for row in rows} == {"stay"}
    stuck = [row for row in rows if row.tablet is not None]
    assert len(stuck) == 16
    assert all(row.wave is None and row.target_volume is None and "draining node 10" in row.reason for row in stuck)
    assert [row.reason for row in rows if row.tablet is None] == [
        "node 13 is in maintenance: it keeps its replicas and takes none"
    ]


def test_tablets_in_flight_and_of_tables_with_pending_requests_stay(spark: SparkSession) -> None:
    frames = Frames(spark)
    leaving = next(int(v) + 100 for v in frames.replicas[0] if v >= 4)
    flight = spark.createDataFrame(
        [(TABLES[0], 0, leaving, 106)], "table_id string, tablet int, leaving int, pending int"
    )
    pending = spark.createDataFrame([(TABLES[1],)], "table_id string")
    rows = balance(frames.nodes, frames.volumes, frames.tablets(), frames.sizes(), flight, pending).collect()
    moves = [row for row in rows if row.kind == "migration"]
    assert len(moves) == 7  # eight are due, one is on its way
    assert {row.table_id for row in moves} == {TABLES[0]}
    assert 0 not in {row.tablet for row in moves}


def test_a_table_leaves_the_nodes_that_it_is_excluded_from_and_the_reason_says_so(spark: SparkSession) -> None:
    frames = Frames(spark)
    excluded = spark.createDataFrame([(TABLES[0], 12)], "table_id string, node_id int")
    rows = balance(frames.nodes, frames.volumes, frames.tablets(), frames.sizes(), excluded=excluded).collect()
    ruled = [row for row in rows if row.table_id == TABLES[0] and row.kind == "migration"]
    assert len(ruled) == 8
    assert {row.target_volume for row in ruled} == {106, 107}
    assert all(row.reason.startswith("placement rules: node 12 may not hold its table") for row in ruled)


@pytest.mark.parametrize("closed", [True, False])
def test_planning_in_parallel_makes_the_same_balance(spark: SparkSession, closed: bool) -> None:
    racks = (0, 1, 2) * 4 if closed else (0, 1, 2, 3) * 3
    load = load_of(Outline(racks, volumes=1), allocated(racks[:6], 120, 3, 1, ()))
    frame = spark.createDataFrame(
        pa.table(
            {
                "table_id": pa.array(np.zeros(360, np.int32)),
                "tablet": pa.array(load.replica_tablet.astype(np.int32)),
                "volume_id": pa.array(load.replica_volume.astype(np.int32)),
                "bytes": pa.array(load.replica_size.astype(np.int64)),
            }
        )
    )
    ids = pa.array(range(12), pa.int32())
    nodes = spark.createDataFrame(
        pa.table({"node_id": ids, "datacenter": ["dc1"] * 12, "rack": [str(rack) for rack in racks]})
    )
    volumes = spark.createDataFrame(pa.table({"volume_id": ids, "node_id": ids, "capacity": [1] * 12}))
    rows = balance_in_parallel(nodes, volumes, frame).collect()
    final = load.replica_volume.copy()
    at = {(int(t), int(v)): i for i, (t, v) in enumerate(zip(load.replica_tablet, load.replica_volume, strict=True))}
    for row in rows:
        final[at[(row.tablet, row.source_volume)]] = row.target_volume
    assert np.ptp(np.bincount(final, minlength=12)) <= 1


def test_a_balanced_cluster_has_an_empty_plan(spark: SparkSession) -> None:
    frames = Frames(spark)
    volumes = VolumeTable.of(
        range(100, 108), [10, 10, 11, 11, 12, 12, 13, 13], ["d"] * 8, ["0", "0", "1", "1", "2", "2", "2", "2"], [1] * 8
    )
    frames.replicas = allocate_tablets(16, {"d": 3}, volumes) - 100
    assert balance(frames.nodes, frames.volumes, frames.tablets(), frames.sizes()).count() == 0


def test_missing_columns_and_unknown_names_are_told(spark: SparkSession) -> None:
    frames = Frames(spark)
    with pytest.raises(InvalidRequest, match="capacity missing"):
        balance(frames.nodes, frames.volumes.drop("capacity"), frames.tablets(), frames.sizes())
    odd = Frames(spark, ("asleep", "active", "active", "active"))
    with pytest.raises(InvalidRequest, match="role 'asleep' of a node is unknown"):
        balance(odd.nodes, odd.volumes, odd.tablets(), odd.sizes())
    with pytest.raises(InvalidRequest, match=r"a volume that is not listed, among them \[104\]"):
        balance(frames.nodes, frames.volumes.where("volume_id <> 104"), frames.tablets(), frames.sizes())


def test_the_plan_from_frames_is_the_plan_from_arrays(spark: SparkSession) -> None:
    from epochlake.placement.balancing.planner import plan_moves

    frames = Frames(spark)
    load = load_of(Outline((0, 1, 2, 2)), frames.replicas, np.full(16, GIB), np.arange(16) // 8)
    plan = plan_moves(load)
    rows = balance(frames.nodes, frames.volumes, frames.tablets(), frames.sizes()).collect()
    moved = {
        (TABLES.index(row.table_id) * 8 + row.tablet, row.source_volume - 100, row.target_volume - 100) for row in rows
    }
    arrays = zip(load.replica_tablet[plan.replica].tolist(), plan.source.tolist(), plan.target.tolist(), strict=True)
    assert moved == set(arrays)
    assert len(plan_moves(carried_out(load, plan))) == 0
