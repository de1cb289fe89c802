"""The one module that touches storage: everything else names a place by its URI.

A URI is a plain path, `file://…` or an address that `pyarrow.fs` knows, and whatever goes wrong behind it
becomes StorageUnavailable, of the kind that it is, with the URI, the cause and what to do. Every access to a volume has
a deadline (deadlines.py). Local files get what only they can do: atomic
replacement, put-if-absent, hard links, free space. Object stores put whole objects, which is atomic by itself.

What is put, replaced or created here is on the disk when the call returns. Data files are synced in groups by those who
write many of them: `sync_data` (syncing.py says when and why).
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TypeVar
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
from deltalake.exceptions import DeltaError, TableNotFoundError
from epochlake.metastore import deadlines, syncing
from epochlake.metastore.configuration import StorageSettings
from epochlake.metastore.dead_ends import dead_end
from epochlake.metastore.errors import StorageUnavailable
from epochlake.placement.errors import words_of
from pyarrow import fs

CHUNK = 8 << 20
"""Bytes that are copied at a time between file systems that cannot copy by themselves."""

TEMPORARY = ".tmp-"
"""Part of the name of a file that is being written and will be renamed; left behind only by a killed process."""

T = TypeVar("T")

_S3_OPTIONS = {
    "aws_access_key_id": "access_key",
    "aws_secret_access_key": "secret_key",
    "aws_session_token": "session_token",
    "aws_region": "region",
    "aws_endpoint_url": "endpoint_override",
}

STORAGE_ERRORS = (OSError, DeltaError, pa.ArrowException, ValueError)
"""What the libraries below raise when storage fails, or holds what cannot be read. `unavailable` says which it was."""

_settings = StorageSettings()


class MissingFile(StorageUnavailable):
    """What was asked for is not there, though storage answers."""


class StorageFull(StorageUnavailable):
    """There is no room left, or no quota."""


class StorageDamaged(StorageUnavailable):
    """Something is there and cannot be understood: trying again does not help."""

    exit_code = 1


class StorageMisconfigured(StorageUnavailable):
    """The place can never be used as it is: a wrong URI, a wrong owner, a file where a directory belongs."""

    exit_code = 1


_KINDS: dict[int, tuple[type[StorageUnavailable], str]] = {
    errno.ENOSPC: (StorageFull, "the disk is full: make room and retry"),
    errno.EDQUOT: (StorageFull, "the quota is used up: make room and retry"),
    errno.EROFS: (StorageUnavailable, "it is mounted read-only: mount it writable and retry"),
    errno.EACCES: (StorageMisconfigured, "permission is denied: check owner and mode"),
    errno.EPERM: (StorageMisconfigured, "permission is denied: check owner and mode"),
    errno.ENOENT: (MissingFile, "it is not there: check that the disk is mounted and the URI right"),
    errno.ENOTDIR: (StorageMisconfigured, "a file stands where a directory should be: check the URI"),
    errno.EISDIR: (StorageMisconfigured, "a directory stands where a file should be: check the URI"),
    errno.ENAMETOOLONG: (StorageMisconfigured, "the name is too long for the file system: choose a shorter URI"),
    errno.ELOOP: (StorageMisconfigured, "its symbolic links lead in a circle: check the URI"),
    errno.EIO: (StorageUnavailable, "the device reports an error: check the disk"),
    errno.ESTALE: (StorageUnavailable, "its mount is stale: mount it again and retry"),
    errno.ENODEV: (StorageUnavailable, "the device is gone: check the disk"),
    errno.ENXIO: (StorageUnavailable, "the device is gone: check the disk"),
    errno.ENOTCONN: (StorageUnavailable, "its mount has no connection: mount it again and retry"),
    errno.EHOSTDOWN: (StorageUnavailable, "its file server is down: retry when it answers"),
    errno.ETIMEDOUT: (StorageUnavailable, "it does not answer in time: retry when it does"),
}
"""What an error number of the system means: the kind of the failure, and what to do."""

_UNKNOWN_SCHEME = re.compile("unrecognized filesystem type|unknown (url )?scheme|unable to recognise url", re.I)
_READ_OTHERWISE = re.compile(r"%[0-9A-Fa-f]{2}|[\\\x00-\x1f\x7f]")
_NUMBER = re.compile(r"(?:code: |os error |errno )(\d+)")


class FileEntry(msgspec.Struct, frozen=True):
    """A file below a listed directory: `name` relative to it, `size` in bytes, `modified_ms` since the Unix epoch."""

    name: str
    size: int
    modified_ms: int


class Space(msgspec.Struct, frozen=True):
    """Bytes of the file system that a place is on."""

    total: int
    free: int


def use_settings(settings: StorageSettings) -> None:
    """Set how this process uses storage: once, when it starts."""
    global _settings
    _settings = settings
    syncing.use_durability(settings.durability)
    deadlines.use_deadline(settings.deadline_seconds)
    _remote_filesystem.cache_clear()


def used_settings() -> StorageSettings:
    """The settings of this process, to be used in another one too."""
    return _settings


def storage_options(uri: str) -> dict[str, str]:
    """What delta-rs needs for this place: nothing for local files."""
    return {} if local_path(uri) is not None else dict(_settings.options)


def local_path(uri: str) -> str | None:
    """The absolute path of a local URI, None for any other."""
    if "://" not in uri:
        return os.path.abspath(uri)
    parts = urlsplit(uri)
    return unquote(parts.path) if parts.scheme == "file" else None


def join(uri: str, *names: str) -> str:
    return "/".join([uri.rstrip("/"), *names])


def is_same_place(uri: str, other: str) -> bool:
    """Whether two URIs name one directory, also by different paths (links, mounts); False where that cannot be told."""
    if uri.rstrip("/") == other.rstrip("/"):
        return True
    one, two = local_path(uri), local_path(other)
    try:
        return one is not None and two is not None and os.path.samefile(one, two)
    except OSError:
        return False


def delta_uri(uri: str) -> str:
    """The place as delta-rs wants it: a local one as a path, so that its characters need no escaping.

    Raises StorageMisconfigured where delta-rs would look in another directory all the same.
    """
    require_fit_for_tables(uri)
    return local_path(uri) or uri


def require_fit_for_tables(uri: str) -> None:
    """Raise StorageMisconfigured for a local path that names another directory when it is read as a URI."""
    path = local_path(uri)
    if path is not None and "://" in uri and (host := urlsplit(uri).netloc):
        raise StorageMisconfigured(
            f"{uri} names a machine, {host!r}, and files are read here: write file:///{host}{path} for an absolute "
            f"path, or leave file:// out for a relative one"
        )
    if path is not None and _READ_OTHERWISE.search(path):
        raise StorageMisconfigured(
            f"no table can be at {path!r}: choose a directory without `%` before two hexadecimal digits, without "
            f"backslashes and without control characters in its path"
        )


def spark_uri(uri: str) -> str:
    """The place as Spark's Hadoop file systems want it, whatever their default is."""
    path = local_path(uri)
    if path is not None:
        return f"file://{path}"
    return "s3a://" + uri.removeprefix("s3://") if uri.startswith("s3://") else uri


