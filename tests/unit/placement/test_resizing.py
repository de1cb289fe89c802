"""The decision to split or merge: thresholds, bounds, the goal, and that it never goes to and fro."""

from __future__ import annotations

import math

import numpy as np
import pytest
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.tablets.resizing import Goal, Resize, TableSizes, colocations, decide, siblings_apart
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.slices import some

GIB = 1 << 30
TARGET = 5 * GIB


def one(count: int = 8, size: float = TARGET, resize: str = "none", **bounds: int) -> TableSizes:
    return TableSizes.of(
        count=[count],
        replicas=[3],
        bytes=[size],
        target=[TARGET],
        minimum=[bounds.get("minimum", 1)],
        maximum=[bounds.get("maximum", 1 << 31)],
        resize=[resize],
    )


EDGES = [
    # decision in force, mean bytes of a tablet, what is decided, whether that is news
    ("none", TARGET, "none", False),
    ("none", TARGET + 1, "split", True),
    ("none", TARGET / 2, "none", False),
    ("none", TARGET / 2 - 1, "merge", True),
    ("none", 0, "merge", True),
    ("split", TARGET + 1, "split", False),
    ("split", TARGET, "none", True),
    ("split", 0, "none", True),
    ("merge", TARGET / 2 - 1, "merge", False),
    ("merge", TARGET / 2, "none", True),
    ("merge", 10 * TARGET, "none", True),
    ("split", math.nan, "split", False),
    ("none", math.nan, "none", False),
]


@pytest.mark.parametrize(("force", "size", "decided", "news"), EDGES)
def test_split_above_the_target_merge_below_half_of_it_revoke_when_it_crosses_back(
    force: str, size: float, decided: str, news: bool
) -> None:
    [decision] = decide(one(size=size, resize=force))
    assert (decision.resize.value, decision.changes) == (decided, news)


BOUNDS = [
    (8, 10 * TARGET, {"maximum": 8}, "none", "may have 8 at most"),
    (8, 10 * TARGET, {"maximum": 15}, "none", "may have 8 at most"),
    (8, 0, {"minimum": 5}, "none", "must have 8 at least"),
    (8, 0, {"minimum": 9}, "split", "at least 16"),
    (8, 10 * TARGET, {"maximum": 4}, "merge", "at most 4"),
    (8, TARGET, {"minimum": 16, "maximum": 4}, "split", "at least 16"),
    (1, 0, {}, "none", "less than half"),
]


@pytest.mark.parametrize(("count", "size", "bounds", "decided", "said"), BOUNDS)
def test_bounds_of_a_table_count_more_than_its_size(
    count: int, size: float, bounds: dict[str, int], decided: str, said: str
) -> None:
    [decision] = decide(one(count, size, **bounds))
    assert decision.resize.value == decided
    assert said in decision.why


def test_the_largest_tablets_are_split_first_for_the_goal_and_not_more_than_it_takes() -> None:
    sizes = [TARGET * part for part in (0.6, 0.9, 0.8)]
    tables = TableSizes.of(count=[4, 4, 4], replicas=[3] * 3, bytes=sizes, target=[TARGET] * 3)
    decisions = decide(tables, Goal(per_volume=5, volumes=10))
    assert [d.wanted for d in decisions] == [4, 8, 8]
    assert "at least 5 replicas" in decisions[1].why
    assert [d.resize.value for d in decisions] == ["none", "split", "split"]


def test_tables_are_not_merged_below_the_goal() -> None:
    [decision] = decide(one(8, 1), Goal(per_volume=12, volumes=2))
    assert decision.resize is Resize.NONE
    assert "fewer would leave volumes with less than 12" in decision.why


@st.composite
def clusters(draw: st.DrawFn) -> tuple[TableSizes, Goal]:
    number = draw(st.integers(1, 6))

    def each(values: st.SearchStrategy) -> list:
        return draw(st.lists(values, min_size=number, max_size=number))

    targets = [1 << k for k in each(st.integers(0, 12))]
    sizes = each(st.one_of(st.integers(0, 1 << 14), st.sampled_from([1 << k for k in range(14)])))
    tables = TableSizes.of(
        count=[1 << k for k in each(st.integers(0, 8))],
        replicas=each(st.integers(1, 4)),
        bytes=sizes,
        target=targets,
        minimum=each(st.integers(1, 40)),
        maximum=each(st.integers(1, 300)),
        resize=each(st.sampled_from([one.value for one in Resize])),
    )
    return tables, Goal(draw(st.integers(0, 30)), draw(st.integers(0, 12)))


