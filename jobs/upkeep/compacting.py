"""Compaction of ranges, before any byte is read: what is worth putting together, and what the result stands for.

Replicas that agree on a range have the same rows of the same origins, so a merged file is made once,
stored under one name on each of them, and stands on each for the same rows (ledger.py). What a merge may leave out
follows from what takes part in it: superseded versions always, as the newer one is in the same file; a tombstone only
when every file of the range takes part, on every replica, and when it is so old that no write from before it can still
land.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

import msgspec
from epochlake.jobs.replicas.damage import ExpectedFile
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.intervals import FilePart, Lineage, all_of, meet, missing, overlap
from epochlake.jobs.replicas.ledger import Replaced
from epochlake.jobs.replicas.merging import MergePlan, RangeMerge, Source
from epochlake.jobs.replicas.replica import ReplicaSnapshot
from epochlake.jobs.upkeep.comparing import Range
from epochlake.jobs.upkeep.read_costs import (
    Layer,
    ReadCost,
    Stretch,
    apart,
    cost,
    cost_of_sections,
    overlapping,
    stretch_of,
    together,
)
from epochlake.metastore.metadata.model import Table, VolumeId
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.tokens import MIN_TOKEN, Interval

TARGET_FILE_BYTES = 128 << 20

SLICE_BYTES = 1 << 30
"""A range with more than this is merged in slices of its tokens, by several tasks."""


TOMBSTONE_GRACE_SECONDS = 10 * 86_400.0
"""How long deletes are remembered at least; Cassandra's gc_grace_seconds has the same default and the same meaning."""


class CompactionPolicy(msgspec.Struct, frozen=True):
    """When a range is compacted.

    `small_files`: so many files smaller than `small_bytes` are put together; half as many already where reads get
    `quicker` by that, so many times. `overlap`: so many files may have to be
    merged by a read for one token (not of append-only tables, which are never merged by a read). `tombstone_share`: so
    large may the share of rows be that are in files of nothing but old deletes, or of nothing but old rows that have
    expired. A file that is more than `tier` times
    as large as all smaller ones together is left as it is, so that what is rewritten does not grow with the table.
    What counts of a file for both is what this range has of it: many ranges may share it.

    What a read pays, by its estimate: where it takes more than `slower` times as long as it would after compaction,
    large files take part as well when what overlaps them has come to `share` of their bytes (in `small_files` / 2 files
    at least, or in `small_bytes`), so that each byte written has at most about 1 / `share` bytes rewritten; or when
    nothing was written to them for `rest_seconds`, and as long again for each further `rest_bytes` of them.
    """

    small_files: int = 8
    small_bytes: int = 32 << 20
    overlap: int = 6
    tombstone_share: float = 0.1
    tier: float = 2.0
    quicker: float = 1.1
    slower: float = 1.5
    share: float = 0.25
    rest_seconds: float = 600.0
    rest_bytes: int = TARGET_FILE_BYTES


EVERYTHING = CompactionPolicy(
    small_files=2, small_bytes=1 << 62, overlap=1, tombstone_share=0.0, tier=float("inf"), slower=float("inf")
)
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


class Weighed(msgspec.Struct, frozen=True):
    """A range: what it costs its readers `now`, what at `best`, and `after` what was `chosen`.

    What is not read yet is estimated as if no row were superseded, so `best` and `after` are no less than they will be.
    `due_at`: from then on (microseconds since 1970) it is chosen if nothing more is written to it; None: it is not.
    `beside`: what stays as it is beside what was chosen. `until`: the same of the same files, of which the same have
    expired, before this time (microseconds since 1970); None: at any later time.
    """

    range: Range
    now: ReadCost
    best: ReadCost
    after: ReadCost
    chosen: Chosen | None = None
    due_at: int | None = None
    beside: tuple[Stretch, ...] = ()
    append_only: bool = False
    until: int | None = None

    @property
    def saves(self) -> int:
        """What each read has less to do after what is chosen, in rows."""
        return max(0, self.now.work - self.after.work)

    @property
    def value(self) -> float:
        """What readers save for each byte that is read to put it together."""
        return self.saves / max(1, self.chosen.size) if self.chosen is not None else 0.0

    def cost_with(self, files: Iterable[DataFile]) -> ReadCost:
        """What it costs when these have taken the place of what was chosen."""
        made = [stretch_of(all_of(file)) for file in files if file.rows]
        return cost([*self.beside, *made], self.append_only)


