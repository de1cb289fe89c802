"""The component `last_snapshot_epoch`: when a snapshot was last asked for.

It says where in the history the metadata is, and nothing about the cluster: digests and differences leave it out.
"""

from __future__ import annotations

import msgspec
from epochlake.metastore.metadata.components.component import Component, Facts


class _Stored(msgspec.Struct, frozen=True):
    last_snapshot_epoch: int


LAST_SNAPSHOT = Component(
    empty=0,
    since=1,
    stored=_Stored,
    encode=_Stored,
    decode=lambda stored, _: stored.last_snapshot_epoch,
    last_change=lambda epoch: epoch,
    facts=lambda _: Facts(),
    differences=lambda before, after: (),
)
