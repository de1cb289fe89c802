"""Operations on the ring, carried out with real files: every kind, cancelled at every step, with storage that dies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from epochlake.jobs import administration
from epochlake.jobs.pipeline import landing
from epochlake.metastore.configuration import Configuration, CoordinatorSettings, PipelineSettings
from epochlake.metastore.metadata.model import RequestState

from tests.support.clusters import without_zookeeper
from tests.support.rings import FOUR, SPREAD, TURN, RingCluster, assert_settled, ringed

QUICK = Configuration(
    pipeline=PipelineSettings(attempts=1), coordinator=CoordinatorSettings(backoff_seconds=0.0, streams_per_volume=4)
)
JOINER = ("dc1", "r2", (0,))


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(landing, "RETRY_SECONDS", 0.0)


def join(ring: RingCluster) -> str:
    return ring.add("X", JOINER)


def leave(ring: RingCluster) -> str:
    return administration.decommission(ring.cluster, "D").request_id


def move(ring: RingCluster) -> str:
    return administration.move_node(ring.cluster, "D", tokens=[4 * TURN, -4 * TURN]).request_id


def remove(ring: RingCluster) -> str:
    ring.lose("D")
    return administration.remove_node(ring.cluster, "D").request_id


def replace(ring: RingCluster) -> str:
    ring.lose("D")
    return ring.add("X", ("dc1", "r1", ()), replaces="D")


def rebuild(ring: RingCluster) -> str:
    return administration.rebuild_node(ring.cluster, "D").request_id


def more_replicas(ring: RingCluster) -> str:
    return administration.change_replication(ring.cluster, "air", {"dc1": 4}, force=True).request_id


def fewer_replicas(ring: RingCluster) -> str:
    return administration.change_replication(ring.cluster, "air", {"dc1": 1}).request_id


KINDS: list[Callable[[RingCluster], str]] = [
    join,
    leave,
    move,
    remove,
    replace,
    rebuild,
    more_replicas,
    fewer_replicas,
]


@pytest.mark.parametrize("kind", KINDS)
def test_an_operation_goes_through_while_rows_are_written(tmp_path: Path, kind: Callable[[RingCluster], str]) -> None:
    ring = ringed(tmp_path, FOUR, configuration=QUICK)
    writer = ring.pipeline()
    acknowledged = set(SPREAD)
    request = kind(ring)
    for number in range(60):
        if not ring.round() and ring.coordinator._is_idle(ring.metadata):
            break
        row = 100 + number
        acknowledged |= ring.write_rows(writer, {row: (number % 16 - 8) * TURN + 7})
    assert ring.request(request).state is RequestState.DONE
    assert_settled(ring, acknowledged)
