"""What levels promise together while replicas move or are rebuilt: kept, or refused, never answered on a guess."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from epochlake.jobs.gate import commit_phase
from epochlake.jobs.gate.errors import ConsistencyNotReached
from epochlake.placement.ring.state import Step
from epochlake.placement.tablets.transitions import Stage

from tests.support.clusters import FOUR, SmallCluster, SmallTable, placed, without_zookeeper
from tests.support.rings import QUICK, NodeSpec, rebuild, ringed


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(commit_phase, "RETRY_SECONDS", 0.0)


TWO_DATACENTERS: dict[str, NodeSpec] = {
    "A": ("dc1", "r1", (-6,)),
    "B": ("dc1", "r2", (-2,)),
    "D": ("dc2", "r1", (2,)),
}


@pytest.mark.parametrize("level", ["EACH_QUORUM", "ALL", "LOCAL_QUORUM"])
def test_a_level_with_the_only_replica_of_a_datacenter_is_refused_while_that_is_rebuilt(
    tmp_path: Path, level: str
) -> None:
    """Rows that only a LOCAL_QUORUM of dc2 has acknowledged are on D alone, which serves no reads until MID."""
    ring = ringed(tmp_path, TWO_DATACENTERS, {"dc1": 2, "dc2": 1}, configuration=QUICK)
    with ring.without("AB"):
        written = ring.write_rows(ring.pipeline(dc="dc2"), {100: 0}, "LOCAL_QUORUM")
    rebuild(ring)
    ring.until(Step.START)
    with pytest.raises(ConsistencyNotReached, match="D/d1: it is being rebuilt"):
        assert written <= set(ring.read_rows(ring.pipeline(dc="dc2"), level))
    ring.read_rows(ring.pipeline(dc="dc1"), "QUORUM")
    ring.read_rows(ring.pipeline(dc="dc1"), "LOCAL_QUORUM")
    ring.settle()
    assert written <= set(ring.read_rows(ring.pipeline(dc="dc2"), level))


class Promises:
    """Rows written at ALL and at ONE from step to step, and what is read of them at ONE and at ALL."""

    def __init__(self, table: SmallTable, token: int) -> None:
        self.table = table
        self.token = token
        self.at_all: set[int] = set()
        self.at_one: set[int] = set()
        self._next = 1000

    def keep(self) -> None:
        """Write one more row at ALL, and one at ONE on each replica alone; read what there is by now."""
        self.at_all |= self._write("ALL")
        for replica in self._replicas():
            with self._only(replica):
                try:
                    self.at_one |= self._write("ONE")
                except ConsistencyNotReached:
                    continue  # old and new replicas must have one each
        assert self.at_all | self.at_one <= set(self.table.read_rows(self.table.pipeline(), "ALL"))
        for replica in self._replicas():
            with self._only(replica):
                try:
                    found = set(self.table.read_rows(self.table.pipeline(), "ONE"))
                except ConsistencyNotReached:
                    continue  # it serves no reads
                assert self.at_all <= found, replica

    def _write(self, level: str) -> set[int]:
        self._next += 1
        return self.table.write_rows(self.table.pipeline(), {self._next: self.token}, level)

    def _replicas(self) -> list[str]:
        metadata = self.table.metadata
        placements = metadata.placements(self.table.table.table_id)
        volumes = {v for i in range(len(placements.lows)) for v in placements.placement(i).writes}
        return sorted(metadata.directory.node_of_volume[volume].name for volume in volumes)

    @contextmanager
    def _only(self, replica: str) -> Iterator[None]:
        with self.table.without([name for name in self._replicas() if name != replica]):
            yield


def test_all_and_one_see_each_other_at_every_stage_of_a_migration(tmp_path: Path) -> None:
    cluster: SmallCluster = placed(tmp_path, FOUR, "ABC", configuration=QUICK)
    promises = Promises(cluster, 0)
    promises.keep()
    cluster.start("A", "X")
    for stage in (*list(Stage)[1:6], None):
        cluster.until(stage)
        promises.keep()
    assert len(promises.at_one) > 15
    assert set(cluster.rows_on("X")) >= promises.at_all
