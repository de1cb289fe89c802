"""How keyspaces and tables look."""

from __future__ import annotations

from collections.abc import Sequence

from epochlake.jobs.administration.checks import ChecksFound
from epochlake.jobs.printing import bold, filled, plural, size, table
from epochlake.jobs.views.schema import (
    CheckShown,
    DroppedTableRow,
    KeyspaceRow,
    TableOptions,
    TableRow,
    TableShown,
    TtlShown,
)
from epochlake.jobs.views.summaries import compaction_said
from epochlake.metastore.metadata.model import PlacementKind
from epochlake.placement.showing import duration
from rich.console import RenderableType
from rich.text import Text

RING = PlacementKind.RING.value


def keyspace_list(rows: Sequence[KeyspaceRow]) -> RenderableType:
    if not rows:
        return Text("no keyspaces")
    made = table(
        "keyspace", "placement", "strategy", "replication", "tables", "since epoch", right=["tables", "since epoch"]
    )
    return filled(
        made,
        (
            (
                row.name,
                row.placement,
                row.strategy,
                ", ".join(f"{dc}={n}" for dc, n in row.replication.items()),
                row.tables,
                row.epoch,
            )
            for row in rows
        ),
    )


def table_list(rows: Sequence[TableRow]) -> RenderableType:
    if not rows:
        return Text("no tables")
    numbers = ["columns", "tablets", "moving", "epoch"]
    made = table("table", "kind", "primary key", *numbers, right=numbers, wide=["primary key"])
    return filled(
        made,
        (
            (
                row.name,
                _kind(row.append_only),
                ", ".join(row.primary_key),
                row.columns,
                plural(row.tablets, "range") if row.placement == RING else f"{row.tablets:,}",
                f"{row.in_transition:,}",
                row.epoch,
            )
            for row in rows
        ),
    )


def dropped_list(rows: Sequence[DroppedTableRow]) -> RenderableType:
    if not rows:
        return Text("no dropped tables that can be restored")
    numbers = ["columns", "tablets", "dropped by epoch"]
    made = table("table", "id", *numbers, "kept", right=numbers)
    return filled(
        made,
        (
            (
                row.name,
                row.table_id,
                row.columns,
                f"{row.tablets:,}" if row.tablets else "on the ring",
                row.epoch,
                f"for {duration(row.keep_seconds)}" if row.keep_seconds else "until vacuum comes",
            )
            for row in rows
        ),
    )


def table_shown(shown: TableShown) -> list[RenderableType]:
    line = Text()
    line.append(shown.name, style="bold")
    spread = f"{plural(shown.tablets, 'tablet')}, {shown.in_transition:,} of them moving"
    if shown.placement == RING:
        spread = f"on the ring, {plural(shown.tablets, 'range')}"
    line.append(f"  {_kind(shown.append_only)}, {spread}")
    numbers = shown.columns_epoch is not None
    computed = any(column.generated is not None for column in shown.columns)
    more_heads = [*(["id", "", ""] if numbers else []), *(["generated as"] if computed else [])]
    columns = table("column", "type", "", *more_heads, wide=["type", "generated as"], right=["id"])
    for column in shown.columns:
        key = column.name in shown.primary_key
        note = f"key {shown.primary_key.index(column.name) + 1}" if key else "" if column.nullable else "not null"
        more: list[str | Text] = []
        if numbers:
            default = "" if column.default is None else f"default {column.default}"
            more = [str(column.column_id), Text(default), Text(column.comment or "")]
        if computed:
            more.append(Text(column.generated or ""))
        columns.add_row(Text(column.name, style="bold" if key else ""), Text(column.type), note, *more)
        for field in column.fields:
            columns.add_row(Text(f"  {field.path}"), "", "", str(field.field_id), "", Text(field.comment or ""))
    by_node = filled(
        table("node", "replicas", right=["replicas"]), ((node, f"{n:,}") for node, n in shown.replicas_by_node.items())
    )
    facts = Text(f"id {shown.table_id}, last changed by epoch {shown.epoch}", style="bright_black")
    gone = [f"{one.name} (by epoch {one.epoch})" for one in shown.dropped]
    gone += [f"{one.name} (by epoch {one.epoch})" for one in shown.dropped_fields]
    dropped = [Text(f"dropped: {', '.join(gone)}", style="bright_black")] if gone else []
    checks = [Text(), _checks(shown.checks)] if shown.checks else []
    return [
        line,
        facts,
        *_options(shown.options),
        *_ttl(shown.ttl),
        Text(),
        columns,
        *dropped,
        *checks,
        Text(),
        bold("Replicas"),
        by_node,
    ]


def _ttl(ttl: TtlShown | None) -> list[RenderableType]:
    if ttl is None:
        return []
    if ttl.seconds is None:
        return [Text(f"no rows expire since {ttl.since}; those that had expired by {ttl.column} stay so")]
    return [Text(f"rows expire {_exactly(ttl.seconds)} after {ttl.column}, since {ttl.since}")]


def _exactly(seconds: int) -> str:
    """A time to live as it was given: what is rounded would be another one."""
    for size_, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds % size_ == 0:
            return f"{seconds // size_:,} {unit}"
    return f"{seconds:,} s"


def _checks(checks: Sequence[CheckShown]) -> RenderableType:
    return filled(
        table("check", "predicate", "", wide=["predicate"]),
        (
            (
                one.name,
                one.predicate,
                "not validated" if one.validated is None else f"validated by epoch {one.validated}",
            )
            for one in checks
        ),
    )


def checks_found(found: ChecksFound) -> list[RenderableType]:
    """What the rows of a table make of its checks."""
    if not found.checks:
        return [Text(f"{found.table} has no checks")]
    lines: list[RenderableType] = []
    for one in found.checks:
        said = f"violated by {plural(one.violated, 'row')}, as {', '.join(map(str, one.examples))}"
        lines.append(Text(f"{one.name} ({one.predicate}): {said if one.violated else 'holds'}"))
    after = "" if found.epoch is None else f"; recorded in epoch {found.epoch}"
    return [*lines, Text(f"{plural(found.rows, 'row')} of {found.table} looked at{after}", style="bright_black")]


def _options(options: TableOptions) -> list[RenderableType]:
    """What is said of its tablets and its compaction, where anything is."""
    said = {
        "tablets of": size(options.target_bytes),
        "at least": None if options.min_tablets == 1 else plural(options.min_tablets, "tablet"),
        "at most": None if options.max_tablets is None else plural(options.max_tablets, "tablet"),
        "only on nodes tagged": ", ".join(options.tags) or None,
        "apart from": ", ".join(options.apart_from) or None,
    }
    lines = [f"{name} {value}" for name, value in said.items() if value is not None]
    lines += compaction_said(options.compaction)
    if options.history_seconds:
        lines.append(f"history kept for {duration(options.history_seconds)}")
    return [Text("; ".join(lines))] if lines else []


def _kind(append_only: bool) -> str:
    return "append-only" if append_only else "upserts"
