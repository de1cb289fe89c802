"""Which directories keep copies of a log, one generation after another (docs/decisions/107-log-members.md).

A generation is a document that never changes. It is kept at the root that it belongs to, and as a promise on every
member that it was shown to: a member that has promised a generation takes nothing of an earlier one any more.

Before anybody promises a generation, each of its members that answers is given a *seat*: a file that the generation
names. Who has lost his seat has lost what he held; who never had one never held anything (seats.py).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from contextlib import suppress

import msgspec
from epochlake.metastore.errors import HashMismatch, LogUnreadable, StorageUnavailable
from epochlake.metastore.storage import failures, numbered, places
from epochlake.metastore.storage.numbered import path_of
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.decoding import decodable
from epochlake.placement.errors import InvalidRequest

DIRECTORY = "log-members"
"""Below a root: where its generations are."""

RESTORING = "restoring"
"""Below the generations of a root: those under which its log began to be restored."""

_encoder = msgspec.json.Encoder(order="sorted")


class Seat(msgspec.Struct, frozen=True):
    """That a member was given the file of its generation, which the file system made at `changed_ms`."""

    member: str
    changed_ms: int


class Generation(msgspec.Struct, frozen=True):
    """`members` are the absolute paths of the directories that keep copies; `root` is whose log they copy. `seats`: of
    those that answered before it was promised, each with the file `token`. Earlier releases gave none: "".
    """

    number: int
    cluster_id: str
    root: str
    members: tuple[str, ...]
    format: int = 1
    token: str = ""
    seats: tuple[Seat, ...] = ()

    @property
    def majority(self) -> int:
        """How many members are more than half of them."""
        return len(self.members) // 2 + 1

    def seat_of(self, uri: str) -> Seat | None:
        """That of a member, if it was given one."""
        return next((seat for seat in self.seats if seat.member == uri), None)


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
    """The generations in a directory, by their numbers, without those that go meanwhile; none where it is not there.

    Raises StorageUnavailable, and HashMismatch for a document that cannot be read.
    """
    found = []
    for number in numbers(storage, directory):
        with suppress(failures.MissingFile):
            found.append(_decoded(storage, directory, number))
    return found


def numbers(storage: Storage, directory: str) -> list[int]:
    """The numbers of the generations in a directory, in order; none where it is not there, or on no file system."""
    if places.local_path(directory) is None:
        return []
    return numbered.numbers(storage, directory)


def newest(storage: Storage, directory: str) -> Generation | None:
    """The newest generation in a directory. Raises as `kept`."""
    there = numbers(storage, directory)
    return _read(storage, directory, there[-1]) if there else None


def put(storage: Storage, directory: str, generation: Generation) -> bool:
    """Keep a generation in a directory whose parent is there; False where another one has its number."""
    storage.create_directory(directory)
    storage.sync_always(directories=[directory.rpartition("/")[0]])
    data = _encoder.encode(generation)
    if storage.put_if_absent(path_of(directory, generation.number), data):
        return True
    return _read(storage, directory, generation.number) == generation


def delete(storage: Storage, directory: str, number: int) -> None:
    """Delete a generation from a directory, if it is there. Raises StorageUnavailable."""
    storage.delete_file(path_of(directory, number))


def begin_restoring(storage: Storage, register: str, generation: Generation) -> None:
    """Say at a root, ahead of all that is written there, that its log is being restored under a generation."""
    storage.create_directory(register)
    storage.sync_always(directories=[register.rpartition("/")[0]])
    if not put(storage, places.join(register, RESTORING), generation):
        raise StorageUnavailable(f"{register} is being restored by somebody else as well", hint="Try again")


def end_restoring(storage: Storage, register: str) -> None:
    """Take that back, when the root has named the generation. Raises StorageUnavailable."""
    storage.delete_directory(places.join(register, RESTORING))


def restoring(storage: Storage, register: str) -> Generation | None:
    """The generation under which a root began to be restored, if that was not ended."""
    begun = newest(storage, places.join(register, RESTORING))
    if begun is None or begun.number <= max(numbers(storage, register), default=0):
        return None
    return begun


def require_restored(storage: Storage, register: str) -> None:
    """Refuse a root whose log is only partly restored. Raises LogUnreadable."""
    begun = restoring(storage, register)
    if begun is not None:
        raise LogUnreadable(
            f"the log at {begun.root} is being restored from its log members, and that was not ended",
            hint=f"Run `epochlake metadata recover {shlex.join(begun.members)}` again, with all members that are left",
        )


def _read(storage: Storage, directory: str, number: int) -> Generation:
    try:
        return _decoded(storage, directory, number)
    except failures.MissingFile as error:
        raise StorageUnavailable(
            f"{path_of(directory, number)} has gone since it was listed", hint="Try again"
        ) from error


def _decoded(storage: Storage, directory: str, number: int) -> Generation:
    path = path_of(directory, number)
    try:
        found = msgspec.json.decode(storage.read_bytes(path), type=decodable(Generation))
    except msgspec.MsgspecError as error:
        raise HashMismatch(
            f"{path} is no generation of log members: {error}", hint="Take it from another one"
        ) from error
    if found.number != number or found.format != 1 or not found.members:
        raise HashMismatch(f"{path} is no generation that this version knows", hint="Use a newer version")
    return found
