"""Checks of the table in histories of rows: a row that makes one false is neither acknowledged nor shown.

A check holds from the moment at which its ALTER was acknowledged until somebody begins to drop it. A write that has
begun in between may not succeed, whoever has heard of the check, nor one that has begun before, and of whose row no
replica had anything at that moment. Its rows are shown to nobody where every replica can be reached; one that could not
be reached may have them alone (docs/decisions/081-checks.md, Limits).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
from epochlake.jobs import administration
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.testing.nemesis import DATA, MOUNTS, PLACES
from epochlake.jobs.testing.row_checkers import Access
from epochlake.jobs.testing.rows import TABLE
from epochlake.jobs.testing.scenario import Operation, Scenario
from epochlake.jobs.testing.scheduler import Scheduler
from epochlake.jobs.testing.themes import FORBIDDEN
from epochlake.metastore.metadata.cluster import ClusterMetadata

CHECKS = {"marked": f"not note like '{FORBIDDEN}%'", "there": "note is not null"}
"""The checks that operators add and drop, by their names."""

EXTRA = "extra"
"""The column that they add and drop beside."""


Rows = frozenset[tuple[int, str | None]]


class Period(msgspec.Struct, eq=False):
    """From which step on a check held, and until when: infinity where nobody has begun to drop it.

    `there`: the rows that were on some replica when it began to hold, by key and note; None where that cannot be told.
    """

    check: str
    since: float
    until: float = float("inf")
    there: Rows | None = None

    def may_have(self, write: Access, key: int) -> bool:
        """Whether the row of a write may be there all the same, as it was there before."""
        return write.began <= self.since and (self.there is None or (key, write.notes[key]) in self.there)


class Constraints:
    """The checks of a history's table, and when they held."""

    def __init__(self, scheduler: Scheduler, rows: Callable[[ClusterMetadata], Rows | None] = lambda _: None) -> None:
        """`rows`: those that live files of replicas have."""
        self.periods: list[Period] = []
        self._scheduler = scheduler
        self._rows = rows

    def alter(self, cluster: Cluster, operation: Operation) -> None:
        """Add or drop a check, or a column. Raises EpochlakeError."""
        name = sorted(CHECKS)[operation.number % len(CHECKS)]
        match operation.kind:
            case "add check":
                administration.alter_table(cluster, TABLE, add_checks={name: CHECKS[name]})
                self.periods.append(Period(name, self._scheduler.steps, there=self._rows(cluster.metadata)))
            case "drop check":
                self._end(name)
                administration.alter_table(cluster, TABLE, drop_checks=[name])
            case "alter columns" if operation.on:
                administration.alter_table(cluster, TABLE, add=[(EXTRA, "string", True)])
            case _:
                administration.alter_table(cluster, TABLE, drop=[EXTRA])

    def _end(self, name: str) -> None:
        """Somebody begins to drop a check: it may be gone from now on, whatever he is told."""
        for one in self.periods:
            if one.check == name:
                one.until = min(one.until, self._scheduler.steps)


def is_false(check: str, note: str | None) -> bool:
    """Whether a row with this note makes a check false."""
    return note is None if check == "there" else note is not None and note.startswith(FORBIDDEN)


def violations(periods: Sequence[Period], scenario: Scenario, accesses: Sequence[Access]) -> list[str]:
    """Rows that were acknowledged, or shown, while a check held that they make false."""
    are_reached = _all_are_reached(scenario)
    return [
        *_acknowledged(periods, accesses, are_reached=are_reached),
        *(_shown(periods, accesses) if are_reached else ()),
    ]


def _acknowledged(periods: Sequence[Period], accesses: Sequence[Access], *, are_reached: bool) -> Iterator[str]:
    for write in accesses:
        if write.kind != "write" or not write.acknowledged:
            continue
        for one in periods:
            if not one.since < write.ended < one.until:
                continue
            for key, note in write.notes.items():
                if not is_false(one.check, note):
                    continue
                if one.since < write.began or (are_reached and not one.may_have(write, key)):
                    yield f"{write.who} was told that the row {key, str(note)[:20]} is written, against {one.check}"


def _shown(periods: Sequence[Period], accesses: Sequence[Access]) -> Iterator[str]:
    """A row counts as shown against a check where no replica had it when the check began to hold."""
    for read in accesses:
        if read.kind != "read":
            continue
        for one in periods:
            if not one.since < read.began or read.ended >= one.until:
                continue
            for key, notes in read.rows.items():
                for note in notes:
                    if is_false(one.check, note) and not any(
                        key in write.notes and write.notes[key] == note and one.may_have(write, key)
                        for write in accesses
                        if write.kind == "write"
                    ):
                        yield f"{read.who} is shown the row {key, str(note)[:20]}, against {one.check}"


def _all_are_reached(scenario: Scenario) -> bool:
    """Whether every replica could be fenced by whoever has added a check."""
    out_of_reach = (*PLACES, *MOUNTS, *DATA, "access fails", "power cut")
    return not any(fault.kind in out_of_reach for fault in scenario.faults) and not any(
        part.blind for part in scenario.parts
    )
