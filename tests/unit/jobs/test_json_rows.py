"""Rows of JSON: what Arrow would quietly make something else of is read as it says, or refused with its row."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json as pa_json
import pytest
from epochlake.jobs.exchange import json_rows
from epochlake.jobs.exchange.row_files import Format, batches_of
from epochlake.metastore.metadata.model import Column
from epochlake.placement.errors import InvalidRequest

INFINITY = float("inf")


def rows(path: Path, type_: str, *values: str) -> list[Any]:
    """What is read of a column `v` with these values, which are JSON."""
    file = path / "rows.json"
    file.write_text("".join(f'{{"id": {number}, "v": {value}}}\n' for number, value in enumerate(values)))
    schema, batches = batches_of(file, Format.JSON, [Column("id", "bigint"), Column("v", type_)])
    return pa.Table.from_batches(batches, schema)["v"].to_pylist()


@pytest.mark.parametrize(
    ("type_", "values", "row"),
    [
        ("timestamp", ['"2013-01-01T10:00:00Z"', "null", '"2013-01-01T10:00:00"'], 2),
        ("timestamp", ['"2013-01-01"'], 0),
        ("timestamp", ['"2013-01-01T10:00:00.1234567Z"'], 0),
        ("array<timestamp>", ['["2013-01-01T10:00:00Z"]', '["2013-01-01T10:00:00"]'], 1),
        ("struct<at: timestamp>", ['{"at": "2013-01-01T10:00:00"}'], 0),
        ("float", ["1.5", "Infinity", "1e39"], 2),
        ("array<float>", ["[1.5]", "[1, -1e39]"], 1),
        ("struct<f: float>", ['{"f": null}', "null", '{"f": 1e39}'], 2),
        ("timestamp_ntz", ['"2013-01-01T10:00:00"', '"2013-01-01T10:00:00Z"'], 1),
        ("array<timestamp_ntz>", ["null", '["2013-01-01T10:00:00+02:00"]'], 1),
        ("date", ['"2013-01-01"', '"2013-02-30"'], 1),
        ("struct<d: date>", ["null", '{"d": null}', '{"d": "1.1.2013"}'], 2),
    ],
)
def test_what_does_not_fit_is_refused_with_its_row(tmp_path: Path, type_: str, values: list[str], row: int) -> None:
    with pytest.raises(InvalidRequest, match=f"column v is .*, and row {row} has ") as refused:
        rows(tmp_path, type_, *values)
    assert ("a time without a zone is no moment" in refused.value.hint) is (type_ == "timestamp")


def test_what_fits_is_read_as_it_is(tmp_path: Path) -> None:
    ten = [
        one.isoformat() for one in rows(tmp_path, "timestamp", '"2013-01-01T12:00:00+02:00"', '"2013-01-01 10:00:00Z"')
    ]
    assert ten == ["2013-01-01T10:00:00+00:00"] * 2
    assert rows(tmp_path, "timestamp_ntz", '"2013-01-01T10:00:00"')[0].tzinfo is None
    [[first, none]] = rows(tmp_path, "array<timestamp>", '["2013-01-01T12:00:00+02:00", null]')
    assert (first.isoformat(), none) == (ten[0], None)
    assert rows(tmp_path, "float", "0.5", "null", "Infinity", "-Infinity") == [0.5, None, INFINITY, -INFINITY]
    assert rows(tmp_path, "double", "1e39") == [1e39]
    assert rows(tmp_path, "date", '"1582-10-10"', "null", '"0001-01-01"') == [date(1582, 10, 10), None, date(1, 1, 1)]
    assert rows(tmp_path, "struct<d: date>", "null", '{"d": "1899-12-31"}') == [None, {"d": date(1899, 12, 31)}]
    assert rows(tmp_path, "array<date>", "[]", '["1899-12-31", null]') == [[], [date(1899, 12, 31), None]]
    assert rows(tmp_path, "struct<f: float, n: int>", '{"f": Infinity, "n": 1}') == [{"f": INFINITY, "n": 1}]


def test_a_file_without_the_column_has_nothing_to_refuse(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text('{"id": 1}\n')
    columns = [Column("id", "bigint"), Column("at", "timestamp"), Column("f", "float")]
    schema, batches = batches_of(file, Format.JSON, columns)
    assert pa.Table.from_batches(batches, schema)["id"].to_pylist() == [1]


def test_a_number_is_no_day(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="column v is date, and row 1 has 15706") as refused:
        rows(tmp_path, "date", "null", "15706")
    assert refused.value.hint == "Correct these rows, or the column's type"


@pytest.mark.parametrize(
    ("type_", "good", "bad"),
    [
        ("int", "2147483647", "3000000000"),
        ("int", "-1", "1.0"),
        ("int", "0", '"5"'),
        ("tinyint", "-128", "300"),
        ("bigint", "9223372036854775807", "99999999999999999999"),
        ("array<int>", "[1, null]", "[1, 3000000000]"),
        ("struct<a: smallint>", '{"a": 1, "b": {}}', '{"a": 40000}'),
        ("decimal(5,2)", '"1.25"', "1.255"),
        ("decimal(5,2)", '"1.25"', '"1000"'),
        ("boolean", "true", "1"),
        ("double", "1e3", "true"),
        ("string", '"5"', "5"),
        ("array<string>", '["a"]', '"a"'),
        ("timestamp", '"2013-01-01T10:00:00Z"', "1357034400"),
    ],
)
def test_a_value_that_arrow_refuses_is_told_with_its_row_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type_: str, good: str, bad: str
) -> None:
    monkeypatch.setattr(json_rows, "_READ", pa_json.ReadOptions(block_size=64))
    with pytest.raises(InvalidRequest) as refused:
        rows(tmp_path, type_, *[good] * 20, "null", bad, good, bad)
    assert ", and row 21 has " in refused.value.reason
    assert bad.replace('"', "'").replace("true", "True") in refused.value.reason


@pytest.mark.parametrize("bad", ['{"id": 5', "5", '{"id": 5, "v": 0x10}'])
def test_what_is_no_json_is_told_with_its_row_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    monkeypatch.setattr(json_rows, "_READ", pa_json.ReadOptions(block_size=64))
    file = tmp_path / "rows.json"
    file.write_text("".join(f'{{"id": {number}, "v": 1}}\n' for number in range(20)) + f"\n{bad}\n")
    with pytest.raises(InvalidRequest, match="row 20 is no ") as refused:
        batches_of(file, Format.JSON, [Column("id", "bigint"), Column("v", "int")])
    assert "an object for each row" in refused.value.hint


def test_a_row_of_a_block_is_not_told_as_one_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text('{"id": 1, "v": 1}\n{"id": 2, "v": "x"}\n')
    with pytest.raises(InvalidRequest, match="changed from number to string") as refused:
        batches_of(file, Format.JSON, [Column("id", "bigint")])
    assert "in row" not in str(refused.value)


@pytest.mark.parametrize("bad", [b'{"id": 1, "v": "\xff"}', b'{"id": 1, "\xff": 2}'])
def test_what_is_no_utf_8_is_no_json(tmp_path: Path, bad: bytes) -> None:
    file = tmp_path / "rows.json"
    file.write_bytes(bad)
    with pytest.raises(InvalidRequest, match=r"(?i)rows.json .*utf-?8"):
        batches_of(file, Format.JSON, [Column("id", "bigint"), Column("v", "string")])


def test_a_row_may_be_longer_than_what_is_read_at_once(tmp_path: Path) -> None:
    long = "x" * (3 * json_rows.BLOCK_BYTES)
    assert rows(tmp_path, "string", '"a"', f'"{long}"', '"b"') == ["a", long, "b"]
    with pytest.raises(InvalidRequest, match="row 2"):  # what is wrong in a long file is said all the same
        rows(tmp_path, "string", '"a"', f'"{long}"', "5")


def test_a_table_with_a_map_is_loaded_from_json_without_it(tmp_path: Path) -> None:
    assert rows(tmp_path, "map<string, int>", "null", "null") == [None, None]
    [found] = rows(tmp_path, "map<string, int>", '{"a": 1}')
    assert found == {"a": 1}  # a struct, which does not fit a map


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        (['"2013-01-01"', "null"], pa.date32()),
        (['"2013-01-01T10:00:00"', '"2013-01-01"'], pa.timestamp("us")),
        (['"2013-01-01T10:00:00Z"', '"2013-01-01T10:00:00+02:00"'], pa.timestamp("us", "UTC")),
        (['"2013-01-01T10:00:00Z"', '"2013-01-01T10:00:00"'], pa.string()),
        (['["2013-01-01T10:00:00Z"]', "null"], pa.list_(pa.timestamp("us", "UTC"))),
        (['{"at": "2013-01-01"}'], pa.struct([("at", pa.date32())])),
    ],
)
def test_what_nobody_declares_is_of_the_type_that_its_texts_say(
    tmp_path: Path, values: list[str], type_: pa.DataType
) -> None:
    file = tmp_path / "rows.json"
    file.write_text("".join(f'{{"id": {number}, "v": {value}}}\n' for number, value in enumerate(values)))
    schema, batches = batches_of(file, Format.JSON)
    assert schema.field("v").type == type_
    assert pa.Table.from_batches(batches, schema).num_rows == len(values)
