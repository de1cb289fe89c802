"""What this process tells, while it plans a read, of the rows that do not count; and remembers.

Files never change, and which rows of a slice do not count follows from its files alone. So whoever asks for the same
slice again is told without a look at it: a table that is read more often than it is written pays for a merge once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from epochlake.jobs.replicas import superseding
from epochlake.jobs.replicas.sections import Slice, Task
from epochlake.jobs.replicas.superseding import WORD_BITS, Told
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.placement.tokens import Interval
from numpy.typing import NDArray

MOST_REMEMBERED = 64 << 20
"""Bytes of what was told that are remembered; what nobody has asked for the longest is forgotten first."""

TELLERS = 4
"""Slices that are told of at the same time. They are read from different files, mostly of different disks."""


class SliceKey(NamedTuple):
    """What is told of a slice follows from this, wherever its files are read: their names are given once.

    `runs`: path, bytes, rows and wanted tokens of the files.
    """

    told_by: tuple[str, ...]
    low: int
    high: int
    runs: tuple[tuple[str, int, int, tuple[Interval, ...]], ...]


class Memory:
    """What was told of slices, up to `most` bytes; kept by a storage. Safe from several threads."""

    def __init__(self, most: int = MOST_REMEMBERED) -> None:
        self._most = most
        self._told: OrderedDict[SliceKey, tuple[Told, ...]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, key: SliceKey) -> tuple[Told, ...] | None:
        with self._lock:
            told = self._told.get(key)
            if told is not None:
                self._told.move_to_end(key)
            return told

    def clear(self) -> None:
        with self._lock:
            self._told.clear()
            self._size = 0

    def put(self, key: SliceKey, told: tuple[Told, ...]) -> None:
        if _size(key, told) > self._most:
            return
        with self._lock:
            if (before := self._told.pop(key, None)) is not None:
                self._size -= _size(key, before)
            self._told[key] = told
            self._size += _size(key, told)
            while self._size > self._most:
                self._size -= _size(*self._told.popitem(last=False))


def told_once(told_by: Sequence[str], piece: Slice) -> tuple[Told, ...]:
    """`superseding.told` of a slice, which is remembered."""
    memory = piece.runs[0].copy.address.storage.kept(Memory)
    key = _key(told_by, piece)
    told = memory.get(key)
    if told is None:
        told = superseding.told(told_by, piece)
        memory.put(key, told)
    return told


def tell_here(told_by: Sequence[str], tasks: Sequence[Task]) -> list[Told]:
    """What is told of the slices of `tasks`, one at least, in their order; `told_by` as for `superseding.judged`.

    Raises StorageUnavailable, which names the file, for one that has to be looked at, and is missing, torn or has a
    page with other bytes than were written.
    """
    pieces = [piece for task in tasks for piece in task]
    memory = pieces[0].runs[0].copy.address.storage.kept(Memory)
    known = [memory.get(_key(told_by, piece)) for piece in pieces]
    new = [number for number, told in enumerate(known) if told is None]
    found = ThreadWorkers(TELLERS).run(lambda number: told_once(told_by, pieces[number]), new)
    for number, told in zip(new, found, strict=True):
        known[number] = told
    return [one for told in known if told is not None for one in told]


def positions_of(told: Sequence[Told]) -> dict[str, list[int]]:
    """The positions of the rows that do not count, by the name of their file."""
    found: dict[str, list[int]] = defaultdict(list)
    for one in told:
        found[one.file] += one.positions.tolist()
    return dict(found)


def words_of_files(told: Sequence[Told], rows: Mapping[str, int]) -> dict[str, NDArray[np.int64]]:
    """Words, as in `Told`, for all rows of each file of which something is told; files with the most rows first.

    `rows`: how many each of these files has, by its name. Whoever looks for a file's name finds that of most rows soon.
    """
    names = sorted({one.file for one in told}, key=lambda name: (-rows[name], name))
    words = {name: np.zeros(-(-rows[name] // WORD_BITS), np.int64) for name in names}
    for one in told:
        begin = one.first // WORD_BITS
        # Two slices of a file may tell of rows in the same word.
        words[one.file][begin : begin + len(one.words)] |= one.words
    return words


def _key(told_by: Sequence[str], piece: Slice) -> SliceKey:
    runs = tuple((one.copy.file.path, one.copy.file.size, one.copy.file.rows, one.intervals) for one in piece.runs)
    return SliceKey(tuple(told_by), piece.low, piece.high, runs)


def _size(key: SliceKey, told: Sequence[Told]) -> int:
    """In bytes."""
    return sum(one.words.nbytes for one in told) + 300 * (1 + len(key.runs) + len(told))
