"""Copying one data file between replicas: whole, checked, under the name that it has everywhere."""

from __future__ import annotations

import io

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from epochlake.jobs.dataplane.files import DataFile
from epochlake.jobs.dataplane.replica import ReplicaAddress, require_replica
from epochlake.metastore import storage
from epochlake.metastore.errors import StorageUnavailable

_MAGIC = b"PAR1"
_FOOTER_GUESS = 64 << 10
"""Bytes read from the end of a file at first; most footers fit."""


class FileCopy(msgspec.Struct, frozen=True):
    """One file that `target` should have and `source` has."""

    file: DataFile
    source: ReplicaAddress
    target: ReplicaAddress


def copy_data_file(copy: FileCopy) -> None:
    """Store the file on the target, where it stays invisible until it is committed.

    The target's volume and table must be there. Raises StorageUnavailable, WrongCluster; also when what arrived is not
    the file that was asked for.
    """
    require_replica(copy.target)
    source, target = _uris(copy)
    _make_directory(target)
    storage.copy_file(source, target)
    require_whole(copy.file, target)


def link_data_file(copy: FileCopy) -> None:
    """Give the file a second name on the target where the volumes share a file system (seed 000, intranode migration);
    copy it where they do not. Raises as `copy_data_file`.
    """
    require_replica(copy.target)
    source, target = _uris(copy)
    _make_directory(target)
    if storage.hard_link(source, target):
        require_whole(copy.file, target)
    else:
        copy_data_file(copy)


def require_whole(file: DataFile, uri: str) -> None:
    """That the stored file has the size, the footer and the row count that it should. Raises StorageUnavailable."""
    size = storage.size_of(uri)
    if size != file.size:
        raise StorageUnavailable(f"the copy {uri} is torn: it has {size} bytes of {file.size}. Copy it again")
    tail = storage.read_tail(uri, _FOOTER_GUESS)
    footer = int.from_bytes(tail[-8:-4], "little") + 8
    if tail[-4:] == _MAGIC and footer > len(tail):
        tail = storage.read_tail(uri, footer)
    try:
        # A footer is read with offsets from the file's start: it is enough to have the magic there.
        rows = pq.read_metadata(io.BytesIO(_MAGIC + tail[-footer:])).num_rows
    except (pa.ArrowException, OSError, ValueError) as error:
        raise StorageUnavailable(f"the copy {uri} has no readable footer: {error}. Copy it again") from error
    if rows != file.rows:
        raise StorageUnavailable(f"the copy {uri} has {rows} rows of {file.rows}: another file lies under its name")


def _uris(copy: FileCopy) -> tuple[str, str]:
    return storage.join(copy.source.uri, copy.file.path), storage.join(copy.target.uri, copy.file.path)


def _make_directory(uri: str) -> None:
    storage.create_directory(uri.rpartition("/")[0])
