"""The balancer on big clusters, time and quality together, beside a naive one in the same run.

    python -m benchmarks.balancer [--seed N] [--folder SCENARIOS] [--no-spark] [S1 S2 S3]

prints them as a table; `python -m benchmarks balancer` judges them by the targets of issue 5.
The scenarios are made here unless `--folder` has them (NAME_nodes.json, NAME_replicas.parquet):

- S1: 10 nodes become 16, 88 volumes each, 2 racks, 70 tables of 256 tablets, RF 2, equal sizes, every table even.
- S2: 215 nodes become 225, 3 racks, 2.8 million replicas, log-normal sizes, numbers by uneven weights.
- S3: 1,000 nodes, 10 racks, a million tablets, RF 3, log-normal sizes, 20 nodes of one rack drain.

The naive balancer looks at bytes only: overloaded nodes shed their largest replicas that fit the excess, each goes to
the least loaded node in a rack without a replica of its tablet. Racks are all that it respects.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from epochlake.placement.balancing.model import ClusterLoad, Plan, Role
from epochlake.placement.balancing.planner import plan_moves

from benchmarks.harness import Result, at_most, machine, medians, ratio_at_most

ROOT = Path(__file__).parents[1]
SEED = 42
ROUNDS = 3
LEAST_SECONDS = 0.5
END = {"S1": at_most(5), "S2": at_most(20), "S3": at_most(20)}
MIB = 1 << 20
STATES = ("live", "new", "draining")


class Scenario(msgspec.Struct, frozen=True):
    """Nodes (N,): `rack`, `state`. Replicas, sorted by tablet (R,): `tablet`, `table`, `node`, `volume`, `size`."""

    name: str
    rack: np.ndarray
    state: np.ndarray
    volumes: int
    tablet: np.ndarray
    table: np.ndarray
    node: np.ndarray
    volume: np.ndarray
    size: np.ndarray

    @property
    def live(self) -> np.ndarray:
        return self.state != STATES.index("draining")

    @property
    def factor(self) -> int:
        return len(self.tablet) // (int(self.tablet[-1]) + 1)


# --- scenarios ------------------------------------------------------------------------------------------------------


def dealt(rng: np.random.Generator, nodes: np.ndarray, weight: np.ndarray, count: int) -> np.ndarray:
    """`count` entries of `nodes` in random order, their numbers in proportion to `weight`, rounded."""
    exact = weight / weight.sum() * count
    shares = exact.astype(int)
    short = np.argsort(shares - exact, kind="stable")[: count - shares.sum()]
    shares[short] += 1
    return rng.permutation(np.repeat(nodes, shares))


def sizes(rng: np.random.Generator, tablets: int) -> np.ndarray:
    return np.maximum(rng.lognormal(np.log(512 * MIB), 1.0, tablets), MIB).astype(np.int64)


def scenario(name: str, seed: int) -> Scenario:
    return {"S1": few_fat_nodes, "S2": skewed_sizes, "S3": many_nodes_drain}[name](np.random.default_rng(seed))


def few_fat_nodes(rng: np.random.Generator) -> Scenario:
    nodes, old, tables, per_table, volumes = 16, 10, 70, 256, 88
    rack = np.arange(nodes) % 2
    columns = []
    for r in range(2):
        mine = np.flatnonzero((rack == r) & (np.arange(nodes) < old))
        parts = [dealt(rng, np.roll(mine, t), np.ones(len(mine)), per_table) for t in range(tables)]
        columns.append(np.concatenate(parts))
    node = rng.permuted(np.stack(columns, axis=1), axis=1)
    flat = node.reshape(-1)
    volume = np.empty(len(flat), np.int64)
    for n in range(old):
        here = np.flatnonzero(flat == n)
        volume[here] = np.arange(len(here)) % volumes
    state = (np.arange(nodes) >= old).astype(int)
    equal = np.full(tables * per_table, 1024 * MIB)
    return assembled("S1", rack, state, node, equal, per_table, volumes, volume)


def skewed_sizes(rng: np.random.Generator) -> Scenario:
    tablets, old, new = 933_334, 215, 10
    rack = np.concatenate([np.arange(old) % 3, [2], np.tile([0, 1, 2], 3)])
    state = (np.arange(old + new) >= old).astype(int)
    weight = 1 + rng.uniform(-0.1, 0.1, old + new)
    columns = [dealt(rng, mine, weight[mine], tablets) for mine in (np.flatnonzero(rack[:old] == r) for r in range(3))]
    node = rng.permuted(np.stack(columns, axis=1), axis=1)
    return assembled("S2", rack, state, node, sizes(rng, tablets), 1024)


def many_nodes_drain(rng: np.random.Generator) -> Scenario:
    tablets, racks, per_rack, draining = 1_000_000, 10, 100, 20
    rack = np.arange(racks * per_rack) // per_rack
    state = np.where(np.arange(racks * per_rack) < draining, 2, 0)
    flat = np.argsort(rng.random((tablets, racks)), axis=1)[:, :3].reshape(-1)
    node = np.empty(len(flat), np.int64)
    for r in range(racks):
        here = np.flatnonzero(flat == r)
        node[here] = dealt(rng, np.flatnonzero(rack == r), np.ones(per_rack), len(here))
    return assembled("S3", rack, state, node.reshape(tablets, 3), sizes(rng, tablets), 1000)


def assembled(
    name: str,
    rack: np.ndarray,
    state: np.ndarray,
    node: np.ndarray,
    size: np.ndarray,
    per_table: int,
    volumes: int = 1,
    volume: np.ndarray | None = None,
) -> Scenario:
    tablets, factor = node.shape
    tablet = np.repeat(np.arange(tablets, dtype=np.int32), factor)
    return Scenario(
        name=name,
        rack=rack,
        state=state,
        volumes=volumes,
        tablet=tablet,
        table=(tablet // per_table).astype(np.int32),
        node=node.reshape(-1).astype(np.int32),
        volume=np.zeros(tablets * factor, np.int32) if volume is None else volume.astype(np.int32),
        size=np.repeat(size, factor),
    )


def write(made: Scenario, folder: Path) -> None:
    nodes = [
        {"id": i, "rack": int(rack), "state": STATES[state], "capacity": 1.0}
        for i, (rack, state) in enumerate(zip(made.rack, made.state, strict=True))
    ]
    (folder / f"{made.name}_nodes.json").write_text(json.dumps(nodes), encoding="utf-8")
    columns = {"tablet_id": made.tablet, "table_id": made.table, "node": made.node, "size": made.size}
    if made.volumes > 1:
        columns["volume"] = made.volume
    pq.write_table(pa.table(columns), folder / f"{made.name}_replicas.parquet")


def read(name: str, folder: Path) -> Scenario:
    nodes = json.loads((folder / f"{name}_nodes.json").read_text(encoding="utf-8"))
    replicas = pq.read_table(folder / f"{name}_replicas.parquet")
    has_volumes = "volume" in replicas.column_names
    volume = replicas["volume"].to_numpy() if has_volumes else np.zeros(replicas.num_rows, np.int32)
    return Scenario(
        name=name,
        rack=np.array([node["rack"] for node in nodes]),
        state=np.array([STATES.index(node["state"]) for node in nodes]),
        volumes=int(volume.max()) + 1,
        tablet=replicas["tablet_id"].to_numpy(),
        table=replicas["table_id"].to_numpy(),
        node=replicas["node"].to_numpy(),
        volume=volume,
        size=replicas["size"].to_numpy(),
    )


# --- the naive balancer ---------------------------------------------------------------------------------------------


def naive(made: Scenario) -> np.ndarray:
    """The node of each replica afterwards, (R,)."""
    nodes, factor, size = len(made.rack), made.factor, made.size.astype(np.float64)
    load = np.bincount(made.node, size, nodes)
    mean = load.sum() / made.live.sum()
    order = np.lexsort((-size, made.node))
    ends = np.searchsorted(made.node[order], np.arange(nodes + 1))
    shed = [shed_largest(order[ends[n] : ends[n + 1]], size, load[n] - mean, made.live[n]) for n in range(nodes)]
    pool = np.concatenate(shed)
    pool = pool[np.argsort(-size[pool], kind="stable")]
    final = made.node.copy()
    load = load - np.bincount(made.node[pool], size[pool], nodes)
    racks = int(made.rack.max()) + 1
    heaps = [[(load[n], n) for n in np.flatnonzero(made.live & (made.rack == r)).tolist()] for r in range(racks)]
    for heap in heaps:
        heapq.heapify(heap)
    held = made.rack[made.node].reshape(-1, factor).copy()
    for row, bytes_, tablet in zip(pool.tolist(), size[pool].tolist(), made.tablet[pool].tolist(), strict=True):
        mine, racks_of_tablet = row - tablet * factor, held[tablet]
        taken = {int(racks_of_tablet[k]) for k in range(factor) if k != mine}
        best = min((r for r in range(racks) if heaps[r] and r not in taken), key=lambda r: heaps[r][0][0], default=-1)
        if best >= 0:
            lowest, node = heaps[best][0]
            heapq.heapreplace(heaps[best], (lowest + bytes_, node))
            final[row], racks_of_tablet[mine] = node, best
    return final


def shed_largest(rows: np.ndarray, size: np.ndarray, excess: float, live: bool) -> np.ndarray:
    """Of `rows`, largest first, those that fit into `excess` together; all of them when the node is not live."""
    if not live:
        return rows
    chosen, at = [rows[:0]], 0
    while excess > 0 and at < len(rows):
        at += int(np.searchsorted(-size[rows[at:]], -excess))
        run = np.cumsum(size[rows[at:]])
        take = int(np.searchsorted(run, excess, side="right"))
        if take == 0:
            break
        chosen.append(rows[at : at + take])
        excess -= float(run[take - 1])
        at += take
    return np.concatenate(chosen)


# --- the balancer ---------------------------------------------------------------------------------------------------


def load_of(made: Scenario, volume: np.ndarray | None = None) -> ClusterLoad:
    nodes = len(made.rack)
    return ClusterLoad.of(
        node_rack=made.rack,
        node_role=np.where(made.live, Role.ACTIVE, Role.DRAINING),
        volume_node=np.arange(nodes * made.volumes) // made.volumes,
        volume_capacity=np.ones(nodes * made.volumes),
        tablet_table=made.table[:: made.factor],
        replica_tablet=made.tablet,
        replica_volume=made.node * made.volumes + made.volume if volume is None else volume,
        replica_size=made.size,
    )


def volumes_after(load: ClusterLoad, plan: Plan) -> np.ndarray:
    volume = load.replica_volume.copy()
    volume[plan.replica] = plan.target
    return volume


# --- quality --------------------------------------------------------------------------------------------------------


class Quality(msgspec.Struct, frozen=True):
    """What issue 5 asks for. `tables_worse_count`, `_bytes`: tables whose fullest node holds more of them than before;
    `uneven`: tables whose nodes differ by more than one replica, of the `even` that did not before.
    """

    bytes_over_mean: float
    count_over_mean: float
    volume_over_even: float
    bytes_over_bound: float
    moves_over_bound: float
    tables_worse_count: int
    tables_worse_bytes: int
    uneven: int
    even: int
    doubled: int
    undrained: int


def quality(made: Scenario, node: np.ndarray, volume: np.ndarray | None) -> Quality:
    """Of a placement (R,) of nodes and, if they are chosen, of volumes."""
    nodes, live, size = len(made.rack), made.live, made.size.astype(np.float64)
    held = [(np.bincount(at, size, nodes), np.bincount(at, minlength=nodes)) for at in (made.node, node)]
    (bytes_before, count_before), (bytes_after, count_after) = held
    mean_bytes, mean_count = bytes_before.sum() / live.sum(), count_before.sum() / live.sum()
    bound = bytes_before[~live].sum() + np.maximum(bytes_before[live] - mean_bytes, 0).sum()
    bound_count = count_before[~live].sum() + np.maximum(count_before[live] - mean_count, 0).sum()
    moved = node != made.node
    racks = np.sort(made.rack[node].reshape(-1, made.factor), axis=1)
    over = float("nan")
    if volume is not None:
        per_volume = np.bincount(volume, minlength=nodes * made.volumes).reshape(nodes, -1)[live]
        over = float((per_volume - per_volume.mean(axis=1, keepdims=True)).max())
    (before, after), (weight_before, weight_after) = (
        (grid(made, made.node, weights), grid(made, node, weights)) for weights in (None, size)
    )
    # Even: of the nodes that held a table at all, none held two more than another.
    even = before.max(axis=0) - np.where(before > 0, before, before.max()).min(axis=0) <= 2
    return Quality(
        bytes_over_mean=float(bytes_after[live].max() / mean_bytes),
        count_over_mean=float(count_after[live].max() / mean_count),
        volume_over_even=over,
        bytes_over_bound=float(size[moved].sum() / bound),
        moves_over_bound=float(moved.sum() / bound_count),
        tables_worse_count=int((after.max(axis=0) > before.max(axis=0)).sum()),
        tables_worse_bytes=int((weight_after.max(axis=0) > weight_before.max(axis=0) * (1 + 1e-9)).sum()),
        uneven=int((even & (np.ptp(after, axis=0) > 1)).sum()),
        even=int(even.sum()),
        doubled=int((racks[:, 1:] == racks[:, :-1]).sum()),
        undrained=int(count_after[~live].sum()),
    )


def grid(made: Scenario, node: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Numbers or bytes by live node and table."""
    nodes, tables = len(made.rack), int(made.table.max()) + 1
    cell = node.astype(np.int64) * tables + made.table
    return np.bincount(cell, weights, nodes * tables).reshape(nodes, tables)[made.live]


