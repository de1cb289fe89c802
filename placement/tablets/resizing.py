"""Whether a table's tablets should be split or merged, and how siblings come to the same place before a merge.

Sizes alone say how many tablets a table should have in the end, and a decision is one step towards that
number. The number does not depend on how many tablets there are now (between half of the target and the target there is
exactly one power of two, or two at the very edge), so a table that is split is not merged again: seed 000, "Tablet
splitting".
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.tokens import MAX_TABLET_BITS
from numpy.typing import ArrayLike, NDArray

MERGE_BELOW = 0.5
"""Tablets are merged when they are below this part of the target, and split above the target (seed 000)."""


class Resize(StrEnum):
    """What is decided about the tablets of a table, by the names of seed 000."""

    NONE = "none"
    SPLIT = "split"
    MERGE = "merge"


class Goal(msgspec.Struct, frozen=True):
    """How many replicas of tablets a volume should have at least, on average over `volumes` of them; 0: any number."""

    per_volume: int = 0
    volumes: int = 0

    @property
    def replicas(self) -> int:
        return self.per_volume * self.volumes


class TableSizes(msgspec.Struct, frozen=True, eq=False):
    """Tables as columns, all of shape (T,).

    `count` of tablets, `replicas` of each tablet, `bytes`: mean size of one replica of a tablet (NaN: not known, and
    nothing is decided), `target`: the size in bytes that is aimed at, `minimum` and `maximum` counts of tablets, and
    the decision that is in force (`Resize`).
    """

    count: NDArray[np.int64]
    replicas: NDArray[np.int64]
    bytes: NDArray[np.float64]
    target: NDArray[np.float64]
    minimum: NDArray[np.int64]
    maximum: NDArray[np.int64]
    resize: tuple[Resize, ...]

    @classmethod
    def of(
        cls,
        *,
        count: ArrayLike,
        replicas: ArrayLike,
        bytes: ArrayLike,
        target: ArrayLike,
        minimum: ArrayLike | None = None,
        maximum: ArrayLike | None = None,
        resize: Sequence[str] | None = None,
    ) -> TableSizes:
        """Columns from any sequences, checked. Bounds that are no power of two are taken to the next one within."""
        counts = np.asarray(count, np.int64)
        if (counts < 1).any() or (counts & (counts - 1)).any():
            raise InvalidRequest(f"tables have 2^k tablets, not {counts.tolist()}")
        low = np.ones_like(counts) if minimum is None else np.maximum(np.asarray(minimum, np.int64), 1)
        most = 1 << MAX_TABLET_BITS
        high = np.full_like(counts, most) if maximum is None else np.asarray(maximum, np.int64)
        low = 1 << np.ceil(np.log2(np.minimum(low, most))).astype(np.int64)
        high = 1 << np.floor(np.log2(np.clip(high, 1, most))).astype(np.int64)
        columns = cls(
            counts,
            np.asarray(replicas, np.int64),
            np.asarray(bytes, np.float64),
            np.asarray(target, np.float64),
            low,
            np.maximum(low, high),
            tuple(Resize(one) for one in resize) if resize is not None else (Resize.NONE,) * len(counts),
        )
        for name in columns.__struct_fields__:
            if len(getattr(columns, name)) != len(counts):
                raise InvalidRequest(f"{name} has {len(getattr(columns, name))} values for {len(counts)} tables")
        if (columns.target <= 0).any():
            raise InvalidRequest("the size that tablets should have must be above 0 bytes")
        return columns


class ResizeDecision(msgspec.Struct, frozen=True):
    """What a table's decision should be from now on, why, and the number of tablets that all its steps lead to.

    `changes`: whether that is another one than is in force.
    """

    resize: Resize
    why: str
    wanted: int
    changes: bool


def decide(tables: TableSizes, goal: Goal = Goal()) -> list[ResizeDecision]:  # noqa: B008  frozen
    """The decision for each table, in order (seed 000, "Tablet splitting").

    Split above the target, merge below half of it, within the table's bounds; tables are split, those with the largest
    tablets first, while volumes have fewer replicas than the goal. A decision in force that would have to be undone
    afterwards is revoked (`none`); only then may the other one come.
    """
    by_size = _by_size(tables)
    wanted = _by_goal(tables, by_size, goal)
    return [_decision(tables, row, int(by_size[row]), int(wanted[row]), goal) for row in range(len(tables.count))]


def _by_size(tables: TableSizes) -> NDArray[np.int64]:
    """Tablets that each table should have for its size. Halving and doubling are exact, so edges are too."""
    count, size = tables.count.copy(), np.where(np.isnan(tables.bytes), tables.target, tables.bytes)
    known = ~np.isnan(tables.bytes)
    for _ in range(MAX_TABLET_BITS + 1):
        grows = known & (count < tables.maximum) & ((count < tables.minimum) | (size > tables.target))
        shrinks = known & (count > tables.minimum) & ((count > tables.maximum) | (size < MERGE_BELOW * tables.target))
        if not (grows | shrinks).any():
            break
        count = np.where(grows, count * 2, np.where(shrinks, count // 2, count))
        size = np.where(grows, size / 2, np.where(shrinks, size * 2, size))
    return count


def _by_goal(tables: TableSizes, by_size: NDArray[np.int64], goal: Goal) -> NDArray[np.int64]:
    """Tablets that each table should have when volumes are to have their number of replicas too."""
    count = by_size.copy()
    short = goal.replicas - int((count * tables.replicas).sum())
    size = tables.bytes * tables.count / count
    heap = [
        (-float(size[row]), row)
        for row in range(len(count))
        if count[row] < tables.maximum[row] and tables.replicas[row] and not np.isnan(size[row])
    ]
    heapq.heapify(heap)
    while short > 0 and heap:
        smaller, row = heapq.heappop(heap)
        short -= int(count[row] * tables.replicas[row])
        count[row] *= 2
        if count[row] < tables.maximum[row]:
            heapq.heappush(heap, (smaller / 2, row))
    return count


def _decision(tables: TableSizes, row: int, by_size: int, wanted: int, goal: Goal) -> ResizeDecision:
    count, current = int(tables.count[row]), tables.resize[row]
    if np.isnan(tables.bytes[row]):
        return ResizeDecision(current, "its size is not known: no replica of it could be measured", count, False)
    asked = Resize.SPLIT if wanted > count else Resize.MERGE if wanted < count else Resize.NONE
    why = _reason(tables, row, by_size, wanted, goal)
    if current in (Resize.NONE, asked):
        return ResizeDecision(asked, why, wanted, asked is not current)
    undone = "" if asked is Resize.NONE else f", to {asked} them instead"
    return ResizeDecision(Resize.NONE, f"the {current} is not needed any more{undone}: {why}", wanted, True)


def _reason(tables: TableSizes, row: int, by_size: int, wanted: int, goal: Goal) -> str:
    count, least, most = int(tables.count[row]), int(tables.minimum[row]), int(tables.maximum[row])
    size, target = float(tables.bytes[row]), float(tables.target[row])
    sizes = f"its tablets have {in_words(size)} on average"
    if count < least:
        return f"it has {count} tablets, at least {least} are asked for"
    if count > most:
        return f"it has {count} tablets, at most {most} are asked for"
    if wanted > by_size and wanted >= count:
        return (
            f"volumes should have at least {goal.per_volume} replicas of tablets each"
            if wanted > count
            else f"fewer would leave volumes with less than {goal.per_volume} replicas of tablets each"
        )
    if size > target:
        bound = f", but it may have {most} at most" if wanted == count else ""
        return f"{sizes}, more than the target of {in_words(target)}{bound}"
    if size < MERGE_BELOW * target:
        bound = f", but it must have {least} at least" if wanted == count else ""
        return f"{sizes}, less than half of the target of {in_words(target)}{bound}"
    return f"{sizes}, between half of the target and the target of {in_words(target)}"


def in_words(size: float) -> str:
    """A size in bytes for people, in decimal units, as everywhere."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


