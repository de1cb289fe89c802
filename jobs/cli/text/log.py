"""How the history looks."""

from __future__ import annotations

from collections.abc import Sequence

from epochlake.jobs.cli.documents import Compacted, Healed, LogEntry, Verified
from epochlake.jobs.cli.text.changes import change_lines
from epochlake.jobs.printing import bold, filled, left_out, plural, table
from epochlake.jobs.upkeep.lost_epochs import AcceptedLoss
from epochlake.jobs.views.history import LogRow
from rich.console import Group, RenderableType
from rich.text import Text


def log_list(rows: Sequence[LogRow]) -> list[RenderableType]:
    if not rows:
        return [Text("no such epochs")]
    made = table("epoch", "when (UTC)", "what", "who", right=["epoch"], wide=["what"])
    listed = filled(made, ((row.epoch, _when(row.committed_at), _what(row), _who(row.author)) for row in rows))
    return [*left_out(rows[0].left_out, "epoch"), listed]


def log_entry(entry: LogEntry) -> list[RenderableType]:
    line = bold(f"epoch {entry.epoch}")
    line.append(f"  {entry.event}: {entry.summary}", style="not bold")
    facts = [
        ("when", entry.committed_at),
        ("who", entry.author),
        ("why", entry.reason),
        ("request", entry.request_id),
        ("state id", entry.state_id),
        ("after", entry.previous_state_id),
        ("hash", entry.hash),
        ("after", entry.previous_hash),
        ("attachment", f"{entry.attachment_bytes:,} B" if entry.attachment_bytes else ""),
    ]
    lines: list[RenderableType] = [Text(f"{name:<11}{value}", style="bright_black") for name, value in facts if value]
    return [line, *lines, Text(), bold(plural(len(entry.changes), "change")), *change_lines(entry.changes)]


def verified(document: Verified) -> list[RenderableType]:
    looked = (
        f"{plural(document.entries, 'entry').replace('entrys', 'entries')} to epoch {document.last_epoch}, "
        f"{plural(document.events, 'event')} applied, {plural(document.snapshots, 'snapshot')} compared"
    )
    if document.replicas:
        looked += f", {plural(document.replicas, 'replica table')} looked at"
    if document.quorums:
        looked += ", quorums of all epochs compared"
    verdict = Text("the log holds", style="bold green") if document.holds else Text("does NOT hold", style="bold red")
    parts: list[RenderableType] = [verdict.append(f"  {looked}", style="not bold default")]
    for title, rows in (("Findings", document.findings), ("Notices", document.notices)):
        if rows:
            made = table("where", "what", "", wide=[""])
            parts += [Text(), bold(title), filled(made, ((row.where, row.code, row.message) for row in rows))]
    return parts


def compacted(document: Compacted) -> RenderableType:
    if not document.files_removed:
        return Text("the log is compact already")
    return Text(f"{plural(document.files_removed, 'file')} became {document.files_added}")


def healed(document: Healed) -> RenderableType:
    if document.mended:
        lead = "would be done: " if document.dry_run else ""
        rest = [] if document.dry_run else [_stored_once(document)]
        return Group(*(Text(f"{lead}{sentence}") for sentence in document.mended), *rest)
    return _stored_once(document)


def _stored_once(document: Healed) -> Text:
    if not document.copies:
        return Text(
            "every entry is stored once: there is nothing to heal; `epochlake log verify` says whether one is missing"
        )
    ranges = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in document.epochs)
    done = "would be taken out" if document.dry_run else "taken out"
    files = f"{plural(document.files_removed, 'file')} {'would become' if document.dry_run else 'became'}"
    return Text(
        f"{document.copies} superfluous {'copy' if document.copies == 1 else 'copies'} of epochs {ranges} {done}: "
        f"{files} {document.files_added}. No entry is lost"
    )


def accepted_loss(document: AcceptedLoss) -> list[RenderableType]:
    parts: list[RenderableType] = []
    if document.epoch is None:
        parts.append(bold(f"incarnation {document.incarnation} would begin after epoch {document.log_epoch}"))
    else:
        parts.append(bold(f"incarnation {document.incarnation} begins at epoch {document.epoch}"))
    if document.hole:
        parts.append(Text(f"{document.hole}: what comes after it in the log is given up as well"))
    if document.lost:
        first, last = document.lost
        epochs = f"epoch {first}" if first == last else f"epochs {first} to {last}"
        parts.append(Text(f"{epochs} {'would be' if document.epoch is None else 'count as'} lost"))
    if document.put_aside:
        done = "would be put aside" if document.epoch is None else "put aside"
        parts.append(Text(f"{done} in the log's _delta_log, not deleted: {', '.join(document.put_aside)}"))
    made = table("known to", "incarnation", "epoch", right=["incarnation", "epoch"], wide=["known to"])
    parts += [Text(), bold("Lost"), filled(made, ((one.by, one.incarnation, one.epoch) for one in document.known))]
    if document.snapshots:
        parts.append(Text(f"snapshots put aside: {', '.join(map(str, document.snapshots))}"))
    if document.epoch is not None:
        parts.append(Text(f"{plural(document.fenced, 'replica table')} fenced in the new incarnation"))
        parts.append(Text("replicas may have moved in the lost epochs: run `epochlake repair` on every table"))
    parts += [Text(f"not reached: {one}") for one in (*document.unreachable, *document.unasked)]
    return parts


def _when(iso: str) -> str:
    return iso[:19].replace("T", " ")


def _what(row: LogRow) -> Text:
    text = Text(row.summary)
    return text.append(f"  ({row.reason})", style="bright_black") if row.reason else text


def _who(author: str) -> str:
    return author.partition("@")[0]