def filesystem(uri: str) -> tuple[fs.FileSystem, str]:
    """The file system behind a URI (cached) and the path in it."""
    path = local_path(uri)
    if path is not None:
        return _LOCAL, path
    parts = urlsplit(uri)
    with naming("reach", uri):
        return _remote_filesystem(parts.scheme, parts.netloc), f"{parts.netloc}{unquote(parts.path)}"


def unavailable(asked: str, uri: str, error: BaseException) -> StorageUnavailable:
    """The error for `asked` (a verb) at `uri`: its kind, cause and advice. The one place that reads what libraries say.

    StorageUnavailable itself is what may pass. Callers that reach storage through delta-rs or Arrow come here too.
    """
    if isinstance(error, StorageUnavailable):
        return error
    text = words_of(error)
    kind, advice, number = _kind_of(error, text)
    # Where the system has a word for it, what a library makes of it says nothing more.
    return kind(f"cannot {asked} {uri}: {advice} ({text if number is None else os.strerror(number)})")


def _kind_of(error: BaseException, text: str) -> tuple[type[StorageUnavailable], str, int | None]:
    number = getattr(error, "errno", None)
    if number is None and (said := _NUMBER.search(text)):  # delta-rs says it in words only
        number = int(said.group(1))
    if number is None:
        number = next((known for known in _KINDS if os.strerror(known) in text), None)
    if number is not None:
        kind, advice = _KINDS.get(number, (StorageUnavailable, "check that the place is reachable and retry"))
        return kind, advice, number
    if _UNKNOWN_SCHEME.search(text):
        return StorageMisconfigured, "no file system is known by the scheme of this URI: check it", None
    if isinstance(error, TableNotFoundError):
        return MissingFile, "there is no table: check that the disk is mounted and the URI right", None
    if isinstance(error, OSError):
        return StorageUnavailable, "retry when it answers", None
    return StorageDamaged, "what is there cannot be read: it is torn, or not of this kind. Restore or repair it", None


