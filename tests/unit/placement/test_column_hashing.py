"""The hashes of Arrow columns. Spark itself is asked in tests/spark/test_without_spark.py."""

from __future__ import annotations

import random
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from epochlake.placement import column_hashing
from epochlake.placement.column_hashing import hash_bytes, hashes_of
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.hashing import token_of, xxhash64

from tests.unit.placement.test_hashing import KNOWN


def hashed(values: list[bytes], seeds: list[int]) -> list[int]:
    sizes = np.array([len(value) for value in values], dtype=np.int64)
    data = np.frombuffer(b"".join(values), dtype=np.uint8)
    return hash_bytes(data, np.cumsum(sizes) - sizes, sizes, np.array(seeds, dtype=np.uint64)).tolist()


def test_the_hash_of_bytes_is_xxh64() -> None:
    assert hashed(list(KNOWN), [0] * len(KNOWN)) == list(KNOWN.values())


def test_bytes_of_any_length_and_seed_have_the_hash_of_one_value(seed: int) -> None:
    dice = random.Random(seed)
    values = [dice.randbytes(size) for size in [*range(130), 1000, 4096]]
    seeds = [dice.getrandbits(64) for _ in values]
    assert hashed(values, seeds) == [xxhash64(value, one) for value, one in zip(values, seeds, strict=True)]


def test_keys_have_the_tokens_that_are_looked_up_one_by_one(seed: int) -> None:
    dice = random.Random(seed)
    keys = [(dice.randrange(-(2**63), 2**63), "".join(dice.choices("abcé ", k=n)) or None) for n in range(80)]
    whole, text = pa.array([key for key, _ in keys]), pa.array([text for _, text in keys])
    tokens = [token_of([("bigint", str(key)), ("string", text)]) for key, text in keys]
    assert hashes_of([whole, text], len(keys)).tolist() == tokens
    assert hashes_of([whole.slice(7, 50), text.slice(7, 50)], 50).tolist() == tokens[7:57]


@pytest.mark.parametrize("size", [0, 1, 4, 5, 9])
def test_a_key_of_one_number_has_the_same_tokens_however_many_there_are(
    size: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(column_hashing, "_AT_A_TIME", 4)
    dice = random.Random(seed)
    keys = [dice.randrange(-(2**63), 2**63) for _ in range(size + 2)]
    tokens = [token_of([("bigint", str(key))]) for key in keys]
    for type_ in (pa.int64(), pa.timestamp("us", "UTC"), pa.timestamp("us")):
        column = pa.array(keys, pa.int64()).cast(type_)
        assert hashes_of([column], len(column)).tolist() == tokens
        assert hashes_of([column.slice(1, size)], size).tolist() == tokens[1 : 1 + size]
    with_null = pa.array([*keys, None], pa.int64())
    assert hashes_of([with_null], len(with_null)).tolist() == [*tokens, 42]


def test_long_decimals_are_hashed_as_the_bytes_of_their_number() -> None:
    numbers = [sign * 2**bits + more for bits in range(0, 120, 7) for sign in (1, -1) for more in (-1, 0, 1)]
    column = pa.array([None, *map(Decimal, numbers)], pa.decimal128(38, 0))
    assert hashes_of([column], len(column)).tolist() == [42, *(token_of([("decimal(38,0)", str(n))]) for n in numbers)]


def test_fields_and_elements_are_hashed_one_after_another_and_nulls_leave_the_seed() -> None:
    one, two = pa.array([1, 2, None], pa.int32()), pa.array(["a", None, None])
    struct = pa.StructArray.from_arrays([one, two], ["x", "y"])
    assert hashes_of([struct], 3).tolist() == hashes_of([one, two], 3).tolist()
    lists = pa.array([[1, None, 2], [], None], pa.list_(pa.int32()))
    assert hashes_of([lists], 3).tolist() == [token_of([("int", "1"), ("int", "2")]), 42, 42]
    hidden = pa.StructArray.from_arrays([one, two], ["x", "y"], mask=pa.array([True, False, False]))
    assert hashes_of([hidden], 3).tolist()[0] == 42


def test_zeros_have_one_hash_and_so_has_whatever_is_no_number() -> None:
    other_nan = np.array([0x7FF8000000000001], dtype=np.uint64).view(np.float64)[0]
    for type_ in (pa.float32(), pa.float64()):
        zero, negative, nan, other = hashes_of([pa.array([0.0, -0.0, float("nan"), other_nan], type_)], 4).tolist()
        assert (zero, nan) == (negative, other)


def test_a_map_is_not_hashed() -> None:
    with pytest.raises(InvalidRequest, match="map"):
        hashes_of([pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32()))], 1)
