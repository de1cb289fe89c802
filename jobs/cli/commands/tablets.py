"""`tablet …`: putting tablets somewhere by hand."""

from __future__ import annotations

from typing import Annotated

import typer
from epochlake.jobs.administration.tablet_moves import TabletMoves, shared_racks
from epochlake.jobs.cli.arguments import TableName, of
from epochlake.jobs.cli.changing import How, carry_out, change_command
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.events import StartTransitions

app = typer.Typer(help="Tablets, placed by hand.", no_args_is_help=True)

PLACE = "NODE[/VOLUME]"


@change_command(app, "move")
def move(
    context: typer.Context,
    table: TableName,
    tablet: Annotated[list[int], typer.Argument(metavar="TABLET…", help="Numbers of tablets.", show_default=False)],
    source: Annotated[str, typer.Option("--from", metavar=PLACE, help="Where they are now.", show_default=False)],
    target: Annotated[
        str, typer.Option("--to", metavar=PLACE, help="Where they go, in the same datacenter.", show_default=False)
    ],
    how: How,
) -> None:
    """Let tablets go from a node to another; a coordinator carries it out, as it does what the balancer begins.

    The balancer may bring them elsewhere later: `epochlake balance pause` keeps it from that.
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
