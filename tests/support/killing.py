"""A coordinator in a process of its own that kills itself, or stops, at the n-th of its steps.

Steps are found by wrapping what it calls, in that process only: each commit to the log, fence, replica table that is
made, tablet that is dropped, file that is copied and commit to a replica, before and after.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from epochlake.jobs import cluster as clusters
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.coordinator import coordinator as coordinators
from epochlake.jobs.coordinator import fencing, side_effects
from epochlake.jobs.coordinator.coordinator import Coordinator
from epochlake.jobs.dataplane.copying import copy_data_file
from epochlake.jobs.dataplane.streaming import ThreadCopier
from epochlake.metastore.configuration import Configuration
from epochlake.metastore.local_queue import LocalQueue
from epochlake.metastore.log.delta import DeltaLog

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload([__name__])

STEPS: list[tuple[Any, str]] = [
    (DeltaLog, "append"),
    (fencing, "raise_fence"),
    (side_effects, "raise_fence"),
    (side_effects, "create_replica"),
    (side_effects, "drop_tablets"),
    (side_effects, "commit_files"),
]


def run_coordinator(
    configuration: Configuration, *, die_at: int = 0, how: signal.Signals = signal.SIGKILL, zookeeper: bool = False
) -> multiprocessing.process.BaseProcess:
    """Start a coordinator that runs until it is idle, or gets signal `how` at its step number `die_at` (from 1)."""
    process = _SERVER.Process(target=_coordinate, args=(configuration, die_at, int(how), zookeeper))
    process.start()
    return process


def steps_of(configuration: Configuration) -> int:
    """How many steps a coordinator makes until it is idle."""
    ours, theirs = _SERVER.Pipe()
    process = _SERVER.Process(target=_count, args=(configuration, theirs))
    process.start()
    theirs.close()
    steps = ours.recv()
    process.join()
    return int(steps)


def _coordinate(configuration: Configuration, die_at: int, how: int, zookeeper: bool) -> None:
    def step(number: int) -> None:
        if number == die_at:
            os.kill(os.getpid(), how)

    copy = _wrap_all(step)
    if zookeeper:
        with Cluster(configuration) as cluster:
            Coordinator(cluster, ThreadCopier(how=copy)).run(True)
    else:
        _work(configuration, copy)


def _count(configuration: Configuration, answer: Any) -> None:
    made: list[int] = []
    _work(configuration, _wrap_all(made.append))
    answer.send(len(made))


def _work(configuration: Configuration, copy: Callable[..., None]) -> None:
    """Without ZooKeeper there is no election: the rounds are done directly."""
    clusters.ZooKeeperQueue = lambda connect: LocalQueue()  # type: ignore[assignment, misc]
    cluster = Cluster(configuration)
    coordinator = Coordinator(cluster, ThreadCopier(how=copy))
    while coordinator._round_safely() or not coordinator._is_idle(cluster.catch_up()):
        pass


def _wrap_all(step: Callable[[int], None]) -> Callable[..., None]:
    """Call `step` with its number before and after each step; the wrapped copying of a file."""
    coordinators.AVOIDED_SECONDS = 0.0
    numbers = itertools.count(1)
    lock = threading.Lock()

    def stepping(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **named: Any) -> Any:
            with lock:
                step(next(numbers))
            result = function(*args, **named)
            with lock:
                step(next(numbers))
            return result

        return wrapped

    for owner, name in STEPS:
        setattr(owner, name, stepping(getattr(owner, name)))
    return stepping(copy_data_file)
