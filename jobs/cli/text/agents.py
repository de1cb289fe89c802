"""How agents look: one in full, and the nodes as an agent sees them."""

from __future__ import annotations

from collections.abc import Sequence

from epochlake.jobs.agent.coordination_server import CoordinationServerSeen
from epochlake.jobs.agent.documents import AgentState, NodeSeen
from epochlake.jobs.agent.initialising import InitAnswer
from epochlake.jobs.agent.joining import JoinState
from epochlake.jobs.agent.task_messages import TasksSeen
from epochlake.jobs.printing import bold, filled, seconds, size, state, table
from rich.console import RenderableType
from rich.text import Text


def agent_shown(shown: AgentState) -> list[RenderableType]:
    belongs = "blank: of no cluster" if shown.tag is None else f"of cluster {shown.tag}"
    log = shown.log
    followed = "" if log.seconds_ago is None else f", followed {seconds(log.seconds_ago)} ago"
    said = f"{log.outcome}: {log.reason}" if log.reason else log.outcome
    volumes = table("volume", "health", "free", "capacity", "looked at in", right=["free", "capacity", "looked at in"])
    parts: list[RenderableType] = [
        bold(shown.name).append(f" at {shown.address}, {belongs}", style="not bold default"),
        Text(f"agent {shown.agent_id}, version {shown.product_version}", style="bright_black"),
        Text(f"log at epoch {log.epoch}{followed} ({said})"),
    ]
    if shown.tag is None and shown.discovered is not None:
        parts.append(Text(f"knows of cluster {shown.discovered}: `epochlake node add {shown.name}` lets its node join"))
    parts += [join_state(shown.join)] if shown.join is not None else []
    parts += [Text(f"waits: {shown.waits}", "yellow")] if shown.waits else []
    parts += [_coordination_server(shown.coordination)] if shown.coordination is not None else []
    if (did := shown.tasks) != TasksSeen():
        moved = f"{size(did.received)} came from other agents, {size(did.served)} went to them"
        undone = f", {did.undone} not done" if did.undone else ""
        parts.append(Text(f"{did.done} tasks done{undone}; {moved}"))
    if shown.volumes:
        rows = (
            (
                volume.name,
                state(volume.health),
                None if volume.free is None else size(volume.free),
                None if volume.capacity is None else size(volume.capacity),
                None if volume.seconds is None else f"{volume.seconds * 1000:.0f} ms",
            )
            for volume in shown.volumes
        )
        parts += [Text(), filled(volumes, rows)]
    if shown.problems:
        parts += [Text(), bold("Problems"), *(Text(f"  {problem}", "yellow") for problem in shown.problems)]
    return parts


def _coordination_server(server: CoordinationServerSeen) -> Text:
    role = f", {server.role}" if server.role else ", no member"
    known = role if server.state.serves else ""
    said = f": {server.reason}" if server.reason else ""
    return Text(f"ZooKeeper {server.server} is {server.state}{known}{said}")


def init_answer(answer: InitAnswer) -> RenderableType:
    return Text(f"cluster {answer.tag} is {answer.outcome}")


def join_state(join: JoinState) -> RenderableType:
    said = f": {join.reason}" if join.reason else ""
    return Text(f"join {join.phase}" + (f" in epoch {join.epoch}" if join.epoch is not None else "") + said)


def nodes_seen(nodes: Sequence[NodeSeen]) -> RenderableType:
    if not nodes:
        return Text("no nodes")
    # Only where there is any: the table is wide enough.
    runs = any(node.coordination_server for node in nodes)
    columns = ["node", "in the log", "place", "seen", "address", "epoch", "heard", *(["ZooKeeper"] if runs else []), ""]
    made = table(*columns, right=["epoch"])
    return filled(
        made,
        (
            (
                node.name,
                None if node.state is None else state(node.state),
                None if node.datacenter is None else f"{node.datacenter}/{node.rack}",
                None if node.seen is None else state(node.seen),
                node.address,
                node.epoch,
                None if node.heard_seconds_ago is None else f"{seconds(node.heard_seconds_ago)} ago",
                *([node.coordination_server.partition("=")[0]] if runs else []),
                node.note,
            )
            for node in nodes
        ),
    )
