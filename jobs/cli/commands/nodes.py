"""`node …`: adding, moving, draining, removing, replacing and rebuilding nodes, and taking such a request back."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from epochlake.jobs.administration.nodes import NodeAddition, NodeReplacement
from epochlake.jobs.administration.operators import NodeAlteration, NodeMaintenance
from epochlake.jobs.administration.places import sharing_one_file_system
from epochlake.jobs.administration.topology_changes import Decommission, NodeMove, NodeRebuild, NodeRemoval
from epochlake.jobs.cli.arguments import (
    At,
    ForceOption,
    GiveUpOption,
    RequestName,
    TokenOption,
    TokensOption,
    of,
    parse_volumes,
    whole_list,
)
from epochlake.jobs.cli.changing import How, carry_out, change_command
from epochlake.jobs.cli.commands.agent import nodes as list_seen
from epochlake.jobs.cli.commands.requests import cancel_request
from epochlake.jobs.cli.session import Session
from epochlake.jobs.cli.text.nodes import node_list, node_shown
from epochlake.jobs.views.nodes import node_rows, shown_node
from epochlake.jobs.views.what_if import parse_tokens
from epochlake.metastore.errors import Rejected
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.rejections import Code

app = typer.Typer(help="Nodes and their volumes.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The node's name.", show_default=False)]
NEEDS_ANOTHER_NODE = frozenset({Code.TOO_FEW_NODES, Code.RACK_NEEDED, Code.BELOW_REPLICATION, Code.LAST_NODE})
"""Codes of rejections that a node in the place of the lost one avoids."""

VolumeOption = Annotated[
    list[str],
    typer.Option(
        "--volume",
        metavar="NAME=URI[,CAPACITY]",
        help="A place for replicas, and its size (500GB, 2TiB; default: that of its file system). Repeat for several.",
        show_default=False,
    ),
]


@change_command(app, "add")
def add(
    context: typer.Context,
    name: Name,
    datacenter: Annotated[
        str, typer.Option("--datacenter", metavar="NAME", help="Where it stands.", show_default=False)
    ],
    rack: Annotated[
        str,
        typer.Option("--rack", metavar="NAME", help="Replicas of a tablet go to different racks.", show_default=False),
    ],
    volume: VolumeOption,
    how: How,
    token: TokenOption = None,
    tokens: TokensOption = None,
    reuse: Annotated[
        bool, typer.Option("--reuse", help="Clear volumes that nodes which have left were on, and use them again.")
    ] = False,
) -> None:
    """Prepare the volumes of a new node and register it; the coordinator then lets it join.

    Without `--token` and `--tokens` as many tokens as are configured are allocated when it joins. With `--reuse` it may
    be on the directory of a node that has left: its replica tables there are deleted, anything else stays.
    """
    session, volumes, wanted = of(context), parse_volumes(volume), parse_tokens(token or ())
    carry_out(session, how, NodeAddition(name, datacenter, rack, volumes, tokens=wanted, count=tokens, reuse=reuse))
    _say_what_shares_a_disk(session, name, how)


@app.command("list")
def list_(
    context: typer.Context,
    at: At = None,
    everything: Annotated[bool, typer.Option("--all", help="Those that have left as well.")] = False,
    agent: Annotated[
        str | None,
        typer.Option("--agent", metavar="HOST:PORT", help="Ask an agent how it sees them, as `agent nodes` does."),
    ] = None,
) -> None:
    """List the nodes by what the metadata says of them; `status` asks the volumes as well."""
    session = of(context)
    if agent is not None:
        list_seen(context, agent)
        return
    session.show(node_rows(session.cluster.storage, session.cluster.at(at), everything=everything), node_list)


@app.command("show")
def show(context: typer.Context, name: Name, at: At = None) -> None:
    """Show a node: its tokens, its part of each keyspace on the ring, and the requests that it takes part in."""
    session = of(context)
    session.show(shown_node(session.cluster.storage, session.cluster.at(at), name), node_shown)


@change_command(app, "move")
def move(context: typer.Context, name: Name, how: How, token: TokenOption = None, tokens: TokensOption = None) -> None:
    """Let a node give up its tokens on the ring for others; its tablets stay where they are."""
    session, wanted = of(context), parse_tokens(token or ())
    if not wanted and tokens is None:
        raise InvalidRequest(
            f"it is not clear where node {name!r} is to move",
            hint="Give --token for each of its new tokens, or --tokens N",
        )
    carry_out(session, how, NodeMove(name, tokens=wanted, count=tokens))


@change_command(app, "decommission")
def decommission(context: typer.Context, name: Name, how: How, force: ForceOption = False) -> None:
    """Let a node whose storage is alive hand over its tablets and ranges and leave."""
    carry_out(of(context), how, Decommission(name, force=force))


@change_command(app, "remove")
def remove(context: typer.Context, name: Name, how: How, force: ForceOption = False) -> None:
    """Take out a node whose storage is lost, in whatever state it is; what it held is rebuilt on other nodes.

    What was under way with it ends, or goes on without it. With `--force` also where rows are lost, because no other
    storage that is left has them. Where too few nodes would be left, put a new one in its place: `node replace`.
    """
    try:
        carry_out(of(context), how, NodeRemoval(name, force=force))
    except Rejected as rejected:
        if rejected.code not in NEEDS_ANOTHER_NODE:
            raise
        instead = f"Or put a new node in its place: `epochlake node replace {name} NEW --volume …`"
        hint = f"{rejected.hint}. {instead}" if rejected.hint else instead
        raise Rejected(rejected.code, rejected.reason, hint=hint) from rejected


@change_command(app, "replace")
def replace(
    context: typer.Context,
    lost: Annotated[str, typer.Argument(metavar="LOST", help="The node whose storage is lost.", show_default=False)],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The node that takes its place.", show_default=False)],
    volume: VolumeOption,
    how: How,
    token: TokenOption = None,
    tokens: TokensOption = None,
    force: GiveUpOption = False,
) -> None:
    """Put a new node in the place of a lost one, in its rack; what that one held is rebuilt there.

    The storage of the lost node counts for nothing from now on, whatever was under way with it: that ends, or goes on
    without it. The new node takes over its tokens unless others are given.
    """
    session, volumes, wanted = of(context), parse_volumes(volume), parse_tokens(token or ())
    carry_out(session, how, NodeReplacement(lost, name, volumes, tokens=wanted, count=tokens, force=force))
    _say_what_shares_a_disk(session, name, how)


@change_command(app, "rebuild")
def rebuild(
    context: typer.Context,
    name: Name,
    how: How,
    source: Annotated[
        str, typer.Option("--from", metavar="DATACENTER", help="Only from replicas there; else from any.")
    ] = "",
) -> None:
    """Give a node all rows of its ranges on the ring again, from the other replicas; it is not read meanwhile."""
    carry_out(of(context), how, NodeRebuild(name, datacenter=source))


@change_command(app, "cancel")
def cancel(context: typer.Context, request: RequestName, how: How) -> None:
    """Take an open topology request back; the same as `request cancel`."""
    cancel_request(of(context), request, how)


class Switch(StrEnum):
    ON = "on"
    OFF = "off"


@change_command(app, "maintenance")
def maintenance(
    context: typer.Context,
    name: Name,
    switch: Annotated[
        Switch,
        typer.Argument(
            metavar="on|off",
            case_sensitive=False,
            help="on: it gets no new replicas; off: it gets them again.",
            show_default=False,
        ),
    ],
    how: How,
) -> None:
    """Let a node keep its replicas and get no new ones, or get them again."""
    carry_out(of(context), how, NodeMaintenance(name, switch is Switch.ON))


@change_command(app, "set")
def set_(
    context: typer.Context,
    name: Name,
    how: How,
    weight: Annotated[
        float | None, typer.Option("--weight", metavar="W", help="What its capacity is multiplied by for the balancer.")
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="TAG[,TAG]", help="All tags that it has from now on, for rules of tables."),
    ] = None,
    no_tags: Annotated[bool, typer.Option("--no-tags", help="It has no tags from now on.")] = False,
) -> None:
    """Change what the balancer and the placement rules of tables make of a node."""
    session, tags = of(context), whole_list(tag, none=no_tags, option="tag")
    if weight is None and tags is None:
        raise InvalidRequest(f"nothing is to be different about node {name!r}", hint="Give its --weight, or its tags")
    carry_out(session, how, NodeAlteration(name, weight=weight, tags=tags))


def _say_what_shares_a_disk(session: Session, name: str, how: How) -> None:
    shared = "" if how.dry_run else sharing_one_file_system(session.cluster.storage, session.cluster.metadata, name)
    if shared:
        session.warn(shared)
