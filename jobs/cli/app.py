"""All commands in their tree, and the options that every one of them takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from epochlake.jobs.cli.commands import (
    agent,
    changes,
    cluster,
    configuration,
    coordinator,
    features,
    keyspaces,
    log,
    maintenance,
    metadata,
    nodes,
    placement,
    plan,
    requests,
    rows,
    switches,
    tables,
    tablets,
    upgrade,
    upkeep,
)
from epochlake.jobs.cli.session import Output, Session
from epochlake.placement.version import PRODUCT_VERSION

app = typer.Typer(
    name="epochlake",
    help="Transactional cluster metadata and data placement for Spark and Delta Lake.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"epochlake {PRODUCT_VERSION}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    conf: Annotated[
        Path | None, typer.Option("--conf", metavar="FILE", help="Configuration file; else conf/epochlake.toml.")
    ] = None,
    root: Annotated[
        str | None, typer.Option("--root", metavar="URI", help="Where the cluster is; else the configuration's root.")
    ] = None,
    output: Annotated[
        Output, typer.Option("--output", "-o", case_sensitive=False, help="Tables for people, JSON for programs.")
    ] = Output.TEXT,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log everything; stack traces on errors.")] = False,
) -> None:
    session = Session(conf, root, output, verbose)
    context.obj = session
    context.call_on_close(session.close)


cluster.register(app)
for name, group in (
    ("node", nodes.app),
    ("request", requests.app),
    ("keyspace", keyspaces.app),
    ("table", tables.app),
    ("tablet", tablets.app),
    ("coordinator", coordinator.app),
    ("log", log.app),
    ("metadata", metadata.app),
    ("placement", placement.app),
    ("plan", plan.app),
    ("balance", switches.balance),
    ("changes", changes.changes),
    ("pipeline", maintenance.pipelines),
    ("feature", features.app),
    ("upgrade", upgrade.app),
    ("agent", agent.app),
    ("config", configuration.app),
):
    app.add_typer(group, name=name)
rows.register(app)
upkeep.register(app)
maintenance.register(app)
