"""Whole numbers in the conditions of a merge stand beside columns of any type of number."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from epochlake.jobs.gate.merge_expressions import expression_of

INTS = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
TYPES = [*INTS, pa.float32(), pa.float64(), pa.decimal128(8, 2), pa.decimal128(38, 10)]


@pytest.mark.parametrize("number", [0, 50, 127, 500, 70_000, 3 * 10**9, 10**18])
@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_a_column_of_any_type_is_compared_with_any_whole_number(type_: pa.DataType, number: int) -> None:
    values = [Decimal(0), Decimal(49), Decimal(50), Decimal(127), None]
    rows = pa.table({"target.n": pa.array(values, pa.decimal128(6, 0)).cast(type_)})
    for text, expected in (
        (f"target.n < {number}", [one is not None and one < number for one in values]),
        (f"{number} <= target.n", [one is not None and one >= number for one in values]),
        (f"not target.n = {number} and target.n >= 0", [one is not None and one != number for one in values]),
    ):
        found = rows.filter(expression_of(text)).column(0).to_pylist()
        assert [int(one) for one in found] == [
            int(one) for one, is_in in zip(values, expected, strict=True) if is_in
        ], text


def test_a_whole_number_that_is_a_value_or_part_of_a_sum_stays_an_int() -> None:
    rows = pa.table({"target.n": [1, 2, 3]})
    assert rows.filter(expression_of("target.n + 1 = 3")).column(0).to_pylist() == [2]
    assert rows.filter(expression_of("2 + 1 = target.n")).column(0).to_pylist() == [3]
    assert str(expression_of("5")) == "5"
