"""How pipelines, swept files and the configuration look."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime

from epochlake.jobs.administration.unused_files import Sweep
from epochlake.jobs.cli.documents import ConfigurationRow, PipelineRow
from epochlake.jobs.printing import bold, filled, plural, size, table
from rich.console import RenderableType
from rich.text import Text


def pipeline_list(rows: Sequence[PipelineRow]) -> RenderableType:
    if not rows:
        return Text("no pipelines are running")
    made = table("pipeline", "epoch", "tables", "since (UTC)", "host", "pid", right=["epoch", "pid"], wide=["tables"])
    return filled(
        made,
        (
            (row.name, row.epoch, ", ".join(row.tables), row.started_at[:19].replace("T", " "), row.host, row.pid)
            for row in rows
        ),
    )


def swept(document: Sweep) -> list[RenderableType]:
    files = sum(replica.files for replica in document.replicas)
    freed = sum(replica.size for replica in document.replicas)
    kept = sum(replica.kept for replica in document.replicas)
    since = datetime.fromtimestamp(document.keep_newer_than_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    done = "would be deleted" if document.dry_run else "deleted"
    parts: list[RenderableType] = [
        bold(f"{plural(files, 'file')} {done}").append(f", {size(freed)}; {kept:,} kept", style="not bold"),
        Text(
            f"kept is what may have been needed after {since} ({plural(document.leases, 'live pipeline')}), and what "
            "is five minutes older, as clocks differ",
            style="bright_black",
        ),
    ]
    if document.root_files:
        at_root = f"at the root {plural(document.root_files, 'file')} {done}, {size(document.root_size)}"
        parts.append(Text(f"{at_root}: of change streams and merges"))
    if document.root_obstacle:
        parts.append(Text(document.root_obstacle, style="red"))
    shown = [replica for replica in document.replicas if replica.files or replica.kept or replica.obstacle]
    if shown:
        made = table("table", "volume", "files", "size", "kept", "", right=["files", "size", "kept"], wide=[""])
        rows = ((r.table, r.volume, r.files, size(r.size), r.kept, Text(r.obstacle or "", style="red")) for r in shown)
        parts += [Text(), filled(made, rows)]
    return parts


def configuration_rows(rows: Sequence[ConfigurationRow]) -> RenderableType:
    made = table("key", "value", wide=["value"])
    names = (f"[{row.section}] {row.key}" if row.section else row.key for row in rows)
    return filled(made, ((name, json.dumps(row.value)) for name, row in zip(names, rows, strict=True)))
