"""A digest beside each checkpoint of a Delta table, by who has written it: delta-rs reads over most bits that flip.

Delta-rs writes no checksums into a checkpoint: of 1,500 flipped bits 974 changed nothing that it reads, 452 kept the
table from being opened, and 74 gave other live files without an error. So whatever reads or builds upon one compares
its bytes first (docs/decisions/020-durability.md). One without a digest is taken as it is: an older version's, or that
of a writer who was killed before it had one.
"""

from __future__ import annotations

import hashlib
import logging
import re

from epochlake.metastore.delta_commits import log_directory
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.storage import failures
from epochlake.metastore.storage.disk import Disk
from epochlake.metastore.storage.places import local_path
from epochlake.metastore.storage.storage import Storage

logger = logging.getLogger(__name__)

_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet\Z")
_DIGEST = ".sha256"


def seal(storage: Storage, table: str, version: int) -> None:
    """Keep the digest of the checkpoint that was written after a version. Nothing depends on it: this does not fail.

    A newer one without a digest gets one as well. One that has a digest keeps it: it may have rotted since.
    """
    if local_path(table) is None:
        return
    directory = log_directory(table)
    try:
        names = checkpoint_names(storage, directory)
        for name in names:
            number = int(name[:20])
            if number == version or (number > version and digest_beside(storage, directory, name) is None):
                digest = digest_of(storage.read_bytes(f"{directory}/{name}"))
                storage.replace_bytes(_beside(directory, name), digest.encode())
        left = {f".{name}{_DIGEST}" for name in names}
        for name in storage.list_names(directory):
            if name.endswith(f".parquet{_DIGEST}") and name not in left:
                storage.delete_file(f"{directory}/{name}")
    except StorageUnavailable as error:
        logger.info("no digest of the checkpoint of %s was kept: %s", table, error)


def require_sound(storage: Storage, table: str) -> None:
    """That the newest checkpoint of a table at a local URI, by which it is going to be read, is what was written.

    Raises StorageDamaged, StorageUnavailable.
    """
    if (name := rotten_checkpoint(storage, table)) is not None:
        raise failures.StorageDamaged(
            f"the checkpoint {name} in the _delta_log of {table} is not what was written: its digest is another one",
            hint="If this table is a replica, replace its node (`epochlake node replace`), or restore that file from "
            "a copy; its rows lie on the other replicas",
        )


def rotten_checkpoint(storage: Storage, table: str) -> str | None:
    """The name of the newest checkpoint of a table if its digest says that it has changed since it was written.

    None where nothing is seen, and where delta-rs does not look: in object stores. Raises StorageUnavailable.
    """
    if local_path(table) is None or not storage.disk.is_shared:
        return None
    directory = log_directory(table)
    try:
        names = checkpoint_names(storage, directory)
        if not names or (known := digest_beside(storage, directory, names[-1])) is None:
            return None
        return None if digest_of(storage.read_bytes(f"{directory}/{names[-1]}")) == known else names[-1]
    except failures.MissingFile:  # no table, or clean-up has been there
        return None


def is_as_sealed(disk: Disk, directory: str, name: str, path: str) -> bool:
    """Whether the file at a path is what the digest of the checkpoint of that name says; True where there is none.

    A step on the disk, without a deadline of its own. Raises OSError.
    """
    try:
        known = disk.read(_beside(directory, name)).decode(errors="replace").strip()
    except FileNotFoundError:
        return True
    return not known or digest_of(disk.read(path)) == known


def checkpoint_names(storage: Storage, directory: str) -> list[str]:
    """The names of the checkpoints in a log's directory, the oldest first. Raises StorageUnavailable."""
    return sorted(name for name in storage.list_names(directory) if _CHECKPOINT.match(name))


def digest_beside(storage: Storage, directory: str, name: str) -> str | None:
    """The digest that is kept of a checkpoint, if there is one. Raises StorageUnavailable."""
    try:
        return storage.read_bytes(_beside(directory, name)).decode(errors="replace").strip() or None
    except failures.MissingFile:
        return None


def digest_of(data: bytes) -> str:
    """The digest of a checkpoint's bytes."""
    return hashlib.sha256(data).hexdigest()


def _beside(directory: str, name: str) -> str:
    return f"{directory}/.{name}{_DIGEST}"
