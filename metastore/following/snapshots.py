"""Snapshots: the whole metadata as of an epoch in one file, so that catching up need not begin at the first epoch.

A snapshot is an Arrow IPC stream with a row for each tablet map and everything small as JSON in its schema's metadata,
a second one with the placements and operations of the ring, and the SHA-256 of all that. The same metadata always gives
the same bytes, so whoever follows the log can check a snapshot that somebody else wrote. One that is torn, altered or
unreadable is skipped for an older one, or for the log from its beginning; it is never half used.
"""

from __future__ import annotations

import hashlib
import logging
import re
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from epochlake.metastore import storage
from epochlake.metastore.arrays import array_of, array_of_integers, values_of
from epochlake.metastore.errors import StorageUnavailable, UnknownFormat
from epochlake.metastore.log.entry import Entry, Position, position_of
from epochlake.metastore.metadata.cluster import ClusterMetadata, Directory, Schema, Tablets
from epochlake.metastore.metadata.events import TakeSnapshot
from epochlake.metastore.metadata.model import (
    Identity,
    Keyspace,
    Node,
    Switches,
    Table,
    TopologyRequest,
    Transition,
)
from epochlake.metastore.metadata.rings import Rings, Running
from epochlake.placement.decoding import decodable
from epochlake.placement.errors import words_of
from epochlake.placement.ring.codec import decode_state
from epochlake.placement.ring.strategies import Replication
from epochlake.placement.tablets.tablet_map import TabletMap

logger = logging.getLogger(__name__)

FORMAT = 2
"""The format that is written. Format 1, which knew no ring, is read as well."""

_NAME = re.compile(r"(\d{20})\.snapshot\Z")
_DIGEST_BYTES = 32
_MAPS = pa.schema(
    [
        ("table_id", pa.string()),
        ("count", pa.int64()),
        ("width", pa.int32()),
        ("resize_type", pa.string()),
        ("resize_seq_number", pa.int64()),
        ("epoch", pa.int64()),
        ("replicas", pa.large_list(pa.int32())),
    ]
)
_RINGS = pa.schema([("state", pa.large_binary())])
_encoder = msgspec.json.Encoder(order="sorted")


class _Rings(msgspec.Struct, frozen=True):
    """What is small of the rings."""

    running: list[Running] = []
    changing: list[tuple[str, Replication]] = []
    placed: list[tuple[Replication, int]] = []
    epoch: int = 0


class _Rest(msgspec.Struct, frozen=True):
    """Everything but the arrays, ordered by number or name so that equal metadata has equal bytes."""

    format: int
    position: Position
    identity: Identity
    nodes: list[Node]
    directory_epoch: int
    keyspaces: list[Keyspace]
    tables: list[Table]
    schema_epoch: int
    transitions: list[Transition]
    tablets_epoch: int
    requests: list[TopologyRequest]
    switches: Switches
    last_snapshot_epoch: int
    rings: _Rings = _Rings()


