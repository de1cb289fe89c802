"""Deleting files that nobody can need any more: dropped, replaced, or staged and never committed.

Age alone deletes nothing. A file goes when the newest snapshot does not have it, when it was taken out
before the oldest live pipeline began (the log's tombstones say when), and when it was stored before that as well (a
pipeline that began later may be about to commit it). What is stored under an old name again, a copy that is repeated or
a piece that is cut again, counts as new: that is looked at once more just before the file goes.

A lease can be missing, and a process be paused for longer than any margin, so neither is what safety rests on. What is
to go is set aside under another name first. Then the table is changed, which fails every commit that looked at it
before; one that looks after that finds the file missing (stored.py). Only then is it deleted. What turns out to have
been committed in between is put back. So of vacuum and a late commit one gives way, whoever is paused where.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Sequence

import msgspec
import pyarrow.parquet as pq
from epochlake.jobs.replicas.fences import change_properties
from epochlake.jobs.replicas.files import id_in
from epochlake.jobs.replicas.ledger import Ledger
from epochlake.jobs.replicas.replica import (
    TOMBSTONE_RETENTION_SECONDS,
    ReplicaAddress,
    ReplicaSnapshot,
    attempts,
    open_snapshot,
)
from epochlake.metastore import checkpoint_seals, delta_checkpoints
from epochlake.metastore.metadata.model import Table
from epochlake.metastore.storage import places
from epochlake.metastore.storage.storage import FileEntry
from epochlake.placement.tokens import TABLET

VACUUMED = "epochlake.vacuumed"
"""The property that a vacuum changes before it deletes anything."""

ASIDE = f"{places.TEMPORARY}vacuum-"
"""Part of the name of a file that is about to be deleted."""

CLOCK_MARGIN_MS = 300_000
"""How far the clocks of drivers, executors and storage may be apart, unless `clock_margin_ms` says otherwise."""


class Vacuumed(msgspec.Struct, frozen=True):
    """What was deleted; `kept_for_leases` files are out of the snapshot but may still be read or committed, and
    `kept_for_history` of `history_size` bytes are what reads as of an earlier time need.
    """

    files: int
    size: int
    kept_for_leases: int
    kept_for_history: int = 0
    history_size: int = 0


class Unused(msgspec.Struct, frozen=True):
    """Files that the newest snapshot does not have: those that nobody can need, and how many may still be needed.

    `allowed`: whether anything may be deleted there now, old log files included.
    """

    snapshot: ReplicaSnapshot
    allowed: bool
    deletable: tuple[FileEntry, ...]
    kept: int
    history: tuple[FileEntry, ...] = ()


def unused_files(
    address: ReplicaAddress,
    keep_newer_than_ms: int,
    *,
    clock_margin_ms: int | None = None,
    history: Collection[str] = (),
) -> Unused:
    """What `vacuum` would delete; changes nothing. Raises StorageUnavailable."""
    cutoff = keep_newer_than_ms - (CLOCK_MARGIN_MS if clock_margin_ms is None else clock_margin_ms)
    now = time.time_ns() // 1_000_000
    listed = [entry for entry in address.storage.list_files(address.uri) if _is_data(entry.name)]
    snapshot = open_snapshot(address)
    live = {file.path for file in snapshot.all_files.values()}
    out = [entry for entry in listed if entry.name not in live]
    past: list[FileEntry] = []
    unused: list[FileEntry] = []
    for entry in out:
        (past if id_in(entry.name).partition(".")[0] in history else unused).append(entry)
    if snapshot.sessions or cutoff < now - TOMBSTONE_RETENTION_SECONDS * 1000:
        return Unused(snapshot, False, (), len(unused), tuple(past))
    removed_at = removal_times(address)
    old = [entry for entry in unused if max(entry.modified_ms, removed_at.get(entry.name, 0)) < cutoff]
    return Unused(snapshot, True, tuple(old), len(unused) - len(old), tuple(past))


def vacuum(
    address: ReplicaAddress,
    keep_newer_than_ms: int,
    *,
    clock_margin_ms: int | None = None,
    history: Collection[str] = (),
) -> Vacuumed:
    """Delete what no live lease can need, and old log files.

    `keep_newer_than_ms`: when the oldest live pipeline or coordinator began, Unix epoch milliseconds; now when there is
    none. `history`: origins whose files stay, as `kept_origins` names them. Nothing is deleted while a session is open
    at the replica (what it streams is committed later, and may use files that lie there already), nor when the oldest
    lease began before the log's memory of removed files. Raises StorageUnavailable.
    """
    _put_back_what_is_live(address)
    found = unused_files(address, keep_newer_than_ms, clock_margin_ms=clock_margin_ms, history=history)
    deleted = _delete(address, found.deletable)
    if checkpoint_seals.rotten_checkpoint(address.storage, address.uri) is not None:
        delta_checkpoints.put_torn_aside(address.storage, address.uri)
    if found.allowed:
        # What is deleted then is only in the checkpoint: it is what was written, and on the disk.
        checkpoint_seals.require_sound(address.storage, address.uri)
        delta_checkpoints.sync_checkpoints(address.storage, address.uri)
        snapshot = open_snapshot(address)

        def clean() -> None:
            snapshot.delta_table().cleanup_metadata()

        address.storage.within_deadline("clean the log of", address.uri, clean)
    kept = found.kept + len(found.deletable) - len(deleted)
    past = sum(entry.size for entry in found.history)
    return Vacuumed(len(deleted), sum(entry.size for entry in deleted), kept, len(found.history), past)


def kept_origins(ledger: Ledger, table: Table, now_us: int) -> frozenset[str]:
    """The origins of files that compaction has replaced within the time for which a table keeps its history.

    Reads as of a time before that need them. `now_us` in microseconds since 1970. Raises StorageUnavailable.
    """
    seconds = table.keeps_history_seconds
    if not seconds:
        return frozenset()
    since = now_us - int(seconds * 1_000_000)
    young = [merge for merge in ledger.merges(table.table_id).values() if merge.at >= since]
    return frozenset(one.origin for merge in young for one in merge.replaced)


def _delete(address: ReplicaAddress, entries: Sequence[FileEntry]) -> list[FileEntry]:
    """Delete files that no commit can name any more; those that were. Raises StorageUnavailable."""
    if places.local_path(address.uri) is None:
        return [entry for entry in entries if _is_unchanged(address, entry) and _delete_file(address, entry.name)]
    aside: dict[str, FileEntry] = {}
    for entry in entries:
        name = _name_aside(entry.name)
        if _is_unchanged(address, entry) and address.storage.move_file(_uri(address, entry.name), _uri(address, name)):
            aside[name] = entry
    if aside and not _fail_those_who_looked(address, aside):
        for name, entry in aside.items():
            _put_back(address, name, entry.name)
        return []
    return [entry for name, entry in aside.items() if _delete_file(address, name)]


def _fail_those_who_looked(address: ReplicaAddress, aside: dict[str, FileEntry]) -> bool:
    """Change the table, so that every commit that looked at it before fails; whether nothing stands against deleting.

    What has been committed meanwhile is put back, and is not aside any more.
    """
    for _ in attempts():
        snapshot = open_snapshot(address)
        if snapshot.sessions:
            return False
        live = {file.path for file in snapshot.all_files.values()}
        for name in [name for name, entry in aside.items() if _original(entry.name) in live]:
            _put_back(address, name, _original(aside.pop(name).name))
        if change_properties(snapshot, {VACUUMED: str(uuid.uuid4())}):
            return True
    return False


def _put_back_what_is_live(address: ReplicaAddress) -> None:
    """What a vacuum that was killed has set aside, and is live."""
    aside = [entry.name for entry in address.storage.list_files(address.uri) if ASIDE in entry.name]
    if not aside:
        return
    live = {file.path for file in open_snapshot(address).all_files.values()}
    for name in aside:
        if _original(name) in live:
            _put_back(address, name, _original(name))


def _put_back(address: ReplicaAddress, name: str, original: str) -> None:
    """Unless it was stored again meanwhile, which is as good."""
    linked = address.storage.hard_link(_uri(address, name), _uri(address, original))
    if not linked and not address.storage.exists(_uri(address, original)):
        address.storage.move_file(_uri(address, name), _uri(address, original))
    address.storage.sync_data(directories=[_uri(address, original).rpartition("/")[0]])
    address.storage.delete_file(_uri(address, name))


def _name_aside(name: str) -> str:
    directory, _, file = name.rpartition("/")
    return f"{directory}/.{file}{ASIDE}{uuid.uuid4().hex}"


def _original(name: str) -> str:
    """What a file was called before it was set aside, by any vacuum; its own name when it was not."""
    directory, _, file = name.rpartition("/")
    while ASIDE in file:
        file = file[1:].rpartition(ASIDE)[0]
    return f"{directory}/{file}"


def _is_unchanged(address: ReplicaAddress, entry: FileEntry) -> bool:
    return address.storage.modified_ms(_uri(address, entry.name)) == entry.modified_ms


def _delete_file(address: ReplicaAddress, name: str) -> bool:
    return address.storage.delete_file(_uri(address, name))


def _uri(address: ReplicaAddress, name: str) -> str:
    return places.join(address.uri, name)


def removal_times(address: ReplicaAddress) -> dict[str, int]:
    """When each file that the log still remembers was last removed: path -> Unix epoch milliseconds.

    Read from the newest checkpoint and the commits after it; delta-rs does not show its tombstones.
    """
    return address.storage.within_deadline("read the log of", address.uri, lambda: _removal_times(address))


def _removal_times(address: ReplicaAddress) -> dict[str, int]:
    log = places.join(address.uri, "_delta_log")
    names = [entry.name for entry in address.storage.list_files(log) if places.TEMPORARY not in entry.name]
    checkpoints = sorted(name for name in names if ".checkpoint." in name and name.endswith(".parquet"))
    newest = checkpoints[-1][:20] if checkpoints else ""
    times: dict[str, int] = {}
    for name in (name for name in checkpoints if name.startswith(newest)):
        filesystem, path = address.storage.filesystem(places.join(log, name))
        with pq.ParquetFile(path, filesystem=filesystem) as file:
            removes = file.read(columns=["remove"], use_threads=False)["remove"]
        for remove in removes.drop_null().to_pylist():
            times[remove["path"]] = remove["deletionTimestamp"] or 0
    for name in sorted(names):
        if name.endswith(".json") and "/" not in name and name[:20] > newest:
            for line in address.storage.read_bytes(places.join(log, name)).splitlines():
                remove = json.loads(line).get("remove")
                if remove:
                    times[remove["path"]] = remove.get("deletionTimestamp") or 0
    return times


def _is_data(name: str) -> bool:
    """A data file, or the leftover of one that was being copied when its process died."""
    return name.startswith(f"{TABLET}=") and (name.endswith(".parquet") or places.TEMPORARY in name)
