"""`request …`: topology requests, which the coordinator carries out: listing, pausing, resuming, cancelling them."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from epochlake.jobs.administration.topology_changes import (
    RequestCancellation,
    RequestPause,
    RequestResumption,
    subjects,
)
from epochlake.jobs.cli.arguments import At, Limit, RequestName, of
from epochlake.jobs.cli.changing import How, carry_out, change_command
from epochlake.jobs.cli.documents import RequestRow
from epochlake.jobs.cli.session import Output, Session
from epochlake.jobs.cli.text.request_list import request_list
from epochlake.metastore.metadata.cluster import OPEN, ClusterMetadata
from epochlake.metastore.metadata.model import TopologyRequest

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
    found = [one for one in metadata.requests.values() if everything or one.state in OPEN]
    shown = found[-limit if limit else 0 :]
    left_out = len(found) - len(shown)
    rows = [msgspec.structs.replace(request_row(metadata, request), left_out=left_out) for request in shown]
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


def request_row(metadata: ClusterMetadata, request: TopologyRequest) -> RequestRow:
    """A request as lists show it."""
    return RequestRow(
        request_id=request.request_id,
        kind=request.kind.value,
        about=" for ".join(subjects(metadata, request)),
        state=request.state.value,
        paused=request.paused,
        reason=request.reason,
        detail=request.detail,
        requested_epoch=request.requested_epoch,
        started_epoch=request.started_epoch,
        epoch=request.epoch,
    )
