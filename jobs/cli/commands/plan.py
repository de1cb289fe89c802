"""`plan balance` and `plan resize`: what the coordinator would do next, and what cannot be done and why."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer
from epochlake.jobs.cli.arguments import of
from epochlake.jobs.cli.text.plan import balance_plan, resize_plan
from epochlake.jobs.views.balancing import plan_balance
from epochlake.jobs.views.resizing import plan_resize
from epochlake.metastore.planning.streams import StreamLimits

app = typer.Typer(help="Plans, without carrying them out.", no_args_is_help=True)


@app.command("balance")
def balance(
    context: typer.Context,
    explain: Annotated[
        bool, typer.Option("--explain", help="Each move by itself with its reason, not only between which volumes.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", help="At most so many rows of moves; 0: all.", min=0)
    ] = 50,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Nothing more: a plan is never carried out by this command.")
    ] = False,
) -> None:
    """Show what balancing would move now, in waves, and what stays and why. JSON has each move with its reason."""
    session = of(context)
    streams = StreamLimits.of(session.configuration.coordinator)
    plan = plan_balance(session.storage, session.cluster.catch_up(), streams)
    session.show(plan, partial(balance_plan, explain=explain, limit=limit))


@app.command("resize")
def resize(context: typer.Context) -> None:
    """Show for every table how many tablets it has and should have by its size, and why it is split, merged or not."""
    session = of(context)
    session.show(plan_resize(session.storage, session.cluster.catch_up(), session.configuration.tablets), resize_plan)
