"""The pictures as programs ask for them: of an open cluster, of its metadata, of a plan, of a what-if."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epochlake.jobs.cluster import Cluster
from epochlake.jobs.coordinator.loads import measure_loads
from epochlake.jobs.pictures.arcs import Arcs, arcs_of, arcs_of_answer
from epochlake.jobs.pictures.flows import draw_flows, flows_between, flows_of_plan, require_plan
from epochlake.jobs.pictures.heat import draw_heat, heat_of
from epochlake.jobs.pictures.moved import draw_moved
from epochlake.jobs.pictures.page import save as save_page
from epochlake.jobs.pictures.ring import draw_ring
from epochlake.jobs.pictures.timeline import draw_timeline, timeline_of
from epochlake.jobs.views.streamed_bytes import arrivals
from epochlake.metastore.committing.arguments import require_epoch_number
from epochlake.metastore.following.history import entries
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.placement.errors import InvalidRequest

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from epochlake.jobs.views.balancing import BalancePlan

Ringed = Cluster | ClusterMetadata | Mapping[str, Any]

MOST_EPOCHS = 10_000


def ring(of: Ringed, name: str, *, at: int | None = None) -> go.Figure:
    """The ring of a keyspace, or of a table with tablets: its ranges, and which nodes serve each.

    `of`: a cluster (`at` an epoch; None: the newest), metadata, or what a what-if answered (`at` is a step there; -1:
    before the first one, None: the last). Raises Rejected for a name that there is not, and InvalidRequest.
    """
    return draw_ring(_arcs(of, name, at))


def tablets(
    cluster: Cluster, table: str | None = None, *, plan: BalancePlan | None = None, at: int | None = None
) -> go.Figure:
    """What each volume holds of each tablet, as a heat map; with `plan` (`cluster.plan_balance()`) before and after it.

    `table` None: of all tables with tablets. The volumes are measured; at an epoch of the past replicas are counted.
    Raises Rejected for a table that there is not, and InvalidRequest for one on the ring and for an older plan.
    """
    if plan is not None:
        require_plan(plan)
    metadata = _cluster(cluster).at(at)
    now = metadata is cluster.metadata
    loads = measure_loads(cluster.storage, metadata) if now else None
    # Of empty tables there is nothing but replicas to see.
    measured = loads is not None and (bool(loads.unmeasured) or any(loads.sizes.values()))
    sizes, unmeasured = (loads.sizes, loads.unmeasured) if loads is not None and measured else (None, ())
    heat = heat_of(metadata, sizes, table, plan, unmeasured)
    return draw_heat(heat, f"Tablets of {table or metadata.identity.name} by volume, at epoch {metadata.epoch}")


def timeline(cluster: Cluster, first: int | None = None, last: int | None = None, *, by: str = "time") -> go.Figure:
    """The epochs from `first` to `last` as a timeline; by default the newest 10,000.

    `by`: what is across, `time` or `epoch`. Raises InvalidRequest for a range that is empty or not there.
    """
    if by not in ("time", "epoch"):
        raise InvalidRequest(f"a timeline cannot be by {by!r}", hint='Give by="time" or by="epoch"')
    metadata = _cluster(cluster).catch_up()
    if last is not None:
        require_epoch_number(last)
    newest = metadata.epoch if last is None else min(last, metadata.epoch)
    begin = max(1, newest - MOST_EPOCHS + 1) if first is None else first
    found = entries(cluster.log(), begin, last)
    drawn = timeline_of(found, metadata)
    return draw_timeline(drawn, f"The epochs of {metadata.identity.name}", by)


def moved_bytes(cluster: Cluster) -> go.Figure:
    """Bytes that tablets and operations have moved, over time and by the node they went to.

    Read from the commits of the replica tables, so as far back as those keep them: a day at least.
    """
    found = arrivals(_cluster(cluster))
    nodes = [node.name for node in cluster.metadata.directory.nodes.values()]
    return draw_moved(found, f"Bytes moved in {cluster.metadata.identity.name}", nodes)


def flows(plan: BalancePlan) -> go.Figure:
    """A plan of balancing (`cluster.plan_balance()`) as flows between nodes."""
    found = flows_of_plan(require_plan(plan))
    return draw_flows(found, f"What balancing would move at epoch {plan.epoch}")


def ring_flows(
    of: Ringed, name: str, before: int | None = -1, after: int | None = None, *, bytes: int | None = None
) -> go.Figure:
    """What went, or would go, from node to node between two epochs of a cluster or two steps of a what-if.

    `bytes`: of all rows of `name`, each counted once; without it shares of the tokens are drawn. Raises as `ring`.
    """
    if bytes is not None and (not isinstance(bytes, Integral) or bytes < 0):
        raise InvalidRequest(f"{bytes!r} is no number of bytes", hint="Give how much all rows are, each counted once")
    old, new = _arcs(of, name, before), _arcs(of, name, after)
    return draw_flows(flows_between(old, new, bytes), f"From {old.title} to {new.title}")


def save(path: str | Path, *figures: go.Figure, title: str = "Epochlake") -> Path:
    """Write pictures to a file of one page that needs no network; light or dark as the reader's browser is."""
    return save_page(path, figures, title)


def _cluster(given: Cluster) -> Cluster:
    if not isinstance(given, Cluster):
        raise InvalidRequest(f"{given!r} is no open cluster", hint="Hand over what epochlake.open_cluster() gives")
    return given


def _arcs(of: Ringed, name: str, at: int | None) -> Arcs:
    if not isinstance(name, str):
        raise InvalidRequest(f"{name!r} is no name of a keyspace or a table", hint="Name one, as in 'air.flights'")
    match of:
        case Cluster():
            return arcs_of(of.at(at), name)
        case ClusterMetadata():
            if at not in (None, of.epoch):
                raise InvalidRequest(f"the metadata is of epoch {of.epoch}, not {at}", hint="Hand over the cluster")
            return arcs_of(of, name)
        case Mapping():
            return arcs_of_answer(of, name, at)
    raise InvalidRequest(
        f"a {type(of).__name__} has no ring", hint="Hand over a cluster, metadata, or the answer of a what-if"
    )
