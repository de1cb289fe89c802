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
_NUMBER = re.compile(r"(?:code: |os error |errno )(\d+)")


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
