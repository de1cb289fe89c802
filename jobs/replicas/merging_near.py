"""A merger for workers near the disks: each range is merged where all of its files lie, and copied from there.

A worker elsewhere stores the result on its own replica only; the other replicas get copies of it, as of any file. The
commit stays with whoever runs the compaction: what a worker says that it has made is compared with the range that was
given to it and with the footer of each file, before the ledger or a replica hears of it. What does not fit is merged
again here, and the file of which it was said is one that nothing names.
"""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Sequence
from functools import partial

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from epochlake.jobs.replicas.copying import PartCopy, copy_data_file, file_copy
from epochlake.jobs.replicas.files import MERGED, DataFile, id_in, path_of
from epochlake.jobs.replicas.footer_groups import MAGIC
from epochlake.jobs.replicas.footers import column_number, range_in_group
from epochlake.jobs.replicas.merging import MergedFile, MergePlan, Merger, RangeMerge, encode
from epochlake.jobs.replicas.merging_here import merged_rows
from epochlake.jobs.replicas.replica import ReplicaAddress
from epochlake.jobs.replicas.schema import DELETED, WRITTEN_AT
from epochlake.jobs.replicas.sealing import read_seal
from epochlake.jobs.replicas.streaming import CopyOutcome, attempt
from epochlake.jobs.workers.pace import Paced
from epochlake.jobs.workers.workers import Workers
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.metadata.model import VolumeId
from epochlake.metastore.storage import places
from epochlake.placement.errors import EpochlakeError
from epochlake.placement.tokens import TOKEN, range_label

logger = logging.getLogger(__name__)


class RangeToMerge(msgspec.Struct, frozen=True):
    """One merge, as an item for workers: the only one of its plan."""

    plan: MergePlan

    @property
    def merge(self) -> RangeMerge:
        return self.plan.merges[0]

    @property
    def home(self) -> ReplicaAddress | None:
        """The replica of the range that all of its files are read from, if it is one."""
        for target in self.merge.targets:
            if all(source.uri == places.join(target.uri, path_in(source.uri)) for source in self.merge.sources):
                return target
        return None


class RangeMerged(msgspec.Struct, frozen=True):
    """What was made of a range, none of it where no row is left, and the volumes that were to get it by that."""

    files: tuple[MergedFile, ...]
    stored_on: tuple[VolumeId, ...]


