"""The bytes of a snapshot: the whole metadata as of an epoch.

A snapshot is one Arrow IPC stream after the other, one for each component that has arrays, and the SHA-256 of them all.
Everything small is JSON in the schema's metadata of the first stream. The same metadata always gives the same bytes.

A format has the components that there were when it came (`Component.since`). A snapshot is written in the lowest format
from `FORMAT` on that has every component in use, so an older version reads it as long as it knows all that is in it.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any

import msgspec
import pyarrow as pa
from epochlake.metastore.arrays import READ, written
from epochlake.metastore.errors import UnknownFormat
from epochlake.metastore.log.entry import Position
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.components.component import Component, components_of
from epochlake.placement.decoding import decodable
from epochlake.placement.errors import words_of

FORMAT = 2
"""The lowest format that is written. Format 1, which knew no ring, is read as well."""

_KEY = b"epochlake"
_DIGEST_BYTES = 32
_encoder = msgspec.json.Encoder(order="sorted")


class _Numbered(msgspec.Struct, frozen=True):
    """What is read of a snapshot of any format."""

    format: int


def encode_snapshot(metadata: ClusterMetadata, position: Position) -> bytes:
    """The snapshot of `metadata`, which is that of the entry at `position`."""
    kind = type(metadata)
    number = max([FORMAT, *(since for since in _formats(kind) if since > FORMAT and _uses(metadata, since))])
    small: dict[str, Any] = {"format": number, "position": position}
    batches: list[pa.RecordBatch] = []
    for name, component in _components(kind, number).items():
        state = getattr(metadata, name)
        stored = msgspec.structs.asdict(component.encode(state))
        small |= {field: value for field, value in stored.items() if value is not msgspec.UNSET}
        if component.arrays is not None:
            batches.append(component.arrays(state))
    batches[0] = batches[0].replace_schema_metadata({_KEY: _encoder.encode(small)})
    sink = pa.BufferOutputStream()
    for batch in batches:
        with pa.ipc.new_stream(sink, batch.schema, options=written("lz4")) as writer:
            writer.write_batch(batch)
    body = bytes(sink.getvalue())
    return body + hashlib.sha256(body).digest()


def decode_snapshot(data: bytes, kind: type[ClusterMetadata] = ClusterMetadata) -> tuple[ClusterMetadata, Position]:
    """What `encode_snapshot` was given: metadata of the class `kind`, and the position of its entry.

    Raises UnknownFormat when the bytes are not a whole snapshot, or one of a format that `kind` does not know.
    """
    body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        raise UnknownFormat("the snapshot is torn or was altered: its hash does not match")
    source = pa.BufferReader(body)
    try:
        first = pa.ipc.open_stream(source, options=READ).read_all()
        small = first.schema.metadata[_KEY]
        number, newest = _number_in(small), max(FORMAT, *_formats(kind))
        if not 1 <= number <= newest:
            known = f"1 to {newest}"
            raise UnknownFormat(f"the snapshot is written in format {number}, this version knows formats {known}")
        stored = msgspec.json.decode(small, type=decodable(_stored_in(kind, number)))
        components = _components(kind, number)
        _, *others = [name for name, component in components.items() if component.arrays is not None]
        tables = {name: pa.ipc.open_stream(source, options=READ).read_all() for name in others}
        states: dict[str, Any] = {}
        for name, component in components.items():
            own = {field: getattr(stored, field) for field in component.stored.__struct_fields__}
            table = None if component.arrays is None else tables.get(name, first)
            states[name] = component.decode(component.stored(**own), table)
    except (pa.ArrowException, msgspec.MsgspecError, KeyError, TypeError) as error:
        raise UnknownFormat(f"the snapshot cannot be read: {words_of(error)}") from error
    position: Position = getattr(stored, "position")  # noqa: B009  # the struct is made of the table of components
    metadata = msgspec.structs.replace(kind.empty(), epoch=position.epoch, state_id=position.state_id, **states)
    return metadata, position


def format_of(data: bytes) -> int:
    """The format of a snapshot that `decode_snapshot` can read."""
    return _number_in(pa.ipc.open_stream(data[:-_DIGEST_BYTES]).schema.metadata[_KEY])


def _number_in(small: bytes) -> int:
    return msgspec.json.decode(small, type=decodable(_Numbered)).format


def _formats(kind: type[ClusterMetadata]) -> set[int]:
    return {component.since for component in components_of(kind).values()}


def _uses(metadata: ClusterMetadata, since: int) -> bool:
    """Whether a component that a format was the first to have is not empty."""
    components = components_of(type(metadata)).items()
    return any(getattr(metadata, name) != one.empty for name, one in components if one.since == since)


def _components(kind: type[ClusterMetadata], number: int) -> dict[str, Component[Any]]:
    """The components that snapshots of a format have."""
    return {name: component for name, component in components_of(kind).items() if component.since <= number}


@cache
def _stored_in(kind: type[ClusterMetadata], number: int) -> type[msgspec.Struct]:
    """The JSON of snapshots of a format: the position, and the fields of each component's `stored`."""
    of_components = [
        (
            field.name,
            field.type,
            msgspec.field(default=field.default)
            if field.default is not msgspec.NODEFAULT
            else msgspec.field(default_factory=field.default_factory),
        )
        for component in _components(kind, number).values()
        for field in msgspec.structs.fields(component.stored)
    ]
    return msgspec.defstruct("Stored", [("position", Position), *of_components], kw_only=True, frozen=True)
