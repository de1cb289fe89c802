"""How changes look: what was committed, what would be, and what differs between two states of the cluster."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from epochlake.jobs.cli.documents import Changed, Planned
from epochlake.jobs.cli.text.request_list import ring_plan
from epochlake.jobs.printing import bold, plural
from epochlake.jobs.views.history import Differences
from epochlake.metastore.metadata.differences import WHOLE, Difference
from rich.console import RenderableType
from rich.text import Text


def changed(document: Changed) -> list[RenderableType]:
    first = Text()
    first.append(f"epoch {document.epoch}", style="bold green")
    first.append(f"  {document.what}" + (" (done already)" if document.already else ""))
    lines: list[RenderableType] = [first, Text(f"request  {document.request_id}", style="bright_black")]
    return lines + _details(document.details)


def planned(document: Planned) -> list[RenderableType]:
    first = Text()
    first.append("dry run", style="bold yellow")
    if document.already is None:
        first.append(f", nothing was changed. On epoch {document.on_epoch}, this would be committed:")
    else:
        first.append(f", nothing was changed. Nothing would be: epoch {document.already} has this request id:")
    event = Text()
    event.append(document.event, style="bold")
    event.append(f"  {document.what}")
    ring = [] if document.ring is None else ring_plan(document.ring)
    return [first, event, *_details(document.details), *ring, *change_lines(document.changes)]


def differences(document: Differences) -> list[RenderableType]:
    head = bold(f"from epoch {document.before} to epoch {document.after}: {plural(len(document.changes), 'change')}")
    return [head, *change_lines(document.changes)]


def change_lines(changes: Iterable[Difference]) -> list[RenderableType]:
    """A line for each change: + what appears, - what goes, ~ what is different."""
    return [_change(change) for change in changes]


def _change(change: Difference) -> Text:
    line = Text()
    if change.field == WHOLE and change.before is None:
        line.append("+ ", style="green").append(f"{change.component} {change.name}  ")
        return line.append(_compact(change.after), style="bright_black")
    if change.field == WHOLE:
        return line.append("- ", style="red").append(f"{change.component} {change.name}")
    line.append("~ ", style="yellow").append(f"{change.component} {change.name}  {change.field}: ")
    return line.append(f"{_value(change.before)} → {_value(change.after)}")


def _compact(value: Any) -> str:
    if not isinstance(value, dict):
        return _value(value)
    said = {key: inner for key, inner in value.items() if inner not in (None, [], "", {}) and inner is not False}
    return ", ".join(f"{key}: {_value(inner)}" for key, inner in said.items())


def _value(value: Any) -> str:
    if isinstance(value, str):
        return value or '""'
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return " ".join(value) or "none"
    return json.dumps(value, ensure_ascii=False)


def _details(details: dict[str, Any]) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for key, value in details.items():
        name = key.replace("_", " ")
        if isinstance(value, dict):
            lines += [Text(f"{name}: {inner}: {text}", style="yellow") for inner, text in value.items()]
        elif value not in (None, []):
            lines.append(Text(f"{name}: {value}"))
    return lines
