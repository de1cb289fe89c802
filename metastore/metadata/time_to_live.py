"""Which rows of a table have expired, by the times to live that it has had. A pure rule: whoever asks brings the time.

A row expires by the value of one column: what is older than a bound is not shown. The bound of a time is the highest
of all times to live up to it, each of which counts until the next one begins and then stands still. So it never goes
back, whatever is altered: rows that have expired stay so on every replica, whether a compaction has dropped them there
or not (docs/decisions/114).
"""

from __future__ import annotations

from epochlake.metastore.metadata.model import Table, TimeToLive

MICROS = 1_000_000

SKEW_MICROS = 3600 * MICROS
"""So far at most the clocks of writers, readers and compactions are taken to be apart."""


def in_force(table: Table) -> TimeToLive | None:
    """The time to live that a table has now, None for none."""
    last = table.lifetimes[-1] if table.lifetimes else None
    return None if last is None or last.seconds is None else last


def judged_at(table: Table, clock: int) -> int:
    """As of when a read judges whose clock says `clock`, microseconds since 1970: never from before the last change.

    A change that is further ahead than clocks are apart was made by a wrong one, and waits for its time.
    """
    return max([clock, *(one.since for one in table.lifetimes if one.since <= clock + SKEW_MICROS)])


def expired_before(table: Table, at: int) -> dict[int, int]:
    """By the number of a column: rows whose value of it is less have expired at the time `at`. In microseconds since
    1970. It never becomes less with a later `at`, nor by a change that begins after it.
    """
    bounds: dict[int, int] = {}
    ends = [*(one.since for one in table.lifetimes[1:]), at]
    for one, end in zip(table.lifetimes, ends, strict=True) if table.lifetimes else ():
        if one.since <= at and one.seconds is not None:
            bound = min(at, end) - one.seconds * MICROS
            bounds[one.column_id] = max(bound, bounds.get(one.column_id, bound))
    return bounds


def changed(table: Table, new: TimeToLive) -> tuple[TimeToLive, ...]:
    """What a table has had, and `new`. What had yet to begin by then never does: a wrong clock has said it."""
    return (*(one for one in table.lifetimes if one.since < new.since), new)


def begins(table: Table, clock: int) -> int:
    """When a change begins that is made now: after the last one, unless that has a time that cannot be."""
    return max([clock, *(one.since + 1 for one in table.lifetimes if one.since <= clock + SKEW_MICROS)])
