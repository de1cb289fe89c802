"""Snapshots: the whole metadata as of an epoch in one file, so that catching up need not begin at the first epoch.

The same metadata always gives the same bytes (`snapshot_format.py`), so whoever follows the log can check a snapshot
that somebody else wrote. One that is torn, altered or unreadable is skipped for an older one, or for the log from its
beginning; it is never half used.
"""

from __future__ import annotations

import logging
import re

from epochlake.metastore.errors import StorageUnavailable, UnknownFormat
from epochlake.metastore.following.snapshot_format import decode_snapshot, encode_snapshot, format_of
from epochlake.metastore.log.entry import Entry, Position, position_of
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import TakeSnapshot
from epochlake.metastore.storage.storage import Storage

logger = logging.getLogger(__name__)

_NAME = re.compile(r"(\d{20})\.snapshot\Z")


def is_proved(entry: Entry | None, metadata: ClusterMetadata, position: Position) -> bool:
    """Whether the log's entry says that a snapshot is the one of its epoch: by hash, and by the state's digest.

    An entry that asks for no snapshot proves none. One from before there were digests proves the position only.
    """
    if entry is None or position_of(entry) != position or entry.event != TakeSnapshot.kind():
        return False
    event = entry.decode()
    return isinstance(event, TakeSnapshot) and event.proves(metadata)


class Snapshots:
    """The snapshots of one root: a directory with a file for each."""

    def __init__(self, storage: Storage, uri: str) -> None:
        self.uri = uri
        self._storage = storage

    def epochs(self) -> list[int]:
        """Epochs that there are snapshots of, ascending."""
        if not self._storage.exists(self.uri):
            return []
        found = (_NAME.match(entry.name) for entry in self._storage.list_files(self.uri))
        return sorted(int(match[1]) for match in found if match)

    def path(self, epoch: int) -> str:
        return f"{self.uri}/{epoch:020}.snapshot"

    def write(self, metadata: ClusterMetadata, position: Position) -> bool:
        """Write the snapshot of `metadata` unless there is one; whether this call has written it."""
        path = self.path(position.epoch)
        if self._storage.exists(path):
            return False
        self._storage.create_directory(self.uri, parents=True)
        return self._storage.put_if_absent(path, encode_snapshot(metadata, position))

    def read(self, epoch: int) -> tuple[ClusterMetadata, Position]:
        """Raises UnknownFormat when it is damaged, StorageUnavailable when it is not there."""
        metadata, position = decode_snapshot(self._storage.read_bytes(self.path(epoch)))
        if position.epoch != epoch:
            raise UnknownFormat(f"the snapshot of epoch {epoch} holds epoch {position.epoch}")
        return metadata, position

    def put_aside(self, epoch: int) -> None:
        """Keep the file of a snapshot under another name, by which nobody looks for it."""
        path = self.path(epoch)
        self._storage.replace_bytes(f"{path}.lost", self._storage.read_bytes(path))
        self._storage.delete_file(path)

    def newest(self, at_most: int | None = None) -> tuple[ClusterMetadata, Position] | None:
        """The highest usable snapshot, at or below epoch `at_most` when given; damaged ones are skipped."""
        try:
            epochs = [epoch for epoch in self.epochs() if at_most is None or epoch <= at_most]
        except StorageUnavailable as error:
            logger.warning("snapshots are not looked at: %s", error)
            return None
        for epoch in reversed(epochs):
            try:
                return self.read(epoch)
            except (UnknownFormat, StorageUnavailable) as error:
                logger.warning("the snapshot of epoch %d is not used: %s", epoch, error)
        return None

    def matches(self, metadata: ClusterMetadata, position: Position) -> bool:
        """Whether the stored snapshot is, byte for byte, the one of `metadata`; of an older format, whether it says
        the same.
        """
        stored = self._storage.read_bytes(self.path(position.epoch))
        written = encode_snapshot(metadata, position)
        if stored == written:
            return True
        return format_of(stored) < format_of(written) and decode_snapshot(stored) == (metadata, position)


class SnapshotWriter:
    """A listener that writes the snapshot which an epoch asks for (seed 002: every follower may)."""

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots

    def before(self, entry: Entry, metadata: ClusterMetadata) -> None:
        """Nothing to do before an epoch."""

    def after(self, entry: Entry, metadata: ClusterMetadata) -> None:
        if entry.event == TakeSnapshot.kind():
            self._snapshots.write(metadata, position_of(entry))
