"""Tokens and the tablets that they fall in: a table's token space cut into 2^k equal ranges.

With 2^k tablets the high k bits of the token, read as unsigned after flipping the sign bit, *are* the
tablet's number. So tablets are in token order, and splitting or merging only adds or drops a bit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from epochlake.placement.errors import InvalidRequest
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Interval = tuple[int, int]
"""First and last token, both included."""

MIN_TOKEN = -(2**63)
MAX_TOKEN = 2**63 - 1
TOKEN_BITS = 64
MAX_TABLET_BITS = 31
"""A tablet's number fits a signed 32-bit integer, in Arrow, in Spark and in the tablet maps."""

_RANGE_LABEL = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})\Z")

TOKEN = "_token"
TABLET = "_tablet"


def tablet_bits(count: int) -> int:
    """The k of 2^k tablets. Raises InvalidRequest for a count that is no power of two."""
    if count < 1 or count & (count - 1) or count > 1 << MAX_TABLET_BITS:
        raise InvalidRequest(
            f"a table has 2^k tablets with k from 0 to {MAX_TABLET_BITS}, not {count}", hint="Ask for 1, 2, 4, 8, …"
        )
    return count.bit_length() - 1


def tablet_of(tokens: NDArray[np.int64], count: int) -> NDArray[np.int32]:
    """The tablet of each token: int64 array in, int32 array of the same shape out, values 0 to `count` - 1."""
    bits = tablet_bits(count)
    tokens = np.asarray(tokens, dtype=np.int64)
    if bits == 0:  # shifting 64 bits by 64 is not defined
        return np.zeros(tokens.shape, dtype=np.int32)
    unsigned = tokens.view(np.uint64) ^ np.uint64(1 << (TOKEN_BITS - 1))
    return (unsigned >> np.uint64(TOKEN_BITS - bits)).astype(np.int32)


def tablet_range(index: int, count: int) -> tuple[int, int]:
    """The range `(start, end]` of a tablet: start exclusive, end inclusive.

    By convention the lowest range includes MIN_TOKEN although it starts there: no token lies before it that could be
    the exclusive start.
    """
    bits = tablet_bits(count)
    if not 0 <= index < count:
        raise InvalidRequest(f"there is no tablet {index} among {count}", hint=f"Ask for 0 to {count - 1}")
    width = 1 << (TOKEN_BITS - bits)
    start = MIN_TOKEN + index * width - 1
    return max(start, MIN_TOKEN), start + width


def tablet_ranges(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Starts and ends of all `count` tablets, two int64 arrays of shape (count,): `tablet_range` for all at once."""
    bits = tablet_bits(count)
    if bits == 0:  # shifting 64 bits by 64 is not defined
        return np.array([MIN_TOKEN]), np.array([MAX_TOKEN])
    above = np.arange(1, count + 1, dtype=np.uint64) << np.uint64(TOKEN_BITS - bits)
    ends = ((above - np.uint64(1)) ^ np.uint64(1 << (TOKEN_BITS - 1))).view(np.int64)
    return np.concatenate([[np.int64(MIN_TOKEN)], ends[:-1]]), ends


def tablet_label(index: int, count: int) -> str:
    """The tablet's name in storage, `"<k>-<index>"`: unambiguous also while a table is split or merged."""
    bits = tablet_bits(count)
    if not 0 <= index < count:
        raise InvalidRequest(f"there is no tablet {index} among {count}", hint=f"Ask for 0 to {count - 1}")
    return f"{bits}-{index}"


def parse_label(label: str) -> tuple[int, int]:
    """The `(index, count)` of a label. Raises InvalidRequest for anything that `tablet_label` does not write."""
    head, _, tail = label.partition("-")
    if head.isascii() and head.isdigit() and tail.isascii() and tail.isdigit():
        bits, index = int(head), int(tail)
        if bits <= MAX_TABLET_BITS and index < 1 << bits and f"{bits}-{index}" == label:
            return index, 1 << bits
    raise InvalidRequest(f"{label!r} is no tablet label: one looks like 4-11, tablet 11 of 2^4")


def range_label(low: int, high: int) -> str:
    """The name in storage of the tokens from `low` to `high`, both included: two numbers that sort like the tokens."""
    return f"{low - MIN_TOKEN:016x}-{high - MIN_TOKEN:016x}"


def tokens_of_label(label: str) -> tuple[int, int]:
    """First and last token of a tablet's label or of a range's. Raises InvalidRequest for anything else."""
    match = _RANGE_LABEL.match(label)
    if match:
        return int(match[1], 16) + MIN_TOKEN, int(match[2], 16) + MIN_TOKEN
    index, count = parse_label(label)
    width = 1 << (TOKEN_BITS - tablet_bits(count))
    return MIN_TOKEN + index * width, MIN_TOKEN + (index + 1) * width - 1


def with_token(primary_key: Sequence[str]) -> Callable[[DataFrame], DataFrame]:
    """Add `_token` BIGINT, Spark's xxhash64 of the key columns in the order of `primary_key`.

    The columns must already have the table's declared types: the hash of `1` differs from the one of `1L`. The returned
    function raises InvalidRequest, before any job, when the frame lacks key columns.
    """

    def transform(df: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # only here: commands that start no Spark must not pay for it

        missing = [name for name in primary_key if name not in df.columns]
        if not primary_key or missing:
            raise InvalidRequest(
                f"the token needs the key columns {list(primary_key)}, and the frame lacks {missing}: "
                f"it has {df.columns}"
            )
        return df.withColumn(TOKEN, F.xxhash64(*[F.col(f"`{name}`") for name in primary_key]))

    return transform


def with_tablet(count: int) -> Callable[[DataFrame], DataFrame]:
    """Add `_tablet` INT, the number of the tablet among `count` that `_token` falls in (see `tablet_of`)."""
    bits = tablet_bits(count)

    def transform(df: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        if TOKEN not in df.columns:
            raise InvalidRequest(f"the tablet needs the column {TOKEN}, see with_token: the frame has {df.columns}")
        if bits == 0:
            return df.withColumn(TABLET, F.lit(0))
        unsigned = F.col(TOKEN).bitwiseXOR(F.lit(MIN_TOKEN))
        return df.withColumn(TABLET, F.shiftrightunsigned(unsigned, TOKEN_BITS - bits).cast("int"))

    return transform
