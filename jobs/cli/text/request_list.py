"""How topology requests look in a list, and what one would do to the ring."""

from __future__ import annotations

from collections.abc import Sequence

from epochlake.jobs.printing import filled, left_out, plural, size, table
from epochlake.jobs.views.movements import MovementPlanned, RingPlan
from epochlake.jobs.views.requests import RequestRow
from epochlake.metastore.metadata.model import RequestKind
from rich.console import RenderableType
from rich.text import Text

RF_CHANGE = RequestKind.KEYSPACE_RF_CHANGE.value
CHECK = RequestKind.CHECK_AND_REPAIR_CDC_STREAMS.value

LOCKS_SHOWN = 3
"""So many locked ranges are written out, the rest are counted; JSON has them all."""


def request_list(rows: Sequence[RequestRow]) -> list[RenderableType]:
    if not rows:
        return [Text("no requests")]
    made = table("request", "what", "state", "epoch", right=["epoch"])
    listed = filled(
        made,
        (
            (
                row.request_id,
                _what(row),
                f"{row.state}, paused" if row.paused else row.state,
                row.epoch,
            )
            for row in rows
        ),
    )
    reasons = [(row, "; ".join(word for word in (row.reason, row.detail) if word)) for row in rows]
    told = [Text(f"{_what(row)}: {why}") for row, why in reasons if why]
    return [*left_out(rows[0].left_out, "request"), listed, *([Text()] if told else []), *told]


def _what(row: RequestRow) -> str:
    if row.kind == CHECK:
        return "check of streams"
    return f"replication of {row.about}" if row.kind == RF_CHANGE else f"{row.kind} {row.about}"


def ring_plan(plan: RingPlan) -> list[RenderableType]:
    """The operations of a plan, each with what it moves and locks."""
    lines: list[RenderableType] = [Text(), Text("On the ring", style="bold")]
    for number, movement in enumerate(plan.operations, 1):
        lines += _movement(movement, f"{number}. " if len(plan.operations) > 1 else "")
    if plan.obstacle:
        code = f" ({plan.obstacle_code})" if plan.obstacle_code else ""
        lines.append(Text(f"it would wait{code}: {plan.obstacle}", style="yellow"))
    return [*lines, Text()]


def _movement(movement: MovementPlanned, number: str) -> list[RenderableType]:
    lines: list[RenderableType] = [Text(f"{number}{movement.what}: {' → '.join(movement.steps)}, an epoch each")]
    if movement.tokens:
        shown = " ".join(map(str, movement.tokens[:4])) + (" …" if len(movement.tokens) > 4 else "")
        lines.append(Text(f"   {plural(len(movement.tokens), 'token')}: {shown}", style="bright_black"))
    for moved in movement.keyspaces:
        bytes_ = "an unknown number of bytes" if moved.bytes is None else f"about {size(moved.bytes)}"
        lines.append(
            Text(
                f"   {moved.keyspace}: {plural(moved.ranges, 'range')} would be streamed, {moved.share:.1%} of the "
                f"ring, {bytes_}; {plural(len(moved.locked), 'range')} locked"
            )
        )
        shown = " ".join(f"({start}, {end}]" for start, end in moved.locked[:LOCKS_SHOWN])
        more = f" and {len(moved.locked) - LOCKS_SHOWN:,} more" if len(moved.locked) > LOCKS_SHOWN else ""
        if shown:
            lines.append(Text(f"   locks {shown}{more}", style="bright_black"))
    return lines
