"""Counters that many processes add to, some of them killed, and some stopped for longer than their lease lives."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from epochlake.jobs import administration
from epochlake.jobs.cluster import Cluster
from epochlake.metastore.configuration import Configuration, LogSettings, ZooKeeperSettings
from epochlake.metastore.metastore import init_cluster

from tests.support.clusters import FOUR, join
from tests.support.merging_process import KILLED, STOPPED, Added, Strike, start_merger
from tests.support.slices import some
from tests.support.zookeeper import Ensemble

TABLE = "air.counters"
SESSION_SECONDS = 2.0
PROCESSES, MERGES, KEYS, STEPS = 3, some(12, 5), 4, 12
"""A merge that nobody disturbs has twelve steps."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Ensemble(tmp_path / "zookeeper", size=1) as server:
        configuration = Configuration(
            root=str(tmp_path / "root"),
            zookeeper=ZooKeeperSettings(connect=server.connect_string, session_timeout_seconds=SESSION_SECONDS),
            log=LogSettings(poll_seconds=0.1),
        )
        init_cluster(configuration)
        with Cluster(configuration) as cluster:
            for name, (_, rack) in FOUR.items():
                join(cluster, tmp_path / "volumes", name, rack)
            administration.create_keyspace(cluster, "air", {"dc1": 3})
            columns = [("id", "bigint", False), ("n", "bigint", True)]
            administration.create_table(cluster, TABLE, columns, ["id"], tablets=2)
            yield cluster


def test_what_processes_add_is_the_exact_sum_though_some_are_killed_and_some_sleep_beyond_their_lease(
    cluster: Cluster, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    merges = {
        who: [
            Added(f"{who}/{number}", tuple(chance.sample(range(KEYS), chance.randint(1, 3))), chance.randint(1, 9))
            for number in range(MERGES)
        ]
        for who in range(PROCESSES)
    }
    strikes = {
        who: [Strike(kind, chance.randint(1, 2 * STEPS)) for kind in chance.sample([KILLED, STOPPED], 2)]
        for who in range(PROCESSES)
    }

    def start(who: int) -> BaseProcess:
        strike = strikes[who].pop() if strikes[who] else None
        return start_merger(cluster.configuration, TABLE, merges[who], tmp_path / f"done-{who}", strike)

    running = {who: start(who) for who in merges}
    deadline = time.monotonic() + 300
    beside = 0
    stopped: dict[int, float] = {}
    while running:
        assert time.monotonic() < deadline
        beside += 1
        cluster.write(TABLE, [{"id": 1_000, "n": beside}])  # nobody merges into this row
        time.sleep(0.2)
        for who, process in list(running.items()):
            if process.exitcode is not None:
                assert process.exitcode in (0, -signal.SIGKILL)
                del running[who]
                if process.exitcode:
                    running[who] = start(who)
            elif (
                _is_stopped(process)
                and time.monotonic() > stopped.setdefault(who, time.monotonic()) + 2.5 * SESSION_SECONDS
            ):
                assert process.pid is not None
                os.kill(process.pid, signal.SIGCONT)
                stopped.pop(who)
    wanted: Counter[int] = Counter()
    for merge in (one for of_process in merges.values() for one in of_process):
        wanted.update(dict.fromkeys(merge.keys, merge.amount))
    rows = {row["id"]: row["n"] for row in cluster.scan(TABLE).read_all().to_pylist()}
    assert rows.pop(1_000) == beside
    assert rows == dict(wanted)


def _is_stopped(process: BaseProcess) -> bool:
    try:
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except FileNotFoundError:
        return False
