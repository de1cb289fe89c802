"""How rows look, and what was done with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from epochlake.jobs.cli.documents import Loaded
from epochlake.jobs.printing import filled, plural, size, table
from rich.console import RenderableType
from rich.text import Text

if TYPE_CHECKING:
    from epochlake.jobs.administration.adopting import Adopted
    from epochlake.jobs.administration.past_rows import RolledBack
    from epochlake.jobs.exchange.exporting import Exported


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
    if len(document.parts) > 1:
        before = sum(part.already for part in document.parts)
        files = len({part.file for part in document.parts})
        told = f", {before} of which had landed before" if before and not document.already else ""
        parts.append(Text(f"{plural(files, 'file')} in {plural(len(document.parts), 'write')}{told}"))
    parts += [Text(f"{name}: {cast}, which loses nothing") for name, cast in document.casts.items()]
    if empty := [name for name in document.filled if name not in document.defaults]:
        parts.append(Text(f"null, as the file has no such column: {', '.join(empty)}"))
    parts += [
        Text(f"{name}: its default, {text!r}, as the file has no such column")
        for name, text in document.defaults.items()
    ]
    parts += [Text(f"{place}: {reason}", style="yellow") for place, reason in document.missing.items()]
    parts += [Text(warning, style="yellow") for warning in document.warnings]
    return parts


def exported(document: Exported) -> RenderableType:
    return Text(
        f"{plural(document.rows, 'row')} of {document.table}, epoch {document.epoch}, "
        f"{'is' if document.rows == 1 else 'are'} in {document.destination} ({document.format})"
    )


def adopted(document: Adopted) -> list[RenderableType]:
    before = f", {document.already} of which had landed before" if document.already else ""
    return [
        Text(
            f"{document.table} has the {plural(document.rows, 'row')} of {document.origin}, "
            f"version {document.version}: {plural(document.parts, 'write')}{before}; numbers and hashes of both agree"
        ),
        Text(f"primary key: {', '.join(document.primary_key)} ({document.why})"),
        Text(f"its origin is told in the log: epochlake log show {document.epoch}"),
    ]


def rolled_back(document: RolledBack) -> list[RenderableType]:
    would = "would be " if document.dry_run else ""
    said = [
        f"{plural(count, 'row')} {would}{what}"
        for count, what in (
            (document.rewritten, "written as before"),
            (document.brought_back, "brought back"),
            (document.deleted, "deleted"),
        )
        if count
    ]
    if not said:
        return [Text(f"no row of {document.table} has changed since {document.to}")]
    before = ", all of which had landed before" if document.already else ""
    parts: list[RenderableType] = [Text(f"{document.table} as of {document.to}: {', '.join(said)}{before}")]
    parts.append(Text(f"of what came until {document.until}", style="bright_black"))
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
