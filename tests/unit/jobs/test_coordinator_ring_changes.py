"""What operations change, in volumes and tokens, compared with the placements token by token."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from epochlake.jobs import administration
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import VolumeId
from epochlake.metastore.metadata.placements import index_of
from epochlake.metastore.planning.ring_changes import RingChange, change_of, owned_by
from epochlake.placement.ring.state import Step
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN

from tests.support.clusters import without_zookeeper
from tests.support.rings import QUICK, NodeSpec, RingCluster, ringed

SAMPLES = 400


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    without_zookeeper(monkeypatch)


def random_nodes(chance: random.Random) -> dict[str, NodeSpec]:
    """Six nodes whose tokens are anywhere, both ends of the token space among them."""
    tokens = [MIN_TOKEN, MAX_TOKEN, *(chance.randrange(MIN_TOKEN, MAX_TOKEN) for _ in range(10))]
    chance.shuffle(tokens)
    return {name: ("dc1", f"r{n % 3}", tokens[2 * n : 2 * n + 2]) for n, name in enumerate("ABCDEF")}


def samples(metadata: ClusterMetadata, table_id: str, chance: random.Random) -> Iterator[int]:
    """Tokens at both sides of every boundary there is, and others."""
    lows = metadata.placements(table_id).lows.tolist()
    near = {low + by for low in lows for by in (-1, 0, 1)} | {MIN_TOKEN, MAX_TOKEN}
    yield from (token for token in sorted(near) if MIN_TOKEN <= token <= MAX_TOKEN)
    yield from (chance.randrange(MIN_TOKEN, MAX_TOKEN) for _ in range(SAMPLES))


def replicas(metadata: ClusterMetadata, table_id: str, token: int) -> tuple[set[VolumeId], set[VolumeId]]:
    """Who serves reads of a token, and who must get its writes."""
    placements = metadata.placements(table_id)
    [index] = index_of(placements.lows, np.array([token], dtype=np.int64)).tolist()
    placement = placements.placement(index)
    return set(placement.reads), set(placement.writes)


def join(ring: RingCluster, chance: random.Random) -> None:
    ring.add("X", ("dc1", "r1", ()), volumes=3)


def leave(ring: RingCluster, chance: random.Random) -> None:
    administration.decommission(ring.cluster, "D")


def move(ring: RingCluster, chance: random.Random) -> None:
    administration.move_node(ring.cluster, "D", tokens=[chance.randrange(MIN_TOKEN, MAX_TOKEN) for _ in range(3)])


def more(ring: RingCluster, chance: random.Random) -> None:
    administration.change_replication(ring.cluster, "air", {"dc1": 3})


@pytest.mark.parametrize("begin", [join, leave, move, more])
def test_gains_and_sides_are_what_placements_say_token_by_token(
    tmp_path: Path, begin: Callable[[RingCluster, random.Random], None], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.rings.TURN", 1)
    chance = random.Random(seed)
    ring = ringed(tmp_path, random_nodes(chance), {"dc1": 2}, volumes=2, configuration=QUICK, rows={})
    table_id, before = ring.table.table_id, ring.metadata
    begin(ring, chance)
    ring.until(Step.PREPARE)
    [operation] = ring.metadata.rings.operations.values()
    change = change_of(ring.metadata, operation)
    ring.until(Step.START)
    started = ring.metadata
    ring.until(None, rounds=100)
    after = ring.metadata
    for token in {*samples(before, table_id, chance), *samples(after, table_id, chance)}:
        assert_changed(change, token, *(replicas(metadata, table_id, token)[0] for metadata in (before, after)))
    for metadata in (before, started, after):
        assert_owned(metadata, table_id, chance)


def assert_changed(change: RingChange, token: int, old: set[VolumeId], new: set[VolumeId]) -> None:
    [setting] = change.settings
    gains = [gain for gain in setting.gains if gain.low <= token <= gain.high]
    assert {gain.target for gain in gains} == new - old
    assert len(gains) == len(new - old)
    givers = [gain.giver for gain in gains if gain.giver is not None]
    assert set(givers) <= old - new
    assert len(givers) == len(set(givers)) == min(len(new - old), len(old - new))
    for gain in gains:
        assert (set(gain.sources), set(gain.replicas)) == (old, new)
    if old != new:
        assert (old, new) in [(set(before), set(after)) for before, after in setting.sides]


def assert_owned(metadata: ClusterMetadata, table_id: str, chance: random.Random) -> None:
    owned = owned_by(metadata, table_id)
    assert set(owned) == set(metadata.ring_volumes(table_id))
    for token in samples(metadata, table_id, chance):
        holds = {v for v, intervals in owned.items() if any(low <= token <= high for low, high in intervals)}
        assert holds == set.union(*replicas(metadata, table_id, token))
    for intervals in owned.values():
        assert all(before < low - 1 for (_, before), (low, _) in pairwise(intervals))
