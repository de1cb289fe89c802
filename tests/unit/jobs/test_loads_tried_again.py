"""Loads that are tried again after files have come, or by another version: no row lands twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import epochlake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from epochlake.jobs.exchange import sources
from epochlake.placement.errors import InvalidRequest

from tests.support.clusters import FOUR, SmallCluster, placed, without_zookeeper

COLUMNS = [("id", "bigint", False), ("day", "date", True), ("delay", "int", True)]


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallCluster]:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(sources, "ROWS_OF_PART", 100)
    made = placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"}, columns=COLUMNS, primary_key=("id",))
    with made.cluster:
        yield made


def rows(first: int, last: int) -> pa.Table:
    return pa.table({"id": pa.array(range(first, last), pa.int64())})


def ids_in(small: SmallCluster) -> list[int]:
    return sorted(small.cluster.scan("air.added", columns=["id"]).read_all()["id"].to_pylist())


@pytest.mark.parametrize(
    ("pattern", "first"),
    [("**/*.parquet", "two/one"), ("*/a.parquet", "one"), ("*/o*/*.parquet", "two/one")],
)
def test_files_of_a_pattern_have_their_names_whatever_else_it_finds(
    small: SmallCluster, tmp_path: Path, pattern: str, first: str
) -> None:
    epochlake.create_table(small.cluster, "air.added", COLUMNS, ["id"], append_only=True)
    (tmp_path / "in/two/one").mkdir(parents=True)
    (tmp_path / "in/one").mkdir()
    pq.write_table(rows(0, 250), tmp_path / "in" / first / "a.parquet")
    small.cluster.load("air.added", str(tmp_path / "in" / pattern), batch="jan")
    pq.write_table(rows(300, 310), tmp_path / "in/two/a.parquet")
    (tmp_path / "in/two/other").mkdir()
    pq.write_table(rows(310, 320), tmp_path / "in/two/other/a.parquet")
    small.cluster.load("air.added", str(tmp_path / "in" / pattern), batch="jan")
    assert ids_in(small)[:250] == [*range(250)]
    assert len(ids_in(small)) > 250
    assert len(set(ids_in(small))) == len(ids_in(small))


def test_a_load_of_a_pattern_that_an_earlier_version_has_begun_goes_on(small: SmallCluster, tmp_path: Path) -> None:
    epochlake.create_table(small.cluster, "air.added", COLUMNS, ["id"], append_only=True)
    (tmp_path / "in/one").mkdir(parents=True)
    pq.write_table(rows(0, 250), tmp_path / "in/one/a.parquet")
    # It called files by the directory that those that were found had in common.
    small.cluster.load("air.added", str(tmp_path / "in/one"), batch="jan")
    done = small.cluster.load("air.added", str(tmp_path / "in/*/a.parquet"), batch="jan")
    assert all(part.written.already for part in done)
    assert ids_in(small) == [*range(250)]


def test_a_pattern_that_a_shell_has_made_one_name_of_and_then_two_lands_no_row_twice(
    small: SmallCluster, tmp_path: Path
) -> None:
    epochlake.create_table(small.cluster, "air.added", COLUMNS, ["id"], append_only=True)
    files = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    pq.write_table(rows(0, 250), files[0])
    pq.write_table(rows(250, 260), files[1])
    small.cluster.load("air.added", files[:1], batch="one")
    with pytest.raises(InvalidRequest, match="batch 'one' was a load of one file"):
        small.cluster.load("air.added", files, batch="one")
    assert ids_in(small) == [*range(250)]
    small.cluster.load("air.added", files[1:], batch="two")
    small.cluster.load("air.added", files, batch="three")
    small.cluster.load("air.added", files[:1], batch="three")
    assert len(ids_in(small)) == 520
