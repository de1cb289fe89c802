"""README.md and the pages for operators are done as they are written: each command, each program, what they print."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from epochlake import Configuration, open_cluster
from epochlake.jobs.views.status import node_statuses

from tests.support.pages import REPOSITORY, agrees, perform, steps
from tests.support.slices import sliced
from tests.support.storages import STORAGE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGES = [
    "docs/api.md",
    "docs/changes.md",
    "docs/history.md",
    "docs/notebooks.md",
    "docs/own-data.md",
    "docs/pipelines.md",
    "docs/ring.md",
    "docs/spark.md",
    "docs/tables.md",
    "docs/tablets.md",
    "docs/testing.md",
    "docs/upkeep.md",
]


@pytest.fixture
def lake() -> Iterator[Path]:
    """A directory with a short name: lines that name it break at 80 columns, and the pages show them whole."""
    with tempfile.TemporaryDirectory(prefix="lake-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@pytest.mark.timeout(1200)
def test_the_readme_is_done_as_it_is_written(spark: SparkSession, lake: Path) -> None:
    follow("README.md", spark, lake)
    with open_cluster(Configuration(root=str(lake / ".epochlake"))) as cluster:
        held = {node.name: (node.state, node.tablets) for node in node_statuses(STORAGE, cluster.metadata)}
    assert held["n1"] == ("left", 0)
    assert [held[name] for name in ("n2", "n3", "n4")] == [("normal", 16)] * 3


@sliced(at_least=2)
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_done_as_it_is_written(page: str, spark: SparkSession, lake: Path) -> None:
    follow(page, spark, lake)


def follow(page: str, spark: SparkSession, lake: Path) -> None:
    assert len(list(steps(REPOSITORY / page))) > 5
    before = {*Path.cwd().iterdir()}
    for command, code, printed in perform(REPOSITORY / page, spark, lake):
        where = f"{page}:{command.line}: {command.typed}"
        # A command fails only where the page shows why.
        assert (code != 0) == ("rejected" in command.printed), f"{where} ends with {code}\n{printed}"
        assert not command.printed or agrees(printed, command.printed), f"{where} prints\n{printed}"
    # Spark's working directory is another one than that of who reads the page: relative paths lead here.
    left = {path.name for path in {*Path.cwd().iterdir()} - before if not path.name.startswith(".")}
    assert left <= {"build", "spark-warehouse"}, f"{page} leaves {left} in the directory of the tests"
