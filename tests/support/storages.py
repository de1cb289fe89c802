"""The storage that tests use where no cluster brings its own: local disks, as the defaults have it."""

from __future__ import annotations

from epochlake.metastore.configuration import StorageSettings
from epochlake.metastore.storage.storage import Storage

STORAGE = Storage(StorageSettings())


def forget() -> None:
    """From now on it knows no more than the storage of a process that has just begun."""
    STORAGE._kept.clear()
