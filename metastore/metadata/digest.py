"""The digest of a state of the cluster: what a log entry can name a snapshot by.

It is made from what the metadata says, never from how a file encodes it, so every follower gets the
same, whatever libraries it has. Where in the history the state is (epoch, state id, last snapshot) is left out: the
event that names the digest changes nothing else, so before it and after it the digest is the same.

A field that has its default is left out as well: a field that a later version adds does not change the digests of the
states that do not use it. Whoever changes anything else here raises `SCHEME`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata

SCHEME = "1:"
"""What every digest begins with. One of another scheme cannot be compared."""

NOT_COVERED = frozenset({"epoch", "state_id", "last_snapshot_epoch"})
"""Fields of the metadata that say where in the history it is."""

_encoder = msgspec.json.Encoder(order="sorted")


def digest_of(metadata: ClusterMetadata) -> str:
    """SHA-256 over all of the metadata but `NOT_COVERED`, in hexadecimal behind the scheme."""
    digest = hashlib.sha256()
    _add(digest, _encoder.encode(_small(metadata)))
    for table_id, tablet_map in sorted(metadata.tablets.maps.items()):
        facts = (
            table_id,
            tablet_map.count,
            tablet_map.width,
            tablet_map.resize_type,
            tablet_map.resize_seq_number,
            tablet_map.epoch,
        )
        _add(digest, _encoder.encode([_plain(fact) for fact in facts]))
        _add(digest, np.ascontiguousarray(tablet_map.to_array(), dtype="<i4").tobytes())
    _add(digest, metadata.rings.encoded())
    return SCHEME + digest.hexdigest()


def _small(metadata: ClusterMetadata) -> dict[str, Any]:
    """Everything but arrays, in an order that follows from the contents."""
    directory, schema, tablets, rings = metadata.directory, metadata.schema, metadata.tablets, metadata.rings
    return {
        "identity": _plain(metadata.identity),
        "nodes": [_plain(directory.nodes[key]) for key in sorted(directory.nodes)],
        "keyspaces": [_plain(schema.keyspaces[key]) for key in sorted(schema.keyspaces)],
        "tables": [_plain(schema.tables[key]) for key in sorted(schema.tables)],
        "transitions": [_plain(tablets.transitions[key]) for key in sorted(tablets.transitions)],
        "requests": [_plain(metadata.requests[key]) for key in sorted(metadata.requests)],
        "switches": _plain(metadata.switches),
        "running": [_plain(running) for running in rings.running.values()],
        "changing": _plain(sorted(rings.changing.items())),
        "placed": _plain(sorted(rings.placed.items())),
        "epochs": [directory.epoch, schema.epoch, tablets.epoch, rings.epoch],
    }


def _plain(value: Any) -> Any:
    """A value as JSON has it, without fields that have their default."""
    if isinstance(value, msgspec.Struct):
        return {
            name: _plain(getattr(value, name))
            for name, default in _defaults(type(value))
            if getattr(value, name) != default
        }
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


@cache
def _defaults(kind: type[msgspec.Struct]) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (field.name, field.default_factory() if field.default is msgspec.NODEFAULT and _makes(field) else field.default)
        for field in msgspec.structs.fields(kind)
    )


def _makes(field: msgspec.structs.FieldInfo) -> bool:
    return field.default_factory is not msgspec.NODEFAULT


def _add(digest: Any, data: bytes) -> None:
    digest.update(len(data).to_bytes(8, "little"))
    digest.update(data)
