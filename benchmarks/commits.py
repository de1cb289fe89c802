"""Committing: latency against the sum of its own parts, flatness over a long log, throughput (issue 3)."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from epochlake.jobs.cluster import Cluster, open_cluster
from epochlake.jobs.upkeep.log_members import named, reconfigure
from epochlake.metastore.configuration import Configuration, LogSettings
from epochlake.metastore.coordination.lock import CommitLock
from epochlake.metastore.log.delta import DeltaLog, create_log_table
from epochlake.metastore.log.entry import Entry, Position, encode_event, seal
from epochlake.metastore.log.files import SCHEMA
from epochlake.metastore.log.no_members import LogWithoutMembers
from epochlake.metastore.log.state_ids import next_state_id
from epochlake.metastore.metadata.events import FinishRequest, RegisterNode, StartRequest, SwitchBalancing
from epochlake.metastore.metadata.model import Volume
from epochlake.metastore.metastore import init_cluster

from benchmarks.far_server import far
from benchmarks.harness import STORAGE, Result, Target, at_least, interleaved, ratio_at_most, seconds

ROUNDS = 200
EARLY, LATE = 100, 10_000
COMPACT_EVERY = 32
PROCESSES, THREADS, COMMITS = 4, 16, 100
LONELY_COMMITS = 40
ROUND_TRIP_SECONDS, FAR_COMMITS = 0.1, 15
IN_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None


def latency() -> list[Result]:
    """One committer without contention; each part is done in turn with the commits, on logs of the same length."""
    with _cluster() as cluster, tempfile.TemporaryDirectory() as directory:
        parts = _Parts(cluster, directory)
        for _ in range(EARLY):
            _commit(cluster)
        taken = interleaved(
            ROUNDS,
            {
                "commit": lambda: _commit(cluster),
                "lock": parts.lock,
                "read": parts.read,
                "append": parts.append,
                "znode": parts.set_znode,
                "not measured": parts.follow,
            },
        )
    names = ("lock", "read", "append", "znode")
    told = ", ".join(f"{name} {statistics.median(taken[name]) * 1e3:.1f}" for name in names)
    # The sum of each round, and then the median: sums of medians would leave out the hiccups that a commit also has.
    sums = [sum(once) for once in zip(*(taken[name] for name in names), strict=True)]
    return [
        Result(
            "commit latency, median",
            statistics.median(taken["commit"]) * 1e3,
            "ms",
            statistics.median(sums) * 1e3,
            f"its parts alone, summed up ({told})",
            ratio_at_most(1.5),
        ),
        Result(
            "commit latency, 90 % are faster (every 32nd compacts)",
            statistics.quantiles(taken["commit"], n=10)[-1] * 1e3,
            "ms",
            statistics.quantiles(sums, n=10)[-1] * 1e3,
            "the same of the sums",
        ),
    ]


def flatness() -> list[Result]:
    """Commits around the 10,000th on one log, in turns with commits around the 100th on another."""
    window = 50
    with _cluster() as long, _cluster() as short:
        for cluster, length in ((short, EARLY), (long, LATE)):
            while cluster.metadata.epoch < length - window // 2:
                _commit(cluster)
        taken = interleaved(window, {"late": lambda: _commit(long), "early": lambda: _commit(short)})
    middle = {name: statistics.median(times) * 1e3 for name, times in taken.items()}
    return [
        Result(
            f"commit around epoch {LATE:,}",
            middle["late"],
            "ms",
            middle["early"],
            f"around {EARLY}",
            ratio_at_most(1.5),
        )
    ]


def throughput() -> list[Result]:
    """64 committers, each waiting for its commit before the next one: in 4 processes, and in a process each."""
    return [
        _throughput(PROCESSES, THREADS, COMMITS, at_least(500)),
        _throughput(PROCESSES * THREADS, 1, LONELY_COMMITS, at_least(200)),
    ]


def far_away() -> list[Result]:
    """A commit when ZooKeeper takes 100 ms to answer: it waits for the two requests of the lock, and for no other."""
    with _cluster() as cluster, far(cluster.coordination().connect_string, ROUND_TRIP_SECONDS) as address:
        settings = msgspec.structs.replace(cluster.configuration.zookeeper, connect=address)
        with open_cluster(msgspec.structs.replace(cluster.configuration, zookeeper=settings)) as distant:
            _commit(distant)
            taken = statistics.median(seconds(partial(_commit, distant)) for _ in range(FAR_COMMITS))
    return [
        Result(
            f"commit, ZooKeeper {ROUND_TRIP_SECONDS * 1e3:.0f} ms away",
            taken * 1e3,
            "ms",
            ROUND_TRIP_SECONDS * 1e3,
            "one round trip",
            ratio_at_most(4),
        )
    ]


def members() -> list[Result]:
    """Commits that a majority of three log members has on its disk, in turns with those that the root alone has.

    On the disk of the root, whose journal all of them wait for in turn, and in memory: what is left then is the work,
    and of the waiting that of the root.
    """
    with _cluster() as alone, _cluster(members=3) as among, _cluster(members=3, members_in=IN_MEMORY) as apart:
        commits = {
            "root": partial(_commit, alone),
            "majority": partial(_commit, among),
            "apart": partial(_commit, apart),
        }
        for _ in range(EARLY):
            for commit in commits.values():
                commit()
        taken = interleaved(ROUNDS, commits)
    middle = {name: statistics.median(times) * 1e3 for name, times in taken.items()}
    where = {"majority": "", "apart": ", which wait for no disk"}
    return [
        Result(
            f"commit that a majority of three members has{said}",
            middle[name],
            "ms",
            middle["root"],
            "by the root alone",
            ratio_at_most(1.5),
        )
        for name, said in where.items()
    ]


def looking() -> list[Result]:
    """Looking for log members where there are none, as each commit by the root alone does: after it has read the log,
    and before it appends.
    """
    with _cluster() as cluster:
        log = LogWithoutMembers(STORAGE, cluster.root.log_members, cluster.log_place.delta())
        for _ in range(EARLY):
            _commit(cluster)

        def look() -> None:
            log.require_none()
            log.require_none()

        taken = interleaved(ROUNDS, {"look": look, "commit": lambda: _commit(cluster)})
    middle = {name: statistics.median(times) * 1e3 for name, times in taken.items()}
    return [
        Result(
            "looking twice for log members",
            middle["look"],
            "ms",
            middle["commit"],
            "a commit that does",
            ratio_at_most(0.03),
        )
    ]


def _throughput(processes: int, threads: int, commits: int, target: Target) -> Result:
    with _cluster() as cluster:
        _add_node(cluster)
        before = cluster.metadata.epoch
        command = [sys.executable, "-m", "benchmarks.committer", cluster.configuration.root, str(threads), str(commits)]
        committing = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(processes)
        ]
        try:
            _hear(committing, "ready")
            taken = seconds(lambda: _run(committing))
        finally:
            for process in committing:
                process.communicate(timeout=60)
        failed = [process.returncode for process in committing if process.returncode]
        if failed:
            raise RuntimeError(f"{len(failed)} of {processes} committing processes have failed")
        committed = cluster.catch_up().epoch - before
        alone = statistics.median(seconds(partial(_commit, cluster)) for _ in range(EARLY))
    return Result(
        f"{processes * threads} committers in {processes} processes",
        committed / taken,
        "epochs/s",
        1 / alone,
        "one committer",
        target,
    )


@contextmanager
def _cluster(members: int = 0, members_in: str | None = None) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory(dir=members_in) as beside:
        configuration = Configuration(root=f"{directory}/root")
        if members:
            configuration = msgspec.structs.replace(configuration, log=LogSettings(acknowledge="majority"))
        init_cluster(configuration, "benchmark")
        if members:
            places = [f"{beside}/member-{number}" for number in range(members)]
            for place in places:
                os.mkdir(place)
            with open_cluster(configuration) as cluster:
                cluster_id = cluster.metadata.identity.cluster_id
                storage = cluster.storage
                reconfigure(configuration, storage, named(configuration, storage, places), lambda: cluster_id)
        with open_cluster(configuration) as cluster:
            cluster.coordination()
            yield cluster
        # The embedded server outlives its last user for a little while, in this directory.
        time.sleep(configuration.zookeeper.embedded_linger_seconds + 1)


def _commit(cluster: Cluster) -> None:
    cluster.commit(lambda metadata: SwitchBalancing(not metadata.switches.balancing))


def _add_node(cluster: Cluster) -> None:
    volume = Volume(1, "disk", f"{cluster.root.uri}/disk", 1 << 40)
    cluster.commit(RegisterNode("join", 1, "n1", next_state_id(""), "dc1", "r1", (volume,)))
    cluster.commit(StartRequest("join"))
    cluster.commit(FinishRequest("join"))


def _run(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    _hear(processes, "done")


def _hear(processes: list[subprocess.Popen[str]], word: str) -> None:
    for process in processes:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        if line != word:
            raise RuntimeError(f"a committing process said {line!r} where {word!r} was expected")


class _Parts:
    """The parts of a commit, each alone: the lock, reading a tail with nothing new, one append, one znode."""

    def __init__(self, cluster: Cluster, directory: str) -> None:
        coordination = cluster.coordination()
        self._lock = CommitLock(coordination, "benchmark-lock")
        self._call = coordination.call
        self._path = coordination.path("benchmark")
        self._call("create", lambda client: client.create_async(self._path, b"", makepath=True))
        self._position = Position()
        followed, self._directory = f"{directory}/followed", f"{directory}/appended"
        create_log_table(STORAGE, followed)
        os.mkdir(self._directory)
        self._followed = DeltaLog(STORAGE, followed, compact_every=COMPACT_EVERY)
        for _ in range(EARLY):
            self.follow()
            self.append()

    def lock(self) -> None:
        self._lock.acquire(10)
        self._lock.release()

    def read(self) -> None:
        self._followed.read(self._position.epoch)

    def append(self) -> None:
        """The same bytes without Delta: a row as a Parquet file and a line that names it, on the disk by one sync of
        the files and their directory.
        """
        name = f"{self._directory}/{self._position.epoch}"
        pq.write_table(self._row, f"{name}.parquet", compression="zstd")
        with open(f"{name}.json", "w", encoding="utf-8") as file:
            file.write(f'{{"add":{{"path":"{name}","size":{os.path.getsize(f"{name}.parquet")}}}}}')
        STORAGE.syncing.sync([f"{name}.parquet", f"{name}.json"], [self._directory])

    def set_znode(self) -> None:
        self._call("set", lambda client: client.set_async(self._path, b"x" * 200))

    def follow(self) -> None:
        """What the other parts need to have happened, and the commit does at other times: not measured."""
        entry = _entry(self._position)
        self._position = Position(entry.epoch, entry.state_id, entry.hash)
        self._followed.read(entry.epoch - 1)
        self._followed.append([entry])
        self._row = _as_row(entry)
        self._followed.compact_if_due()


def _entry(position: Position) -> Entry:
    return seal(
        encode_event(SwitchBalancing(True)),
        epoch=position.epoch + 1,
        request_id=next_state_id(""),
        state_id=next_state_id(position.state_id),
        previous_state_id=position.state_id,
        author="benchmark",
        reason="",
        committed_at=time.time_ns() // 1_000,
        incarnation=1,
        previous_hash=position.hash,
    )


def _as_row(entry: Entry) -> pa.Table:
    columns = [pa.array([getattr(entry, field.name)]).cast(field.type) for field in SCHEMA]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


BENCHMARKS: dict[str, Callable[[], list[Result]]] = {
    "latency": latency,
    "flatness": flatness,
    "throughput": throughput,
    "far away": far_away,
    "members": members,
    "looking": looking,
}
