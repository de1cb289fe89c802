"""Jobs that `spark-submit` runs: the gate on a standalone cluster with two workers, the README's coordinator."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from epochlake.jobs import administration
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.spark_session import submit_options
from epochlake.metastore.configuration import Configuration
from epochlake.metastore.metadata.model import NodeState
from epochlake.metastore.metastore import init_cluster

from tests.support.clusters import FOUR, assert_at_rest, placed, without_zookeeper
from tests.support.slices import THOROUGH
from tests.support.standalone import HOST, SHORT_LIVED, StandaloneSpark

ROOT = Path(__file__).parents[2]

JOB = """
import json, sys
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.spark_session import session
from epochlake.metastore import configuration
from pyspark.sql import functions as F

spark = session("submitted")
with Cluster(configuration.load(sys.argv[1], {})) as cluster, cluster.pipeline("submitted", spark) as pipeline:
    rows = spark.range(0, 1000, 1, 4).select("id", F.lit("submitted").alias("note"))
    written = pipeline.write(rows, "air.flights", batch="one")
    read = pipeline.read("air.flights", consistency="ALL")
    where = spark.range(0, 8, 1, 8).mapInArrow(lambda batches: batches, "id long").count()
    count, total = read.agg(F.count("*"), F.sum("id")).first()
    print(json.dumps({"rows": written.rows, "tablets": written.tablets, "read": count, "where": where, "sum": total}))
spark.stop()
"""


@pytest.mark.timeout(600)
def test_a_submitted_pipeline_writes_and_reads_on_two_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_zookeeper(monkeypatch)
    cluster = placed(tmp_path, FOUR, {0: "ABC", 1: "BCX"}, append_only=True)
    conf, job = tmp_path / "epochlake.toml", tmp_path / "job.py"
    conf.write_text(f'root = "{cluster.cluster.configuration.root}"\n')
    job.write_text(JOB)
    with StandaloneSpark(tmp_path / "spark") as spark:
        ended = submit(spark.url, job, conf)
        assert ended.returncode == 0, ended.stderr[-4000:]
        workers = {path.parts[-3] for path in (tmp_path / "spark").glob("work-*/app-*/*") if path.is_dir()}
    answer = json.loads(ended.stdout.splitlines()[-1])
    assert answer == {"rows": 1000, "tablets": 2, "read": 1000, "where": 8, "sum": sum(range(1000))}
    assert workers == {"work-0", "work-1"}
    for tablet in (0, 1):
        assert_at_rest(cluster, cluster.files_on("B", tablet), tablet)


@pytest.mark.skipif(not THOROUGH, reason="what is different is in a few lines of the session")
@pytest.mark.timeout(600)
def test_a_job_that_was_given_no_jars_of_delta_reads_and_writes_rows_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_zookeeper(monkeypatch)
    cluster = placed(tmp_path, FOUR, {0: "ABC", 1: "BCX"}, append_only=True)
    conf, job = tmp_path / "epochlake.toml", tmp_path / "job.py"
    conf.write_text(f'root = "{cluster.cluster.configuration.root}"\n')
    job.write_text(JOB)
    command = [str(Path(sys.executable).parent / "spark-submit"), "--master", "local[2]", str(job), str(conf)]
    environment = bare_environment() | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": HOST}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert json.loads(ended.stdout.splitlines()[-1])["read"] == 1000
    # What a job says on its stderr spark-submit prints on its stdout.
    assert "spark-submit was not given Delta's jars" in ended.stdout + ended.stderr


@pytest.mark.timeout(600)
def test_the_submit_of_the_readme_coordinates_a_cluster_whose_zookeeper_has_never_run(tmp_path: Path) -> None:
    """PySpark comes from a zip there; the job is announced, elected and commits by the embedded ZooKeeper."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    words = shlex.split(readme.partition("`spark-submit ")[2].partition("…`")[0])
    assert words[-1] == "jobs/run_coordinator.py"
    configuration = Configuration(root=str(tmp_path / "lake"))
    init_cluster(configuration)
    with pytest.MonkeyPatch.context() as patched:
        without_zookeeper(patched)
        with Cluster(configuration) as cluster:
            administration.add_node(cluster, "n1", "dc1", "r1", [("d1", str(tmp_path / "n1"), 1 << 30)])
    ended = subprocess.run(
        [str(Path(sys.executable).parent / "spark-submit"), *words, "--root", configuration.root, "--until-idle"],
        cwd=ROOT,
        env=bare_environment() | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": HOST},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert "1 request finished" in ended.stdout
    with Cluster(configuration) as cluster:
        assert cluster.metadata.node("n1").state is NodeState.NORMAL
    assert not list((tmp_path / "lake" / "zookeeper").glob("data.*"))


def bare_environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK", "PYSPARK", "PYTEST"))}
    return kept | SHORT_LIVED


def submit(url: str, job: Path, conf: Path) -> subprocess.CompletedProcess[str]:
    options = ["--conf", f"spark.driver.host={HOST}", "--conf", f"spark.driver.bindAddress={HOST}"]
    options += ["--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.ui.enabled=false"]
    options += ["--conf", "spark.executor.memory=512m", "--conf", "spark.driver.memory=512m"]
    return subprocess.run(
        [
            str(Path(sys.executable).parent / "spark-submit"),
            *("--master", url),
            *options,
            *submit_options(),
            str(job),
            str(conf),
        ],
        cwd=ROOT,
        env=bare_environment() | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": HOST},
        capture_output=True,
        text=True,
        timeout=400,
    )
