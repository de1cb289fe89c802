"""Enabling features, once every member supports them, and saying what a node's agent supports.

Members are the nodes whose agents have announced a version in the log, and the pipelines and jobs that live now. A node
without an agent is a directory, and understands nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Unpack

from epochlake.metastore.announcing import live_leases
from epochlake.metastore.committing.changes import Call, Change, Options, Preparation
from epochlake.metastore.committing.committer import Committed
from epochlake.metastore.coordination.leases import Lease
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import AnnounceVersion, EnableFeatures
from epochlake.metastore.metadata.features import SUPPORTED, lacks, unsupported
from epochlake.placement.rejections import Code
from epochlake.placement.version import PRODUCT_VERSION

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster
    from epochlake.metastore.metastore import Metastore


def enable_features(cluster: Cluster, *names: str, **options: Unpack[Options]) -> Committed:
    """Let the cluster use features from the next epoch on, for ever; none named: all that this version supports.

    Rejected (feature-lacking) while an agent, a pipeline or a job does not support one, (unknown-feature) for one that
    this version does not know, (nothing-to-do) when all are enabled. Raises CoordinationUnavailable: without ZooKeeper
    it is not known who lives.
    """
    return cluster.commit(FeatureEnabling(names), **options)


class FeatureEnabling(Change[EnableFeatures], frozen=True):
    """What `enable_features` commits."""

    verb: ClassVar[str] = "enable features"
    names: tuple[str, ...] = ()

    def plan(self, metadata: ClusterMetadata, call: Call) -> EnableFeatures:
        unknown = unsupported(self.names)
        if unknown:
            raise Rejected(
                Code.UNKNOWN_FEATURE,
                f"version {PRODUCT_VERSION} has no feature {', '.join(map(repr, unknown))}",
                hint=f"Name some of: {', '.join(SUPPORTED)}",
            )
        wanted = dict.fromkeys(self.names or SUPPORTED)
        new = tuple(name for name in wanted if name not in metadata.features.enabled)
        if not new:
            raise Rejected(Code.NOTHING_TO_DO, f"enabled already: {', '.join(wanted)}")
        return EnableFeatures(new)

    def preparation(self, metastore: Metastore) -> Preparation[EnableFeatures]:
        return _NobodyLacks(metastore)


class _NobodyLacks(Preparation[EnableFeatures]):
    """Looks who lives before the commit. Who begins after the look reads the entry, or stops at it with one line."""

    def __init__(self, metastore: Metastore) -> None:
        self._metastore = metastore

    def prepare(self, event: EnableFeatures, metadata: ClusterMetadata) -> None:
        for lease in live_leases(self._metastore):
            lacking = lacking_in(lease, event.features)
            if lacking:
                raise Rejected(
                    Code.FEATURE_LACKING,
                    f"{lease.name!r} (process {lease.pid} on {lease.host}) does not support {', '.join(lacking)}",
                    hint="Let it end, or upgrade it, and try again",
                )

    def still_prepared(self, event: EnableFeatures, then: ClusterMetadata, now: ClusterMetadata) -> bool:
        return then.features is now.features


def lacking_in(lease: Lease, features: Iterable[str]) -> tuple[str, ...]:
    """What a live pipeline or job does not support; one that does not say so is of a version before features."""
    return lacks(features, lease.features or ())


def announce_version(cluster: Cluster, node: str, agent_id: str, timeout: float | None = None) -> Committed | None:
    """Say in the log what runs on a node, where the cluster wants to know and does not yet. None: nothing to say.

    `timeout`: seconds that the commit may take; None: as configured.

    Raises Rejected (feature-lacking) when this version may not take part any more, and what a commit raises.
    """
    metadata = cluster.metadata
    found = metadata.directory.by_name.get(node)
    if found is None or not metadata.may_use(AnnounceVersion):
        return None
    event = AnnounceVersion(found.node_id, PRODUCT_VERSION, SUPPORTED)
    known = metadata.features.announced.get(found.node_id)
    if known is not None and (known.product_version, known.features) == (event.product_version, event.features):
        return None
    return cluster.commit(
        event, reason=f"said by agent {agent_id}", asked=f"announce version of node {node}", timeout=timeout
    )
