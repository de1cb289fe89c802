"""Commits of Delta tables on file systems: put whole and on the disk, or not at all; and torn ones are found.

Delta-rs makes a commit visible and never syncs it, so after a power cut the commit file may be empty, and
an empty file counts as a commit without content. On a file system a commit is therefore put here: its bytes are on the
disk before the file gets its name, the name is on the disk before anybody is told, and of two who want one version one
gets it. That is Delta's protocol for file systems; on object stores delta-rs commits by conditional puts.

Whoever looks at a table syncs the newest commit before anything is built on it (`sync_commits`): another process may
have put it and not have come to its sync. So no commit ever survives one before it.

Commits that others have made, or that were made before this rule, may be torn: `require_whole` names them
(docs/decisions/020-durability.md). A commit says which one it is, and of which table: a whole one of another version in
its place is named as well (docs/decisions/166-commits-say-which-they-are.md), and one of another table where one commit
has made the table (docs/decisions/170-commits-of-another-table.md).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.storage.deadlines import progress
from epochlake.metastore.storage.disk import Disk, is_same_file
from epochlake.metastore.storage.failures import MissingFile, StorageDamaged
from epochlake.metastore.storage.places import join, local_path, require_local, temporary_beside
from epochlake.metastore.storage.storage import Storage
from epochlake.metastore.storage.syncing import Sync

LOG = "_delta_log"
LINES = "epochlakeLines"
"""In a commit's information: how many lines it has. One that ends early is known by it."""

DIGEST = "epochlakeDigest"
"""In a commit's information: a SHA-256 of its other lines. A flipped bit could take a file out of the table."""

VERSION = "epochlakeVersion"
"""In a commit's information: which version it is. A whole commit that lies in the place of another one is known by it;
commits of earlier releases do not say it, and these pass over it."""

TABLE = "epochlakeTable"
"""In a commit's information: the id in the metadata of its table. Commits of two tables have the same versions."""

MADE_ONCE = "epochlake.madeOnce"
"""In the configuration of a table: it was made by one commit, and has had one id ever since. Where an earlier release
has made it once more at the same moment, with another id, this is not there.
"""

_BEFORE_DIGESTS = frozenset({"timestamp", "operation", "engineInfo", LINES})
"""What the information of a commit has that was made before there were digests, at most."""

GIVEN_UP = b"given up by `epochlake log accept-loss`: what came after it was put aside\n"
"""In place of a commit: a loss is being accepted from here on. It never becomes a commit without content."""

ACCEPTED = "was given up by `epochlake log accept-loss`, which did not come to its end"
"""How a commit with these bytes is torn."""

LOOKS = 3
"""How often a table is looked at that comes and goes."""

LOOK_AHEAD = 10
"""So many commits after the one that is missing are looked for before it is taken for the next one. No table has its
checkpoints further apart, but for the log of epochs, where the chain of hashes tells."""

Action = Mapping[str, object]

COMMIT = re.compile(r"(\d{20})\.json\Z")
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\..*\.?parquet\Z")
LAST_CHECKPOINT = "_last_checkpoint"


class SyncedCommits:
    """Kept by a storage. `newest`, by log directory: the newest commit that was synced through it, with what tells its
    file from another one.
    """

    def __init__(self) -> None:
        self.newest: dict[str, tuple[int, int, int]] = {}