def grace_of(table: Table) -> float:
    """How long deletes of a table are remembered at least, seconds."""
    said = table.compacting.tombstone_grace_seconds
    return TOMBSTONE_GRACE_SECONDS if said is None else said


def choose(
    table: Table,
    range_: Range,
    files: Iterable[DataFile],
    lineage: Lineage,
    policy: CompactionPolicy,
    purge_before: int,
    now: int,
) -> Chosen | None:
    """What to compact of a range whose replicas have `files`; None when it is well as it is, or not yet worth it."""
    return weigh(table, range_, files, lineage, policy, purge_before, now).chosen


def weigh(
    table: Table,
    range_: Range,
    files: Iterable[DataFile],
    lineage: Lineage,
    policy: CompactionPolicy,
    purge_before: int,
    now: int,
    target_file_bytes: int = TARGET_FILE_BYTES,
    expired: Collection[str] = (),
) -> Weighed:
    """What a range costs its readers, and what to compact of it at the time `now` (microseconds since 1970).

    `expired`: ids of files from before `purge_before` of which no row is shown any more.
    """
    everything = missing(files, (), range_.low, range_.high, lineage)
    layers = [Layer(part, stretch_of(part)) for part in everything if part.file.rows]
    empty = tuple(part for part in everything if not part.file.rows)
    if not layers:
        return Weighed(range_, ReadCost(), ReadCost(), ReadCost())
    # Told once: of many files nearly all of the time goes into what they overlap.
    sections = [[one] for one in layers] if table.append_only else overlapping(layers, lambda one: one.stretch)
    costs = cost_of_sections(map(_stretches, sections))
    best = cost([together(_stretches(layers), target_file_bytes)], table.append_only)
    slow = _slow(layers, sections, costs, policy)
    taken, reason = _taken(table, layers, slow, costs, policy, purge_before, now, expired)
    rest_at = [_rests_at(section, policy) for section in slow]
    until = min((at for at in rest_at if at > now), default=None)
    if len(taken) < 2 and reason not in (OLD_DELETES, EXPIRED):
        return Weighed(range_, costs, best, costs, due_at=min(rest_at, default=None), until=until)
    beside = tuple(_left(layers, taken))
    after = cost([*beside, together(_stretches(taken), target_file_bytes)], table.append_only)
    chosen = Chosen(range_, tuple(one.part for one in taken), empty, len(taken) == len(layers), reason)
    return Weighed(range_, costs, best, after, chosen, None, beside, table.append_only, until)


OLD_DELETES = "old deletes"
EXPIRED = "expired rows"


def _taken(
    table: Table,
    layers: list[Layer],
    slow: Sequence[Sequence[Layer]],
    costs: ReadCost,
    policy: CompactionPolicy,
    purge_before: int,
    now: int,
    expired: Collection[str],
) -> tuple[list[Layer], str]:
    """The layers to put together, none where there is nothing to do, and why; `costs` are those of all layers."""
    # Files of which nothing is left after that: so what has been put together is not put together again.
    gone = _rows(one for one in layers if one.part.file.file_id in expired)
    if gone > policy.tombstone_share * _rows(layers):
        return layers, EXPIRED
    if not table.append_only and _old_tombstones(layers, purge_before) > policy.tombstone_share * _rows(layers):
        return layers, OLD_DELETES
    small = [one for one in layers if one.part.file.size < policy.small_bytes]
    taken: list[Layer] = []
    reason = ""
    if costs.depth > policy.overlap:
        taken, reason = layers, f"a read merges up to {costs.depth} files for one key"
    elif len(small) >= policy.small_files or _get_quicker(table, layers, small, costs, policy):
        taken, reason = small, f"{len(small)} small files"
    if reason:
        taken = _tier(taken, policy.tier) or _nearest(taken) or layers
    due = [one for one in slow if _is_due(one, policy)] or [
        one for one in slow if not taken and _rests_at(one, policy) <= now
    ]
    if {id(one) for one in _joined(due)} <= {id(one) for one in taken}:
        return taken, reason
    return _joined(due), f"a read takes {_times(layers, due, costs):.1f} times as long"


