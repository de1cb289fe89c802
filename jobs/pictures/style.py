"""How all pictures look: colours that can be read on white and on black alike, no background, one kind of title."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from epochlake.placement.errors import InvalidRequest

if TYPE_CHECKING:
    import plotly.graph_objects as go

TEXT = "#787878"
LINES = "rgba(128,128,128,0.28)"
COLOURS = (
    "#3b82c4",
    "#c9701a",
    "#2f9a4f",
    "#d14a5f",
    "#9069c0",
    "#a06a4a",
    "#c9579a",
    "#8a8a2c",
    "#1f94a2",
    "#7d7d7d",
)
"""For things of a kind, ten of them: each has a contrast of 3 at least on white, and on the dark of Jupyter."""

WAITING, FAILED = "#9a9a9a", "#d14a5f"
SCALE = "Viridis"
HIGHEST = 1400
"""A picture has so many pixels of height at most."""


def plotly() -> Any:
    """`plotly.graph_objects`. Raises InvalidRequest where Plotly is not installed."""
    try:
        import plotly.graph_objects as graph_objects
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "plotly":
            raise
        raise InvalidRequest(
            "pictures need Plotly, which is not installed here", hint="Run `pip install 'epochlake[pictures]'`"
        ) from error
    return graph_objects


def styled(figure: go.Figure, title: str, subtitle: str = "", height: int = 460) -> go.Figure:
    """The figure in the one style. `subtitle` says what was counted, and what was left out."""
    below = f"<br><span style='font-size:12px'>{plain(subtitle)}</span>" if subtitle else ""
    figure.update_layout(
        title={"text": f"{plain(title)}{below}", "x": 0.01, "xanchor": "left", "font": {"size": 16}},
        font={"color": TEXT, "family": "system-ui, sans-serif", "size": 12},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        height=min(height, HIGHEST),
        margin={"l": 20, "r": 20, "t": 76, "b": 40},
        hoverlabel={"font": {"family": "ui-monospace, monospace", "size": 12}, "align": "left"},
        legend={"bgcolor": "rgba(0,0,0,0)"},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": TEXT, "activecolor": COLOURS[0]},
        template="none",
    )
    axis = {"gridcolor": LINES, "linecolor": LINES, "zerolinecolor": LINES, "automargin": True}
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis)
    if not figure.data:
        # Plotly draws axes from -1 to 6 where there is nothing, as if they measured something.
        figure.update_xaxes(visible=False)
        figure.update_yaxes(visible=False)
    return figure


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name, in the order in which they come first; beyond ten they are used again.

    Pictures of a cluster hand over all of its nodes in their order, so that a node has one colour in all of them.
    """
    return {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(dict.fromkeys(names))}


def legend_below(figure: go.Figure) -> go.Figure:
    """The legend as a line below the title of the axis, however high the picture is."""
    room = figure.layout.height - figure.layout.margin.t - figure.layout.margin.b
    figure.update_layout(
        margin_b=84,
        height=figure.layout.height + 44,
        legend={
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": -52 / room,
            "yanchor": "top",
            "traceorder": "normal",
        },
    )
    return figure


def plain(text: str) -> str:
    """What somebody wrote, so that Plotly takes none of it for markup."""
    return escape(text, quote=False)


def and_more(names: Sequence[str], limit: int = 6) -> str:
    """Names for people, the first of them when there are many."""
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown}, … ({len(names)} in all)"
