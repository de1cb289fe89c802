"""The format on a standalone cluster of Spark: a master and two workers, each a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import epochlake
import pyspark
import pytest

from tests.support.ports import free_port
from tests.support.slices import THOROUGH

HOME = Path(pyspark.__file__).parent
WORKERS = 2
ROWS = 10_000
SECONDS = 900

PROGRAM = """
import sys
import epochlake

master, root, given = sys.argv[1:]
number = int(given)
one_each = {"spark.executor.cores": "1", "spark.executor.memory": "600m", "spark.ui.enabled": "false"}
spark = epochlake.session("standalone", master=master, extra=one_each)
epochlake.register(spark)
rows = spark.range(0, number, 1, 4).selectExpr("id", "concat('row ', id) AS note")
for _ in range(2):
    saving = rows.write.format("epochlake").options(root=root, batch="once").mode("append")
    saving.save("air.events")
read = spark.read.format("epochlake").options(root=root, consistency="ALL").load("air.events")
assert sorted(row.id for row in read.collect()) == list(range(number))
with epochlake.open_cluster(epochlake.Configuration(root=root)) as cluster:
    epochlake.attach(spark, cluster)
    spark.sql("INSERT INTO events VALUES (-1, 'by SQL')")
    with cluster.pipeline("standalone", spark) as pipeline:
        pipeline.write(rows.selectExpr("-2 - id AS id", "note"), "air.events")
        assert pipeline.read("air.events").count() == 2 * number + 1
    epochlake.attach(spark, cluster)
    assert spark.sql("SELECT count(DISTINCT id) AS n FROM events").collect()[0].n == 2 * number + 1
    assert spark.sql("SELECT note FROM epochlake_read('air.events', keys => '[-1]')").collect() == [("by SQL",)]
    spark.range(10**6, 10**6 + 500).selectExpr("id", "'arrives' AS note").write.parquet(f"{root}/../arriving")
    arriving = spark.readStream.schema(rows.schema).parquet(f"{root}/../arriving")
    into = arriving.writeStream.format("epochlake").options(root=root, batch="s").trigger(availableNow=True)
    assert into.option("checkpointLocation", f"{root}/../checkpoint").start("air.events").awaitTermination(300)
    assert cluster.count("air.events") == 2 * number + 501
executors = len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) - 1
print("executors:", executors)
"""


@pytest.mark.skipif(not THOROUGH, reason="the processes of a cluster of Spark take a minute to start and to answer")
@pytest.mark.timeout(SECONDS)
def test_the_format_reads_and_writes_by_executors_of_other_processes(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    configuration = epochlake.Configuration(root=root)
    epochlake.init_cluster(configuration)
    with epochlake.open_cluster(configuration) as cluster:
        for node in ("n1", "n2", "n3"):
            epochlake.add_node(cluster, node, "dc1", node, [("d1", str(tmp_path / node), 1 << 30)])
        assert epochlake.Coordinator(cluster).run(until_idle=True).idle
        epochlake.create_keyspace(cluster, "air", {"dc1": 3})
        columns = [("id", "bigint", False), ("note", "string", True)]
        epochlake.create_table(cluster, "air.events", columns, ["id"], tablets=4, append_only=True)
        with standalone(tmp_path) as master:
            program = [sys.executable, "-c", PROGRAM, master, root, str(ROWS)]
            ended = subprocess.run(program, env=environment(), capture_output=True, text=True, timeout=SECONDS)
        assert ended.returncode == 0, ended.stderr[-3000:]
        assert f"executors: {WORKERS}" in ended.stdout
        assert not [*(tmp_path / "root" / "spills").glob("*")]


def environment() -> dict[str, str]:
    here = {"SPARK_HOME": str(HOME), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    return {name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"} | here


@contextmanager
def standalone(directory: Path) -> Iterator[str]:
    """The URL of a master, with its workers beside it."""
    port = str(free_port())
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:

        def start(kind: str, name: str, *words: str) -> None:
            command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *words]
            log = stack.enter_context((directory / f"{name}.log").open("wb"))
            place = directory / name
            place.mkdir()
            process = subprocess.Popen(command, env=environment(), cwd=place, stdout=log, stderr=subprocess.STDOUT)
            stack.callback(process.wait)
            stack.callback(process.terminate)

        start("master.Master", "master", "--host", "127.0.0.1", "--port", port, "--webui-port", "0")
        for number in range(WORKERS):
            room = ["--cores", "1", "--memory", "700m", "--webui-port", "0", "--host", "127.0.0.1"]
            start("worker.Worker", f"worker-{number}", *room, url)
        yield url
