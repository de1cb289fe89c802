"""Bulk arrays of an event, kept apart from its JSON: Arrow IPC, compressed with zstd."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from epochlake.metastore.arrays import READ, array_of_integers, values_of, written
from epochlake.metastore.errors import Rejected
from epochlake.placement.rejections import Code


def encode_replicas(replicas: np.ndarray) -> bytes:
    """An int32 array of shape (tablets or ranges, width) as Arrow IPC with one column per replica."""
    columns = [array_of_integers(replicas[:, i].astype(np.int32)) for i in range(replicas.shape[1])]
    batch = pa.record_batch(columns, names=[f"replica_{i}" for i in range(len(columns))])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=written("zstd")) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def decode_replicas(attachment: bytes) -> np.ndarray:
    """The array that `encode_replicas` was given. Raises Rejected for bytes that it did not make."""
    try:
        table = pa.ipc.open_stream(attachment, options=READ).read_all()
        whole = table.num_columns > 0 and all(field.type == pa.int32() for field in table.schema)
    except (pa.ArrowException, OSError) as error:
        raise Rejected(Code.INVALID_EVENT, f"the replicas of the event cannot be read: {error}") from error
    if not whole or any(column.null_count for column in table.columns):
        raise Rejected(Code.INVALID_EVENT, "the replicas of the event are not one column of numbers per replica")
    return np.column_stack([values_of(column.combine_chunks()) for column in table.columns])