def _get_quicker(
    table: Table, layers: Sequence[Layer], small: Sequence[Layer], costs: ReadCost, policy: CompactionPolicy
) -> bool:
    """Whether reads gain by fewer small files already, as in a range with little else."""
    taken = _tier(small, policy.tier)
    if len(taken) < 2 or 2 * len(taken) < policy.small_files:
        return False
    return _times(layers, [taken], costs, append_only=table.append_only) > policy.quicker


def _slow(
    layers: Sequence[Layer], sections: Iterable[list[Layer]], costs: ReadCost, policy: CompactionPolicy
) -> list[list[Layer]]:
    """The sections of a range that make its reads more than `slower` times as long; those apart cost little."""
    found = [section for section in sections if len(section) > 1]
    if not found:
        return []
    return found if _times(layers, found, costs) > policy.slower else []


def _is_due(section: Sequence[Layer], policy: CompactionPolicy) -> bool:
    """Whether what overlaps the large files of a section has come to a share of them."""
    stretches = _stretches(section)
    large = apart(stretches)
    below = sum(one.bytes for one in large)
    above = sum(one.bytes for one in stretches) - below
    enough = 2 * (len(stretches) - len(large)) >= policy.small_files or above >= policy.small_bytes
    return enough and above >= policy.share * below


def _rests_at(section: Sequence[Layer], policy: CompactionPolicy) -> int:
    """From when on a section counts as one that is not written to, microseconds since 1970."""
    size = sum(one.stretch.bytes for one in section)
    rest = policy.rest_seconds * max(1.0, size / policy.rest_bytes)
    return max(one.part.file.max_written_at for one in section) + int(rest * 1_000_000)


def _times(
    layers: Sequence[Layer], sections: Sequence[Sequence[Layer]], costs: ReadCost, *, append_only: bool = False
) -> float:
    """How many times as long a read of the layers takes, at their `costs`, as when each section is put together."""
    after = [
        *_left(layers, _joined(sections)),
        *(together(_stretches(section), TARGET_FILE_BYTES) for section in sections),
    ]
    return costs.times(cost(after, append_only))


def _left(layers: Iterable[Layer], taken: Iterable[Layer]) -> list[Stretch]:
    """What stays as it is beside what is taken."""
    known = {id(one) for one in taken}
    return [one.stretch for one in layers if id(one) not in known]


def _joined(sections: Iterable[Iterable[Layer]]) -> list[Layer]:
    return [one for section in sections for one in section]


def _old_tombstones(layers: Sequence[Layer], purge_before: int) -> int:
    """Rows of files with tombstones that are all old enough to go. A merged file is one only with nothing younger."""
    return _rows(one for one in layers if one.part.file.has_tombstones and one.part.file.max_written_at < purge_before)


def _rows(layers: Iterable[Layer]) -> int:
    """Those of this range, by estimate: a file of many ranges has few in each."""
    return sum(max(1, one.stretch.rows) for one in layers)


def _tier(layers: Sequence[Layer], tier: float) -> list[Layer]:
    """Layers of about the same size, the smallest that there are: none is far larger than all before it together.

    Two at least, or none. What counts is what they have in this range: of a file that many ranges share that is little.
    """
    ordered = _by_bytes(layers)
    neighbours = enumerate(pairwise(ordered))
    begin = next((number for number, (one, other) in neighbours if _bytes(other) <= tier * _bytes(one)), len(layers))
    taken: list[Layer] = []
    size = 0
    for one in ordered[begin:]:
        if taken and _bytes(one) > tier * size:
            break
        taken.append(one)
        size += _bytes(one)
    return taken


