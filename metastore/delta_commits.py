"""Commits of Delta tables on file systems: put whole and on the disk, or not at all; and torn ones are found.

Delta-rs makes a commit visible and never syncs it, so after a power cut the commit file may be empty, and
an empty file counts as a commit without content. On a file system a commit is therefore put here: its bytes are on the
disk before the file gets its name, the name is on the disk before anybody is told, and of two who want one version one
gets it. That is Delta's protocol for file systems; on object stores delta-rs commits by conditional puts.

Whoever looks at a table syncs the newest commit before anything is built on it (`sync_commits`): another process may
have put it and not have come to its sync. So no commit ever survives one before it.

Commits that others have made, or that were made before this rule, may be torn: `require_whole` names them
(docs/decisions/020-durability.md).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import time
import uuid
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from epochlake.metastore import deadlines, storage, syncing
from epochlake.metastore.errors import StorageUnavailable

logger = logging.getLogger(__name__)

LOG = "_delta_log"
LINES = "epochlakeLines"
"""In a commit's information: how many lines it has. One that ends early is known by it."""

DIGEST = "epochlakeDigest"
"""In a commit's information: a SHA-256 of its other lines. A flipped bit could take a file out of the table."""

GIVEN_UP = b"given up by `epochlake log accept-loss`: what came after it was put aside\n"
"""In place of a commit: a loss is being accepted from here on. It never becomes a commit without content."""

ACCEPTED = "was given up by `epochlake log accept-loss`, which did not come to its end"
"""How a commit with these bytes is torn."""

LOOK_AHEAD = 10
"""So many commits after the one that is missing are looked for before it is taken for the next one. No table has its
checkpoints further apart, but for the log of epochs, where the chain of hashes tells."""

Action = Mapping[str, object]

_COMMIT = re.compile(r"(\d{20})\.json\Z")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\..*\.?parquet\Z")
_LAST_CHECKPOINT = "_last_checkpoint"

_synced: dict[str, tuple[int, int, int]] = {}
"""By log directory: the newest commit that this process has synced, with what tells its file from another one."""


class TornCommit(storage.StorageDamaged):
    """A commit file is empty, ends early or is missing between others, as after a power cut. Retrying does not help.

    `version`: of the commit; `table`: the URI of its table; `how`: what is wrong.
    """

    def __init__(self, table: str, version: int, how: str) -> None:
        super().__init__(
            f"commit {version} of the table {table} {how}, as after a power cut or damage of the disk: nothing is read "
            f"or written there, so that nothing is counted over it"
        )
        self.table = table
        self.version = version
        self.how = how


def commit_uri(table: str, version: int) -> str:
    return storage.join(table, LOG, f"{version:020}.json")


def put_commit(
    table: str,
    version: int,
    operation: str,
    actions: Sequence[Action],
    files: Sequence[str] = (),
) -> bool:
    """Commit `actions` as exactly this version of the table at a local URI; False when there is that version already.

    The actions' files must be on the disk; those among `files`, by their URIs, are synced with the commit's own bytes,
    in one group, before the commit gets its name. True: the commit is there, whole, and on the disk. Raises
    StorageUnavailable when that cannot be told: look at the table then.
    TornCommit where there are later versions, as what lay there was committed, and is lost: no hole is filled.
    """
    if version:
        sync_commits(table, version - 1)
    return _put(table, version, operation, actions, syncing.sync, files)


def put_replicated_commit(table: str, version: int, operation: str, actions: Sequence[Action]) -> bool:
    """`put_commit` for what other replicas have as well: not synced where `durability` relies on them."""
    return _put(table, version, operation, actions, syncing.sync_replicated, ())


