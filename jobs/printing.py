"""Small pieces that all screens are made of: tables, bytes, durations, states in colour."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from epochlake.placement.showing import plural, size
from rich import box
from rich.console import Console, RenderableType
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

__all__ = ["bold", "filled", "left_out", "plural", "seconds", "size", "state", "table", "without_trailing_blanks"]

COLOURS = {
    "normal": "green",
    "bootstrapping": "cyan",
    "decommissioning": "yellow",
    "removing": "yellow",
    "replacing": "yellow",
    "rebuilding": "yellow",
    "left": "bright_black",
    "joining": "cyan",
}


def without_trailing_blanks(console: Console, part: RenderableType) -> Segments:
    """What is printed, without the blanks that fill the last column, or stay where a line was wrapped."""
    shown: list[Segment] = []
    for line in console.render_lines(part, pad=False):
        kept = list(line)
        while kept and not kept[-1].control and not (text := kept[-1].text.rstrip(" ")):
            kept.pop()
        if kept and not kept[-1].control:
            kept[-1] = Segment(text, kept[-1].style)
        shown += [*kept, Segment.line()]
    return Segments(shown)


def table(*columns: str, right: Iterable[str] = (), wide: Iterable[str] = ()) -> Table:
    """A table without lines; columns named in `right` hold numbers, those in `wide` take the room that is left."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        flexible = column in wide
        made.add_column(
            column,
            justify="right" if column in right else "left",
            no_wrap=not flexible,
            overflow="fold" if flexible else "ellipsis",
            ratio=1 if flexible else None,
        )
    return made


def filled(made: Table, rows: Iterable[Sequence[Any]]) -> Table:
    """The table with rows; None is a dash. Texts are printed as they are: rich would take `[log]` for a style."""
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text("-" if cell is None else str(cell)) for cell in row))
    return made


def seconds(value: float) -> str:
    """A duration for people."""
    if value < 100:
        return f"{value:.0f} s"
    if value < 6000:
        return f"{value / 60:.0f} min"
    return f"{value / 3600:.1f} h"


def state(word: str) -> Text:
    return Text(word, style=COLOURS.get(word, ""))


def left_out(count: int, word: str) -> list[Text]:
    """A line that a list is cut; none when it is not."""
    verb = "is" if count == 1 else "are"
    return [Text(f"{plural(count, f'older {word}')} {verb} left out: --limit 0 lists all", "yellow")] if count else []


def bold(text: str) -> Text:
    return Text(text, style="bold")
