"""The rows of benchmarks about reads and files: a key, numbers, texts that come again and others, a time, an amount."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from epochlake.metastore.metadata.model import Column

COLUMNS = (
    Column("id", "bigint", False),
    Column("kind", "bigint"),
    Column("weight", "double"),
    Column("code", "string"),
    Column("text", "string"),
    Column("note", "string"),
    Column("at", "timestamp"),
    Column("amount", "decimal(12,2)"),
)
NAMES = [column.name for column in COLUMNS]
SCANNED = ["id", "kind", "text"]


def mixed_rows(ids: np.ndarray, version: int) -> pa.Table:
    """Rows of these keys, whose other values are as if drawn by chance from key and version."""
    with np.errstate(over="ignore"):
        number = (ids.astype(np.uint64) + np.uint64(version << 40)) * np.uint64(0x9E3779B97F4A7C15)
        number ^= number >> np.uint64(29)
        number *= np.uint64(0xBF58476D1CE4E5B9)
        number ^= number >> np.uint64(32)
    amounts = [f"{n // 100}.{n % 100:02}" for n in (number % np.uint64(10**8)).tolist()]
    return pa.table(
        {
            "id": ids.astype(np.int64),
            "kind": (number % np.uint64(1000)).astype(np.int64),
            "weight": number.astype(np.float64) / 1e10,
            "code": [f"c{n}" for n in (number % np.uint64(50)).tolist()],
            "text": [f"{n:X}" for n in number.tolist()],
            "note": [f"version {version} of {n}" for n in ids.tolist()],
            "at": pa.array((number % np.uint64(10**9)).astype(np.int64) * 10**6).cast(pa.timestamp("us", "UTC")),
            "amount": pa.array(amounts).cast(pa.decimal128(12, 2)),
        }
    )