def _put(
    table: str,
    version: int,
    operation: str,
    actions: Sequence[Action],
    sync: syncing.Sync,
    files: Sequence[str],
) -> bool:
    uri = commit_uri(table, version)
    path = storage.local_path(uri)
    assert path is not None, f"{table} is on no file system"
    data = encoded(operation, actions)
    directory = os.path.dirname(path)
    named = [local for file in files if (local := storage.local_path(file)) is not None]

    def put() -> bool:
        temporary = f"{directory}/.{version}{storage.TEMPORARY}{uuid.uuid4().hex}"
        try:
            with open(temporary, "xb") as file:
                file.write(data)
            sync([temporary, *named], [os.path.dirname(one) for one in named])
            # In this order: others who commit this version and the next one meanwhile leave no hole.
            if _is_hole(directory, version) and not os.path.exists(path):
                raise TornCommit(table, version, "is missing, and later ones are there")
            deadlines.progress()  # nobody is told of a commit that nobody waits for any more: better none
            try:
                os.link(temporary, path)
            except FileExistsError:
                # A network file system may answer so to its own retry.
                if not os.path.samefile(temporary, path):
                    return False
        finally:
            with suppress(OSError):
                os.unlink(temporary)
        sync(directories=[directory])
        return True

    if not storage.within_deadline("commit to", uri, put):
        return False
    if sync is syncing.sync or syncing.durability() == syncing.FSYNC:
        _remember(directory, version)
    return True


def encoded(operation: str, actions: Sequence[Action]) -> bytes:
    """The bytes of a commit file."""
    lines = [json.dumps(action, separators=(",", ":")).encode() for action in actions]
    information = {"commitInfo": _information(operation, lines)}
    return b"\n".join([json.dumps(information, separators=(",", ":")).encode(), *lines]) + b"\n"


def torn_commits(table: str) -> list[TornCommit]:
    """The commits after the newest checkpoint, at a local URI, that are not whole, by version. Raises
    StorageUnavailable.
    """
    directory = storage.local_path(storage.join(table, LOG))
    assert directory is not None, f"{table} is on no file system"

    def look() -> list[TornCommit]:
        versions, checkpoint = _listed(directory)
        torn = []
        for version in range(checkpoint + 1, max(versions, default=-1) + 1):
            try:
                _look_at(table, directory, version)
            except TornCommit as found:
                torn.append(found)
        return torn

    return storage.within_deadline("look at the log of", table, look)


def damaged_checkpoints(table: str, known: Container[str] = ()) -> list[str]:
    """The names, in the log's directory at a local URI, of the checkpoints that cannot be read, or are `known` to be
    damaged, and of the pointer to a checkpoint that is not there: without them the table can be read, from its commits
    or an older checkpoint. Empty when nothing is damaged, and when commits are missing that only a damaged checkpoint
    stood for.
    """
    directory = storage.local_path(storage.join(table, LOG))
    assert directory is not None, f"{table} is on no file system"

    def look() -> list[str]:
        names = [name for name in os.listdir(directory) if _CHECKPOINT.match(name)]
        damaged = [name for name in names if name in known or not _is_parquet(f"{directory}/{name}")]
        whole = max((int(name[:20]) for name in names if name not in damaged), default=-1)
        commits = {int(match[1]) for name in os.listdir(directory) if (match := _COMMIT.match(name))}
        if not commits or not commits.issuperset(range(whole + 1, max(commits) + 1)):
            return []
        pointed = pointed_at(directory)
        astray = pointed is not None and not any(int(name[:20]) == pointed for name in names if name not in damaged)
        return sorted([*damaged, *([_LAST_CHECKPOINT] if astray else [])])

    return storage.within_deadline("look at the log of", table, look)


def put_aside(table: str, names: Sequence[str]) -> None:
    """Give files of the log's directory names that nobody reads. Raises StorageUnavailable."""
    directory = storage.local_path(storage.join(table, LOG))
    assert directory is not None, f"{table} is on no file system"

    def rename() -> None:
        for name in names:
            with suppress(FileNotFoundError):
                os.rename(f"{directory}/{name}", f"{directory}/.{name}.torn-{time.time_ns()}")
        syncing.sync_directory(directory)

    storage.within_deadline("put aside checkpoints of", table, rename)


def _is_parquet(path: str) -> bool:
    try:
        pq.ParquetFile(path).close()
    except (OSError, pa.ArrowException):
        return False
    return True


