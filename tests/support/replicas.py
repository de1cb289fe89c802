"""Volumes and replica tables for tests: real directories, real Delta tables, real Parquet files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from epochlake.jobs.replicas.files import DataFile, new_file_id, path_of
from epochlake.jobs.replicas.replica import ReplicaAddress, create_replica
from epochlake.jobs.replicas.schema import DELETED, WRITTEN_AT
from epochlake.jobs.replicas.sealing import sealed_writer
from epochlake.jobs.replicas.staging_plan import Routing
from epochlake.jobs.replicas.volumes import VolumeMarker, prepare_volume
from epochlake.metastore.metadata.model import Column, Table, VolumeId
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.tokens import TOKEN, tablet_label, tokens_of_label

from tests.support.storages import STORAGE

CLUSTER_ID = "7b0ad0b5-5a5f-4c44-9d4e-6f2f5d1c9a10"
TABLE = Table(
    table_id="t-1",
    keyspace="air",
    name="flights",
    columns=(Column("id", "bigint"), Column("note", "string")),
    primary_key=("id",),
)


def marker(volume_id: VolumeId, *, cluster_id: str = CLUSTER_ID, host_id: str | None = None) -> VolumeMarker:
    return VolumeMarker(
        cluster="test",
        cluster_id=cluster_id,
        node=f"n{volume_id}",
        host_id=host_id or f"host-{volume_id}",
        volume_id=volume_id,
        volume="d1",
        created="2026-01-01T00:00:00Z",
    )


def make_volume(root: Path, volume_id: VolumeId, storage: Storage = STORAGE) -> str:
    uri = str(root / f"v{volume_id}")
    prepare_volume(storage, uri, marker(volume_id))
    return uri


def make_replica(
    root: Path, volume_id: VolumeId, *, fence: int = 1, table: Table = TABLE, storage: Storage = STORAGE
) -> ReplicaAddress:
    uri = make_volume(root, volume_id, storage)
    address = ReplicaAddress(storage, CLUSTER_ID, volume_id, uri, table.keyspace, table.table_id)
    create_replica(address, table, fence)
    return address


def tablets_on(count: int, routes: Mapping[int, Sequence[ReplicaAddress]]) -> Routing:
    """How rows are staged for a table of `count` tablets: tablet -> its write replicas, none for those not named."""
    return Routing(
        lows=np.array([tokens_of_label(tablet_label(tablet, count))[0] for tablet in range(count)], dtype=np.int64),
        labels=tuple(tablet_label(tablet, count) for tablet in range(count)),
        routes=tuple(tuple(routes.get(tablet, ())) for tablet in range(count)),
        route=np.arange(count, dtype=np.int32),
    )


def store(
    address: ReplicaAddress,
    label: str = "2-1",
    *,
    ids: Sequence[int] = (1, 2, 3),
    at: int = 100,
    tokens: Sequence[int] | None = None,
) -> DataFile:
    """A real staged file in a replica's directory, not committed; without `tokens` at the first ones of the label."""
    first = tokens_of_label(label)[0]
    tokens = [first + n for n in range(len(ids))] if tokens is None else list(tokens)
    columns = {"id": list(ids), "note": [f"n{i}" for i in ids], TOKEN: tokens}
    rows = pa.table({**columns, WRITTEN_AT: [at] * len(ids), DELETED: [False] * len(ids)})
    file_id = new_file_id()
    uri = f"{address.uri}/{path_of(label, file_id)}"
    address.storage.create_directory(uri.rpartition("/")[0])
    with address.storage.new_file(uri) as sink, sealed_writer(sink, rows.schema, file_id) as writer:
        writer.write(rows)
    return DataFile(
        file_id=file_id,
        label=label,
        path=path_of(label, file_id),
        size=address.storage.size_of(uri) or 0,
        rows=len(ids),
        min_token=tokens[0],
        max_token=tokens[-1],
        min_written_at=at,
        max_written_at=at,
        has_tombstones=False,
    )


def flip_in_a_page(path: Path, column: str | None = None) -> None:
    """Flip a bit of what a column of the first row group holds, the largest one where none is named."""
    group = pq.ParquetFile(path).metadata.row_group(0)
    chunks = [group.column(n) for n in range(group.num_columns)]
    named = [chunk for chunk in chunks if column in (None, chunk.path_in_schema)]
    chunk = max(named, key=lambda one: one.total_compressed_size)
    data = bytearray(path.read_bytes())
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data[start + chunk.total_compressed_size * 3 // 4] ^= 4
    path.write_bytes(data)
