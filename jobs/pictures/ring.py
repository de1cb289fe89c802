"""The ring: ranges of tokens as arcs, a circle for each replica, and outside of them who gets writes only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from epochlake.jobs.pictures import style
from epochlake.jobs.pictures.arcs import TURN, Arcs
from epochlake.jobs.printing import plural

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from numpy.typing import NDArray

MOST_ARCS = 720
"""More ranges than that are drawn as so many equal arcs."""

NAMED = 10
"""Up to so many nodes have colours of their own; of more, datacenters and racks do."""

_INNERMOST = 3.0
_THICKNESS = 0.9


def draw_ring(arcs: Arcs) -> go.Figure:
    """Arcs as a ring, clockwise from the lowest token on top."""
    go = style.plotly()
    drawn = arcs.sampled(MOST_ARCS)
    coming = only_written(drawn)
    width = drawn.reads.shape[1]
    used = sorted({*drawn.reads.ravel().tolist(), *drawn.writes.ravel().tolist()} - {-1})
    by_node = len(used) <= NAMED
    kinds = {row: arcs.nodes[row] if by_node else arcs.groups[row] for row in used}
    figure = go.Figure()
    for kind, colour in style.colours_of(arcs.nodes if by_node else sorted(kinds.values())).items():
        rows = [row for row in used if kinds[row] == kind]
        for replicas, first, pattern in ((drawn.reads, 0, ""), (coming, width, "/")):
            chosen = np.isin(replicas, rows) & (replicas >= 0)
            if not chosen.any():
                continue
            figure.add_trace(
                go.Barpolar(
                    **_bars(drawn, replicas, chosen, first),
                    name=style.plain(kind) if not pattern else f"{style.plain(kind)}: writes only",
                    legendgroup=kind,
                    marker={
                        "color": colour,
                        "pattern": {"shape": pattern, "solidity": 0.4},
                        "line": {"color": "rgba(128,128,128,0.5)", "width": 0.4},
                    },
                    hovertemplate="%{customdata[0]}<br>%{customdata[1]}<br>tokens from %{customdata[2]}<extra></extra>",
                )
            )
    _circle(figure)
    figure.update_layout(showlegend=True)  # of one node as well, whose name is nowhere else
    ranges = plural(len(arcs.lows), "range")
    sampled = f", drawn as {MOST_ARCS} arcs" if drawn is not arcs else ""
    written = ", hatched: gets writes only" if (coming >= 0).any() else ""
    return style.styled(
        figure, f"The ring of {arcs.title}", f"{ranges}{sampled}; a circle for each replica{written}", 560
    )


def only_written(arcs: Arcs) -> NDArray[np.int64]:
    """Who gets the writes of each arc and does not serve its reads yet, or no more: (n, width), padded with -1."""
    reads = (arcs.writes[:, :, None] == arcs.reads[:, None, :]).any(axis=2)
    only = np.where((arcs.writes >= 0) & ~reads, arcs.writes, -1)
    return -np.sort(-only, axis=1)  # those that are there come first


def _bars(arcs: Arcs, replicas: NDArray[np.int64], chosen: NDArray[np.bool_], first: int) -> dict[str, object]:
    rows, ranks = np.nonzero(chosen)
    share = arcs.lengths
    middles = (arcs.lows.astype(np.float64) + 2.0**63) / TURN + share / 2
    told = [
        (style.plain(arcs.nodes[node]), style.plain(arcs.groups[node]), str(low))
        for node, low in zip(replicas[rows, ranks].tolist(), arcs.lows[rows].tolist(), strict=True)
    ]
    return {
        "theta": (middles[rows] * 360).tolist(),
        "width": (share[rows] * 360).tolist(),
        "base": (_INNERMOST + first + ranks).tolist(),
        "r": [_THICKNESS] * len(rows),
        "customdata": told,
    }


def _circle(figure: go.Figure) -> None:
    ticks = {"0": "−2⁶³", "90": "−2⁶²", "180": "0", "270": "2⁶²"}
    figure.update_layout(
        polar={
            "bgcolor": "rgba(0,0,0,0)",
            "radialaxis": {"visible": False},
            "angularaxis": {
                "direction": "clockwise",
                "rotation": 90,
                "tickvals": [float(angle) for angle in ticks],
                "ticktext": list(ticks.values()),
                "gridcolor": "rgba(0,0,0,0)",
                "linecolor": style.LINES,
            },
        }
    )
