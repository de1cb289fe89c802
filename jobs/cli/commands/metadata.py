"""`metadata …`: who keeps copies of the log, and restoring a lost root from them."""

from __future__ import annotations

from typing import Annotated

import typer
from epochlake.jobs.cli.arguments import of
from epochlake.jobs.cli.session import Session
from epochlake.jobs.cli.text import metadata as text
from epochlake.jobs.upkeep import log_members
from epochlake.placement.errors import InvalidRequest

app = typer.Typer(help="Log members: directories that keep synchronous copies of the log.", no_args_is_help=True)


@app.command("describe")
def describe(context: typer.Context) -> None:
    """Show the log members as they answer, and whether a change of them is unfinished."""
    session = of(context)
    session.show(log_members.describe(session.configuration, session.storage), text.members)


@app.command("reconfigure")
def reconfigure(
    context: typer.Context,
    members: Annotated[
        list[str] | None, typer.Argument(metavar="[DIRECTORY]…", help="All members from now on.", show_default=False)
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="End a change that was begun and not ended.")] = False,
) -> None:
    """Make these directories the log members, in place of those that are.

    The log is copied to the new ones first. Then the old ones promise to take nothing more, and commits wait until the
    rest is copied. It can be killed at any point: --resume ends it, and naming other members begins anew.
    """
    session = of(context)
    if bool(members) == resume:
        raise InvalidRequest("which members was not said", hint="Name all members, or give --resume and no member")
    if resume:
        log_members.resume(session.configuration, session.storage)
    else:
        log_members.reconfigure(session.configuration, session.storage, _cluster_id(session), members or [])
    session.show(log_members.describe(session.configuration, session.storage), text.members)


@app.command("recover")
def recover(
    context: typer.Context,
    members: Annotated[
        list[str], typer.Argument(metavar="DIRECTORY…", help="Every log member that is left.", show_default=False)
    ],
) -> None:
    """Restore the log of a lost root, at the root of the configuration, from its members.

    What is restored has every commit that was acknowledged by a majority. Needed are a majority of the members; name
    all that are left. The root that was lost acknowledges nothing any more should it come back.
    """
    session = of(context)
    session.show(log_members.recover(session.configuration, session.storage, members), text.restored)


def _cluster_id(session: Session) -> str:
    return session.cluster.metadata.identity.cluster_id
