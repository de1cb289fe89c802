"""How nodes look: in a list, and one in full."""

from __future__ import annotations

from collections.abc import Sequence

from epochlake.jobs.cli.text.request_list import request_list
from epochlake.jobs.printing import bold, filled, plural, size, state, table
from epochlake.jobs.views.nodes import NodeShown
from epochlake.jobs.views.status import NodeStatus
from rich.console import RenderableType
from rich.text import Text


def node_list(nodes: Sequence[NodeStatus]) -> RenderableType:
    if not nodes:
        return Text("no nodes")
    made = table(
        "node", "state", "place", "tablets", "capacity", "volumes", right=["tablets", "capacity"], wide=["volumes"]
    )
    return filled(
        made,
        (
            (
                node.name,
                state(node.state),
                f"{node.datacenter}/{node.rack}",
                f"{node.tablets:,}",
                size(node.capacity),
                " ".join(f"{volume.name}={volume.uri}" for volume in node.volumes),
            )
            for node in nodes
        ),
    )


def node_shown(shown: NodeShown) -> list[RenderableType]:
    node = shown.node
    head = bold(node.name).append("  ").append_text(state(node.state))
    said = said_of(node)
    head.append(f" in {node.datacenter}/{node.rack}" + (f", {said}" if said else ""), style="not bold default")
    facts = [f"number {node.node_id}, host id {node.host_id}, last changed by epoch {shown.epoch}"]
    facts += [f"replaces {node.replaces}"] if node.replaces else []
    facts += [f"replaced by {node.replaced_by}"] if node.replaced_by else []
    volumes = table("volume", "place", "tablets", "capacity", right=["tablets", "capacity"], wide=["place"])
    rows = ((one.name, one.uri, f"{one.tablets:,}", size(one.capacity)) for one in node.volumes)
    parts: list[RenderableType] = [head, *(Text(fact, style="bright_black") for fact in facts), Text()]
    parts.append(filled(volumes, rows))
    if shown.tokens:
        parts += [Text(), bold(plural(len(shown.tokens), "token")), Text(" ".join(map(str, shown.tokens)))]
    if node.owns:
        shares = ", ".join(f"{share:.1%} of {name}" for name, share in node.owns.items())
        parts += [Text(), Text(f"serves reads of {shares}")]
    if shown.requests:
        parts += [Text(), bold("Requests"), *request_list(shown.requests)]
    return parts


def said_of(node: NodeStatus) -> str:
    """What operators have said of a node, where it is anything."""
    words = ["maintenance"] if node.maintenance else []
    words += [f"weight {node.weight:g}"] if node.weight != 1 else []
    return ", ".join([*words, *node.tags])
