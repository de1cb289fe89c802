"""A user's pipeline, tested with `epochlake.testing` and Spark as docs/testing.md says."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import epochlake
import pytest
from epochlake.metastore.configuration import StorageSettings
from epochlake.testing import LocalCluster, local_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

from tests.support.slices import sliced

CONFIGURATION = epochlake.Configuration(storage=StorageSettings(deadline_seconds=2.0))
TABLE = "test.events"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path, configuration=CONFIGURATION) as lake:
        columns = [("id", "bigint", False), ("note", "string", True)]
        epochlake.create_table(lake.cluster, TABLE, columns, ["id"], tablets=1)
        yield lake


def load(cluster: epochlake.Cluster, spark: SparkSession, start: int, level: str = "QUORUM") -> None:
    with cluster.pipeline("load", spark) as pipeline:
        pipeline.write(spark.range(start, start + 10, 1, 1).selectExpr("id", "'x' AS note"), TABLE, consistency=level)


def ids(cluster: epochlake.Cluster, spark: SparkSession, level: str = "QUORUM") -> list[int]:
    with cluster.pipeline("look", spark) as pipeline:
        return sorted(row.id for row in pipeline.read(TABLE, consistency=level).collect())


def test_a_pipeline_that_plans_at_an_old_epoch_is_fenced_and_plans_again(
    lake: LocalCluster, spark: SparkSession
) -> None:
    job = lake.participant("job")
    rows = spark.range(0, 10, 1, 1).selectExpr("id", "'x' AS note")
    epochlake.add_node(lake.cluster, "n4", "dc1", "r1", [("d1", str(lake.volume("n4")), None)])
    assert lake.coordinate().idle
    job.catch_up()
    with ThreadPoolExecutor() as threads, job.pipeline("load", spark) as pipeline:
        planned = pipeline.epoch
        with lake.hold_news(job):
            epochlake.decommission(lake.cluster, "n1")
            assert lake.coordinate().idle
            writes = threads.submit(pipeline.write, rows, TABLE)
            assert ids(lake.cluster, spark) == []
            assert pipeline.epoch == planned
            assert not writes.done()
        assert writes.result(60).epoch == pipeline.epoch == lake.epoch > planned
    assert ids(lake.cluster, spark, "ALL") == list(range(10))


@pytest.mark.timing
@sliced()
@pytest.mark.parametrize("fault", ["away", "full", "hangs"])
def test_a_pipeline_does_without_a_volume_that_fails(lake: LocalCluster, spark: SparkSession, fault: str) -> None:
    with getattr(lake, fault)("n2"):
        load(lake.cluster, spark, 0)
        assert ids(lake.cluster, spark) == list(range(10))
    afterwards = lake.participant("afterwards")
    load(afterwards, spark, 10, "ALL")
    assert epochlake.repair(afterwards, TABLE).complete
    assert ids(afterwards, spark, "ALL") == list(range(20))
