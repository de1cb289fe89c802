"""Documents that never change, one a file, each named by its number in one directory."""

from __future__ import annotations

from epochlake.metastore.storage import failures
from epochlake.metastore.storage.places import join
from epochlake.metastore.storage.storage import Storage

_SUFFIX = ".json"


def path_of(directory: str, number: int) -> str:
    """Where the document of a number is."""
    return join(directory, _name_of(number))


def numbers(storage: Storage, directory: str) -> list[int]:
    """The numbers of the documents in a directory, in order; none where it is not there. A file that only looks as if
    it had a number is none of them. Raises StorageUnavailable.
    """
    try:
        names = storage.list_names(directory)
    except failures.MissingFile:
        return []
    stems = (name.removesuffix(_SUFFIX) for name in names if name.isascii())
    there = set(names)
    return sorted(number for number in {int(one) for one in stems if one.isdecimal()} if _name_of(number) in there)


def _name_of(number: int) -> str:
    return f"{number:020}{_SUFFIX}"
