"""The epochs as a timeline: what was asked for, moved and resized as bars, all else as points."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
from epochlake.jobs.administration.topology_changes import subjects
from epochlake.jobs.pictures import style
from epochlake.jobs.printing import plural
from epochlake.jobs.views.summaries import summary
from epochlake.metastore.errors import LogUnreadable
from epochlake.metastore.log.entry import Entry
from epochlake.metastore.metadata import events
from epochlake.metastore.metadata.cluster import OPEN, ClusterMetadata
from epochlake.metastore.metadata.model import RequestState, TableId
from epochlake.placement.tablets.resizing import Resize

if TYPE_CHECKING:
    import plotly.graph_objects as go

SHOWN_BY_BARS = (
    events.AdvanceOperation,
    events.AdvanceTransitions,
    events.CancelRequest,
    events.DecideResize,
    events.FinishRequest,
    events.FinishResize,
    events.FinishTransitions,
    events.RegisterNode,
    events.RequestTopology,
    events.RetreatOperation,
    events.StartRequest,
    events.StartTransitions,
)
MOST_LANES = 40
"""Of more requests the newest are drawn."""

OTHERS = "other epochs"
REQUESTED, RUNNING, ENDED_BADLY, TABLETS, RESIZE = "waiting", "at work", "failed or cancelled", "tablets move", "resize"
_COLOURS = {
    REQUESTED: style.WAITING,
    RUNNING: style.COLOURS[0],
    ENDED_BADLY: style.FAILED,
    TABLETS: style.COLOURS[2],
    RESIZE: style.COLOURS[4],
}


class Bar(msgspec.Struct, frozen=True):
    """Something that lasted: `first` and `last` are epochs, `since` and `until` microseconds since 1970."""

    lane: str
    kind: str
    first: int
    last: int
    since: int
    until: int
    told: str


class Point(msgspec.Struct, frozen=True):
    """An epoch that nothing else shows."""

    epoch: int
    at: int
    told: str


class Timeline(msgspec.Struct, frozen=True):
    """What is drawn of the epochs `first` to `last`; `left_out`: requests that have no bar."""

    first: int
    last: int
    bars: tuple[Bar, ...]
    points: tuple[Point, ...]
    left_out: int = 0


def timeline_of(entries: Sequence[Entry], metadata: ClusterMetadata) -> Timeline:
    """The timeline of entries that follow each other; `metadata` is that of the last of them, or a later one."""
    at = {entry.epoch: entry.committed_at for entry in entries}
    first, last = entries[0].epoch, entries[-1].epoch
    requests = [
        request
        for request in metadata.requests.values()
        if request.requested_epoch <= last and (request.state in OPEN or request.epoch >= first)
    ]
    bars: list[Bar] = []
    for request in requests[-MOST_LANES:]:
        lane = f"{request.kind} {' for '.join(subjects(metadata, request))}"
        ended = last if request.state in OPEN else min(request.epoch, last)
        begins = max(request.requested_epoch, first)
        at_work = ended if request.started_epoch is None else min(max(request.started_epoch, first), ended)
        if at_work > begins or request.started_epoch is None:
            bars.append(_bar(lane, REQUESTED, begins, at_work, at, f"{lane}: asked for, {request.state}"))
        if request.started_epoch is not None:
            badly = request.state in (RequestState.FAILED, RequestState.CANCELLED)
            bars.append(_bar(lane, ENDED_BADLY if badly else RUNNING, at_work, ended, at, f"{lane}: {request.state}"))
    bars += _of_tablets(entries, metadata, at)
    points = []
    for entry in entries:
        try:
            event = entry.decode()
        except LogUnreadable as error:
            points.append(Point(entry.epoch, entry.committed_at, str(error)))
            continue
        if not isinstance(event, SHOWN_BY_BARS):
            why = f" ({entry.reason})" if entry.reason else ""
            points.append(Point(entry.epoch, entry.committed_at, f"{summary(event, metadata)}{why}, by {entry.author}"))
    return Timeline(first, last, tuple(bars), tuple(points), max(0, len(requests) - MOST_LANES))


def _of_tablets(entries: Iterable[Entry], metadata: ClusterMetadata, at: dict[int, int]) -> list[Bar]:
    """For each table the times during which any of its tablets was on its way, and those of its splits and merges."""
    moving: dict[TableId, set[int]] = defaultdict(set)
    since: dict[tuple[str, TableId], int] = {}
    moved: dict[TableId, int] = defaultdict(int)
    bars: list[Bar] = []
    last = max(at)

    def name(table_id: TableId) -> str:
        table = metadata.schema.tables.get(table_id)
        return table_id if table is None else table.full_name

    def end(kind: str, table_id: TableId, epoch: int) -> None:
        began = since.pop((kind, table_id), None)
        if began is None:
            return
        what = (
            f"{plural(moved.pop(table_id, 0), 'tablet')} moved"
            if kind == TABLETS
            else "its tablets are split or merged"
        )
        bars.append(_bar(name(table_id), kind, began, epoch, at, f"{name(table_id)}: {what}"))

    for entry in entries:
        try:
            event = entry.decode()
        except LogUnreadable:
            continue
        match event:
            case events.StartTransitions(transitions=new):
                for one in new:
                    moving[one.table_id].add(one.tablet)
                    since.setdefault((TABLETS, one.table_id), entry.epoch)
            case events.FinishTransitions(tablets=keys):
                for table_id, tablet in keys:
                    moving[table_id].discard(tablet)
                    moved[table_id] += 1
                    # What began before the first epoch that is drawn has no beginning here.
                    since.setdefault((TABLETS, table_id), min(at))
                    if not moving[table_id]:
                        end(TABLETS, table_id, entry.epoch)
            case events.DecideResize(table_id=table_id, resize_type=Resize.NONE):
                end(RESIZE, table_id, entry.epoch)
            case events.DecideResize(table_id=table_id):
                since.setdefault((RESIZE, table_id), entry.epoch)
            case events.FinishResize(table_id=table_id):
                end(RESIZE, table_id, entry.epoch)
    for kind, table_id in list(since):
        end(kind, table_id, last)
    return bars


def _bar(lane: str, kind: str, first: int, last: int, at: dict[int, int], told: str) -> Bar:
    return Bar(lane, kind, first, last, at[first], at[last], told)


def draw_timeline(
    timeline: Timeline, title: str, by: str = "time", colours: Mapping[str, str] | None = None
) -> go.Figure:
    """The timeline; `by` says what is across: `time`, or `epoch`, which gives each of them the same room.

    `colours` of kinds of bars that somebody has added.
    """
    go = style.plotly()
    figure = go.Figure()
    lanes = list(dict.fromkeys(bar.lane for bar in timeline.bars))

    def across(epoch: int, micros: int) -> object:
        return datetime.fromtimestamp(micros / 1e6, UTC) if by == "time" else epoch

    for kind, colour in {**(colours or {}), **_COLOURS}.items():
        bars = [bar for bar in timeline.bars if bar.kind == kind]
        if not bars:
            continue
        # Lines, not boxes: however short it was, a bar has ends that can be seen.
        xs: list[object] = []
        ys: list[object] = []
        told: list[str] = []
        for bar in bars:
            xs += [across(bar.first, bar.since), across(bar.last, bar.until), None]
            ys += [style.plain(bar.lane), style.plain(bar.lane), None]
            text = f"{style.plain(bar.told)}<br>epochs {bar.first} to {bar.last}"
            told += [text, text, ""]
        figure.add_trace(
            go.Scatter(
                x=xs,
                y=ys,
                mode="lines+markers",
                name=kind,
                line={"color": colour, "width": 9},
                marker={"color": colour, "size": 9, "symbol": "square"},
                text=told,
                hovertemplate="%{text}<extra></extra>",
            )
        )
    if timeline.points:
        figure.add_trace(
            go.Scatter(
                x=[across(point.epoch, point.at) for point in timeline.points],
                y=[OTHERS] * len(timeline.points),
                mode="markers",
                name=OTHERS,
                marker={"color": style.COLOURS[8], "size": 8, "symbol": "diamond"},
                text=[f"epoch {point.epoch}: {style.plain(point.told)}" for point in timeline.points],
                hovertemplate="%{text}<extra></extra>",
            )
        )
    rows = [*map(style.plain, lanes), *([OTHERS] if timeline.points else [])]
    figure.update_yaxes(categoryorder="array", categoryarray=rows[::-1], range=[-0.6, len(rows) - 0.4], griddash="dot")
    figure.update_xaxes(title_text="UTC" if by == "time" else "epoch")
    verb = "is" if timeline.left_out == 1 else "are"
    left_out = f"; {plural(timeline.left_out, 'older request')} {verb} left out" if timeline.left_out else ""
    epochs = f"epochs {timeline.first} to {timeline.last}"
    subtitle = f"{epochs if timeline.first < timeline.last else f'epoch {timeline.first}'}{left_out}"
    figure.update_layout(hovermode="closest")
    return style.legend_below(style.styled(figure, title, subtitle, 130 + 26 * len(rows)))
