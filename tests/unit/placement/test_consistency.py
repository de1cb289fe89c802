"""How many acknowledgements are enough, checked against all the ways to choose them."""

from __future__ import annotations

from itertools import combinations

import pytest
from epochlake.placement.consistency import (
    BarrierLevel,
    ConsistencyLevel,
    barrier_passed,
    blocking,
    is_satisfied,
    majorities_meet,
    majority,
    missing,
    required,
)
from epochlake.placement.errors import InvalidRequest


def datacenter(replica: int) -> str:
    return f"dc{replica // 100}"


ONE_DATACENTER = (1, 2, 3)
TWO_DATACENTERS = (1, 2, 3, 101, 102, 103)


@pytest.mark.parametrize(
    ("level", "replicas", "local", "expected"),
    [
        ("ONE", ONE_DATACENTER, None, {None: 1}),
        ("TWO", ONE_DATACENTER, None, {None: 2}),
        ("QUORUM", ONE_DATACENTER, None, {None: 2}),
        ("QUORUM", TWO_DATACENTERS, None, {None: 4}),
        ("ALL", TWO_DATACENTERS, None, {None: 6}),
        ("EACH_QUORUM", TWO_DATACENTERS, None, {"dc0": 2, "dc1": 2}),
        ("LOCAL_QUORUM", TWO_DATACENTERS, "dc1", {"dc1": 2}),
    ],
)
def test_a_level_asks_for_so_many_replicas(level, replicas, local, expected):
    assert required(ConsistencyLevel(level), replicas, datacenter, local) == expected


def test_local_quorum_needs_to_know_where_it_runs():
    with pytest.raises(InvalidRequest, match="datacenter"):
        required(ConsistencyLevel.LOCAL_QUORUM, ONE_DATACENTER, datacenter)


def test_local_quorum_in_a_datacenter_without_replicas_is_refused():
    with pytest.raises(InvalidRequest, match="no replica there"):
        required(ConsistencyLevel.LOCAL_QUORUM, ONE_DATACENTER, datacenter, "dc1")


def test_an_unknown_level_names_the_known_ones():
    with pytest.raises(InvalidRequest, match="QUORUM"):
        ConsistencyLevel.parse("quorom")
    assert ConsistencyLevel.parse("local-quorum") is ConsistencyLevel.LOCAL_QUORUM


def test_what_is_missing_is_counted_where_it_is_missing():
    level = ConsistencyLevel.EACH_QUORUM
    assert missing(level, TWO_DATACENTERS, {1, 2, 101}, datacenter) == {"dc1": 1}
    assert missing(level, TWO_DATACENTERS, {1, 2, 101, 103}, datacenter) == {}


def test_a_write_must_reach_its_level_in_the_old_and_in_the_new_replicas():
    old, new = (1, 2, 3), (4, 2, 3)
    assert is_satisfied(ConsistencyLevel.QUORUM, [old, new], {2, 3}, datacenter)
    assert not is_satisfied(ConsistencyLevel.QUORUM, [old, new], {1, 2}, datacenter)
    assert not is_satisfied(ConsistencyLevel.ALL, [old, new], {1, 2, 3}, datacenter)


@pytest.mark.parametrize("count", range(1, 9))
def test_blocking_is_the_least_number_that_meets_every_majority(count):
    replicas = range(count)
    quorums = [set(q) for q in combinations(replicas, majority(count))]
    assert all(set(f) & q for f in combinations(replicas, blocking(count)) for q in quorums)
    assert not all(set(f) & q for f in combinations(replicas, blocking(count) - 1) for q in quorums)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((1,), (2,)),
        ((1, 2), (1, 3)),
        ((1, 2), (3, 4)),
        ((1, 2, 3), (4, 2, 3)),
        ((1, 2, 3), (4, 5, 6)),
        ((1, 2, 3, 4), (1, 2, 3, 5)),
        ((1, 2, 3, 4, 5), (6, 2, 3, 4, 5)),
        ((1, 2, 3), (1, 2, 3, 4)),
        ((1, 2, 3, 4), (1, 2, 3)),
    ],
)
def test_a_passed_barrier_leaves_no_quorum_of_either_side_without_a_fenced_replica(old, new):
    everyone = sorted({*old, *new})
    quorums = [set(q) for side in (old, new) for q in combinations(side, majority(len(side)))]
    for size in range(len(everyone) + 1):
        for fenced in map(set, combinations(everyone, size)):
            passed = barrier_passed(BarrierLevel.QUORUM, old, new, fenced, datacenter)
            assert passed == all(fenced & quorum for quorum in quorums), fenced


def test_a_barrier_for_each_datacenter_blocks_local_quorums():
    everyone = TWO_DATACENTERS
    local_quorums = [set(q) for side in (everyone[:3], everyone[3:]) for q in combinations(side, 2)]
    for size in range(len(everyone) + 1):
        for fenced in map(set, combinations(everyone, size)):
            if barrier_passed(BarrierLevel.EACH_QUORUM, everyone, everyone, fenced, datacenter):
                assert all(fenced & quorum for quorum in local_quorums), fenced


def test_a_barrier_for_all_waits_for_everyone():
    old, new = (1, 2, 3), (4, 2, 3)
    assert not barrier_passed(BarrierLevel.ALL, old, new, {1, 2, 3}, datacenter)
    assert barrier_passed(BarrierLevel.ALL, old, new, {1, 2, 3, 4}, datacenter)


@pytest.mark.parametrize("replicas", [(1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), (1, 2, 3, 4, 5)])
@pytest.mark.parametrize("level", BarrierLevel)
def test_a_lost_replica_is_never_taken_for_fenced_and_can_always_be_done_without(level, replicas):
    """Where enough are left, no quorum is free for who planned before the declaration; else for who knows of it."""
    quorums = [set(q) for q in combinations(replicas, majority(len(replicas)))]
    for lost in (set(q) for size in range(len(replicas) + 1) for q in combinations(replicas, size)):
        left = set(replicas) - lost
        assert barrier_passed(level, replicas, replicas, left, datacenter, lost), "all that are left are fenced"
        for fenced in (set(q) for size in range(len(left) + 1) for q in combinations(sorted(left), size)):
            if barrier_passed(level, replicas, replicas, fenced | lost, datacenter, lost):
                assert barrier_passed(level, replicas, replicas, fenced, datacenter, lost), (
                    "its fence counts for nothing"
                )
                free = [quorum for quorum in quorums if not quorum & fenced]
                assert all(quorum & lost for quorum in free)
                assert not free or fenced == left


@pytest.mark.parametrize("shared", range(5))
@pytest.mark.parametrize("sizes", [(1, 1), (2, 2), (3, 3), (3, 4), (4, 4), (5, 4)])
@pytest.mark.parametrize("lost", [((), ()), ((0,), ()), ((), (1,)), ((0,), (0, 3)), ((0, 1, 2), (1,))])
def test_majorities_meet_exactly_when_every_pair_of_them_does(sizes, shared, lost):
    read = tuple(range(sizes[0]))
    write = tuple(range(max(0, sizes[0] - shared), max(0, sizes[0] - shared) + sizes[1]))
    unread, unwritten = map(set, lost)
    pairs = [
        (set(r), set(w))
        for r in combinations(read, majority(len(read)))
        for w in combinations(write, majority(len(write)))
        if not unread.intersection(r) and not unwritten.intersection(w)
    ]
    assert majorities_meet(read, write, *lost) == all(r & w for r, w in pairs)
