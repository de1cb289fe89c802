"""Notes of damaged files, at the root: what reads had to go round, for the reads after them, `status` and `repair`.

A note is a hint and never a proof. It is a small file for each damaged copy, named after the copy, so two
who find the same write the same, and a note that is lost is only found again. Repair takes a note away when the copy is
whole again, or is no longer of the table.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterable

import msgspec
from epochlake.jobs.replicas.damage import ExpectedFile
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.metadata.model import TableId, VolumeId
from epochlake.metastore.storage import failures, places
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.decoding import decodable

logger = logging.getLogger(__name__)


class DamageNote(msgspec.Struct, frozen=True):
    """A copy of a data file that was found damaged: on which volume, its path in the replica table, what was found.

    `noted_at`: milliseconds since 1970.
    """

    table_id: TableId
    volume_id: VolumeId
    path: str
    damage: str
    noted_at: int

    @property
    def key(self) -> tuple[VolumeId, str]:
        """Which copy it is about."""
        return self.volume_id, self.path


class DamageNotes:
    """The notes below `uri`, which need not be there yet. Nothing here raises for storage that fails: see above."""

    def __init__(self, storage: Storage, uri: str) -> None:
        self.uri = uri
        self._storage = storage

    def add(self, table_id: TableId, damaged: Iterable[tuple[ExpectedFile, str]]) -> None:
        """Note damaged copies of a table's files with what was found; those that are noted already stay as they are."""
        for stored, damage in damaged:
            note = DamageNote(table_id, stored.address.volume_id, stored.file.path, damage, time.time_ns() // 1_000_000)
            try:
                self._storage.create_directory(self.uri)
                self._storage.create_directory(places.join(self.uri, table_id))
                self._storage.put_if_absent(self._place(note), msgspec.json.encode(note))
            except StorageUnavailable as error:
                logger.warning("the damaged file %s could not be noted for repair: %s", stored.uri, error)

    def of(self, table_id: TableId) -> list[DamageNote]:
        """The notes of a table; those that cannot be read are left out."""
        directory = places.join(self.uri, table_id)
        found = []
        try:
            for entry in self._storage.list_files(directory):
                if entry.name.endswith(".json") and not entry.name.startswith("."):
                    found.append(_decoded(self._storage.read_bytes(places.join(directory, entry.name))))
        except failures.MissingFile:
            pass
        except StorageUnavailable as error:
            logger.warning("the notes of damaged files cannot be read, reads find them anew: %s", error)
        return [note for note in found if note is not None]

    def clear(self, notes: Iterable[DamageNote]) -> None:
        """Take notes away: of copies that are whole, or that no replica has any more."""
        for note in notes:
            try:
                self._storage.delete_file(self._place(note))
            except StorageUnavailable as error:
                logger.warning("the note of %s stays: %s", note.path, error)

    def _place(self, note: DamageNote) -> str:
        name = hashlib.sha256(f"{note.volume_id} {note.path}".encode()).hexdigest()[:32]
        return places.join(self.uri, note.table_id, f"{name}.json")


def _decoded(data: bytes) -> DamageNote | None:
    try:
        return msgspec.json.decode(data, type=decodable(DamageNote))
    except (msgspec.DecodeError, ValueError):
        return None
