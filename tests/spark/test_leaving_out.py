"""Conditions that leave rows out: words of files found by the hashes of their names, however many files there are."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from epochlake.jobs.replicas import leaving_out

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.mark.parametrize("count", [1, 2, 17, leaving_out.LOOKED_UP])
def test_words_are_found_by_the_hash_of_a_name_however_many_files_there_are(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Of each file but the last one of several, rows at even positions do not count, of which one is beyond a word."""
    monkeypatch.setattr(leaving_out, "SEARCHED", min(16, count - 1))
    paths = [tmp_path / f"{uuid.UUID(int=7 * number)}.parquet" for number in range(count)]
    for number, path in enumerate(paths):
        pq.write_table(pa.table({"file": [number] * 67, "row": list(range(67))}), path)
    sizes = {path.name: path.stat().st_size for path in paths}
    assert len(set(sizes.values())) <= 2, "nothing else tells the files apart"
    told = paths if count == 1 else paths[:-1]
    even = np.array([0x5555555555555555, 0b101], dtype=np.int64)
    counts = leaving_out.looked_up(spark, {path.name: even for path in told}, sizes)
    assert counts is not None
    found = spark.read.parquet(*map(str, paths)).where(counts).collect()
    expected = {
        (number, row) for number, path in enumerate(paths) for row in (range(1, 67, 2) if path in told else range(67))
    }
    assert len(found) == len(expected)
    assert {(row["file"], row["row"]) for row in found} == expected


def test_a_file_that_nobody_planned_to_read_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    names = [f"{number}.parquet" for number in range(20)]
    counts = leaving_out.looked_up(spark, {names[0]: np.array([1])}, dict.fromkeys(names, 1))
    assert counts is not None
    others = [tmp_path / f"other{number}.parquet" for number in range(20)]
    for path in others:
        pq.write_table(pa.table({"row": [0]}), path)
    # The name of one in sixty has the place of a file that was planned.
    with pytest.raises(Exception, match=rf"{leaving_out.OTHER_FILE}: other\d+\.parquet"):
        spark.read.parquet(*map(str, others)).where(counts).collect()


def test_a_table_of_hashes_has_a_place_for_each_of_many_files_and_none_for_two_of_one_hash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begins = {str(uuid.UUID(int=number)): number for number in range(leaving_out.LOOKED_UP)}
    sizes = dict.fromkeys(begins, 1)
    assert leaving_out._by_hash(begins, sizes) is not None
    assert leaving_out.have_hashes_of_their_own(begins)
    monkeypatch.setattr(leaving_out, "_hashes", lambda names, _=None: np.zeros(len(names), dtype=np.int64))
    assert leaving_out._by_hash(begins, sizes) is None
    assert not leaving_out.have_hashes_of_their_own(begins)
