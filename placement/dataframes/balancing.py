"""The balancer for Spark: DataFrames of the cluster in, the plan as a DataFrame out.

Planning needs all of a datacenter at once but is quick, so it happens in one process per part of the
cluster that shares nothing with the others: the driver by default, one task per datacenter (and per rack, where no
replica can leave its rack) for clusters of several such parts.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from epochlake.placement.balancing.model import BalancingPolicy
from epochlake.placement.balancing.tables import Catalog, plan_schema, plan_table
from epochlake.placement.dataframes.frames import frame_of, schema_of
from epochlake.placement.errors import InvalidRequest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type

NODE_COLUMNS = ("node_id", "datacenter", "rack")
VOLUME_COLUMNS = ("volume_id", "node_id", "capacity")
REPLICA_COLUMNS = ("table_id", "tablet", "volume_id", "bytes")
FLIGHT_COLUMNS = ("table_id", "tablet", "leaving", "pending")
EXCLUDED_COLUMNS = ("table_id", "node_id")


def balance(
    nodes: DataFrame,
    volumes: DataFrame,
    tablets: DataFrame,
    sizes: DataFrame | None = None,
    in_flight: DataFrame | None = None,
    pending: DataFrame | None = None,
    policy: BalancingPolicy | None = None,
    excluded: DataFrame | None = None,
) -> DataFrame:
    """The plan of a cluster: what moves in which wave and why, and what does not move and why.

    - `nodes`: node_id, datacenter, rack; optional role (active, draining, excluded, maintenance, no_statistics; default
      active) and weight (a factor on the capacity, default 1).
    - `volumes`: volume_id, node_id, capacity.
    - `tablets`: table_id, tablet and either volume_id (a row per replica) or replicas (an array of volume ids); `bytes`
      too, unless `sizes` gives them.
    - `sizes`: table_id, tablet, volume_id, bytes. A replica without a row there counts as empty.
    - `in_flight`: table_id, tablet, leaving, pending (volume ids). `pending`: table_id, of tables with a pending
      request. `excluded`: table_id, node_id, of nodes that may not hold replicas of a table (placement rules).

    Out: wave, table_id, tablet, kind (migration, intranode_migration, stay), source_volume, target_volume, bytes,
    reason. The plan is computed on the driver.
    """
    replicas = _replicas(tablets, sizes)
    catalog = _catalog(nodes, volumes, in_flight, pending, excluded)
    plan = plan_table(catalog, replicas.toArrow(), policy or BalancingPolicy())
    return frame_of(tablets.sparkSession, plan)


def balance_in_parallel(
    nodes: DataFrame,
    volumes: DataFrame,
    tablets: DataFrame,
    sizes: DataFrame | None = None,
    in_flight: DataFrame | None = None,
    pending: DataFrame | None = None,
    policy: BalancingPolicy | None = None,
    excluded: DataFrame | None = None,
) -> DataFrame:
    """As `balance`, with one task for each part of the cluster that can be planned by itself.

    A part is a datacenter; where every tablet has exactly one replica in every rack of its datacenter, each rack is
    one.
    """
    replicas = _replicas(tablets, sizes)
    catalog = _catalog(nodes, volumes, in_flight, pending, excluded)
    part_of_volume = _parts(catalog, replicas)
    spark = tablets.sparkSession
    lookup = frame_of(spark, part_of_volume)
    table_id = to_arrow_type(replicas.schema["table_id"].dataType)
    schema = schema_of(plan_schema(table_id))
    grouped = replicas.join(F.broadcast(lookup), "volume_id").groupBy("part")
    return grouped.applyInArrow(_plan_part(catalog, part_of_volume, policy or BalancingPolicy()), schema)


def _plan_part(catalog: Catalog, part_of_volume: pa.Table, policy: BalancingPolicy) -> Callable[[pa.Table], pa.Table]:
    def plan(replicas: pa.Table) -> pa.Table:
        part = replicas["part"][0]
        ids = part_of_volume.filter(pc.equal(part_of_volume["part"], part))["volume_id"]
        volumes = catalog.volumes.filter(pc.is_in(catalog.volumes["volume_id"], ids.combine_chunks()))
        nodes = catalog.nodes.filter(pc.is_in(catalog.nodes["node_id"], volumes["node_id"].combine_chunks()))
        flight = catalog.in_flight
        if flight is not None:
            mine = pc.or_kleene(
                pc.is_in(flight["leaving"], ids.combine_chunks()), pc.is_in(flight["pending"], ids.combine_chunks())
            )
            flight = flight.filter(mine)
        replicas = replicas.drop_columns(["part"])
        if "\n" in part.as_py():
            _require_once(replicas, part.as_py())
        excluded = catalog.excluded
        if excluded is not None:
            excluded = excluded.filter(pc.is_in(excluded["node_id"], nodes["node_id"].combine_chunks()))
        return plan_table(Catalog(nodes, volumes, flight, catalog.pending, excluded), replicas, policy)

    return plan


def _require_once(replicas: pa.Table, part: str) -> None:
    tablets = replicas.group_by(["table_id", "tablet"]).aggregate([]).num_rows
    if tablets != replicas.num_rows:
        raise InvalidRequest(
            f"rack {part!r} has {replicas.num_rows} replicas of {tablets} tablets, so it cannot be planned by itself",
            hint="Plan this cluster with `balance`, which looks at all racks together",
        )


def _parts(catalog: Catalog, replicas: DataFrame) -> pa.Table:
    """The part of the cluster that each volume is in: (volume_id, part)."""
    nodes = catalog.nodes.select(["node_id", "datacenter", "rack"])
    located = catalog.volumes.select(["volume_id", "node_id"]).join(nodes, "node_id").combine_chunks()
    frame = frame_of(replicas.sparkSession, located.select(["volume_id", "datacenter", "rack"]))
    counted = (
        replicas.join(F.broadcast(frame), "volume_id")
        .groupBy("datacenter", "rack", "table_id")
        .agg(F.count("*").alias("replicas"), F.min("tablet").alias("first"), F.max("tablet").alias("last"))
        .toArrow()
        .to_pylist()
    )
    closed = _closed({(row["datacenter"], row["rack"]) for row in nodes.to_pylist()}, counted)
    parts = [
        f"{row['datacenter']}\n{row['rack']}" if row["datacenter"] in closed else row["datacenter"]
        for row in located.to_pylist()
    ]
    return pa.table({"volume_id": located["volume_id"], "part": pa.array(parts, pa.string())})


def _closed(racks: set[tuple[str, str]], counted: list[dict]) -> set[str]:
    """The datacenters each of whose racks has as many replicas of every table as the table has tablets.

    Tablets of a table are numbered without gaps. That no rack has a tablet twice is checked when its part is planned.
    """
    ends: dict[tuple[str, object], tuple[int, int]] = {}
    replicas: dict[tuple[str, str, object], int] = {}
    for row in counted:
        key = (row["datacenter"], row["table_id"])
        first, last = ends.get(key, (row["first"], row["last"]))
        ends[key] = (min(first, row["first"]), max(last, row["last"]))
        replicas[(row["datacenter"], row["rack"], row["table_id"])] = row["replicas"]
    open_ = {
        datacenter
        for (datacenter, table), (first, last) in ends.items()
        for home, rack in racks
        if home == datacenter and replicas.get((datacenter, rack, table), 0) != last - first + 1
    }
    return {datacenter for datacenter, _ in racks} - open_


def _replicas(tablets: DataFrame, sizes: DataFrame | None) -> DataFrame:
    """One row per replica, `REPLICA_COLUMNS`."""
    if "volume_id" not in tablets.columns:
        _require(tablets, ("table_id", "tablet", "replicas"), "tablets")
        keep = [name for name in tablets.columns if name != "replicas"]
        tablets = tablets.select(*keep, F.explode("replicas").alias("volume_id"))
    if sizes is not None:
        _require(sizes, REPLICA_COLUMNS, "sizes")
        _require(tablets, REPLICA_COLUMNS[:3], "tablets")
        joined = tablets.select(*REPLICA_COLUMNS[:3]).join(
            sizes.select(*REPLICA_COLUMNS), list(REPLICA_COLUMNS[:3]), "left"
        )
        return joined.select(*REPLICA_COLUMNS[:3], F.coalesce("bytes", F.lit(0)).cast("bigint").alias("bytes"))
    _require(tablets, REPLICA_COLUMNS, "tablets")
    return tablets.select(*REPLICA_COLUMNS[:3], F.col("bytes").cast("bigint"))


def _catalog(
    nodes: DataFrame,
    volumes: DataFrame,
    in_flight: DataFrame | None,
    pending: DataFrame | None,
    excluded: DataFrame | None,
) -> Catalog:
    _require(nodes, NODE_COLUMNS, "nodes")
    _require(volumes, VOLUME_COLUMNS, "volumes")
    role = F.col("role") if "role" in nodes.columns else F.lit("active")
    weight = F.col("weight").cast("double") if "weight" in nodes.columns else F.lit(1.0)
    if in_flight is not None:
        _require(in_flight, FLIGHT_COLUMNS, "in_flight")
    if excluded is not None:
        _require(excluded, EXCLUDED_COLUMNS, "excluded")
    return Catalog(
        nodes.select(
            "node_id",
            F.col("datacenter").cast("string"),
            F.col("rack").cast("string"),
            role.alias("role"),
            weight.alias("weight"),
        ).toArrow(),
        volumes.select("volume_id", "node_id", F.col("capacity").cast("double")).toArrow(),
        None if in_flight is None else in_flight.select(*FLIGHT_COLUMNS).toArrow(),
        None if pending is None else pending.select("table_id").toArrow(),
        None if excluded is None else excluded.select(*EXCLUDED_COLUMNS).toArrow(),
    )


def _require(frame: DataFrame, columns: tuple[str, ...], name: str) -> None:
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise InvalidRequest(
            f"the balancer needs the columns {', '.join(columns)} of {name}; {', '.join(missing)} missing, "
            f"there are {', '.join(frame.columns)}"
        )
