"""What it costs that a table keeps its changes, and how soon a follower has them.

In turns, so that both meet the same machine: writes of the same rows to a table with and to one without a stream, and
to the one with a stream while somebody follows it and while nobody does. Seconds of a busy machine say little, so the
accesses to disks are counted as well.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import epochlake
import pyarrow as pa
from epochlake.metastore import configuration as configurations
from epochlake.metastore.storage.local_disk import LocalDisk

from benchmarks.harness import Result, ratio_at_least, ratio_at_most

COLUMNS = [("id", "bigint", False), ("note", "string", True)]
ROWS = 1000
PAIRS = 60
TURNS = 6
WRITES_OF_A_TURN = 10
COUNTED = ("write", "link", "delete", "sync")


def recording() -> list[Result]:
    """Writes to a table with and to one without a stream, in pairs."""
    seconds: dict[str, list[float]] = {"plain": [], "kept": []}
    accesses: dict[str, Counter[str]] = {"plain": Counter(), "kept": Counter()}
    with _cluster() as cluster, _counted() as count:
        for number in range(PAIRS + 3):
            given = _batch(number)
            for name in ("plain", "kept") if number % 2 else ("kept", "plain"):
                count.clear()
                began = time.perf_counter()
                cluster.write(f"b.{name}", given, consistency="QUORUM")
                if number >= 3:
                    seconds[name].append(time.perf_counter() - began)
                    accesses[name] += count
    plain, kept = (statistics.median(seconds[name]) * 1000 for name in ("plain", "kept"))
    pairs = statistics.median(one / other for one, other in zip(seconds["kept"], seconds["plain"], strict=True))
    found = [
        Result(f"a write of {ROWS} rows, with a stream", kept, "ms", plain, "without", ratio_at_most(1.1)),
        Result("the same, median of the ratios of pairs", pairs, "times"),
    ]
    for name in COUNTED:
        with_one, without = (accesses[table][name] / PAIRS for table in ("kept", "plain"))
        found.append(Result(f"accesses to disks of such a write: {name}", with_one, "", without, "without"))
    return found


def following() -> list[Result]:
    """Writes while somebody follows, and while nobody does, in turns; and the time from an acknowledgement until the
    follower has the change.
    """
    seconds: dict[bool, float] = {True: 0.0, False: 0.0}
    lags: list[float] = []
    with _cluster() as cluster:
        beginning = cluster.changes_position("b.kept")
        for number in range(3):
            cluster.write("b.kept", _batch(number), consistency="QUORUM")
        for turn in range(TURNS):
            for followed in (True, False) if turn % 2 else (False, True):
                first = 1000 * (1 + turn) + 500 * followed
                taken, found = _turn(cluster, range(first, first + WRITES_OF_A_TURN), followed=followed)
                seconds[followed] += taken
                lags += found
        began = time.perf_counter()
        read = sum(batch.num_rows for batch in cluster.changes("b.kept", after=beginning))
        reading = read / (time.perf_counter() - began)
    rows = TURNS * WRITES_OF_A_TURN * ROWS
    lags.sort()
    beside, alone = rows / seconds[True], rows / seconds[False]
    return [
        Result("writes beside a follower", beside, "rows/s", alone, "without a follower", ratio_at_least(0.9)),
        Result("from an acknowledgement to the follower, median", lags[len(lags) // 2] * 1000, "ms"),
        Result("from an acknowledgement to the follower, longest", lags[-1] * 1000, "ms"),
        Result("reading all of the stream", reading, "rows/s", alone, "writing", ratio_at_least(0.7)),
    ]


BENCHMARKS: dict[str, Callable[[], list[Result]]] = {"recording": recording, "following": following}


def _turn(cluster: epochlake.Cluster, numbers: range, *, followed: bool) -> tuple[float, list[float]]:
    """The seconds of some writes, and where they are followed the lag of each."""
    acknowledged: dict[int, float] = {}
    seen: dict[int, float] = {}
    position = cluster.changes_position("b.kept")

    def read() -> None:
        left = len(numbers) * ROWS
        for batch in cluster.changes("b.kept", after=position, follow=True):
            now = time.perf_counter()
            for key in batch.column("id").to_pylist():
                seen.setdefault(key // ROWS, now)
            left -= batch.num_rows
            if left <= 0:
                return

    follower = threading.Thread(target=read, daemon=True)
    if followed:
        follower.start()
    began = time.perf_counter()
    for number in numbers:
        cluster.write("b.kept", _batch(number), consistency="QUORUM")
        acknowledged[number] = time.perf_counter()
    taken = time.perf_counter() - began
    if followed:
        follower.join()
    return taken, [seen[number] - acknowledged[number] for number in numbers if followed]


@contextmanager
def _cluster() -> Iterator[epochlake.Cluster]:
    """A cluster of three nodes, with a table that keeps its changes and one that does not."""
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
            yield cluster


@contextmanager
def _counted() -> Iterator[Counter[str]]:
    """Count the accesses to disks until the end of the block; those that nobody waits for count where they come."""
    count: Counter[str] = Counter()
    originals = {name: getattr(LocalDisk, name) for name in COUNTED}

    def counting(name: str) -> Callable[..., object]:
        def access(disk: LocalDisk, *given: object, **named: object) -> object:
            count[name] += 1 if name != "sync" else sum(len(paths) for paths in given)  # type: ignore[arg-type]
            return originals[name](disk, *given, **named)

        return access

    for name in COUNTED:
        setattr(LocalDisk, name, counting(name))
    try:
        yield count
    finally:
        for name, original in originals.items():
            setattr(LocalDisk, name, original)


def _batch(number: int) -> pa.Table:
    first = number * ROWS
    return pa.table({"id": range(first, first + ROWS), "note": [f"{number} {n}" for n in range(ROWS)]})