def encode_snapshot(metadata: ClusterMetadata, position: Position) -> bytes:
    """The snapshot of `metadata`, which is that of the entry at `position`."""
    rest = _Rest(
        format=FORMAT,
        position=position,
        identity=metadata.identity,
        nodes=[metadata.directory.nodes[key] for key in sorted(metadata.directory.nodes)],
        directory_epoch=metadata.directory.epoch,
        keyspaces=[metadata.schema.keyspaces[key] for key in sorted(metadata.schema.keyspaces)],
        tables=[metadata.schema.tables[key] for key in sorted(metadata.schema.tables)],
        schema_epoch=metadata.schema.epoch,
        transitions=[metadata.tablets.transitions[key] for key in sorted(metadata.tablets.transitions)],
        tablets_epoch=metadata.tablets.epoch,
        requests=sorted(metadata.requests.values(), key=lambda request: request.requested_epoch),
        switches=metadata.switches,
        last_snapshot_epoch=metadata.last_snapshot_epoch,
        rings=_Rings(
            running=list(metadata.rings.running.values()),
            changing=sorted(metadata.rings.changing.items()),
            placed=sorted(metadata.rings.placed.items()),
            epoch=metadata.rings.epoch,
        ),
    )
    maps = sorted(metadata.tablets.maps.items())
    flat = [tablet_map.to_array().reshape(-1) for _, tablet_map in maps]
    offsets = np.concatenate([[0], np.cumsum([len(values) for values in flat])]).astype(np.int64)
    values = np.concatenate(flat) if flat else np.empty(0, np.int32)
    columns: list[Any] = [
        array_of([key for key, _ in maps], pa.string()),
        array_of([m.count for _, m in maps], pa.int64()),
        array_of([m.width for _, m in maps], pa.int32()),
        array_of([m.resize_type for _, m in maps], pa.string()),
        array_of([m.resize_seq_number for _, m in maps], pa.int64()),
        array_of([m.epoch for _, m in maps], pa.int64()),
        pa.LargeListArray.from_arrays(array_of_integers(offsets), array_of_integers(values.astype(np.int32))),
    ]
    schema = _MAPS.with_metadata({"epochlake": _encoder.encode(rest)})
    state = array_of([metadata.rings.encoded()], pa.large_binary())
    sink = pa.BufferOutputStream()
    for batch in (
        pa.RecordBatch.from_arrays(columns, schema=schema),
        pa.RecordBatch.from_arrays([state], schema=_RINGS),
    ):
        with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
            writer.write_batch(batch)
    body = bytes(sink.getvalue())
    return body + hashlib.sha256(body).digest()


def decode_snapshot(data: bytes) -> tuple[ClusterMetadata, Position]:
    """What `encode_snapshot` was given. Raises UnknownFormat when the bytes are not a whole snapshot."""
    body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        raise UnknownFormat("the snapshot is torn or was altered: its hash does not match")
    source = pa.BufferReader(body)
    try:
        table = pa.ipc.open_stream(source).read_all()
        rest = msgspec.json.decode(table.schema.metadata[b"epochlake"], type=decodable(_Rest))
        if not 1 <= rest.format <= FORMAT:
            known = f"1 to {FORMAT}"
            raise UnknownFormat(f"the snapshot is written in format {rest.format}, this version knows formats {known}")
        rings = Rings() if rest.format == 1 else _rings(rest.rings, pa.ipc.open_stream(source).read_all())
    except (pa.ArrowException, msgspec.MsgspecError, KeyError, TypeError) as error:
        raise UnknownFormat(f"the snapshot cannot be read: {words_of(error)}") from error
    maps = {}
    replicas = table["replicas"].combine_chunks()
    offsets = values_of(replicas.offsets)
    values = values_of(replicas.values)
    small = table.drop_columns(["replicas"]).to_pylist()
    for row, start, end in zip(small, offsets[:-1], offsets[1:], strict=True):
        array = values[start:end].reshape(row["count"], row["width"])
        tablet_map = TabletMap.from_array(array, epoch=row["epoch"])
        maps[row["table_id"]] = msgspec.structs.replace(
            tablet_map, resize_type=row["resize_type"], resize_seq_number=row["resize_seq_number"]
        )
    metadata = ClusterMetadata(
        epoch=rest.position.epoch,
        state_id=rest.position.state_id,
        identity=rest.identity,
        directory=Directory({node.node_id: node for node in rest.nodes}, rest.directory_epoch),
        schema=Schema(
            {keyspace.name: keyspace for keyspace in rest.keyspaces},
            {item.table_id: item for item in rest.tables},
            rest.schema_epoch,
        ),
        tablets=Tablets(maps, {item.key: item for item in rest.transitions}, rest.tablets_epoch),
        requests={request.request_id: request for request in rest.requests},
        switches=rest.switches,
        last_snapshot_epoch=rest.last_snapshot_epoch,
        rings=rings,
    )
    return metadata, rest.position


