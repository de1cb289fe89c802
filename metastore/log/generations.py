"""Which directories keep copies of a log, one generation after another (docs/decisions/107-log-members.md).

A generation is a document that never changes. It is kept at the root that it belongs to, and as a promise on every
member that it was shown to: a member that has promised a generation takes nothing of an earlier one any more.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from epochlake.metastore.errors import HashMismatch, StorageUnavailable
from epochlake.metastore.storage import failures, places
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.decoding import decodable
from epochlake.placement.errors import InvalidRequest

DIRECTORY = "log-members"
"""Below a root: where its generations are."""

_SUFFIX = ".json"
_encoder = msgspec.json.Encoder(order="sorted")


class Generation(msgspec.Struct, frozen=True):
    """`members` are the absolute paths of the directories that keep copies; `root` is whose log they copy."""

    number: int
    cluster_id: str
    root: str
    members: tuple[str, ...]
    format: int = 1

    @property
    def majority(self) -> int:
        """How many members are more than half of them."""
        return len(self.members) // 2 + 1


def members_of(uris: Iterable[str]) -> tuple[str, ...]:
    """The members as a generation holds them: absolute, sorted. Raises InvalidRequest for none, one given twice, or
    one that is on no file system.
    """
    found = []
    for uri in uris:
        path = places.local_path(uri) if uri.strip() else None
        if path is None:
            raise InvalidRequest(
                f"{uri!r} cannot keep a copy of the log: it is no directory of a file system",
                hint="A log member is a directory that this machine reaches by a path",
            )
        found.append(path)
    if not found:
        raise InvalidRequest("no log members were given", hint="Name one directory for each, an odd number of them")
    if len(set(found)) != len(found):
        raise InvalidRequest(
            "a directory was given twice as a log member", hint="Name a directory of another disk for each"
        )
    return tuple(sorted(found))


def kept(storage: Storage, directory: str) -> list[Generation]:
    """The generations in a directory, by their numbers; none where it is not there.

    Raises StorageUnavailable, and HashMismatch for a document that cannot be read.
    """
    return [_read(storage, directory, number) for number in numbers(storage, directory)]


def numbers(storage: Storage, directory: str) -> list[int]:
    """The numbers of the generations in a directory, in order; none where it is not there."""
    try:
        names = storage.list_names(directory)
    except failures.MissingFile:
        return []
    stems = (name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def newest(storage: Storage, directory: str) -> Generation | None:
    """The newest generation in a directory. Raises as `kept`."""
    there = numbers(storage, directory)
    return _read(storage, directory, there[-1]) if there else None


def put(storage: Storage, directory: str, generation: Generation) -> bool:
    """Keep a generation in a directory whose parent is there; False where another one has its number."""
    storage.create_directory(directory)
    storage.sync_always(directories=[directory.rpartition("/")[0]])
    data = _encoder.encode(generation)
    if storage.put_if_absent(_path(directory, generation.number), data):
        return True
    return _read(storage, directory, generation.number) == generation


def _path(directory: str, number: int) -> str:
    return places.join(directory, f"{number:020}{_SUFFIX}")


def _read(storage: Storage, directory: str, number: int) -> Generation:
    path = _path(directory, number)
    try:
        found = msgspec.json.decode(storage.read_bytes(path), type=decodable(Generation))
    except failures.MissingFile as error:
        raise StorageUnavailable(f"{path} has gone since it was listed", hint="Try again") from error
    except msgspec.MsgspecError as error:
        raise HashMismatch(
            f"{path} is no generation of log members: {error}", hint="Take it from another one"
        ) from error
    if found.number != number or found.format != 1 or not found.members:
        raise HashMismatch(f"{path} is no generation that this version knows", hint="Use a newer version")
    return found