# --- siblings that are to be merged come to the same volumes ------------------------------------------------------


class Colocation(msgspec.Struct, frozen=True):
    """A replica of an odd tablet that is to move to a volume of the even one before it."""

    tablet: int
    source: int
    target: int


def siblings_apart(replicas: NDArray[Any]) -> NDArray[np.int64]:
    """The pairs (i for tablets 2i and 2i + 1) that are not on the same volumes; int array (count, width) in."""
    ordered = np.sort(replicas, axis=1)
    return np.flatnonzero((ordered[0::2] != ordered[1::2]).any(axis=1))


def colocations(
    pair: int, even: Sequence[int], odd: Sequence[int], location_of: Callable[[int], tuple[str, str, int]]
) -> list[Colocation]:
    """The moves, one after the other, that bring tablet 2 * `pair` + 1 to the volumes of 2 * `pair`.

    `location_of` gives a volume's datacenter, rack and node. A replica goes to another volume of its own node first,
    then within its rack, and never to another datacenter; so no step has two replicas on a node, nor two in a rack
    where the even tablet has none doubled.
    """
    leaving = [volume for volume in odd if volume not in even]
    coming = [volume for volume in even if volume not in odd]
    found = []
    for depth in (3, 2, 1):
        for source in list(leaving):
            place = location_of(source)[:depth]
            target = next((volume for volume in coming if location_of(volume)[:depth] == place), None)
            if target is not None:
                found.append(Colocation(2 * pair + 1, source, target))
                leaving.remove(source)
                coming.remove(target)
    return found
