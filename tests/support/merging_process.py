"""Processes that merge counters, and kill or stop themselves at the n-th step of their merges.

Steps are what changes something, before and after: staging, the copies, the intent, the entry, landing and its end.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from epochlake.jobs.cluster import Cluster
from epochlake.jobs.gate.merge_journal import MergeJournal
from epochlake.jobs.gate.writing import Writing
from epochlake.metastore.configuration import Configuration
from epochlake.placement.errors import EpochlakeError

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload([__name__])

STEPS: list[tuple[Any, str]] = [
    (Writing, "stage"),
    (MergeJournal, "keep"),
    (MergeJournal, "intend"),
    (MergeJournal, "put"),
    (Writing, "land"),
    (MergeJournal, "finish"),
]
TRY_AGAIN = 75


class Strike(NamedTuple):
    """What happens to a process: a signal, at which of its steps."""

    signal: int
    at: int


class Added(NamedTuple):
    """A merge: under this name so much is added to each of these keys."""

    name: str
    keys: tuple[int, ...]
    amount: int


def start_merger(
    configuration: Configuration, table: str, merges: list[Added], done: Path, strike: Strike | None
) -> BaseProcess:
    """Start a process that makes each merge that `done` does not name yet, and adds its name there."""
    process = _SERVER.Process(target=_merge_all, args=(configuration, table, merges, done, strike))
    process.start()
    return process


def _merge_all(
    configuration: Configuration, table: str, merges: list[Added], done: Path, strike: Strike | None
) -> None:
    if strike is not None:
        _wrap_all(strike)
    known = set(done.read_text().split()) if done.exists() else set()
    for merge in merges:
        if merge.name not in known:
            _merged(configuration, table, merge)
            with done.open("a") as file:
                file.write(f"{merge.name}\n")


def _merged(configuration: Configuration, table: str, merge: Added) -> None:
    source = [{"id": key, "n": merge.amount} for key in merge.keys]
    while True:
        try:
            with Cluster(configuration) as cluster:
                clauses = cluster.merge(table, source).when_matched_update({"n": "target.n + source.n"})
                clauses.when_not_matched_insert({"n": "source.n"}).execute(batch=merge.name)
                return
        except EpochlakeError as error:
            if error.exit_code != TRY_AGAIN:
                raise
            time.sleep(0.1)


def _wrap_all(strike: Strike) -> None:
    numbers = itertools.count(1)

    def step() -> None:
        if next(numbers) == strike.at:
            os.kill(os.getpid(), strike.signal)

    def stepping(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **named: Any) -> Any:
            step()
            result = function(*args, **named)
            step()
            return result

        return wrapped

    for owner, name in STEPS:
        setattr(owner, name, stepping(getattr(owner, name)))


STOPPED = signal.SIGSTOP
KILLED = signal.SIGKILL
