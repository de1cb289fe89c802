"""Checkpoints of Delta tables: written when they are due, synced before anything relies on them, put aside when torn.

Delta-rs writes a checkpoint under its own name and does not sync it. Power that is cut before the sync here leaves a
torn one, which nobody can open the table over, although its commits are there and say as much. So nothing is deleted
that only a checkpoint stands for before that is synced (`sync_checkpoints`), and a torn one is put aside, as is one
that has rotted (`checkpoint_seals.py`, docs/decisions/020-durability.md).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Sequence
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from epochlake.metastore.checkpoint_seals import is_as_sealed, require_sound, rotten_checkpoint, seal
from epochlake.metastore.delta_commits import (
    CHECKPOINT,
    COMMIT,
    LAST_CHECKPOINT,
    LOG,
    CommitName,
    TornCommit,
    held_against,
    log_directory,
    pointed_at,
    require_whole_up_to,
)
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.storage.disk import Disk
from epochlake.metastore.storage.places import join, local_path
from epochlake.metastore.storage.storage import Storage

logger = logging.getLogger(__name__)


def checkpoint_if_due(
    storage: Storage, open_table: Callable[[], DeltaTable], uri: str, version: int, interval: int
) -> None:
    """After the commit of a version: every `interval` commits a checkpoint, synced and sealed. Nothing depends on it,
    so this does not fail. The handle is one of its own, and moved on. What has rotted is not built upon: delta-rs takes
    a commit that is empty by now for one without content, and the checkpoint would say so for ever.
    """
    if (version + 1) % interval or not storage.disk.is_shared:  # delta-rs writes it
        return

    def write() -> int:
        table = open_table()
        table.update_incremental()
        held = held_against({"id": table.metadata().id, "configuration": table.metadata().configuration})
        require_whole_up_to(storage, CommitName(uri, table.version(), held))
        table.create_checkpoint()
        sync_checkpoints(storage, uri)
        return table.version()

    try:
        if rotten_checkpoint(storage, uri) is not None:
            put_torn_aside(storage, uri)
        require_sound(storage, uri)
        seal(storage, uri, storage.within_deadline("write a checkpoint of", uri, write))
    except TornCommit as torn:
        logger.warning("no checkpoint of %s was written: %s", uri, torn)
    except StorageUnavailable as error:
        logger.info("no checkpoint of %s was written: %s", uri, error)


def sync_checkpoints(storage: Storage, table: str) -> None:
    """Sync the newest checkpoint: before the commits that it stands for are deleted. Raises StorageUnavailable."""
    directory = local_path(join(table, LOG))
    if directory is None:
        return

    def sync() -> None:
        names = sorted(name for name in storage.disk.names(directory) if CHECKPOINT.match(name))
        newest = [name for name in names if name[:20] == names[-1][:20]]
        pointer = [LAST_CHECKPOINT] if storage.disk.status(f"{directory}/{LAST_CHECKPOINT}") is not None else []
        storage.syncing.sync([f"{directory}/{name}" for name in (*newest, *pointer)], [directory])

    storage.within_deadline("sync the checkpoint of", table, sync)


def damaged_checkpoints(storage: Storage, table: str, known: Container[str] = ()) -> list[str]:
    """The names, in the log's directory at a local URI, of the checkpoints that cannot be read, or are `known` to be
    damaged, and of the pointer to a checkpoint that is not there: without them the table can be read, from its commits
    or an older checkpoint. Empty when nothing is damaged, and when commits are missing that only a damaged checkpoint
    stood for.
    """
    directory = log_directory(table)

    def look() -> list[str]:
        names = [name for name in storage.disk.names(directory) if CHECKPOINT.match(name)]
        damaged = [name for name in names if name in known or not _is_whole(storage.disk, f"{directory}/{name}")]
        whole = max((int(name[:20]) for name in names if name not in damaged), default=-1)
        commits = {int(match[1]) for name in storage.disk.names(directory) if (match := COMMIT.match(name))}
        if not commits or not commits.issuperset(range(whole + 1, max(commits) + 1)):
            return []
        pointed = pointed_at(storage.disk, directory)
        astray = pointed is not None and not any(int(name[:20]) == pointed for name in names if name not in damaged)
        return sorted([*damaged, *([LAST_CHECKPOINT] if astray else [])])

    return storage.within_deadline("look at the log of", table, look)


def put_aside(storage: Storage, table: str, names: Sequence[str], *, unless_whole: bool = False) -> None:
    """Give files of the log's directory names that nobody reads. Raises StorageUnavailable.

    `unless_whole`: a checkpoint that can be read after all gets its name again.
    """
    directory = log_directory(table)

    def rename() -> None:
        for name in names:
            path, aside = f"{directory}/{name}", f"{directory}/.{name}.torn-{time.time_ns()}"
            with suppress(FileNotFoundError):
                storage.disk.rename(path, aside)
                if unless_whole and CHECKPOINT.match(name) and _is_sound(storage.disk, directory, name, aside):
                    with suppress(FileExistsError):
                        storage.disk.link(aside, path)
        storage.syncing.sync(directories=[directory])

    storage.within_deadline("put aside checkpoints of", table, rename)


def put_torn_aside(storage: Storage, table: str) -> list[str]:
    """Put aside the checkpoints that keep a table from being opened, or have rotted, and are not needed, and a pointer
    that is astray; their names. Empty where there are none, and on object stores, where nothing is torn.

    For tables that need no operator for it. Where a whole checkpoint was written under the same name meanwhile, and it
    is that which was put aside, it gets its name again. Raises StorageUnavailable.
    """
    if local_path(table) is None or not storage.disk.is_shared:
        return []
    rotten = rotten_checkpoint(storage, table)
    names = damaged_checkpoints(storage, table, () if rotten is None else (rotten,))
    if names:
        put_aside(storage, table, names, unless_whole=True)
        logger.warning("%s: put aside in its log, torn or rotten, its commits say as much: %s", table, ", ".join(names))
    return names


def _is_sound(disk: Disk, directory: str, name: str, path: str) -> bool:
    """Whether a file can be read, and is what the digest of the checkpoint of that name says."""
    try:
        return _is_whole(disk, path) and is_as_sealed(disk, directory, name, path)
    except OSError:
        return False


def _is_whole(disk: Disk, path: str) -> bool:
    """Whether all of a checkpoint can be read."""
    try:
        with pq.ParquetFile(path, filesystem=disk.arrow) as file:
            for _ in file.iter_batches(use_threads=False):
                pass
    except (OSError, ValueError, pa.ArrowException):
        return False
    return True
