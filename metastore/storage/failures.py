"""What an error of storage means: its kind, and what to do. The one place that reads what libraries and systems say
(docs/decisions/025-kinds-of-storage-failures.md).
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from deltalake.exceptions import DeltaError, TableNotFoundError
from epochlake.metastore.errors import StorageUnavailable
from epochlake.placement.errors import words_of

STORAGE_ERRORS = (OSError, DeltaError, pa.ArrowException, ValueError)
"""What the libraries below raise when storage fails, or holds what cannot be read. `unavailable` says which it was."""


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


class StorageLate(StorageUnavailable):
    """A place has not answered within the deadline; what was asked of it may still happen."""


_KINDS: dict[int, tuple[type[StorageUnavailable], str, str]] = {
    errno.ENOSPC: (StorageFull, "the disk is full", "Make room and try again"),
    errno.EDQUOT: (StorageFull, "the quota is used up", "Make room and try again"),
    errno.EROFS: (StorageUnavailable, "it is mounted read-only", "Mount it writable and try again"),
    errno.EACCES: (StorageMisconfigured, "permission is denied", "Check owner and mode"),
    errno.EPERM: (StorageMisconfigured, "permission is denied", "Check owner and mode"),
    errno.ENOENT: (MissingFile, "it is not there", "Check that the disk is mounted and the URI right"),
    errno.ENOTDIR: (StorageMisconfigured, "a file stands where a directory should be", "Check the URI"),
    errno.EISDIR: (StorageMisconfigured, "a directory stands where a file should be", "Check the URI"),
    errno.ENAMETOOLONG: (StorageMisconfigured, "the name is too long for the file system", "Choose a shorter URI"),
    errno.ELOOP: (StorageMisconfigured, "its symbolic links lead in a circle", "Check the URI"),
    errno.EIO: (StorageUnavailable, "the device reports an error", "Check the disk"),
    errno.ESTALE: (StorageUnavailable, "its mount is stale", "Mount it again and try again"),
    errno.ENODEV: (StorageUnavailable, "the device is gone", "Check the disk"),
    errno.ENXIO: (StorageUnavailable, "the device is gone", "Check the disk"),
    errno.ENOTCONN: (StorageUnavailable, "its mount has no connection", "Mount it again and try again"),
    errno.EHOSTDOWN: (StorageUnavailable, "its file server is down", "Try again when it answers"),
    errno.ETIMEDOUT: (StorageUnavailable, "it does not answer in time", "Try again when it does"),
}
"""What an error number of the system means: the kind of the failure, what it is, and what to do."""

_UNKNOWN_SCHEME = re.compile("unrecognized filesystem type|unknown (url )?scheme|unable to recognise url", re.I)
_NUMBER = re.compile(r"(?:code: |os error |errno )(\d+)")


def unavailable(asked: str, uri: str, error: BaseException) -> StorageUnavailable:
    """The error for `asked` (a verb) at `uri`: its kind, cause and hint. The one place that reads what libraries say.

    StorageUnavailable itself is what may pass. Callers that reach storage through delta-rs or Arrow come here too.
    """
    if isinstance(error, StorageUnavailable):
        return error
    text = words_of(error)
    kind, cause, hint, number = _kind_of(error, text)
    # Where the system has a word for it, what a library makes of it says nothing more.
    said = text if number is None else os.strerror(number)
    return kind(f"cannot {asked} {uri}: {f'{cause} ({said})' if cause else said}", hint=hint)


def _kind_of(error: BaseException, text: str) -> tuple[type[StorageUnavailable], str, str, int | None]:
    number = getattr(error, "errno", None)
    if number is None and (said := _NUMBER.search(text)):  # delta-rs says it in words only
        number = int(said.group(1))
    if number is None:
        number = next((known for known in _KINDS if os.strerror(known) in text), None)
    if number is not None:
        kind, cause, hint = _KINDS.get(
            number, (StorageUnavailable, "", "Check that the place is reachable, and try again")
        )
        return kind, cause, hint, number
    if _UNKNOWN_SCHEME.search(text):
        return StorageMisconfigured, "no file system is known by the scheme of this URI", "Check the URI", None
    if isinstance(error, TableNotFoundError):
        return MissingFile, "there is no table", _KINDS[errno.ENOENT][2], None
    if isinstance(error, OSError):
        return StorageUnavailable, "", "Try again when it answers", None
    torn = "what is there cannot be read, it is torn or not of this kind"
    return StorageDamaged, torn, "Restore or repair it", None


@contextmanager
def naming(asked: str, uri: str) -> Iterator[None]:
    """Turn errors of the storage below into StorageUnavailable that names what was asked and where."""
    try:
        yield
    except STORAGE_ERRORS as error:
        raise unavailable(asked, uri, error) from error
