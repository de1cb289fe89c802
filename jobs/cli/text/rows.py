"""How rows look, and what was done with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from epochlake.jobs.cli.documents import Loaded
from epochlake.jobs.printing import filled, plural, size, table
from rich.console import RenderableType
from rich.text import Text


def loaded(document: Loaded) -> list[RenderableType]:
    done = "deleted by their keys" if document.deleted else "written"
    if document.already:
        done = f"had been {done} before"
    parts: list[RenderableType] = [
        Text(
            f"{plural(document.rows, 'row')} of {document.table} {done} at {document.consistency}, "
            f"epoch {document.epoch}: {plural(document.files, 'file')}, {size(document.bytes)}"
        )
    ]
    parts += [Text(f"{place}: {reason}", style="yellow") for place, reason in document.missing.items()]
    parts += [Text(warning, style="yellow") for warning in document.warnings]
    return parts


def rows_table(columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> RenderableType:
    if not rows:
        return Text("no rows")
    return filled(table(*columns, wide=columns), ([_cell(row[name]) for name in columns] for row in rows))


def _cell(value: object) -> Text:
    if value is None:
        return Text("null", style="bright_black")
    shown = str(value)
    # What would move a terminal's cursor is not sent there.
    return Text(shown if shown.isprintable() else repr(value))
