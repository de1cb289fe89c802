"""What the log asks of the checks of a table, whichever event brings them. It never reads a predicate."""

from __future__ import annotations

import msgspec
from epochlake.metastore.metadata.events.base import require, require_name
from epochlake.metastore.metadata.model import Check, Column, Table
from epochlake.placement.rejections import Code

LONGEST_PREDICATE = 4_000


def require_checks(table: Table, columns: tuple[Column, ...], checks: tuple[Check, ...]) -> None:
    """That each check is one, that those which stay are what they were, and that no column which one reads changes."""
    before = {one.name: one for one in table.checked}
    names = [one.name.lower() for one in checks]
    twice = next((one.name for one in checks if names.count(one.name.lower()) > 1), None)
    require(
        twice is None,
        Code.INVALID_CHECK,
        f"{table.full_name} has a check {twice!r} already",
        hint="Give this one another name, or drop the other one first",
    )
    was, now = ({column.column_id: column.name for column in of} for of in (table.numbered, columns))
    for one in checks:
        require_name("check", one.name)
        require(
            0 < len(one.predicate) <= LONGEST_PREDICATE,
            Code.INVALID_CHECK,
            f"the predicate of check {one.name!r} is empty, or has more than {LONGEST_PREDICATE:,} characters",
        )
        known = before.get(one.name)
        kept = known is not None and msgspec.structs.replace(one, validated=known.validated) == known
        require(
            kept or (one.epoch == 0 and one.validated is msgspec.UNSET and bool(one.columns)),
            Code.INVALID_EVENT,
            f"check {one.name!r} of {table.full_name} cannot become another one under its name",
            hint="Drop it, and then add the other one",
        )
        for number in one.columns:
            require(
                number in now and (not kept or was[number] == now[number]),
                Code.CHECKED_COLUMN,
                f"check {one.name!r} of {table.full_name} reads column {was.get(number, number)!r}: {one.predicate}",
                hint=f"Drop the check first: --drop-check {one.name}",
            )
