"""Named batches: which files a batch is made of is decided once, before any of them is committed anywhere.

A write that failed half-way may have landed on a replica that does not answer now. Staging its rows again would give
them other files, and an append-only table would show them twice when that replica comes back. So the list of staged
files is put under the batch's id at the root of the cluster first, and whoever writes the batch again, a retry or a
racing copy of the job, lands exactly these files (docs/decisions/006-named-batches.md).

Files change while a batch waits: replicas are cut, ranges move, compactions merge. So a batch is found by its rows, not
by its files: what replicas hold of them in pieces, or in a merged file, is of the batch (intervals.py, ledger.py).

What was staged and never committed may have been cleaned up before the retry. Windows whose rows are nowhere any more
are staged again, and the new files are decided in their place: the next generation.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
from epochlake.jobs.gate.routing import ranges_of
from epochlake.jobs.gate.row_digests import DigestedColumn
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.intervals import NO_LINEAGE, Lineage, merged, missing
from epochlake.jobs.replicas.ledger import Ledger
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.replica import ReplicaSnapshot, require_place
from epochlake.jobs.replicas.staging import StagedFile, wrapped
from epochlake.jobs.replicas.stamped import stamped, unstamped
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore.errors import Rejected, StorageUnavailable, UnknownFormat, WrongCluster
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import NodeState, Table, TableId, VolumeId
from epochlake.metastore.storage import failures, places
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.rejections import Code
from epochlake.placement.tokens import Interval, range_label, tokens_of_label
from numpy.typing import NDArray

FORMAT = 1
THREADS = 16

_NAMES = uuid.UUID("6e2c1b2e-4f57-5d0e-9d1a-3f2b8d7c5a90")


class Generation(msgspec.Struct, frozen=True):
    """Files staged for a batch; `replaces` are the labels of windows whose earlier files are lost. Stored as JSON.

    `columns`: what the digests of the files are of. It is not said by earlier versions: the columns of their time.
    Stamped (stamped.py), so that no flipped bit tells of other tokens or another file; by earlier versions it was not.
    """

    batch: str
    table: str
    files: tuple[StagedFile, ...]
    replaces: tuple[str, ...] = ()
    columns: tuple[DigestedColumn, ...] | msgspec.UnsetType = msgspec.UNSET
    format: int = FORMAT


class BatchContents(msgspec.Struct, frozen=True):
    """What a batch is made of. `generations`: how often that was decided; 0: not yet. `columns`: what its rows are
    digested by; None where that is not known.
    """

    generations: int
    files: tuple[StagedFile, ...]
    columns: tuple[DigestedColumn, ...] | None = None

    @property
    def rows(self) -> Count:
        """What was staged. Files of an earlier version have no digest."""
        digests = [staged.digest for staged in self.files]
        known = [digest for digest in digests if digest is not None]
        total = wrapped(sum(known)) if len(known) == len(digests) else None
        return Count(sum(staged.file.rows for staged in self.files), total)


class Count(msgspec.Struct, frozen=True):
    """The rows of a batch, whatever their order: how many, and the sum of their digests; None: not known."""

    count: int
    digest: int | None

    def may_be(self, other: Count) -> bool:
        """Whether nothing shows that the others are other rows."""
        same = self.digest is None or other.digest is None or self.digest == other.digest
        return self.count == other.count and same

    def __str__(self) -> str:
        return f"{self.count} rows" if self.digest is None else f"{self.count} rows with digest {self.digest:+d}"


def count_of(digests: NDArray[np.int64]) -> Count:
    """Rows by the digest of each."""
    return Count(len(digests), wrapped(int(digests.sum(dtype=np.int64))))


class Located(msgspec.Struct, frozen=True):
    """Where the rows of a batch are: `files` as they were staged and `pieces`, both with their holders of now.

    `lost`: windows whose rows nobody who answers has; `unanswered`: for these the volumes that did not answer and may
    have them, with what they said. `lineage`: what the merged files among the pieces stand for.
    """

    files: tuple[StagedFile, ...]
    pieces: tuple[StagedFile, ...]
    lost: tuple[Interval, ...]
    unanswered: dict[VolumeId, str]
    lineage: Lineage = NO_LINEAGE


class Live:
    """What replicas have, by origin. A merged file is found under the origins that it stands for as well."""

    def __init__(self, opened: Mapping[VolumeId, ReplicaSnapshot], lineage: Lineage = NO_LINEAGE) -> None:
        self._lineage = lineage
        self._files: dict[VolumeId, dict[str, list[DataFile]]] = {}
        for volume, snapshot in opened.items():
            by_origin = self._files.setdefault(volume, defaultdict(list))
            for file in snapshot.all_files.values():
                for origin in {file.origin, *(older for older, _, _ in lineage.get(file.origin, ()))}:
                    by_origin[origin].append(file)

    def of(self, file: DataFile) -> Iterator[tuple[VolumeId, DataFile]]:
        """Who has which files with rows of a staged file's origin."""
        for volume, by_origin in self._files.items():
            for one in by_origin.get(file.origin, ()):
                yield volume, one

    def volumes_with(self, file: DataFile, window: Interval) -> set[VolumeId]:
        """The volumes that have every row of a file in `window`."""
        return {
            volume
            for volume, by_origin in self._files.items()
            if file.origin in by_origin and not missing((file,), by_origin[file.origin], *window, self._lineage)
        }