def _nearest(layers: Sequence[Layer]) -> list[Layer]:
    """The two that differ least in size, where each is far larger than all smaller ones: a large one is not rewritten
    for a few that are small.
    """
    return list(min(pairwise(_by_bytes(layers)), key=lambda two: _bytes(two[1]) / _bytes(two[0]), default=()))


def _by_bytes(layers: Iterable[Layer]) -> list[Layer]:
    return sorted(layers, key=lambda one: (_bytes(one), one.part.file.file_id))


def _bytes(one: Layer) -> int:
    return max(1, one.stretch.bytes)


def _stretches(layers: Iterable[Layer]) -> list[Stretch]:
    return [one.stretch for one in layers]


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


Placing = Callable[
    [Sequence[Chosen], Mapping[VolumeId, ReplicaSnapshot], Collection[tuple[VolumeId, str]]],
    list[list[tuple[FilePart, ExpectedFile | None]]],
]
"""Where each file of each range is read, of those that are not damaged: `sources_of` or `sources_together`."""


def sources_together(
    chosen: Sequence[Chosen],
    snapshots: Mapping[VolumeId, ReplicaSnapshot],
    damaged: Collection[tuple[VolumeId, str]] = (),
) -> list[list[tuple[FilePart, ExpectedFile | None]]]:
    """`sources_of`, for merges near the disks: all files of a range on one replica, where one has all of them whole."""
    load: dict[VolumeId, int] = defaultdict(int)
    places: list[list[tuple[FilePart, ExpectedFile | None]]] = []
    for one in chosen:
        held = {volume: snapshots[volume].all_files for volume in one.range.replicas}
        holders = [
            volume
            for volume, files in held.items()
            if all(part.file.file_id in files and (volume, part.file.path) not in damaged for part in one.parts)
        ]
        if not holders:
            places += sources_of([one], snapshots, damaged)
            continue
        holder = min(holders, key=lambda volume: (load[volume], volume))
        load[holder] += one.size
        address = snapshots[holder].address
        places.append([(part, ExpectedFile(held[holder][part.file.file_id], address)) for part in one.parts])
    return places


def plan_merges(
    storage: Storage,
    table: Table,
    chosen: Sequence[Chosen],
    snapshots: Mapping[VolumeId, ReplicaSnapshot],
    purge_before: int,
    target_file_bytes: int = TARGET_FILE_BYTES,
    damaged: Collection[tuple[VolumeId, str]] = (),
    expired_before: Mapping[str, int] = MappingProxyType({}),
    placing: Placing = sources_of,
    *,
    derived_tokens: bool = False,
) -> MergePlan:
    """Say what is merged, and where each file is read (`placing`, which must have found a place for each).

    `chosen` in token order. Large ranges are merged in slices, side by side. Old tombstones, and old rows that have
    expired, go only where all of the range takes part; of an append-only table there are no tombstones.
    """
    merges: list[RangeMerge] = []
    for number, (one, found) in enumerate(zip(chosen, placing(chosen, snapshots, damaged), strict=True)):
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
                    expired_before=dict(expired_before) if one.whole else {},
                )
            )
    return MergePlan(table, tuple(merges), target_file_bytes, storage, derived_tokens)


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
    return Source(uri, low, high, FilePart(part.file, low, high).whole, part.file.rows)


def replaced_by(file: DataFile, chosen: Chosen) -> tuple[Replaced, ...]:
    """What a merged file replaces of what was put together: what that has within its window."""
    found = []
    for part in (*chosen.parts, *chosen.empty):
        low, high = overlap((part.low, part.high), file.window)
        if low <= high:
            found.append(Replaced(part.file.origin, low, high))
    return tuple(found)
