"""What the replicas of a table have and what they lack of each other, range by range, from their file sets alone.

Two replicas of a range hold the same rows when neither has a part that the other one lacks (intervals.py).
So agreement is proved, and repair is planned, without reading a row. Only ranges at rest are compared: while one is on
the move, its replicas differ by right, and streaming brings them what they need.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
from epochlake.jobs.replicas.copying import PartCopy
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.intervals import FilePart, Lineage, merged, missing, superseded
from epochlake.jobs.replicas.replica import ReplicaSnapshot
from epochlake.metastore.metadata.model import VolumeId
from epochlake.metastore.metadata.placements import TablePlacements, highs
from epochlake.placement.tokens import Interval

IN_TRANSITION = "in transition"


class Range(msgspec.Struct, frozen=True):
    """A range of a table, first and last token, with the replicas that it has at rest.

    `unit` is the number by which people know it: its tablet's, or its own on the ring.
    """

    index: int
    unit: int
    label: str
    low: int
    high: int
    replicas: tuple[VolumeId, ...]


class Skipped(msgspec.Struct, frozen=True):
    """Ranges, by their units, that were left alone, and why."""

    reason: str
    units: tuple[int, ...]


class Compared(msgspec.Struct, frozen=True):
    """What the replicas that answered have of one range. `missing`: what each of them lacks of the others' files."""

    range: Range
    missing: dict[VolumeId, tuple[FilePart, ...]]

    @property
    def agrees(self) -> bool:
        return not any(self.missing.values())


def by_rest(placements: TablePlacements) -> tuple[list[Range], list[Range]]:
    """The ranges whose replicas are not changing, and the others with all replicas that they have meanwhile."""
    ranges: list[Range] = []
    moving: list[Range] = []
    bounds = zip(placements.lows.tolist(), highs(placements.lows).tolist(), strict=True)
    for index, (low, high) in enumerate(bounds):
        placement = placements.placement(index)
        settled = len(placement.write_sets) == 1 and set(placement.reads) == set(placement.writes)
        replicas = placement.writes if settled else tuple(sorted({*placement.reads, *placement.writes}))
        found = Range(index, placements.unit(index), placements.label(index), low, high, replicas)
        (ranges if settled and placements.since(index).started_epoch is None else moving).append(found)
    return ranges, moving


def compare(
    range_: Range,
    snapshots: Mapping[VolumeId, ReplicaSnapshot],
    lineage: Lineage,
    damaged: Collection[tuple[VolumeId, str]] = (),
) -> Compared:
    """Compare the replicas of a range among those that answered. No row is read.

    Copies that are `damaged` (volume and path) count as not there, neither to be had nor to be brought to others.
    """
    answered = [snapshots[volume] for volume in range_.replicas if volume in snapshots]
    if not damaged and len({snapshot.fingerprint for snapshot in answered}) <= 1:
        return Compared(range_, {})
    held = {
        volume: [
            file for file in snapshots[volume].within(range_.low, range_.high) if (volume, file.path) not in damaged
        ]
        for volume in range_.replicas
        if volume in snapshots
    }
    same = {frozenset(file.file_id for file in files) for files in held.values()}
    if len(same) <= 1:
        return Compared(range_, {})
    union = {file.file_id: file for files in held.values() for file in files}
    lacking = {
        volume: tuple(missing(union.values(), files, range_.low, range_.high, lineage))
        for volume, files in held.items()
    }
    return Compared(range_, {volume: parts for volume, parts in lacking.items() if parts})


def plan_copies(
    compared: Iterable[Compared],
    snapshots: Mapping[VolumeId, ReplicaSnapshot],
    damaged: Collection[tuple[VolumeId, str]] = (),
) -> dict[VolumeId, list[PartCopy]]:
    """What each replica has to get, and from whom: from the holder with least to read so far, the largest first.

    What a replica lacks of one file in neighbouring ranges is one copy, and the whole file where that is all of it.
    Nothing is copied from files that are `damaged` (volume and path): what only they have is left out.
    """
    wanted: dict[VolumeId, dict[str, list[Interval]]] = defaultdict(lambda: defaultdict(list))
    files: dict[str, DataFile] = {}
    holders: dict[tuple[str, int], set[VolumeId]] = defaultdict(set)
    for one in compared:
        present = [volume for volume in one.range.replicas if volume in snapshots]
        for volume, parts in one.missing.items():
            for part in parts:
                files[part.file.file_id] = part.file
                wanted[volume][part.file.file_id].append((part.low, part.high))
                holders[part.file.file_id, part.low] |= {
                    other
                    for other in present
                    if (there := snapshots[other].all_files.get(part.file.file_id)) is not None
                    and (other, there.path) not in damaged
                }
    load = dict.fromkeys(snapshots, 0)
    copies: dict[VolumeId, list[PartCopy]] = {}
    for volume, by_file in wanted.items():
        target = snapshots[volume].address
        pieces = [FilePart(files[file_id], *piece) for file_id, gaps in by_file.items() for piece in merged(gaps)]
        for part in sorted(pieces, key=lambda part: (-part.file.size, part.file.file_id, part.low)):
            able = holders[part.file.file_id, part.low]
            if not able:
                continue
            chosen = min(able, key=lambda holder: (load[holder], holder))
            # The same piece may have been cut into other bytes elsewhere: the file is as that source has it.
            part = msgspec.structs.replace(part, file=snapshots[chosen].all_files[part.file.file_id])
            copy = PartCopy(part, snapshots[chosen].address, target)
            load[chosen] += copy.size
            copies.setdefault(volume, []).append(copy)
    return copies


def superfluous(snapshots: Mapping[VolumeId, ReplicaSnapshot], lineage: Lineage) -> dict[VolumeId, list[DataFile]]:
    """Files that a replica still has beside the merged files that replace them: an append had raced with a merge."""
    if not lineage:
        return {}
    found = {volume: superseded(snapshot.all_files.values(), lineage) for volume, snapshot in snapshots.items()}
    return {volume: files for volume, files in found.items() if files}


def in_chunks(copies: Sequence[PartCopy], most_bytes: int, most_files: int) -> Iterable[list[PartCopy]]:
    """Copies that are committed together: few enough that what is copied first does not wait long for its commit."""
    chunk: list[PartCopy] = []
    size = 0
    for copy in copies:
        if chunk and (size + copy.size > most_bytes or len(chunk) >= most_files):
            yield chunk
            chunk, size = [], 0
        chunk.append(copy)
        size += copy.size
    if chunk:
        yield chunk


def skipped(units_by_reason: Mapping[str, Iterable[int]]) -> tuple[Skipped, ...]:
    return tuple(Skipped(reason, tuple(sorted(set(units)))) for reason, units in sorted(units_by_reason.items()))
