"""Rows of a history's table that expire: what a read may show of them, by the clock of who reads.

The table has a column with a moment, null where a row never expires, and has had one time to live after another. What
has expired by one of them while it was in force stays so (docs/tables.md, "Rows that expire").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from epochlake.jobs import administration
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.gate.arrow_reading import question
from epochlake.jobs.gate.moments import moment_of
from epochlake.jobs.replicas.scanning import Asked
from epochlake.jobs.testing.rows import ALL_OF_IT, MOMENT, TABLE
from epochlake.jobs.testing.scenario import Operation
from epochlake.jobs.testing.scheduler import Process, Scheduler
from epochlake.metastore.metadata.model import Table

NEVER = float("-inf")
"""A bound before which nothing is."""

SKEW = 3600.0
"""By so much clocks are taken to be apart, in seconds."""


class Lifetime(Protocol):
    """A time to live that a table has, or had: see `TimeToLive`."""

    @property
    def seconds(self) -> int | None:
        """How long rows live; None where they live for ever from then on."""

    @property
    def since(self) -> int:
        """When it began, in microseconds since 1970."""


class Alterations:
    """How often the time to live of the table was altered, as operators were told."""

    def __init__(self) -> None:
        self.acknowledged = 0

    def alter(self, cluster: Cluster, operation: Operation) -> None:
        """Let rows live for `number` seconds from now on; 0: for ever. Raises EpochlakeError."""
        if operation.number:
            administration.set_ttl(cluster, TABLE, MOMENT, operation.number)
        else:
            administration.drop_ttl(cluster, TABLE)
        self.acknowledged += 1


def bound(lifetimes: Sequence[Lifetime], at: float) -> float:
    """Rows with a moment before this have expired at a time, in microseconds since 1970: at some time until then, by
    the time to live that was in force.
    """
    found = NEVER
    for number, one in enumerate(lifetimes):
        end = lifetimes[number + 1].since if number + 1 < len(lifetimes) else at
        if one.seconds is not None and one.since <= at:
            found = max(found, min(end, at) - one.seconds * 1e6)
    return found


def bound_now(table: Table, process: Process, scheduler: Scheduler) -> float:
    """The same by the clock of a process, which is never before the last alteration that it knows."""
    clock = (scheduler.now + process.skew) * 1e6
    known = [one.since for one in table.lifetimes if one.since <= clock + SKEW * 1e6]
    return bound(table.lifetimes, max([clock, *known]))


def asked_of(table: Table, as_of: int | None = None) -> Asked:
    """What a read asks for, as programs do."""
    if not table.lifetimes:
        return ALL_OF_IT
    return question(table, ["id", "note"], as_of=None if as_of is None else moment_of(as_of)).asked
