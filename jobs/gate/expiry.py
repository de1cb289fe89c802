"""Rows of a table with a time to live that reads show: a filter, judged after last write wins as every filter is.

So the newest version of a key decides, and an older one never comes back because that has expired. The time is pinned
where a read is planned and travels with it: executors, tries again and the frame of a read all judge by the same one.
"""

from __future__ import annotations

import time
from functools import reduce
from operator import and_

import pyarrow as pa
import pyarrow.compute as pc
from epochlake.jobs.gate.arrow_types import arrow_type
from epochlake.metastore.metadata.model import Table
from epochlake.metastore.metadata.time_to_live import expired_before, judged_at


def bounds_of(table: Table, as_of: int | None) -> dict[str, int]:
    """By the name of a column: rows whose value of it is less are not shown, in microseconds since 1970. By the clock
    of this machine, or as of a time.
    """
    return bounds_as_of(table, judged_at(table, time.time_ns() // 1000) if as_of is None else as_of)


def bounds_as_of(table: Table, at: int) -> dict[str, int]:
    """`bounds_of`, as of a time in microseconds since 1970."""
    names = {column.column_id: column.name for column in table.numbered}
    return {names[number]: bound for number, bound in expired_before(table, at).items()}


def live_rows(table: Table, bounds: dict[str, int]) -> pc.Expression | None:
    """What is true of rows that have not expired; None where none ever does. Null never expires."""
    types = {column.name: arrow_type(column.type) for column in table.columns}
    found = [
        pc.field(name).is_null() | (pc.field(name) >= pa.scalar(bound, pa.int64()).cast(types[name]))
        for name, bound in bounds.items()
    ]
    return reduce(and_, found) if found else None
