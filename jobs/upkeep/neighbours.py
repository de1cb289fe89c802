"""Small files of neighbouring ranges are put together into one, as writers share a file among ranges with few rows.

A write of few rows makes one file for all neighbouring ranges with the same replicas. Put together for each range by
itself, eight of them would become a file for each tablet: readers would soon have more to open than before, and each of
these would be stored, synced and written down by itself.

Only where larger files of each range stay as they are. What has become a range's only file is its own: a tablet that
moves takes it along whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.intervals import FilePart, merged
from epochlake.jobs.upkeep.compacting import Chosen, Weighed
from epochlake.jobs.upkeep.comparing import Range
from epochlake.placement.tokens import Interval, range_label

TIMES_SHARED = 16
"""What compaction makes for several ranges is made of so many times the bytes at most that writers share a file up to.
"""


def neighbours(weighed: Iterable[Weighed], most_bytes: int) -> list[tuple[Weighed, ...]]:
    """Ranges of which something is chosen, in token order, in groups of which that is put together as one.

    The files that a group is made of have `most_bytes` together at most, however many of its ranges they have rows of.
    """
    groups: list[list[Weighed]] = []
    files: dict[str, int] = {}
    for one in sorted(weighed, key=lambda one: one.range.low):
        assert one.chosen is not None
        own = {part.file.file_id: part.file.size for part in one.chosen.parts}
        if groups and _are_alike(groups[-1][-1], one) and sum((files | own).values()) <= most_bytes:
            groups[-1].append(one)
            files |= own
        else:
            groups.append([one])
            files = own
    return [tuple(group) for group in groups]


def as_one(group: Sequence[Chosen]) -> Chosen:
    """What is chosen of neighbouring ranges, as of one range. It is not all that any of them has."""
    if len(group) == 1:
        return group[0]
    first, low, high = group[0], group[0].range.low, group[-1].range.high
    range_ = Range(first.range.index, first.range.unit, range_label(low, high), low, high, first.range.replicas)
    parts = _joined(part for one in group for part in one.parts)
    empty = _joined(part for one in group for part in one.empty)
    return Chosen(range_, parts, empty, whole=False, reason=first.reason)


def _are_alike(one: Weighed, following: Weighed) -> bool:
    """Whether a file may be for both ranges, each of which has other files besides."""
    beside = one.range.high + 1 == following.range.low
    # Which of them reads prefer is of no matter.
    alike = set(one.range.replicas) == set(following.range.replicas)
    return beside and alike and bool(one.beside) and bool(following.beside)


def _joined(parts: Iterable[FilePart]) -> tuple[FilePart, ...]:
    """Parts of files, neighbouring ones of one file as one."""
    files: dict[str, DataFile] = {}
    windows: dict[str, list[Interval]] = defaultdict(list)
    for part in parts:
        files[part.file.file_id] = part.file
        windows[part.file.file_id].append((part.low, part.high))
    return tuple(FilePart(files[name], *window) for name, found in windows.items() for window in merged(found))
