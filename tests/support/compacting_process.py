"""A coordinator as a service in another process, which compacts, and kills itself at the n-th step of a compaction.

Steps are what changes something: each file that is stored, each decision of the ledger and each commit to a replica,
before and after. They are found by wrapping what compaction calls, in that process only.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

from epochlake.jobs.cluster import Cluster
from epochlake.jobs.coordinator.coordinator import Coordinator
from epochlake.jobs.replicas.ledger import Ledger
from epochlake.jobs.upkeep import compaction, compaction_track
from epochlake.metastore.configuration import Configuration

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload([__name__])

STEPS: list[tuple[Any, str]] = [
    (compaction_track, "merge_in_turn"),
    (Ledger, "record"),
    (compaction, "commit_files"),
]


def start_service(configuration: Configuration, *, die_at: int = 0) -> BaseProcess:
    """Start a coordinator that runs until it is killed, or kills itself at step `die_at` (from 1) of compactions."""
    process = _SERVER.Process(target=_serve, args=(configuration, die_at))
    process.start()
    return process


def _serve(configuration: Configuration, die_at: int) -> None:
    _wrap_all(die_at)
    compaction_track.LOOK_SECONDS = 0.1
    compaction_track.LOOKING_SHARE = 0
    compaction_track.REST_SECONDS = 0.1
    with Cluster(configuration) as cluster:
        track = compaction_track.CompactionTrack(cluster)
        Coordinator(cluster, beside=[track], woken=track.woken).run(False)


def _wrap_all(die_at: int) -> None:
    numbers = itertools.count(1)
    lock = threading.Lock()

    def step() -> None:
        with lock:
            if next(numbers) == die_at:
                os.kill(os.getpid(), signal.SIGKILL)

    def stepping(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **named: Any) -> Any:
            step()
            result = function(*args, **named)
            step()
            return result

        return wrapped

    for owner, name in STEPS:
        setattr(owner, name, stepping(getattr(owner, name)))
