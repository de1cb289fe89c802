"""Named readers of a change stream: how far each has read, kept beside the index.

A position that is told here has been read and dealt with; what comes after it is kept for the reader, up to the limit
of the stream. A reader that dies goes on from its position, so it may be given again what it had not told of.
"""

from __future__ import annotations

import re
import time

import msgspec
from epochlake.jobs.replicas.change_index import ChangeIndex
from epochlake.jobs.replicas.stamped import stamped, unstamped
from epochlake.metastore.storage import failures, places
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import InvalidRequest

READERS = "_readers"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\Z")


Part = tuple[int, int]
"""A generation, and the number of a stream of it."""


class Reader(msgspec.Struct, frozen=True):
    """How far a reader has read: `position`, told `at` microseconds since 1970. Stored as JSON.

    `write_id`: of the write at that position, by which an index that went back is noticed; empty where nothing was
    read. `part`: the one stream whose changes it has read up to there; of readers of all changes nothing is stored.
    """

    name: str
    position: int
    write_id: str
    at: int
    part: Part | msgspec.UnsetType = msgspec.UNSET


class Readers:
    """The named readers of one stream. Methods raise StorageUnavailable where the root does not answer."""

    def __init__(self, storage: Storage, index: ChangeIndex) -> None:
        self._storage = storage
        self._index = index
        self._directory = places.join(index.uri, READERS)

    def of(self, name: str) -> Reader | None:
        """A reader by its name; None for one that has told nothing yet."""
        require_reader_name(name)
        try:
            return _decoded(self._storage.read_bytes(self._uri(name)), name)
        except failures.MissingFile:
            return None

    def tell(self, name: str, position: int, part: Part | None = None) -> Reader:
        """Say how far a reader has come, of one stream where a `part` is given. One that says less than was said under
        its name before, as a process does that was paused while another one went on in its place, is not listened to.
        Raises InvalidRequest where the name is used for another stream meanwhile.
        """
        known = self.of(name)
        if known is not None:
            if part is not None and known.part is not msgspec.UNSET and part[0] < known.part[0]:
                return known
            require_same_part(known, part)
            if position < known.position <= self._index.tail().position:
                return known
        return self.set(name, position, part)

    def set(self, name: str, position: int, part: Part | None = None) -> Reader:
        """Say from where a reader reads on, which may be before what it has told."""
        require_reader_name(name)
        entry = self._index.entry(position) if position else None
        write_id = "" if entry is None else entry.write_id
        reader = Reader(name, position, write_id, time.time_ns() // 1000, msgspec.UNSET if part is None else part)
        self._index.make_directory(READERS)
        self._storage.replace_bytes(self._uri(name), stamped(reader))
        return reader

    def forget(self, name: str) -> bool:
        """Keep nothing for a reader any more; whether there was one."""
        if self.of(name) is None:
            return False
        return self._storage.delete_file(self._uri(name))

    def all(self) -> list[Reader]:
        """All of them, by name."""
        try:
            listed = self._storage.list_files(self._directory)
        except failures.MissingFile:
            return []
        names = [entry.name.removesuffix(".json") for entry in listed if places.TEMPORARY not in entry.name]
        return [reader for name in names if NAME.match(name) and (reader := self.of(name)) is not None]

    def _uri(self, name: str) -> str:
        return places.join(self._directory, f"{name}.json")


def require_same_part(reader: Reader, part: Part | None) -> None:
    """That what a reader has told is of the stream that it reads now, of an earlier generation, or of all changes.

    Raises InvalidRequest: its position is no place in another stream, so changes there would be missed.
    """
    told = reader.part
    if told is msgspec.UNSET or part == told or (part is not None and part[0] > told[0]):
        return
    asked = "all changes" if part is None else f"stream {part[1]} of generation {part[0]}"
    raise InvalidRequest(
        f"reader {reader.name} has read stream {told[1]} of generation {told[0]} up to position {reader.position}, and "
        f"would miss what came before that in {asked}",
        hint="Give each stream a reader with a name of its own; or say with `after` from where this one goes on",
    )


def require_reader_name(name: object) -> None:
    """Raises InvalidRequest for a name that no reader can have; None is for those without a name."""
    if name is not None and not (isinstance(name, str) and NAME.match(name)):
        raise InvalidRequest(f"a reader cannot be called {name!r}", hint="Use letters, digits and _.-, 100 at most")


def _decoded(data: bytes, name: str) -> Reader:
    return unstamped(data, Reader, f"how far reader {name} has come")
