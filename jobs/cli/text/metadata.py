"""How `metadata …` looks to people."""

from __future__ import annotations

from epochlake.jobs.upkeep.log_members import LogMembers, RootRestored
from rich.console import RenderableType
from rich.text import Text


def members(document: LogMembers) -> list[RenderableType]:
    if not document.generation:
        return [Text("the cluster has no log members")]
    lines: list[RenderableType] = [Text(f"generation {document.generation} of the log members")]
    for row in document.members:
        said = row.trouble or f"epoch {row.epoch}" if row.trouble or row.adopted else "no whole copy"
        lines.append(Text(f"{row.member}: {said}"))
    if document.unfinished is not None:
        lines.append(Text(f"the change to generation {document.unfinished} is unfinished"))
    return lines


def restored(document: RootRestored) -> RenderableType:
    return Text(f"restored up to epoch {document.epoch} from {document.source}")
