"""Deleting what lies at the root for change streams and merges that nobody can need any more.

Four kinds of it: all of a table that was dropped and can be restored no more; the index of a stream that has ended;
and in the index of a stream that goes on, copies of files that no entry and no intent names, as a writer has stored
them that failed before it could land, and entries that were made ready by a writer that died. What is young stays: it
may be of somebody who is about to name it. Who was paused for longer finds his copies missing, and makes them again
from the replicas (change_recording.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from epochlake.jobs.replicas.change_index import ChangeIndex
from epochlake.jobs.replicas.change_intents import Intents
from epochlake.jobs.upkeep.clearing import Cleared
from epochlake.jobs.upkeep.vacuum import CLOCK_MARGIN_MS
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import TableId
from epochlake.metastore.storage import failures, places
from epochlake.metastore.storage.storage import FileEntry, Storage

if TYPE_CHECKING:
    from epochlake.jobs.replicas.store import Store


def sweep_root(
    cluster: Store,
    metadata: ClusterMetadata,
    dropped: Collection[TableId],
    keep_newer_than_ms: int,
    *,
    dry_run: bool = False,
    clock_margin_ms: int = CLOCK_MARGIN_MS,
) -> Cleared:
    """Delete, or with `dry_run` count, what nobody can need any more below the root. Raises StorageUnavailable.

    `dropped`: tables that the log says can be restored no more. `keep_newer_than_ms`: as for `vacuum`. Only on file
    systems: elsewhere there are no streams.
    """
    storage, cutoff = cluster.storage, keep_newer_than_ms - clock_margin_ms
    files: list[tuple[str, FileEntry]] = []
    trees: list[str] = []
    if places.local_path(cluster.root.uri) is None:
        return Cleared()
    for place in (cluster.root.changes, cluster.root.merges):
        for table_id in sorted(dropped):
            trees.append(places.join(place, table_id))
            files += _below(storage, trees[-1])
    for table_id in _names(storage, cluster.root.changes):
        if table_id in dropped:
            continue
        stream = metadata.change_streams.get(table_id)
        for stream_id in _names(storage, places.join(cluster.root.changes, table_id)):
            if stream is not None and stream.stream_id == stream_id:
                index = cluster.change_indexes.of(stream)
                files += [(index.data_directory, entry) for entry in _unnamed(storage, index, cutoff)]
                files += [(index.log_directory, entry) for entry in _unfinished(storage, index, cutoff)]
                continue
            ended = places.join(cluster.root.changes, table_id, stream_id)
            there = list(_below(storage, ended))
            if all(entry.modified_ms < cutoff for _, entry in there):
                trees.append(ended)
                files += there
    if not dry_run:
        for place, entry in files:
            storage.delete_file(places.join(place, entry.name))
        for tree in trees:
            _delete_rest(storage, tree)
    return Cleared(len(files), sum(entry.size for _, entry in files))


def _unnamed(storage: Storage, index: ChangeIndex, cutoff: int) -> Iterator[FileEntry]:
    """Old files of an index that no entry and no intent names."""
    # In this order: whatever is stored later is young, and an intent that is taken away meanwhile is in the index.
    listed = [entry for _, entry in _below(storage, index.data_directory) if entry.modified_ms < cutoff]
    if not listed:
        return
    named = {staged.file.file_id for intent in Intents(storage, index).all() for staged in intent.files}
    tail = index.tail().position
    named |= {file.file_id for entry in index.entries(index.floor(), tail) for file in entry.files}
    yield from (entry for entry in listed if entry.name.removesuffix(".parquet") not in named)


def _unfinished(storage: Storage, index: ChangeIndex, cutoff: int) -> Iterator[FileEntry]:
    """Old bytes of commits that never got their names, of processes that died. Who was paused appends others."""
    below = _below(storage, index.log_directory)
    yield from (entry for _, entry in below if places.TEMPORARY in entry.name and entry.modified_ms < cutoff)


def _below(storage: Storage, place: str) -> Iterator[tuple[str, FileEntry]]:
    try:
        yield from ((place, entry) for entry in storage.list_files(place))
    except failures.MissingFile:
        return


def _names(storage: Storage, place: str) -> list[str]:
    try:
        return sorted(storage.list_names(place))
    except failures.MissingFile:
        return []


def _delete_rest(storage: Storage, place: str) -> None:
    """Delete the directories of a tree whose files are deleted."""
    path = places.require_local(place)
    if storage.exists(place):
        storage.within_deadline("delete", place, lambda: storage.delete_tree(path))
