"""How the state of an upgrade looks."""

from __future__ import annotations

from epochlake.jobs.views.upgrade import UpgradeStatus
from rich.console import RenderableType
from rich.text import Text

SHOWN = 20


def upgrade_status(document: UpgradeStatus) -> list[RenderableType]:
    lines: list[RenderableType] = [Text(f"upgrade_state {document.upgrade_state}")]
    lines += [Text(f"  still to be built: {what}") for what in document.missing[:SHOWN]]
    more = len(document.missing) - SHOWN
    return [*lines, Text(f"  and {more:,} more")] if more > 0 else lines
