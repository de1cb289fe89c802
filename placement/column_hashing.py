"""The hashes of whole Arrow columns without Spark: its `xxhash64`, row by row the same 64 bits.

hashing.py says what the rule is and hashes one key; here a step of it is done for all rows at once. Spark hashes the
fields of a struct and the elements of an array one after another, as it does with columns. Zeros have one hash whatever
their sign, and so have all values that are not a number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from epochlake.placement.errors import InvalidRequest
from numpy.typing import NDArray

SEED = 42
LONG_DIGITS = 18
"""Decimals with so many digits are hashed as a 64-bit number, longer ones as the bytes of theirs."""

_Hashes = NDArray[np.uint64]

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
_STRIPE = 32
_AT_A_TIME = 1 << 14
_NAN32, _NAN64 = np.uint32(0x7FC00000), np.uint64(0x7FF8000000000000)


def hashes_of(columns: Sequence[pa.Array], rows: int) -> NDArray[np.int64]:
    """Spark's `xxhash64` of columns, which have `rows` values each: int64 array of shape (rows,).

    The columns have the types that Spark gives Arrow: no dictionaries, microseconds, decimals of 128 bits. Raises
    InvalidRequest for a type that Spark does not hash, such as a map.
    """
    if len(columns) == 1 and not columns[0].null_count and _has_eight(columns[0].type):
        return _longs_hashed(_numbers(columns[0], 1, np.uint64, rows)).view(np.int64)
    hashed = np.full(rows, SEED, dtype=np.uint64)
    for column in columns:
        hashed = _hashed(column, hashed)
    return hashed.view(np.int64)


def hash_bytes(data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64], seeds: _Hashes) -> _Hashes:
    """XXH64 of the `sizes` bytes from `starts` on in `data`, each with its own seed: arrays of one shape."""
    # A word is read at any byte, so also at the last ones.
    padded = np.concatenate([data, np.zeros(8, dtype=np.uint8)])
    eights = np.ndarray((len(padded) - 7,), "<u8", padded.data, strides=(1,))
    fours = np.ndarray((len(padded) - 3,), "<u4", padded.data, strides=(1,))
    hashed = seeds + _P5
    stripes = sizes // _STRIPE
    long = np.flatnonzero(stripes)
    if len(long):
        hashed[long] = _striped(eights, starts[long], stripes[long], seeds[long])
    hashed += sizes.astype(np.uint64)
    at = starts + stripes * _STRIPE
    left = sizes % _STRIPE
    for step in range(3):
        rows = np.flatnonzero(left >= 8 * (step + 1))
        if not len(rows):
            break
        hashed[rows] = _with_eight(hashed[rows], eights[at[rows] + 8 * step])
    at += left // 8 * 8
    rows = np.flatnonzero(left % 8 >= 4)
    hashed[rows] = _with_four(hashed[rows], fours[at[rows]].astype(np.uint64))
    at += left % 8 // 4 * 4
    for step in range(3):
        rows = np.flatnonzero(left % 4 > step)
        if not len(rows):
            break
        hashed[rows] = _rotated(hashed[rows] ^ padded[at[rows] + step] * _P5, 11) * _P1
    return _mixed(hashed)


def _hashed(column: pa.Array, seeds: _Hashes) -> _Hashes:
    """The hash of each value with its seed; of a null, the seed."""
    kind = column.type
    if pa.types.is_null(kind):
        return seeds
    if pa.types.is_struct(kind):
        # Flattened, a field of a null struct is null.
        for field in column.flatten():
            seeds = _hashed(field, seeds)
        return seeds
    if pa.types.is_list(kind):
        return _elements_hashed(column, seeds)
    hashed = _values_hashed(column, seeds)
    return np.where(_valid(column), hashed, seeds) if column.null_count else hashed


def _values_hashed(column: pa.Array, seeds: _Hashes) -> _Hashes:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        offsets = _numbers(column, 1, np.int32, len(column) + 1).astype(np.int64)
        return hash_bytes(_bytes(column.buffers()[2]), offsets[:-1], np.diff(offsets), seeds)
    if pa.types.is_boolean(kind):
        return _four_hashed(_plain(column, False).astype(np.uint32), seeds)
    if pa.types.is_int8(kind) or pa.types.is_int16(kind) or pa.types.is_int32(kind):
        return _four_hashed(_plain(column, 0).astype(np.int32), seeds)
    if pa.types.is_date32(kind):
        return _four_hashed(_numbers(column, 1, np.int32, len(column)), seeds)
    if _has_eight(kind):
        return _eight_hashed(_numbers(column, 1, np.int64, len(column)), seeds)
    if pa.types.is_float32(kind):
        values = _plain(column, 0.0)
        bits = np.where(values == 0, np.float32(0), values).view(np.uint32)
        return _four_hashed(np.where(np.isnan(values), _NAN32, bits), seeds)
    if pa.types.is_float64(kind):
        values = _plain(column, 0.0)
        bits = np.where(values == 0, np.float64(0), values).view(np.uint64)
        return _eight_hashed(np.where(np.isnan(values), _NAN64, bits), seeds)
    if pa.types.is_decimal128(kind):
        return _decimals_hashed(column, seeds)
    raise InvalidRequest(f"values of the Arrow type {kind} are not hashed here")


def _elements_hashed(column: pa.Array, seeds: _Hashes) -> _Hashes:
    offsets = _numbers(column, 1, np.int32, len(column) + 1).astype(np.int64)
    sizes = np.where(_valid(column), np.diff(offsets), 0)
    hashed = seeds.copy()
    step = 0
    while len(rows := np.flatnonzero(sizes > step)):
        elements = column.values.take(pa.array(offsets[rows] + step))
        hashed[rows] = _hashed(elements, hashed[rows])
        step += 1
    return hashed


def _decimals_hashed(column: pa.Array, seeds: _Hashes) -> _Hashes:
    low, high = _numbers(column, 1, np.uint64, len(column), width=2).reshape(-1, 2).T
    if column.type.precision <= LONG_DIGITS:
        return _eight_hashed(low, seeds)
    # Java's shortest two's complement, the highest byte first: what only repeats the sign goes, but for one bit.
    digits = np.ascontiguousarray(np.stack([high, low], axis=1).byteswap()).view(np.uint8)
    sign = np.where(digits[:, :1] >= 0x80, 0xFF, 0).astype(np.uint8)
    differs = digits != sign
    first = np.where(differs.any(axis=1), differs.argmax(axis=1), 15)
    needs_sign = (digits[np.arange(len(first)), first] ^ sign[:, 0]) >= 0x80
    first = first - needs_sign
    starts = np.arange(len(first), dtype=np.int64) * 16 + first
    return hash_bytes(digits.reshape(-1), starts, 16 - first, seeds)


def _striped(eights: _Hashes, starts: NDArray[np.int64], stripes: NDArray[np.int64], seeds: _Hashes) -> _Hashes:
    """What the whole stripes of 32 bytes make of the seeds."""
    lanes = np.stack([seeds + _P1 + _P2, seeds + _P2, seeds, seeds - _P1])
    steps = 8 * np.arange(4)[:, None]
    number = 0
    while len(rows := np.flatnonzero(stripes > number)):
        words = eights[starts[rows] + number * _STRIPE + steps]
        lanes[:, rows] = _rotated(lanes[:, rows] + words * _P2, 31) * _P1
        number += 1
    hashed: _Hashes = np.zeros(len(seeds), dtype=np.uint64)
    for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True):
        hashed += _rotated(lane, bits)
    for lane in lanes:
        hashed = (hashed ^ _rotated(lane * _P2, 31) * _P1) * _P1 + _P4
    return hashed


def _four_hashed(values: NDArray[np.int32] | NDArray[np.uint32], seeds: _Hashes) -> _Hashes:
    return _mixed(_with_four(seeds + (_P5 + np.uint64(4)), values.view(np.uint32).astype(np.uint64)))


def _eight_hashed(values: NDArray[np.int64] | NDArray[np.uint64], seeds: _Hashes) -> _Hashes:
    return _mixed(_with_eight(seeds + (_P5 + np.uint64(8)), values.view(np.uint64)))


def _has_eight(kind: pa.DataType) -> bool:
    """Whether it is hashed as the eight bytes that Arrow has for a value."""
    return pa.types.is_int64(kind) or (pa.types.is_timestamp(kind) and kind.unit == "us")


def _longs_hashed(values: _Hashes) -> _Hashes:
    """`_eight_hashed` of a key that is one number, the most frequent one: in place, some at a time, which takes half as
    long, and less where several threads do it, as no memory is taken and given back for each step.
    """
    hashed = np.empty(len(values), dtype=np.uint64)
    beside = np.empty(min(len(values), _AT_A_TIME), dtype=np.uint64)
    begun = np.uint64(SEED) + (_P5 + np.uint64(8))
    for start in range(0, len(values), _AT_A_TIME):
        some = hashed[start : start + _AT_A_TIME]
        shifted = beside[: len(some)]
        np.multiply(values[start : start + _AT_A_TIME], _P2, out=some)
        _rotate(some, 31, shifted)
        some *= _P1
        some ^= begun
        _rotate(some, 27, shifted)
        some *= _P1
        some += _P4
        for bits, prime in ((33, _P2), (29, _P3)):
            some ^= np.right_shift(some, np.uint64(bits), out=shifted)
            some *= prime
        some ^= np.right_shift(some, np.uint64(32), out=shifted)
    return hashed


def _rotate(values: _Hashes, bits: int, beside: _Hashes) -> None:
    """`_rotated` in place; `beside` has room for what is between."""
    np.right_shift(values, np.uint64(64 - bits), out=beside)
    values <<= np.uint64(bits)
    values |= beside


def _with_four(hashed: _Hashes, words: _Hashes) -> _Hashes:
    return _rotated(hashed ^ words * _P1, 23) * _P2 + _P3


def _with_eight(hashed: _Hashes, words: _Hashes) -> _Hashes:
    return _rotated(hashed ^ _rotated(words * _P2, 31) * _P1, 27) * _P1 + _P4


def _mixed(hashed: _Hashes) -> _Hashes:
    hashed = (hashed ^ hashed >> np.uint64(33)) * _P2
    hashed = (hashed ^ hashed >> np.uint64(29)) * _P3
    return hashed ^ hashed >> np.uint64(32)


def _rotated(values: _Hashes, bits: int) -> _Hashes:
    return values << np.uint64(bits) | values >> np.uint64(64 - bits)


def _valid(column: pa.Array) -> NDArray[np.bool_]:
    valid: NDArray[np.bool_] = pc.is_valid(column).to_numpy(zero_copy_only=False)
    return valid


def _plain(column: pa.Array, instead: object) -> NDArray:
    """The values, `instead` of each null."""
    filled = column.fill_null(instead) if column.null_count else column
    values: NDArray = filled.to_numpy(zero_copy_only=False)
    return values


def _numbers(column: pa.Array, buffer: int, dtype: type[np.generic], count: int, width: int = 1) -> NDArray:
    """What a buffer of a column has for its values, `width` numbers for each; under a null stands anything."""
    data = column.buffers()[buffer]
    if data is None or data.size == 0:
        return np.zeros(count * width, dtype=dtype)
    offset = column.offset * width * np.dtype(dtype).itemsize
    return np.frombuffer(data, dtype=dtype, count=count * width, offset=offset)


def _bytes(buffer: pa.Buffer | None) -> NDArray[np.uint8]:
    return np.zeros(0, dtype=np.uint8) if buffer is None else np.frombuffer(buffer, dtype=np.uint8)
