"""Ring placement: whole rings against cassandra-driver in the same run, planning in a big ring, the simulators (issue
4).

`cassandra-driver` is needed here only (`pip install cassandra-driver`); where it is missing the ratio is not
measured, and the result says so. Only its time counts: its answer is not always that of Cassandra.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np
from epochlake.placement.ring.errors import PlanRejected
from epochlake.placement.ring.operations import plan_join, plan_leave
from epochlake.placement.ring.simulation.placements import CONFIGURATIONS, simulate_placements
from epochlake.placement.ring.state import MemberState, RingNode, RingState, ring_state
from epochlake.placement.ring.steps import accepted, advanced
from epochlake.placement.ring.strategies import NETWORK_TOPOLOGY, natural_replicas, replication_of
from epochlake.placement.ring.tokens import MAX_TOKEN, MIN_TOKEN

from benchmarks.harness import Result, at_least, at_most, medians, seconds

NODES, TOKENS, RACKS = 1000, 256, 5
DATACENTERS = ("dc1", "dc2", "dc3")
FACTORS = dict.fromkeys(DATACENTERS, 3)
ROUNDS = 3
RING = f"a ring of {NODES} nodes × {TOKENS} tokens, RF 3 in each of 3 datacenters"


def big_ring() -> RingState:
    """Nodes in turn over datacenters and racks with random tokens, and one more that may join."""
    source = np.random.default_rng(1)
    nodes = [
        RingNode(
            index,
            DATACENTERS[index % 3],
            f"r{index // 3 % RACKS}",
            MemberState.NORMAL,
            tuple(sorted(source.integers(MIN_TOKEN, MAX_TOKEN, TOKENS).tolist())),
        )
        for index in range(NODES)
    ]
    newcomer = RingNode(NODES, DATACENTERS[0], "r0")
    return ring_state([*nodes, newcomer], {"ks": replication_of(NETWORK_TOPOLOGY, FACTORS)})


def placement() -> list[Result]:
    """All ranges of the ring; the ratio is how many times as fast as the driver, run in turns with it."""
    state = big_ring()
    ring, replication = state.ring(), state.keyspaces["ks"]
    works: dict[str, Callable[[], object]] = {"ours": lambda: natural_replicas(ring, replication)}
    driver = _driver(state)
    if driver is not None:
        works["driver"] = driver
    taken = medians(ROUNDS, works)
    results = [Result(f"placing {RING}", 1000 * taken["ours"], "ms", target=at_most(200))]
    if driver is None:
        return [*results, Result("cassandra-driver is not installed: no ratio to it was measured", 0, "×")]
    theirs = Result("the same ring by cassandra-driver", 1000 * taken["driver"], "ms")
    ratio = Result("times as fast as cassandra-driver", taken["driver"] / taken["ours"], "×", target=at_least(50))
    return [*results, theirs, ratio]


def planning() -> list[Result]:
    """One join in the big ring, alone; its steps; and a leave asked for beside it, which is rejected after all
    checks."""
    state = big_ring()
    tokens = np.random.default_rng(2).integers(MIN_TOKEN, MAX_TOKEN, TOKENS).tolist()
    plan = plan_join(state, "join", NODES, tokens)
    prepared = accepted(state, plan)

    def beside() -> None:
        with suppress(PlanRejected):
            plan_leave(prepared, "leave", 0, force=True)

    taken = medians(
        ROUNDS,
        {
            "plan": lambda: plan_join(state, "join", NODES, tokens),
            "prepare": lambda: accepted(state, plan),
            "start": lambda: advanced(prepared, "join"),
            "beside": beside,
        },
    )
    return [
        Result(f"planning one join in {RING}", taken["plan"], "s", target=at_most(1)),
        Result("its PREPARE", taken["prepare"], "s"),
        Result("its START", taken["start"], "s"),
        Result("refusing a leave beside it", taken["beside"], "s"),
    ]


def simulating() -> list[Result]:
    """Steps per second of the placement simulator with quorums checked, one process, all configurations."""
    steps = 0

    def all_configurations() -> None:
        nonlocal steps
        steps = sum(simulate_placements(configuration, 1).steps for configuration in CONFIGURATIONS)

    taken = seconds(all_configurations)
    return [Result("steps of both simulators per second", steps / taken, "1/s")]


def _driver(state: RingState) -> Callable[[], object] | None:
    """What the driver does with the same ring; None where it is not installed."""
    try:
        from cassandra.metadata import Murmur3Token, NetworkTopologyStrategy
        from cassandra.policies import SimpleConvictionPolicy
        from cassandra.pool import Host
    except ImportError:
        return None
    hosts = {}
    for node in state.nodes.values():
        hosts[node.node_id] = Host(f"10.{node.node_id >> 8}.{node.node_id & 255}.1", SimpleConvictionPolicy)
        hosts[node.node_id].set_location_info(node.datacenter, node.rack)
    owners = {Murmur3Token(token): hosts[node] for node, tokens in state.tokens().items() for token in tokens}
    ring = sorted(owners)
    strategy = NetworkTopologyStrategy({name: str(factor) for name, factor in FACTORS.items()})
    return lambda: strategy.make_token_replica_map(owners, ring)


BENCHMARKS = {"placement": placement, "planning": planning, "simulating": simulating}
