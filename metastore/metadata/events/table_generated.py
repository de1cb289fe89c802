"""What the log asks of the generated columns of a table, whichever event brings them. It never reads an expression."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from epochlake.metastore.metadata.events.base import require
from epochlake.metastore.metadata.model import Column, Table
from epochlake.placement.rejections import Code

LONGEST_EXPRESSION = 4_000


def require_generated(table: Table, columns: Sequence[Column], *, new: bool = False) -> None:
    """That each generated column is one, that those which stay are what they were, and that what they read stays too.

    `columns`: those of the table from then on, numbered. `new`: there was none before.
    """
    before = {} if new else {column.column_id: column for column in table.numbered}
    now = {column.column_id: column for column in columns}
    key = {column.column_id for column in table.numbered if column.name in table.primary_key}
    for column in columns:
        was = before.get(column.column_id)
        require(
            was is None or was.generated == column.generated,
            Code.INVALID_GENERATED_COLUMN,
            f"column {column.name!r} of {table.full_name} cannot become a generated one, or another one, or none",
            hint="Add another column, and drop this one",
        )
        if column.generated is not msgspec.UNSET:
            _require_possible(table, column, column.column_id in key)
            for number in column.generated.columns:
                _require_readable(table, column, before.get(number), now.get(number))


def _require_possible(table: Table, column: Column, is_key: bool) -> None:
    assert column.generated is not msgspec.UNSET
    name = f"column {column.name!r} of {table.full_name}"
    require(
        0 < len(column.generated.expression) <= LONGEST_EXPRESSION,
        Code.INVALID_GENERATED_COLUMN,
        f"the expression of {name} is empty, or has more than {LONGEST_EXPRESSION:,} characters",
    )
    require(bool(column.generated.columns), Code.INVALID_EVENT, f"{name} is generated, and reads no column")
    require(
        not is_key,
        Code.INVALID_GENERATED_COLUMN,
        f"{name} is part of the primary key: it cannot be generated",
        hint="Who deletes a row, or looks for it, gives its key: compute it before the rows are written",
    )
    require(
        column.default is msgspec.UNSET,
        Code.INVALID_GENERATED_COLUMN,
        f"{name} is generated: it has no default",
        hint="Use coalesce(…) in the expression",
    )


def _require_readable(table: Table, column: Column, before: Column | None, now: Column | None) -> None:
    """That a column which a generated one reads is there, as it was."""
    require(
        before is not None or now is not None,
        Code.INVALID_EVENT,
        f"column {column.name!r} of {table.full_name} reads a column that there is not",
    )
    known = before if before is not None else now
    assert known is not None
    assert column.generated is not msgspec.UNSET
    require(
        known.generated is msgspec.UNSET,
        Code.INVALID_GENERATED_COLUMN,
        f"column {column.name!r} of {table.full_name} reads {known.name!r}, which is generated as well",
        hint=f"Write in it what {known.name!r} is",
    )
    same = now is not None and (before is None or (before.name, before.type) == (now.name, now.type))
    require(
        same,
        Code.GENERATING_COLUMN,
        f"generated column {column.name!r} of {table.full_name} reads column {known.name!r}, which keeps its name and "
        f"type: {column.generated.expression}",
        hint=f"Drop the generated column first: --drop {column.name}",
    )
