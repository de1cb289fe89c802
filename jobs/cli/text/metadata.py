"""How `metadata …` looks to people."""

from __future__ import annotations

from datetime import UTC, datetime

from epochlake.jobs.cli.documents import PreparedServer
from epochlake.jobs.upkeep.coordination_members import (
    CoordinationMemberRow,
    CoordinationMembers,
    CoordinationProposed,
)
from epochlake.jobs.upkeep.log_members import LogMemberRow, LogMembers, MembersProposed, RootRestored
from epochlake.metastore.coordination.keeping import KeeperState
from rich.console import RenderableType
from rich.text import Text


def members(document: LogMembers) -> list[RenderableType]:
    if not document.generation:
        return [Text("the cluster has no log members")]
    lines: list[RenderableType] = [Text(f"generation {document.generation} of the log members")]
    for row in document.members:
        said = row.trouble or f"epoch {row.epoch}" if row.trouble or row.adopted else "no whole copy"
        lines.append(Text(f"{row.member}: {said}" + (f" ({row.doubt})" if row.doubt else "")))
    if any(row.doubt for row in document.members):
        lines.append(Text("metadata reconfigure with all members makes those in doubt whole"))
    if document.change is not None:
        lines.append(Text(f"the change to generation {document.change.generation} is unfinished:"))
        lines += [Text(f"{row.member}: {_got_to(row, document.change.generation)}") for row in document.change.members]
        lines.append(Text("metadata reconfigure --resume ends it, --cancel goes back"))
    return lines


def _got_to(row: LogMemberRow, generation: int) -> str:
    if row.trouble:
        return row.trouble
    if row.promised < generation:
        return "has not promised it"
    return f"epoch {row.epoch}" if row.adopted >= generation else "has promised it, and has no whole copy of it"


def proposed(document: MembersProposed) -> list[RenderableType]:
    rows = [f"+ {uri}" if uri in document.joining else f"  {uri}" for uri in document.members]
    rows += [f"- {uri}" for uri in document.leaving]
    lines: list[RenderableType] = [Text(row) for row in rows]
    lines += [Text(f"{node} cannot be one: {reason}") for node, reason in document.unavailable.items()]
    if not document.joining and not document.leaving:
        lines.append(Text("these are the log members already"))
    return lines


def restored(document: RootRestored) -> RenderableType:
    unasked = f"; ZooKeeper was not compared: {document.unasked}" if document.unasked else ""
    return Text(f"restored up to epoch {document.epoch} from {document.source}{unasked}")


def coordination(document: CoordinationMembers) -> list[RenderableType]:
    if not document.members:
        return [Text(f"a single ZooKeeper server at {document.configured}, which is no ensemble")]
    lines: list[RenderableType] = [Text(f"version {document.version} of the ZooKeeper ensemble")]
    lines += [Text(_member(row)) for row in document.members]
    if document.change is not None:
        lines.append(Text(f"a change is unfinished; next: {document.change.next}. It leads to:"))
        lines += [Text(f"  {server}") for server in document.change.target]
        lines.append(Text("metadata reconfigure --coordination --resume ends it, --cancel goes back"))
    elif document.connect and _places(document.connect) not in map(_places, (document.published, document.configured)):
        lines.append(Text(f"[zookeeper] connect is {document.configured}"))
        lines.append(Text(f"         and is to be {document.connect}"))
    if document.published:
        lines.append(Text(f"published: {document.published}"))
    if document.keeper is not None:
        lines.append(Text(kept(document.keeper)))
    return lines


def kept(keeper: KeeperState) -> str:
    """What the coordinator that keeps an ensemble has said last."""
    does = keeper.doing or (f"it waits: {keeper.waits}" if keeper.waits else "nothing is to be changed")
    when = datetime.fromtimestamp(keeper.at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"kept by {keeper.coordinator}, at {when}: {does}"


def _places(connect: str) -> set[str]:
    return set(connect.partition("/")[0].split(","))


def _member(row: CoordinationMemberRow) -> str:
    on = f" on {row.node}" if row.node else ""
    said = row.trouble or row.state
    return f"server {row.server}{on} at {row.client or row.address}: {row.role}, {said}"


def coordination_proposed(document: CoordinationProposed) -> list[RenderableType]:
    lines: list[RenderableType] = [Text(f"  {server}") for server in document.members]
    lines += [Text(step) for step in document.steps]
    lines += [Text(f"{server} cannot be one: {reason}") for server, reason in document.unavailable.items()]
    if not document.steps:
        lines.append(Text("these are the coordination members already"))
    return lines


def prepared(document: PreparedServer) -> list[RenderableType]:
    return [
        Text(f"{document.server} is ready in {document.directory}; start it by"),
        Text(document.command, no_wrap=True),
    ]