# --- through Spark --------------------------------------------------------------------------------------------------


def end_to_end(name: str, folder: Path) -> None:
    """From Parquet files to the plan as a DataFrame, in a process of its own; prints a line of JSON.

    The session counts as started once it has answered a query about nothing: until then the JVM mostly loads classes.
    The schema of the files is read from their footers here; Spark would run a job to find it out.
    """
    from epochlake.jobs.spark_session import session
    from epochlake.placement.dataframes.balancing import balance
    from epochlake.placement.dataframes.frames import schema_of
    from pyspark.sql import functions as F

    start = time.perf_counter()
    spark = session("balancer-benchmark", master="local[2]")
    spark.createDataFrame(pa.table({"nothing": [0]})).where("nothing > 0").toArrow()
    started = time.perf_counter() - start
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        nodes = json.loads((folder / f"{name}_nodes.json").read_text(encoding="utf-8"))
        files = str(folder / f"{name}_replicas.parquet")
        replicas = spark.read.schema(schema_of(pq.read_schema(files))).parquet(files)
        volumes = 88 if "volume" in replicas.columns else 1
        ids = pa.array([node["id"] for node in nodes], pa.int32())
        node_frame = spark.createDataFrame(
            pa.table(
                {
                    "node_id": ids,
                    "datacenter": ["dc1"] * len(nodes),
                    "rack": [str(node["rack"]) for node in nodes],
                    "role": ["draining" if node["state"] == "draining" else "active" for node in nodes],
                }
            )
        )
        at = np.repeat(ids.to_numpy(), volumes)
        volume_frame = spark.createDataFrame(
            pa.table({"volume_id": np.arange(len(at), dtype=np.int32), "node_id": at, "capacity": np.ones(len(at))})
        )
        volume = F.col("node") * volumes + (F.col("volume") if volumes > 1 else F.lit(0))
        tablets = replicas.select(
            "table_id", F.col("tablet_id").alias("tablet"), volume.alias("volume_id"), F.col("size").alias("bytes")
        )
        rows = balance(node_frame, volume_frame, tablets).where("reason is not null and wave > 0").count()
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"session": started, "seconds": seconds, "rows": rows, "peak": peak_memory()}))
    spark.stop()


