"""`keyspace …`."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer
from epochlake.jobs import administration
from epochlake.jobs.administration.past import cluster_at
from epochlake.jobs.administration.schema import plan_create_keyspace, plan_drop_keyspace
from epochlake.jobs.cli.arguments import At, of, parse_replication
from epochlake.jobs.cli.changing import How, carry_out, change_command
from epochlake.jobs.cli.documents import KeyspaceRow
from epochlake.jobs.cli.text.schema import keyspace_list

app = typer.Typer(help="Keyspaces and their replication.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]


@change_command(app, "create")
def create(
    context: typer.Context,
    name: Name,
    replication: Annotated[
        list[str],
        typer.Option(
            "--replication", metavar="DC=N", help="Replicas in a datacenter; several: dc1=3,dc2=2.", show_default=False
        ),
    ],
    how: How,
) -> None:
    """Create a keyspace whose tables are placed by tablets."""
    session, wanted = of(context), parse_replication(replication)
    carry_out(
        session,
        how,
        lambda metadata, _: plan_create_keyspace(name, wanted),
        lambda options: administration.create_keyspace(session.cluster, name, wanted, **options),
    )


@app.command("list")
def list_(context: typer.Context, at: At = None) -> None:
    """List the keyspaces."""
    session = of(context)
    metadata = cluster_at(session.cluster, at)
    tables = Counter(table.keyspace for table in metadata.schema.tables.values())
    rows = [
        KeyspaceRow(k.name, k.placement.value, k.strategy, k.replication, tables[k.name], k.epoch)
        for k in sorted(metadata.schema.keyspaces.values(), key=lambda keyspace: keyspace.name)
    ]
    session.show(rows, keyspace_list)


@change_command(app, "drop")
def drop(context: typer.Context, name: Name, how: How) -> None:
    """Drop a keyspace without tables."""
    session = of(context)
    carry_out(
        session,
        how,
        lambda metadata, _: plan_drop_keyspace(name),
        lambda options: administration.drop_keyspace(session.cluster, name, **options),
    )