@contextmanager
def naming(asked: str, uri: str) -> Iterator[None]:
    """Turn errors of the storage below into StorageUnavailable that names what was asked and where."""
    try:
        yield
    except STORAGE_ERRORS as error:
        raise unavailable(asked, uri, error) from error


def within_deadline(asked: str, uri: str, call: Callable[[], T]) -> T:
    """`call()`, which touches `uri`, within the deadline. Raises StorageUnavailable for all that storage raises."""
    with naming(asked, uri):
        return deadlines.within(uri, f"{asked} {uri}", call)


def read_bytes(uri: str) -> bytes:
    """The whole file. Raises MissingFile, StorageUnavailable."""
    filesystem_, path = filesystem(uri)

    def read() -> bytes:
        with filesystem_.open_input_stream(path, compression=None) as stream:
            return bytes(stream.read())

    return within_deadline("read", uri, read)


def read_tail(uri: str, size: int) -> bytes:
    """The last `size` bytes of a file, or all of it when it is shorter."""
    filesystem_, path = filesystem(uri)

    def read() -> bytes:
        with filesystem_.open_input_file(path) as stream:
            start = max(0, stream.size() - size)
            stream.seek(start)
            return bytes(stream.read(size))

    return within_deadline("read", uri, read)


def write_bytes(uri: str, data: bytes | pa.Buffer) -> None:
    """Write a file whose name nobody else uses yet. A failure may leave a torn one, so this is for staging only.

    It is not on the disk until `sync_data` says so.
    """
    filesystem_, path = filesystem(uri)

    def write() -> None:
        if filesystem_ is _LOCAL:
            with open(path, "wb", buffering=0) as file:
                _write_all(file.fileno(), memoryview(data))
            return
        with filesystem_.open_output_stream(path, compression=None) as stream:
            for start in range(0, len(data), CHUNK):
                stream.write(data[start : start + CHUNK])
                deadlines.progress()

    within_deadline("write", uri, write)


@contextmanager
def new_file(uri: str) -> Iterator[pa.NativeFile]:
    """A stream into a large file, which appears under its name when the block ends well, in place of one that is there.

    Its bytes are on the disk then, as its replicas' durability is. When it does not end well there is nothing; on an
    object store there may be a torn object.
    """
    filesystem_, path = filesystem(uri)
    with naming("write", uri):
        if filesystem_ is not _LOCAL:
            with filesystem_.open_output_stream(path, compression=None) as stream:
                yield stream
            return
        temporary = _temporary(path)
        with _removed_afterwards(temporary):
            with pa.OSFile(temporary, "wb") as stream:
                yield stream
            deadlines.within(uri, f"sync {uri}", lambda: syncing.sync_replicated([temporary]))
            os.replace(temporary, path)


def touch(uri: str) -> bool:
    """Make a file count as just written; False where it is not there, or storage cannot (write it again then)."""
    path = local_path(uri)
    if path is None:
        return False

    def set_times() -> bool:
        try:
            os.utime(path)
        except FileNotFoundError:
            return False
        return True

    return within_deadline("touch", uri, set_times)


def put_if_absent(uri: str, data: bytes) -> bool:
    """Write a small file unless there is one; whether it was written. The file is never seen torn.

    The one that is there then, whoever wrote it, is on the disk. Atomic for local files. An object store is asked
    first: two writers at the same instant may both get True there.
    """
    path = local_path(uri)
    if path is None:
        if exists(uri):
            return False
        write_bytes(uri, data)
        return True

    def put() -> bool:
        temporary = _temporary(path)
        with _removed_afterwards(temporary):
            _write_through(temporary, data)
            try:
                os.link(temporary, path)
            except FileExistsError:
                syncing.sync([path], [os.path.dirname(path)])
                return False
            syncing.sync_directory(os.path.dirname(path))
            return True

    return within_deadline("create", uri, put)


def replace_bytes(uri: str, data: bytes) -> None:
    """Write a small file in place of the one that may be there; a reader sees the old or the new one."""
    path = local_path(uri)
    if path is None:
        return write_bytes(uri, data)

    def replace() -> None:
        temporary = _temporary(path)
        with _removed_afterwards(temporary):
            _write_through(temporary, data)
            os.replace(temporary, path)
            syncing.sync_directory(os.path.dirname(path))

    return within_deadline("replace", uri, replace)