def batch_id(table_id: TableId, operation: str, name: str) -> str:
    """The id of the batch that `operation` (write, delete) on a table calls `name`."""
    return str(uuid.uuid5(_NAMES, f"{table_id}/{operation}/{name}"))


def decided(storage: Storage, root: str, batch: str) -> BatchContents:
    """What has been decided for a batch below `root`. Raises StorageUnavailable, UnknownFormat."""
    generations: list[Generation] = []
    while True:
        try:
            data = storage.read_bytes(_uri(root, batch, len(generations) + 1))
        except failures.MissingFile:
            break
        generations.append(_decode(data, _uri(root, batch, len(generations) + 1)))
    files: list[StagedFile] = []
    for generation in generations:
        lost = [tokens_of_label(label) for label in generation.replaces]
        files = [staged for staged in files if not _within(staged.file.window, lost)] + list(generation.files)
    known = [one.columns for one in generations if one.columns is not msgspec.UNSET]
    return BatchContents(len(generations), tuple(files), known[-1] if known else None)


def decide(
    storage: Storage,
    root: str,
    batch: str,
    table: Table,
    so_far: BatchContents,
    staged: Sequence[StagedFile],
    replaces: Iterable[Interval] = (),
    columns: tuple[DigestedColumn, ...] | None = None,
) -> BatchContents:
    """Make `staged` the files of the batch, or learn that somebody else was faster: what counts now.

    `columns`: what the digests of the files are of.
    Nothing of the batch may be committed before this has returned. Raises StorageUnavailable.
    """
    labels = sorted(range_label(*window) for window in replaces)
    digested = msgspec.UNSET if columns is None else columns
    generation = Generation(batch, table.full_name, tuple(staged), tuple(labels), digested)
    uri = _uri(root, batch, so_far.generations + 1)
    storage.create_directory(uri.rpartition("/")[0], parents=True)
    storage.put_if_absent(uri, stamped(generation))
    return decided(storage, root, batch)


def require_same(
    table: Table,
    name: str,
    before: Count,
    given: Count,
    columns: Iterable[DigestedColumn] = (),
) -> None:
    """Rejected (batch-used) when what comes under a name is not what came before, digested by `columns`."""
    if not before.may_be(given):
        raise Rejected(
            Code.BATCH_USED,
            f"batch {name!r} of {table.full_name} was written with {before}, and now comes with "
            f"{given}{_dropped(table, columns)}: a batch that is tried again has the same rows",
            hint="Give other rows another name; a source that changes from one reading to the next (a clock, "
            "random numbers) has to be stored first",
        )


def _dropped(table: Table, columns: Iterable[DigestedColumn]) -> str:
    numbers = {one.number for one in columns}
    names = [one.name for one in table.dropped if one.column_id in numbers]
    return f" ({', '.join(names)} {'was' if len(names) == 1 else 'were'} dropped since)" if names else ""


