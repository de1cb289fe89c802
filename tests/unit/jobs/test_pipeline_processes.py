"""Pipelines of several processes write one table while its tablets move and a node goes: nothing is lost or doubled."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
from epochlake.jobs import administration
from epochlake.jobs.coordinator.tracks import tablets as tablet_track

from tests.support.clusters import FOUR, SmallCluster, assert_at_rest, placed, without_zookeeper
from tests.support.killing import write_all_the_time
from tests.support.slices import sliced

WRITERS = 3
WAYS = {
    "drained": lambda cluster: administration.decommission(cluster.cluster, "A"),
    "removed": lambda cluster: (cluster.lose("A"), administration.remove_node(cluster.cluster, "A")),
}


@sliced()
@pytest.mark.parametrize("way", WAYS)
def test_processes_write_while_tablets_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(tablet_track, "AVOIDED_SECONDS", 0.0)
    cluster = placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"})
    with write_all_the_time(cluster, WRITERS) as acknowledged:
        acknowledged.wait_for(2)
        WAYS[way](cluster)
        cluster.settle()
        acknowledged.wait_for(2)
    assert_everything_is_there(cluster, acknowledged.by_tablet)


def assert_everything_is_there(cluster: SmallCluster, by_tablet: dict[int, list[str]]) -> None:
    for tablet, files in by_tablet.items():
        assert len(files) == len(set(files)) > WRITERS
        assert_at_rest(cluster, files, tablet)
    assert not multiprocessing.active_children()