def peak_memory() -> int:
    """Bytes at most resident, of this process and all that it started, each at its own peak."""
    parent = {int(p.name): p for p in Path("/proc").iterdir() if p.name.isdigit()}
    above: dict[int, int] = {}
    peaks: dict[int, int] = {}
    for pid, path in parent.items():
        try:
            fields = dict(line.split(":", 1) for line in (path / "status").read_text().splitlines() if ":" in line)
        except OSError:
            continue
        above[pid] = int(fields["PPid"])
        peaks[pid] = int(fields.get("VmHWM", "0 kB").split()[0]) * 1024
    mine = {os.getpid()}
    while more := {pid for pid, up in above.items() if up in mine} - mine:
        mine |= more
    return sum(peaks.get(pid, 0) for pid in mine)


# --- what is measured -----------------------------------------------------------------------------------------------


class Measured(msgspec.Struct, frozen=True):
    """One scenario: seconds and quality of both, and through Spark: seconds (first, second), rows, peak bytes."""

    name: str
    floor: float
    planning: float
    naive: Quality
    planned: Quality
    waves: int
    again: int
    spark: dict[str, Any] | None


def measure(name: str, folder: Path, with_spark: bool) -> Measured:
    made = read(name, folder)
    load = load_of(made)
    taken = medians(ROUNDS, {"naive": lambda: naive(made), "plan": lambda: plan_moves(load)})
    plan = plan_moves(load)
    volume = volumes_after(load, plan)
    spark = None
    if with_spark:
        command = [sys.executable, "-m", "benchmarks.balancer", "--end-to-end", name, "--folder", str(folder)]
        answer = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
        spark = json.loads(answer.strip().splitlines()[-1])
    return Measured(
        name=name,
        floor=taken["naive"],
        planning=taken["plan"],
        naive=quality(made, naive(made), None),
        planned=quality(made, load.volume_node[volume], volume),
        waves=int(plan.wave.max(initial=0)),
        again=len(plan_moves(load_of(made, volume))),
        spark=spark,
    )


