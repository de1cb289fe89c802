"""A checksum of a set of rows that does not depend on their order, computed twice by code that shares nothing.

The one idea: each row is written as one line of text, and the sum of the lines' hashes (60 bits of MD5) is the
checksum: a row that is missing, doubled or different in any column changes it. Spark computes it from what was read
back through the gate; plain Python computes it from the source's file, without Spark, Arrow or the data plane.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
from epochlake.jobs.demo.flights import COLUMNS

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

NULL = "~"
_DIGITS = 15
_MODULUS = 2**64


class Checksum(msgspec.Struct, frozen=True):
    """`rows` and `digest`: the sum of their hashes, 16 hexadecimal digits."""

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
    total = 0
    for line in map("|".join, zip(*texts, strict=True)):
        total += int(hashlib.md5(line.encode(), usedforsecurity=False).hexdigest()[:_DIGITS], 16)
    return _checksum(len(flights), total)


def of_rows(rows: DataFrame) -> Checksum:
    """The checksum of rows of the table, by Spark."""
    from pyspark.sql import functions as F

    texts = []
    for column in COLUMNS:
        value = F.col(column.name)
        as_text = F.unix_seconds(value).cast("string") if column.type == "timestamp" else value.cast("string")
        texts.append(F.coalesce(as_text, F.lit(NULL)))
    line_hash = F.conv(F.substring(F.md5(F.concat_ws("|", *texts).cast("binary")), 1, _DIGITS), 16, 10)
    found = rows.agg(F.count("*"), F.sum(line_hash.cast("decimal(20,0)"))).collect()[0]
    return _checksum(int(found[0]), int(found[1] or 0))


def _checksum(rows: int, total: int) -> Checksum:
    return Checksum(rows, f"{total % _MODULUS:016x}")
