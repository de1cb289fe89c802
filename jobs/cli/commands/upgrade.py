"""`upgrade …`: taking over a cluster that was described outside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from epochlake.jobs.cli.arguments import of
from epochlake.jobs.cli.changing import How, carry_out, change_command
from epochlake.jobs.cli.session import Session
from epochlake.jobs.cli.text.upgrade import upgrade_status
from epochlake.jobs.views.upgrade import UpgradeStatus, status_of_upgrade
from epochlake.placement.errors import InvalidRequest

app = typer.Typer(help="Take over a cluster that is described outside.", no_args_is_help=True)


@app.command("describe")
def describe(
    context: typer.Context,
    description: Annotated[Path, typer.Argument(metavar="FILE", help="JSON: nodes, keyspaces, tables.")],
    ring: Annotated[
        Path | None, typer.Option("--nodetool-ring", metavar="FILE", help="What `nodetool ring` printed: the nodes.")
    ] = None,
    volume: Annotated[
        str | None, typer.Option("--volume", metavar="URI", help="Where each node's volume is: {address} or {node}.")
    ] = None,
) -> None:
    """Say what an empty cluster is to take over. Every other change is refused until `upgrade start` has ended."""
    from epochlake.jobs.administration.take_over import describe as say
    from epochlake.jobs.administration.take_over import described_by_nodetool, read_description

    if (ring is None) != (volume is None):
        raise InvalidRequest("nodes of nodetool need --nodetool-ring and --volume", hint="Give both, or neither")
    session = of(context)
    said = read_description(_text(description))
    if ring is not None and volume is not None:
        said = described_by_nodetool(_text(ring), volume, said)
    say(session.cluster, said)
    session.show(_status(session), upgrade_status)


@app.command("start")
def start(context: typer.Context) -> None:
    """Take over what was described: nodes join, tables are loaded. Run it again where it ended half-way: it goes on."""
    from epochlake.jobs.administration.take_over import take_over

    session = of(context)
    take_over(session.cluster, lambda what: session.warn(f"upgrade: {what}"))
    session.show(_status(session), upgrade_status)


@app.command("status")
def status(context: typer.Context) -> None:
    """Show how far the upgrade is, and what is still to be built."""
    session = of(context)
    session.show(_status(session), upgrade_status)


@change_command(app, "give-up")
def give_up(context: typer.Context, how: How) -> None:
    """End an upgrade as it is: what was built stays, and the cluster is one like any other."""
    from epochlake.jobs.administration.upgrading import UpgradeAdvance
    from epochlake.metastore.metadata.components.upgrade import UpgradeState

    carry_out(of(context), how, UpgradeAdvance(UpgradeState.DONE, given_up=True))


def _status(session: Session) -> UpgradeStatus:
    return status_of_upgrade(session.cluster.catch_up())


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path} cannot be read: {error}") from error
