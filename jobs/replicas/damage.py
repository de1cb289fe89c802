"""Finding stored files whose bytes are not those that were written, and healing them from a good replica.

A data file carries its seal (sealing.py), so it is known to be good wherever it lies. Files from before
seals have checksums of pages only: two that both decode and differ all the same (a flipped bit in a footer, say) are
told apart by their hashes, as a file has the same bytes under its name on every replica: most votes win.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial

import msgspec
from epochlake.jobs.replicas.copying import copy_data_file, file_copy
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.replica import ReplicaAddress
from epochlake.jobs.replicas.sealing import CHUNK, DamagedBytes, require_intact
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.jobs.workers.workers import Workers
from epochlake.metastore.errors import StorageUnavailable, WrongCluster
from epochlake.metastore.storage import deadlines, places

THREADS = 8
CHECKING_PARTITIONS = 16
"""Of a Spark job that checks files."""

NO_GOOD_BYTES = "no other replica has good bytes of it: restore it from a backup, or give it up with --accept-loss"


class ExpectedFile(msgspec.Struct, frozen=True):
    """A live file of a replica, where it should be stored."""

    file: DataFile
    address: ReplicaAddress

    @property
    def uri(self) -> str:
        return places.join(self.address.uri, self.file.path)


class Checked(msgspec.Struct, frozen=True):
    """What was found: what is wrong with the bytes, and of a file without a seal the hash of all of them.

    `unread`: storage did not give them, so nobody knows whether they are whole.
    """

    digest: str | None
    damage: str | None
    unread: bool = False


def check_bytes(stored: ExpectedFile) -> Checked:
    """Read every byte of a file and compare it with its seal. Never raises for what is stored there.

    A file from before seals is decoded with the checksums of its pages, and hashed.
    """
    try:
        if require_intact(stored.address.storage, stored.file, stored.uri) is not None:
            return Checked(None, None)
        return Checked(stored.address.storage.within_deadline("read", stored.uri, partial(_digest, stored)), None)
    except DamagedBytes as error:
        return Checked(None, error.damage)
    except StorageUnavailable as error:
        return Checked(None, str(error), unread=True)


def _digest(stored: ExpectedFile) -> str:
    filesystem, path = stored.address.storage.filesystem(stored.uri)
    digest = hashlib.sha256()
    with filesystem.open_input_file(path) as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
            deadlines.progress()
    return digest.hexdigest()


def check_files(files: Sequence[ExpectedFile], workers: Workers | None = None) -> list[Checked]:
    """`check_bytes` of each file, in their order."""
    return (workers or ThreadWorkers(THREADS)).run(check_bytes, files, returns=Checked)


def torn_or_missing(address: ReplicaAddress, files: Iterable[DataFile]) -> dict[str, str]:
    """What a listing tells without opening a file: path -> what is wrong with it. Raises StorageUnavailable."""
    sizes = {entry.name: entry.size for entry in address.storage.list_files(address.uri)}
    found = {}
    for file in files:
        size = sizes.get(file.path)
        if size is None:
            found[file.path] = "the file is not there"
        elif size != file.size:
            found[file.path] = f"it has {size} bytes of {file.size}"
    return found


def outvoted(checked: Sequence[tuple[ExpectedFile, Checked]]) -> dict[int, str]:
    """Among good copies of one file with one size: numbers of those whose bytes differ from what most of them have.

    All of them where no bytes have most votes: then nobody knows which are right.
    """
    votes = Counter(found.digest for _, found in checked if found.digest is not None)
    if len(votes) <= 1:
        return {}
    (winner, most), (_, second) = votes.most_common(2)
    reason = "its bytes differ from those of the other replicas"
    return {
        number: reason
        for number, (_, found) in enumerate(checked)
        if found.digest is not None and (most == second or found.digest != winner)
    }


def heal(damaged: ExpectedFile, sources: Sequence[ReplicaAddress]) -> str | None:
    """Put the bytes of a good replica in a damaged file's place, whole or not at all; why not, when that fails."""
    obstacle = NO_GOOD_BYTES
    for source in sources:
        try:
            copy_data_file(file_copy(damaged.file, source, damaged.address))
        except (StorageUnavailable, WrongCluster) as error:
            obstacle = str(error)
            continue
        again = check_bytes(damaged)
        if again.damage is None:
            return None
        obstacle = f"the copy is damaged as well: {again.damage}"
    return obstacle
