"""Data files on volumes of other agents: read over HTTP, and stored here byte by byte against their seal.

What comes from another agent is believed as far as the seal of the file proves it (replicas/sealing.py). So an answer
that is torn, replayed, or of another file ends before anything has a name here.
"""

from __future__ import annotations

import hashlib
import http.client
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from urllib.parse import urlencode

import msgspec
import pyarrow as pa
from epochlake.jobs.agent.http_client import split_address
from epochlake.jobs.agent.messages import Refusal
from epochlake.jobs.agent.task_messages import ResolvedPlace
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.replica import ReplicaAddress
from epochlake.jobs.replicas.sealing import DamagedBytes, read_seal, require_intact
from epochlake.jobs.replicas.seals import DIGITS
from epochlake.metastore.configuration import StorageSettings
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.storage import failures, places
from epochlake.metastore.storage.deadlines import progress
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.decoding import decodable
from pyarrow import fs

SECONDS = 20.0
"""How long another agent may say nothing: less than a volume may, which is not to blame for it."""

COPIED = 1 << 20
AHEAD = 4 << 20
"""Bytes that are asked for at least where a file is read in parts."""

MOST_REFUSED = 4096

Moved = Callable[[int], None]
"""Told of bytes that have come; it raises when nobody waits for them any more."""


