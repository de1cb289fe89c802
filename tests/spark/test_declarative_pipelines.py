"""`spark-pipelines run` with a table of a cluster as the sink of a flow, and one as the source of a view."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import epochlake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.slices import THOROUGH

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.skipif(not THOROUGH, reason="a run of spark-pipelines takes most of a minute")
def test_the_page_s_pipelines_read_and_write_tables_and_run_again_without_a_row_twice(tmp_path: Path) -> None:
    (tmp_path / "arriving").mkdir()
    configuration = epochlake.Configuration(root=str(tmp_path / "root"))
    epochlake.init_cluster(configuration)
    with epochlake.open_cluster(configuration) as cluster:
        for node in ("n1", "n2", "n3"):
            epochlake.add_node(cluster, node, "dc1", node, [("d1", str(tmp_path / node), 10**9)])
        assert epochlake.Coordinator(cluster).run(until_idle=True).idle
        epochlake.create_keyspace(cluster, "web", {"dc1": 3})
        epochlake.create_table(cluster, "web.clicks", [("id", "bigint", False), ("page", "string", True)], ["id"])
        for number in (1, 2):
            ids = range(number * 100, (number + 1) * 100)
            rows = pa.table({"id": ids, "page": [f"/{one % 7}" for one in ids]})
            pq.write_table(rows, tmp_path / "arriving" / f"{number}.parquet")
            run(tmp_path, tmp_path / "project")
            assert cluster.count("web.clicks") == number * 100


def run(lake: Path, place: Path) -> None:
    (place / "transformations").mkdir(parents=True, exist_ok=True)
    # Where Spark has no metastore it forgets the view's table, and not its files.
    shutil.rmtree(place / "spark-warehouse", ignore_errors=True)
    found_by_spark = place / "site" / "pyspark_epochlake"
    shutil.copytree(REPOSITORY / "pyspark_epochlake", found_by_spark, dirs_exist_ok=True)
    (place / "transformations" / "flows.py").write_text(of_the_page().replace("/lake/", f"{lake}/"), encoding="utf-8")
    (place / "spark-pipeline.yml").write_text(
        f"name: clicks\nstorage: file://{place}/storage\nlibraries:\n  - glob:\n      include: transformations/**\n",
        encoding="utf-8",
    )
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(place / "site"),
    }
    environment.pop("SPARK_REMOTE", None)
    ended = subprocess.run(
        ["spark-pipelines", "run"], cwd=place, env=environment, capture_output=True, text=True, timeout=300
    )
    assert "Run is COMPLETED" in ended.stderr + ended.stdout, ended.stderr


def of_the_page() -> str:
    page = (REPOSITORY / "docs" / "spark.md").read_text(encoding="utf-8")
    [found] = re.findall(r'    pipelines = """\n(.*?)\n    """', page, re.DOTALL)
    return textwrap.dedent(found)
