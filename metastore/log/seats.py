"""What tells a log member from a directory that only lies where the member was: a blank disk, or an earlier copy.

What a majority has acknowledged is looked for at a majority. So nobody may count there who has lost what he held, and
his word that he holds nothing is not enough: that is what a blank disk says as well. Before a generation is promised by
anybody, each member is given a seat, a file that the generation names together with the time at which the file system
made it. Who has no seat in the generation never held anything of it, and counts; who has one counts as long as the file
is there, and was not made anew (docs/decisions/125-seats.md).
"""

from __future__ import annotations

from typing import NamedTuple

from epochlake.metastore.log.generations import Generation, Seat
from epochlake.metastore.storage import places
from epochlake.metastore.storage.storage import Storage

DIRECTORY = "seats"
"""Below a member: its seats."""

TOLERANCE_MS = 3_000
"""How far the time of a file may be from that at which it was made: file systems round, and its last change may not
have reached the disk before the power went.
"""

_WHOLE = ".whole"


class Held(NamedTuple):
    """What a member says of a generation: whether it has promised it, and has a whole copy of it."""

    promised: bool
    adopted: bool


def give(storage: Storage, uri: str, token: str) -> Seat:
    """Give a seat to a member, on its disk. Raises StorageUnavailable."""
    directory = places.join(uri, DIRECTORY)
    storage.create_directory(directory)
    storage.sync_always(directories=[uri])
    storage.put_if_absent(places.join(directory, token), b"")
    changed = storage.changed_ms(places.join(directory, token))
    return Seat(uri, changed if changed is not None else 0)


def note_whole(storage: Storage, uri: str, generation: Generation) -> None:
    """Say beside the seat that the member has a whole copy, once the copy says so itself."""
    if generation.token:
        storage.put_if_absent(places.join(uri, DIRECTORY, generation.token + _WHOLE), b"")


def take_back(storage: Storage, uri: str, generation: Generation) -> None:
    """Delete a seat in a generation that is over. Raises StorageUnavailable."""
    if generation.token:
        for name in (generation.token + _WHOLE, generation.token):
            storage.delete_file(places.join(uri, DIRECTORY, name))


def doubt(storage: Storage, uri: str, generation: Generation, held: Held) -> str:
    """Why a member that answers may have lost what it held of a generation; "" where it has not.

    Raises StorageUnavailable.
    """
    if not generation.token:
        if held.promised or held.adopted:
            return ""
        return f"it holds nothing of generation {generation.number}: its disk was exchanged, or was never reached"
    seat = generation.seat_of(uri)
    if seat is None:
        return ""
    place = places.join(uri, DIRECTORY, generation.token)
    changed = storage.changed_ms(place)
    if changed is None:
        return (
            f"it has lost what it was given for generation {generation.number}: its disk was exchanged or emptied, or "
            "holds an earlier copy"
        )
    if abs(changed - seat.changed_ms) > TOLERANCE_MS:
        return f"its files were made anew after generation {generation.number} began: it was restored from a copy"
    if (held.adopted and not held.promised) or (not held.adopted and storage.exists(place + _WHOLE)):
        return f"a part of what it held of generation {generation.number} is gone"
    return ""
