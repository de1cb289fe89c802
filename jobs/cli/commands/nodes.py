"""`node …`: adding, draining, removing and replacing nodes, and taking such a request back."""

from __future__ import annotations

from typing import Annotated

import typer
from epochlake.jobs import administration
from epochlake.jobs.administration.nodes import measured, plan_add_node, plan_cancel_request, plan_request
from epochlake.jobs.administration.past import cluster_at
from epochlake.jobs.administration.status import node_statuses
from epochlake.jobs.cli.arguments import At, of, parse_volumes
from epochlake.jobs.cli.changing import How, carry_out, change_command
from epochlake.jobs.cli.text.status import node_list
from epochlake.metastore.metadata.model import RequestKind

app = typer.Typer(help="Nodes and their volumes.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]
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
) -> None:
    """Prepare the volumes of a new node and register it; the coordinator then lets it join."""
    session, volumes = of(context), parse_volumes(volume)
    carry_out(
        session,
        how,
        lambda metadata, options: plan_add_node(
            metadata,
            name,
            datacenter,
            rack,
            measured(volumes),
            request_id=options["request_id"] or "",
            host_id="(new)",
        ),
        lambda options: administration.add_node(session.cluster, name, datacenter, rack, volumes, **options),
    )


@app.command("list")
def list_(
    context: typer.Context,
    at: At = None,
    everything: Annotated[bool, typer.Option("--all", help="Those that have left as well.")] = False,
) -> None:
    """List the nodes by what the metadata says of them; `status` asks the volumes as well."""
    session = of(context)
    found = node_statuses(cluster_at(session.cluster, at))
    session.show([node for node in found if everything or node.state != "left"], node_list)


@change_command(app, "decommission")
def decommission(context: typer.Context, name: Name, how: How) -> None:
    """Let a node whose storage is alive hand over its tablets and leave."""
    session = of(context)
    carry_out(
        session,
        how,
        lambda metadata, options: plan_request(
            metadata, name, RequestKind.LEAVE, options["request_id"] or "", how.reason
        ),
        lambda options: administration.decommission(session.cluster, name, **options),
    )


@change_command(app, "remove")
def remove(context: typer.Context, name: Name, how: How) -> None:
    """Take out a node whose storage is lost; its tablets are rebuilt on other nodes."""
    session = of(context)
    carry_out(
        session,
        how,
        lambda metadata, options: plan_request(
            metadata, name, RequestKind.REMOVE, options["request_id"] or "", how.reason
        ),
        lambda options: administration.remove_node(session.cluster, name, **options),
    )


@change_command(app, "replace")
def replace(
    context: typer.Context,
    lost: Annotated[str, typer.Argument(metavar="LOST", help="The node whose storage is lost.", show_default=False)],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The node that takes its place.", show_default=False)],
    volume: VolumeOption,
    how: How,
) -> None:
    """Put a new node in the place of a lost one, in its rack; its tablets are rebuilt there."""
    session, volumes = of(context), parse_volumes(volume)
    carry_out(
        session,
        how,
        lambda metadata, options: plan_add_node(
            metadata,
            name,
            metadata.node(lost).datacenter,
            metadata.node(lost).rack,
            measured(volumes),
            replaces=lost,
            request_id=options["request_id"] or "",
            host_id="(new)",
        ),
        lambda options: administration.replace_node(session.cluster, lost, name, volumes, **options),
    )


@change_command(app, "cancel")
def cancel(
    context: typer.Context,
    request: Annotated[
        str, typer.Argument(metavar="REQUEST", help="Its id, or the node that it is about.", show_default=False)
    ],
    how: How,
) -> None:
    """Take an open topology request back."""
    session = of(context)
    carry_out(
        session,
        how,
        lambda metadata, _: plan_cancel_request(metadata, request, how.reason),
        lambda options: administration.cancel_request(session.cluster, request, **options),
    )
