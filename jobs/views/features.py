"""Features as lists show them: what is enabled, what may be, and who stands in the way."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from epochlake.jobs.administration.features import lacking_in
from epochlake.metastore.coordination.leases import Lease
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.features import FEATURES, lacks
from epochlake.placement.showing import Listing, Shown


class FeatureRow(Shown, msgspec.Struct, frozen=True):
    """A feature. `enabled_epoch`: since when the cluster uses it, None: it does not.

    `lacking`: who keeps it from being enabled, of those that are known: nodes whose agents have announced an older
    version, pipelines and jobs that live. `unannounced`: nodes that have announced nothing: without an agent, or with
    one of a version before features.
    """

    name: str
    meaning: str
    enabled_epoch: int | None
    lacking: tuple[str, ...]
    unannounced: tuple[str, ...]


def feature_rows(metadata: ClusterMetadata, leases: Iterable[Lease] = ()) -> Listing[FeatureRow]:
    """The features that this version knows, in the order in which they came. `leases`: who lives now."""
    leases, announced = list(leases), metadata.features.announced
    members = metadata.directory.members()
    silent = tuple(node.name for node in members if node.node_id not in announced)
    rows = []
    for feature in FEATURES:
        enabled = metadata.features.enabled.get(feature.name)
        lacking: tuple[str, ...] = ()
        if enabled is None:
            nodes = (node for node in members if node.node_id in announced)
            lacking = (
                *(f"node {n.name}" for n in nodes if lacks([feature.name], announced[n.node_id].features)),
                *(f"{one.name} (process {one.pid} on {one.host})" for one in leases if lacking_in(one, [feature.name])),
            )
        rows.append(
            FeatureRow(feature.name, feature.meaning, None if enabled is None else enabled.epoch, lacking, silent)
        )
    return Listing(rows)
