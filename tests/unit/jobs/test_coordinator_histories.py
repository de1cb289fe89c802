"""Random histories: whatever operators ask for and whatever fails, no acknowledged row is lost.

In a small cluster with a table on the ring and one with tablets nodes join, leave, move, are replaced and removed,
replication changes, requests are cancelled and held up, coordinators are killed and doubled, storage goes and comes
back, while pipelines of different ages write and read at QUORUM.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from epochlake.jobs import administration
from epochlake.jobs.coordinator.coordinator import Coordinator
from epochlake.jobs.coordinator.effects import ring as ring_effects
from epochlake.jobs.coordinator.tracks import tablets
from epochlake.jobs.gate import commit_phase
from epochlake.jobs.gate.errors import ConsistencyNotReached
from epochlake.jobs.gate.pipeline import Pipeline
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.model import NodeState
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN

from tests.support.clusters import COLUMNS, without_zookeeper
from tests.support.rings import QUICK, SPREAD, RingCluster, assert_settled, ringed
from tests.support.slices import some

SIX = {name: ("dc1", f"r{index % 3}", (2 * index - 6,)) for index, name in enumerate("ABCDEF")}
EVENTS = some(25, 15)
ROUNDS_AN_EVENT = 2


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(commit_phase, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(ring_effects, "GROUP_FILES", 2)
    monkeypatch.setattr(tablets, "AVOIDED_SECONDS", 0.0)


class History:
    """A cluster, what has been acknowledged, and what may happen to it next."""

    def __init__(self, ring: RingCluster, chance: random.Random) -> None:
        self.ring = ring
        self.chance = chance
        self.boxed = with_tablets(ring)
        self.acknowledged: dict[str, set[int]] = {one.table.name: set(SPREAD) for one in (ring, self.boxed)}
        self.rows = itertools.count(max(SPREAD) + 1)
        self.away: str | None = None
        self.added = 0
        self.pipelines: list[Pipeline] = []
        self.happenings: list[Callable[[], object]] = [
            self.join,
            self.join,
            self.leave,
            self.move,
            self.die_and_be_removed,
            self.die_and_be_replaced,
            self.change_replication,
            self.cancel,
            self.hold_up,
            self.let_go,
            self.storage_goes,
            self.storage_comes_back,
            self.another_coordinator,
            self.open_pipeline,
        ]

    def go(self) -> None:
        happening = self.chance.choice(self.happenings)
        try:
            happening()
        except (Rejected, InvalidRequest):
            return

    def normal(self) -> str:
        nodes = self.ring.metadata.directory.nodes.values()
        return self.chance.choice([node.name for node in nodes if node.state is NodeState.NORMAL])

    def new_name(self) -> str:
        self.added += 1
        return f"N{self.added}"

    def join(self) -> None:
        self.ring.add(self.new_name(), ("dc1", f"r{self.chance.randrange(3)}", (self.chance.randrange(-7, 8, 2),)))

    def leave(self) -> None:
        administration.decommission(self.ring.cluster, self.normal())

    def move(self) -> None:
        token = self.chance.randrange(MIN_TOKEN, MAX_TOKEN)
        administration.move_node(self.ring.cluster, self.normal(), tokens=[token])

    def die_and_be_removed(self) -> None:
        name = self.normal()
        if self.away is None:
            administration.remove_node(self.ring.cluster, name)
            self.ring.lose(name)
            self.away = name

    def die_and_be_replaced(self) -> None:
        name = self.normal()
        if self.away is None:
            rack = self.ring.metadata.node(name).rack
            self.ring.add(self.new_name(), ("dc1", rack, ()), replaces=name)
            self.ring.lose(name)
            self.away = name

    def change_replication(self) -> None:
        administration.change_replication(self.ring.cluster, "air", {"dc1": self.chance.choice([2, 3, 4])})

    def cancel(self) -> None:
        requests = [request.request_id for request in self.ring.metadata.open_requests()]
        if requests:
            administration.cancel_request(self.ring.cluster, self.chance.choice(requests))

    def hold_up(self) -> None:
        requests = [request.request_id for request in self.ring.metadata.open_requests()]
        if requests:
            administration.pause_request(self.ring.cluster, self.chance.choice(requests))

    def let_go(self) -> None:
        for request in list(self.ring.metadata.open_requests()):
            if request.paused:
                administration.resume_request(self.ring.cluster, request.request_id)

    def storage_goes(self) -> None:
        if self.away is None:
            self.away = self.normal()
            self.ring.lose(self.away)

    def storage_comes_back(self) -> None:
        if self.away is not None:
            self.ring.bring_back(self.away)
            self.away = None

    def another_coordinator(self) -> None:
        self.ring.restart()

    def open_pipeline(self) -> None:
        self.pipelines = [*self.pipelines[-2:], self.ring.pipeline()]

    def write(self) -> None:
        table = self.chance.choice([self.ring, self.ring, self.boxed])
        rows = {next(self.rows): self.chance.randrange(MIN_TOKEN, MAX_TOKEN)}
        try:
            self.acknowledged[table.table.name] |= table.write_rows(self.chance.choice(self.pipelines), rows)
        except ConsistencyNotReached:
            return

    def read(self) -> None:
        table = self.chance.choice([self.ring, self.boxed])
        try:
            rows = table.read_rows(self.chance.choice(self.pipelines))
        except ConsistencyNotReached:
            return
        lost = self.acknowledged[table.table.name] - set(rows)
        assert not lost, f"{table.table.full_name} has lost {lost}"
        assert len(rows) == len(set(rows))


def with_tablets(ring: RingCluster) -> RingCluster:
    """A table with tablets in the same cluster, with the same rows."""
    administration.create_keyspace(ring.cluster, "land", {"dc1": 3})
    administration.create_table(ring.cluster, "land.trips", COLUMNS, ["id"], tablets=4)
    boxed = RingCluster(ring.cluster, ring.metadata.table("land.trips"), ring.directory)
    boxed.write_rows(boxed.pipeline(), SPREAD)
    return boxed


@pytest.mark.parametrize("number", range(some(4, 1)))
def test_whatever_happens_acknowledged_rows_are_read_and_nothing_stays_locked(
    tmp_path: Path, seed: int, number: int
) -> None:
    chance = random.Random(f"{seed}/{number}")
    history = History(ringed(tmp_path, SIX, configuration=QUICK), chance)
    history.open_pipeline()
    spare = Coordinator(history.ring.cluster)
    for _ in range(EVENTS):
        history.go()
        for _ in range(chance.randrange(ROUNDS_AN_EVENT + 1)):
            chance.choice([history.ring.coordinator, history.ring.coordinator, spare])._round_safely()
            history.write()
        history.read()
    history.storage_comes_back()
    history.let_go()
    history.ring.settle()
    for table in (history.ring, history.boxed):
        assert_settled(table, history.acknowledged[table.table.name])
