"""`feature list|enable`: what the members of a cluster may use."""

from __future__ import annotations

from typing import Annotated

import typer
from epochlake.jobs.administration.features import FeatureEnabling
from epochlake.jobs.cli.arguments import At, of
from epochlake.jobs.cli.changing import How, carry_out, change_command
from epochlake.jobs.cli.text.features import feature_list
from epochlake.jobs.views.features import feature_rows
from epochlake.metastore.announcing import live_leases
from epochlake.metastore.errors import CoordinationUnavailable
from epochlake.placement.errors import InvalidRequest

app = typer.Typer(help="What all members support, and the cluster may use.", no_args_is_help=True)


@app.command("list")
def list_(context: typer.Context, at: At = None) -> None:
    """List the features: since when each is enabled, or who does not support it yet."""
    session = of(context)
    metadata = session.cluster.at(at)
    try:
        leases = live_leases(session.cluster) if at is None else []
    except CoordinationUnavailable as error:
        session.warn(f"it is not known who lives: {error}")
        leases = []
    session.show(feature_rows(metadata, leases), feature_list)


@change_command(app, "enable")
def enable(
    context: typer.Context,
    how: How,
    feature: Annotated[list[str] | None, typer.Argument(metavar="FEATURE…", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that this version supports.")] = False,
) -> None:
    """Let the cluster use features, for ever: versions that lack one stop here.

    Refused while an agent that has announced its version, a pipeline or a job that lives does not support one.
    """
    if bool(feature) == everything:
        raise InvalidRequest("name features, or give --all", hint="Run `epochlake feature list` to see them")
    carry_out(of(context), how, FeatureEnabling(tuple(feature or ())))
