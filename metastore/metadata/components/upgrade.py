"""The component `upgrade`: a cluster that was described outside is taken over (seed 000, "Upgrade …").

A cluster that was begun here needs none: it is `done` from its first epoch on, and so is the empty component.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from epochlake.metastore.metadata.components.component import Component
from epochlake.metastore.metadata.differences import Difference, fields
from epochlake.metastore.metadata.model import PlacementKind
from epochlake.metastore.tables import columns as c
from epochlake.metastore.tables.rows import rows_of

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata


class UpgradeState(StrEnum):
    """By the names of seed 000."""

    NOT_UPGRADED = "not_upgraded"
    BUILD_COORDINATOR_STATE = "build_coordinator_state"
    DONE = "done"


class DescribedNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node of the other cluster. `volumes`: places by their names; `tokens`: what it owns, empty: to be allocated."""

    name: str
    datacenter: str
    rack: str
    volumes: Mapping[str, str]
    tokens: tuple[int, ...] = ()


class DescribedKeyspace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    replication: Mapping[str, int]
    placement: PlacementKind = PlacementKind.TABLETS
    strategy: str | None = None


class DescribedTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table, `keyspace.table`, whose rows are in a directory of Delta or Parquet. Without a key one is proposed."""

    name: str
    origin: str
    primary_key: tuple[str, ...] = ()


class Described(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cluster as somebody has described it."""

    nodes: tuple[DescribedNode, ...]
    keyspaces: tuple[DescribedKeyspace, ...] = ()
    tables: tuple[DescribedTable, ...] = ()


class Upgrade(msgspec.Struct, frozen=True):
    """How far the upgrade is. `described` stays as the record of what was taken over."""

    state: UpgradeState = UpgradeState.DONE
    described: Described | None = None
    described_epoch: int = 0
    epoch: int = 0

    @property
    def going_on(self) -> bool:
        return self.state is not UpgradeState.DONE


class _Stored(msgspec.Struct, frozen=True):
    upgrade: Upgrade = Upgrade()


def _differences(before: ClusterMetadata, after: ClusterMetadata) -> Iterator[Difference]:
    return fields("upgrade", after.identity.name, before.upgrade, after.upgrade)


def upgrade(metadata: ClusterMetadata) -> pa.Table:
    """One row: the `upgrade_state` of the cluster; none before there is one."""
    now = metadata.upgrade
    rows = [(now.state.value, now.described_epoch or None, now.epoch)] if metadata.epoch else []
    return rows_of(c.UPGRADE_SCHEMA, rows)


UPGRADE: Component[Upgrade] = Component(
    empty=Upgrade(),
    since=4,
    stored=_Stored,
    encode=_Stored,
    decode=lambda stored, _: stored.upgrade,
    last_change=lambda upgrade: upgrade.epoch,
    differences=_differences,
    tables=(upgrade,),
)
