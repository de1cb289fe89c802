"""`keyspace …`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from epochlake.jobs.administration.schema import KeyspaceCreation, KeyspaceDrop, KeyspaceRename
from epochlake.jobs.administration.topology_changes import ReplicationChange
from epochlake.jobs.cli.arguments import At, of, parse_replication
from epochlake.jobs.cli.changing import How, carry_out, change_command
from epochlake.jobs.cli.text.schema import keyspace_list
from epochlake.jobs.views.schema import keyspace_rows
from epochlake.metastore.metadata.model import PlacementKind
from epochlake.placement.ring import strategies

app = typer.Typer(help="Keyspaces and their replication.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The keyspace's name.", show_default=False)]
Replication = Annotated[
    list[str],
    typer.Option(
        "--replication",
        metavar="DC=N",
        help="Replicas in a datacenter; several: dc1=3,dc2=2. N alone is SimpleStrategy's, on the ring only.",
        show_default=False,
    ),
]


class Strategy(StrEnum):
    NETWORK_TOPOLOGY = strategies.NETWORK_TOPOLOGY
    SIMPLE = strategies.SIMPLE


StrategyOption = Annotated[
    Strategy | None,
    typer.Option(
        "--strategy",
        case_sensitive=False,
        help="How nodes of the ring are chosen; else the one that the replication belongs to.",
    ),
]


@change_command(app, "create")
def create(
    context: typer.Context,
    name: Name,
    replication: Replication,
    how: How,
    placement: Annotated[
        PlacementKind,
        typer.Option("--placement", case_sensitive=False, help="By tablets, or by ranges of a ring of tokens."),
    ] = PlacementKind.TABLETS,
    strategy: StrategyOption = None,
) -> None:
    """Create a keyspace whose tables are placed by tablets, or on the ring."""
    session, wanted = of(context), parse_replication(replication)
    chosen = None if strategy is None else strategy.value
    carry_out(session, how, KeyspaceCreation(name, wanted, placement=placement, strategy=chosen))


@change_command(app, "alter")
def alter(
    context: typer.Context,
    name: Name,
    replication: Replication,
    how: How,
    strategy: StrategyOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="On the ring: also where a datacenter has fewer nodes than replicas.")
    ] = False,
) -> None:
    """Ask for another replication of a keyspace; the coordinator goes there a replica at a time.

    On the ring it is a request. On tablets it holds for new tables at once, may be changed again on the way, and
    `status` says how many tablets are left; a datacenter that is not given gives its replicas up, when the others have
    theirs.
    """
    session, wanted = of(context), parse_replication(replication)
    chosen = None if strategy is None else strategy.value
    carry_out(session, how, ReplicationChange(name, wanted, strategy=chosen, force=force))


@app.command("list")
def list_(context: typer.Context, at: At = None) -> None:
    """List the keyspaces."""
    session = of(context)
    session.show(keyspace_rows(session.cluster.at(at)), keyspace_list)


@change_command(app, "rename")
def rename(
    context: typer.Context,
    name: Name,
    new_name: Annotated[str, typer.Argument(metavar="NEW_NAME", help="What it is called then.", show_default=False)],
    how: How,
) -> None:
    """Give a keyspace another name; its tables follow, and no file moves."""
    carry_out(of(context), how, KeyspaceRename(name, new_name))


@change_command(app, "drop")
def drop(context: typer.Context, name: Name, how: How) -> None:
    """Drop a keyspace without tables."""
    carry_out(of(context), how, KeyspaceDrop(name))
