"""Processes that write rows for the columns that they found, while others change them, and processes that change tables
at once.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from epochlake.jobs import administration
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.gate import standing
from epochlake.metastore.committing.local_queue import LocalQueue
from epochlake.metastore.configuration import Configuration
from epochlake.metastore.errors import Rejected

from tests.support.clusters import without_zookeeper

_SERVER = multiprocessing.get_context("forkserver")

STOPPED = "stopped by "
SECONDS = 60.0


class Writers:
    """What processes have said: the ids of rows that were acknowledged, and by which code of a rejection they ended."""

    def __init__(self, said: Any, count: int) -> None:
        self._said = said
        self._count = count
        self.acknowledged: set[int] = set()
        self.stopped: list[str] = []

    def hear(self, more: int) -> None:
        """Wait until so many more rows are acknowledged, or all writers have ended."""
        wanted = len(self.acknowledged) + more
        while len(self.acknowledged) < wanted and len(self.stopped) < self._count:
            word = self._said.get(timeout=SECONDS)
            if isinstance(word, int):
                self.acknowledged.add(word)
            else:
                self.stopped.append(word.removeprefix(STOPPED))

    def hear_all(self) -> None:
        """Wait until each of them has written a row."""
        while len({number // 1_000_000 for number in self.acknowledged}) < self._count:
            self.hear(1)


@contextmanager
def writing(configuration: Configuration, table: str, count: int) -> Iterator[Writers]:
    """So many processes write rows of `id` and `note`, until they are refused. All have begun."""
    said = _SERVER.Queue()
    started = [
        _SERVER.Process(target=_write, args=(configuration, table, said, 1_000_000 * (number + 1)))
        for number in range(count)
    ]
    for one in started:
        one.start()
    try:
        writers = Writers(said, count)
        writers.hear_all()
        yield writers
    finally:
        for one in started:
            one.kill()
            one.join()


def _write(configuration: Configuration, table: str, said: Any, begin: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        without_zookeeper(patched)
        # The columns that a gate has found first count for what is written by it.
        patched.setattr(standing, "STANDS_SECONDS", 3600.0)
        with Cluster(configuration, queue=LocalQueue()) as cluster:
            try:
                for number in range(begin, begin + 100_000):
                    cluster.write(table, [{"id": number, "note": f"of {number}"}], consistency="QUORUM")
                    said.put(number)
            except Rejected as rejected:
                said.put(f"{STOPPED}{rejected.code}")
            except Exception as error:
                said.put(f"{STOPPED}{error!r}")


class Asked(NamedTuple):
    """A change that a process asks for: a function of `administration`, and what it is called with."""

    verb: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]


def changed_at_once(configuration: Configuration, *lists: Sequence[Asked]) -> list[list[int | str]]:
    """Make each list of changes in a process of its own, all of which begin together. Of each change its epoch, or the
    code of its rejection.
    """
    said, begin = _SERVER.Queue(), _SERVER.Barrier(len(lists))
    started = [
        _SERVER.Process(target=_change, args=(configuration, number, asked, begin, said))
        for number, asked in enumerate(lists)
    ]
    for one in started:
        one.start()
    try:
        outcomes = dict(said.get(timeout=SECONDS * 2) for _ in started)
    finally:
        for one in started:
            one.kill()
            one.join()
    return [outcomes[number] for number in range(len(lists))]


def _change(configuration: Configuration, number: int, asked: Sequence[Asked], begin: Any, said: Any) -> None:
    outcomes: list[int | str] = []
    with pytest.MonkeyPatch.context() as patched:
        without_zookeeper(patched)
        with Cluster(configuration, queue=LocalQueue()) as cluster:
            begin.wait(SECONDS)
            for one in asked:
                try:
                    made = getattr(administration, one.verb)(cluster, *one.arguments, **one.options)
                    outcomes.append(getattr(made, "committed", made).epoch)
                except Rejected as rejected:
                    outcomes.append(str(rejected.code))
                except Exception as error:
                    outcomes.append(repr(error))
    said.put((number, outcomes))
