"""The token of one key without Spark. Spark itself is asked in tests/spark/test_hashing_spark.py."""

from __future__ import annotations

import pytest
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.hashing import has_token_of_its_own, token_of, xxhash64
from hypothesis import given
from hypothesis import strategies as st

# From the specification of XXH64 (its own sanity values for seed 0).
KNOWN = {b"": 0xEF46DB3751D8E999, b"a": 0xD24EC4F1A98C6E5B, b"abc": 0x44BC2CF5AD770999}


@pytest.mark.parametrize(("data", "hashed"), KNOWN.items())
def test_the_hash_is_xxh64(data: bytes, hashed: int) -> None:
    assert xxhash64(data, 0) == hashed


def taken_back(hashed: int, size: int) -> int:
    """The one word of `size` bytes that has this hash with Spark's seed: XXH64 backwards, step by step."""
    mask = (1 << 64) - 1
    p1, p2, p3, p4, p5 = (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )

    def over(prime: int) -> int:
        return pow(prime, -1, 1 << 64)

    def unshifted(value: int, bits: int) -> int:
        found = value
        for _ in range(64 // bits + 1):
            found = value ^ (found >> bits)
        return found

    def unrotated(value: int, bits: int) -> int:
        return (value >> bits | value << (64 - bits)) & mask

    hashed = unshifted(hashed, 32) * over(p3) & mask
    hashed = unshifted(hashed, 29) * over(p2) & mask
    hashed = unshifted(hashed, 33)
    begun = (42 + p5 + size) & mask
    if size == 4:
        hashed = unrotated((hashed - p3) * over(p2) & mask, 23) ^ begun
        return hashed * over(p1) & mask
    hashed = unrotated((hashed - p4) * over(p1) & mask, 27) ^ begun
    return unrotated(hashed * over(p1) & mask, 31) * over(p2) & mask


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_a_single_word_can_be_had_back_from_its_token(eight: int, four: int) -> None:
    """So no two of them have the same one: reads of such keys compare tokens only."""
    assert taken_back(xxhash64(eight.to_bytes(8, "little"), 42), 8) == eight
    assert taken_back(xxhash64(four.to_bytes(4, "little"), 42), 4) == four


@pytest.mark.parametrize(
    ("types", "own"),
    [
        (["bigint"], True),
        (["INT "], True),
        (["timestamp_ntz"], True),
        (["date"], True),
        (["boolean"], True),
        (["double"], False),  # two zeros, and many that are no number
        (["string"], False),
        (["decimal(4,2)"], False),
        (["struct<a:int>"], False),
        (["bigint", "int"], False),
        ([], False),
    ],
)
def test_keys_of_one_word_have_tokens_of_their_own(types: list[str], own: bool) -> None:
    assert has_token_of_its_own(types) is own


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
