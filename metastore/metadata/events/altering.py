"""The event by which the columns of a table become others.

It carries what the columns are from then on, each with its number and its name in files, and the version of the table
that this was planned on. What was allowed is told by comparing both by number (seed 001: versions are assigned by who
commits, and never computed by who reads).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
from epochlake.metastore.metadata.events.base import Event, require
from epochlake.metastore.metadata.events.schema import check_table_columns
from epochlake.metastore.metadata.events.table_checks import require_checks
from epochlake.metastore.metadata.events.table_fields import dropped_fields, field_numbers, require_fields
from epochlake.metastore.metadata.events.table_generated import require_generated
from epochlake.metastore.metadata.events.table_lifetimes import require_kept
from epochlake.metastore.metadata.features import GENERATED_COLUMNS, STRUCT_FIELDS
from epochlake.metastore.metadata.model import Alterations, Check, Column, DroppedColumn, DroppedField, Table
from epochlake.placement.rejections import Code
from epochlake.placement.widening import is_wider

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata

_NESTED = re.compile(r"\s*(array|map|struct)\b", re.IGNORECASE)


class AlterColumns(Event, frozen=True):
    """The columns of a table from now on, in this order. `version`: that of the table for which they were planned.

    A column keeps its number and its name in files whatever else becomes of it; one whose number is not among these is
    dropped; one with a number that the table has not had is added. The primary key stays the same columns. `checks`:
    all that the table has from now on; those of before where it is not said.
    """

    table_id: str
    name: str
    version: str
    columns: tuple[Column, ...]
    checks: tuple[Check, ...] | msgspec.UnsetType = msgspec.UNSET

    def features_used(self) -> tuple[str, ...]:
        fields = any(column.fields is not msgspec.UNSET for column in self.columns)
        generated = any(column.generated is not msgspec.UNSET for column in self.columns)
        used = (*((STRUCT_FIELDS,) if fields else ()), *((GENERATED_COLUMNS,) if generated else ()))
        return (*self.features_of_kind(), *used)

    def check(self, metadata: ClusterMetadata) -> None:
        table = metadata.table(self.name)
        require(table.table_id == self.table_id, Code.STALE_PLAN, f"{self.name} is another table by now")
        require(
            table.version == self.version,
            Code.STALE_PLAN,
            f"the columns of {self.name} have been changed since then",
        )
        same = self.columns == table.numbered and self._checks(table) == table.checked
        require(not same, Code.NOTHING_TO_DO, f"the columns of {self.name} are like that already")
        before = {column.column_id: column for column in table.numbered}
        _require_whole(table, self.columns)
        after = {column.column_id: column for column in self.columns}
        for number in before.keys() - after.keys():
            require(
                before[number].name not in table.primary_key,
                Code.KEY_COLUMN,
                f"column {before[number].name!r} is part of the primary key of {self.name}: it cannot be dropped",
                hint="Make another table with the key that you want, and write the rows there",
            )
        kept_checks = [one for one in self._checks(table) if one.epoch]
        for number, column in after.items():
            require_fields(table, before.get(number), column, kept_checks)
            if number in before:
                _require_kept(table, before[number], column)
            else:
                _require_addable(table, column)
        _require_default_can_be_read(table, self.columns)
        require_checks(table, self.columns, self._checks(table))
        require_generated(table, self.columns)
        require_kept(table, self.columns)
        check_table_columns(_altered(table, self.columns))

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        table = metadata.schema.tables[self.table_id]
        kept = {column.column_id for column in self.columns}
        gone = tuple(
            DroppedColumn(_number(column), column.name, column.stored_name, epoch)
            for column in table.numbered
            if column.column_id not in kept
        )
        created = len(table.columns) if table.alterations is msgspec.UNSET else table.alterations.created
        fields = [number for column in self.columns for number in field_numbers(column)]
        last = max([table.last_column_id, *map(_number, self.columns), *fields])
        checks = tuple(one if one.epoch else msgspec.structs.replace(one, epoch=epoch) for one in self._checks(table))
        altered = msgspec.structs.replace(_altered(table, self.columns), epoch=epoch, checks=checks or msgspec.UNSET)
        if self.columns != table.numbered or _said(checks) != _said(table.checked):
            altered = msgspec.structs.replace(
                altered,
                version=state_id,
                alterations=Alterations(
                    epoch, created, last, (*table.dropped, *gone), self._dropped_fields(table, epoch) or msgspec.UNSET
                ),
            )
        tables = {**metadata.schema.tables, self.table_id: altered}
        return msgspec.structs.replace(
            metadata, schema=msgspec.structs.replace(metadata.schema, tables=tables, epoch=epoch)
        )

    def summary(self) -> str:
        checks = [] if self.checks is msgspec.UNSET else [one.name for one in self.checks]
        told = f", checked by {', '.join(checks)}" if checks else ""
        return f"table {self.name} has the columns {', '.join(column.name for column in self.columns)}{told}"

    def _dropped_fields(self, table: Table, epoch: int) -> tuple[DroppedField, ...]:
        before = {column.column_id: column for column in table.numbered}
        kept = [(before[column.column_id], column) for column in self.columns if column.column_id in before]
        return (*table.dropped_fields, *(one for was, now in kept for one in dropped_fields(was, now, epoch)))

    def _checks(self, table: Table) -> tuple[Check, ...]:
        return table.checked if self.checks is msgspec.UNSET else self.checks


def _altered(table: Table, columns: tuple[Column, ...]) -> Table:
    """The table with other columns; its key is of the same ones, by their names of now."""
    numbers = {column.name: column.column_id for column in table.numbered}
    names = {column.column_id: column.name for column in columns}
    key = tuple(names.get(numbers[name], name) for name in table.primary_key)
    return msgspec.structs.replace(table, columns=columns, primary_key=key)


def _said(checks: tuple[Check, ...]) -> list[tuple[str, str]]:
    """What is asked of rows, whatever is known of those that are there."""
    return [(one.name, one.predicate) for one in checks]


def _number(column: Column) -> int:
    return 0 if column.column_id is msgspec.UNSET else column.column_id


def _require_whole(table: Table, columns: tuple[Column, ...]) -> None:
    """That every column says its number and its name in files, and that no two share one, nor a field a number."""
    numbers, names = [column.column_id for column in columns], [column.stored_as for column in columns]
    numbers += [number for column in columns for number in field_numbers(column)]
    require(
        msgspec.UNSET not in numbers and msgspec.UNSET not in names,
        Code.INVALID_EVENT,
        f"a column of {table.full_name} has no number, or no name in files",
    )
    lowered = [column.stored_name.lower() for column in columns]
    require(
        len(set(numbers)) == len(numbers) and len(set(lowered)) == len(lowered),
        Code.INVALID_EVENT,
        f"two columns of {table.full_name} share a number, or a name in files",
    )


def _require_kept(table: Table, before: Column, after: Column) -> None:
    """That a column which stays is the same one in files, and that all of its values fit."""
    require(
        (before.stored_name, before.default) == (after.stored_name, after.default),
        Code.INVALID_EVENT,
        f"column {before.name!r} of {table.full_name} cannot get another name in files, or another default",
    )
    is_key = before.name in table.primary_key
    require(
        not is_key or (before.type, before.nullable) == (after.type, after.nullable),
        Code.KEY_COLUMN,
        f"column {before.name!r} is part of the primary key of {table.full_name}: its type says where rows are",
        hint="Make another table with the key that you want, and write the rows there",
    )
    require(
        before.type == after.type or is_wider(before.type, after.type) or after.fields is not msgspec.UNSET,
        Code.NARROWER_TYPE,
        f"column {before.name!r} of {table.full_name} is {before.type}, and cannot become {after.type}",
        hint="Wider are smallint, int, bigint of tinyint; double of float and of int; decimals with more digits before "
        "and behind the point; timestamp_ntz of date",
    )
    require(
        before.nullable == after.nullable or after.nullable,
        Code.NULLABLE_COLUMN,
        f"column {before.name!r} of {table.full_name} may be null in rows that are there",
        hint="Add another column that is not null, with a default",
    )


def _require_addable(table: Table, column: Column) -> None:
    require(
        _number(column) > table.last_column_id,
        Code.INVALID_EVENT,
        f"{table.full_name} has had a column number {column.column_id}",
    )
    taken = {one.stored_name.lower() for one in table.columns} | {one.stored_as.lower() for one in table.dropped}
    require(
        column.stored_name.lower() not in taken,
        Code.INVALID_EVENT,
        f"files of {table.full_name} have values under {column.stored_name!r}",
    )
    require(
        column.nullable or column.default is not msgspec.UNSET,
        Code.INVALID_DEFAULT,
        f"column {column.name!r} is not null, and rows that are there do not have it",
        hint="Give it a default, or let it be null"
        if column.generated is msgspec.UNSET
        else "Let it be null: it is computed for rows that are written from now on",
    )


def _require_default_can_be_read(table: Table, columns: tuple[Column, ...]) -> None:
    """Spark fills a default in where a file has no nested column: with one its other reader would show null."""
    nested = next((column.name for column in columns if _NESTED.match(column.type)), None)
    default = next((column.name for column in columns if column.default is not msgspec.UNSET), None)
    require(
        nested is None or default is None,
        Code.INVALID_DEFAULT,
        f"{table.full_name} cannot have column {default!r} with a default beside column {nested!r}, which is nested",
        hint="Add it without a default, and write the values",
    )
