"""Whether what was staged satisfies checks that its table has got since, or that were not looked at when it was staged.

A row that is live on a replica is there, whatever checks come later. Of rows that are not, none may land that makes a
check false which its replicas know of: so they are read again, where they lie.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from epochlake.jobs.gate.check_expressions import row_checks
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.row_checks import RowChecks, Violation, violation_in_file
from epochlake.jobs.replicas.staging import StagedFile
from epochlake.metastore.errors import Rejected, StorageUnavailable, WrongCluster
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import Table, TableId
from epochlake.metastore.storage import places
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.rejections import Code

Known = frozenset[tuple[str, str]]
"""Checks by name and predicate."""


def known_checks(table: Table | None) -> Known:
    """The checks of a table."""
    return frozenset() if table is None else frozenset((one.name, one.predicate) for one in table.checked)


class StagedChecks:
    """The files of one batch. `known`: checks that hold for their rows; None: nobody asks, they are there already."""

    def __init__(self, storage: Storage, table_id: TableId, files: Sequence[StagedFile], known: Known | None) -> None:
        self._storage = storage
        self._table_id = table_id
        self._files = [one for one in files if one.file.rows and one.stored]
        self._known = known

    def hold(self, metadata: ClusterMetadata) -> bool:
        """Whether all rows satisfy the checks of the table as of `metadata`. Raises StorageUnavailable."""
        return self._violation(metadata) is None

    def require(self, metadata: ClusterMetadata) -> None:
        """Raises Rejected (check-violated) where a row makes a check false, StorageUnavailable."""
        found = self._violation(metadata)
        if found is not None:
            table = metadata.schema.tables[self._table_id]
            raise Rejected(
                Code.CHECK_VIOLATED,
                f"the write to {table.full_name} was made before the table had the check: {found}",
                hint="Correct these rows, or leave them out, and write the others under another name",
            )

    def _violation(self, metadata: ClusterMetadata) -> Violation | None:
        table = metadata.schema.tables.get(self._table_id)
        if table is None or self._known is None:
            return None
        wanted = [one for one in table.checked if (one.name, one.predicate) not in self._known]
        checks = row_checks(table, wanted)
        if checks is None:
            return None
        for staged in self._files:
            found = self._of_file(checks, metadata, staged)
            if found is not None:
                return found
        self._known |= known_checks(table)
        return None

    def _of_file(self, checks: RowChecks, metadata: ClusterMetadata, staged: StagedFile) -> Violation | None:
        failure: StorageUnavailable | WrongCluster | None = None
        for volume in _in_turn(staged.stored):
            address = address_of(self._storage, metadata, checks.table, volume)
            try:
                return violation_in_file(checks, self._storage, places.join(address.uri, staged.file.path))
            except (StorageUnavailable, WrongCluster) as error:
                failure = error
        assert failure is not None
        raise failure


def _in_turn(volumes: Collection[int]) -> list[int]:
    return sorted(volumes)