def _rings(small: _Rings, table: pa.Table) -> Rings:
    state = decode_state(table["state"][0].as_py())
    return Rings(
        placements=state.placements,
        operations=state.operations,
        running={running.operation_id: running for running in small.running},
        changing=dict(small.changing),
        placed=dict(small.placed),
        epoch=small.epoch,
    )


def format_of(data: bytes) -> int:
    """The format of a snapshot that `decode_snapshot` can read."""
    metadata = pa.ipc.open_stream(data[:-_DIGEST_BYTES]).schema.metadata
    return msgspec.json.decode(metadata[b"epochlake"], type=decodable(_Rest)).format


def is_proved(entry: Entry | None, metadata: ClusterMetadata, position: Position) -> bool:
    """Whether the log's entry says that a snapshot is the one of its epoch: by hash, and by the state's digest.

    An entry that asks for no snapshot proves none. One from before there were digests proves the position only.
    """
    if entry is None or position_of(entry) != position or entry.event != TakeSnapshot.kind():
        return False
    event = entry.decode()
    return isinstance(event, TakeSnapshot) and event.proves(metadata)


class Snapshots:
    """The snapshots of one root: a directory with a file for each."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def epochs(self) -> list[int]:
        """Epochs that there are snapshots of, ascending."""
        if not storage.exists(self.uri):
            return []
        found = (_NAME.match(entry.name) for entry in storage.list_files(self.uri))
        return sorted(int(match[1]) for match in found if match)

    def path(self, epoch: int) -> str:
        return f"{self.uri}/{epoch:020}.snapshot"

    def write(self, metadata: ClusterMetadata, position: Position) -> bool:
        """Write the snapshot of `metadata` unless there is one; whether this call has written it."""
        path = self.path(position.epoch)
        if storage.exists(path):
            return False
        storage.create_directory(self.uri, parents=True)
        return storage.put_if_absent(path, encode_snapshot(metadata, position))

    def read(self, epoch: int) -> tuple[ClusterMetadata, Position]:
        """Raises UnknownFormat when it is damaged, StorageUnavailable when it is not there."""
        metadata, position = decode_snapshot(storage.read_bytes(self.path(epoch)))
        if position.epoch != epoch:
            raise UnknownFormat(f"the snapshot of epoch {epoch} holds epoch {position.epoch}")
        return metadata, position

    def put_aside(self, epoch: int) -> None:
        """Keep the file of a snapshot under another name, by which nobody looks for it."""
        path = self.path(epoch)
        storage.replace_bytes(f"{path}.lost", storage.read_bytes(path))
        storage.delete_file(path)

    def newest(self, at_most: int | None = None) -> tuple[ClusterMetadata, Position] | None:
        """The highest usable snapshot, at or below epoch `at_most` when given; damaged ones are skipped."""
        try:
            epochs = [epoch for epoch in self.epochs() if at_most is None or epoch <= at_most]
        except StorageUnavailable as error:
            logger.warning("snapshots are not looked at: %s", error)
            return None
        for epoch in reversed(epochs):
            try:
                return self.read(epoch)
            except (UnknownFormat, StorageUnavailable) as error:
                logger.warning("the snapshot of epoch %d is not used: %s", epoch, error)
        return None

    def matches(self, metadata: ClusterMetadata, position: Position) -> bool:
        """Whether the stored snapshot is, byte for byte, the one of `metadata`; of an older format, whether it says
        the same.
        """
        stored = storage.read_bytes(self.path(position.epoch))
        if stored == encode_snapshot(metadata, position):
            return True
        return format_of(stored) < FORMAT and decode_snapshot(stored) == (metadata, position)


class SnapshotWriter:
    """A listener that writes the snapshot which an epoch asks for (seed 002: every follower may)."""

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots

    def before(self, entry: Entry, metadata: ClusterMetadata) -> None:
        """Nothing to do before an epoch."""

    def after(self, entry: Entry, metadata: ClusterMetadata) -> None:
        if entry.event == TakeSnapshot.kind():
            self._snapshots.write(metadata, position_of(entry))
