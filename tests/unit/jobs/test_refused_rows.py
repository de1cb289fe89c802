"""Rows that are no DataFrame of Spark: the error says how to make one of them, and nothing is committed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pyarrow as pa
import pytest
from epochlake.jobs import administration
from epochlake.jobs.gate.pipeline import Pipeline
from epochlake.placement.errors import InvalidRequest

from tests.support.clusters import FOUR, SmallCluster, placed, without_zookeeper

ROWS = {
    "a list": [{"id": 1, "note": "x"}],
    "a dict": {"id": [1], "note": ["x"]},
    "of pandas": pd.DataFrame({"id": [1], "note": ["x"]}),
    "of Arrow": pa.table({"id": [1], "note": ["x"]}),
}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallCluster:
    without_zookeeper(monkeypatch)
    return placed(tmp_path, FOUR, "ABC")


def write(pipeline: Pipeline, rows: object) -> object:
    return pipeline.write(rows, "air.flights")  # type: ignore[arg-type]


def delete(pipeline: Pipeline, rows: object) -> object:
    return pipeline.delete(rows, "air.flights")  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ROWS)
@pytest.mark.parametrize("act", [write, delete])
def test_rows_that_are_no_dataframe_are_refused_with_what_makes_one_of_them(
    cluster: SmallCluster, act: Callable[[Pipeline, object], object], what: str
) -> None:
    before = {node: cluster.files_within(node) for node in "ABC"}
    with cluster.pipeline() as pipeline, pytest.raises(InvalidRequest) as refused:
        act(pipeline, ROWS[what])
    assert what in str(refused.value)
    assert "createDataFrame" in str(refused.value)
    assert {node: cluster.files_within(node) for node in "ABC"} == before


@pytest.mark.parametrize("name", [None, "", 5])
def test_a_pipeline_without_a_name_is_refused_before_it_is_announced(cluster: SmallCluster, name: object) -> None:
    with pytest.raises(InvalidRequest, match="needs a name"):
        cluster.cluster.pipeline(name, SimpleNamespace(createDataFrame=None))  # type: ignore[arg-type]


def test_a_closed_cluster_says_at_once_that_nothing_can_be_committed_to_it(cluster: SmallCluster) -> None:
    cluster.cluster.close()
    with pytest.raises(InvalidRequest, match="was closed"):
        administration.pause_balancing(cluster.cluster)