def locate(
    storage: Storage,
    metadata: ClusterMetadata,
    table: Table,
    files: Sequence[StagedFile],
    opened: Mapping[VolumeId, ReplicaSnapshot],
    silent: Mapping[VolumeId, str],
    ledger: Ledger,
) -> Located:
    """Find the rows of a batch: on replicas where they are live, and where they were staged and still lie.

    `opened` and `silent`: the write replicas that answer, and what the others said. Raises StorageUnavailable when the
    ledger of compactions is needed and cannot be read.
    """
    all_live = [file for snapshot in opened.values() for file in snapshot.all_files.values()]
    lineage = ledger.lineage(table.table_id, [*all_live, *(staged.file for staged in files)])
    live = Live(opened, lineage)
    holders: dict[DataFile, set[VolumeId]] = {staged.file: set() for staged in files}
    found: dict[DataFile, dict[DataFile, set[VolumeId]]] = {}
    for staged in files:
        of_origin = found.setdefault(staged.file, {})
        for volume, file in live.of(staged.file):
            of_origin.setdefault(file, set()).add(volume)
            if file.file_id == staged.file.file_id:
                holders[staged.file].add(volume)
    reasons = dict(silent) | _look_for_staged(storage, metadata, table, files, holders)
    visible = {staged.file.window for staged in files if found[staged.file]}
    lost = {
        staged.file.window
        for staged in files
        if missing((staged.file,), _held(staged.file, holders, found), *staged.file.window, lineage)
    } - visible
    return Located(
        files=tuple(StagedFile(staged.file, frozenset(holders[staged.file]), {}) for staged in files),
        pieces=tuple(
            StagedFile(file, frozenset(volumes), {})
            for file, volumes in {file: volumes for one in found.values() for file, volumes in one.items()}.items()
            if file not in holders
        ),
        lost=tuple(sorted(lost)),
        unanswered=_may_have(metadata, table, [staged for staged in files if staged.file.window in lost], reasons),
        lineage=lineage,
    )


def _held(
    file: DataFile, holders: Mapping[DataFile, set[VolumeId]], found: Mapping[DataFile, Mapping[DataFile, object]]
) -> list[DataFile]:
    return [file, *found[file]] if holders[file] else list(found[file])


def _look_for_staged(
    storage: Storage,
    metadata: ClusterMetadata,
    table: Table,
    files: Sequence[StagedFile],
    holders: dict[DataFile, set[VolumeId]],
) -> dict[VolumeId, str]:
    """Add to the holders those that have a file in their directory as it was staged; what others said."""
    asked = [(staged, v) for staged in files for v in sorted(staged.stored - holders[staged.file])]
    reasons: dict[VolumeId, str] = {}

    def look(item: tuple[StagedFile, VolumeId]) -> tuple[bool, str | None]:
        staged, volume = item
        try:
            # The directory of a replica that is not one any more may serve as a source all the same.
            return _keep(storage, metadata, table, staged, volume), None
        except (StorageUnavailable, WrongCluster) as error:
            return False, str(error)

    for (staged, volume), (there, failure) in zip(asked, ThreadWorkers(THREADS).run(look, asked), strict=True):
        if there:
            holders[staged.file].add(volume)
        elif failure is not None:
            reasons[volume] = failure
    return reasons


def _may_have(
    metadata: ClusterMetadata, table: Table, lost: Sequence[StagedFile], reasons: Mapping[VolumeId, str]
) -> dict[VolumeId, str]:
    """Which of the volumes that did not answer may have lost files all the same."""
    placements = metadata.placements(table.table_id)
    relevant = {volume for staged in lost for volume in staged.stored}
    for index in ranges_of(placements, {staged.file.window for staged in lost}):
        relevant |= set(placements.placement(index).writes)
    nodes = metadata.directory.node_of_volume
    return {v: reasons[v] for v in relevant if v in reasons and nodes[v].state is not NodeState.LEFT}


def _keep(storage: Storage, metadata: ClusterMetadata, table: Table, staged: StagedFile, volume: VolumeId) -> bool:
    """Whether a volume has the whole file, which counts as new from now on: it was staged before this pipeline began,
    so nothing else keeps it from being cleaned up before it is committed.

    Raises StorageUnavailable, WrongCluster when that cannot be told.
    """
    address = address_of(storage, metadata, table, volume)
    require_place(address)
    uri = places.join(address.uri, staged.file.path)
    storage.touch(uri)
    return storage.size_of(uri) == staged.file.size


def _decode(data: bytes, uri: str) -> Generation:
    generation = unstamped(data, Generation, f"what batch {uri} is made of")
    if generation.format != FORMAT:
        raise UnknownFormat(f"{uri} has format {generation.format}, and this version knows {FORMAT}", hint="Upgrade")
    return generation


def _uri(root: str, batch: str, generation: int) -> str:
    return places.join(root, batch[:2], f"{batch}.{generation}.json")


def _within(window: Interval, others: Iterable[Interval]) -> bool:
    """Whether all tokens of a window are in others."""
    return any(low <= window[0] and window[1] <= high for low, high in merged(others))