def measured_here(name: str) -> Measured:
    with tempfile.TemporaryDirectory() as folder:
        write(scenario(name, SEED), Path(folder))
        return measure(name, Path(folder), True)


def judged(name: str) -> list[Result]:
    """The figures of a scenario with the targets of issue 5."""
    measured = measured_here(name)
    q, spark = measured.planned, measured.spark or {}
    slow = measured.floor * 3 > LEAST_SECONDS
    target = ratio_at_most(3) if slow else at_most(LEAST_SECONDS)
    return [
        Result("planning alone", measured.planning, "s", measured.floor, "naive, bytes only", target),
        Result("through Spark, Parquet to plan, first in a warm session", spark["seconds"][0], "s", target=END[name]),
        Result("through Spark, again", spark["seconds"][1], "s", target=END[name]),
        Result("peak memory through Spark", spark["peak"] / 2**30, "GiB", target=at_most(4)),
        Result("bytes max ÷ mean", q.bytes_over_mean, "", measured.naive.bytes_over_mean, "naive", at_most(1.005)),
        Result("counts max ÷ mean", q.count_over_mean, "", measured.naive.count_over_mean, "naive", at_most(1.02)),
        Result("replicas of a volume above even", q.volume_over_even, "", target=at_most(1)),
        Result("bytes moved ÷ bound", q.bytes_over_bound, "", measured.naive.bytes_over_bound, "naive", at_most(1.05)),
        Result("tables worse by number", q.tables_worse_count, "", target=at_most(0)),
        Result("tables worse by bytes", q.tables_worse_bytes, "", target=at_most(0)),
        Result(f"tables uneven of {q.even} that were even", q.uneven, "", target=at_most(0)),
        Result("racks doubled", q.doubled, "", target=at_most(0)),
        Result("replicas left on draining nodes", q.undrained, "", target=at_most(0)),
        Result("moves in the second plan", measured.again, "", target=at_most(0)),
    ]


