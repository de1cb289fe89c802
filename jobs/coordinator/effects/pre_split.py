"""Keeping the rows of token ranges in files of their own: what makes a replica ready for a split (seed 000).

A file that straddles a boundary is cut where it lies, a few boundaries at a time, each in a commit of its
own. So a replica is always whole, work can stop anywhere and goes on where it was (a piece that is stored already is
not cut again), and what is planned on old metadata is refused by the fence before it changes anything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import msgspec
import numpy as np
from epochlake.jobs.replicas.commits import pieces_of, pre_split, straddling
from epochlake.jobs.replicas.copying import PartCopy
from epochlake.jobs.replicas.fences import raise_fence
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.outcomes import FencedOff, Unreachable
from epochlake.jobs.replicas.replica import ReplicaAddress, ReplicaSnapshot, open_snapshot
from epochlake.jobs.replicas.streaming import Copier
from epochlake.jobs.workers.pace import Pace, Paced
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.jobs.workers.workers import Workers
from epochlake.metastore.errors import StorageUnavailable, WrongCluster
from epochlake.metastore.metadata.fence import Fence
from epochlake.placement.tokens import tablet_ranges

THREADS = 4


class PreSplit(msgspec.Struct, frozen=True):
    """What is asked of a replica table: that no file of it has rows of two of the `count` equal ranges of all tokens.

    Planned at `epoch`; the replica's fence is raised to it first where it is below `fence`. Stops after the boundary
    with which `limit` bytes of files are cut, to go on another time. A file of up to `spared` bytes is left as it is.
    """

    address: ReplicaAddress
    count: int
    epoch: int
    fence: int
    limit: int
    spared: int = 0


class PreSplitOutcome(msgspec.Struct, frozen=True):
    """What became of it: bytes of files that were cut, how many files still straddle a boundary, and why it stopped.

    `away`: the replica does not answer; `failure` without that: somebody with newer metadata is at work there.
    """

    cut: int = 0
    left: int = 0
    failure: str = ""
    away: bool = False

    @property
    def ready(self) -> bool:
        """Whether nothing straddles, and nothing that was planned below the fence that was asked for can come."""
        return not (self.failure or self.left)


class PreSplitter:
    """Carries out pre-splits, each on its own; the results in their order.

    `bytes_per_second` holds for all files that it cuts together, 0 is no limit. `cutter` cuts pieces beforehand, nearer
    to the disks than `workers` are, which commit them and cut what it has not.
    """

    def __init__(
        self, workers: Workers | None = None, bytes_per_second: float = 0, cutter: Copier | None = None
    ) -> None:
        self._workers = workers or ThreadWorkers(THREADS)
        task = pre_split_replica if cutter is None else partial(pre_split_replica, cutter=cutter)
        self._task = Paced(task, bytes_per_second)

    def pre_split(self, asked: Sequence[PreSplit]) -> list[PreSplitOutcome]:
        return self._workers.run(self._task, asked, returns=PreSplitOutcome)


def pre_split_replica(asked: PreSplit, pace: Pace, cutter: Copier | None = None) -> PreSplitOutcome:
    """Cut the files that straddle a boundary, up to the limit; with a `cutter`, which cuts them beforehand."""
    cut = 0
    try:
        snapshot = open_snapshot(asked.address)
        if snapshot.fence > asked.epoch:
            return PreSplitOutcome(failure=_behind(asked, snapshot.fence))
        if snapshot.fence < asked.fence:
            fence = raise_fence(asked.address, asked.epoch)
            if isinstance(fence, Unreachable):
                return PreSplitOutcome(failure=fence.reason, away=True)
            if fence > asked.epoch:
                return PreSplitOutcome(failure=_behind(asked, fence))
            snapshot = open_snapshot(asked.address)
        straddling = boundaries_within(_worth_cutting(snapshot, asked), asked.count)
    except (StorageUnavailable, WrongCluster) as error:
        return PreSplitOutcome(failure=str(error), away=True)
    left = len({file.file_id for files in straddling.values() for file in files})
    for boundaries, size in _slices(straddling, asked.limit):
        if cut and cut + size > asked.limit:
            break
        pace.take(size)
        if cutter is not None:
            try:
                _cut_beforehand(asked, boundaries, cutter)
            except (StorageUnavailable, WrongCluster) as error:
                return PreSplitOutcome(cut, left, str(error), away=True)
        outcome = pre_split(asked.address, boundaries, asked.epoch, asked.spared)
        match outcome:
            case Unreachable(reason=reason):
                return PreSplitOutcome(cut, left, reason, away=True)
            case FencedOff(fence=fence):
                return PreSplitOutcome(cut, left, _behind(asked, fence))
        cut += size
    if cut:
        try:
            left = len(_straddling(_worth_cutting(open_snapshot(asked.address), asked), asked.count))
        except (StorageUnavailable, WrongCluster) as error:
            return PreSplitOutcome(cut, left, str(error), away=True)
    return PreSplitOutcome(cut, left)


def _cut_beforehand(asked: PreSplit, boundaries: Sequence[int], cutter: Copier) -> None:
    """Have the pieces stored that the commit names; where that fails it cuts them itself."""
    files = straddling(open_snapshot(asked.address), boundaries, asked.spared)
    parts = [part for part in pieces_of(files, boundaries) if not part.whole]
    cutter.copy([PartCopy(part, asked.address, asked.address) for part in parts])


def _worth_cutting(snapshot: ReplicaSnapshot, asked: PreSplit) -> list[DataFile]:
    return [file for file in snapshot.all_files.values() if file.size > asked.spared]


def boundaries_within(files: Iterable[DataFile], count: int) -> dict[int, list[DataFile]]:
    """The boundaries (last tokens of the lower side) that files have rows on both sides of, with these files."""
    ends = tablet_ranges(count)[1]
    found: dict[int, list[DataFile]] = defaultdict(list)
    for file in files:
        first, last = file.extent
        low, high = np.searchsorted(ends, [first, last]).tolist() if first < last else (0, 0)
        for boundary in ends[low:high].tolist():
            found[boundary].append(file)
    return dict(sorted(found.items()))


def _straddling(files: Iterable[DataFile], count: int) -> set[str]:
    return {file.file_id for held in boundaries_within(files, count).values() for file in held}


def _slices(straddling: dict[int, list[DataFile]], limit: int) -> Iterator[tuple[list[int], int]]:
    """Boundaries to be cut at in one commit, and the bytes of the files that are cut there; no file counts twice."""
    counted: set[str] = set()
    boundaries: list[int] = []
    total = 0
    most = max(1, limit // 4)
    for boundary, files in straddling.items():
        fresh = {file.file_id: file.size for file in files if file.file_id not in counted}
        size = sum(fresh.values())
        # A file over several boundaries is cut at all of them at once: in two commits it would be read twice.
        if boundaries and fresh and total + size > most:
            yield boundaries, total
            boundaries, total = [], 0
        counted |= set(fresh)
        boundaries.append(boundary)
        total += size
    if boundaries:
        yield boundaries, total


def _behind(asked: PreSplit, fence: int) -> str:
    ahead, planned = Fence.of(fence), Fence.of(asked.epoch)
    return f"{asked.address.uri} is fenced at {ahead}, this was planned at {planned}: a newer coordinator is at work"
