"""`init` and `status`."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer
from epochlake.jobs.cli.arguments import At, of
from epochlake.jobs.cli.changing import changed, planned
from epochlake.jobs.cli.interruption import committing
from epochlake.jobs.cli.text import changes as changes_text
from epochlake.jobs.cli.text.status import status as status_text
from epochlake.jobs.views.status import require_health
from epochlake.jobs.views.status import status as status_of
from epochlake.metastore.committing.arguments import require_request_id
from epochlake.metastore.committing.changes import Preview
from epochlake.metastore.errors import LogUnreadable, NotInitialised, UnknownFormat
from epochlake.metastore.log.state_ids import next_state_id
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import Initialise
from epochlake.metastore.metastore import DEFAULT_NAME, init_cluster
from epochlake.metastore.root import require_new
from epochlake.placement.errors import InvalidRequest, InvariantViolated
from epochlake.placement.version import PRODUCT_VERSION


def register(app: typer.Typer) -> None:
    app.command("init")(init)
    app.command("status")(status)


def init(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Name of the cluster; else the one in the configuration."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be committed; create nothing.")] = False,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept in the history.")] = "",
    request_id: Annotated[
        str | None, typer.Option("--request-id", metavar="ID", help="Submitting an id twice begins one cluster.")
    ] = None,
) -> None:
    """Begin a new, empty cluster at the root."""
    session = of(context)
    configuration = session.configuration
    if name and configuration.cluster.name not in ("", name):
        raise InvalidRequest(
            f"a cluster {name!r} cannot be begun with a configuration for {configuration.cluster.name!r}",
            hint="Leave --name out, or correct [cluster] name",
        )
    require_new(session.storage, session.places, session.log_place)
    if dry_run:
        wanted = name or configuration.cluster.name or DEFAULT_NAME
        metadata = ClusterMetadata.empty()
        with suppress(NotInitialised):
            for entry in session.log_place.open().read(0)[:1]:
                metadata = metadata.apply(entry.decode(), entry.state_id)
        event = Initialise(wanted, next_state_id(""), PRODUCT_VERSION)
        session.show(planned(session, Preview.of(metadata, event)), changes_text.planned)
        return
    require_request_id(request_id)
    request_id = request_id or next_state_id("")
    with committing(request_id, session.epoch_of) as tell:
        committed = init_cluster(configuration, name, reason=reason, request_id=request_id, log_place=session.log_place)
        tell(committed.epoch)
    root = session.cluster.root.uri
    details = {"root": root, "cluster_id": session.cluster.metadata.identity.cluster_id}
    session.show(changed(session, committed, details), changes_text.changed)


def status(
    context: typer.Context,
    at: At = None,
    metadata_only: Annotated[
        bool, typer.Option("--metadata-only", help="Do not ask the volumes what they hold.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="End with 4 when a table cannot be had at the level of `[pipeline] consistency`, or the log is torn.",
        ),
    ] = False,
) -> None:
    """Show the cluster: its health, nodes, open requests and what blocks them, tablets on their way, coordinator."""
    session = of(context)
    if check and (at is not None or metadata_only):
        raise InvalidRequest("--check asks the volumes what can be had now", hint="Leave out --at and --metadata-only")
    try:
        document = status_of(session.cluster, at=at, ask_volumes=not metadata_only)
    except LogUnreadable as error:
        if not check or isinstance(error, UnknownFormat):
            raise
        raise InvariantViolated(f"nothing can be had: {error.statement}", hint=error.hint) from error
    session.show(document, status_text)
    if check:
        require_health(document)
