"""Columns of data files are encoded as suits what is in them, and say the same whatever that is."""

from __future__ import annotations

import datetime
import decimal
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from epochlake.jobs.replicas import column_encodings
from epochlake.jobs.replicas.column_encodings import DIFFERENCES, LENGTHS_APART, distinct_values, encodings_of
from epochlake.jobs.replicas.sealing import sealed_writer
from hypothesis import given
from hypothesis import strategies as st

ROWS = 6000
CENT = decimal.Decimal("0.01")
DECIMAL = pa.decimal128(18, 2)


def test_what_comes_again_has_a_dictionary_and_what_does_not_has_none() -> None:
    chance = random.Random(7)
    numbers = [chance.getrandbits(63) for _ in range(ROWS)]
    rows = pa.table(
        {
            "unique": numbers,
            "constant": [numbers[0]] * ROWS,
            "far apart": [chance.choice(numbers[:9]) for _ in range(ROWS)],
            "small": [chance.randrange(100) for _ in range(ROWS)],
            "names": [f"name {number % 50}" for number in numbers],
            "texts": [f"{number:x}" for number in numbers],
            "measures": [chance.random() for _ in range(ROWS)],
            "marks": [float(number % 9) for number in numbers],
            "amounts": pa.array([decimal.Decimal(number % 10**9) / 100 for number in numbers], pa.decimal128(12, 2)),
            "prices": pa.array([decimal.Decimal(number % 7) * 10**9 for number in numbers], pa.decimal128(18, 4)),
            "large amounts": pa.array([decimal.Decimal(number) for number in numbers], pa.decimal128(38, 2)),
            "true": [number % 2 == 0 for number in numbers],
            "nothing": pa.nulls(ROWS, pa.int64()),
        }
    )
    encodings = encodings_of(rows)
    assert set(encodings.dictionaries) == {"far apart", "names", "marks", "prices"}
    assert encodings.others == {
        "unique": DIFFERENCES,
        "constant": DIFFERENCES,
        "small": DIFFERENCES,
        "amounts": DIFFERENCES,
        "nothing": DIFFERENCES,
        "texts": LENGTHS_APART,
    }


def test_a_column_named_like_a_leaf_of_another_is_left_to_the_writer(tmp_path: Path) -> None:
    rows = pa.table({"a": [{"b": f"text {number}"} for number in range(ROWS)], "a.b": list(range(ROWS))})
    path = tmp_path / "rows.parquet"
    with pa.OSFile(str(path), "wb") as sink, sealed_writer(sink, rows.schema, "f") as writer:
        writer.write(rows)
    assert pq.read_table(path).to_pylist() == rows.to_pylist()


def test_values_of_megabytes_are_not_all_copied_to_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    count = column_encodings.pc.count_distinct
    monkeypatch.setattr(
        column_encodings.pc, "count_distinct", lambda values, mode: counted.append(values) or count(values, mode=mode)
    )
    encodings_of(pa.table({"wide": ["x" * 300_000 + str(number) for number in range(40)]}))
    assert 0 < sum(values.nbytes for values in counted) < 2_000_000


def test_rows_that_change_after_the_first_row_group_are_still_the_same(tmp_path: Path) -> None:
    chance = random.Random(3)
    groups = [
        pa.table({"number": [5] * ROWS, "text": ["same"] * ROWS, "other": [f"{n}" for n in range(ROWS)]}),
        pa.table(
            {
                "number": [chance.getrandbits(64) - (1 << 63) for _ in range(ROWS)],
                "text": [f"{chance.getrandbits(200):x}" for _ in range(ROWS)],
                "other": ["same"] * ROWS,
            }
        ),
    ]
    path = tmp_path / "rows.parquet"
    with pa.OSFile(str(path), "wb") as sink, sealed_writer(sink, groups[0].schema, "f") as writer:
        for group in groups:
            writer.write(group)
    assert pq.read_table(path).equals(pa.concat_tables(groups))


def test_a_file_without_rows_has_its_columns(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    path = tmp_path / "rows.parquet"
    with pa.OSFile(str(path), "wb") as sink, sealed_writer(sink, schema, "f"):
        pass
    assert pq.read_table(path).equals(schema.empty_table())


@given(
    st.lists(
        st.tuples(
            st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
            st.none() | st.integers(-128, 127),
            st.none() | st.text(max_size=4),
            st.none() | st.dates(),
            st.none() | st.datetimes(datetime.datetime(1600, 1, 1), datetime.datetime(2400, 1, 1)),
            st.none() | st.binary(max_size=4),
            st.none() | st.decimals(-(10**16) + 1, 10**16 - 1, places=2).map(lambda number: number.quantize(CENT)),
        ),
        min_size=1,
        max_size=40,
    ),
    st.integers(1, 50),
)
def test_whatever_is_written_is_read(rows: list[tuple[object, ...]], times: int) -> None:
    types = (pa.int64(), pa.int8(), pa.string(), pa.date32(), pa.timestamp("us", "UTC"), pa.binary(), DECIMAL)
    columns = [pa.array([row[number] for row in rows] * times, type_) for number, type_ in enumerate(types)]
    table = pa.table(columns, names=list("abcdefg"))
    sink = pa.BufferOutputStream()
    with sealed_writer(sink, table.schema, "f") as writer:
        writer.write(table)
    assert pq.read_table(pa.BufferReader(sink.getvalue())).equals(table)


def test_different_values_are_reckoned_from_a_sample() -> None:
    chance = random.Random(11)
    for distinct in (2, 50, 4000, 30_000):
        rows = [chance.randrange(distinct) for _ in range(131_072)]
        reckoned = distinct_values(len(rows), 4096, len({*chance.sample(rows, 4096)}))
        assert 0.7 * distinct <= reckoned <= 1.4 * distinct
    assert distinct_values(1000, 1000, 17) == 17
    assert distinct_values(1000, 100, 100) == 1000
