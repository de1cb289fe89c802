"""`changes pause|resume` and `balance pause|resume`."""

from __future__ import annotations

import typer
from epochlake.jobs.administration.switches import BalancingPause, BalancingResumption, ChangesPause, ChangesResumption
from epochlake.jobs.cli.arguments import of
from epochlake.jobs.cli.changing import How, carry_out, change_command

changes = typer.Typer(help="Changes of tables for readers; pause all changes of the metadata.", no_args_is_help=True)
balance = typer.Typer(help="Let the coordinator even out tablets, or not.", no_args_is_help=True)


@change_command(changes, "pause")
def pause_changes(context: typer.Context, how: How) -> None:
    """Refuse every change until `changes resume`; reading and writing tables goes on."""
    carry_out(of(context), how, ChangesPause())


@change_command(changes, "resume")
def resume_changes(context: typer.Context, how: How) -> None:
    """Allow changes again."""
    carry_out(of(context), how, ChangesResumption())


@change_command(balance, "pause")
def pause_balancing(context: typer.Context, how: How) -> None:
    """Begin no moves that only even out; draining and rebuilding go on."""
    carry_out(of(context), how, BalancingPause())


@change_command(balance, "resume")
def resume_balancing(context: typer.Context, how: How) -> None:
    """Let the coordinator balance again."""
    carry_out(of(context), how, BalancingResumption())
