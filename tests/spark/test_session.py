"""The session that everything gets, classic or Connect: Delta on board, UTC, this Python, one for a process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from epochlake.jobs.spark_session import delta_jars, session
from pyspark.sql import SparkSession

from tests.support.slices import THOROUGH

ROOT = Path(__file__).parents[2]


@pytest.mark.connect
def test_delta_tables_are_written_and_read(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(10).write.format("delta").save(str(tmp_path / "table"))
    spark.range(5).write.format("delta").mode("append").save(str(tmp_path / "table"))
    assert spark.read.format("delta").load(str(tmp_path / "table")).count() == 15
    assert spark.read.format("delta").option("versionAsOf", 0).load(str(tmp_path / "table")).count() == 10


@pytest.mark.connect
def test_the_session_that_is_there_is_used_in_every_thread(spark: SparkSession) -> None:
    counted: list[int] = []
    thread = threading.Thread(target=lambda: counted.append(session("another").range(3).count()))
    thread.start()
    thread.join()
    assert counted == [3]
    assert session("another", master="local[7]") is spark


@pytest.mark.connect
def test_workers_run_the_python_of_the_driver(spark: SparkSession) -> None:
    def executable(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"python": [sys.executable]})

    answered = spark.range(1, numPartitions=1).mapInArrow(executable, "python string").collect()
    assert [row.python for row in answered] == [os.environ["PYSPARK_PYTHON"]]


@pytest.mark.connect
def test_times_are_utc_and_delta_operations_are_small(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.databricks.delta.snapshotPartitions") == "2"


def test_delta_s_jars_are_known_without_asking_again(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask_again() -> list[str]:
        raise AssertionError("the jars were resolved again")

    monkeypatch.setattr("epochlake.jobs.spark_session._resolve", ask_again)
    assert any("delta-spark_4.2_2.13-4.4.0" in jar for jar in delta_jars())


WRITES_READS_AND_FRAMES = (
    "test_gate.py::test_rows_are_written_replaced_deleted_and_read",
    "test_gate_ranges.py::test_rows_on_the_ring_are_written_replaced_deleted_and_read_while_a_node_joins_and_another_is_away",
    "test_session.py::test_workers_run_the_python_of_the_driver",
    "test_session.py::test_times_are_utc_and_delta_operations_are_small",
    "test_dataframes.py::test_the_history_is_the_log_with_a_line_for_people",
    "test_dataframes.py::test_a_diff_of_two_epochs_names_what_changed",
)
"""Of the marked tests those that a slice takes: rows through the gate, its workers, and frames of the metadata."""


@pytest.mark.timeout(900)
def test_the_marked_tests_hold_on_spark_connect_as_well() -> None:
    if os.environ.get("EPOCHLAKE_TEST_SPARK") == "connect":
        pytest.skip("this run is the one on Spark Connect")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK", "PYTEST", "PYSPARK"))}
    paths = [] if THOROUGH else [str(ROOT / "tests" / "spark" / name) for name in WRITES_READS_AND_FRAMES]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "connect", "-q", "-p", "no:cacheprovider", *paths],
        cwd=ROOT,
        env=environ | {"EPOCHLAKE_TEST_SPARK": "connect"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " passed" in ended.stdout
