"""All access to roots and volumes: everything else names a place by its URI, and asks the storage that it was given.

Whatever goes wrong behind a URI becomes StorageUnavailable, of the kind that it is, with the URI, the cause and what to
do. Every access goes through `within_deadline`. Local files get what only they can do: atomic replacement,
put-if-absent, hard links, free space. Object stores put whole objects, which is atomic by itself.

What is put, replaced or created here is on the disk when the call returns. Data files are synced in groups by those who
write many of them: `sync_data` (syncing.py says when and why).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
from epochlake.metastore.configuration import StorageSettings
from epochlake.metastore.storage.dead_ends import dead_end, is_directory
from epochlake.metastore.storage.deadlines import Deadlines, progress
from epochlake.metastore.storage.disk import Disk, is_same_file
from epochlake.metastore.storage.failures import StorageMisconfigured, naming
from epochlake.metastore.storage.local_disk import LocalDisk
from epochlake.metastore.storage.object_stores import ObjectStores
from epochlake.metastore.storage.places import local_path, require_local, temporary_beside
from epochlake.metastore.storage.syncing import Sync, Syncing
from epochlake.placement.decoding import decodable
from pyarrow import fs

CHUNK = 8 << 20
"""Bytes that are copied at a time between file systems that cannot copy by themselves."""

T = TypeVar("T")


class FileEntry(msgspec.Struct, frozen=True):
    """A file below a listed directory: `name` relative to it, `size` in bytes, `modified_ms` since the Unix epoch."""

    name: str
    size: int
    modified_ms: int


class Space(msgspec.Struct, frozen=True):
    """Bytes of the file system that a place is on."""

    total: int
    free: int


class Storage:
    """Storage as one cluster uses it: its settings, its deadlines, what it promises, and what is kept about its places.

    Two storages share nothing but the threads of the process. Equal settings make equal storages; a pickled one is the
    storage of these settings in the process where it arrives. Safe for use by several threads.

    `disk` is what local paths are on. Its single steps are for calls inside `within_deadline` only.
    """

    def __init__(self, settings: StorageSettings, *, disk: Disk | None = None) -> None:
        self.settings = settings
        self.disk = disk or LocalDisk()
        self.deadlines = Deadlines(settings.deadline_seconds)
        self.syncing = Syncing(self.disk, settings.durability)
        self._stores = ObjectStores(settings.options)
        self._kept: dict[type, Any] = {}
        self._hash = hash(msgspec.json.encode(settings, order="sorted"))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, Storage) and self.settings == other.settings

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Callable[..., Storage], tuple[bytes]]:
        return storage_of_process, (msgspec.json.encode(self.settings, order="sorted"),)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"  # options hold secrets

    def kept(self, kind: type[T]) -> T:
        """What a module keeps about the places of this storage, for as long as it: made as `kind()` by who asks first.

        Each kind is a class of the module that keeps it.
        """
        found = self._kept.get(kind)
        if found is None:
            found = self._kept.setdefault(kind, kind())
        kept: T = found
        return kept

    def delta_options(self, uri: str) -> dict[str, str]:
        """What delta-rs needs for this place: nothing for local files."""
        return {} if local_path(uri) is not None else dict(self.settings.options)

    def filesystem(self, uri: str) -> tuple[fs.FileSystem, str]:
        """The file system behind a URI (kept), to be read from inside `within_deadline`, and the path in it."""
        path = local_path(uri)
        if path is not None:
            return self.disk.arrow, path
        parts = urlsplit(uri)
        with naming("reach", uri):
            return self._stores.at(parts.scheme, parts.netloc), f"{parts.netloc}{unquote(parts.path)}"

    def watch(self, uri: str) -> None:
        """From now on every access to this place, and to what lies below it, has the deadline."""
        self.deadlines.watch(uri)

    def within_deadline(self, asked: str, uri: str, call: Callable[[], T]) -> T:
        """`call()`, which touches `uri`, within the deadline. Raises StorageUnavailable for all that storage raises."""
        with naming(asked, uri):
            return self.deadlines.within(uri, f"{asked} {uri}", call)

    def read_bytes(self, uri: str) -> bytes:
        """The whole file. Raises MissingFile, StorageUnavailable."""
        path = local_path(uri)
        if path is not None:
            return self.within_deadline("read", uri, lambda: self.disk.read(path))
        store, key = self.filesystem(uri)

        def read() -> bytes:
            with store.open_input_stream(key, compression=None) as stream:
                return bytes(stream.read())

        return self.within_deadline("read", uri, read)

    def read_tail(self, uri: str, size: int) -> bytes:
        """The last `size` bytes of a file, or all of it when it is shorter."""
        path = local_path(uri)
        if path is not None:
            return self.within_deadline("read", uri, lambda: self.disk.read_tail(path, size))
        store, key = self.filesystem(uri)

        def read() -> bytes:
            with store.open_input_file(key) as stream:
                start = max(0, stream.size() - size)
                stream.seek(start)
                return bytes(stream.read(size))

        return self.within_deadline("read", uri, read)

    def write_bytes(self, uri: str, data: bytes | pa.Buffer) -> None:
        """Write a file whose name nobody else uses yet. A failure may leave a torn one, so this is for staging only.

        It is not on the disk until `sync_data` says so.
        """
        path = local_path(uri)
        if path is not None:
            return self.within_deadline("write", uri, lambda: self.disk.write(path, data, new=False))
        store, key = self.filesystem(uri)

        def write() -> None:
            with store.open_output_stream(key, compression=None) as stream:
                for start in range(0, len(data), CHUNK):
                    stream.write(data[start : start + CHUNK])
                    progress()

        return self.within_deadline("write", uri, write)

    @contextmanager
    def new_file(self, uri: str) -> Iterator[pa.NativeFile]:
        """A stream into a large file, which appears under its name when the block ends well, in place of one that is
        there.

        Its bytes are on the disk then, as its replicas' durability is. When it does not end well there is nothing; on
        an object store there may be a torn object.
        """
        path = local_path(uri)
        with naming("write", uri):
            if path is None:
                store, key = self.filesystem(uri)
                with store.open_output_stream(key, compression=None) as stream:
                    yield stream
                return
            temporary = temporary_beside(path)
            with self._removed_afterwards(temporary):
                with self.disk.open_output(temporary) as stream:
                    yield stream
                self.deadlines.within(uri, f"sync {uri}", lambda: self.syncing.sync_replicated([temporary]))
                self.disk.rename(temporary, path)

    def touch(self, uri: str) -> bool:
        """Make a file count as just written; False where it is not there, or storage cannot (write it again then)."""
        path = local_path(uri)
        if path is None:
            return False

        def set_times() -> bool:
            try:
                self.disk.touch(path)
            except FileNotFoundError:
                return False
            return True

        return self.within_deadline("touch", uri, set_times)

    def put_if_absent(self, uri: str, data: bytes) -> bool:
        """Write a small file unless there is one; whether it was written. The file is never seen torn.

        The one that is there then, whoever wrote it, is on the disk. Atomic for local files. An object store is asked
        first: two writers at the same instant may both get True there.
        """
        path = local_path(uri)
        if path is None:
            if self.exists(uri):
                return False
            self.write_bytes(uri, data)
            return True

        def put() -> bool:
            temporary = temporary_beside(path)
            with self._removed_afterwards(temporary):
                self._write_through(temporary, data)
                try:
                    self.disk.link(temporary, path)
                except FileExistsError:
                    self.syncing.sync([path], [os.path.dirname(path)])
                    return False
                self.syncing.sync(directories=[os.path.dirname(path)])
                return True

        return self.within_deadline("create", uri, put)

    def replace_bytes(self, uri: str, data: bytes) -> None:
        """Write a small file in place of the one that may be there; a reader sees the old or the new one."""
        path = local_path(uri)
        if path is None:
            return self.write_bytes(uri, data)

        def replace() -> None:
            temporary = temporary_beside(path)
            with self._removed_afterwards(temporary):
                self._write_through(temporary, data)
                self.disk.rename(temporary, path)
                self.syncing.sync(directories=[os.path.dirname(path)])

        return self.within_deadline("replace", uri, replace)

    def create_directory(self, uri: str, *, parents: bool = False) -> None:
        """Make sure that a directory is there. Without `parents` its parent must be: a lost mount is not papered over.

        With `parents` it is on the disk. Else it is one of many, and synced with what comes into it (`sync_data`).
        """
        path = local_path(uri)

        def create() -> None:
            if path is None:
                store, key = self.filesystem(uri)
                store.create_dir(key, recursive=parents)
            elif parents:
                self._create_with_parents(uri, path)
            elif not is_directory(self.disk, path):
                with suppress(FileExistsError):
                    self.disk.make_directory(path)

        self.within_deadline("create the directory", uri, create)

    def _create_with_parents(self, uri: str, path: str) -> None:
        missing = self._missing_above(path)
        try:
            for one in reversed(missing):
                self._make_or_find_directory(one)
        except (FileExistsError, FileNotFoundError) as error:
            found = dead_end(self.disk, path)
            if found is None:
                raise
            why, what_to_do = found
            raise StorageMisconfigured(f"cannot create the directory {uri}: {why}", hint=what_to_do) from error
        self.syncing.sync(directories=[os.path.dirname(one) for one in (*missing, path)])

    def _make_or_find_directory(self, path: str) -> None:
        try:
            self.disk.make_directory(path)
        except FileExistsError:
            if not is_directory(self.disk, path):
                raise

    def exists(self, uri: str) -> bool:
        """Whether a file or directory is there. Raises StorageUnavailable when that cannot be told."""
        path = local_path(uri)
        if path is not None:
            return self.within_deadline("look for", uri, lambda: self.disk.status(path)) is not None
        return self._info(uri).type != fs.FileType.NotFound

    def size_of(self, uri: str) -> int | None:
        """Bytes of a file, None when there is no such file."""
        found = self._file(uri)
        return found[0] if found is not None else None

    def modified_ms(self, uri: str) -> int | None:
        """When a file was last written, milliseconds since the Unix epoch; None when there is no such file."""
        found = self._file(uri)
        return found[1] // 1_000_000 if found is not None else None

    def changed_ms(self, uri: str) -> int | None:
        """When the file system last made or changed a local file, milliseconds since the Unix epoch, which no copy of
        it brings along; None when there is no such file.
        """
        path = require_local(uri)
        status = self.within_deadline("look for", uri, lambda: self.disk.status(path))
        return status.changed_ns // 1_000_000 if status is not None and status.is_file else None

    def sizes_of(self, uris: Sequence[str]) -> list[int | None]:
        """`size_of` for many files on one storage, asked for together."""
        if not uris:
            return []
        paths = [local_path(uri) for uri in uris]

        def look() -> list[int | None]:
            found = [self.disk.status(path) for path in paths if path is not None]
            return [status.size if status is not None and status.is_file else None for status in found]

        if None not in paths:
            return self.within_deadline("look for", uris[0], look)
        store, _ = self.filesystem(uris[0])
        keys = [self.filesystem(uri)[1] for uri in uris]
        infos = self.within_deadline("look for", uris[0], lambda: store.get_file_info(keys))
        return [int(info.size) if info.type == fs.FileType.File else None for info in infos]

    def list_files(self, uri: str) -> list[FileEntry]:
        """All files below a directory, however deep, sorted by name. Raises MissingFile when it is not there."""
        path = local_path(uri)
        listed = self._listed if path is not None else self._listed_in_store
        key = path if path is not None else self.filesystem(uri)[1]
        prefix = len(key.rstrip("/")) + 1
        found = self.within_deadline("list", uri, lambda: listed(uri, key))
        entries = [FileEntry(path[prefix:], size, modified // 1_000_000) for path, size, modified in found]
        return sorted(entries, key=lambda entry: entry.name)

    def list_names(self, uri: str) -> list[str]:
        """The names in a directory, in no order. Raises MissingFile when it is not there."""
        path = local_path(uri)
        if path is not None:
            return self.within_deadline("list", uri, lambda: self.disk.names(path))
        store, key = self.filesystem(uri)
        return self.within_deadline(
            "list", uri, lambda: [info.base_name for info in store.get_file_info(fs.FileSelector(key))]
        )

    def move_file(self, source: str, target: str) -> bool:
        """Give a local file another name in its directory, in place of none; whether it was there."""
        source_path, target_path = require_local(source), require_local(target)

        def move() -> bool:
            try:
                self.disk.rename(source_path, target_path)
            except FileNotFoundError:
                return False
            return True

        return self.within_deadline(f"move {source} to", target, move)

    def delete_file(self, uri: str) -> bool:
        """Delete a file; whether it was there."""
        path = local_path(uri)

        def delete() -> bool:
            if path is None:
                store, key = self.filesystem(uri)
                if store.get_file_info(key).type == fs.FileType.NotFound:
                    return False
                store.delete_file(key)
                return True
            try:
                self.disk.delete(path)
            except FileNotFoundError:
                return False
            return True

        return self.within_deadline("delete", uri, delete)

    def delete_directory(self, uri: str) -> None:
        """Delete a local directory with all that is in it, if it is there. Raises StorageUnavailable."""
        path = require_local(uri)

        def delete() -> None:
            with suppress(FileNotFoundError):
                self.delete_tree(path)

        self.within_deadline("delete", uri, delete)

    def delete_tree(self, path: str) -> None:
        """Delete what is at a local path, a directory with all that is in it; links are deleted, never followed.

        To be called inside `within_deadline`. Raises OSError.
        """
        there = self.disk.status(path, follow=False)
        if there is None or not there.is_directory:
            return self.disk.delete(path)
        for name in self.disk.names(path):
            self.delete_tree(os.path.join(path, name))
        return self.disk.delete_directory(path)

    def copy_file(self, source: str, target: str) -> int:
        """Copy a data file and return its bytes. The target appears whole under its name or not at all, synced first.

        By the store itself where both are on the same one, else as a stream, of which each part may take the deadline.
        """
        from_store, from_path = self.filesystem(source)
        target_path = local_path(target)

        def copy() -> int:
            if target_path is not None:
                temporary = temporary_beside(target_path)
                with self._removed_afterwards(temporary):
                    with self.disk.open_output(temporary) as writer:
                        size = self._copy_stream(source, from_store, from_path, writer)
                    self.syncing.sync_replicated([temporary])
                    self.disk.rename(temporary, target_path)
                    return size
            to_store, to_path = self.filesystem(target)
            if from_store is to_store:
                from_store.copy_file(from_path, to_path)
            else:
                with to_store.open_output_stream(to_path, compression=None) as writer:
                    self._copy_stream(source, from_store, from_path, writer)
            return int(to_store.get_file_info(to_path).size)

        return self.within_deadline(f"copy {source} to", target, copy)

    def hard_link(self, source: str, target: str) -> bool:
        """Store the same bytes under a second name without copying; False where storage cannot (copy then).

        The file counts as just written, for all of its names: whoever deletes by age leaves the new name alone.
        """
        source_path, target_path = local_path(source), local_path(target)
        if source_path is None or target_path is None:
            return False

        def link() -> bool:
            try:
                self.disk.link(source_path, target_path)
            except FileExistsError:
                if not is_same_file(self.disk, source_path, target_path):
                    return False
            except OSError as error:
                if error.errno in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
                    return False
                raise
            self.disk.touch(target_path)
            return True

        return self.within_deadline(f"link {source} to", target, link)

    def is_same_place(self, uri: str, other: str) -> bool:
        """Whether two URIs name one directory, also by different paths (links, mounts); False where that cannot be
        told.
        """
        if uri.rstrip("/") == other.rstrip("/"):
            return True
        one, two = local_path(uri), local_path(other)
        try:
            return one is not None and two is not None and is_same_file(self.disk, one, two)
        except OSError:
            return False

    def sync_data(self, files: Iterable[str] = (), directories: Iterable[str] = ()) -> None:
        """Return when the disks have data files and then directories, by their URIs, which other replicas have as well.

        Raises StorageUnavailable. Nothing to do on object stores, nor where durability relies on the replicas.
        """
        self._sync_uris(self.syncing.sync_replicated, files, directories)

    def sync_always(self, files: Iterable[str] = (), directories: Iterable[str] = ()) -> None:
        """`sync_data` for what there may be one copy of."""
        self._sync_uris(self.syncing.sync, files, directories)

    def space(self, uri: str) -> Space | None:
        """Total and free bytes of a local place, None where there is no such thing."""
        path = local_path(uri)
        if path is None:
            return None
        usage = self.within_deadline("measure", uri, lambda: self.disk.usage(path))
        return Space(usage.total, usage.free)

    def _sync_uris(self, how: Sync, files: Iterable[str], directories: Iterable[str]) -> None:
        local_files, local_directories = _local_paths(files), _local_paths(directories)
        for example in [*local_files, *local_directories][:1]:
            self.within_deadline("sync to the disk", example, lambda: how(local_files, local_directories))

    def _write_through(self, path: str, data: bytes) -> None:
        """Write and flush to the disk: what is renamed into place afterwards survives a power cut as a whole."""
        self.disk.write(path, data, new=True)
        self.syncing.sync([path])

    def _copy_stream(self, uri: str, source: fs.FileSystem, path: str, writer: pa.NativeFile) -> int:
        """Copy from the place `uri`; what hangs while it is read is the source's lateness, not the target's. Bytes."""
        asked, size = f"read {uri}", 0
        reader = self.deadlines.within(uri, asked, lambda: source.open_input_stream(path, compression=None))
        with reader:
            while chunk := self.deadlines.within(uri, asked, lambda: reader.read(CHUNK)):
                writer.write(chunk)
                size += len(chunk)
                progress()
        return size

    def _file(self, uri: str) -> tuple[int, int] | None:
        """Bytes of a file, and when it was written, in nanoseconds since the Unix epoch; None without it."""
        path = local_path(uri)
        if path is not None:
            status = self.within_deadline("look for", uri, lambda: self.disk.status(path))
            return (status.size, status.modified_ns) if status is not None and status.is_file else None
        info = self._info(uri)
        return (int(info.size), int(info.mtime_ns or 0)) if info.type == fs.FileType.File else None

    def _info(self, uri: str) -> fs.FileInfo:
        store, key = self.filesystem(uri)
        return self.within_deadline("look for", uri, lambda: store.get_file_info(key))

    def _listed(self, uri: str, path: str) -> list[tuple[str, int, int]]:
        """The files below a path with bytes and times, a directory at a time, so that a long listing makes progress."""
        files: list[tuple[str, int, int]] = []
        directories = [path.rstrip("/")]
        while directories:
            directory = directories.pop()
            for name, status in self.disk.entries(directory or "/"):
                if status.is_directory:
                    directories.append(f"{directory}/{name}")
                elif status.is_file:
                    files.append((f"{directory}/{name}", status.size, status.modified_ns))
            progress()
        return files

    def _listed_in_store(self, uri: str, key: str) -> list[tuple[str, int, int]]:
        store, _ = self.filesystem(uri)
        files: list[tuple[str, int, int]] = []
        directories = [key]
        while directories:
            for info in store.get_file_info(fs.FileSelector(directories.pop())):
                if info.type == fs.FileType.Directory:
                    directories.append(info.path)
                elif info.type == fs.FileType.File:
                    files.append((info.path, int(info.size), int(info.mtime_ns or 0)))
            progress()
        return files

    def _missing_above(self, path: str) -> list[str]:
        """The directories on the way to a path that are not there yet, and the path itself; the deepest first."""
        missing: list[str] = []
        while not is_directory(self.disk, path) and path != os.path.dirname(path):
            missing.append(path)
            path = os.path.dirname(path)
        return missing

    @contextmanager
    def _removed_afterwards(self, path: str) -> Iterator[None]:
        try:
            yield
        finally:
            with suppress(OSError):  # renamed, or on a disk that has just failed: the error on its way says so
                self.disk.delete(path)


@lru_cache(maxsize=64)
def storage_of_process(settings: bytes) -> Storage:
    """The storage of settings, as JSON, in a process that gets its work pickled: one for all tasks, so that what it
    keeps lives on between them.
    """
    return Storage(msgspec.json.decode(settings, type=decodable(StorageSettings)))


def _local_paths(uris: Iterable[str]) -> list[str]:
    return [path for uri in uris if (path := local_path(uri)) is not None]
