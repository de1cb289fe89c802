"""Deleting files that nobody can need any more: dropped, replaced, or staged and never committed.

The one idea: age alone deletes nothing. A file goes when the newest snapshot does not have it, when it was taken out
before the oldest live pipeline began (the log's tombstones say when), and when it was stored before that as well (a
pipeline that began later may be about to commit it). What is stored under an old name again, a copy that is repeated or
a piece that is cut again, counts as new: that is looked at once more just before the file goes.
"""

from __future__ import annotations

import json
import time

import msgspec
import pyarrow.parquet as pq
from epochlake.jobs.dataplane.replica import (
    TOMBSTONE_RETENTION_SECONDS,
    ReplicaAddress,
    ReplicaSnapshot,
    open_snapshot,
)
from epochlake.metastore import storage
from epochlake.placement.tokens import TABLET

CLOCK_MARGIN_MS = 300_000
"""How far the clocks of drivers, executors and storage may be apart."""


class Vacuumed(msgspec.Struct, frozen=True):
    """What was deleted; `kept_for_leases` files are out of the snapshot but may still be read or committed."""

    files: int
    size: int
    kept_for_leases: int


class Unused(msgspec.Struct, frozen=True):
    """Files that the newest snapshot does not have: those that nobody can need, and how many may still be needed.

    `allowed`: whether anything may be deleted there now, old log files included.
    """

    snapshot: ReplicaSnapshot
    allowed: bool
    deletable: tuple[storage.FileEntry, ...]
    kept: int


def unused_files(address: ReplicaAddress, keep_newer_than_ms: int, *, clock_margin_ms: int = CLOCK_MARGIN_MS) -> Unused:
    """What `vacuum` would delete; changes nothing. Raises StorageUnavailable."""
    cutoff = keep_newer_than_ms - clock_margin_ms
    now = time.time_ns() // 1_000_000
    listed = [entry for entry in storage.list_files(address.uri) if _is_data(entry.name)]
    snapshot = open_snapshot(address)
    live = {file.path for file in snapshot.all_files.values()}
    unused = [entry for entry in listed if entry.name not in live]
    if snapshot.sessions or cutoff < now - TOMBSTONE_RETENTION_SECONDS * 1000:
        return Unused(snapshot, False, (), len(unused))
    removed_at = removal_times(address)
    old = [entry for entry in unused if max(entry.modified_ms, removed_at.get(entry.name, 0)) < cutoff]
    return Unused(snapshot, True, tuple(old), len(unused) - len(old))


def vacuum(address: ReplicaAddress, keep_newer_than_ms: int, *, clock_margin_ms: int = CLOCK_MARGIN_MS) -> Vacuumed:
    """Delete what no live lease can need, and old log files.

    `keep_newer_than_ms`: when the oldest live pipeline or coordinator began, Unix epoch milliseconds; now when there is
    none. Nothing is deleted while a session is open at the replica (what it streams is committed later, and may use
    files that lie there already), nor when the oldest lease began before the log's memory of removed files. Raises
    StorageUnavailable.
    """
    found = unused_files(address, keep_newer_than_ms, clock_margin_ms=clock_margin_ms)
    deleted = []
    for entry in found.deletable:
        uri = storage.join(address.uri, entry.name)
        if storage.modified_ms(uri) == entry.modified_ms and storage.delete_file(uri):
            deleted.append(entry)
    if found.allowed:
        with storage.naming("clean the log of", address.uri):
            found.snapshot.delta_table().cleanup_metadata()
    kept = found.kept + len(found.deletable) - len(deleted)
    return Vacuumed(len(deleted), sum(entry.size for entry in deleted), kept)


def removal_times(address: ReplicaAddress) -> dict[str, int]:
    """When each file that the log still remembers was last removed: path -> Unix epoch milliseconds.

    Read from the newest checkpoint and the commits after it; delta-rs does not show its tombstones.
    """
    log = storage.join(address.uri, "_delta_log")
    names = [entry.name for entry in storage.list_files(log)]
    checkpoints = sorted(name for name in names if ".checkpoint." in name and name.endswith(".parquet"))
    newest = checkpoints[-1][:20] if checkpoints else ""
    times: dict[str, int] = {}
    try:
        for name in (name for name in checkpoints if name.startswith(newest)):
            filesystem, path = storage.filesystem(storage.join(log, name))
            removes = pq.read_table(path, filesystem=filesystem, columns=["remove"])["remove"]
            for remove in removes.drop_null().to_pylist():
                times[remove["path"]] = remove["deletionTimestamp"] or 0
        for name in sorted(names):
            if name.endswith(".json") and "/" not in name and name[:20] > newest:
                for line in storage.read_bytes(storage.join(log, name)).splitlines():
                    remove = json.loads(line).get("remove")
                    if remove:
                        times[remove["path"]] = remove.get("deletionTimestamp") or 0
    except storage.STORAGE_ERRORS as error:
        raise storage.unavailable("read the log of", address.uri, error) from error
    return times


def _is_data(name: str) -> bool:
    """A data file, or the leftover of one that was being copied when its process died."""
    return name.startswith(f"{TABLET}=") and (name.endswith(".parquet") or storage.TEMPORARY in name)
