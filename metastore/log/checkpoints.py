"""The checkpoints of the log's Delta table: a bit that flips in one is found, though delta-rs reads over most of them.

Delta-rs writes no checksums into a checkpoint, so a digest of its bytes is kept beside it, by who has
written it (`checkpoint_seals.py`). Where there is none (an older version's, or a writer that was killed), the
checkpoint is compared with the commits that are still there: live files with their sizes and statistics, transactions,
protocol and metadata.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from epochlake.metastore import delta_checkpoints, delta_commits
from epochlake.metastore.checkpoint_seals import checkpoint_names, digest_beside, digest_of
from epochlake.metastore.storage import failures, places
from epochlake.metastore.storage.storage import Storage


class DamagedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint that is not what was written: the name of its file, and how that is known.

    `spare`: whether the commits, or an older checkpoint and the commits after it, say the same: `log heal` puts it
    aside then.
    """

    name: str
    how: str
    spare: bool

    def __str__(self) -> str:
        what_to_do = (
            "the commits that it stands for are whole: run `epochlake log heal`, which puts it aside"
            if self.spare
            else "commits that it stands for are gone: restore it from a copy of the log"
        )
        return f"the checkpoint {self.name} in the log's _delta_log {self.how}; {what_to_do}"


def damaged(storage: Storage, uri: str) -> list[DamagedCheckpoint]:
    """The checkpoints of the log that are not what was written. Raises StorageUnavailable."""
    if places.local_path(uri) is None:
        return []
    found = _damages(storage, uri)
    spare = delta_checkpoints.damaged_checkpoints(storage, uri, found) if found else []
    return [DamagedCheckpoint(name, how, name in spare) for name, how in found.items()]


def spare_files(storage: Storage, uri: str) -> list[str]:
    """The names of damaged checkpoints, and of a pointer that is astray, without which the log says the same. Raises
    StorageUnavailable.
    """
    return delta_checkpoints.damaged_checkpoints(storage, uri, _damages(storage, uri))


def _damages(storage: Storage, uri: str) -> dict[str, str]:
    directory = places.join(uri, delta_commits.LOG)
    return {
        name: how
        for name in checkpoint_names(storage, directory)
        if (how := damage_of(storage, f"{directory}/{name}")) is not None
    }


def damage_of(storage: Storage, path: str) -> str | None:
    """How a checkpoint is damaged; None when nothing is seen. Raises StorageUnavailable."""
    directory, name = os.path.split(path)
    try:
        data = storage.read_bytes(path)
    except failures.MissingFile:
        return None
    try:
        said = _state_in(data)
    except _Unreadable as error:
        return f"cannot be read ({error})"
    known = digest_beside(storage, directory, name)
    if known is not None:
        return None if known == digest_of(data) else "is not what was written: its digest is another one"
    return _contradiction(storage, directory, name, said)


class _Unreadable(Exception):
    pass


class _State:
    """What a table is, as a checkpoint or commits say."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[int, Any]] = {}
        self.removed: set[str] = set()
        self.transactions: dict[str, int] = {}
        self.protocol: tuple[Any, ...] | None = None
        self.metadata: tuple[Any, ...] | None = None

    def apply(self, lines: Iterable[dict[str, Any]]) -> None:
        for line in lines:
            if add := line.get("add"):
                self.files[unquote(add["path"])] = (add["size"], json.loads(add.get("stats") or "{}"))
                self.removed.discard(unquote(add["path"]))
            if remove := line.get("remove"):
                self.files.pop(unquote(remove["path"]), None)
                self.removed.add(unquote(remove["path"]))
            if txn := line.get("txn"):
                self.transactions[txn["appId"]] = txn["version"]
            if protocol := line.get("protocol"):
                names = ("minReaderVersion", "minWriterVersion")
                self.protocol = tuple(protocol[name] for name in names)
            if metadata := line.get("metaData"):
                settings = dict(metadata.get("configuration") or {})
                columns = list(metadata.get("partitionColumns") or [])
                self.metadata = (metadata["id"], json.loads(metadata["schemaString"]), columns, settings)


def _state_in(data: bytes) -> _State:
    state = _State()
    try:
        with pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True) as file:
            rows = file.read(use_threads=False).to_pylist()
        # A checkpoint's order says nothing: what it names as removed is not live.
        state.apply({name: row[name] for name in row if name != "remove"} for row in rows)
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError, ArithmeticError, MemoryError) as error:
        raise _Unreadable(f"{type(error).__name__}") from error
    return state


def _contradiction(storage: Storage, directory: str, name: str, said: _State) -> str | None:
    """What the commits say otherwise; an older checkpoint and the commits after it say as much as all of them."""
    version = int(name[:20])
    base = _State()
    first = version + 1
    commits: list[list[dict[str, Any]]] = []
    older = {int(other[:20]): other for other in checkpoint_names(storage, directory) if int(other[:20]) < version}
    complete = False
    while first > 0 and (lines := _commit(storage, directory, first - 1)) is not None:
        commits.append(lines)
        first -= 1
        if first - 1 in older and (base_data := _whole(storage, f"{directory}/{older[first - 1]}")) is not None:
            base, complete = base_data, True
            break
    complete = complete or first == 0
    for lines in reversed(commits):
        base.apply(lines)
    for path, what in base.files.items():
        if said.files.get(path) != what:
            return f"says otherwise than the commits about the file {path}"
    if base.removed & said.files.keys() or (complete and said.files.keys() != base.files.keys()):
        return "names files that the commits do not name"
    for application, number in base.transactions.items():
        if said.transactions.get(application) != number:
            return f"says otherwise than the commits about the transaction {application!r}"
    if base.protocol is not None and said.protocol != base.protocol:
        return "says otherwise than the commits about the table's protocol"
    if base.metadata is not None and said.metadata != base.metadata:
        return "says otherwise than the commits about the table's metadata"
    return None


def _whole(storage: Storage, path: str) -> _State | None:
    """What an older checkpoint says, if its digest vouches for it."""
    directory, name = os.path.split(path)
    try:
        data = storage.read_bytes(path)
        return _state_in(data) if digest_beside(storage, directory, name) == digest_of(data) else None
    except (failures.MissingFile, _Unreadable):
        return None


def _commit(storage: Storage, directory: str, version: int) -> list[dict[str, Any]] | None:
    """The lines of a whole commit; None when it is not there, or torn."""
    table = directory.removesuffix(f"/{delta_commits.LOG}")
    try:
        return [dict(line) for line in delta_commits.read_commit(storage, delta_commits.CommitName(table, version))]
    except (failures.MissingFile, delta_commits.TornCommit, ValueError):
        return None
