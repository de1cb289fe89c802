"""Data files beside those of Iceberg's own writer: bytes of a compacted table, and the time to encode rows.

The rows are those of `upserts`: a key, small and large numbers, texts with and without what comes again, a time, an
amount. Epochlake keeps three columns more. Compacted, the tokens of such keys are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from epochlake.jobs.administration.schema import create_keyspace, create_table
from epochlake.jobs.replicas.sealing import sealed_writer
from epochlake.jobs.upkeep.compacting import EVERYTHING
from epochlake.jobs.upkeep.compaction import compact

from benchmarks.clusters import opened
from benchmarks.harness import Result, medians, ratio_at_most
from benchmarks.rows import COLUMNS, mixed_rows

ROWS = 1_000_000
GROUP_ROWS = 1 << 17
BATCHES = 50
BATCH_ROWS = 20_000
ROUNDS = 5
TABLE = "once.rows"


def compacted_bytes() -> list[Result]:
    """A million rows and fifty batches that replace some, compacted; the same rows in an Iceberg table.

    In the order that they have come, as Iceberg leaves them that puts files together, and in that of their key.
    """
    with opened() as (cluster, directory):
        create_keyspace(cluster, "once", {"dc1": 1})
        create_table(cluster, TABLE, COLUMNS, ("id",), append_only=False, tablets=4)
        came = np.zeros(ROWS, dtype=np.int64)
        cluster.write(TABLE, mixed_rows(np.arange(ROWS), 0))
        for batch in range(1, BATCHES + 1):
            ids = np.sort(np.random.default_rng(batch).choice(ROWS, BATCH_ROWS, replace=False))
            came[ids] = batch
            cluster.write(TABLE, mixed_rows(ids, batch))
        written = compact(cluster, TABLE, policy=EVERYTHING)
        assert written.complete
        assert len(written.compacted) == written.ranges
        own = sum(one.bytes_after for one in written.compacted)
        rows = cluster.scan(TABLE).read_all()
        assert rows.num_rows == ROWS
        rows = rows.sort_by("id")
        ordered = _iceberg_bytes(directory / "ordered", rows)
        as_come = _iceberg_bytes(directory / "as-come", rows.take(pa.array(np.argsort(came, kind="stable"))))
    peers = [("in the order they came", as_come, ratio_at_most(1.1)), ("ordered by key", ordered, None)]
    return [
        Result("a compacted table", own / 1e6, "MB", theirs / 1e6, f"Iceberg's writer, {order}", target)
        for order, theirs, target in peers
    ]


def encoding() -> list[Result]:
    """Seconds to make one sealed data file of a million rows in token order; a plain file as PyArrow chooses."""
    rows = mixed_rows(np.random.default_rng(1).permutation(ROWS), 0)
    tokens = np.sort(np.random.default_rng(2).integers(-(1 << 63), (1 << 63) - 1, ROWS))
    rows = rows.append_column("_token", pa.array(tokens))
    groups = [rows.slice(at, GROUP_ROWS) for at in range(0, ROWS, GROUP_ROWS)]
    sizes: dict[str, int] = {}

    def sealed() -> None:
        sink = pa.BufferOutputStream()
        with sealed_writer(sink, rows.schema, "file") as writer:
            for group in groups:
                writer.write(group)
        sizes["sealed"] = sink.getvalue().size

    def plain() -> None:
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, rows.schema, compression="zstd", write_page_checksum=True) as writer:
            for group in groups:
                writer.write_table(group, row_group_size=GROUP_ROWS)
        sizes["plain"] = sink.getvalue().size

    taken = medians(ROUNDS, {"sealed": sealed, "plain": plain})
    peer = "PyArrow's choice of encodings, zstd"
    return [
        Result(f"encoding {ROWS:,} rows", taken["sealed"], "s", taken["plain"], peer, ratio_at_most(1.0)),
        Result(f"bytes of {ROWS:,} rows", sizes["sealed"] / 1e6, "MB", sizes["plain"] / 1e6, peer, ratio_at_most(1.0)),
    ]


def _iceberg_bytes(directory: Path, rows: pa.Table) -> int:
    """Of the data files of a new Iceberg table with these rows."""
    from pyiceberg.catalog.sql import SqlCatalog

    directory.mkdir()
    catalog = SqlCatalog("peer", uri=f"sqlite:///{directory}/catalog.db", warehouse=f"file://{directory}")
    catalog.create_namespace("once")
    table = catalog.create_table("once.rows", schema=rows.schema)
    table.append(rows)
    return sum(task.file.file_size_in_bytes for task in table.scan().plan_files())


BENCHMARKS: dict[str, Callable[[], list[Result]]] = {"compacted_bytes": compacted_bytes, "encoding": encoding}