class Asker:
    """Asks agents for files. `token` and `tls` as the agents want them."""

    def __init__(self, token: str | None = None, tls: ssl.SSLContext | None = None) -> None:
        self._token = token
        self._tls = tls

    def open(
        self, place: ResolvedPlace, path: str, start: int, size: int | None
    ) -> tuple[http.client.HTTPResponse, http.client.HTTPConnection]:
        """The answer of an agent, whose body is the bytes. Raises StorageUnavailable."""
        host, port = split_address(place.address)
        asked = {"volume": place.volume, "path": path, "from": str(start), "cluster": place.cluster_id}
        asked |= {} if size is None else {"size": str(size)}
        connection = (
            http.client.HTTPConnection(host, port, timeout=SECONDS)
            if self._tls is None
            else http.client.HTTPSConnection(host, port, timeout=SECONDS, context=self._tls)
        )
        headers = {"Authorization": f"Bearer {self._token}"} if self._token is not None else {}
        try:
            connection.request("GET", f"/file?{urlencode(asked)}", headers=headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise _unavailable(place, path, _why(answer))
            if answer.headers.get("Epochlake-Cluster") != place.cluster_id:
                raise _unavailable(place, path, "it is of another cluster")
            return answer, connection
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise _unavailable(place, path, _words(error)) from error
        except BaseException:
            connection.close()
            raise


class StagingStorage(Storage):
    """Storage whose new files never take the place of one that is there.

    Two who cut the same piece make the same rows, and perhaps other bytes: of another release, or of a source that was
    cut otherwise. Somebody else may have committed his meanwhile, with its size, however late this one comes.
    """

    @contextmanager
    def new_file(self, uri: str) -> Iterator[pa.NativeFile]:
        path = places.require_local(uri)
        temporary = places.temporary_beside(path)
        with failures.naming("write", uri), self._removed_afterwards(temporary):
            with self.disk.open_output(temporary) as stream:
                yield stream
            self.deadlines.within(uri, f"sync {uri}", lambda: self.syncing.sync_replicated([temporary]))
            with suppress(FileExistsError):
                self.disk.link(temporary, path)


class RemoteStorage(StagingStorage):
    """The volume of another agent, as far as data files are read from it: by `cut`, and by what reads seals.

    What `cut` writes goes through the storage of its source: a `target` on this machine, watched as by its own storage.
    """

    def __init__(
        self, asker: Asker, place: ResolvedPlace, moved: Moved, settings: StorageSettings, target: ReplicaAddress
    ) -> None:
        super().__init__(settings)
        self.watch(target.volume_uri)
        self._asker = asker
        self._place = place
        self._moved = moved
        self._prefix = places.join(place.volume_uri, "")

    def path_of(self, uri: str) -> str:
        """The path below the volume."""
        return uri.removeprefix(self._prefix)

    def size_of(self, uri: str) -> int | None:
        answer, connection = self._asker.open(self._place, self.path_of(uri), 0, 0)
        with closing(connection):
            return _total(answer)

    def read_tail(self, uri: str, size: int) -> bytes:
        answer, connection = self._asker.open(self._place, self.path_of(uri), -size, None)
        with closing(connection):
            return self._read(answer, uri, min(size, _total(answer)))

    def read_at(self, uri: str, start: int, size: int) -> bytes:
        """So many bytes from a place on, or those that there are."""
        answer, connection = self._asker.open(self._place, self.path_of(uri), start, size)
        with closing(connection):
            return self._read(answer, uri, max(0, min(size, _total(answer) - start)))

    def _read(self, answer: http.client.HTTPResponse, uri: str, size: int) -> bytes:
        try:
            found = answer.read(size)
        except (OSError, http.client.HTTPException) as error:
            raise _unavailable(self._place, self.path_of(uri), _words(error)) from error
        if len(found) != size:
            raise _unavailable(self._place, self.path_of(uri), "its answer ends early")
        self._moved(size)
        return found

    def filesystem(self, uri: str) -> tuple[fs.FileSystem, str]:
        return fs.PyFileSystem(_OneFile(self)), uri

    def stream(self, uri: str) -> tuple[http.client.HTTPResponse, http.client.HTTPConnection]:
        """All bytes of a file, as they come."""
        return self._asker.open(self._place, self.path_of(uri), 0, None)


class _OneFile(fs.FileSystemHandler):
    """What `cut` opens of a source: files for reading, by their URI."""

    def __init__(self, storage: RemoteStorage) -> None:
        self._storage = storage

    def get_type_name(self) -> str:
        return "agent"

    def open_input_file(self, path: str) -> pa.NativeFile:
        return pa.PythonFile(_Reading(self._storage, path), mode="r")

    def normalize_path(self, path: str) -> str:
        return path

    def _refused(self, *_: object, **__: object) -> None:
        raise OSError("the volume of another agent is only read")

    get_file_info = get_file_info_selector = create_dir = delete_dir = delete_dir_contents = _refused
    delete_root_dir_contents = delete_file = move = copy_file = open_input_stream = _refused
    open_output_stream = open_append_stream = _refused


class _Reading:
    """A file of another agent, read where somebody wants to, some bytes ahead."""

    closed = False

    def __init__(self, storage: RemoteStorage, uri: str) -> None:
        self._storage = storage
        self._uri = uri
        self._size = storage.size_of(uri) or 0
        self._at = 0
        self._start, self._held = 0, b""

    def read(self, size: int = -1) -> bytes:
        size = self._size - self._at if size < 0 else min(size, self._size - self._at)
        found = self._held[self._at - self._start :][:size] if self._start <= self._at else b""
        if len(found) < size:
            self._start = self._at + len(found)
            self._held = self._storage.read_at(self._uri, self._start, max(size - len(found), AHEAD))
            found += self._held[: size - len(found)]
        self._at += len(found)
        return found

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        return self._size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True

    def flush(self) -> None:
        pass


def fetch(file: DataFile, source: ReplicaAddress, target: ReplicaAddress, moved: Moved) -> None:
    """Store a data file of another agent at its place on the target: whole, proved by its seal, and on the disk.

    One that is there already and is whole stays, and counts as new. Raises StorageUnavailable, DamagedBytes.
    """
    uri, source_uri = places.join(target.uri, file.path), places.join(source.uri, file.path)
    if _is_there(file, target, uri):
        return
    assert isinstance(source.storage, RemoteStorage)
    remote = source.storage
    seal = read_seal(remote, file, source_uri)
    if seal.digest is None:
        raise StorageUnavailable(f"{source_uri} is from before seals: nothing proves what comes over the network")
    target.storage.create_directory(uri.rpartition("/")[0])
    answer, connection = remote.stream(source_uri)
    buffer = memoryview(bytearray(COPIED))

    def read(size: int) -> int:
        try:
            return answer.readinto(buffer[:size])
        except (OSError, http.client.HTTPException) as error:
            raise StorageUnavailable(f"{source_uri} cannot be read: {_words(error)}") from error

    def write() -> None:
        with closing(connection), target.storage.new_file(uri) as sink:
            for size, digest in seal.body(file.size):
                found = hashlib.sha256()
                while size:
                    # What hangs meanwhile is the source's lateness, not the target's.
                    most = min(size, COPIED)
                    got = remote.deadlines.within(source_uri, f"read {source_uri}", partial(read, most))
                    if not got:
                        raise DamagedBytes(source_uri, "what its agent sends ends early")
                    found.update(buffer[:got])
                    sink.write(buffer[:got])
                    size -= got
                    moved(got)
                    progress()
                if found.hexdigest()[:DIGITS] != digest:
                    raise DamagedBytes(source_uri, "its bytes are not those that were written")
            sink.write(seal.footer)

    target.storage.within_deadline("write", uri, write)


def _is_there(file: DataFile, target: ReplicaAddress, uri: str) -> bool:
    """Whether the file is stored already, by an earlier try; it counts as new then, so that no clean-up takes it."""
    try:
        return require_intact(target.storage, file, uri) is not None and target.storage.touch(uri)
    except (DamagedBytes, *failures.STORAGE_ERRORS):
        return False


def _total(answer: http.client.HTTPResponse) -> int:
    said = answer.headers.get("Epochlake-Size", "")
    return int(said) if said.isascii() and said.isdigit() and len(said) < 20 else 0


def _why(answer: http.client.HTTPResponse) -> str:
    try:
        return msgspec.json.decode(answer.read(MOST_REFUSED), type=decodable(Refusal)).reason
    except msgspec.MsgspecError:
        return f"it answers {answer.status}"


def _unavailable(place: ResolvedPlace, path: str, why: str) -> StorageUnavailable:
    return StorageUnavailable(f"the agent at {place.address} does not give {place.volume}/{path}: {why}")


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
