"""The digest of a state of the cluster: what a log entry can name a snapshot by.

It is made from what the metadata says, never from how a file encodes it, so every follower gets the
same, whatever libraries it has. Where in the history the state is (epoch, state id, last snapshot) is left out: the
event that names the digest changes nothing else, so before it and after it the digest is the same.

A field that has its default is left out as well: a field that a later version adds does not change the digests of the
states that do not use it. Whoever changes anything else here raises `SCHEME`.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec
from epochlake.metastore.metadata.components.component import components_of

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata

SCHEME = "1:"
"""What every digest begins with. One of another scheme cannot be compared."""

_ALWAYS_COVERED = 2
"""Components of snapshots up to this format are in every digest, also while they are empty."""

_encoder = msgspec.json.Encoder(order="sorted")


def digest_of(metadata: ClusterMetadata) -> str:
    """SHA-256 over the facts of all components, in hexadecimal behind the scheme.

    A component that came after this scheme is left out while it is empty, as it would be in an older version.
    """
    small: dict[str, Any] = {}
    chunks: list[bytes] = []
    epochs: list[int] = []
    for name, component in components_of(type(metadata)).items():
        state = getattr(metadata, name)
        if component.since > _ALWAYS_COVERED and state == component.empty:
            continue
        facts = component.facts_of(name, state)
        if facts.epoch is not None:
            epochs.append(facts.epoch)
        small.update(facts.small)
        chunks.extend(facts.chunks)
    digest = hashlib.sha256()
    for data in (_encoder.encode({**small, "epochs": epochs}), *chunks):
        _add(digest, data)
    return SCHEME + digest.hexdigest()


def _add(digest: Any, data: bytes) -> None:
    digest.update(len(data).to_bytes(8, "little"))
    digest.update(data)