def create_directory(uri: str, *, parents: bool = False) -> None:
    """Make sure that a directory is there. Without `parents` its parent must be: a lost mount is not papered over.

    With `parents` it is on the disk. Else it is one of many, and synced with what comes into it (`sync_data`).
    """
    filesystem_, path = filesystem(uri)

    def create() -> None:
        if filesystem_ is not _LOCAL:
            filesystem_.create_dir(path, recursive=parents)
        elif parents:
            created = _missing_above(path)
            try:
                os.makedirs(path, exist_ok=True)
            except (FileExistsError, FileNotFoundError) as error:
                why = dead_end(path)
                if why is None:
                    raise
                raise StorageMisconfigured(f"cannot create the directory {uri}: {why}") from error
            syncing.sync(directories=[os.path.dirname(one) for one in (*created, path)])
        elif not os.path.isdir(path):
            with suppress(FileExistsError):
                os.mkdir(path)

    within_deadline("create the directory", uri, create)


def exists(uri: str) -> bool:
    """Whether a file or directory is there. Raises StorageUnavailable when that cannot be told."""
    return _info(uri).type != fs.FileType.NotFound


def size_of(uri: str) -> int | None:
    """Bytes of a file, None when there is no such file."""
    info = _info(uri)
    return int(info.size) if info.type == fs.FileType.File else None


