"""What must hold of files right before they are committed: they are there, whole, and the disk has their names.

A process may be paused for any time between storing a file and committing it, and clean-up may take the
file meanwhile. So every commit looks again, whatever it is for, and looks after it has opened the snapshot that it
commits against: clean-up changes the table before it deletes anything (vacuum.py), which makes that commit fail.
"""

from __future__ import annotations

from collections.abc import Sequence

from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.replica import ReplicaAddress
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.storage import places


def is_stored(file: DataFile, where: ReplicaAddress) -> bool:
    """Whether the bytes of a staged file are still there. Raises StorageUnavailable."""
    return where.storage.size_of(places.join(where.uri, file.path)) == file.size


def require_stored(files: Sequence[DataFile], where: ReplicaAddress) -> None:
    """That all files are there, and that the disk has their names. Raises StorageUnavailable.

    Their bytes are synced by whoever has written them.
    """
    uris = [places.join(where.uri, file.path) for file in files]
    for file, uri, size in zip(files, uris, where.storage.sizes_of(uris), strict=True):
        if size != file.size:
            found = "it is not there any more" if size is None else f"it has {size} bytes of {file.size}"
            raise StorageUnavailable(f"the stored file {uri} cannot be committed: {found}", hint="Do it again")
    directories = dict.fromkeys(uri.rpartition("/")[0] for uri in uris)
    where.storage.sync_data(directories=[*directories, where.uri] if directories else [])
