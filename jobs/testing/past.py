"""What reads as of an earlier time may show: of each key the newest write that has its time by then.

The checker knows calls and the times that writes have given to their rows, and nothing of files or of compactions.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from epochlake.jobs.cluster import Cluster
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.replicas.counting import count_of
from epochlake.jobs.replicas.scanning import scan
from epochlake.jobs.testing.expiring import asked_of, bound
from epochlake.jobs.testing.rows import TABLE, RowsDamaged, scanned, shown
from epochlake.jobs.testing.scenario import Scenario
from epochlake.jobs.testing.themes import KEYS
from epochlake.jobs.testing.world import World
from epochlake.jobs.upkeep.compacting import EVERYTHING
from epochlake.jobs.upkeep.compaction import compact
from epochlake.placement.errors import EpochlakeError, InvalidRequest

MOMENTS = 5
"""So many times of a history are asked for."""

Rows = Mapping[int, Sequence[str | None]]


class Write(Protocol):
    """A write or delete of a history: see `Access`."""

    @property
    def kind(self) -> str:
        """`write` or `delete`."""

    @property
    def began(self) -> float:
        """A step of the scheduler."""

    @property
    def ended(self) -> float:
        """A step of the scheduler; infinity where it was never acknowledged."""

    @property
    def acknowledged(self) -> bool:
        """Whether it was told that it has succeeded."""

    @property
    def notes(self) -> Mapping[int, str | None]:
        """What it has written, by key."""

    @property
    def level(self) -> str:
        """At which it was acknowledged."""

    @property
    def times(self) -> Sequence[int]:
        """What each staging of it calls the time of the write."""

    def comes_after(self, other: Any, /) -> bool:
        """Whether it counts instead of the other, which had ended when it began."""

    def is_over(self, other: Any, /) -> bool:
        """Whether it counts instead of the other, by the times of both."""

    def has_expired(self, bound: float, /) -> bool:
        """Whether no row of it is shown that has a moment before this."""


W = TypeVar("W", bound=Write)


def moments(writes: Sequence[Write], chance: random.Random) -> list[int]:
    """Times to ask for, microseconds: of writes, and just before."""
    times = sorted({time for write in writes for time in write.times})
    return [time - chance.choice([0, 0, 1]) for time in chance.sample(times, min(MOMENTS, len(times)))]


def read_as_of(cluster: Cluster, as_of: int, way: int) -> tuple[Rows, int] | EpochlakeError | RowsDamaged:
    """The notes of each key as of a time, and how many rows are counted; or why that cannot be told."""
    try:
        with Gate(cluster, "as of") as gate:
            table = gate.planning.table(TABLE)
            asked = asked_of(table, as_of)
            plan = gate.plan_read(table, "QUORUM", None, as_of)
            found = shown(cluster.storage, plan) if way and not table.lifetimes else scanned(scan(plan, asked))
            return found, count_of(plan, asked)
    except InvalidRequest:
        raise
    except (EpochlakeError, RowsDamaged) as error:
        return error


def ask_for_the_past(
    world: World,
    cluster: Cluster,
    scenario: Scenario,
    accesses: Sequence[W],
    outcomes: Counter[str],
    *,
    in_time: bool,
) -> list[str]:
    """Read as of times of a history, before and after all is put together: what is shown that may not be, or not shown.

    A refusal is an answer. `in_time`: of two writes the later one counts, by their times.
    """
    wrong: list[str] = []
    writes = [access for access in accesses if access.kind != "read"]
    for turn in range(1 if world.folder is None else 2):
        if turn:
            with suppress(EpochlakeError):
                compact(cluster, TABLE, policy=EVERYTHING, tombstone_grace_seconds=0.0)
        chance = random.Random(scenario.seed + turn)
        for number, as_of in enumerate(moments(writes, chance)):
            wrong += _wrong_as_of(
                cluster, writes, as_of, number % 2, outcomes, append_only=scenario.settings.append_only, in_time=in_time
            )
    return wrong


def _wrong_as_of(
    cluster: Cluster,
    writes: Sequence[W],
    as_of: int,
    way: int,
    outcomes: Counter[str],
    *,
    append_only: bool,
    in_time: bool,
) -> list[str]:
    try:
        found = read_as_of(cluster, as_of, way)
    except InvalidRequest:
        return []  # a clock that went ahead has made it a time to come
    if not isinstance(found, tuple):
        outcomes[f"as of: {type(found).__name__}"] += 1
        return []
    outcomes["as of: shown"] += 1
    rows, counted = found
    there = sum(map(len, rows.values()))
    wrong = [f"as of {as_of} {there} rows are shown, and {counted} are counted"] if counted != there else []
    if append_only:
        return wrong + _wrong_appended(rows, writes, as_of)

    def over(one: W, other: W) -> bool:
        return one.comes_after(other) or (in_time and one.is_over(other))

    wrong += [f"as of {as_of} key {key} is shown twice" for key, notes in rows.items() if len(notes) > 1]
    expired = bound(cluster.metadata.table(TABLE).lifetimes, as_of)
    return wrong + [
        one for key in sorted({*range(KEYS), *rows}) for one in _wrong(key, rows, writes, as_of, over, expired)
    ]


def _wrong(
    key: int, rows: Rows, writes: Sequence[W], as_of: int, over: Callable[[W, W], bool], expired: float
) -> list[str]:
    """`expired`: what has a moment before it had expired by then."""
    mine = [write for write in writes if key in write.notes and write.times and min(write.times) <= as_of]
    known = [
        write for write in mine if write.acknowledged and write.level in ("QUORUM", "ALL") and max(write.times) <= as_of
    ]
    if key in rows:
        note = rows[key][0]
        sources = [write for write in mine if write.kind == "write" and write.notes[key] == note]
        sources = [write for write in sources if not write.has_expired(expired)]
        if any(not any(over(other, source) for other in known) for source in sources):
            return []
        return [f"as of {as_of} key {key} shows {str(note)[:20]!r}, over {[write.began for write in known]}"]
    deletes = [write for write in mine if write.kind == "delete" or write.has_expired(expired)]
    if not known or any(not any(over(other, delete) for other in known) for delete in deletes):
        return []
    return [f"as of {as_of} key {key} is not shown, over {[write.began for write in known]}"]


def _wrong_appended(rows: Rows, writes: Sequence[Write], as_of: int) -> list[str]:
    there = Counter((key, note) for key, notes in rows.items() for note in notes)
    wrong = []
    for write in writes:
        may = bool(write.times) and min(write.times) <= as_of
        strong = write.acknowledged and write.level in ("QUORUM", "ALL")
        must = may and strong and max(write.times) <= as_of
        for key, note in write.notes.items():
            times = there.pop((key, note), 0)
            if times > 1 or (must and not times) or (times and not may):
                wrong.append(f"as of {as_of} the row {key, str(note)[:20]} is shown {times} times")
    return wrong + [f"as of {as_of} {key, str(note)[:20]} is shown, which nobody has written" for key, note in there]
