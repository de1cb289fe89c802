"""A checksum of a set of rows that does not depend on their order, computed twice by code that shares nothing.

Each row is written as one line of text, and the sums of two hashes of the lines (CRC-32 of the line and
of its MD5) are the checksum: a row that is missing, doubled or different in any column changes it. Spark computes it
from what was read back through the gate; plain Python computes it from the source's file, without Spark, Arrow or the
data plane.
"""

from __future__ import annotations

import hashlib
import zlib
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
from epochlake.jobs.demo.flights import COLUMNS

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

NULL = "~"
_MODULUS = 2**32


class Checksum(msgspec.Struct, frozen=True):
    """`rows` and `digest`: the two sums of their hashes, 8 hexadecimal digits each."""

    rows: int
    digest: str


def of_source(flights: pd.DataFrame) -> Checksum:
    """The checksum of flights as the source has them, in plain Python."""
    texts = []
    for column in COLUMNS:
        values = flights[column.name].tolist()
        match column.type:
            case "string":
                texts.append([value if isinstance(value, str) else NULL for value in values])
            case "timestamp":
                known = {value: str(int(datetime.fromisoformat(value).timestamp())) for value in set(values)}
                texts.append([known[value] for value in values])
            case _:
                # Numbers with gaps come as floats; NaN is not equal to itself.
                texts.append([str(int(value)) if value == value else NULL for value in values])
    of_lines = of_digests = 0
    for text in map("|".join, zip(*texts, strict=True)):
        line = text.encode()
        of_lines += zlib.crc32(line)
        of_digests += zlib.crc32(hashlib.md5(line, usedforsecurity=False).hexdigest().encode())
    return _checksum(len(flights), of_lines, of_digests)


def of_rows(rows: DataFrame) -> Checksum:
    """The checksum of rows of the table, by Spark."""
    from pyspark.sql import functions as F

    texts = []
    for column in COLUMNS:
        value = F.col(column.name)
        as_text = F.unix_seconds(value).cast("string") if column.type == "timestamp" else value.cast("string")
        texts.append(F.coalesce(as_text, F.lit(NULL)))
    line = F.concat_ws("|", *texts).cast("binary")
    of_lines, of_digests = F.sum(F.crc32(line)), F.sum(F.crc32(F.md5(line).cast("binary")))
    found = rows.agg(F.count("*"), of_lines, of_digests).collect()[0]
    return _checksum(int(found[0]), int(found[1] or 0), int(found[2] or 0))


def _checksum(rows: int, of_lines: int, of_digests: int) -> Checksum:
    return Checksum(rows, f"{of_lines % _MODULUS:08x}{of_digests % _MODULUS:08x}")
