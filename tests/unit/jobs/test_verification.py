"""What is stored is what the metadata says: proved from the statistics of files, for tablets and for the ring."""

from __future__ import annotations

from pathlib import Path

import pytest
from epochlake.jobs.gate import commit_phase
from epochlake.jobs.replicas.commits import commit_files, drop_ranges, pre_split
from epochlake.jobs.replicas.intervals import merged
from epochlake.jobs.replicas.outcomes import Acknowledged
from epochlake.jobs.upkeep import verification
from epochlake.jobs.upkeep.verification import expected_ranges_on, owned_exactly, verify_replicas
from epochlake.metastore.metadata.placements import highs
from epochlake.placement.ring.state import Step
from epochlake.placement.tablets.transitions import Stage
from epochlake.placement.tokens import tokens_of_label
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clusters import FOUR, SmallCluster, placed, without_zookeeper
from tests.support.replicas import store
from tests.support.rings import FOUR as ON_THE_RING
from tests.support.rings import RingCluster, join, ringed
from tests.support.storages import STORAGE


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(commit_phase, "RETRY_SECONDS", 0.0)


@pytest.fixture
def ring(tmp_path: Path) -> RingCluster:
    return ringed(tmp_path, ON_THE_RING)


@pytest.fixture
def tablets(tmp_path: Path) -> SmallCluster:
    cluster = placed(tmp_path, FOUR, {0: "ABC", 1: "ABC"})
    for tablet in (0, 1):
        cluster.write(cluster.pipeline(), "ALL", tablet=tablet, ids=range(10))
    return cluster


def smuggle(cluster: RingCluster | SmallCluster, node: str, *tokens: int) -> None:
    """Commit rows to a node past the gate."""
    file = store(cluster.address(node), "0-0", ids=range(len(tokens)), tokens=sorted(tokens))
    outcome = commit_files(cluster.address(node), [file], epoch=2**62, app_id=file.file_id, app_version=1)
    assert isinstance(outcome, Acknowledged)


def test_replicas_that_were_cut_differently_hold_exactly_what_they_own(tablets: SmallCluster, tmp_path: Path) -> None:
    assert owned_exactly(STORAGE, tablets.metadata) == ()
    first = tokens_of_label("1-1")[0]
    assert pre_split(tablets.address("A"), [first + 3], 2**62) == 0
    assert pre_split(tablets.address("B"), [first + 1, first + 6], 2**62) == 0
    assert owned_exactly(STORAGE, tablets.metadata) == ()
    report = verify_replicas(STORAGE, tablets.metadata)
    assert {(stored.node, stored.files, stored.rows) for stored in report.replicas} == {
        ("A", 3, 20),
        ("B", 4, 20),
        ("C", 2, 20),
    }


def test_rows_of_a_foreign_tablet_violate_and_rows_that_are_missing_differ(tablets: SmallCluster) -> None:
    low, high = tokens_of_label("1-1")
    assert drop_ranges(tablets.address("B"), [(low + 4, high)], tablets.metadata.fence)
    [difference] = owned_exactly(STORAGE, tablets.metadata)
    assert (difference.kind, difference.place, difference.tablet) == ("differs", "B/d1", 1)
    drop_ranges(tablets.address("B"), [(low, high)], tablets.metadata.fence)
    assert [(found.kind, found.tablet) for found in owned_exactly(STORAGE, tablets.metadata)] == [("differs", 1)]
    tablets.start("C", "X", tablet=0)
    tablets.until(Stage.WRITE_BOTH_READ_OLD)
    assert verify_replicas(STORAGE, tablets.metadata).violations == ()
    smuggle(tablets, "X", tokens_of_label("1-0")[0] + 5)
    assert verify_replicas(STORAGE, tablets.metadata).violations == (), "it is on the way to become a replica"
    smuggle(tablets, "X", tokens_of_label("1-0")[0] + 5, low + 7)
    [violation] = verify_replicas(STORAGE, tablets.metadata).violations
    assert (violation.kind, violation.place, violation.tablet) == ("INV-TABL-1", "X/d1", 1)


def test_a_replica_that_does_not_answer_is_named_and_not_taken_for_empty(tablets: SmallCluster) -> None:
    with tablets.without("B"):
        [found] = owned_exactly(STORAGE, tablets.metadata)
        assert (found.kind, found.place) == ("unreachable", "B/d1")
    with tablets.without("X"):
        assert owned_exactly(STORAGE, tablets.metadata) == (), "it has nothing to answer for"


def test_nodes_of_the_ring_hold_exactly_the_ranges_that_they_own(ring: RingCluster) -> None:
    assert owned_exactly(STORAGE, ring.metadata) == ()
    metadata = ring.metadata
    placements = metadata.placements(ring.table.table_id)
    ranges = {node: expected_ranges_on(metadata, ring.table.table_id, ring.volume(node)) for node in ON_THE_RING}
    for node in ON_THE_RING:
        for index, (low, high) in enumerate(zip(placements.lows, highs(placements.lows), strict=True)):
            owned = ring.volume(node) in placements.placement(index).writes
            assert owned == any(first <= low and high <= last for first, last in ranges[node])
    [stranger] = [node for node, owned in ranges.items() if not any(low <= 0 <= high for low, high in owned)]
    smuggle(ring, stranger, 0)
    [violation] = verify_replicas(STORAGE, ring.metadata).violations
    assert violation.place == f"{stranger}/d1"


def test_what_a_request_in_flight_has_moved_away_is_told_apart_until_it_is_swept(ring: RingCluster) -> None:
    join(ring)
    ring.until(Step.START)
    assert owned_exactly(STORAGE, ring.metadata) == ()
    ring.until(None)
    unfinished = verify_replicas(STORAGE, ring.metadata)
    assert unfinished.violations == ()
    assert unfinished.unswept, "the old replicas have not been swept yet"
    ring.settle()
    assert owned_exactly(STORAGE, ring.metadata) == ()


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), max_size=5),
    st.tuples(st.integers(0, 31), st.integers(0, 9)),
)
def test_an_extent_is_inside_exactly_when_every_token_is(spans: list[tuple[int, int]], span: tuple[int, int]) -> None:
    allowed = merged((low, low + width) for low, width in spans)
    tokens = {token for low, high in allowed for token in range(low, high + 1)}
    extent = (span[0], sum(span))
    outside = sorted(set(range(extent[0], extent[1] + 1)) - tokens)
    assert verification._first_outside(extent, allowed) == (outside[0] if outside else None)
    assert verification._first_outside((1, 0), allowed) is None, "a file without rows is nowhere"
