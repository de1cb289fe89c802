"""Named batches: which files a batch is made of is decided once, before any of them is committed anywhere.

A write that failed half-way may have landed on a replica that does not answer now. Staging its rows again would give
them other files, and an append-only table would show them twice when that replica comes back. So the list of staged
files is put under the batch's id at the root of the cluster first, and whoever writes the batch again, a retry or a
racing copy of the job, lands exactly these files (docs/decisions/006-named-batches.md).

What was staged and never committed may have been cleaned up before the retry. Tablets whose files are nowhere any more
are staged again, and the new files are decided in their place: the next generation.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
from epochlake.jobs.dataplane.replica import ReplicaSnapshot
from epochlake.jobs.dataplane.staging import StagedFile
from epochlake.jobs.dataplane.volumes import require_volume
from epochlake.jobs.pipeline.replicas import address_of
from epochlake.metastore import storage
from epochlake.metastore.errors import LogUnreadable, StorageUnavailable, UnknownFormat, WrongCluster
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import NodeState, Table, TableId, VolumeId
from epochlake.placement.tokens import parse_label

FORMAT = 1
THREADS = 16

_NAMES = uuid.UUID("6e2c1b2e-4f57-5d0e-9d1a-3f2b8d7c5a90")


class Generation(msgspec.Struct, frozen=True):
    """Files staged for a batch; `replaces` are the labels of tablets whose earlier files are lost. Stored as JSON."""

    batch: str
    table: str
    files: tuple[StagedFile, ...]
    replaces: tuple[str, ...] = ()
    format: int = FORMAT


class Decision(msgspec.Struct, frozen=True):
    """What a batch is made of. `generations`: how often that was decided; 0: not yet."""

    generations: int
    files: tuple[StagedFile, ...]


class Located(msgspec.Struct, frozen=True):
    """Where the files of a batch are. `files` with their holders of now; `lost` are labels of tablets without.

    `unanswered`: for a lost tablet the volumes that did not answer and may have its files, with what they said.
    """

    files: tuple[StagedFile, ...]
    lost: frozenset[str]
    unanswered: dict[VolumeId, str]


def batch_id(table_id: TableId, operation: str, name: str) -> str:
    """The id of the batch that `operation` (write, delete) on a table calls `name`."""
    return str(uuid.uuid5(_NAMES, f"{table_id}/{operation}/{name}"))


def decided(root: str, batch: str) -> Decision:
    """What has been decided for a batch below `root`. Raises StorageUnavailable, UnknownFormat."""
    generations: list[Generation] = []
    while True:
        try:
            data = storage.read_bytes(_uri(root, batch, len(generations) + 1))
        except storage.MissingFile:
            break
        generations.append(_decode(data, _uri(root, batch, len(generations) + 1)))
    files: list[StagedFile] = []
    for generation in generations:
        files = [staged for staged in files if staged.file.label not in generation.replaces] + list(generation.files)
    return Decision(len(generations), tuple(files))


def decide(
    root: str, batch: str, table: Table, so_far: Decision, staged: Sequence[StagedFile], replaces: Iterable[str] = ()
) -> Decision:
    """Make `staged` the files of the batch, or learn that somebody else was faster: what counts now.

    Nothing of the batch may be committed before this has returned. Raises StorageUnavailable.
    """
    generation = Generation(batch, table.full_name, tuple(staged), tuple(sorted(replaces)))
    uri = _uri(root, batch, so_far.generations + 1)
    storage.create_directory(uri.rpartition("/")[0], parents=True)
    storage.put_if_absent(uri, msgspec.json.encode(generation))
    return decided(root, batch)


def locate(
    metadata: ClusterMetadata,
    table: Table,
    files: Sequence[StagedFile],
    opened: Mapping[VolumeId, ReplicaSnapshot],
    silent: Mapping[VolumeId, str],
) -> Located:
    """Find the bytes of a batch's files: on replicas where they are live, and where they were staged and still lie.

    `opened` and `silent`: the write replicas that answer, and what the others said.
    """
    live = {
        staged.file.file_id: {v for v, s in opened.items() if staged.file.file_id in s.files.get(staged.file.label, {})}
        for staged in files
    }
    asked = [(staged, v) for staged in files for v in sorted(staged.stored - live[staged.file.file_id])]
    reasons = dict(silent)
    holders = {file_id: set(volumes) for file_id, volumes in live.items()}

    def look(item: tuple[StagedFile, VolumeId]) -> tuple[bool, str | None]:
        staged, volume = item
        try:
            # The directory of a replica that is not one any more may serve as a source all the same.
            return is_stored(metadata, table, staged, volume), None
        except (StorageUnavailable, WrongCluster) as error:
            return False, str(error)

    with ThreadPoolExecutor(max(1, min(THREADS, len(asked)))) as pool:
        for (staged, volume), (there, failure) in zip(asked, pool.map(look, asked), strict=True):
            if there:
                holders[staged.file.file_id].add(volume)
            elif failure is not None:
                reasons[volume] = failure
    visible = {staged.file.label for staged in files if live[staged.file.file_id]}
    lost = frozenset(staged.file.label for staged in files if not holders[staged.file.file_id]) - visible
    relevant: set[VolumeId] = set()
    for staged in files:
        if staged.file.label in lost:
            index, _ = parse_label(staged.file.label)
            relevant |= staged.stored | set(metadata.placement(table.table_id, index).writes)
    nodes = metadata.directory.node_of_volume
    unanswered = {v: reasons[v] for v in relevant if v in reasons and nodes[v].state is not NodeState.LEFT}
    found = tuple(StagedFile(staged.file, frozenset(holders[staged.file.file_id]), {}) for staged in files)
    return Located(found, lost, unanswered)


def is_stored(metadata: ClusterMetadata, table: Table, staged: StagedFile, volume: VolumeId) -> bool:
    """Whether a volume has the whole file. Raises StorageUnavailable, WrongCluster when that cannot be told."""
    address = address_of(metadata, table, volume)
    require_volume(address.volume_uri, address.cluster_id, volume)
    return storage.size_of(storage.join(address.uri, staged.file.path)) == staged.file.size


def _decode(data: bytes, uri: str) -> Generation:
    try:
        generation = msgspec.json.decode(data, type=Generation)
    except msgspec.MsgspecError as error:
        raise LogUnreadable(f"what batch {uri} is made of cannot be read: {error}. Restore the file") from error
    if generation.format != FORMAT:
        raise UnknownFormat(f"{uri} has format {generation.format}, and this version knows {FORMAT}: upgrade")
    return generation


def _uri(root: str, batch: str, generation: int) -> str:
    return storage.join(root, batch[:2], f"{batch}.{generation}.json")
