"""`plan balance` and `plan resize`: what the coordinator would do next, and what cannot be done and why."""

from __future__ import annotations

import typer
from epochlake.jobs.administration.balancing import plan_balance
from epochlake.jobs.administration.resizing import plan_resize
from epochlake.jobs.cli.arguments import of
from epochlake.jobs.cli.text.plan import balance_plan, resize_plan

app = typer.Typer(help="Plans, without carrying them out.", no_args_is_help=True)


@app.command("balance")
def balance(context: typer.Context) -> None:
    """Show every move that balancing would make now, in waves, each with its reason, and what stays and why."""
    session = of(context)
    streams = session.configuration.coordinator.streams_per_volume
    session.show(plan_balance(session.cluster.catch_up(), streams), balance_plan)


@app.command("resize")
def resize(context: typer.Context) -> None:
    """Show for every table how many tablets it has and should have by its size, and why it is split, merged or not."""
    session = of(context)
    session.show(plan_resize(session.cluster.catch_up(), session.configuration.tablets), resize_plan)
