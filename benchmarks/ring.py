"""Ring placement: whole rings against cassandra-driver in the same run, planning in a big ring, the simulators, and how
the Spark form scales over cores (issue 4).

`cassandra-driver` is needed here only (`pip install -e '.[bench]'`, as `make bench` does); where it is missing the
ratio is not measured, and the result says so. Only its time counts: its answer is not always that of Cassandra. What
planning remembers of earlier rings is forgotten before each measurement.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
from epochlake.placement.ring.errors import PlanRejected
from epochlake.placement.ring.operations import plan_join, plan_leave
from epochlake.placement.ring.state import NodeState, RingNode, RingState, ring_state
from epochlake.placement.ring.steps import accepted, advanced
from epochlake.placement.ring.strategies import NETWORK_TOPOLOGY, chosen_before, natural_replicas, replication_of
from epochlake.placement.ring.tokens import MAX_TOKEN, MIN_TOKEN
from epochlake.placement.simulation.histories import simulate_quorums
from epochlake.placement.simulation.placements import CONFIGURATIONS, simulate_placements

from benchmarks.harness import Result, at_least, at_most, medians, seconds

NODES, TOKENS, RACKS = 1000, 256, 5
DATACENTERS = ("dc1", "dc2", "dc3")
FACTORS = dict.fromkeys(DATACENTERS, 3)
ROUNDS = 3
ROOT = Path(__file__).parents[1]
SPARK_NODES, SPARK_TOKENS, SPARK_ROUNDS = 4000, 512, 3
SEEDS = (1, 2)
RING = f"a ring of {NODES} nodes × {TOKENS} tokens, RF 3 in each of 3 datacenters"


def big_ring() -> RingState:
    """Nodes in turn over datacenters and racks with random tokens, and one more that may join."""
    source = np.random.default_rng(1)
    nodes = [
        RingNode(
            index,
            DATACENTERS[index % 3],
            f"r{index // 3 % RACKS}",
            NodeState.NORMAL,
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

    def ours() -> None:
        chosen_before.cache_clear()
        natural_replicas(ring, replication)

    works: dict[str, Callable[[], object]] = {"ours": ours}
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

    def planned() -> None:
        chosen_before.cache_clear()
        plan_join(state, "join", NODES, tokens)

    def beside() -> None:
        chosen_before.cache_clear()
        with suppress(PlanRejected):
            plan_leave(prepared, "leave", 0, force=True)

    taken = medians(
        ROUNDS,
        {
            "plan": planned,
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
    """Steps per second, one process: of the placement simulator in all configurations, quorums checked too, and of the
    quorum simulator."""
    steps = {}

    def placements() -> None:
        runs = (simulate_placements(configuration, seed) for seed in SEEDS for configuration in CONFIGURATIONS)
        steps["placements"] = sum(run.steps for run in runs)

    def quorums() -> None:
        steps["quorums"] = sum(simulate_quorums(seed).steps for seed in range(50))

    taken = {"placements": seconds(placements), "quorums": seconds(quorums)}
    return [
        Result("steps of the placement simulator per second", steps["placements"] / taken["placements"], "1/s"),
        Result("steps of the quorum simulator per second", steps["quorums"] / taken["quorums"], "1/s"),
    ]


def scaling() -> list[Result]:
    """The Spark form on one core and on two, each in a process of its own with a warm session."""
    one, two = (_with_cores(cores) for cores in (1, 2))
    ring = f"read placements of {SPARK_NODES} nodes × {SPARK_TOKENS} tokens through Spark"
    return [
        Result(f"{ring}, one core", one, "s"),
        Result(f"{ring}, two cores", two, "s", one, "one core"),
    ]


def _with_cores(cores: int) -> float:
    command = [sys.executable, "-m", "benchmarks.ring", str(cores)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    return float(json.loads(answer.strip().splitlines()[-1]))


def through_spark(cores: int) -> float:
    """Seconds, median, in which Spark computes all rows; who owns which token is in the session already."""
    from epochlake.jobs.spark_session import session
    from epochlake.placement.dataframes.ring import read_placements

    spark = session("ring-benchmark", master=f"local[{cores}]")
    ids = np.arange(SPARK_NODES, dtype=np.int32)
    nodes = {
        "node_id": ids,
        "datacenter": [DATACENTERS[index % 3] for index in ids],
        "rack": [f"r{index // 3 % RACKS}" for index in ids],
    }
    source = np.random.default_rng(1)
    tokens = {
        "node_id": np.repeat(ids, SPARK_TOKENS),
        "token": source.integers(MIN_TOKEN, MAX_TOKEN, SPARK_NODES * SPARK_TOKENS),
    }
    placements = read_placements(
        spark.createDataFrame(pa.table(nodes)),
        spark.createDataFrame(pa.table(tokens)),
        replication_of(NETWORK_TOPOLOGY, FACTORS),
    )
    taken = []
    for _ in range(1 + SPARK_ROUNDS):
        start = time.perf_counter()
        placements.write.format("noop").mode("overwrite").save()
        taken.append(time.perf_counter() - start)
    spark.stop()
    return float(np.median(taken[1:]))


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


BENCHMARKS = {"placement": placement, "planning": planning, "simulating": simulating, "scaling": scaling}

if __name__ == "__main__":
    print(json.dumps(through_spark(int(sys.argv[1]))))
