"""How change streams look."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from epochlake.jobs.printing import bold, filled, plural, seconds, size, table
from epochlake.metastore.metadata.features import CHANGE_GENERATIONS
from epochlake.placement.showing import duration
from rich.console import RenderableType
from rich.text import Text

if TYPE_CHECKING:
    from epochlake.jobs.upkeep.change_streams import StreamUpkeep
    from epochlake.jobs.views.change_generations import GenerationStatus
    from epochlake.jobs.views.change_streams import StreamStatus


def streams(found: Sequence[StreamStatus]) -> list[RenderableType]:
    if not found:
        return [Text("no table keeps its changes")]
    parts: list[RenderableType] = []
    for one in found:
        head = bold(one.table).append(
            f": positions {one.oldest} to {one.newest}, {plural(one.writes, 'write')} of {plural(one.rows, 'row')}, "
            f"{size(one.bytes)}, kept for {duration(one.retention_seconds)}",
            style="not bold",
        )
        parts += [head, *_obstacles(one)]
        if one.generation:
            parts.append(Text(f"generation {one.generation}, of {plural(one.streams, 'stream')}", style="bright_black"))
        if one.kept_for:
            parts.append(Text(f"the oldest of them is kept for {one.kept_for}", style="bright_black"))
        if one.readers:
            made = table("reader", "position", "behind", "bytes", "lag", "", right=["position", "behind", "bytes"])
            rows = (
                (
                    *(r.name, r.position, r.behind, size(r.bytes_behind), seconds(r.lag_seconds)),
                    Text("has to begin again" * r.gone, style="red"),
                )
                for r in one.readers
            )
            parts.append(filled(made, rows))
    return parts


def generations(found: Sequence[GenerationStatus], ranges: bool, enabled: bool) -> list[RenderableType]:
    if not found and not enabled:
        return [
            Text("the changes are not divided into generations: an older version began the cluster"),
            Text(f"they are after `feature enable {CHANGE_GENERATIONS}`"),
        ]
    if not found:
        return [Text("the changes are not divided into generations yet: a coordinator does it, or `changes keep-up`")]
    made = table("generation", "epoch", "committed", "after", "up to", "streams", right=["epoch", "after", "streams"])
    parts: list[RenderableType] = [
        filled(
            made,
            (
                (
                    one.generation,
                    one.epoch,
                    datetime.fromtimestamp(one.at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
                    "not yet" if one.begins is None else one.begins,
                    "" if one.ends is None else one.ends,
                    len(one.streams),
                )
                for one in found
            ),
        )
    ]
    for one in found if ranges else ():
        streams = table("stream", "first token", "last token", right=["first token", "last token"])
        parts += [
            bold(f"generation {one.generation}"),
            filled(streams, ((each.stream, each.first, each.last) for each in one.streams)),
        ]
    return parts


def in_short(found: Sequence[StreamStatus]) -> list[RenderableType]:
    """A line for each stream, and for each reader that is behind."""
    parts: list[RenderableType] = []
    for one in found:
        kept = f" for {one.kept_for}" if one.kept_for else ""
        parts.append(Text(f"  {one.table}: {plural(one.writes, 'write')}, {size(one.bytes)} kept{kept}"))
        parts += [Text("  ").append(said) for said in _obstacles(one)]
        for reader in one.readers:
            if reader.gone:
                parts.append(Text(f"    reader {reader.name} has to begin again", style="red"))
            elif reader.behind:
                behind = f"{plural(reader.behind, 'write')} ({size(reader.bytes_behind)})"
                parts.append(Text(f"    reader {reader.name} is {behind} and {seconds(reader.lag_seconds)} behind"))
    return parts


def _obstacles(one: StreamStatus) -> list[Text]:
    if one.obstacle:
        return [Text(one.obstacle, style="red")]
    found = [] if one.begun else [Text("it has not begun: too few replicas answer", style="yellow")]
    return found + ([Text(f"{plural(one.open, 'write')} may still land", style="yellow")] if one.open else [])


def kept_up(report: StreamUpkeep) -> list[RenderableType]:
    if not report.begun:
        return [Text(f"{report.table}: the stream has not begun, as too few replicas answer", style="yellow")]
    return [
        bold(report.table).append(
            f": {plural(report.settled, 'write')} settled, {report.forgotten} can land no more, {report.open} open, "
            f"{plural(report.dropped, 'write')} dropped ({size(report.size)})"
            + (f"; generation {report.generation} begins" if report.generation else "")
            + (f"; {plural(report.healed, 'file')} healed" if report.healed else ""),
            style="not bold",
        ),
        *(Text(said, style="red") for said in report.damaged),
    ]
