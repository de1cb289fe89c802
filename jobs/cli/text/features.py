"""How features look in a list."""

from __future__ import annotations

from collections.abc import Sequence

from epochlake.jobs.printing import filled, table
from epochlake.jobs.views.features import FeatureRow
from rich.console import RenderableType
from rich.text import Text


def feature_list(rows: Sequence[FeatureRow]) -> list[RenderableType]:
    made = table("feature", "enabled in", "meaning", "not supported by", right=["enabled in"])
    listed = filled(made, ((row.name, row.enabled_epoch, row.meaning, ", ".join(row.lacking)) for row in rows))
    silent = rows[0].unannounced if rows and any(row.enabled_epoch is None for row in rows) else ()
    told = [Text(f"no agent has announced its version: {', '.join(silent)}", "yellow")] if silent else []
    return [listed, *told]
