"""Data files with exactly the rows that a test wants."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from epochlake.jobs.replicas.damage import ExpectedFile
from epochlake.jobs.replicas.derived_tokens import key_noted, with_tokens
from epochlake.jobs.replicas.files import DataFile, new_file_id, path_of
from epochlake.jobs.replicas.replica import ReplicaAddress
from epochlake.jobs.replicas.schema import DELETED, WRITTEN_AT
from epochlake.jobs.replicas.sealing import sealed_writer
from epochlake.jobs.replicas.sections import Run
from epochlake.placement.tokens import TOKEN, Interval

Version = tuple[int, object, int, bool]
"""Token, key, time of writing, and whether it is a delete."""


def stored_versions(
    replica: ReplicaAddress,
    versions: Sequence[Version],
    key: pa.DataType | None = None,
    intervals: tuple[Interval, ...] = (),
    group: int = 4,
) -> Run:
    """A data file with these rows in token order, in row groups of `group`."""
    versions = sorted(versions, key=lambda one: one[0])
    tokens, keys, times, deletes = (list(column) for column in zip(*versions, strict=True))
    rows = pa.table(
        {
            "id": pa.array(keys, key or pa.int64()),
            TOKEN: pa.array(tokens, pa.int64()),
            WRITTEN_AT: pa.array(times, pa.int64()),
            DELETED: pa.array(deletes, pa.bool_()),
        }
    )
    file_id = new_file_id()
    path = path_of("0-0", file_id)
    replica.storage.create_directory(f"{replica.uri}/{path}".rpartition("/")[0])
    with (
        replica.storage.new_file(f"{replica.uri}/{path}") as sink,
        sealed_writer(sink, rows.schema, file_id) as writer,
    ):
        for start in range(0, rows.num_rows, group):
            writer.write(rows.slice(start, group))
    size = replica.storage.size_of(f"{replica.uri}/{path}") or 0
    file = DataFile(
        file_id, "0-0", path, size, len(tokens), tokens[0], tokens[-1], min(times), max(times), any(deletes)
    )
    return Run(ExpectedFile(file, replica), intervals)


def stored_rows(path: Path) -> pa.Table:
    """All that a data file has, with every token."""
    with pq.ParquetFile(path) as source:
        return with_tokens(source.read(use_threads=False), key_noted(source.metadata.metadata))
