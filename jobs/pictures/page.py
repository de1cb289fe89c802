"""Pictures as a file of one page, which needs no network: for mails, tickets and a run's artifacts."""

from __future__ import annotations

import os
import uuid
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from epochlake.jobs.pictures import style
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.version import PRODUCT_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable

    import plotly.graph_objects as go

_HEAD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{title}</title>
<style>
body {{ font-family: system-ui, sans-serif; margin: 1.5rem auto; max-width: 72rem; padding: 0 1rem;
       background: Canvas; color: CanvasText; }}
h1 {{ font-size: 1.3rem; }} footer {{ color: #787878; font-size: 0.8rem; }}
</style></head><body><h1>{title}</h1>
"""


def save(path: str | Path, figures: Iterable[go.Figure], title: str) -> Path:
    """Write the figures below each other; what was at `path` is replaced as a whole, or stays.

    The page is light or dark as the reader's browser is. Raises InvalidRequest when there is nothing to write, or when
    it cannot be written there.
    """
    graph_objects = style.plotly()
    from plotly.io import to_html

    drawn = list(figures)
    if not drawn:
        raise InvalidRequest("there is no picture to save", hint="Hand over at least one")
    for figure in drawn:
        if not isinstance(figure, graph_objects.Figure):
            raise InvalidRequest(
                f"a {type(figure).__name__} is no picture", hint="Hand over what epochlake.pictures gives"
            )
    parts = [_HEAD.format(title=escape(title))]
    for number, figure in enumerate(drawn):
        library = number == 0  # once, within the page
        config = {"displaylogo": False, "responsive": True}
        parts.append(to_html(figure, include_plotlyjs=library, full_html=False, config=config))
    parts.append(f"<footer>Epochlake {PRODUCT_VERSION}</footer></body></html>\n")
    target = Path(path)
    try:
        temporary = target.with_name(f".{target.name}-{uuid.uuid4().hex}")
        try:
            with temporary.open("x", encoding="utf-8") as file:  # who may read it is for the umask to say
                file.write("".join(parts))
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InvalidRequest(
            f"the page cannot be written to {target}: {error.strerror or error}", hint="Name a file in a directory"
        ) from error
    return target
