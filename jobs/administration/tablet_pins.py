"""Pinning tablets, so that the balancer leaves them where they are, and freeing them again."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Unpack

from epochlake.jobs.administration.tablet_moves import require_tablet, with_tablets
from epochlake.metastore.committing.changes import Call, Change, Options
from epochlake.metastore.committing.committer import Committed
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import PinTablets

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster


def pin_tablets(cluster: Cluster, table: str, tablets: tuple[int, ...], **options: Unpack[Options]) -> Committed:
    """Let the balancer leave tablets of a table where they are, also what they are split into. `reason` is shown.

    A node that leaves, is removed or replaced gives them up all the same. Their table is not merged meanwhile. Rejected
    (nothing-to-do) when all are pinned, (feature-not-enabled) while the cluster does not use `tablet-pins`.
    """
    return cluster.commit(TabletPinning(table, tablets), **options)


def unpin_tablets(cluster: Cluster, table: str, tablets: tuple[int, ...], **options: Unpack[Options]) -> Committed:
    """Let the balancer move tablets again: every pin that keeps one of them ends. Rejected (nothing-to-do)."""
    return cluster.commit(TabletFreeing(table, tablets), **options)


class TabletPinning(Change[PinTablets], frozen=True):
    """What `pin_tablets` commits."""

    verb: ClassVar[str] = "pin tablets"
    table: str
    tablets: tuple[int, ...]

    def plan(self, metadata: ClusterMetadata, call: Call) -> PinTablets:
        return _pins(metadata, self.table, self.tablets, True, call.reason)


class TabletFreeing(Change[PinTablets], frozen=True):
    """What `unpin_tablets` commits."""

    verb: ClassVar[str] = "unpin tablets"
    table: str
    tablets: tuple[int, ...]

    def plan(self, metadata: ClusterMetadata, call: Call) -> PinTablets:
        return _pins(metadata, self.table, self.tablets, False, call.reason)


def _pins(metadata: ClusterMetadata, name: str, tablets: tuple[int, ...], on: bool, why: str) -> PinTablets:
    table, tablet_map = with_tablets(metadata, name)
    for tablet in tablets:
        require_tablet(tablet_map, tablet, name)
    return PinTablets(table.table_id, tablet_map.count, tablets, on, why)
