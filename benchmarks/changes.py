"""What it costs that a table keeps its changes, and how soon a follower has them: `python -m benchmarks.changes`.

In one run, in turns, so that both meet the same machine: writes of the same rows to a table with and to one without
a stream. Then a follower beside a writer: changes a second beside written ones, and the time from an acknowledgement
until the follower has the change.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import epochlake
import pyarrow as pa
from epochlake.metastore import configuration as configurations

COLUMNS = [("id", "bigint", False), ("note", "string", True)]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="benchmarks.changes", description=__doc__)
    parser.add_argument("--writes", type=int, default=60, help="writes to each table (60)")
    parser.add_argument("--rows", type=int, default=1000, help="rows of a write (1000)")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="changes-", ignore_cleanup_errors=True) as directory:
        conf = Path(directory, "epochlake.toml")
        conf.write_text(f'root = "{directory}/root"\n[zookeeper]\nembedded_linger_seconds = 0\n', encoding="utf-8")
        settings = configurations.load(conf, environ={})
        epochlake.init_cluster(settings)
        with epochlake.open_cluster(settings) as cluster:
            for node in ("n1", "n2", "n3"):
                epochlake.add_node(cluster, node, "dc1", f"r-{node}", [("d1", f"{directory}/{node}", None)])
            epochlake.Coordinator(cluster).run(until_idle=True)
            epochlake.create_keyspace(cluster, "b", {"dc1": 3})
            for name in ("plain", "kept"):
                epochlake.create_table(cluster, f"b.{name}", COLUMNS, ["id"], tablets=4)
            epochlake.keep_changes(cluster, "b.kept")
            _writes(cluster, options.writes, options.rows)
            _follow(cluster, options.writes, options.rows)
    return 0


def _batch(number: int, rows: int) -> pa.Table:
    first = number * rows
    return pa.table({"id": range(first, first + rows), "note": [f"{number} {n}" for n in range(rows)]})


def _writes(cluster: epochlake.Cluster, writes: int, rows: int) -> None:
    """Writes with and without a stream, in turns."""
    seconds: dict[str, list[float]] = {"plain": [], "kept": []}
    for number in range(writes + 3):
        given = _batch(number, rows)
        for name in ("plain", "kept") if number % 2 else ("kept", "plain"):
            began = time.perf_counter()
            cluster.write(f"b.{name}", given, consistency="QUORUM")
            if number >= 3:
                seconds[name].append(time.perf_counter() - began)
    plain, kept = (statistics.median(seconds[name]) for name in ("plain", "kept"))
    print(
        f"a write of {rows} rows, median of {writes}: {plain * 1000:.1f} ms without changes, {kept * 1000:.1f} ms with"
    )
    pairs = statistics.median(one / other for one, other in zip(seconds["kept"], seconds["plain"], strict=True))
    print(f"  {(kept / plain - 1) * 100:+.1f} % by the medians, {(pairs - 1) * 100:+.1f} % by the median of pairs")


def _follow(cluster: epochlake.Cluster, writes: int, rows: int) -> None:
    """A follower beside a writer."""
    acknowledged: dict[int, float] = {}
    seen: dict[int, float] = {}
    position = cluster.changes_position("b.kept")
    first = 10_000

    def read() -> None:
        left = writes * rows
        for batch in cluster.changes("b.kept", after=position, follow=True):
            now = time.perf_counter()
            for key in batch.column("id").to_pylist():
                seen.setdefault(key // rows, now)
            left -= batch.num_rows
            if left <= 0:
                return

    follower = threading.Thread(target=read)
    began = time.perf_counter()
    follower.start()
    for number in range(first, first + writes):
        cluster.write("b.kept", _batch(number, rows), consistency="QUORUM")
        acknowledged[number] = time.perf_counter()
    wrote = time.perf_counter() - began
    follower.join()
    lags = sorted(seen[number] - acknowledged[number] for number in acknowledged)
    total = writes * rows
    print(f"beside a follower: {total / wrote:,.0f} rows a second were written")
    print(f"lag: median {lags[len(lags) // 2] * 1000:.0f} ms, longest {lags[-1] * 1000:.0f} ms")
    began = time.perf_counter()
    read_rows = sum(batch.num_rows for batch in cluster.changes("b.kept", after=position))
    taken = time.perf_counter() - began
    print(
        f"reading all of it again: {read_rows / taken:,.0f} changes a second, {read_rows / taken * wrote / total:.1f} x"
    )


if __name__ == "__main__":
    raise SystemExit(main())
