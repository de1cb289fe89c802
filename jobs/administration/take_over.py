"""The upgrade of a described cluster, from where it is to its end; killed anywhere, it is called again and goes on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from epochlake.jobs.administration.adopting import adopt
from epochlake.jobs.administration.nodes import add_node
from epochlake.jobs.administration.schema import create_keyspace, create_table
from epochlake.jobs.administration.upgrading import advance_upgrade, describe_cluster
from epochlake.jobs.coordinator.coordinator import Coordinator
from epochlake.jobs.exchange.delta_sources import is_delta
from epochlake.jobs.exchange.loading import load_files
from epochlake.jobs.exchange.proposing import propose
from epochlake.metastore.metadata.components.upgrade import Described, DescribedTable, UpgradeState
from epochlake.placement.decoding import decodable
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.what_if.nodetool import from_ring

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster

LARGEST_DESCRIPTION = 16 << 20

Progress = Callable[[str], None]
"""Called with what is built next, in words."""


def read_description(text: str) -> Described:
    """The description of a cluster from JSON: nodes, keyspaces and tables as `Described` has them.

    Raises InvalidRequest.
    """
    if len(text) > LARGEST_DESCRIPTION:
        raise InvalidRequest(f"a description has at most {LARGEST_DESCRIPTION:,} characters")
    try:
        return msgspec.json.decode(text, type=decodable(Described))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidRequest(
            f"this describes no cluster: {error}",
            hint='Write {"nodes": [{"name": …, "datacenter": …, "rack": …, "volumes": {"d1": URI}}], "keyspaces": […]}',
        ) from error


def described_by_nodetool(ring: str, volume: str, rest: Described) -> Described:
    """A description whose nodes are those that `nodetool ring` prints, n1, n2, …; keyspaces and tables are of `rest`.

    `volume` is where the volume of each node is, with `{address}` or `{node}` in it. Raises InvalidRequest.
    """
    if "{address}" not in volume and "{node}" not in volume:
        raise InvalidRequest("the place of volumes is the same for all nodes", hint="Write {address} or {node} in it")
    document: Mapping[str, Any] = from_ring(ring, {})
    nodes = [
        {
            "name": f"n{node['id']}",
            "datacenter": node["dc"],
            "rack": node["rack"],
            "tokens": node["tokens"],
            "volumes": {"d1": volume.replace("{address}", node["address"]).replace("{node}", f"n{node['id']}")},
        }
        for node in document["nodes"]
    ]
    found = msgspec.convert({"nodes": nodes}, decodable(Described))
    return msgspec.structs.replace(rest, nodes=found.nodes)


def describe(cluster: Cluster, described: Described) -> None:
    """Say what is to be taken over; again with the same description it changes nothing. Raises InvalidRequest where
    another one is there, and as `describe_cluster`.
    """
    there = cluster.catch_up().upgrade.described
    if there == described:
        return
    if there is not None:
        raise InvalidRequest(
            "this cluster takes over, or has taken over, what was described otherwise",
            hint="See `epochlake upgrade status`",
        )
    digest = hashlib.sha256(msgspec.json.encode(described, order="sorted")).hexdigest()[:32]
    describe_cluster(cluster, described, request_id=f"describe-{digest}")


def take_over(cluster: Cluster, tell: Progress = lambda what: None) -> UpgradeState:
    """Build what was described, and end the upgrade. Each step looks what is there, so a call goes on where one ended.

    Nodes join with their tokens, keyspaces are created, tables are created and loaded from their directories and their
    rows compared. Raises InvalidRequest where nothing was described, and what the steps raise.
    """
    upgrade = cluster.catch_up().upgrade
    described = upgrade.described
    if described is None:
        raise InvalidRequest("nothing is described that could be taken over", hint="Run `epochlake upgrade describe`")
    if not upgrade.going_on:
        return upgrade.state
    mine = f"upgrade-{upgrade.described_epoch}"
    if upgrade.state is UpgradeState.NOT_UPGRADED:
        advance_upgrade(cluster, UpgradeState.BUILD_COORDINATOR_STATE, request_id=f"{mine}-build")
    for node in described.nodes:
        if node.name not in cluster.catch_up().directory.by_name:
            tell(f"node {node.name}")
            volumes = [(name, uri, None) for name, uri in node.volumes.items()]
            place = (node.name, node.datacenter, node.rack)
            add_node(cluster, *place, volumes, tokens=node.tokens, request_id=f"{mine}-node-{node.name}")
    tell("the nodes join")
    Coordinator(cluster).run(until_idle=True).require_idle()
    for keyspace in described.keyspaces:
        if keyspace.name not in cluster.catch_up().schema.keyspaces:
            tell(f"keyspace {keyspace.name}")
            create_keyspace(
                cluster,
                keyspace.name,
                keyspace.replication,
                placement=keyspace.placement,
                strategy=keyspace.strategy,
                request_id=f"{mine}-keyspace-{keyspace.name}",
            )
    for table in described.tables:
        tell(f"table {table.name}")
        _take_over_table(cluster, table, mine)
    advance_upgrade(cluster, UpgradeState.DONE, request_id=f"{mine}-done")
    return cluster.catch_up().upgrade.state


def _take_over_table(cluster: Cluster, table: DescribedTable, mine: str) -> None:
    """A table with its rows, from Delta or from Parquet. Parts that have landed are not written again."""
    if is_delta(table.origin):
        adopt(cluster, table.origin, table.name, table.primary_key)
        return
    if table.name not in cluster.catch_up().schema.by_name:
        proposal = propose(table.origin, table.primary_key)
        create_table(
            cluster, table.name, proposal.columns, proposal.primary_key, request_id=f"{mine}-table-{table.name}"
        )
    load_files(cluster, table.name, [table.origin], batch=f"{mine}-{table.name}")
