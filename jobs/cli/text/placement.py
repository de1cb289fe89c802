"""How placements look: of a table, and of one row."""

from __future__ import annotations

from epochlake.jobs.cli.documents import PlacementShown
from epochlake.jobs.printing import bold, filled, plural, state, table
from epochlake.jobs.views.explanation import Explanation, OperationExplained
from epochlake.metastore.metadata.model import PlacementKind
from rich.console import RenderableType
from rich.text import Text

RING = PlacementKind.RING.value


def placement(document: PlacementShown) -> list[RenderableType]:
    what = "range" if document.placement == RING else "tablet"
    head = bold(document.table).append(
        f" at epoch {document.epoch}: {plural(document.tablets, what)}", style="not bold"
    )
    numbers = [what, "tokens after", "up to"]
    made = table(*numbers, "reads", "writes", "stage", right=numbers, wide=["reads", "writes"])
    for row in document.rows:
        same = row.reads == row.writes
        made.add_row(
            str(row.tablet),
            str(row.token_start),
            str(row.token_end),
            Text(" ".join(row.reads)),
            Text("the same", style="bright_black") if same else Text(" ".join(row.writes), style="yellow"),
            row.stage or "",
        )
    parts: list[RenderableType] = [head, made]
    if len(document.rows) < document.tablets:
        parts.append(Text(f"{document.tablets - len(document.rows):,} more: raise --limit", style="bright_black"))
    return parts


def explanation(found: Explanation) -> list[RenderableType]:
    line = Text()
    if found.token is not None:
        line.append("token ").append(str(found.token), style="bold").append(" is in ")
    line.append(f"{'range' if found.placement == RING else 'tablet'} {found.tablet}", style="bold")
    line.append(f" of {found.tablets:,} of {found.table}, at epoch {found.epoch}")
    span = Text(f"tokens after {found.token_start} up to {found.token_end}", style="bright_black")
    made = table("replica", "node is", "place", "reads", "writes", "role")
    rows = [
        (
            replica.place,
            state(replica.node_state),
            f"{replica.datacenter}/{replica.rack}",
            "yes" if replica.reads else "no",
            "yes" if replica.writes else "no",
            "" if replica.role == "replica" else replica.role,
        )
        for replica in found.replicas
    ]
    return [line, span, Text(), filled(made, rows), Text(), *_why(found)]


def _why(found: Explanation) -> list[RenderableType]:
    moving = found.transition
    if found.operation is not None:
        return _on_the_way(found.operation)
    if moving is None:
        what = "range" if found.placement == RING else "tablet"
        return [Text(f"The {what} is settled: reads and writes go to the same replicas.")]
    lines: list[RenderableType] = [
        Text(
            f"A {moving.kind} is in stage {moving.stage} since epoch {moving.stage_epoch}, begun by epoch "
            f"{moving.started_epoch}: {moving.reason or 'no reason given'}."
        ),
        Text(
            f"In this stage reads go to the {moving.reads_from} replicas, writes to "
            f"{'both the old and the new ones' if moving.writes_to == 'both' else f'the {moving.writes_to} ones'}."
        ),
    ]
    if moving.error:
        lines.append(Text(f"It goes back because {moving.error}.", style="yellow"))
    return lines


def _on_the_way(moving: OperationExplained) -> list[RenderableType]:
    done = f"has done {moving.step}" if moving.step else "has begun"
    onward = "it is being cancelled" if moving.cancelling else f"{moving.next_step} comes next"
    return [
        Text(
            f"A {moving.what} {done} at epoch {moving.step_epoch}, begun by epoch {moving.started_epoch}"
            f" ({moving.reason or 'no reason given'}); {onward}."
        ),
        Text(
            f"Until then reads go to the {moving.reads_from} replicas, writes to "
            f"{'both the old and the new ones' if moving.writes_to == 'both' else f'the {moving.writes_to} ones'}."
        ),
    ]
