"""The token of one key without Spark. Spark itself is asked in tests/spark/test_hashing_spark.py."""

from __future__ import annotations

import pytest
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.hashing import token_of, xxhash64

# From the specification of XXH64 (its own sanity values for seed 0).
KNOWN = {b"": 0xEF46DB3751D8E999, b"a": 0xD24EC4F1A98C6E5B, b"abc": 0x44BC2CF5AD770999}


@pytest.mark.parametrize(("data", "hashed"), KNOWN.items())
def test_the_hash_is_xxh64(data: bytes, hashed: int) -> None:
    assert xxhash64(data, 0) == hashed


def test_a_null_leaves_the_hash_as_it_is() -> None:
    assert token_of([("int", "1"), ("string", None)]) == token_of([("int", "1")])
    assert token_of([("string", None)]) == 42


def test_a_timestamp_without_a_zone_is_utc() -> None:
    assert token_of([("timestamp", "2013-01-01T05:00:00")]) == token_of([("timestamp", "2013-01-01T06:00:00+01:00")])


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("int", "one"),
        ("int", "2147483648"),
        ("tinyint", "128"),
        ("boolean", "maybe"),
        ("date", "2013-13-01"),
        ("timestamp", "yesterday"),
        ("decimal(4,2)", "123.45"),
        ("decimal(4,2)", "1.234"),
        ("binary", "abc"),
    ],
)
def test_a_text_that_is_no_value_of_its_type_is_named(type_: str, text: str) -> None:
    with pytest.raises(InvalidRequest, match=type_.partition("(")[0]):
        token_of([(type_, text)])
