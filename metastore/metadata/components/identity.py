"""The component `identity`: the cluster's name, id and incarnation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
from epochlake.metastore.metadata.components.component import Component, Facts, plain
from epochlake.metastore.metadata.differences import Difference, fields
from epochlake.metastore.metadata.model import Identity

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata


class _Stored(msgspec.Struct, frozen=True):
    identity: Identity


def _differences(before: ClusterMetadata, after: ClusterMetadata) -> Iterator[Difference]:
    return fields("cluster", after.identity.name, before.identity, after.identity)


IDENTITY = Component(
    empty=Identity("", "", 1, 0),
    since=1,
    stored=_Stored,
    encode=_Stored,
    decode=lambda stored, _: stored.identity,
    last_change=lambda identity: identity.epoch,
    facts=lambda identity: Facts({"identity": plain(identity)}),
    differences=_differences,
)