@settings(max_examples=some(300, 100), deadline=None)
@given(clusters())
def test_carrying_out_decisions_ends_without_ever_going_to_and_fro(cluster: tuple[TableSizes, Goal]) -> None:
    tables, goal = cluster
    count, size, force = tables.count.copy(), tables.bytes.copy(), list(tables.resize)
    steps: list[list[Resize]] = [[] for _ in count]
    for _ in range(80):
        now = TableSizes(count, tables.replicas, size, tables.target, tables.minimum, tables.maximum, tuple(force))
        decisions = decide(now, goal)
        if all(decision.resize is force[row] is Resize.NONE for row, decision in enumerate(decisions)):
            break
        for row, decision in enumerate(decisions):
            assert decision.changes == (decision.resize is not force[row])
            force[row] = decision.resize
            if decision.resize is not Resize.NONE:
                steps[row].append(decision.resize)
                count[row] = count[row] * 2 if decision.resize is Resize.SPLIT else count[row] // 2
                size[row] = size[row] / 2 if decision.resize is Resize.SPLIT else size[row] * 2
                force[row] = Resize.NONE
    else:
        raise AssertionError(f"never ends: {steps}")
    assert all(len(set(taken)) <= 1 for taken in steps)
    assert (count >= tables.minimum).all()
    assert (count <= tables.maximum).all()
    fits = (size <= tables.target) | (count == tables.maximum)
    assert fits.all()
    if (count * tables.replicas).sum() < goal.replicas:
        assert (count == tables.maximum).all()


def test_columns_of_different_length_and_counts_that_are_no_power_of_two_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"2\^k"):
        TableSizes.of(count=[3], replicas=[1], bytes=[1], target=[1])
    with pytest.raises(InvalidRequest, match="bytes has 2 values for 1"):
        TableSizes.of(count=[4], replicas=[1], bytes=[1, 2], target=[1])
    with pytest.raises(InvalidRequest, match="above 0"):
        TableSizes.of(count=[4], replicas=[1], bytes=[1], target=[0])


# --- co-locating siblings -----------------------------------------------------------------------------------------


@st.composite
def siblings(draw: st.DrawFn) -> tuple[list[tuple[str, str, int]], list[int], list[int]]:
    """Volumes with their places, and two replica sets: distinct nodes in each, as many in each datacenter."""
    racks = [draw(st.integers(0, 3)) for _ in range(10)]
    volumes = [(f"dc{node % 2}", f"r{racks[node]}", node) for node in range(10) for _ in range(draw(st.integers(1, 2)))]
    rf = {f"dc{n}": draw(st.integers(0, 3)) for n in (0, 1)}

    def replicas() -> list[int]:
        chosen: list[int] = []
        for datacenter, number in rf.items():
            nodes = draw(st.permutations([n for n in range(10) if f"dc{n % 2}" == datacenter]))[:number]
            chosen += [draw(st.sampled_from([v for v, p in enumerate(volumes) if p[2] == node])) for node in nodes]
        return draw(st.permutations(chosen))

    return volumes, replicas(), replicas()


@settings(max_examples=some(200, 60), deadline=None)
@given(siblings())
def test_colocating_ends_on_the_same_volumes_and_never_has_two_replicas_on_a_node(
    case: tuple[list[tuple[str, str, int]], list[int], list[int]],
) -> None:
    volumes, even, odd = case
    doubled_before = {len(replicas) - len({volumes[v][:2] for v in replicas}) for replicas in (even, odd)}
    current = list(odd)
    for move in colocations(3, even, odd, lambda volume: volumes[volume]):
        assert move.tablet == 7
        assert volumes[move.source][0] == volumes[move.target][0]
        current[current.index(move.source)] = move.target
        nodes = [volumes[volume][2] for volume in current]
        assert len(set(nodes)) == len(nodes)
        if doubled_before == {0}:
            assert len({volumes[volume][:2] for volume in current}) == len(current)
    assert set(current) == set(even)


def test_pairs_that_are_apart_are_found_whatever_the_order_and_the_padding() -> None:
    rows = np.array([[1, 2, -1], [2, -1, 1], [1, 2, 3], [1, 2, -1], [4, 5, 6], [6, 5, 4]], np.int32)
    assert siblings_apart(rows).tolist() == [1]
