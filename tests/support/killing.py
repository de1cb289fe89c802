"""Other processes for tests: writers, and a coordinator that kills itself, or stops, at the n-th of its steps.

Steps are found by wrapping what it calls, in that process only: each commit to the log, fence, replica table that is
made, tablet that is dropped, file that is copied and commit to a replica, before and after.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from epochlake.jobs.cluster import Cluster
from epochlake.jobs.coordinator import fencing
from epochlake.jobs.coordinator.coordinator import Coordinator
from epochlake.jobs.coordinator.effects import replicas as effects
from epochlake.jobs.coordinator.effects import tablets as side_effects
from epochlake.jobs.coordinator.tracks import tablets as tablet_track
from epochlake.jobs.replicas.copying import copy_data_file
from epochlake.jobs.replicas.streaming import Copier
from epochlake.metastore.committing.local_queue import LocalQueue
from epochlake.metastore.configuration import Configuration
from epochlake.metastore.log.delta import DeltaLog

from tests.support.clusters import SmallCluster

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload([__name__])

PAUSE_SECONDS = 0.1
"""Between two writes of a process: what it writes beside has to get on, too."""

STEPS: list[tuple[Any, str]] = [
    (DeltaLog, "append"),
    (fencing, "raise_fence"),
    (side_effects, "raise_fence"),
    (effects, "create_replica"),
    (effects, "drop_ranges"),
    (effects, "commit_files"),
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
            Coordinator(cluster, Copier(how=copy)).run(True)
    else:
        _work(configuration, copy)


def _count(configuration: Configuration, answer: Any) -> None:
    made: list[int] = []
    _work(configuration, _wrap_all(made.append))
    answer.send(len(made))


def _work(configuration: Configuration, copy: Callable[..., None]) -> None:
    """Without ZooKeeper there is no election: the rounds are done directly."""
    cluster = Cluster(configuration, queue=LocalQueue())
    coordinator = Coordinator(cluster, Copier(how=copy))
    while coordinator._round_safely() or not coordinator._is_idle(cluster.catch_up()):
        pass


def _wrap_all(step: Callable[[int], None]) -> Callable[..., None]:
    """Call `step` with its number before and after each step; the wrapped copying of a file."""
    tablet_track.AVOIDED_SECONDS = 0.0
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


class Acknowledged:
    """What writers in other processes have reported: ids of files by tablet."""

    def __init__(self, answers: Any, writers: int) -> None:
        self.by_tablet: dict[int, list[str]] = {0: [], 1: []}
        self._answers = answers
        self._writers = writers

    def wait_for(self, rounds: int) -> None:
        """Wait until every writer has written so many more times."""
        left = dict.fromkeys(range(self._writers), rounds)
        while any(left.values()):
            writer = self.take()
            left[writer] = max(0, left[writer] - 1)

    def take(self, seconds: float = 60.0) -> int:
        """The writer that reports next. Raises queue.Empty when none does for so long."""
        writer, tablet, file_id = self._answers.get(timeout=seconds)
        if tablet is None:
            raise AssertionError(file_id)
        self.by_tablet[tablet].append(file_id)
        return int(writer)


@contextmanager
def write_all_the_time(cluster: SmallCluster, writers: int) -> Iterator[Acknowledged]:
    """Processes that write, each through a pipeline of its own, until the end of the block."""
    answers, stop = _SERVER.Queue(), _SERVER.Event()
    arguments = (cluster.cluster.configuration, str(cluster.directory), stop, answers)
    processes = [_SERVER.Process(target=_write, args=(writer, *arguments)) for writer in range(writers)]
    for process in processes:
        process.start()
    acknowledged = Acknowledged(answers, writers)
    try:
        yield acknowledged
    finally:
        stop.set()
        while any(process.is_alive() for process in processes) or not answers.empty():
            with suppress(queue.Empty):
                acknowledged.take(0.1)


def _write(writer: int, configuration: Configuration, directory: str, stop: Any, answers: Any) -> None:
    opened = Cluster(configuration, queue=LocalQueue())
    cluster = SmallCluster(opened, opened.metadata.table("air.flights"), Path(directory))
    pipeline = cluster.pipeline(f"writer {writer}")
    number = 0
    while not stop.wait(PAUSE_SECONDS):
        number += 1
        try:
            answers.put((writer, number % 2, cluster.write(pipeline, tablet=number % 2)))
        except Exception as error:
            answers.put((writer, None, repr(error)))
            return
