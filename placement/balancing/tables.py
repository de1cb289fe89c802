"""The balancer on Arrow tables: ids and names to rows of columns, and the plan back to ids and words.

What Spark hands over is turned into a `ClusterLoad` without an object per row, and a plan is a table
again, for what moves and for what does not.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from epochlake.placement.balancing.model import BalancingPolicy, ClusterLoad, Hold, Ints, Plan, Role
from epochlake.placement.balancing.planner import plan_moves
from epochlake.placement.balancing.reasons import move_reasons, stay_reasons
from epochlake.placement.errors import InvalidRequest

ROLES = {role.name.lower(): role for role in Role}
STAY = "stay"


class Catalog(msgspec.Struct, frozen=True, eq=False):
    """What is small: `nodes` (node_id, datacenter, rack, role, weight), `volumes` (volume_id, node_id, capacity),
    `in_flight` (table_id, tablet, leaving, pending: volumes, null where nothing leaves or comes), `pending` (table_id),
    `excluded` (table_id, node_id: nodes that may not hold replicas of a table).
    """

    nodes: pa.Table
    volumes: pa.Table
    in_flight: pa.Table | None = None
    pending: pa.Table | None = None
    excluded: pa.Table | None = None


def plan_schema(table_id: pa.DataType) -> pa.Schema:
    """The columns of a plan. Where nothing moves, `kind` is `stay`, and `wave` and `target_volume` are null."""
    return pa.schema(
        [
            ("wave", pa.int32()),
            ("table_id", table_id),
            ("tablet", pa.int32()),
            ("kind", pa.string()),
            ("source_volume", pa.int32()),
            ("target_volume", pa.int32()),
            ("bytes", pa.int64()),
            ("reason", pa.string()),
        ]
    )


def plan_table(catalog: Catalog, replicas: pa.Table, policy: BalancingPolicy) -> pa.Table:
    """The plan, see `plan_schema`, for `replicas` (table_id, tablet, volume_id, bytes), one row each."""
    names = pc.unique(replicas["table_id"]).sort()
    replicas = _with_arrivals(catalog, replicas)
    table = pc.index_in(replicas["table_id"], names).to_numpy().astype(np.int64)
    tablet = replicas["tablet"].to_numpy().astype(np.int64)
    span = int(tablet.max(initial=0)) + 1
    key = table * span + tablet
    order: Ints | slice = slice(None)
    if (key[1:] < key[:-1]).any():
        order = np.argsort(key, kind="stable")
        key = key[order]
    change = np.ones(len(key), bool)
    change[1:] = key[1:] != key[:-1]
    keys = key[change]
    volume_ids = catalog.volumes["volume_id"].to_numpy()
    node_ids = catalog.nodes["node_id"].to_numpy()
    load = ClusterLoad.of(
        node_datacenter=np.asarray(catalog.nodes["datacenter"].to_pylist(), np.str_),
        node_rack=np.asarray(catalog.nodes["rack"].to_pylist(), np.str_),
        node_role=[_role(name) for name in catalog.nodes["role"].to_pylist()],
        node_weight=catalog.nodes["weight"].to_numpy(),
        volume_node=_rows_of(node_ids, catalog.volumes["node_id"].to_numpy(), "node"),
        volume_capacity=catalog.volumes["capacity"].to_numpy(),
        tablet_table=keys // span,
        tablet_hold=_holds(catalog, names, keys, span),
        replica_tablet=(np.cumsum(change) - 1).astype(np.int32),
        replica_volume=_rows_of(volume_ids, replicas["volume_id"].to_numpy()[order], "volume"),
        replica_size=replicas["bytes"].to_numpy()[order],
        **_busy(catalog, volume_ids, policy),
        table_nodes=_rules(catalog, names, node_ids),
    )
    plan = plan_moves(load, policy)
    return _as_table(load, plan, names, keys, span, volume_ids, node_ids.tolist(), replicas["table_id"].type)


def _role(name: str) -> Role:
    if name not in ROLES:
        raise InvalidRequest(f"role {name!r} of a node is unknown; the roles are {', '.join(ROLES)}")
    return ROLES[name]


def _rows_of(known: np.ndarray, wanted: np.ndarray, what: str) -> Ints:
    """The row in `known` of each id in `wanted`."""
    order = np.argsort(known, kind="stable")
    ascending = known[order]
    if len(known) and int(ascending[0]) >= 0 and int(ascending[-1]) < 16 * len(known) + 1024:
        lookup = np.full(int(ascending[-1]) + 1, -1, np.int32)
        lookup[ascending] = order
        inside = not len(wanted) or (int(wanted.min()) >= 0 and int(wanted.max()) < len(lookup))
        rows = lookup[wanted] if inside else np.full(len(wanted), -1)
    else:
        at = np.minimum(np.searchsorted(ascending, wanted), max(len(known) - 1, 0))
        rows = np.where(ascending[at] == wanted, order[at], -1) if len(known) else np.full(len(wanted), -1)
    if (rows < 0).any():
        missing = np.unique(wanted[rows < 0] if len(rows) == len(wanted) else wanted)[:5].tolist()
        raise InvalidRequest(f"there are replicas or volumes of a {what} that is not listed, among them {missing}")
    return rows


def _with_arrivals(catalog: Catalog, replicas: pa.Table) -> pa.Table:
    """`replicas` as they will be when what is in flight has arrived."""
    if catalog.in_flight is None or not catalog.in_flight.num_rows:
        return replicas
    key = ["table_id", "tablet", "volume_id"]
    flight = catalog.in_flight
    leaving = (
        flight.filter(pc.is_valid(flight["leaving"])).select(["table_id", "tablet", "leaving"]).rename_columns(key)
    )
    staying = replicas.join(leaving.cast(_fields(replicas, key)), key, join_type="left anti")
    sizes = replicas.group_by(["table_id", "tablet"]).aggregate([("bytes", "max")])
    coming = flight.filter(pc.is_valid(flight["pending"])).select(["table_id", "tablet", "pending"]).rename_columns(key)
    coming = coming.cast(_fields(replicas, key)).join(sizes, ["table_id", "tablet"], join_type="left outer")
    coming = coming.rename_columns([*key, "bytes"])
    wanted = [*key, "bytes"]
    kinds = _fields(replicas, wanted)
    return pa.concat_tables([staying.select(wanted).cast(kinds), coming.select(wanted).cast(kinds)])


def _fields(table: pa.Table, names: list[str]) -> pa.Schema:
    return pa.schema([table.schema.field(name).with_nullable(True) for name in names])


def _holds(catalog: Catalog, names: pa.Array, keys: Ints, span: int) -> np.ndarray:
    holds = np.zeros(len(keys), np.int8)
    if catalog.pending is not None and catalog.pending.num_rows:
        tables = pc.index_in(catalog.pending["table_id"].cast(names.type), names).drop_null().to_numpy()
        holds[np.isin(keys // span, tables)] = Hold.PENDING_REQUEST
    if catalog.in_flight is not None and catalog.in_flight.num_rows:
        table = pc.index_in(catalog.in_flight["table_id"].cast(names.type), names).fill_null(-1).to_numpy()
        moving = table.astype(np.int64) * span + catalog.in_flight["tablet"].to_numpy()
        holds[np.isin(keys, moving[table >= 0])] = Hold.IN_TRANSITION
    return holds


def _rules(catalog: Catalog, names: pa.Array, node_ids: np.ndarray) -> np.ndarray | None:
    """The nodes that each table may use, (tables, N); None when there are no rules."""
    if catalog.excluded is None or not catalog.excluded.num_rows:
        return None
    table = pc.index_in(catalog.excluded["table_id"].cast(names.type), names).fill_null(-1).to_numpy()
    node = _rows_of(node_ids, catalog.excluded["node_id"].to_numpy(), "node")
    allowed = np.ones((len(names), len(node_ids)), np.bool_)
    allowed[table[table >= 0], node[table >= 0]] = False
    return allowed


def _busy(catalog: Catalog, volume_ids: np.ndarray, policy: BalancingPolicy) -> dict[str, Ints]:
    """Streams that are running, out of and into each volume; one for each way where tablets may share one."""
    if catalog.in_flight is None:
        return {}
    busy = {}
    ways = catalog.in_flight
    if policy.shared_stream_bytes:
        ways = ways.group_by(["leaving", "pending"]).aggregate([])
    for name, column in (("busy_out", "leaving"), ("busy_in", "pending")):
        volumes = ways[column].drop_null().to_numpy()
        busy[name] = np.bincount(_rows_of(volume_ids, volumes, "volume"), minlength=len(volume_ids))
    return busy


def _as_table(
    load: ClusterLoad,
    plan: Plan,
    names: pa.Array,
    keys: Ints,
    span: int,
    volume_ids: np.ndarray,
    node_names: list[object],
    table_id: pa.DataType,
) -> pa.Table:
    schema = plan_schema(table_id)
    same_node = load.volume_node[plan.source] == load.volume_node[plan.target]
    kinds = pa.DictionaryArray.from_arrays(pa.array(same_node.astype(np.int8)), ["migration", "intranode_migration"])
    texts, which = move_reasons(load, plan, node_names)
    key = keys[load.replica_tablet[plan.replica]]
    moves = [
        pa.array(plan.wave.astype(np.int32)),
        names.take(pa.array(key // span)).cast(table_id),
        pa.array((key % span).astype(np.int32)),
        kinds.cast(pa.string()),
        pa.array(volume_ids[plan.source].astype(np.int32)),
        pa.array(volume_ids[plan.target].astype(np.int32)),
        pa.array(load.replica_size[plan.replica].astype(np.int64)),
        _texts(texts, which),
    ]
    about_node = plan.stay_replica < 0
    replica = np.where(about_node, 0, plan.stay_replica)
    stay_key = keys[load.replica_tablet[replica]] if len(keys) else np.zeros(len(replica), np.int64)
    volume = load.replica_volume[replica] if len(keys) else np.zeros(len(replica), np.int64)
    size = load.replica_size[replica] if len(keys) else np.zeros(len(replica))
    texts, which = stay_reasons(load, plan, node_names)
    count = len(replica)
    stays = [
        pa.nulls(count, pa.int32()),
        names.take(pa.array(stay_key // span, mask=about_node)).cast(table_id),
        pa.array((stay_key % span).astype(np.int32), mask=about_node),
        pa.array([STAY] * count, pa.string()),
        pa.array(volume_ids[volume].astype(np.int32), mask=about_node),
        pa.nulls(count, pa.int32()),
        pa.array(size.astype(np.int64), mask=about_node),
        _texts(texts, which),
    ]
    return pa.concat_tables([pa.table(moves, schema=schema), pa.table(stays, schema=schema)])


def _texts(texts: list[str], which: Ints) -> pa.Array:
    if not texts:
        return pa.array([], pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(which.astype(np.int32)), pa.array(texts, pa.string())).cast(
        pa.string()
    )
