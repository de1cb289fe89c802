"""A replica's volume hangs while Spark's executors stage files on it: the write goes on with the other two."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from epochlake.jobs.replicas.volumes import MARKER_FILE
from epochlake.metastore.configuration import Configuration, StorageSettings

from tests.support.clusters import FOUR, placed, without_zookeeper
from tests.support.hanging import hanging

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEADLINE_SECONDS = 8.0
"""Of the executors, which measure every volume by it."""


def test_a_quorum_write_with_two_good_replicas_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    without_zookeeper(monkeypatch)
    configuration = Configuration(storage=StorageSettings(deadline_seconds=DEADLINE_SECONDS))
    cluster = placed(tmp_path, FOUR, "ABC", configuration=configuration)
    rows = spark.range(0, 20, 1, 1).selectExpr("id", "'kept' as note")
    with hanging(monkeypatch, cluster.directory / "B", MARKER_FILE):
        with cluster.pipeline("load", spark) as pipeline:
            pipeline.write(rows, "air.flights", consistency="QUORUM")
            assert pipeline.read("air.flights", consistency="QUORUM").count() == 20
        with cluster.pipeline("executors alone", spark) as fresh:
            fresh.write(rows, "air.flights", consistency="QUORUM")
    assert cluster.files_on("A") == cluster.files_on("C")
    assert len(cluster.files_on("A")) == 2
