"""Which values of files become those of a column: what loses nothing, and nothing else."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from epochlake.jobs.exchange.casting import SHOWN_ROWS, cast_without_loss, fit
from epochlake.metastore.metadata.model import Alterations, Column, Table
from epochlake.placement.errors import InvalidRequest
from hypothesis import given
from hypothesis import strategies as st

MOMENT = pa.timestamp("us", "UTC")
NOON = dt.datetime(2013, 1, 1, 12, tzinfo=dt.UTC)

WHOLE = pa.struct([("a", pa.int64()), ("b", pa.string())])
COUNTS = pa.map_(pa.string(), pa.int8())

KEPT: list[tuple[pa.DataType, list[Any], pa.DataType, list[Any]]] = [
    (pa.int64(), [1, None], pa.int32(), [1, None]),
    (pa.float64(), [1.0, -2.0], pa.int32(), [1, -2]),
    (pa.float64(), [0.5, None], pa.float32(), [0.5, None]),
    (pa.int32(), [1, 9999], pa.decimal128(6, 2), [1, 9999]),
    (pa.string(), ["2013-01-01", None], pa.date32(), [dt.date(2013, 1, 1), None]),
    (pa.string(), ["1", "-7"], pa.int32(), [1, -7]),
    (pa.string(), ["1.50", "0.1"], pa.float64(), [1.5, 0.1]),
    (pa.string(), ["2013-01-01T12:00:00Z", "2013-01-01T13:00:00+01:00"], MOMENT, [NOON, NOON]),
    (pa.timestamp("ns", "Europe/Paris"), [NOON], MOMENT, [NOON]),
    (pa.dictionary(pa.int8(), pa.string()), ["a", None], pa.string(), ["a", None]),
    (pa.binary(), [b"text"], pa.string(), ["text"]),
    (pa.null(), [None], pa.int32(), [None]),
    (pa.list_(pa.int64()), [[1, 2], None], pa.list_(pa.int32()), [[1, 2], None]),
    (pa.list_(pa.float64(), 2), [[0.5, None], None], pa.list_(pa.float32()), [[0.5, None], None]),
    (WHOLE, [{"a": 1, "b": "x"}, None], pa.struct([("b", pa.string()), ("a", pa.int8())]), [{"b": "x", "a": 1}, None]),
    (pa.struct([("a", pa.int64())]), [{"a": 1}], WHOLE, [{"a": 1, "b": None}]),
    (pa.map_(pa.string(), pa.int64()), [[("k", 1)], None, []], COUNTS, [[("k", 1)], None, []]),
]

LOST: list[tuple[pa.DataType, list[Any], pa.DataType, list[int]]] = [
    (pa.int64(), [1, 2**40, None, -(2**31) - 1], pa.int32(), [1, 3]),
    (pa.float64(), [1.0, 1.5, float("nan")], pa.int32(), [1, 2]),
    (pa.float64(), [0.1], pa.float32(), [0]),
    (pa.int64(), [2**60 + 1], pa.float64(), [0]),
    (pa.int32(), [12345], pa.decimal128(6, 2), [0]),
    (pa.string(), ["2013-1-1", "2013-02-30"], pa.date32(), [0, 1]),
    (pa.string(), ["1", "007", "1 ", "one"], pa.int32(), [1, 2, 3]),
    (pa.string(), ["1.505"], pa.decimal128(6, 2), [0]),
    (pa.string(), ["2013-01-01 12:00:00"], MOMENT, [0]),
    (pa.timestamp("us"), [dt.datetime(2013, 1, 1)], MOMENT, [0]),
    (pa.timestamp("ns"), [1, 1000], pa.timestamp("us"), [0]),
    (pa.timestamp("us"), [dt.datetime(2013, 1, 1, 1)], pa.date32(), [0]),
    (pa.date32(), [dt.date(2013, 1, 1)], MOMENT, [0]),
    (pa.binary(), [b"\xff"], pa.string(), [0]),
    (pa.uint64(), [2**63], pa.int64(), [0]),
    (pa.int64(), [2], pa.bool_(), [0]),
    (pa.int64(), [0, None], MOMENT, [0]),
    (pa.int32(), [1], pa.date32(), [0]),
    (pa.time64("us"), [dt.time(1)], pa.int64(), [0]),
    (pa.list_(pa.float64()), [[0.5], None, [0.5, 0.1]], pa.list_(pa.float32()), [2]),
    (pa.list_(pa.float64()), [[1.25]], pa.list_(pa.decimal128(5, 1)), [0]),
    (pa.list_(pa.timestamp("us")), [None, [dt.datetime(2013, 1, 1)]], pa.list_(MOMENT), [1]),
    (WHOLE, [None, {"a": 1, "b": "left behind"}], pa.struct([("a", pa.int64())]), [1]),
    (pa.list_(WHOLE), [[{"a": 2**40, "b": None}]], pa.list_(pa.struct([("a", pa.int64())])), [0]),
    (pa.map_(pa.string(), pa.float64()), [[("k", 0.5)], [("k", 0.1)]], pa.map_(pa.string(), pa.float32()), [1]),
    (pa.int64(), list(range(2**31, 2**31 + 9)), pa.int32(), list(range(SHOWN_ROWS))),
]


@pytest.mark.parametrize(("given_type", "values", "wanted", "expected"), KEPT)
def test_what_loses_nothing_is_cast(
    given_type: pa.DataType, values: list[Any], wanted: pa.DataType, expected: list[Any]
) -> None:
    found, lost = cast_without_loss(pa.chunked_array([pa.array(values, given_type)]), wanted)
    assert not lost
    assert found is not None
    assert found.type == wanted
    assert found.to_pylist() == expected


@pytest.mark.parametrize(("given_type", "values", "wanted", "rows"), LOST)
def test_rows_that_would_lose_something_are_told_by_their_numbers(
    given_type: pa.DataType, values: list[Any], wanted: pa.DataType, rows: list[int]
) -> None:
    assert cast_without_loss(pa.chunked_array([pa.array(values, given_type)]), wanted) == (None, rows)


TYPES = [pa.int8(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.decimal128(9, 3), pa.bool_()]


@given(
    values=st.lists(st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5), max_size=8),
    through=st.sampled_from(TYPES),
)
def test_who_is_cast_and_back_is_what_it_was(values: list[int | None], through: pa.DataType) -> None:
    original = pa.chunked_array([pa.array(values, pa.int64())])
    found, lost = cast_without_loss(original, through)
    if found is not None:
        assert found.cast(pa.int64()).to_pylist() == values
    else:
        assert lost
        assert all(values[number] is not None for number in lost)


def table_of(*columns: Column) -> Table:
    return Table("t", "air", "flights", columns, ("id",), append_only=False)


def test_a_missing_column_is_null_where_it_may_be_and_all_that_is_wrong_is_told_at_once() -> None:
    table = table_of(Column("id", "int", False), Column("note", "string", True), Column("day", "date", False))
    rows = pa.table({"id": pa.array([1], pa.int64()), "day": ["2013-01-01"]})
    found, done = fit(rows, table)
    assert found.to_pylist() == [{"id": 1, "note": None, "day": dt.date(2013, 1, 1)}]
    assert (done.casts, done.filled) == ({"id": "bigint to int", "day": "string to date"}, ("note",))
    assert not done.defaults, "null is no default"
    with pytest.raises(InvalidRequest) as told:
        fit(pa.table({"id": [2**40], "tail": ["x"]}), table, first_row=500_000)
    for one in ("no column tail", "column day (date) is missing", f"row 500000 has {2**40}"):
        assert one in str(told.value)
    keys, _ = fit(pa.table({"id": [1], "tail": ["x"]}), table, keys_only=True)
    assert keys.to_pylist() == [{"id": 1}]


def test_a_file_with_a_column_that_is_called_otherwise_now_is_told_so() -> None:
    columns = (Column("id", "bigint", False, 1, "id"), Column("town", "string", True, 2, "city"))
    table = Table("t", "own", "sales", columns, ("id",), alterations=Alterations(7, 2, 2))
    with pytest.raises(InvalidRequest, match=r"it has no column city; city is called town now"):
        fit(pa.table({"id": [1], "city": ["Rome"]}), table)


NESTED = [
    pa.list_(pa.int32()),
    pa.list_(pa.list_(pa.int32())),
    pa.map_(pa.string(), pa.int32()),
    pa.struct([pa.field("a", pa.int32())]),
]


@pytest.mark.parametrize("wanted", NESTED, ids=str)
def test_a_column_that_has_only_nulls_is_one_of_lists_maps_and_structs(wanted: pa.DataType) -> None:
    nothing = pa.chunked_array([pa.nulls(2)])
    found, lost = cast_without_loss(nothing, wanted)
    assert (found, lost) == (pa.chunked_array([pa.nulls(2, wanted)]), [])
    within = pa.chunked_array([pa.array([[None]], pa.list_(pa.null()))])
    assert cast_without_loss(within, pa.list_(wanted)) == (pa.chunked_array([pa.array([[None]], pa.list_(wanted))]), [])


def test_a_value_that_python_has_no_word_for_is_told_by_its_type() -> None:
    bytes_of_no_text = pa.array([b"\xff"], pa.binary()).view(pa.string())
    day = pa.array([2**31 - 1], pa.int32()).cast(pa.date32())
    elsewhere = pa.array([1], pa.int64()).cast(pa.timestamp("us", "Nowhere/Here"))
    twice = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    table = Table("id", "air", "t", (Column("id", "bigint", False), Column("n", "int")), ("id",))
    for values in (bytes_of_no_text, day, elsewhere, twice):
        with pytest.raises(InvalidRequest, match=r"column n is int, not .* row 0 has a .* that Python has no word for"):
            fit(pa.table({"id": [1], "n": values}), table)
