"""Receipts: the root keeps the newest acknowledgement of every replica table, so that one which went back is told.

An acknowledgement leaves a mark in the replica table (Delta's application transaction) and, before it is
counted, its name at the root. A table that lacks a mark which it has a receipt for is an older copy of itself: restored
from a backup, a snapshot that was mounted, the other half of a mirror. Its marker is right and its fence may be, and
all the same it lacks rows that it has acknowledged; so it neither acknowledges nor is read before it is whole again.

A receipt says one thing that stays true, "this table has had this mark". Whoever adds a newer one has seen in the table
all that it found, and only then deletes these; so one receipt for each replica table is enough, two that race are both
kept, and no order of deaths loses what a later one did not stand for (docs/decisions/027-restored-self._storage.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

import msgspec
from epochlake.jobs.replicas.replica import ReplicaAddress, ReplicaSnapshot, open_snapshot
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.metadata.model import TableId, VolumeId
from epochlake.metastore.storage import failures, places
from epochlake.metastore.storage.storage import Storage

WENT_BACK = (
    "the replica table {uri} went back: it lacks what it has acknowledged, as a directory that was restored from a "
    "backup. It is neither read nor written until it is whole again: repair its table while all of its other replicas "
    "answer, rebuild its node, or replace it"
)

ON_ANOTHER = "-on-another-copy"
"""How the application of a receipt ends that no table has (see `Receipts.doubt`)."""


class Receipt(msgspec.Struct, frozen=True, order=True):
    """A commit under `(app_id, app_version)` was acknowledged by the replica on a volume."""

    volume_id: VolumeId
    app_version: int
    app_id: str

    @property
    def name(self) -> str:
        return f"{self.volume_id}.{self.app_version}.{self.app_id}"

    def seen_in(self, snapshot: ReplicaSnapshot) -> bool:
        newest = snapshot.applied(self.app_id)
        return newest is not None and newest >= self.app_version


Known = Mapping[VolumeId, Collection[Receipt]]
"""The receipts of a table's replicas."""


class Receipts:
    """The receipts at `uri`, which need not be there yet: empty files `<table id>/<volume>.<version>.<application id>`.

    Methods raise StorageUnavailable when the root does not answer.
    """

    def __init__(self, storage: Storage, uri: str) -> None:
        self.uri = uri
        self._storage = storage

    def of(self, table_id: TableId) -> Known:
        """The receipts of a table's replicas now. Look before opening the snapshots that are held against them."""
        found: dict[VolumeId, list[Receipt]] = defaultdict(list)
        try:
            entries = self._storage.list_files(self._directory(table_id))
        except failures.MissingFile:
            return {}
        for entry in entries:
            volume, version, app_id = [*entry.name.split(".", 2), "", ""][:3]
            if volume.isdecimal() and version.isdecimal() and app_id and places.TEMPORARY not in app_id:
                found[int(volume)].append(Receipt(int(volume), int(version), app_id))
        return found

    def add(self, table_id: TableId, receipt: Receipt, instead_of: Collection[Receipt] = ()) -> None:
        """Add a receipt in the place of others, which the acknowledgement has found in the table."""
        self._storage.create_directory(self._directory(table_id), parents=True)
        self._storage.put_if_absent(self._uri(table_id, receipt), b"")
        self._delete(table_id, [one for one in instead_of if one != receipt])

    def doubt(self, table_id: TableId, receipt: Receipt) -> None:
        """Say that the commit of a receipt has landed on another copy of its table. It has the mark now, which stands
        for earlier ones of that application: so where there are receipts of these, one is added that no table has.
        """
        if any(one.app_id == receipt.app_id for one in self.of(table_id).get(receipt.volume_id, ())):
            self.add(table_id, msgspec.structs.replace(receipt, app_id=f"{receipt.app_id}{ON_ANOTHER}"))

    def forget(self, address: ReplicaAddress) -> None:
        """Forget all that a replica table has acknowledged, before it is made anew."""
        self._delete(address.table_id, self.of(address.table_id).get(address.volume_id, ()))

    def settle(self, address: ReplicaAddress, known: Collection[Receipt]) -> bool:
        """Forget those of `known` that the replica table lacks, as others have brought it all rows since; whether any.

        Raises WrongCluster as well.
        """
        snapshot = open_snapshot(address)
        lacking = [receipt for receipt in known if not receipt.seen_in(snapshot)]
        self._delete(address.table_id, lacking)
        return bool(lacking)

    def _delete(self, table_id: TableId, receipts: Collection[Receipt]) -> None:
        for receipt in receipts:
            self._storage.delete_file(self._uri(table_id, receipt))

    def _directory(self, table_id: TableId) -> str:
        return places.join(self.uri, table_id)

    def _uri(self, table_id: TableId, receipt: Receipt) -> str:
        return places.join(self._directory(table_id), receipt.name)


def went_back(snapshot: ReplicaSnapshot, receipts: Collection[Receipt]) -> str:
    """Why a replica table cannot be believed, for people; empty when it has all that it has acknowledged.

    A table that does not answer any more is not believed either.
    """
    try:
        if all(receipt.seen_in(snapshot) for receipt in receipts):
            return ""
    except StorageUnavailable as error:
        return str(error)
    return WENT_BACK.format(uri=snapshot.address.uri)
