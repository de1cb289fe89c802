"""The quorum intersection simulator of seed 002: random histories of small rings, every quorum of every step.

A run is a function of its seed. A ring of some nodes, with few racks and one or two datacenters, goes through
operations of every kind (rebuilds and changes of the replication too, which the placement simulator leaves out),
several at once, forth and back a step at a time. After each step all quorums of all ranges are tried, by the view of
before and by that of now. Small rings, because only what replicas have in common matters, and every pattern of that
comes up.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
from epochlake.placement.errors import InvalidRequest, InvariantViolated
from epochlake.placement.ring.errors import PlanRejected
from epochlake.placement.ring.operations import plan_join, plan_leave, plan_move, plan_remove, plan_replace
from epochlake.placement.ring.rebuild import plan_rebuild
from epochlake.placement.ring.replication import plan_replication_change, replication_path
from epochlake.placement.ring.state import NodeState, Operation, RingNode, RingState, ring_state
from epochlake.placement.ring.steps import accepted, advanced, retreated
from epochlake.placement.ring.strategies import (
    NETWORK_TOPOLOGY,
    SIMPLE,
    SIMPLE_OPTION,
    Replication,
    replication_of,
)
from epochlake.placement.ring.tokens import MAX_TOKEN, MIN_TOKEN
from epochlake.placement.simulation.quorums import Pair, all_views, disjoint_in_step

STEPS = 60
_KEYSPACE = "simulated"
_MOST_REPLICAS = 4
_MOST_AT_ONCE = 3
_SPARE_NODES = 6


class QuorumReport(msgspec.Struct, frozen=True):
    """What a run did: steps, and how many pairs of views that are unlike each other it has met."""

    seed: int
    steps: int
    pairs: int


class QuorumsDisjoint(InvariantViolated):
    """Two quorums that must meet did not, at one step of one run."""

    def __init__(self, seed: int, step: int, what: str) -> None:
        super().__init__(f"seed {seed}, step {step}: {what}", hint=f"Run it again with seed {seed}")
        self.seed = seed
        self.step = step


def simulate_quorums(seed: int, steps: int = STEPS) -> QuorumReport:
    """One run; raises `QuorumsDisjoint`."""
    chance = random.Random(repr(("quorums", seed)))
    state = _fresh(chance)
    datacenters = {node.node_id: node.datacenter for node in state.nodes.values()}
    met: set[Pair] = set()
    views = all_views(state)
    for step in range(1, steps + 1):
        try:
            after = _one_step(state, chance, step)
        except InvariantViolated as error:
            raise QuorumsDisjoint(seed, step, str(error)) from error
        following = all_views(after)
        found = disjoint_in_step(views, following, datacenters, met)
        if found is not None:
            raise QuorumsDisjoint(seed, step, str(found))
        state, views = after, following
    return QuorumReport(seed, steps, len(met))


def _fresh(chance: random.Random) -> RingState:
    """A ring that keeps what its replication asks for, and some nodes that may join it."""
    names = ["dc1", "dc2"][: chance.randint(1, 2)]
    replication = _replication(chance, names)
    nodes: list[RingNode] = []
    for name in names:
        for place in range(_MOST_REPLICAS + 1 + _SPARE_NODES):
            owns = place <= _MOST_REPLICAS
            rack = f"r{chance.randint(1, 3)}"
            state = NodeState.NORMAL if owns else NodeState.NONE
            nodes.append(RingNode(len(nodes), name, rack, state, _tokens(chance) if owns else ()))
    return ring_state(nodes, {_KEYSPACE: replication})


def _one_step(state: RingState, chance: random.Random, step: int) -> RingState:
    """A plan accepted, or an operation in flight a step further or a step back; a rejected plan changes nothing."""
    operations = sorted(state.operations)
    if len(operations) < _MOST_AT_ONCE and (not operations or chance.random() < 0.3):
        try:
            return accepted(state, _plan(state, chance, f"operation-{step}"))
        except (PlanRejected, InvalidRequest):
            return state
    name = chance.choice(operations)
    if state.operations[name].cancelling or chance.random() < 0.15:
        return retreated(state, name)
    return advanced(state, name)


def _plan(state: RingState, chance: random.Random, name: str) -> Operation:
    members = sorted(state.tokens())
    waiting = sorted(node.node_id for node in state.nodes.values() if node.state is NodeState.NONE)
    member, newcomer = chance.choice(members), chance.choice([*waiting, -1])
    names = sorted({node.datacenter for node in state.nodes.values()})
    plans: list[Callable[[], Operation]] = [
        lambda: plan_join(state, name, newcomer, _tokens(chance)),
        lambda: plan_leave(state, name, member),
        lambda: plan_remove(state, name, member),
        lambda: plan_move(state, name, member, _tokens(chance)),
        lambda: plan_replace(state, name, member, newcomer),
        lambda: plan_replace(state, name, member, newcomer, _tokens(chance)),
        lambda: plan_rebuild(state, name, member),
        lambda: _change(state, name, _replication(chance, names)),
    ]
    return chance.choice(plans)()


def _change(state: RingState, name: str, target: Replication) -> Operation:
    """The first step on the keyspace's way to another replication."""
    current = msgspec.structs.replace(state.keyspaces[_KEYSPACE], changing="")
    path = replication_path(current, target)
    return plan_replication_change(state, name, _KEYSPACE, path[0] if path else target)


def _replication(chance: random.Random, datacenters: list[str]) -> Replication:
    if chance.random() < 0.3:
        return replication_of(SIMPLE, {SIMPLE_OPTION: chance.randint(1, _MOST_REPLICAS)})
    return replication_of(NETWORK_TOPOLOGY, {name: chance.randint(1, _MOST_REPLICAS) for name in datacenters})


def _tokens(chance: random.Random) -> tuple[int, ...]:
    return tuple(sorted({chance.randint(MIN_TOKEN, MAX_TOKEN) for _ in range(chance.randint(1, 3))}))
