"""What the log asks of the times to live of a table, whichever event brings them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from epochlake.metastore.metadata.events.base import require
from epochlake.metastore.metadata.model import Column, Table, TimeToLive
from epochlake.placement.rejections import Code

LONGEST_SECONDS = 1000 * 365 * 86_400
"""With longer ones the bound would be a moment that Spark and Python cannot write."""

_TYPES = ("timestamp", "timestamp_ltz")


def require_lifetimes(table: Table, lifetimes: Sequence[TimeToLive]) -> None:
    """Reject what is no time to live, or of a column that cannot have one."""
    columns = {column.column_id: column for column in table.numbered}
    for one in lifetimes:
        column = columns.get(one.column_id)
        require(
            column is not None,
            Code.UNKNOWN_COLUMN,
            f"{table.full_name} has no column number {one.column_id} by which rows could expire",
        )
        assert column is not None
        require(
            column.type.strip().lower() in _TYPES,
            Code.INVALID_TTL,
            f"rows of {table.full_name} cannot expire by column {column.name!r}, which is {column.type}",
            hint="Give a column of type timestamp: a date or a timestamp_ntz does not say which moment is meant",
        )
        require(
            one.seconds is None or 0 < one.seconds <= LONGEST_SECONDS,
            Code.INVALID_TTL,
            f"rows of {table.full_name} cannot live for {one.seconds} seconds",
            hint="Give whole seconds, from 1 to a thousand years",
        )
        require(one.since > 0, Code.INVALID_EVENT, f"a time to live of {table.full_name} begins at {one.since}")
    require(
        all(first.since < second.since for first, second in pairwise(lifetimes)),
        Code.INVALID_EVENT,
        f"the times to live of {table.full_name} do not follow each other",
    )


def require_kept(table: Table, columns: Sequence[Column]) -> None:
    """Reject columns without one by which rows have expired: all of these would come back."""
    kept = {column.column_id for column in columns}
    names = {column.column_id: column.name for column in table.numbered}
    gone = next((names[one.column_id] for one in table.lifetimes if one.column_id not in kept), None)
    require(
        gone is None,
        Code.TTL_COLUMN,
        f"column {gone!r} of {table.full_name} says which of its rows have expired: without it they would come back",
        hint="It can be renamed. Rows that have expired stay so without a TTL too, so it is needed for good",
    )
