"""Streaming a range: its files are copied to the pending replica, then committed there under the session of the stage.

What has to be copied is a set difference, known from metadata alone, so streaming can stop anywhere and
be planned again, and a copy that comes too late is only a file that nobody commits (seed 000, "Topology guards").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from epochlake.jobs.replicas.copying import PartCopy, copy_data_file
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.intervals import NO_LINEAGE, Lineage, missing
from epochlake.jobs.replicas.replica import ReplicaAddress, ReplicaSnapshot
from epochlake.jobs.workers.pace import Pace, Paced
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.jobs.workers.workers import Workers
from epochlake.metastore.errors import StorageUnavailable, WrongCluster

Copy = Callable[[PartCopy], DataFile]
"""`copy_data_file`, or `link_data_file` for intranode migrations."""

Progress = Callable[[int, int], None]
"""Told the bytes and the rows of each file that has arrived; in the calling thread."""

THREADS = 4
COPYING_PARTITIONS = 8
"""Of a Spark job that copies. A limit is divided over them: while one waits for a free core, its part is not used."""


class Copied(msgspec.Struct, frozen=True):
    """`arrived`: files that are stored on the target, whole: to be committed. `failed`: `PartCopy.key` -> why not."""

    arrived: tuple[DataFile, ...]
    failed: dict[str, str]


def plan_streaming(
    sources: Sequence[ReplicaSnapshot],
    target: ReplicaSnapshot,
    low: int,
    high: int,
    lineage: Lineage = NO_LINEAGE,
) -> list[PartCopy]:
    """What any source has from token `low` to `high` and the target has not, each from the source with least to read.

    For a migration one source of the old replicas that are up to date suffices; for a rebuild give a quorum of the live
    replicas, so that every acknowledged row is in the union. Nothing outside of the range is brought, and nothing that
    a merged file of these replicas stands for (`lineage`). Largest first, so that copiers end together.
    """
    holders: dict[str, dict[ReplicaAddress, DataFile]] = {}
    union: dict[str, DataFile] = {}
    for source in sources:
        for file in source.within(low, high):
            union[file.file_id] = file
            holders.setdefault(file.file_id, {})[source.address] = file
    load = {source.address: 0 for source in sources}
    copies = []
    parts = missing(union.values(), target.within(low, high), low, high, lineage)
    for part in sorted(parts, key=lambda part: (-part.file.size, part.file.file_id, part.low)):
        chosen = min(holders[part.file.file_id], key=lambda address: (load[address], address.volume_id))
        # The same piece may have been cut into other bytes elsewhere: the file is as that source has it.
        part = msgspec.structs.replace(part, file=holders[part.file.file_id][chosen])
        copy = PartCopy(part, chosen, target.address)
        load[chosen] += copy.size
        copies.append(copy)
    return copies


class Copier:
    """Carries out copies, each on its own: one that fails does not stop the others.

    `bytes_per_second` holds for all copies of this copier together, 0 is no limit.
    """

    def __init__(self, workers: Workers | None = None, how: Copy = copy_data_file, bytes_per_second: float = 0) -> None:
        self._workers = workers or ThreadWorkers(THREADS)
        self._task = Paced(partial(attempt, how), bytes_per_second)

    def copy(self, copies: Sequence[PartCopy], progress: Progress | None = None) -> Copied:
        results: dict[str, CopyOutcome] = {}
        for copy, result in self._workers.each(self._task, copies, returns=CopyOutcome):
            results[copy.key] = result
            if progress is not None and result.file is not None:
                progress(result.file.size, result.file.rows)
        # In the order of the copies.
        answers = {copy.key: results[copy.key] for copy in copies}
        arrived = tuple(answer.file for answer in answers.values() if answer.file is not None)
        return Copied(arrived, {key: answer.failure for key, answer in answers.items() if answer.file is None})


class CopyOutcome(msgspec.Struct, frozen=True):
    """The file that is there now, or why it is not."""

    file: DataFile | None = None
    failure: str = ""


def attempt(how: Copy, copy: PartCopy, pace: Pace) -> CopyOutcome:
    """One copy, as a task for workers."""
    pace.take(copy.size)
    try:
        return CopyOutcome(how(copy))
    except (StorageUnavailable, WrongCluster) as error:
        return CopyOutcome(failure=str(error))
