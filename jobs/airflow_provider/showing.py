"""Documents as the command line shows them, as text for logs and for whoever approves."""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO

from epochlake.jobs.printing import without_trailing_blanks
from rich.console import Console, RenderableType


def as_text(parts: Iterable[RenderableType], width: int) -> str:
    """What a terminal of that width would show, without colours."""
    page = StringIO()
    console = Console(file=page, width=width, force_terminal=False, highlight=False, color_system=None)
    for part in parts:
        console.print(without_trailing_blanks(console, part), end="")
    return page.getvalue().rstrip("\n")
