"""`metadata …`: who keeps copies of the log, restoring a lost root from them, who runs ZooKeeper, snapshots, and nodes
that have left.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from epochlake.jobs.administration.unregistering import Unregistration
from epochlake.jobs.cli.arguments import of
from epochlake.jobs.cli.asking_agents import ensemble_heard
from epochlake.jobs.cli.changing import How, carry_out, change_command
from epochlake.jobs.cli.commands.log import snapshot
from epochlake.jobs.cli.documents import PreparedServer
from epochlake.jobs.cli.session import Session
from epochlake.jobs.cli.text import metadata as text
from epochlake.jobs.upkeep import coordination_members, log_members
from epochlake.metastore.coordination.ensemble import parse_server
from epochlake.metastore.coordination.server_files import require_data, start_command, write_server_files
from epochlake.metastore.preflight import require_java
from epochlake.placement.errors import EpochlakeError, InvalidRequest

app = typer.Typer(
    help="The metadata: log members, which keep copies; coordination members, which run ZooKeeper; snapshots; nodes "
    "that have left.",
    no_args_is_help=True,
)

Coordination = Annotated[
    bool,
    typer.Option("--coordination", help="The coordination members, which are ZooKeeper servers, not the log members."),
]


@app.command("describe")
def describe(context: typer.Context, coordination: Coordination = False) -> None:
    """Show the log members as they answer, and whether a change of them is unfinished.

    With --coordination the servers of the ZooKeeper ensemble, as the ensemble names them, where processes find them,
    and what the coordinator does that keeps them.
    """
    session = of(context)
    if coordination:
        with _ensemble(session) as ensemble:
            session.show(ensemble.describe(), text.coordination)
        return
    session.show(log_members.describe(session.configuration, session.storage), text.members)


@app.command("reconfigure")
def reconfigure(
    context: typer.Context,
    members: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MEMBER]…",
            help="All members from now on: directories, or with --coordination servers, '4=zk4:2888:3888;2181@NODE'; "
            "of one that is known the number is enough, '4@NODE', '4:observer'. With --auto more to choose from.",
            show_default=False,
        ),
    ] = None,
    coordination: Coordination = False,
    auto: Annotated[
        bool,
        typer.Option(
            "--auto",
            help="Choose them: 1 up to 2 nodes, 3 up to 5, 5 up to 100, 10 beyond, on volumes of nodes that answer, "
            "over all datacenters and racks, with few changes. Of ZooKeeper servers an odd number votes.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show who would join and leave; change nothing.")] = False,
    status: Annotated[bool, typer.Option("--status", help="Show how far an unfinished change is.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="End a change that was begun and not ended.")] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Go back to the members of before a change that was not ended.")
    ] = False,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Members of before that do not answer are gone for good, even most of them: the log at the root, "
            "which has to be there, has what they had.",
        ),
    ] = False,
    adopt: Annotated[
        bool,
        typer.Option(
            "--adopt",
            help="With --coordination: the ensemble of `[zookeeper] connect` is the cluster's from now on; the one "
            "that was published is gone for good.",
        ),
    ] = False,
) -> None:
    """Make these directories the log members, in place of those that are.

    The log is copied to the new ones first. Then the old ones promise to take nothing more, and commits wait until the
    rest is copied. It can be killed at any point: --resume ends it, --cancel goes back, and naming other members
    begins anew.

    With --coordination these ZooKeeper servers become the ensemble, while it serves, one server after the other: new
    ones follow it without a vote, get one when they have caught up, and then others leave. `metadata prepare-server`
    writes what a new one needs to be started.
    """
    session = of(context)
    named = bool(members) and not (coordination and auto)
    asked = {"members": named, "--auto": auto, "--status": status, "--resume": resume, "--cancel": cancel}
    asked |= {"--adopt": adopt}
    given = [name for name, is_given in asked.items() if is_given]
    beside = [name for name, is_given in {"--dry-run": dry_run, "--accept-loss": accept_loss}.items() if is_given]
    allowed = {"members": ["--dry-run"] + ["--accept-loss"] * (not coordination), "--auto": ["--dry-run"]}
    if len(given) != 1 or not set(beside) <= set(allowed.get(given[0], ())) or (adopt and not coordination):
        raise InvalidRequest(
            f"{' and '.join([*given, *beside])} do not go together" if given else "which members was not said",
            hint="Name all members, or give one of --auto, --status, --resume and --cancel; --dry-run shows a choice",
        )
    if coordination:
        _reconfigure_ensemble(session, members or [], given[0], dry_run=dry_run)
        return
    if resume:
        log_members.resume(session.configuration, session.storage)
    elif cancel:
        log_members.cancel(session.configuration, session.storage)
    elif not status:
        proposed = (
            _chosen(session) if auto else log_members.named(session.configuration, session.storage, members or [])
        )
        if dry_run:
            session.show(proposed, text.proposed)
            return
        # Who is there already is copied to anew only when somebody asks for it by name.
        if not auto or proposed.joining or proposed.leaving:
            log_members.reconfigure(
                session.configuration,
                session.storage,
                proposed,
                lambda: session.cluster.metadata.identity.cluster_id,
                make_directories=auto,
                accept_loss=accept_loss,
            )
    session.show(log_members.describe(session.configuration, session.storage), text.members)


def _reconfigure_ensemble(session: Session, members: list[str], what: str, *, dry_run: bool) -> None:
    with _ensemble(session, adopt=what == "--adopt") as ensemble:
        if what == "--adopt":
            ensemble.publish(session.cluster.metadata.identity.cluster_id)
        elif what == "--resume":
            ensemble.mover.resume()
        elif what == "--cancel":
            ensemble.mover.cancel()
        elif what != "--status":
            if what == "--auto":
                proposed = ensemble.propose(session.cluster, members)
            else:
                proposed = ensemble.named(members, lambda: session.cluster.catch_up())
            if dry_run:
                session.show(proposed, text.coordination_proposed)
                return
            ensemble.reconfigure(proposed)
        if what not in ("--status", "--adopt"):
            _publish(session, ensemble)
        session.show(ensemble.describe(), text.coordination)


def _ensemble(session: Session, *, adopt: bool = False) -> coordination_members.Ensemble:
    """The ensemble of the cluster at the root; before that begins, or in an outage, of whatever cluster is named."""
    cluster_id, others = session.known_cluster_id(), ensemble_heard(session)
    return coordination_members.Ensemble(session.configuration, cluster_id, adopt=adopt, others=others)


def _publish(session: Session, ensemble: coordination_members.Ensemble) -> None:
    """Where the root cannot be read now, or has no cluster yet, the coordinator does it later."""
    try:
        ensemble.publish(session.cluster.metadata.identity.cluster_id)
    except EpochlakeError as error:
        session.warn(f"where the ensemble is was not published yet, and the coordinator does it: {error}")


@app.command("prepare-server")
def prepare_server(
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="On this machine; made where it is missing.")],
    server: Annotated[str, typer.Argument(metavar="SERVER", help="As ZooKeeper writes it: '4=zk4:2888:3888;2181'.")],
    beside: Annotated[
        list[str] | None,
        typer.Option(
            "--beside",
            metavar="SERVER",
            help="Another server of an ensemble that is set up anew, as often as there are any; else the ensemble of "
            "the configuration is asked for its members.",
        ),
    ] = None,
    alone: Annotated[bool, typer.Option("--alone", help="Of an ensemble that is set up anew it is the first.")] = False,
) -> None:
    """Write what a ZooKeeper server needs to be started on this machine, and show the command that starts it.

    It follows the ensemble without a vote then, until `metadata reconfigure --coordination` names it. One that has left
    the ensemble, or was stopped before it joined, is prepared again before it is started again. Nothing is started, and
    no data is deleted. With `[zookeeper] operator` a new server lets this operator change the ensemble.
    """
    session = of(context)
    if alone and beside:
        raise InvalidRequest("--alone and --beside do not go together", hint="Give one of them")
    parsed = parse_server(server)
    place = str(directory.absolute())
    if alone or beside:
        members = [parse_server(one) for one in beside or ()]
    else:
        with _ensemble(session) as ensemble:
            found = ensemble.mover.configuration()
        require_data(session.storage, place, parsed, found)
        members = list(found.servers)
    follows = not (alone or beside)
    write_server_files(
        session.storage, place, parsed, members, session.configuration.zookeeper.operator, follows=follows
    )
    command = shlex.join(start_command(place, str(require_java())))
    session.show(PreparedServer(str(parsed), place, command), text.prepared)


def _chosen(session: Session) -> log_members.MembersProposed:
    if log_members.unfinished(session.configuration, session.storage) is not None:
        # Until it has ended nobody can read what nodes there are.
        raise InvalidRequest(
            "a change of the log members is unfinished", hint="End it by --resume or --cancel first: --status shows it"
        )
    return log_members.propose(session.cluster)


@app.command("recover")
def recover(
    context: typer.Context,
    members: Annotated[
        list[str], typer.Argument(metavar="DIRECTORY…", help="Every log member that is left.", show_default=False)
    ],
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Too few are left, for good: give up what only the others had."),
    ] = False,
) -> None:
    """Restore the log of a lost root, at the root of the configuration, from its members.

    What is restored has every commit that was acknowledged by a majority. Needed are a majority of the members;
    name all that are left. A disk that was emptied, exchanged or restored from a copy does not count. Run it again
    when it was killed: until it has ended nobody uses the root. The root that was lost acknowledges nothing any
    more should it come back. After --accept-loss ZooKeeper and replicas may know of epochs that are gone: `log
    accept-loss` goes on without them.
    """
    session = of(context)
    restored = log_members.recover(session.configuration, session.storage, members, accept_loss=accept_loss)
    session.show(restored, text.restored)


change_command(app, "snapshot")(snapshot)


@change_command(app, "unregister")
def unregister(
    context: typer.Context,
    names: Annotated[
        list[str], typer.Argument(metavar="NODE…", help="Nodes that have left, as lists name them.", show_default=False)
    ],
    how: How,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also where drained storage does not answer, or has files left: they stay there."),
    ] = False,
) -> None:
    """Take nodes that have left out of the metadata for good, all of these or none.

    No list shows them any more, but those of earlier epochs. Their names are free. Their numbers and host ids are never
    given again, and a disk of theirs that comes back is still refused: `node add --reuse` clears it.
    """
    carry_out(of(context), how, Unregistration(tuple(names), force=force))