BENCHMARKS: dict[str, Callable[[], list[Result]]] = {name: partial(judged, name) for name in ("S1", "S2", "S3")}


def rows_of(measured: Measured) -> list[dict[str, str]]:
    """The lines of the table about one scenario."""
    rows = []
    for balancer, seconds, q in (
        ("naive", f"{measured.floor:.2f}", measured.naive),
        ("epochlake", f"{measured.planning:.2f} ({measured.planning / measured.floor:.1f}x)", measured.planned),
    ):
        rows.append(
            {
                "scenario": measured.name,
                "balancer": balancer,
                "seconds": seconds,
                "bytes max/mean": f"{q.bytes_over_mean:.5f}",
                "counts": f"{q.count_over_mean:.4f}",
                "volume": f"{q.volume_over_even:.2f}",
                "moved/bound": f"{q.bytes_over_bound:.4f}",
                "moves/bound": f"{q.moves_over_bound:.3f}",
                "tables worse": f"{q.tables_worse_count}/{q.tables_worse_bytes}",
                "uneven": f"{q.uneven} of {q.even}",
                "doubled": str(q.doubled),
                "undrained": str(q.undrained),
            }
        )
    rows[1] |= {"waves": str(measured.waves), "again": str(measured.again)}
    if measured.spark:
        first, then = measured.spark["seconds"]
        note = f"{first:.1f} first, {then:.1f} then; peak {measured.spark['peak'] / 2**30:.2f} GiB"
        rows.append({"scenario": measured.name, "balancer": "through Spark", "seconds": note})
    return rows


def show(rows: list[dict[str, str]]) -> None:
    names = list(dict.fromkeys(key for row in rows for key in row))
    width = {name: max(len(name), *(len(r.get(name, "")) for r in rows if len(r) > 3)) for name in names}
    print("  ".join(name.ljust(width[name]) for name in names))
    for row in rows:
        print("  ".join(row.get(name, "").ljust(width[name]) for name in names).rstrip())


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="S1|S2|S3", help="scenarios, all by default")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--folder", type=Path, help="read the scenarios from here instead of making them")
    parser.add_argument("--no-spark", action="store_true", help="planning alone")
    parser.add_argument("--end-to-end", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.end_to_end:
        end_to_end(options.end_to_end, options.folder)
        return 0
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for name in options.names or BENCHMARKS:
            folder = options.folder or Path(temporary)
            if options.folder is None:
                write(scenario(name, options.seed), folder)
            rows += rows_of(measure(name, folder, not options.no_spark))
            print(f"{name} done", file=sys.stderr)
    print(f"{f'from {options.folder}' if options.folder else f'seed {options.seed}'}; {machine()}")
    show(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
