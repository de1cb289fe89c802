"""`tablet …`: putting tablets somewhere by hand."""

from __future__ import annotations

from typing import Annotated

import typer
from epochlake.jobs.administration.tablet_moves import TabletMoves, shared_racks
from epochlake.jobs.administration.tablet_pins import TabletFreeing, TabletPinning
from epochlake.jobs.administration.tablet_replicas import ReplicaAddition, ReplicaRemoval
from epochlake.jobs.cli.arguments import TableName, of
from epochlake.jobs.cli.changing import How, carry_out, change_command
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.events import StartTransitions

app = typer.Typer(help="Tablets, placed by hand.", no_args_is_help=True)

PLACE = "NODE[/VOLUME]"

Numbers = Annotated[list[int], typer.Argument(metavar="TABLET…", help="Numbers of tablets.", show_default=False)]


@change_command(app, "move")
def move(
    context: typer.Context,
    table: TableName,
    tablet: Numbers,
    source: Annotated[str, typer.Option("--from", metavar=PLACE, help="Where they are now.", show_default=False)],
    target: Annotated[
        str, typer.Option("--to", metavar=PLACE, help="Where they go, in the same datacenter.", show_default=False)
    ],
    how: How,
) -> None:
    """Let tablets go from a node to another; a coordinator carries it out, as it does what the balancer begins.

    The balancer may bring them elsewhere later: `tablet pin` keeps it from that.
    """
    session, change = of(context), TabletMoves(table, tuple(tablet), source, target)
    try:
        planned = session.cluster.preview(change, request_id=how.request_id, reason=how.reason)
    except Rejected:
        planned = None  # The commit says so as well, and knows of the request id.
    if planned is not None and planned.already is None and isinstance(planned.event, StartTransitions):
        for warning in shared_racks(planned.metadata, planned.event):
            session.warn(warning)
    carry_out(session, how, change)


@change_command(app, "add-replica")
def add_replica(
    context: typer.Context,
    table: TableName,
    tablet: Numbers,
    target: Annotated[str, typer.Option("--to", metavar=PLACE, help="Where it is to be.", show_default=False)],
    how: How,
) -> None:
    """Let tablets have one replica more than now; a coordinator rebuilds it from a quorum of the others."""
    carry_out(of(context), how, ReplicaAddition(table, tuple(tablet), target))


@change_command(app, "drop-replica")
def drop_replica(
    context: typer.Context,
    table: TableName,
    tablet: Numbers,
    source: Annotated[str, typer.Option("--from", metavar=PLACE, help="Where it is now.", show_default=False)],
    how: How,
) -> None:
    """Let tablets give up a replica. One that stays, in its datacenter, takes over first what only that one has."""
    carry_out(of(context), how, ReplicaRemoval(table, tuple(tablet), source))


@change_command(app, "pin")
def pin(context: typer.Context, table: TableName, tablet: Numbers, how: How) -> None:
    """Let the balancer leave tablets where they are, also what they are split into; --reason is shown.

    A node that leaves gives them up all the same. Their table is not merged meanwhile.
    """
    carry_out(of(context), how, TabletPinning(table, tuple(tablet)))


@change_command(app, "unpin")
def unpin(context: typer.Context, table: TableName, tablet: Numbers, how: How) -> None:
    """Let the balancer move tablets again."""
    carry_out(of(context), how, TabletFreeing(table, tuple(tablet)))