def pointed_at(directory: str) -> int | None:
    """The version of the newest checkpoint, as the pointer says; -1 for one that cannot be read, None without one."""
    try:
        with open(f"{directory}/{_LAST_CHECKPOINT}", "rb") as file:
            return int(json.loads(file.read())["version"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return -1


def newest_version(table: str) -> int:
    """The newest commit at a local URI, torn or not; -1 when there is none."""
    directory = storage.local_path(storage.join(table, LOG))
    assert directory is not None, f"{table} is on no file system"
    return storage.within_deadline("look at the log of", table, lambda: max(_listed(directory)[0], default=-1))


def between(table: str, after: int) -> tuple[int, list[Action]] | None:
    """The newest version, and what the commits after a version have done, in order. Synced, to be built upon.

    None when one of them cannot be read any more. Raises StorageUnavailable, TornCommit.
    """
    commits = commits_after(table, after)
    return None if commits is None else (after + len(commits), [action for commit in commits for action in commit])


def commits_after(table: str, after: int) -> list[list[Action]] | None:
    """What each commit after a version has done, in order. Synced, to be built upon.

    None when one of them cannot be read any more, or is missing between others: read the table from its beginning,
    which tells. Raises StorageUnavailable, TornCommit.
    """
    commits: list[list[Action]] = []
    while storage.exists(commit_uri(table, version := after + len(commits) + 1)):
        try:
            commits.append(read_commit(table, version))
        except storage.MissingFile:
            return None
    if _are_there_later(table, after + len(commits) + 1):
        return None
    sync_replicated_commits(table, after + len(commits))
    return commits


def read_commit(table: str, version: int) -> list[Action]:
    """What a commit has done. Raises MissingFile, StorageUnavailable, TornCommit."""
    data = storage.read_bytes(commit_uri(table, version))
    _require_whole(table, version, data)
    return [json.loads(line) for line in data.splitlines() if line.strip()]


def _are_there_later(table: str, missing: int) -> bool:
    """Whether a version that has no commit is a hole: there are commits, or a checkpoint, of later ones."""
    directory = storage.local_path(storage.join(table, LOG))
    if directory is None:
        return False
    return storage.within_deadline("look at the log of", table, lambda: _is_hole(directory, missing))


def _is_hole(directory: str, missing: int) -> bool:
    """Looks a few commits ahead, and where the newest checkpoint says that it is: one is written every few commits."""
    if any(os.path.exists(_commit_path(directory, missing + step)) for step in range(1, LOOK_AHEAD + 1)):
        return True
    # A hint: it may be missing, and who opens the table from its beginning judges it.
    return (pointed_at(directory) or -1) >= missing


def identity(table: str, version: int) -> tuple[int, ...] | None:
    """What tells the file of a commit from any other that comes to lie in its place; None when it is not there.

    Only on file systems. Raises StorageUnavailable.
    """
    path = storage.local_path(commit_uri(table, version))
    assert path is not None, f"{table} is on no file system"

    def look() -> tuple[int, ...] | None:
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

    return storage.within_deadline("look at the log of", table, look)


def sync_commits(table: str, up_to: int) -> None:
    """Return when the disk has the commits that this process has not synced yet, up to a version that it has read.

    Of a table that is met for the first time that is the newest one: whoever put that has synced those before. All of
    them are looked at, too. Raises StorageUnavailable, and TornCommit for one that is not whole.
    """
    directory = storage.local_path(storage.join(table, LOG))
    if directory is None:
        return
    storage.within_deadline("sync the commits of", table, partial(_sync_commits, table, directory, up_to))


def _sync_commits(table: str, directory: str, up_to: int) -> None:
    known = _synced.get(directory)
    if known is not None and known[0] <= up_to and _identity(_commit_path(directory, known[0])) == known[1:]:
        if known[0] == up_to:
            return
        first = known[0] + 1
        for version in range(first, up_to + 1):
            _look_at(table, directory, version)
    else:
        oldest = _require_all_whole(table, directory)
        # Those who rely on the replicas have not synced what was before.
        first = up_to if syncing.durability() == syncing.FSYNC else min(oldest, up_to)
    present = [path for path in (_commit_path(directory, v) for v in range(first, up_to + 1)) if os.path.exists(path)]
    syncing.sync(present, [directory])
    _remember(directory, up_to)


def sync_replicated_commits(table: str, up_to: int) -> None:
    """`sync_commits` for what other replicas have as well: commits are only looked at where `durability` relies on
    them.
    """
    if syncing.durability() == syncing.FSYNC:
        sync_commits(table, up_to)
    else:
        require_whole(table)


def require_whole(table: str) -> int:
    """That every commit after the newest checkpoint is there and whole; the first of them.

    Raises TornCommit, StorageUnavailable.

    delta-rs takes an empty commit file for one without content, and would count over it.
    """
    directory = storage.local_path(storage.join(table, LOG))
    if directory is None:
        return 0
    return storage.within_deadline("look at the log of", table, partial(_require_all_whole, table, directory))


def _listed(directory: str) -> tuple[list[int], int]:
    """The versions that there are commit files of, ascending, and that of the newest checkpoint or -1."""
    names = os.listdir(directory)
    versions = sorted(int(match[1]) for name in names if (match := _COMMIT.match(name)))
    return versions, max((int(match[1]) for name in names if (match := _CHECKPOINT.match(name))), default=-1)


def _require_all_whole(table: str, directory: str) -> int:
    versions, checkpoint = _listed(directory)
    newer = [version for version in versions if version > checkpoint]
    for version in newer:
        _look_at(table, directory, version)
    for expected, version in enumerate(newer, start=checkpoint + 1):
        if version != expected:
            raise TornCommit(table, expected, "is missing, and later ones are there")
    return checkpoint + 1


def checkpoint_if_due(open_table: Callable[[], DeltaTable], uri: str, version: int, interval: int) -> None:
    """After the commit of a version: every `interval` commits a checkpoint, synced. Nothing depends on it, so this does
    not fail. The handle is one of its own, and moved on.
    """
    if (version + 1) % interval:
        return

    def write() -> None:
        table = open_table()
        table.update_incremental()
        table.create_checkpoint()
        sync_checkpoints(uri)

    try:
        storage.within_deadline("write a checkpoint of", uri, write)
    except StorageUnavailable as error:
        logger.info("no checkpoint of %s was written: %s", uri, error)


def sync_checkpoints(table: str) -> None:
    """Sync the newest checkpoint: before the commits that it stands for are deleted. Raises StorageUnavailable."""
    directory = storage.local_path(storage.join(table, LOG))
    if directory is None:
        return

    def sync() -> None:
        names = sorted(name for name in os.listdir(directory) if _CHECKPOINT.match(name))
        newest = [name for name in names if name[:20] == names[-1][:20]]
        pointer = [_LAST_CHECKPOINT] if os.path.exists(f"{directory}/{_LAST_CHECKPOINT}") else []
        syncing.sync([f"{directory}/{name}" for name in (*newest, *pointer)], [directory])

    storage.within_deadline("sync the checkpoint of", table, sync)


def _information(operation: str, lines: Sequence[bytes]) -> Action:
    return {
        "timestamp": time.time_ns() // 1_000_000,
        "operation": operation,
        "engineInfo": "epochlake",
        LINES: str(len(lines) + 1),
        DIGEST: _digest(lines),
    }


def _digest(lines: Sequence[bytes]) -> str:
    return hashlib.sha256(b"\n".join(lines)).hexdigest()[:32]


def _look_at(table: str, directory: str, version: int) -> None:
    path = _commit_path(directory, version)
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        # Deleted by clean-up, which needs a checkpoint that stands for it.
        checkpoints = (_CHECKPOINT.match(name) for name in os.listdir(directory))
        if any(match and int(match[1]) >= version for match in checkpoints):
            return
        raise TornCommit(table, version, "is missing") from None
    _require_whole(table, version, data)


def _require_whole(table: str, version: int, data: bytes) -> None:
    how = _damage(data)
    if how is not None:
        raise TornCommit(table, version, how)


def _damage(data: bytes) -> str | None:
    """What is wrong with a commit's bytes, None when nothing is seen."""
    if data == GIVEN_UP:
        return ACCEPTED
    text = data.strip()
    if not text.strip(b"\0"):
        return "is empty" if not data else "holds only zero bytes"
    if b"\0" in text or not (text.startswith(b"{") and text.endswith(b"}")):
        return "is torn"
    first, *rest = text.splitlines()
    if LINES.encode() in first:
        try:
            information = json.loads(first)["commitInfo"]
            lines = int(information[LINES])
        except (ValueError, KeyError, TypeError):
            return "is torn"
        if lines != len(rest) + 1:
            return f"is torn: it has {len(rest) + 1} lines of {lines}"
        if information.get(DIGEST, _digest(rest)) != _digest(rest):
            return "is damaged: its lines are not what was written"
    return None


def _commit_path(directory: str, version: int) -> str:
    return f"{directory}/{version:020}.json"


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _remember(directory: str, version: int) -> None:
    identity = _identity(_commit_path(directory, version))
    if identity is not None:
        _synced[directory] = (version, *identity)
