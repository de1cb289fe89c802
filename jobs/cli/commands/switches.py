"""`changes pause|resume` and `balance pause|resume`."""

from __future__ import annotations

import typer
from epochlake.jobs import administration
from epochlake.jobs.administration.switches import (
    plan_pause_balancing,
    plan_pause_changes,
    plan_resume_balancing,
    plan_resume_changes,
)
from epochlake.jobs.cli.arguments import of
from epochlake.jobs.cli.changing import How, carry_out, change_command

changes = typer.Typer(help="Allow or refuse every change of the metadata.", no_args_is_help=True)
balance = typer.Typer(help="Let the coordinator even out tablets, or not.", no_args_is_help=True)


@change_command(changes, "pause")
def pause_changes(context: typer.Context, how: How) -> None:
    """Refuse every change until `changes resume`; reading and writing tables goes on."""
    cluster = of(context).cluster
    carry_out(
        of(context),
        how,
        lambda *_: plan_pause_changes(how.reason),
        lambda options: administration.pause_changes(cluster, **options),
    )


@change_command(changes, "resume")
def resume_changes(context: typer.Context, how: How) -> None:
    """Allow changes again."""
    cluster = of(context).cluster
    carry_out(
        of(context),
        how,
        lambda *_: plan_resume_changes(),
        lambda options: administration.resume_changes(cluster, **options),
    )


@change_command(balance, "pause")
def pause_balancing(context: typer.Context, how: How) -> None:
    """Begin no moves that only even out; draining and rebuilding go on."""
    cluster = of(context).cluster
    carry_out(
        of(context),
        how,
        lambda *_: plan_pause_balancing(how.reason),
        lambda options: administration.pause_balancing(cluster, **options),
    )


@change_command(balance, "resume")
def resume_balancing(context: typer.Context, how: How) -> None:
    """Let the coordinator balance again."""
    cluster = of(context).cluster
    carry_out(
        of(context),
        how,
        lambda *_: plan_resume_balancing(how.reason),
        lambda options: administration.resume_balancing(cluster, **options),
    )
