"""What reads as of an earlier time may show: of each key the newest write that has its time by then.

The checker knows calls and the times that writes have given to their rows, and nothing of files or of compactions.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from epochlake.jobs.cluster import Cluster
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.replicas.counting import count_of
from epochlake.jobs.replicas.scanning import scan
from epochlake.jobs.testing.rows import ALL_OF_IT, TABLE, RowsDamaged, scanned, shown
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


W = TypeVar("W", bound=Write)


def moments(writes: Sequence[Write], chance: random.Random) -> list[int]:
    """Times to ask for, microseconds: of writes, and just before."""
    times = sorted({time for write in writes for time in write.times})
    return [time - chance.choice([0, 0, 1]) for time in chance.sample(times, min(MOMENTS, len(times)))]


def read_as_of(cluster: Cluster, as_of: int, way: int) -> tuple[Rows, int] | EpochlakeError | RowsDamaged:
    """The notes of each key as of a time, and how many rows are counted; or why that cannot be told."""
    try:
        with Gate(cluster, "as of") as gate:
            plan = gate.plan_read(gate.planning.table(TABLE), "QUORUM", None, as_of)
            found = shown(cluster.storage, plan) if way else scanned(scan(plan, ALL_OF_IT))
            return found, count_of(plan, ALL_OF_IT)
    except InvalidRequest:
        raise
    except (EpochlakeError, RowsDamaged) as error:
        return error


def wrong_as_of(
    cluster: Cluster,
    writes: Sequence[W],
    seed: int,
    outcomes: Counter[str],
    *,
    append_only: bool,
    in_time: bool,
    keys: int,
    over: Callable[[W, W, bool], bool],
) -> list[str]:
    """Ask for some times of a history; what is shown that may not be, or not shown. A refusal is an answer.

    `over(one, other, in_time)`: whether the first write surely comes after the second.
    """
    chance = random.Random(seed)
    wrong: list[str] = []
    for number, as_of in enumerate(moments(writes, chance)):
        try:
            found = read_as_of(cluster, as_of, number % 2)
        except InvalidRequest:
            continue  # a clock that went ahead has made it a time to come
        if not isinstance(found, tuple):
            outcomes[f"as of: {type(found).__name__}"] += 1
            continue
        outcomes["as of: shown"] += 1
        rows, counted = found
        there = sum(map(len, rows.values()))
        if counted != there:
            wrong.append(f"as of {as_of} {there} rows are shown, and {counted} are counted")
        if append_only:
            wrong += _wrong_appended(rows, writes, as_of)
            continue
        wrong += [f"as of {as_of} key {key} is shown twice" for key, notes in rows.items() if len(notes) > 1]
        for key in sorted({*range(keys), *rows}):
            wrong += _wrong(key, rows, writes, as_of, lambda one, other: over(one, other, in_time))
    return wrong


def _wrong(key: int, rows: Rows, writes: Sequence[W], as_of: int, over: Callable[[W, W], bool]) -> list[str]:
    mine = [write for write in writes if key in write.notes and write.times and min(write.times) <= as_of]
    known = [
        write for write in mine if write.acknowledged and write.level in ("QUORUM", "ALL") and max(write.times) <= as_of
    ]
    if key in rows:
        note = rows[key][0]
        sources = [write for write in mine if write.kind == "write" and write.notes[key] == note]
        if any(not any(over(other, source) for other in known) for source in sources):
            return []
        return [f"as of {as_of} key {key} shows {str(note)[:20]!r}, over {[write.began for write in known]}"]
    deletes = [write for write in mine if write.kind == "delete"]
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
