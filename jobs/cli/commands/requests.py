"""`request …`: topology requests, which the coordinator carries out: listing, pausing, resuming, cancelling them."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from epochlake.jobs.administration.topology_changes import (
    RequestCancellation,
    RequestPause,
    RequestResumption,
)
from epochlake.jobs.cli.arguments import At, Limit, RequestName, of
from epochlake.jobs.cli.changing import How, carry_out, change_command
from epochlake.jobs.cli.session import Output, Session
from epochlake.jobs.cli.text.request_list import request_list
from epochlake.jobs.views.requests import request_rows

app = typer.Typer(help="Requests to change the topology, which the coordinator carries out.", no_args_is_help=True)


@app.command("list")
def list_(
    context: typer.Context,
    at: At = None,
    everything: Annotated[bool, typer.Option("--all", help="Those that have ended as well.")] = False,
    limit: Limit = 50,
) -> None:
    """List the requests, the newest last; `status` says what the open ones are waiting for."""
    session = of(context)
    metadata = session.cluster.at(at)
    found = request_rows(metadata, everything=everything)
    shown = found[-limit if limit else 0 :]
    left_out = len(found) - len(shown)
    rows = [msgspec.structs.replace(row, left_out=left_out) for row in shown]
    session.show(rows, request_list)
    if left_out and session.output is Output.JSON:
        session.warn(f"{left_out:,} older requests are left out: --limit 0 lists all")


@change_command(app, "pause")
def pause(context: typer.Context, request: RequestName, how: How) -> None:
    """Let the coordinator begin nothing new for a request until `request resume`."""
    carry_out(of(context), how, RequestPause(request))


@change_command(app, "resume")
def resume(context: typer.Context, request: RequestName, how: How) -> None:
    """Let the coordinator go on with a paused request."""
    carry_out(of(context), how, RequestResumption(request))


@change_command(app, "cancel")
def cancel(context: typer.Context, request: RequestName, how: How) -> None:
    """Take an open request back; what an operation on the ring has begun is taken back a step at a time."""
    cancel_request(of(context), request, how)


def cancel_request(session: Session, request: str, how: How) -> None:
    """What `request cancel` and `node cancel` do."""
    carry_out(session, how, RequestCancellation(request))
