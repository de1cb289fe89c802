"""The component `features`: which features are enabled, and what each node has announced that it supports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from epochlake.metastore.errors import UnknownFormat
from epochlake.metastore.metadata.components.component import Component
from epochlake.metastore.metadata.differences import Difference, by_key, later
from epochlake.metastore.metadata.features import require_supported
from epochlake.metastore.metadata.model import NodeId
from epochlake.metastore.metadata.names import node_names
from epochlake.metastore.tables import columns as c
from epochlake.metastore.tables.rows import rows_of

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata

FEATURE = "feature"
ANNOUNCED = "announced version"


class EnabledFeature(msgspec.Struct, frozen=True):
    """A feature that is enabled, since `epoch` and for ever."""

    name: str
    epoch: int


class Announced(msgspec.Struct, frozen=True):
    """What the agent of a node runs, as it said in `epoch`."""

    node_id: NodeId
    product_version: str
    features: tuple[str, ...]
    epoch: int


class Features(msgspec.Struct, frozen=True):
    """Enabled features by name, announcements by node, and the epoch that last changed either."""

    enabled: Mapping[str, EnabledFeature] = {}
    announced: Mapping[NodeId, Announced] = {}
    epoch: int = 0

    def with_enabled(self, names: tuple[str, ...], epoch: int) -> Features:
        more = {name: EnabledFeature(name, epoch) for name in names}
        return Features({**self.enabled, **more}, self.announced, epoch)


class _Stored(msgspec.Struct, frozen=True):
    enabled_features: list[EnabledFeature] = []
    announced_versions: list[Announced] = []
    features_epoch: int = 0


def _encode(features: Features) -> _Stored:
    return _Stored(
        [features.enabled[name] for name in sorted(features.enabled)],
        [features.announced[node_id] for node_id in sorted(features.announced)],
        features.epoch,
    )


def _decode(stored: _Stored, _: pa.Table | None) -> Features:
    try:
        require_supported(one.name for one in stored.enabled_features)
    except ValueError as error:
        raise UnknownFormat(f"the snapshot cannot be used: {error}") from error
    return Features(
        {one.name: one for one in stored.enabled_features},
        {one.node_id: one for one in stored.announced_versions},
        stored.features_epoch,
    )


def _differences(before: ClusterMetadata, after: ClusterMetadata) -> Iterator[Difference]:
    yield from by_key(FEATURE, before.features.enabled, after.features.enabled)
    names = node_names(later(before, after).directory)
    was, now = ({names[key]: one for key, one in m.features.announced.items()} for m in (before, after))
    yield from by_key(ANNOUNCED, was, now)


def features(metadata: ClusterMetadata) -> pa.Table:
    """A row for each enabled feature, by the epoch that enabled it."""
    enabled = sorted(metadata.features.enabled.values(), key=lambda one: (one.epoch, one.name))
    return rows_of(c.FEATURES_SCHEMA, ((one.name, one.epoch) for one in enabled))


FEATURES: Component[Features] = Component(
    empty=Features(),
    since=4,
    stored=_Stored,
    encode=_encode,
    decode=_decode,
    last_change=lambda features: features.epoch,
    differences=_differences,
    tables=(features,),
)
