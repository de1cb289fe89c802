"""Files that are changed or taken away while they are loaded, that point out of themselves, or have long rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from epochlake.jobs.exchange import loading, row_files, sources
from epochlake.jobs.exchange.row_files import Format, batches_of
from epochlake.metastore.metadata.model import Column
from epochlake.placement.errors import InvalidRequest

from tests.support.clusters import FOUR, SmallCluster, placed, without_zookeeper

TABLE = "air.flights"


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallCluster]:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(sources, "ROWS_OF_PART", 100)
    columns = [("id", "bigint", False), ("m", "map<string,int>", True)]
    made = placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"}, columns=columns, primary_key=("id",))
    with made.cluster:
        yield made


def changing(monkeypatch: pytest.MonkeyPatch, number: int, change: Callable[[], Any]) -> None:
    """Let a change happen when so many parts of files have been read."""
    parts_of, read = loading.parts_of, [0]

    def slow(*args: Any) -> Iterator[Any]:
        for part in parts_of(*args):
            read[0] += 1
            if read[0] == number:
                change()
            yield part

    monkeypatch.setattr(loading, "parts_of", slow)


def test_a_file_that_grows_while_it_is_read_is_not_taken_for_whole(
    small: SmallCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "grows.csv"
    file.write_text("id\n1\n2\n")

    def grow() -> None:
        with file.open("a") as more:
            more.write("3\n")

    changing(monkeypatch, 1, grow)
    with pytest.raises(InvalidRequest, match="was changed while it was loaded"):
        small.cluster.load(TABLE, file)
    assert small.cluster.count(TABLE) == 0
    small.cluster.load(TABLE, file)
    assert small.cluster.count(TABLE) == 3


@pytest.mark.parametrize(("rows", "parts"), [(50, 1), (250, 5)])
def test_a_file_that_is_taken_away_while_it_is_read_is_said_to_be_changed(
    small: SmallCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, parts: int
) -> None:
    file = tmp_path / "goes.parquet"
    pq.write_table(pa.table({"id": range(rows)}), file)
    changing(monkeypatch, parts, file.unlink)
    with pytest.raises(InvalidRequest, match="was changed while it was loaded"):
        small.cluster.load(TABLE, file)


def arrow_file(path: Path, stream: bool, rows: pa.Table) -> Path:
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(str(path), rows.schema) as writer:
        writer.write_table(rows)
    return path


@pytest.mark.parametrize("stream", [True, False])
def test_rows_of_arrow_that_were_read_stay_what_they_were(tmp_path: Path, stream: bool) -> None:
    file = arrow_file(tmp_path / "rows.arrow", stream, pa.table({"id": [1] * 5_000}))
    _, batches = batches_of(file, Format.ARROW)
    read = next(batches)
    with file.open("r+b") as change:
        change.write(b"\xff" * file.stat().st_size)
    assert read["id"].to_pylist() == [1] * 5_000


@pytest.mark.parametrize("stream", [True, False])
def test_a_file_of_arrow_that_points_out_of_itself_is_refused(tmp_path: Path, stream: bool) -> None:
    file = arrow_file(tmp_path / "rows.arrow", stream, pa.table({"t": ["abcdefgh", "ijklmnop"]}))
    data, offset = file.read_bytes(), (8).to_bytes(4, "little") + (16).to_bytes(4, "little")
    assert data.count(offset) == 1
    file.write_bytes(data.replace(offset, (8).to_bytes(4, "little") + (1 << 30).to_bytes(4, "little")))
    with pytest.raises(InvalidRequest, match="cannot be read as arrow"):
        list(batches_of(file, Format.ARROW)[1])


@pytest.mark.parametrize("first", [True, False])
def test_rows_of_a_csv_may_be_longer_than_what_is_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    monkeypatch.setattr(row_files, "BLOCK_BYTES", 1 << 10)
    before = ["a" * 300_000] if first else ["e" * 900, "f" * 99_999]
    texts = [*before, *("b" * (number % 50) for number in range(500)), "c" * 90_000, "d"]
    file = tmp_path / "long.csv"
    file.write_text("id,t,n\n" + "".join(f'{number},"{text}",1\n' for number, text in enumerate(texts)))
    schema, batches = batches_of(file, Format.CSV, [Column("id", "bigint"), Column("t", "string")])
    read = pa.Table.from_batches(batches, schema)
    assert (read["id"].to_pylist(), read["t"].to_pylist()) == ([*range(len(texts))], texts)
    assert read["n"].to_pylist() == [1] * len(texts)
    with file.open("a") as more:
        more.write("x,e,1\n")
    with pytest.raises(InvalidRequest, match=f"column id is bigint, and row {len(texts)} has 'x'"):
        list(batches_of(file, Format.CSV, [Column("id", "bigint"), Column("t", "string")])[1])


@pytest.mark.parametrize("format_", [Format.CSV, Format.JSON])
def test_names_of_columns_that_are_no_utf_8_are_refused(tmp_path: Path, format_: Format) -> None:
    file = tmp_path / "rows"
    file.write_bytes(b"id,\xff\n1,2\n" if format_ is Format.CSV else b'{"id": 1, "\xff": 2}')
    with pytest.raises(InvalidRequest, match="a column whose name is no text in UTF-8"):
        batches_of(file, format_)


def test_a_map_in_a_file_of_json_is_refused_and_a_file_without_it_loaded(small: SmallCluster, tmp_path: Path) -> None:
    (tmp_path / "map.json").write_text('{"id": 1, "m": {"a": 1}}')
    with pytest.raises(InvalidRequest, match="column m is map"):
        small.cluster.load(TABLE, tmp_path / "map.json")
    (tmp_path / "none.json").write_text('{"id": 1}')
    small.cluster.load(TABLE, tmp_path / "none.json")
    assert small.cluster.get(TABLE, 1) == {"id": 1, "m": None}
