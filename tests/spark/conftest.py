"""What tests of the format share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import epochlake
import pytest
from epochlake.metastore import configuration as configurations

from tests.support.lakes import COLUMNS, FLIGHTS, Lake, flights

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Lake]:
    directory = tmp_path_factory.mktemp("source")
    conf = directory / "epochlake.toml"
    conf.write_text(f'root = "{directory / "root"}"\n[zookeeper]\nembedded_linger_seconds = 0\n', encoding="utf-8")
    configuration = configurations.load(conf, environ={})
    epochlake.init_cluster(configuration)
    with epochlake.open_cluster(configuration) as cluster:
        for number, node in enumerate("ABC"):
            epochlake.add_node(cluster, node, "dc1", f"r{number}", [("d1", str(directory / node), 1 << 30)])
        assert epochlake.Coordinator(cluster).run(until_idle=True).idle
        epochlake.create_keyspace(cluster, "air", {"dc1": 3})
        epochlake.create_table(cluster, FLIGHTS, COLUMNS, ["carrier", "number"], tablets=4)
        epochlake.register(spark)
        with cluster.pipeline("load", spark) as pipeline:
            for upper in (400, 200, 40):
                pipeline.write(flights(spark, upper), FLIGHTS)
            pipeline.delete(spark.sql("select 'AA' as carrier, 9 as number"), FLIGHTS)
        yield Lake(cluster, spark, conf, directory)


@pytest.fixture
def sales(lake: Lake, request: pytest.FixtureRequest) -> str:
    """A new, empty table."""
    name = f"air.t{abs(hash(request.node.name)) % 10**8}"
    columns = [("id", "bigint", False), ("note", "string", True), ("day", "date", True)]
    epochlake.create_table(lake.cluster, name, columns, ["id"], tablets=4)
    return name
