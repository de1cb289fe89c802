"""`pipeline list`, `vacuum` and `demo`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer
from epochlake.jobs.administration.unused_files import sweep
from epochlake.jobs.cli.arguments import of, parse_duration
from epochlake.jobs.cli.documents import PipelineRow
from epochlake.jobs.cli.interruption import interrupted_says
from epochlake.jobs.cli.text.others import pipeline_list, swept
from epochlake.metastore.announcing import live_leases
from epochlake.metastore.coordination.leases import Lease
from epochlake.placement.errors import InvalidRequest

pipelines = typer.Typer(help="Pipelines that run now.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.command("vacuum")(vacuum)
    app.command(
        "demo",
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(demo)


@pipelines.command("list")
def list_(context: typer.Context) -> None:
    """List the live pipelines by their leases. Needs ZooKeeper."""
    session = of(context)
    session.show([_row(lease) for lease in live_leases(session.cluster)], pipeline_list)


def vacuum(
    context: typer.Context,
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than",
            metavar="DURATION",
            help="Leave alone what is younger (30min, 2h, 1d), and five minutes more, as clocks differ.",
        ),
    ] = "1h",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted; delete nothing.")] = False,
) -> None:
    """Delete files that no live pipeline can need any more, on every volume. Needs ZooKeeper."""
    session = of(context)
    with interrupted_says("what was deleted until then nobody needed: run it again for the rest"):
        done = sweep(session.cluster, older_than_seconds=parse_duration(older_than), dry_run=dry_run)
    session.show(done, swept)


def demo(context: typer.Context) -> None:
    """Run the main job: real data, a cluster that grows under it, a node that is lost. See `demo --help`."""
    from epochlake.jobs.demo.command import run

    given = context.parent.params if context.parent is not None else {}
    if given.get("conf") is not None:
        raise InvalidRequest("the demo writes a configuration of its own", hint="Leave out --conf")
    root = ["--root", given["root"]] if given.get("root") is not None else []
    raise typer.Exit(run([*root, "--output", str(given.get("output", "text")), *context.args]))


def _row(lease: Lease) -> PipelineRow:
    started = datetime.fromtimestamp(lease.started_at / 1000, UTC)
    return PipelineRow(
        name=lease.name,
        pipeline_id=lease.pipeline_id,
        epoch=lease.epoch,
        tables=lease.tables,
        started_at=started.isoformat(timespec="seconds").replace("+00:00", "Z"),
        host=lease.host,
        pid=lease.pid,
    )
