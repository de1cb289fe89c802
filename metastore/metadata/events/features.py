"""Events of versions and features: what a node's agent runs, and what the whole cluster may use from now on."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec
from epochlake.metastore.metadata.components.features import Announced
from epochlake.metastore.metadata.events.base import Event, require
from epochlake.metastore.metadata.features import lacks, require_supported
from epochlake.metastore.metadata.model import NodeState
from epochlake.placement.rejections import Code

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata


class EnableFeatures(Event, frozen=True):
    """From the next epoch on the cluster may use these features. They are never disabled.

    A version that does not support one of them cannot read the event, nor anything that comes after it.
    """

    during_upgrade: ClassVar[bool] = True
    allowed_while_paused: ClassVar[bool] = True

    features: tuple[str, ...]

    def __post_init__(self) -> None:
        require_supported(self.features)

    def check(self, metadata: ClusterMetadata) -> None:
        require(
            bool(self.features) and len(set(self.features)) == len(self.features),
            Code.INVALID_EVENT,
            "an event enables one feature or more, each once",
        )
        there = [name for name in self.features if name in metadata.features.enabled]
        require(not there, Code.NOTHING_TO_DO, f"enabled already: {', '.join(there)}")
        for node in metadata.directory.members():
            announced = metadata.features.announced.get(node.node_id)
            lacking = () if announced is None else lacks(self.features, announced.features)
            require(
                announced is None or not lacking,
                Code.FEATURE_LACKING,
                f"the agent of node {node.name!r} runs version {announced.product_version if announced else ''}, "
                f"which does not support {', '.join(lacking)}",
                hint="Upgrade it first; once it has started, it announces what it supports",
            )

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        features = metadata.features.with_enabled(self.features, epoch)
        return msgspec.structs.replace(metadata, features=features)

    def summary(self) -> str:
        return f"enabled: {', '.join(self.features)}"


class AnnounceVersion(Event, frozen=True):
    """The agent of a node says which version it runs, and which features that supports."""

    during_upgrade: ClassVar[bool] = True

    node_id: int
    product_version: str
    features: tuple[str, ...]

    def check(self, metadata: ClusterMetadata) -> None:
        node = metadata.directory.nodes.get(self.node_id)
        require(node is not None, Code.UNKNOWN_NODE, f"there is no node with number {self.node_id}")
        assert node is not None
        require(
            node.state is not NodeState.LEFT,
            Code.WRONG_STATE,
            f"node {node.name!r} has left: what runs there is no member",
        )
        lacking = lacks(metadata.features.enabled, self.features)
        require(
            not lacking,
            Code.FEATURE_LACKING,
            f"version {self.product_version} on node {node.name!r} does not support {', '.join(lacking)}, which the "
            "cluster uses",
            hint="Use a newer version there: an enabled feature is never disabled",
        )
        known = metadata.features.announced.get(self.node_id)
        require(
            known is None or (known.product_version, known.features) != (self.product_version, self.features),
            Code.NOTHING_TO_DO,
            f"node {node.name!r} has said so already",
        )

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        said = Announced(self.node_id, self.product_version, self.features, epoch)
        announced = {**metadata.features.announced, self.node_id: said}
        features = msgspec.structs.replace(metadata.features, announced=announced, epoch=epoch)
        return msgspec.structs.replace(metadata, features=features)

    def summary(self) -> str:
        return f"node {self.node_id} runs version {self.product_version}"