class TornCommit(StorageDamaged):
    """A commit file is empty, ends early, is missing between others or is another commit, as after a power cut or
    damage. Retrying does not help.

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


class CommitName(NamedTuple):
    """Which commit of which table: the URI of that, and the id in its metadata.

    A commit that is made says the id, where it is given; one that is read says it as well, or none, or is another one.
    """

    table: str
    version: int
    table_id: str | None = None

    @property
    def uri(self) -> str:
        """Where it lies."""
        return commit_uri(self.table, self.version)


def held_against(metadata: Mapping[str, Any]) -> str | None:
    """The id that commits of a table have to say if they say one, as its metadata tells; None where it does not."""
    return str(metadata["id"]) if MADE_ONCE in metadata["configuration"] else None


def commit_uri(table: str, version: int) -> str:
    return join(table, LOG, f"{version:020}.json")


def put_commit(
    storage: Storage, commit: CommitName, operation: str, actions: Sequence[Action], files: Sequence[str] = ()
) -> bool:
    """Commit `actions` as exactly this commit of a table at a local URI; False when there is that version already.

    The actions' files must be on the disk; those among `files`, by their URIs, are synced with the commit's own bytes,
    in one group, before the commit gets its name. True: the commit is there, whole, and on the disk. Raises
    StorageUnavailable when that cannot be told: look at the table then.
    TornCommit where there are later versions, as what lay there was committed, and is lost: no hole is filled.
    """
    if commit.version:
        sync_commits(storage, CommitName(commit.table, commit.version - 1))
    return _put_and_remembered(storage, commit, encoded(commit, operation, actions), files)


def _put_and_remembered(storage: Storage, commit: CommitName, data: bytes, files: Sequence[str] = ()) -> bool:
    put = _put(storage, commit, data, storage.syncing.sync, files)
    if put:
        _remember(storage, log_directory(commit.table), commit.version)
    return put


def prepare_commit(
    storage: Storage, commit: CommitName, operation: str, actions: Sequence[Action], files: Sequence[str] = ()
) -> str:
    """Have the disk have the bytes of a commit before it is known whether it is to be made; the URI where they are.

    They mean nothing there: they become a commit by `put_prepared`, or are forgotten by `forget_prepared`. `commit`:
    what they say that they are, most often rightly. `files`: as `put_commit` has them. Raises StorageUnavailable.
    """
    named = [require_local(file) for file in files]

    def prepare() -> str:
        path = write_prepared(storage, commit, operation, actions)
        try:
            storage.syncing.sync([path, *named], [os.path.dirname(one) for one in named])
        except BaseException:
            with suppress(OSError):
                storage.disk.delete(path)
            raise
        return path

    return storage.within_deadline("prepare a commit to", commit.table, prepare)


def write_prepared(storage: Storage, commit: CommitName, operation: str, actions: Sequence[Action]) -> str:
    """`prepare_commit`, but for the sync: whoever calls it has the disk have these bytes, before they become a commit.

    Raises StorageUnavailable.
    """
    # The name says which version the bytes say.
    path = temporary_beside(require_local(commit.uri))
    disk, data = storage.disk, encoded(commit, operation, actions)

    def write() -> None:
        try:
            disk.write(path, data, new=True)
        except BaseException:
            with suppress(OSError):
                disk.delete(path)
            raise

    storage.within_deadline("prepare a commit to", commit.table, write)
    return path


def put_prepared(storage: Storage, commit: CommitName, prepared: str) -> bool:
    """`put_commit` of what was prepared, which is used up by it, whatever comes of it.

    Prepared for another version, it is written once again.
    """
    if commit.version:
        sync_commits(storage, CommitName(commit.table, commit.version - 1))
    path = require_local(commit.uri)
    if os.path.basename(path) not in os.path.basename(prepared):
        return _put_anew(storage, commit, require_local(prepared))
    put = partial(_link, storage, commit, require_local(prepared), path, storage.syncing.sync)
    if storage.within_deadline("commit to", commit.uri, put):
        _remember(storage, log_directory(commit.table), commit.version)
        return True
    return False


def _put_anew(storage: Storage, commit: CommitName, prepared: str) -> bool:
    disk = storage.disk

    def said_anew() -> bytes:
        try:
            first, *lines = disk.read(prepared).splitlines(keepends=True)
        finally:
            with suppress(OSError):
                disk.delete(prepared)
        information = json.loads(first)["commitInfo"] | _said(commit)
        return b"".join([_line({"commitInfo": information}), b"\n", *lines])

    return _put_and_remembered(storage, commit, storage.within_deadline("commit to", commit.uri, said_anew))


def forget_prepared(storage: Storage, prepared: str) -> None:
    """Delete what was prepared and is not put. Never raises: what stays means nothing."""
    with suppress(StorageUnavailable):
        storage.delete_file(prepared)


def put_replicated_commit(storage: Storage, commit: CommitName, operation: str, actions: Sequence[Action]) -> bool:
    """`put_commit` for what other replicas have as well: not synced where `durability` relies on them."""
    put = _put(storage, commit, encoded(commit, operation, actions), storage.syncing.sync_replicated, ())
    if put and not storage.syncing.relies_on_replicas:
        _remember(storage, log_directory(commit.table), commit.version)
    return put


def _put(storage: Storage, commit: CommitName, data: bytes, sync: Sync, files: Sequence[str]) -> bool:
    path, disk = require_local(commit.uri), storage.disk
    named = [local for file in files if (local := local_path(file)) is not None]

    def put() -> bool:
        temporary = temporary_beside(path)
        try:
            disk.write(temporary, data, new=True)
            sync([temporary, *named], [os.path.dirname(one) for one in named])
        except BaseException:
            with suppress(OSError):
                disk.delete(temporary)
            raise
        return _link(storage, commit, temporary, path, sync)

    return storage.within_deadline("commit to", commit.uri, put)


def _link(storage: Storage, commit: CommitName, temporary: str, path: str, sync: Sync) -> bool:
    """Give bytes that are on the disk the name of a commit, unless there is one; their own name goes."""
    disk, directory = storage.disk, os.path.dirname(path)
    try:
        if _is_hole(disk, directory, commit.version):
            raise TornCommit(commit.table, commit.version, "is missing, and later ones are there")
        progress()  # nobody is told of a commit that nobody waits for any more: better none
        try:
            disk.link(temporary, path)
        except FileExistsError:
            # A network file system may answer so to its own retry.
            if not is_same_file(disk, temporary, path):
                return False
    finally:
        with suppress(OSError):
            disk.delete(temporary)
    sync(directories=[directory])
    return True


def take_back(storage: Storage, table: str, version: int) -> None:
    """Take a commit out again, which the caller has put, where the one before it is not there: another copy has come to
    lie in the place of its table meanwhile, which ends earlier.

    Nobody reads such a commit, or builds on it, and it would keep everybody from that copy. Only at local URIs. Raises
    StorageUnavailable.
    """
    disk, directory = storage.disk, log_directory(table)

    def look_and_delete() -> None:
        pointer = pointed_at(disk, directory)
        # What a checkpoint covers may have been cleaned up.
        is_covered = pointer is not None and not 0 <= pointer < version - 1
        # All of it is looked at together: a table that was away just now, and is back, lacks nothing.
        there, _ = _listed(disk, directory)
        if not is_covered and version in there and version - 1 not in there:
            with suppress(FileNotFoundError):
                disk.delete(_commit_path(directory, version))

    storage.within_deadline("look at the log of", table, look_and_delete)


def encoded(commit: CommitName, operation: str, actions: Sequence[Action]) -> bytes:
    """The bytes of the commit file. Actions may have the id of the table themselves."""
    lines = [_line(action) for action in actions]
    said = commit.table_id or next((id_in(action) for action in actions if "metaData" in action), None)
    information = {**_information(operation, lines), **_said(commit._replace(table_id=said))}
    return b"\n".join([_line({"commitInfo": information}), *lines]) + b"\n"


def _said(commit: CommitName) -> dict[str, str]:
    return {VERSION: str(commit.version), **({TABLE: commit.table_id} if commit.table_id else {})}


def _line(action: Action) -> bytes:
    return json.dumps(action, separators=(",", ":")).encode()


def id_in(action: Action) -> str | None:
    """The id of the table that an action has the metadata of."""
    metadata = action["metaData"]
    return str(metadata["id"]) if isinstance(metadata, Mapping) and "id" in metadata else None


def torn_commits(storage: Storage, table: str) -> list[TornCommit]:
    """The commits after the newest checkpoint, at a local URI, that are not whole or of another version, by version.

    Raises StorageUnavailable.
    """
    directory = log_directory(table)

    def look() -> list[TornCommit]:
        versions, checkpoint = _listed(storage.disk, directory)
        torn = []
        for version in range(checkpoint + 1, max(versions, default=-1) + 1):
            try:
                _look_at(storage.disk, CommitName(table, version))
            except TornCommit as found:
                torn.append(found)
        return torn

    return storage.within_deadline("look at the log of", table, look)


def pointed_at(disk: Disk, directory: str) -> int | None:
    """The version of the newest checkpoint, as the pointer says; -1 for one that cannot be read, None without one."""
    try:
        return int(json.loads(disk.read(f"{directory}/{LAST_CHECKPOINT}"))["version"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return -1


def newest_version(storage: Storage, table: str) -> int:
    """The newest commit at a local URI, torn or not; -1 when there is none."""
    directory = log_directory(table)
    return storage.within_deadline(
        "look at the log of", table, lambda: max(_listed(storage.disk, directory)[0], default=-1)
    )


def has_begun(storage: Storage, table: str) -> bool:
    """Whether there is a commit at a local URI, torn or not, or a checkpoint of some. Raises StorageUnavailable."""
    directory = log_directory(table)
    there = storage.within_deadline("look at the log of", table, lambda: _listed(storage.disk, directory))
    return there != ([], -1)


def between(storage: Storage, after: CommitName) -> tuple[int, list[Action]] | None:
    """The newest version, and what the commits after one have done, in order. Synced, to be built upon.

    None when one of them cannot be read any more. Raises StorageUnavailable, TornCommit.
    """
    commits = commits_after(storage, after)
    if commits is None:
        return None
    return after.version + len(commits), [action for commit in commits for action in commit]


def commits_after(storage: Storage, after: CommitName) -> list[list[Action]] | None:
    """What each commit after one has done, in order. Synced, to be built upon.

    None when one of them cannot be read any more, or is missing between others: read the table from its beginning,
    which tells. Raises StorageUnavailable, TornCommit.
    """
    commits: list[list[Action]] = []
    newest = after
    while storage.exists((following := newest._replace(version=newest.version + 1)).uri):
        try:
            commits.append(read_commit(storage, following))
        except MissingFile:
            return None
        newest = following._replace(table_id=_held_after(commits[-1], following.table_id))
    if is_missing(storage, newest.table, newest.version + 1):
        return None
    sync_replicated_commits(storage, newest)
    return commits


def _held_after(commit: Sequence[Action], before: str | None) -> str | None:
    """`held_against` after a commit: an earlier release may have made the table a second time, with another id."""
    found = [metadata for action in commit if isinstance(metadata := action.get("metaData"), Mapping)]
    return held_against(found[-1]) if found else before


def read_commit(storage: Storage, commit: CommitName) -> list[Action]:
    """What a commit has done. Raises MissingFile, StorageUnavailable, TornCommit."""
    data = storage.read_bytes(commit.uri)
    _require_whole(commit, data)
    # Without what `_damage` takes for no part of the lines, as a newline at the end that has rotted.
    return [json.loads(line) for line in data.strip().splitlines() if line.strip()]


def has_moved_on(storage: Storage, table: str, version: int) -> bool:
    """Whether there is a commit after a version, or a hole where it was. Raises StorageUnavailable.

    Who asks for the next version only would take the table for one that ends before the hole.
    """
    directory = local_path(join(table, LOG))
    if directory is None:
        return storage.exists(commit_uri(table, version + 1))
    disk, following = storage.disk, version + 1
    return storage.within_deadline(
        "look at the log of",
        table,
        lambda: disk.status(_commit_path(directory, following)) is not None or _is_hole(disk, directory, following),
    )


def is_missing(storage: Storage, table: str, version: int) -> bool:
    """Whether a version that has no commit is a hole: there are commits, or a checkpoint, of later ones.

    Asked of tables at local URIs; the others have their holes found by those who read them from the beginning. Raises
    StorageUnavailable.
    """
    directory = local_path(join(table, LOG))
    if directory is None:
        return False
    return storage.within_deadline("look at the log of", table, lambda: _is_hole(storage.disk, directory, version))


def _is_hole(disk: Disk, directory: str, missing: int) -> bool:
    """Looks a few commits ahead, and where the newest checkpoint says that it is: one is written every few commits."""
    ahead = [_commit_path(directory, missing + step) for step in range(1, LOOK_AHEAD + 1)]
    # The checkpoint is a hint: it may be missing, and who opens the table from its beginning judges it.
    is_passed = disk.any_there(ahead) or (pointed_at(disk, directory) or -1) >= missing
    # Others may have committed it, and those after it, since it was looked for.
    return is_passed and disk.status(_commit_path(directory, missing)) is None


def identity(storage: Storage, table: str, version: int) -> tuple[int, ...] | None:
    """What tells the file of a commit from any other that comes to lie in its place; None when it is not there.

    Not when it was changed last: that is another time once its first name is gone, which whoever commits deletes only
    then, and once a backup has given it a name. Only on file systems. Raises StorageUnavailable.
    """
    path = require_local(commit_uri(table, version))
    status = storage.within_deadline("look at the log of", table, lambda: storage.disk.status(path))
    return None if status is None else (status.size, status.modified_ns, status.device, status.number)


def lies_there(storage: Storage, table: str, version: int, known: tuple[int, ...]) -> bool:
    """Whether the commit of a version is the file that `identity` has told of; else another table lies there by now.

    A table that is away for a moment has not become another one, nor has one that went on until that commit was cleaned
    up. Raises StorageUnavailable then, as it cannot be told. Only on file systems.
    """
    directory = log_directory(table)
    for _ in range(LOOKS):
        found = identity(storage, table, version)
        if found is not None:
            return found == known
        # All that is in a directory is told together. One more than that commit may have been put by who asks.
        there, _ = storage.within_deadline("look at the log of", table, lambda: _listed(storage.disk, directory))
        if not there:
            raise MissingFile(f"there is no table at {table} any more", hint="Try again")
        if there[-1] <= version + 1 and version not in there:
            return False
        if version not in there:
            raise StorageUnavailable(f"{table} has gone on for long, or become another table", hint="Try again")
    raise StorageUnavailable(f"{table} comes and goes", hint="Try again")


def sync_commits(storage: Storage, newest: CommitName) -> None:
    """Return when the disk has the commits that this process has not synced yet, up to the one that it has read.

    Of a table that is met for the first time that is the newest one: whoever put that has synced those before. All of
    them are looked at, too. Raises StorageUnavailable, and TornCommit for one that is not whole, or says that it is
    one of another version; or, up to `newest`, of another table than that says.
    """
    directory = local_path(join(newest.table, LOG))
    if directory is None:
        return
    storage.within_deadline("sync the commits of", newest.table, partial(_sync_commits, storage, directory, newest))


def _sync_commits(storage: Storage, directory: str, newest: CommitName) -> None:
    disk, known, up_to = storage.disk, storage.kept(SyncedCommits).newest.get(directory), newest.version
    if known is not None and known[0] <= up_to and _identity(disk, _commit_path(directory, known[0])) == known[1:]:
        if known[0] == up_to:
            return
        first = known[0] + 1
        for version in range(first, up_to + 1):
            _look_at(disk, newest._replace(version=version))
    else:
        oldest = _require_all_whole(disk, newest)
        # Those who rely on the replicas have not synced what was before.
        first = min(oldest, up_to) if storage.syncing.relies_on_replicas else up_to
    paths = (_commit_path(directory, version) for version in range(first, up_to + 1))
    storage.syncing.sync([path for path in paths if disk.status(path) is not None], [directory])
    _remember(storage, directory, up_to)


def look_at_all_again(storage: Storage, table: str) -> None:
    """Have the next `sync_commits` look at all commits that there are, for a table that is read from its beginning: one
    that this process has synced may have rotted since.
    """
    directory = local_path(join(table, LOG))
    if directory is not None:
        storage.kept(SyncedCommits).newest.pop(directory, None)


def sync_replicated_commits(storage: Storage, newest: CommitName) -> None:
    """`sync_commits` for what other replicas have as well: commits are only looked at where `durability` relies on
    them.
    """
    if storage.syncing.relies_on_replicas:
        require_whole_up_to(storage, newest)
    else:
        sync_commits(storage, newest)


def require_whole(storage: Storage, table: str) -> None:
    """That every commit after the newest checkpoint is there, whole, and says nothing else than that it is this one.

    Raises TornCommit, StorageUnavailable.

    delta-rs takes an empty commit file for one without content, and would count over it.
    """
    require_whole_up_to(storage, CommitName(table, -1))


def require_whole_up_to(storage: Storage, newest: CommitName) -> None:
    """`require_whole`; and up to `newest` no commit says that it is one of another table than that says."""
    if local_path(join(newest.table, LOG)) is not None:
        storage.within_deadline("look at the log of", newest.table, partial(_require_all_whole, storage.disk, newest))


def _listed(disk: Disk, directory: str) -> tuple[list[int], int]:
    """The versions that there are commit files of, ascending, and that of the newest checkpoint or -1."""
    names = disk.names(directory)
    versions = sorted(int(match[1]) for name in names if (match := COMMIT.match(name)))
    return versions, max((int(match[1]) for name in names if (match := CHECKPOINT.match(name))), default=-1)


def _require_all_whole(disk: Disk, newest: CommitName) -> int:
    """The first commit after the newest checkpoint. What has come after `newest` is held against no id: an earlier
    release may have made the table once more.
    """
    versions, checkpoint = _listed(disk, log_directory(newest.table))
    newer = [version for version in versions if version > checkpoint]
    said: dict[int, str] = {}
    for expected, version in enumerate(newer, start=checkpoint + 1):
        # The first one that is not whole is named: what comes before it can be told.
        if version != expected:
            raise TornCommit(newest.table, expected, "is missing, and later ones are there")
        data = _look_at(disk, CommitName(newest.table, version))
        if newest.table_id is not None and version <= newest.version and (found := _id_said(data)) is not None:
            said[version] = found
    if newest.table_id is not None and {*said.values()} - {newest.table_id}:
        # The metadata itself may be what has come from another table: what most of them say is right.
        usual = Counter([newest.table_id, *said.values()]).most_common(1)[0][0]
        odd = next((version for version, found in said.items() if found != usual), min(said))
        raise TornCommit(newest.table, odd, _of_another(said[odd], usual if said[odd] != usual else newest.table_id))
    return checkpoint + 1


def _information(operation: str, lines: Sequence[bytes]) -> dict[str, object]:
    return {
        "timestamp": time.time_ns() // 1_000_000,
        "operation": operation,
        "engineInfo": "epochlake",
        LINES: str(len(lines) + 1),
        DIGEST: _digest(lines),
    }


def _digest(lines: Sequence[bytes]) -> str:
    return hashlib.sha256(b"\n".join(lines)).hexdigest()[:32]


def _look_at(disk: Disk, commit: CommitName) -> bytes:
    """The bytes of the commit file; none where it was cleaned up."""
    directory = log_directory(commit.table)
    try:
        data = disk.read(_commit_path(directory, commit.version))
    except FileNotFoundError:
        # Deleted by clean-up, which needs a checkpoint that stands for it.
        checkpoints = (CHECKPOINT.match(name) for name in disk.names(directory))
        if any(match and int(match[1]) >= commit.version for match in checkpoints):
            return b""
        raise TornCommit(commit.table, commit.version, "is missing") from None
    _require_whole(commit, data)
    return data


def _require_whole(commit: CommitName, data: bytes) -> None:
    how = _damage(commit, data)
    if how is not None:
        raise TornCommit(commit.table, commit.version, how)


def _damage(commit: CommitName, data: bytes) -> str | None:
    """What is wrong with the bytes that lie where a commit belongs, None when nothing is seen."""
    if data == GIVEN_UP:
        return ACCEPTED
    text = data.strip()
    if not text.strip(b"\0"):
        return "is empty" if not data else "holds only zero bytes"
    if b"\0" in text or not (text.startswith(b"{") and text.endswith(b"}")):
        return "is torn"
    first, *rest = text.splitlines()
    if LINES.encode() in first or DIGEST.encode() in first:
        try:
            information = json.loads(first)["commitInfo"]
            lines = int(information[LINES])
        except (ValueError, KeyError, TypeError):
            return "is torn"
        if lines != len(rest) + 1:
            return f"is torn: it has {len(rest) + 1} lines of {lines}"
        if information.get(DIGEST, _digest(rest)) != _digest(rest):
            return "is damaged: its lines are not what was written"
        if DIGEST not in information and not information.keys() <= _BEFORE_DIGESTS:
            # A flipped bit in the name of the digest would hide another one in the lines.
            return "is damaged: the digest of its lines has lost its name"
        if (said := information.get(VERSION, str(commit.version))) != str(commit.version):
            return f"is another one, or damaged: it says that it is commit {said}"
        if commit.table_id is not None and (said := information.get(TABLE, commit.table_id)) != commit.table_id:
            return _of_another(said, commit.table_id)
    elif not all(_is_action(line) for line in (first, *rest)):
        # Of others, or ours with damage in what says so: then it is an error to whoever opens the table.
        return "is damaged: not all of its lines can be read"
    return None


def _of_another(said: str, right: str) -> str:
    return f"is one of another table, or damaged: it says the id {said}, and the table here has {right}"


def _id_said(data: bytes) -> str | None:
    """The id of its table that a whole commit says; None where it says none."""
    first = data.lstrip().partition(b"\n")[0]
    if TABLE.encode() not in first:
        return None
    said: str = json.loads(first)["commitInfo"].get(TABLE)
    return said


def _is_action(line: bytes) -> bool:
    try:
        return not line.strip() or isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _commit_path(directory: str, version: int) -> str:
    return f"{directory}/{version:020}.json"


def log_directory(table: str) -> str:
    return require_local(join(table, LOG))


def _identity(disk: Disk, path: str) -> tuple[int, int] | None:
    try:
        status = disk.status(path)
    except OSError:
        return None
    return None if status is None else (status.number, status.modified_ns)


def _remember(storage: Storage, directory: str, version: int) -> None:
    identity = _identity(storage.disk, _commit_path(directory, version))
    if identity is not None:
        storage.kept(SyncedCommits).newest[directory] = (version, *identity)
