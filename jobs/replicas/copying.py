"""Bringing a data file to another replica: whole and checked under the name that it has everywhere, or a piece of it.

A copy that is not wanted whole is cut while it is copied, so a replica never gets a row that is not its.
"""

from __future__ import annotations

import msgspec
from epochlake.jobs.replicas.cutting import cut
from epochlake.jobs.replicas.files import DataFile, cut_id
from epochlake.jobs.replicas.intervals import FilePart, all_of, overlap
from epochlake.jobs.replicas.replica import ReplicaAddress, require_replica
from epochlake.jobs.replicas.sealing import require_intact, require_sealed
from epochlake.metastore.storage import places


class PartCopy(msgspec.Struct, frozen=True):
    """Rows that `target` should have, of a file that `source` has."""

    part: FilePart
    source: ReplicaAddress
    target: ReplicaAddress

    @property
    def file(self) -> DataFile:
        """The file on the source."""
        return self.part.file

    @property
    def key(self) -> str:
        """The file id that will be on the target."""
        part = self.part
        return part.file.file_id if part.whole else cut_id(part.file.origin, part.low, part.high)

    @property
    def size(self) -> int:
        """Bytes to be stored, as if the file's rows were spread evenly over its extent."""
        first, last = self.part.file.extent
        low, high = overlap((self.part.low, self.part.high), (first, last))
        return self.part.file.size if self.part.whole else self.part.file.size * (high - low + 1) // (last - first + 1)


def file_copy(file: DataFile, source: ReplicaAddress, target: ReplicaAddress) -> PartCopy:
    """The copy of a whole file."""
    return PartCopy(all_of(file), source, target)


def copy_data_file(copy: PartCopy) -> DataFile:
    """Store the file, or the piece of it, on the target, where it stays invisible until it is committed; what is there.

    Every byte of the source is verified first: a damaged file is never copied, nor put in the place of a good one. The
    target's volume and table must be there. Raises StorageUnavailable, WrongCluster; DamagedBytes for the source, and
    for what arrived.
    """
    if not copy.part.whole:
        return cut(copy.source, copy.part, copy.target)
    require_replica(copy.target)
    source, target = _uris(copy)
    require_intact(copy.source.storage, copy.file, source)
    _make_directory(copy.target, target)
    copy.target.storage.copy_file(source, target)
    require_sealed(copy.target.storage, copy.file, target)
    return copy.file


def link_data_file(copy: PartCopy) -> DataFile:
    """Give the file a second name on the target where the volumes share a file system (seed 000, intranode migration);
    copy it where they do not, and cut it where only a piece is wanted. Returns and raises as `copy_data_file`.

    Of a file that is linked no byte is read: it is as good or as bad afterwards as it was.
    """
    if not copy.part.whole:
        return cut(copy.source, copy.part, copy.target)
    require_replica(copy.target)
    source, target = _uris(copy)
    _make_directory(copy.target, target)
    if not copy.target.storage.hard_link(source, target):
        return copy_data_file(copy)
    require_sealed(copy.target.storage, copy.file, target)
    return copy.file


def _uris(copy: PartCopy) -> tuple[str, str]:
    return places.join(copy.source.uri, copy.file.path), places.join(copy.target.uri, copy.file.path)


def _make_directory(target: ReplicaAddress, uri: str) -> None:
    target.storage.create_directory(uri.rpartition("/")[0])