class RangeMerger:
    """The task: merges a range in this process, and stores it on all replicas; one range after the other."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._made: list[RangeMerged] = []

    def __call__(self, asked: RangeToMerge) -> RangeMerged:
        with self._turn:
            files = tuple(encode(asked.plan, merged_rows(asked.plan, asked.plan.merges)))
            self._made.append(RangeMerged(files, tuple(target.volume_id for target in asked.merge.targets)))
            return self._made[-1]

    def has_made(self, merged: RangeMerged) -> bool:
        """Whether this very result comes from here. Who did a merge is not taken from what is said of it."""
        return any(merged is one for one in self._made)


def merge_near(workers: Workers) -> Merger:
    """The `Merger` of which workers do the merges and the copies. Raises what merging here raises."""

    def merge(plan: MergePlan) -> list[MergedFile]:
        here = RangeMerger()
        asked = [_alone(plan, one) for one in plan.merges if one.sources]
        found = list(zip(asked, workers.run(here, asked, returns=RangeMerged), strict=True))
        made: list[tuple[RangeMerge, RangeMerged]] = []
        for one, said in found:
            why = "" if here.has_made(said) else doubt(one, said)
            if why:
                logger.warning("range %s is merged here: %s", one.merge.label, why)
            made.append((one.merge, here(one) if why else said))
        failed = _copied(workers, made)
        numbers = [merge.number for merge in plan.merges if merge.sources]
        return [
            MergedFile(number, one.file, one.failed | failed.get(one.file.file_id, {}))
            for number, (_, said) in zip(numbers, made, strict=True)
            for one in said.files
        ]

    return merge


def _alone(plan: MergePlan, merge: RangeMerge) -> RangeToMerge:
    return RangeToMerge(msgspec.structs.replace(plan, merges=(msgspec.structs.replace(merge, number=0),)))


def _copied(workers: Workers, made: Sequence[tuple[RangeMerge, RangeMerged]]) -> dict[str, dict[VolumeId, str]]:
    """Bring what was stored on one replica to the others; the file id -> the volumes that do not have it, and why."""
    copies: list[PartCopy] = []
    for merge, said in made:
        there = [target for target in merge.targets if target.volume_id in said.stored_on]
        for target in merge.targets:
            if target.volume_id not in said.stored_on:
                copies += [file_copy(one.file, there[0], target) for one in said.files]
    failed: dict[str, dict[VolumeId, str]] = {}
    outcomes = workers.run(Paced(partial(attempt, copy_data_file), 0.0), copies, returns=CopyOutcome)
    for copy, outcome in zip(copies, outcomes, strict=True):
        if outcome.file != copy.file:
            why = outcome.failure or "another file was stored in the place of the merged one"
            failed.setdefault(copy.file.file_id, {})[copy.target.volume_id] = why
    return failed


def doubt(asked: RangeToMerge, said: RangeMerged) -> str:
    """Why what a worker elsewhere says of a merge is not believed; empty where it is."""
    merge, home = asked.merge, asked.home
    if home is None or said.stored_on != (home.volume_id,):
        return "it was stored on other volumes than it was to be"
    if not said.files:
        # It can be so, where all was deleted long ago; too much hangs on it to take somebody's word.
        return "an agent says that no row is left of it"
    rows = [source.rows for source in merge.sources]
    total = sum(one.file.rows for one in said.files)
    keeps_all = asked.plan.table.append_only and not merge.expired_before and all(one.whole for one in merge.sources)
    if total > sum(rows) or (keeps_all and total < sum(rows)):
        return f"its files have {total} rows, made of {sum(rows)}"
    ids = {id_in(source.uri) for source in merge.sources}
    low = merge.low
    for one in said.files:
        why = _shape(one, merge, low) or ("its name is taken" if one.file.file_id in ids else "")
        if why:
            return why
        ids.add(one.file.file_id)
        low = one.file.window[1] + 1
    if low != merge.high + 1:
        return "its files are not for the whole range"
    return next((why for one in said.files if (why := _content(asked, home, one.file))), "")


def _shape(one: MergedFile, merge: RangeMerge, low: int) -> str:
    """What is wrong with the words about a file, which is to begin at a token."""
    file = one.file
    if one.failed or one.number != 0 or file.label != merge.label:
        return "it is not said of this range"
    if not file.file_id.startswith(MERGED) or file.origin != file.file_id:
        return f"{file.file_id} is not the name of a merged file"
    try:
        first, last = file.window
    except (EpochlakeError, ValueError):
        first, last = low, low - 1
    if first != low or not first <= last <= merge.high or file.path != path_of(range_label(first, last), file.file_id):
        return f"{file.path} is not where a file of this range belongs"
    if file.rows <= 0 or not first <= file.min_token <= file.max_token <= last:
        return f"{file.path} has no rows of its tokens"
    return ""


def _content(asked: RangeToMerge, home: ReplicaAddress, file: DataFile) -> str:
    """What is wrong with a stored file: it must be sealed, under this name, and have the rows that are told of it."""
    uri = places.join(home.uri, file.path)
    try:
        seal = read_seal(asked.plan.storage, file, uri)
    except StorageUnavailable as error:
        return str(error)
    if seal.digest is None:
        return f"{uri} has no seal"
    try:
        told = _told_by(pq.read_metadata(io.BytesIO(MAGIC + seal.footer)))
    except (pa.ArrowException, OSError, ValueError) as error:
        return f"{uri} has no readable footer: {error}"
    said = (
        file.rows,
        (file.min_token, file.max_token),
        (file.min_written_at, file.max_written_at),
        file.has_tombstones,
    )
    return "" if told == said else f"{uri} has other rows than its agent says"


def _told_by(footer: pq.FileMetaData) -> object:
    """What a footer tells of the rows, as `_content` compares it."""

    def extent(column: str) -> tuple[object, object]:
        number = column_number(footer, column)
        ranges = [range_in_group(footer, group, number) for group in range(footer.num_row_groups)]
        known = [one for one in ranges if one is not None]
        if not known or len(known) < len(ranges):
            return None, None
        return min(low for low, _ in known), max(high for _, high in known)

    return footer.num_rows, extent(TOKEN), extent(WRITTEN_AT), extent(DELETED)[1]


def path_in(uri: str) -> str:
    """The path of a data file below its replica table, from its URI."""
    return "/".join(uri.rsplit("/", 2)[-2:])
