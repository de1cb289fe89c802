"""What a range with many files costs its readers, and what of it is to be compacted, told from arrays.

The rules are those of `compacting.weigh`, which looks at one file after the other; a test holds both against each
other. A range that was written to thousands of times is weighed anew after each write, as a new file of hashed tokens
overlaps nearly all others: by arrays that takes a small part of the time. It only tells: what is put together is chosen
by `weigh`. Deletes are taken to be too young to be forgotten, and rows not to have expired.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

import numpy as np
from epochlake.jobs.replicas.sections import OPENING
from epochlake.jobs.replicas.states import FileTable
from epochlake.jobs.upkeep.compacting import TARGET_FILE_BYTES, CompactionPolicy
from epochlake.jobs.upkeep.read_costs import ReadCost
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Chosen = NDArray[np.bool_]

_SWEEPS = 16
"""So often everything that a large file overlaps is left out at once, before what is left is looked at one by one."""


class ManyLayers(NamedTuple):
    """Parts of files with rows, an array of shape (parts,) each: `firsts` and `lasts`, between which tokens their rows
    lie; their share of `rows` and `bytes`; the `sizes` of the whole files; when the `newest` row of these was written.
    """

    firsts: Numbers
    lasts: Numbers
    rows: Numbers
    bytes: Numbers
    sizes: Numbers
    newest: Numbers


class Summary(NamedTuple):
    """What `weigh` says of a range: its costs `now` and at `best`, the bytes that are to be put together (`due_bytes`,
    None where nothing is), from when on something would be (`due_at`), and until when all that holds.
    """

    now: ReadCost
    best: ReadCost
    due_bytes: int | None = None
    due_at: int | None = None
    until: int | None = None


class _Stretches(NamedTuple):
    """As `read_costs.Stretch`, in arrays."""

    firsts: Numbers
    lasts: Numbers
    rows: Numbers
    bytes: Numbers
    files: Numbers


class _Sections(NamedTuple):
    """`numbers` of the section of each stretch; how many stretches each has, its bytes, and its newest row."""

    numbers: Numbers
    counts: Numbers
    bytes: Numbers
    newest: Numbers


def many_layers(files: FileTable, low: int, high: int) -> ManyLayers | None:
    """Of all files that show a row of these tokens, both included; None where the arrays do not tell what is read of
    them: some stand for others, or may be pieces of one file.
    """
    shown = _meet(files.windows, low, high) & (files.rows > 0)
    if bool(np.any(files.merged & _meet(files.windows, low, high))):
        return None
    numbers = np.flatnonzero(shown)
    # By sorting: `np.unique` takes twenty times as long for checksums.
    origins = np.sort(files.origins[numbers])
    if bool(np.any(origins[1:] == origins[:-1])):
        return None
    lows, highs = np.maximum(files.windows[0, numbers], low), np.minimum(files.windows[1, numbers], high)
    firsts, lasts = np.maximum(files.extents[0, numbers], lows), np.minimum(files.extents[1, numbers], highs)
    some = firsts <= lasts
    numbers, firsts, lasts = numbers[some], firsts[some], lasts[some]
    share = _width(firsts, lasts) / _width(files.extents[0, numbers], files.extents[1, numbers])
    rows, sizes = files.rows[numbers], files.sizes[numbers]
    return ManyLayers(firsts, lasts, _shares(rows, share), _shares(sizes, share), sizes, files.newest[numbers])


def weigh_many(
    layers: ManyLayers,
    append_only: bool,
    policy: CompactionPolicy,
    now: int,
    target_file_bytes: int = TARGET_FILE_BYTES,
) -> Summary:
    """As `weigh`, at the time `now` (microseconds since 1970)."""
    count = len(layers.rows)
    if not count:
        return Summary(ReadCost(), ReadCost())
    stretches = _Stretches(layers.firsts, layers.lasts, layers.rows, layers.bytes, np.ones(count, np.int64))
    sections = _sections(layers, append_only)
    costs = _cost(stretches, append_only)
    best = ReadCost(_files_of(int(layers.bytes.sum()), target_file_bytes), costs.rows, costs.bytes, depth=1)
    slow = _slow(sections, costs, policy)
    rest_at = _rests_at(sections, slow, policy)
    later = rest_at[rest_at > now]
    until = int(later.min()) if len(later) else None
    taken = _taken(layers, stretches, sections, slow, rest_at, costs, append_only, policy, now)
    if np.count_nonzero(taken) < 2:
        return Summary(costs, best, None, int(rest_at.min()) if len(rest_at) else None, until)
    return Summary(costs, best, int(layers.sizes[taken].sum()), None, until)


def _taken(
    layers: ManyLayers,
    stretches: _Stretches,
    sections: _Sections,
    slow: Numbers,
    rest_at: Numbers,
    costs: ReadCost,
    append_only: bool,
    policy: CompactionPolicy,
    now: int,
) -> Chosen:
    """Which layers are to be put together; `rest_at`: when each of the `slow` sections is at rest."""
    everything = np.ones(len(layers.rows), bool)
    small = layers.sizes < policy.small_bytes
    taken = np.zeros(len(layers.rows), bool)
    among = None
    if costs.depth > policy.overlap:
        among = everything
    elif np.count_nonzero(small) >= policy.small_files or _get_quicker(stretches, small, costs, append_only, policy):
        among = small
    if among is not None:
        taken = _tier(layers.bytes, among, policy.tier)
        if not taken.any():
            taken = _nearest(layers.bytes, among)
        if not taken.any():
            taken = everything
    due = [section for section in slow.tolist() if _is_due(layers, sections, section, policy)]
    if not due and not taken.any():
        due = slow[rest_at <= now].tolist()
    of_due = np.isin(sections.numbers, np.array(due, np.int64))
    return taken if not np.any(of_due & ~taken) else of_due


def _get_quicker(
    stretches: _Stretches,
    small: Chosen,
    costs: ReadCost,
    append_only: bool,
    policy: CompactionPolicy,
) -> bool:
    taken = _tier(stretches.bytes, small, policy.tier)
    count = np.count_nonzero(taken)
    if count < 2 or 2 * count < policy.small_files:
        return False
    put = [
        stretches.firsts[taken].min(),
        stretches.lasts[taken].max(),
        stretches.rows[taken].sum(),
        stretches.bytes[taken].sum(),
        _files_of(int(stretches.bytes[taken].sum()), TARGET_FILE_BYTES),
    ]
    after = _Stretches(*(np.append(column[~taken], one) for column, one in zip(stretches, put, strict=True)))
    return costs.times(_cost(after, append_only)) > policy.quicker


def _slow(sections: _Sections, costs: ReadCost, policy: CompactionPolicy) -> Numbers:
    """The sections of several files, where these make reads more than `slower` times as long."""
    several = np.flatnonzero(sections.counts > 1)
    if not len(several):
        return several
    put = np.maximum(1, -(-sections.bytes[several] // TARGET_FILE_BYTES))
    after = costs.rows + OPENING * (len(sections.counts) - len(several) + int(put.sum()))
    return several if costs.work / after > policy.slower else several[:0]


def _is_due(layers: ManyLayers, sections: _Sections, section: int, policy: CompactionPolicy) -> bool:
    count, size = int(sections.counts[section]), int(sections.bytes[section])
    if 2 * (count - 1) < policy.small_files and size < policy.small_bytes:
        return False
    mine = sections.numbers == section
    large, below = _apart(layers.firsts[mine], layers.lasts[mine], layers.bytes[mine])
    above = size - below
    enough = 2 * (count - large) >= policy.small_files or above >= policy.small_bytes
    return enough and above >= policy.share * below


def _rests_at(sections: _Sections, slow: Numbers, policy: CompactionPolicy) -> Numbers:
    rest = policy.rest_seconds * np.maximum(1.0, sections.bytes[slow] / policy.rest_bytes)
    at: Numbers = sections.newest[slow] + (rest * 1_000_000).astype(np.int64)
    return at


def _sections(layers: ManyLayers, append_only: bool) -> _Sections:
    if append_only:
        count = len(layers.rows)
        return _Sections(np.arange(count), np.ones(count, np.int64), layers.bytes, layers.newest)
    order, begins = _in_sections(layers.firsts, layers.lasts)
    counts = np.diff(begins, append=len(order))
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.repeat(np.arange(len(begins)), counts)
    return _Sections(
        numbers,
        counts,
        np.add.reduceat(layers.bytes[order], begins),
        np.maximum.reduceat(layers.newest[order], begins),
    )


def _in_sections(firsts: Numbers, lasts: Numbers) -> tuple[Numbers, Numbers]:
    """Stretches, one at least, in token order, and where in this order a section begins."""
    order = np.lexsort((lasts, firsts))
    reach = np.maximum.accumulate(lasts[order])
    return order, np.flatnonzero(np.concatenate([[True], firsts[order][1:] > reach[:-1]]))


def _cost(stretches: _Stretches, append_only: bool) -> ReadCost:
    files, rows, size = (int(column.sum()) for column in (stretches.files, stretches.rows, stretches.bytes))
    if append_only:
        return ReadCost(files, rows, size, depth=1)
    order, begins = _in_sections(stretches.firsts, stretches.lasts)
    counts = np.diff(begins, append=len(order))
    merged = order[np.repeat(counts > 1, counts)]
    firsts, lasts = np.sort(stretches.firsts), np.sort(stretches.lasts)
    # Of those that begin up to here, those that have ended before are over.
    depth = int((np.arange(1, len(firsts) + 1) - np.searchsorted(lasts, firsts)).max())
    return ReadCost(
        files,
        rows,
        size,
        int(stretches.files[merged].sum()),
        int(stretches.rows[merged].sum()),
        int(stretches.bytes[merged].sum()),
        depth,
    )


def _tier(shares: Numbers, among: Chosen, tier: float) -> Chosen:
    """Those of some that are of about the same size, the smallest that there are: two at least, or none."""
    numbers, ordered = _by_bytes(shares, among)
    taken = np.zeros(len(shares), bool)
    near = np.flatnonzero(ordered[1:] <= tier * ordered[:-1])
    if len(near):
        numbers, ordered = numbers[near[0] :], ordered[near[0] :]
        larger = np.flatnonzero(ordered[1:] > tier * np.cumsum(ordered)[:-1])
        taken[numbers[: larger[0] + 1] if len(larger) else numbers] = True
    return taken


def _nearest(shares: Numbers, among: Chosen) -> Chosen:
    """The two of some that differ least in size; none of one."""
    numbers, ordered = _by_bytes(shares, among)
    taken = np.zeros(len(shares), bool)
    if len(numbers) > 1:
        begin = int(np.argmin(ordered[1:] / ordered[:-1]))
        taken[numbers[begin : begin + 2]] = True
    return taken


def _by_bytes(shares: Numbers, among: Chosen) -> tuple[Numbers, Numbers]:
    numbers = np.flatnonzero(among)
    numbers = numbers[np.argsort(shares[numbers], kind="stable")]
    return numbers, np.maximum(1, shares[numbers])


def _apart(firsts: Numbers, lasts: Numbers, sizes: Numbers) -> tuple[int, int]:
    """How many of them are the largest that share no token with each other, and how many bytes these have."""
    order = np.lexsort((lasts, firsts, -sizes))
    firsts, lasts, sizes = firsts[order], lasts[order], sizes[order]
    count = size = 0
    for _ in range(_SWEEPS):
        if not len(firsts):
            break
        count, size = count + 1, size + int(sizes[0])
        others = (firsts > lasts[0]) | (lasts < firsts[0])
        firsts, lasts, sizes = firsts[others], lasts[others], sizes[others]
    begins: list[int] = []
    ends: list[int] = []
    for first, last, one in zip(firsts.tolist(), lasts.tolist(), sizes.tolist(), strict=True):
        place = bisect_left(begins, first)
        if (place == len(begins) or last < begins[place]) and (not place or ends[place - 1] < first):
            begins.insert(place, first)
            ends.insert(place, last)
            count, size = count + 1, size + one
    return count, size


def _files_of(size: int, target_file_bytes: int) -> int:
    return max(1, -(-size // target_file_bytes))


def _meet(spans: Numbers, low: int, high: int) -> Chosen:
    meets: Chosen = (spans[0] <= high) & (spans[1] >= low)
    return meets


def _width(firsts: Numbers, lasts: Numbers) -> NDArray[np.float64]:
    """How many tokens there are; the difference of two of them may be one more than a signed number can say."""
    return (lasts - firsts).view(np.uint64).astype(np.float64) + 1.0


def _shares(numbers: Numbers, share: NDArray[np.float64]) -> Numbers:
    # What is asked for as a whole is told as it is: a large number is not one of its floats.
    return np.where(share == 1.0, numbers, np.rint(numbers * share).astype(np.int64))
