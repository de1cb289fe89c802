"""Compaction of ranges, before any byte is read: what is worth putting together, and what the result stands for.

Replicas that agree on a range have the same rows of the same origins, so a merged file is made once,
stored under one name on each of them, and stands on each for the same rows (ledger.py). What a merge may leave out
follows from what takes part in it: superseded versions always, as the newer one is in the same file; a tombstone only
when every file of the range takes part, on every replica, and when it is so old that no write from before it can still
land.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
from epochlake.jobs.replicas.damage import ExpectedFile
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.intervals import FilePart, Lineage, meet, missing, overlap
from epochlake.jobs.replicas.ledger import Replaced
from epochlake.jobs.replicas.merging import MergePlan, RangeMerge, Source
from epochlake.jobs.replicas.replica import ReplicaSnapshot
from epochlake.jobs.upkeep.comparing import Range
from epochlake.metastore.metadata.model import Table, VolumeId
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.tokens import MIN_TOKEN, Interval

TARGET_FILE_BYTES = 128 << 20

SLICE_BYTES = 1 << 30
"""A range with more than this is merged in slices of its tokens, by several tasks."""


class CompactionPolicy(msgspec.Struct, frozen=True):
    """When a range is compacted.

    `small_files`: so many files smaller than `small_bytes` are put together. `overlap`: so many files may have to be
    merged by a read for one token (not of append-only tables, which are never merged by a read). `tombstone_share`: so
    large may the share of rows be that are in files of nothing but old deletes. A file that is more than `tier` times
    as large as all smaller ones together is left as it is, so that what is rewritten does not grow with the table.
    """

    small_files: int = 8
    small_bytes: int = 32 << 20
    overlap: int = 6
    tombstone_share: float = 0.1
    tier: float = 2.0


EVERYTHING = CompactionPolicy(small_files=2, small_bytes=1 << 62, overlap=1, tombstone_share=0.0, tier=float("inf"))
"""Compact every range in which a read would find less to do afterwards."""


class Chosen(msgspec.Struct, frozen=True):
    """What is put together in one range, and why. `whole`: whether that is all that the range has.

    `empty` are files of it without a row: there is nothing to read of them, and the merge stands for them as well.
    """

    range: Range
    parts: tuple[FilePart, ...]
    empty: tuple[FilePart, ...]
    whole: bool
    reason: str

    @property
    def size(self) -> int:
        """Bytes that are read for it, at most."""
        return sum(part.file.size for part in self.parts)


def choose(
    table: Table,
    range_: Range,
    files: Iterable[DataFile],
    lineage: Lineage,
    policy: CompactionPolicy,
    purge_before: int,
) -> Chosen | None:
    """What to compact of a range whose replicas have `files`; None when it is well as it is."""
    everything = missing(files, (), range_.low, range_.high, lineage)
    parts = [part for part in everything if part.file.rows]
    empty = tuple(part for part in everything if not part.file.rows)
    if not parts:
        return None
    if not table.append_only and _old_tombstones(parts, purge_before) > policy.tombstone_share * _rows(parts):
        return Chosen(range_, tuple(parts), empty, True, "old deletes")
    depth = 1 if table.append_only else _depth(parts)
    small = [part for part in parts if part.file.size < policy.small_bytes]
    if depth > policy.overlap:
        reason = f"a read merges up to {depth} files for one key"
        taken = _tier(parts, policy.tier)
    elif len(small) >= policy.small_files:
        reason = f"{len(small)} small files"
        taken = _tier(small, policy.tier)
    else:
        return None
    if len(taken) < 2:
        taken = parts
    if len(taken) < 2:
        return None
    return Chosen(range_, tuple(taken), empty, len(taken) == len(parts), reason)


def _old_tombstones(parts: Sequence[FilePart], purge_before: int) -> int:
    """Rows of files with tombstones that are all old enough to go. A merged file is one only with nothing younger."""
    return sum(part.file.rows for part in parts if part.file.has_tombstones and part.file.max_written_at < purge_before)


def _rows(parts: Iterable[FilePart]) -> int:
    return sum(part.file.rows for part in parts)


def _depth(parts: Sequence[FilePart]) -> int:
    """How many parts at most may have rows with one and the same token."""
    ends = []
    for part in parts:
        first, last = overlap((part.low, part.high), part.file.extent)
        ends += [(first, 1), (last + 1, -1)]
    depth = deepest = 0
    for _, change in sorted(ends):
        depth += change
        deepest = max(deepest, depth)
    return deepest


def _tier(parts: Sequence[FilePart], tier: float) -> list[FilePart]:
    """The smaller parts, up to the first that is far larger than all before it."""
    taken: list[FilePart] = []
    size = 0
    for part in sorted(parts, key=lambda part: (part.file.size, part.file.file_id)):
        if taken and part.file.size > tier * size:
            break
        taken.append(part)
        size += part.file.size
    return taken


def sources_of(
    chosen: Sequence[Chosen],
    snapshots: Mapping[VolumeId, ReplicaSnapshot],
    damaged: Collection[tuple[VolumeId, str]] = (),
) -> list[list[tuple[FilePart, ExpectedFile | None]]]:
    """Where each file of each range is read: on the replica that has been given the fewest bytes to read so far.

    Never a copy that is `damaged` (volume and path); None where there is no other.
    """
    load: dict[VolumeId, int] = defaultdict(int)
    places: list[list[tuple[FilePart, ExpectedFile | None]]] = []
    for one in chosen:
        places.append([])
        for part in one.parts:
            holders = [
                volume
                for volume in one.range.replicas
                if part.file.file_id in snapshots[volume].all_files and (volume, part.file.path) not in damaged
            ]
            if not holders:
                places[-1].append((part, None))
                continue
            holder = min(holders, key=lambda volume: (load[volume], volume))
            load[holder] += part.file.size
            held = snapshots[holder].all_files[part.file.file_id]
            places[-1].append((part, ExpectedFile(held, snapshots[holder].address)))
    return places


def plan_merges(
    storage: Storage,
    table: Table,
    chosen: Sequence[Chosen],
    snapshots: Mapping[VolumeId, ReplicaSnapshot],
    purge_before: int,
    target_file_bytes: int = TARGET_FILE_BYTES,
    damaged: Collection[tuple[VolumeId, str]] = (),
) -> MergePlan:
    """Say what is merged, and where each file is read (`sources_of`, which must have found a place for each).

    `chosen` in token order. Large ranges are merged in slices, side by side. Old tombstones go only where all of the
    range takes part; of an append-only table there are none.
    """
    merges: list[RangeMerge] = []
    for number, (one, found) in enumerate(zip(chosen, sources_of(chosen, snapshots, damaged), strict=True)):
        places = [(part, copy.uri) for part, copy in found if copy is not None]
        for low, high in _slices((one.range.low, one.range.high), -(-one.size // SLICE_BYTES)):
            merges.append(
                RangeMerge(
                    number=len(merges),
                    chosen=number,
                    label=one.range.label,
                    low=low,
                    high=high,
                    sources=tuple(source for part, uri in places if (source := _source(part, uri, (low, high)))),
                    like=places[0][1],
                    targets=tuple(snapshots[volume].address for volume in one.range.replicas),
                    purge_before=purge_before if one.whole else MIN_TOKEN,
                )
            )
    return MergePlan(table, tuple(merges), target_file_bytes, storage)


def _slices(interval: Interval, count: int) -> list[Interval]:
    """An interval of tokens as so many of about the same width."""
    low, high = interval
    width = max(1, -(-(high - low + 1) // max(1, count)))
    return [(start, min(start + width - 1, high)) for start in range(low, high + 1, width)]


def _source(part: FilePart, uri: str, window: Interval) -> Source | None:
    """What a part has within a window, None when that is no row."""
    low, high = overlap((part.low, part.high), window)
    if not meet((low, high), part.file.extent):
        return None
    return Source(uri, low, high, FilePart(part.file, low, high).whole)


def replaced_by(file: DataFile, chosen: Chosen) -> tuple[Replaced, ...]:
    """What a merged file replaces of what was put together: what that has within its window."""
    found = []
    for part in (*chosen.parts, *chosen.empty):
        low, high = overlap((part.low, part.high), file.window)
        if low <= high:
            found.append(Replaced(part.file.origin, low, high))
    return tuple(found)
