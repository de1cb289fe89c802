"""How far the upgrade of a described cluster is."""

from __future__ import annotations

import msgspec
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events.upgrading import missing_of
from epochlake.placement.showing import Shown


class UpgradeStatus(Shown, msgspec.Struct, frozen=True):
    """`upgrade_state` by ScyllaDB's names; `missing`: what was described and is not built yet."""

    upgrade_state: str
    described_epoch: int | None
    epoch: int
    missing: tuple[str, ...]


def status_of_upgrade(metadata: ClusterMetadata) -> UpgradeStatus:
    now = metadata.upgrade
    missing = tuple(missing_of(metadata)) if now.going_on else ()
    return UpgradeStatus(now.state.value, now.described_epoch or None, now.epoch, missing)
