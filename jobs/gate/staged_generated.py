"""Whether what was staged has the generated columns that its table has got since, or lacks them.

A row that is live on a replica is one of before, and keeps null in a column that came after it. A row that lands
nowhere before the replicas know of the column is a row of after it: it is staged again, with the column computed. So
the files are looked at, of which nobody here remembers what was computed of their rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow.parquet as pq
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.staging import StagedFile
from epochlake.metastore.errors import StorageUnavailable, WrongCluster
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import Column, Table, TableId
from epochlake.metastore.storage import places
from epochlake.metastore.storage.storage import Storage


class Computed(msgspec.Struct, frozen=True):
    """What is known of staged files: the `numbers` of generated columns that they have as far as is remembered, and
    the ids of files whose rows are `there` already, and are not asked for it. `replaceable`: the same rows at a later
    time can take the place of those that have landed, as nobody was told of them yet.
    """

    numbers: frozenset[int] = frozenset()
    there: frozenset[str] = frozenset()
    replaceable: bool = False


def generated_numbers(*tables: Table | None) -> frozenset[int]:
    """The numbers of all generated columns of a table, as some know it."""
    return frozenset(
        column.column_id
        for table in tables
        if table is not None
        for column in table.generated
        if column.column_id is not msgspec.UNSET
    )


class StagedGenerated:
    """The files of one batch; `computed` None: nobody asks, they count already."""

    def __init__(
        self, storage: Storage, table_id: TableId, files: Sequence[StagedFile], computed: Computed | None
    ) -> None:
        self._storage = storage
        self._table_id = table_id
        self._numbers = frozenset() if computed is None else computed.numbers
        self.is_replaceable = computed is not None and computed.replaceable
        there = frozenset() if computed is None else computed.there
        self._files = [
            one
            for one in files
            if computed is not None and one.file.rows and one.stored and one.file.file_id not in there
        ]

    def lacking(self, metadata: ClusterMetadata) -> list[Column]:
        """The generated columns of the table as of `metadata` that some of the files do not have.

        Raises StorageUnavailable.
        """
        table = metadata.schema.tables.get(self._table_id)
        if table is None or not self._files:
            return []
        asked = [column for column in table.generated if column.column_id not in self._numbers]
        if not asked:
            return []
        lacking: dict[str, Column] = {}
        for staged in self._files:
            names = self._names_in(metadata, table, staged)
            lacking |= {column.name: column for column in asked if column.stored_name not in names}
        if not lacking:
            self._numbers |= generated_numbers(table)
        return list(lacking.values())

    def _names_in(self, metadata: ClusterMetadata, table: Table, staged: StagedFile) -> frozenset[str]:
        """What a file calls its columns."""
        failure: StorageUnavailable | WrongCluster | None = None
        for volume in sorted(staged.stored):
            try:
                address = address_of(self._storage, metadata, table, volume)
                return _names_of(self._storage, places.join(address.uri, staged.file.path))
            except (StorageUnavailable, WrongCluster) as error:
                failure = error
        assert failure is not None
        raise failure


def _names_of(storage: Storage, uri: str) -> frozenset[str]:
    filesystem, path = storage.filesystem(uri)

    def read() -> frozenset[str]:
        with filesystem.open_input_file(path) as stream:
            return frozenset(pq.read_schema(stream).names)

    return storage.within_deadline("read", uri, read)