def modified_ms(uri: str) -> int | None:
    """When a file was last written, milliseconds since the Unix epoch; None when there is no such file."""
    info = _info(uri)
    return int((info.mtime_ns or 0) // 1_000_000) if info.type == fs.FileType.File else None


def list_files(uri: str) -> list[FileEntry]:
    """All files below a directory, however deep, sorted by name. Raises MissingFile when it is not there."""
    filesystem_, path = filesystem(uri)

    def listed() -> list[fs.FileInfo]:
        # A directory at a time, so that a long listing makes progress.
        files: list[fs.FileInfo] = []
        directories = [path]
        while directories:
            for info in filesystem_.get_file_info(fs.FileSelector(directories.pop())):
                if info.type == fs.FileType.Directory:
                    directories.append(info.path)
                elif info.type == fs.FileType.File:
                    files.append(info)
            deadlines.progress()
        return files

    prefix = len(path.rstrip("/")) + 1
    entries = [
        FileEntry(info.path[prefix:], int(info.size), int((info.mtime_ns or 0) // 1_000_000))
        for info in within_deadline("list", uri, listed)
    ]
    return sorted(entries, key=lambda entry: entry.name)


def move_file(source: str, target: str) -> bool:
    """Give a local file another name in its directory, in place of none; whether it was there."""
    source_path, target_path = local_path(source), local_path(target)
    assert source_path is not None, f"{source} is on no file system"
    assert target_path is not None, f"{target} is on no file system"

    def move() -> bool:
        try:
            os.rename(source_path, target_path)
        except FileNotFoundError:
            return False
        return True

    return within_deadline(f"move {source} to", target, move)


def delete_file(uri: str) -> bool:
    """Delete a file; whether it was there."""
    filesystem_, path = filesystem(uri)

    def delete() -> bool:
        if filesystem_ is not _LOCAL:
            if filesystem_.get_file_info(path).type == fs.FileType.NotFound:
                return False
            filesystem_.delete_file(path)
            return True
        try:
            os.unlink(path)
        except FileNotFoundError:
            return False
        return True

    return within_deadline("delete", uri, delete)


def copy_file(source: str, target: str) -> int:
    """Copy a data file and return its bytes. The target appears whole under its name or not at all, synced first.

    By the store itself where both are on the same one, else as a stream, of which each part may take the deadline.
    """
    from_filesystem, from_path = filesystem(source)
    to_filesystem, to_path = filesystem(target)
    target_path = local_path(target)

    def copy() -> int:
        if target_path is not None:
            temporary = _temporary(target_path)
            with _removed_afterwards(temporary):
                _copy_stream(source, from_filesystem, from_path, to_filesystem, temporary)
                syncing.sync_replicated([temporary])
                size = os.path.getsize(temporary)
                os.replace(temporary, target_path)
                return size
        if from_filesystem is to_filesystem:
            from_filesystem.copy_file(from_path, to_path)
        else:
            _copy_stream(source, from_filesystem, from_path, to_filesystem, to_path)
        return int(to_filesystem.get_file_info(to_path).size)

    return within_deadline(f"copy {source} to", target, copy)


def hard_link(source: str, target: str) -> bool:
    """Store the same bytes under a second name without copying; False where storage cannot (copy then).

    The file counts as just written, for all of its names: whoever deletes by age leaves the new name alone.
    """
    source_path, target_path = local_path(source), local_path(target)
    if source_path is None or target_path is None:
        return False

    def link() -> bool:
        try:
            os.link(source_path, target_path)
        except FileExistsError:
            if not os.path.samefile(source_path, target_path):
                return False
        except OSError as error:
            if error.errno in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
                return False
            raise
        os.utime(target_path)
        return True

    return within_deadline(f"link {source} to", target, link)


def sync_data(files: Iterable[str] = (), directories: Iterable[str] = ()) -> None:
    """Return when the disks have data files and then directories, by their URIs, which other replicas have as well.

    Raises StorageUnavailable. Nothing to do on object stores, nor where durability relies on the replicas.
    """
    _sync_uris(syncing.sync_replicated, files, directories)


def sync_always(files: Iterable[str] = (), directories: Iterable[str] = ()) -> None:
    """`sync_data` for what there may be one copy of."""
    _sync_uris(syncing.sync, files, directories)


def sizes_of(uris: Sequence[str]) -> list[int | None]:
    """`size_of` for many files on one storage, asked for together."""
    if not uris:
        return []
    filesystem_, _ = filesystem(uris[0])
    paths = [filesystem(uri)[1] for uri in uris]
    infos = within_deadline("look for", uris[0], lambda: filesystem_.get_file_info(paths))
    return [int(info.size) if info.type == fs.FileType.File else None for info in infos]


def space(uri: str) -> Space | None:
    """Total and free bytes of a local place, None where there is no such thing."""
    path = local_path(uri)
    if path is None:
        return None
    usage = within_deadline("measure", uri, lambda: shutil.disk_usage(path))
    return Space(usage.total, usage.free)


_LOCAL = fs.LocalFileSystem()


@lru_cache(maxsize=256)
def _remote_filesystem(scheme: str, authority: str) -> fs.FileSystem:
    if scheme in ("s3", "s3a"):
        options = _settings.options
        known = {theirs: options[ours] for ours, theirs in _S3_OPTIONS.items() if ours in options}
        return fs.S3FileSystem(**known)
    return fs.FileSystem.from_uri(f"{scheme}://{authority}")[0]


def _sync_uris(how: Callable[..., None], files: Iterable[str], directories: Iterable[str]) -> None:
    local_files, local_directories = _local_paths(files), _local_paths(directories)
    for example in [*local_files, *local_directories][:1]:
        within_deadline("sync to the disk", example, lambda: how(local_files, local_directories))


def _local_paths(uris: Iterable[str]) -> list[str]:
    return [path for uri in uris if (path := local_path(uri)) is not None]


def _missing_above(path: str) -> list[str]:
    """The directories on the way to a path that are not there yet."""
    missing: list[str] = []
    while not os.path.isdir(path) and path != os.path.dirname(path):
        missing.append(path)
        path = os.path.dirname(path)
    return missing


def _temporary(path: str) -> str:
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name}{TEMPORARY}{uuid.uuid4().hex}")


def _write_through(path: str, data: bytes) -> None:
    """Write and flush to the disk: what is renamed into place afterwards survives a power cut as a whole."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        _write_all(descriptor, memoryview(data))
        syncing.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data[:CHUNK]) :]
        deadlines.progress()


def _copy_stream(uri: str, source: fs.FileSystem, source_path: str, target: fs.FileSystem, target_path: str) -> None:
    """Copy from the place `uri`; what hangs while it is read is the source's lateness, not the target's."""
    asked = f"read {uri}"
    reader = deadlines.within(uri, asked, lambda: source.open_input_stream(source_path, compression=None))
    with reader, target.open_output_stream(target_path, compression=None) as writer:
        while chunk := deadlines.within(uri, asked, lambda: reader.read(CHUNK)):
            writer.write(chunk)
            deadlines.progress()


def _info(uri: str) -> fs.FileInfo:
    filesystem_, path = filesystem(uri)
    return within_deadline("look for", uri, lambda: filesystem_.get_file_info(path))


@contextmanager
def _removed_afterwards(path: str) -> Iterator[None]:
    try:
        yield
    finally:
        with suppress(OSError):  # renamed, or on a disk that has just failed: the error on its way says so
            os.unlink(path)
