"""Whether rows make a check of their table false: looked at where rows are encoded, and where files were before it.

Rows are looked at as files have them, and as the table is now: so it does not matter for which version of the columns
they were made. It imports no Spark: executors use it as well.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from epochlake.jobs.replicas.file_columns import FileColumns, file_columns
from epochlake.jobs.replicas.row_values import shown_rows
from epochlake.jobs.replicas.run_files import rows_of_file
from epochlake.jobs.replicas.schema import DELETED
from epochlake.metastore.metadata.model import Table
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import words_of


class RowCheck(msgspec.Struct, frozen=True, eq=False):
    """A check as Arrow computes it: `expression` over `columns`, by their names of now."""

    name: str
    predicate: str
    expression: pc.Expression
    columns: tuple[str, ...]


class RowChecks(msgspec.Struct, frozen=True, eq=False):
    """Checks of a table as it is now. Travels to the executors."""

    table: Table
    checks: tuple[RowCheck, ...]


class Violation(msgspec.Struct, frozen=True):
    """`rows` rows make the check `name` false; `key` is that of one of them. `cannot`: why it cannot be computed."""

    name: str
    predicate: str
    rows: int
    key: dict[str, object]
    cannot: str = ""

    def __str__(self) -> str:
        if self.cannot:
            return f"check {self.name!r} ({self.predicate}) cannot be computed of these rows: {self.cannot}"
        return (
            f"check {self.name!r} ({self.predicate}) is false for at least {self.rows} of the rows, as for {self.key}"
        )


def violation(checks: RowChecks, stored: pa.Table) -> Violation | None:
    """What is wrong with rows as a file has them; deletes have no values that could be wrong."""
    known_as = _known_as(checks.table)
    names = [*checks.table.primary_key, *(name for one in checks.checks for name in one.columns)]
    rows = known_as.as_table_is_now(stored.filter(pc.invert(stored.column(DELETED))), names)
    return violation_now(checks, rows)


def violation_now(checks: RowChecks, rows: pa.Table) -> Violation | None:
    """What is wrong with rows that have the columns of now. Where a check is null nothing is."""
    for one in checks.checks:
        try:
            false = rows.filter(~one.expression)
        except pa.ArrowException as error:
            return Violation(one.name, one.predicate, rows.num_rows, {}, words_of(error))
        if false.num_rows:
            [key] = shown_rows(false.slice(0, 1).select(list(checks.table.primary_key)))
            return Violation(one.name, one.predicate, false.num_rows, key)
    return None


def violation_in_file(checks: RowChecks, storage: Storage, uri: str) -> Violation | None:
    """What is wrong with the rows of a data file. Raises StorageUnavailable."""
    for rows in _rows_now(checks, storage, uri):
        found = violation_now(checks, rows)
        if found is not None:
            return found
    return None


def _rows_now(checks: RowChecks, storage: Storage, uri: str) -> Iterator[pa.Table]:
    names = dict.fromkeys([*checks.table.primary_key, *(name for one in checks.checks for name in one.columns)])
    columns = [*names, DELETED]
    for rows, _ in rows_of_file(storage, uri, None, columns, lambda type_: type_, known_as=_known_as(checks.table)):
        yield rows.filter(pc.invert(rows.column(DELETED))).select(list(names))


def _known_as(table: Table) -> FileColumns:
    """How files know the columns; those of a table that was created with its checks, as they were created."""
    return file_columns(table) or FileColumns(table.numbered, len(table.columns))
