"""Bytes moved over time: how much arrived on each node, in steps of time and all together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
from epochlake.jobs.pictures import style
from epochlake.jobs.printing import plural
from epochlake.jobs.views.streamed_bytes import Arrivals
from epochlake.placement.showing import size

if TYPE_CHECKING:
    import plotly.graph_objects as go

STEPS = 60
NAMED = 10
"""Up to so many nodes have colours of their own; the others, which got least, are one."""


def draw_moved(seen: Arrivals, title: str, nodes: Sequence[str] = ()) -> go.Figure:
    """A bar for each step of time, of as many parts as nodes got something, and a line of all bytes so far.

    `nodes` are all nodes in their order: each has its colour by that.
    """
    go = style.plotly()
    figure = go.Figure()
    arrivals = seen.found
    unread = f"; without {style.and_more(seen.unread)}, which could not be read" if seen.unread else ""
    if not arrivals:
        told = f"nothing was moved in the time that replicas keep their commits of{unread}"
        return style.styled(figure, title, told, 200)
    times = np.array([one.at_ms for one in arrivals], dtype=np.int64)
    step = max(1000, int(np.ceil((times.max() - times.min() + 1) / STEPS)))
    begin = int(times.min())
    steps = (times - begin) // step
    by_node: dict[str, int] = defaultdict(int)
    for one in arrivals:
        by_node[one.node] += one.bytes
    most = sorted(by_node, key=lambda node: -by_node[node])[:NAMED]
    names = [one.node if one.node in most else "other nodes" for one in arrivals]
    amounts = np.array([one.bytes for one in arrivals], dtype=np.int64)
    at = [datetime.fromtimestamp((begin + (number + 0.5) * step) / 1e3, UTC) for number in range(int(steps.max()) + 1)]
    for name, colour in style.colours_of([*nodes, *sorted(set(names))]).items():
        chosen = np.array([found == name for found in names])
        if not chosen.any():
            continue
        held = np.bincount(steps[chosen], amounts[chosen], len(at))
        figure.add_trace(
            go.Bar(
                x=at,
                y=held,
                name=style.plain(name),
                marker={"color": colour},
                width=[step * 0.9] * len(at),
                customdata=[size(round(amount)) for amount in held.tolist()],
                hovertemplate=f"to {style.plain(name)}<br>%{{x}}<br>%{{customdata}}<extra></extra>",
            )
        )
    total = np.cumsum(np.bincount(steps, amounts, len(at)))
    figure.add_trace(
        go.Scatter(
            x=at,
            y=total,
            name="all so far",
            yaxis="y2",
            mode="lines",
            line={"color": style.TEXT, "width": 1.5, "dash": "dot"},
            customdata=[size(round(amount)) for amount in total.tolist()],
            hovertemplate="so far %{customdata}<extra></extra>",
        )
    )
    tables = sorted({one.table for one in arrivals})
    subtitle = f"{size(int(amounts.sum()))} in {plural(len(arrivals), 'commit')}, of {style.and_more(tables)}{unread}"
    figure.update_layout(barmode="stack", yaxis2={"overlaying": "y", "side": "right", "showgrid": False})
    drawn = style.styled(figure, title, subtitle, 400)
    for axis, highest in (("yaxis", _highest(figure)), ("yaxis2", float(total[-1]))):
        values = [highest * part / 4 for part in range(5)]
        drawn.layout[axis].update(
            tickvals=values, ticktext=[size(round(value)) for value in values], rangemode="tozero"
        )
    drawn.update_xaxes(title_text=f"UTC, in steps of {step / 1000:.3g} s")
    return style.legend_below(drawn)


def _highest(figure: go.Figure) -> float:
    stacked = np.sum([np.asarray(trace.y, dtype=float) for trace in figure.data if trace.type == "bar"], axis=0)
    return float(np.max(stacked, initial=1.0))
