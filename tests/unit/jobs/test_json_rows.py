"""Rows of JSON: what Arrow would quietly make something else of is read as it says, or refused with its row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
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
    assert rows(tmp_path, "struct<f: float, n: int>", '{"f": Infinity, "n": 1}') == [{"f": INFINITY, "n": 1}]


def test_a_file_without_the_column_has_nothing_to_refuse(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text('{"id": 1}\n')
    columns = [Column("id", "bigint"), Column("at", "timestamp"), Column("f", "float")]
    schema, batches = batches_of(file, Format.JSON, columns)
    assert pa.Table.from_batches(batches, schema)["id"].to_pylist() == [1]
