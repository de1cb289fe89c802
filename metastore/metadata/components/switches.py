"""The component `switches`: what is allowed now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
from epochlake.metastore.metadata.components.component import Component, Facts, plain
from epochlake.metastore.metadata.differences import Difference, fields
from epochlake.metastore.metadata.model import Switches

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata


class _Stored(msgspec.Struct, frozen=True):
    switches: Switches


def _differences(before: ClusterMetadata, after: ClusterMetadata) -> Iterator[Difference]:
    return fields("switches", after.identity.name, before.switches, after.switches)


SWITCHES = Component(
    empty=Switches(),
    since=1,
    stored=_Stored,
    encode=_Stored,
    decode=lambda stored, _: stored.switches,
    last_change=lambda switches: switches.epoch,
    facts=lambda switches: Facts({"switches": plain(switches)}),
    differences=_differences,
)
