"""What must hold of a history of rows, whatever was done to it.

The checkers know calls, when they began and ended, and what they said; nothing of replicas, files or placement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from epochlake.jobs.testing import change_histories
from epochlake.jobs.testing.change_histories import StreamHistory
from epochlake.jobs.testing.expiring import NEVER
from epochlake.jobs.testing.lost_epochs import Loss, excused
from epochlake.jobs.testing.row_scenarios import lossy_levels, operations_of
from epochlake.jobs.testing.scenario import Scenario
from epochlake.jobs.testing.themes import ALTER_TTL, ALTERATIONS, DESTRUCTIVE, KEYS
from epochlake.jobs.testing.world import ROOT

LONGEST_SECONDS = 900.0
"""How long a read or write may take that nobody has paused, whatever hangs."""

STRONG = {"ONE": ("ALL",), "QUORUM": ("QUORUM", "ALL"), "ALL": ("ONE", "QUORUM", "ALL")}
"""Which writes a read at a level must show; those at ONE as long as nothing is destroyed."""


class Access(NamedTuple):
    """One write, delete (note None) or read of keys. `acknowledged`: it was told that it has succeeded.

    Of a read `rows` has all notes of each key, `notes` the first of them.

    `began` and `ended` are steps of the scheduler: its clock stands still while somebody can go on. A batch that is
    tried again is one access, from its first try to its first success. `times`: what each staging of it calls the time
    of the write. `moment`: by which rows of a write expire, None for never; `bound`: of a read, before which they have.
    """

    kind: str
    who: str
    began: float
    ended: float
    acknowledged: bool
    notes: dict[int, str | None]
    rows: dict[int, list[str | None]] = {}  # noqa: RUF012
    level: str = "QUORUM"
    seconds: float = 0.0
    times: Sequence[int] = ()
    moment: int | None = None
    bound: float = NEVER

    def has_expired(self, bound: float) -> bool:
        """Whether no row of it is shown that has a moment before this."""
        return self.moment is not None and self.moment < bound

    def comes_after(self, other: Access) -> bool:
        """Whether it counts instead of the other, which had ended when it began. What one replica alone has
        acknowledged others need not have heard of: then clocks decide.
        """
        return other.ended < self.began and (
            "ONE" not in (self.level, other.level) or "ALL" in (self.level, other.level)
        )

    def is_over(self, other: Access) -> bool:
        """Whether it counts instead of the other, which had begun when it ended: the times of both say so."""
        known = bool(self.times and other.times) and other.began < self.ended
        return known and min(self.times) > max(other.times)


class RowHistory(NamedTuple):
    """What a world did with rows, and what was done to it. `whole`: a failed write has to be there whole or not.
    `in_time`: of two writes the later one counts, by their times, whichever has landed first. `losses`: of epochs.
    """

    scenario: Scenario
    accesses: list[Access]
    steps: int
    harm: Counter[str]
    outcomes: Counter[str]
    coverage: Counter[str]
    unexpected: list[str]
    whole: bool = False
    append_only: bool = False
    in_time: bool = True
    stream: StreamHistory | None = None
    losses: Sequence[Loss] = ()


def violations(history: RowHistory) -> list[str]:
    """What does not hold of a history; empty when all of it does."""
    found = list(history.unexpected)
    writes = [access for access in history.accesses if access.kind != "read"]
    lossy: list[Access] = []
    if levels := lossy_levels(history.scenario):
        # What so few replicas have acknowledged may have been on those that are gone.
        writes = [one._replace(acknowledged=False) if one.level in levels else one for one in writes]
        lossy = [one for one in writes if one.level in levels]
    for read in history.accesses:
        if read.kind != "read":
            continue
        known = writes
        if history.losses:
            # What the cluster may not know of, then: that it was acknowledged does not count.
            known = [
                one._replace(acknowledged=False) if excused(history.losses, read.began, read.ended, one.began) else one
                for one in writes
            ]
        if history.append_only:
            found += _wrong_appended(read, known)
            continue
        found += [f"{read.who} is shown key {key} twice" for key, notes in read.rows.items() if len(notes) > 1]
        for key in sorted({*range(KEYS), *read.notes}):
            found += _wrong(key, read, known, in_time=history.in_time)
    found += _needless_errors(history)
    if history.stream is not None:
        found += change_histories.violations(history.stream, writes, lossy)
    if history.whole and not history.append_only:
        found += _torn(history.accesses, writes)
    # Who was paused takes its time, and the root has no deadline.
    if not any(fault.kind == "pause" or (fault.place == ROOT) for fault in history.scenario.faults):
        late = [access for access in history.accesses if access.seconds > LONGEST_SECONDS]
        found += [f"a {one.kind} by {one.who} took {one.seconds:.0f} seconds" for one in late]
    return found


REFUSED = ("operator: Rejected", "operator: PlacementImpossible", "upkeep: Rejected")
"""What is told of what cannot be: a node that leaves twice, a table while too few nodes are there for its replicas."""


ALTERED = tuple(
    f"{role}: {told}" for role in ("pipeline", "follower", "operator") for told in ("TableAltered", "Rejected")
)
"""What is told besides where columns change, of reads and writes that were planned before: worth trying again."""


def _needless_errors(history: RowHistory) -> list[str]:
    """Where nothing has gone wrong nobody is told that anything failed: only operators ask for what cannot be."""
    scenario = history.scenario
    if any(fault.kind != "kill" for fault in scenario.faults) or any(part.blind for part in scenario.parts):
        return []
    if any(one.kind in DESTRUCTIVE for one in operations_of(scenario)):
        return []  # until a node that was given up is rebuilt, nothing is acknowledged by all
    alters = any(one.kind in (*ALTERATIONS, ALTER_TTL) for one in operations_of(scenario))
    may_be_told = (*REFUSED, *ALTERED) if alters else REFUSED
    return [
        f"nothing has gone wrong, and {count} times there was: {told}"
        for told, count in sorted(history.outcomes.items())
        if told not in may_be_told
    ]


def _wrong_appended(read: Access, writes: Sequence[Access]) -> list[str]:
    """Of a table whose rows are never replaced each row of an acknowledged write is shown once, others at most."""
    strong, found = STRONG[read.level], []
    shown_rows = Counter((key, note) for key, notes in read.rows.items() for note in notes)
    for write in writes:
        must = write.acknowledged and write.ended < read.began and write.level in strong
        for key, note in write.notes.items():
            times = shown_rows.pop((key, note), 0)
            if times > 1 or (must and not times) or (times and write.began > read.ended):
                found.append(
                    f"{read.who} shows the row {key, str(note)[:20]} {times} times at {read.level} at step {read.began}"
                )
    return found + [f"{read.who} shows {key, str(note)[:20]}, which nobody has written" for key, note in shown_rows]


def _wrong(key: int, read: Access, writes: Sequence[Access], *, in_time: bool) -> list[str]:
    """Whether a read shows of a key what it may: a write that nothing acknowledged has come after, before the read.
    Of two at the same time the later one counts, by their own times, when it was acknowledged (`in_time`).
    """
    of_key = [write for write in writes if key in write.notes and write.began < read.ended]
    note = read.notes.get(key)
    if key in read.notes:
        sources = [write for write in of_key if write.kind == "write" and write.notes[key] == note]
        sources = [write for write in sources if not write.has_expired(read.bound)]
    else:
        sources = [write for write in of_key if write.kind == "delete" or write.has_expired(read.bound)]
        sources.append(Access("delete", "nobody", float("-inf"), float("-inf"), True, {key: None}, level="ALL"))
    strong = STRONG[read.level]
    known = [w for w in of_key if w.acknowledged and w.ended < read.began and w.level in strong]
    if any(
        not any(other.comes_after(source) or (in_time and other.is_over(source)) for other in known)
        for source in sources
    ):
        return []
    what = f"shows {str(note)[:20]!r}" if key in read.notes else "does not show"
    over = [(write.notes[key] or write.kind)[:20] for write in known][-3:]
    return [f"{read.who} {what} of key {key} at {read.level} at step {read.began}, over {over}"]


def _torn(accesses: Sequence[Access], writes: Sequence[Access]) -> list[str]:
    """At rest a write of one range is there whole or not at all, as far as nothing else was written to its keys."""
    at_rest = [access for access in accesses if access.kind == "read" and access.who == "at rest"]
    found = []
    for write in writes:
        alone = [key for key in write.notes if not any(key in other.notes for other in writes if other is not write)]
        for read in at_rest:
            there = [key for key in alone if read.notes.get(key) == write.notes[key] and key in read.notes]
            if write.kind == "write" and there and there != alone:
                found.append(f"{read.who} shows of {write.notes} only the keys {there}")
    return found
