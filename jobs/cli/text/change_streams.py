"""How change streams look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from epochlake.jobs.printing import bold, filled, plural, seconds, size, table
from rich.console import RenderableType
from rich.text import Text

if TYPE_CHECKING:
    from epochlake.jobs.upkeep.change_streams import StreamUpkeep
    from epochlake.jobs.views.change_streams import StreamStatus


def streams(found: Sequence[StreamStatus]) -> list[RenderableType]:
    if not found:
        return [Text("no table keeps its changes")]
    parts: list[RenderableType] = []
    for one in found:
        head = bold(one.table).append(
            f": positions {one.oldest} to {one.newest}, {plural(one.writes, 'write')} of {plural(one.rows, 'row')}, "
            f"{size(one.bytes)}, kept for {seconds(one.retention_seconds)}",
            style="not bold",
        )
        parts.append(head)
        if not one.begun:
            parts.append(Text("it has not begun: too few replicas answer", style="yellow"))
        if one.open:
            parts.append(Text(f"{plural(one.open, 'write')} may still land", style="yellow"))
        if one.readers:
            made = table("reader", "position", "behind", "lag", "", right=["position", "behind"])
            rows = (
                (r.name, r.position, r.behind, seconds(r.lag_seconds), Text("has to begin again" * r.gone, style="red"))
                for r in one.readers
            )
            parts.append(filled(made, rows))
    return parts


def kept_up(report: StreamUpkeep) -> list[RenderableType]:
    if not report.begun:
        return [Text(f"{report.table}: the stream has not begun, as too few replicas answer", style="yellow")]
    return [
        bold(report.table).append(
            f": {plural(report.settled, 'write')} settled, {report.forgotten} can land no more, {report.open} open, "
            f"{plural(report.dropped, 'write')} dropped ({size(report.size)})",
            style="not bold",
        )
    ]
