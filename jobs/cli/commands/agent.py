"""`agent …`: running an agent on a storage node, and asking one."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from epochlake.jobs.agent.patience import LONGEST_PERIOD, SHORTEST_JOIN, SHORTEST_PERIOD, beyond
from epochlake.jobs.cli.arguments import of, parse_names
from epochlake.jobs.cli.asking_agents import asking, require_h11
from epochlake.jobs.cli.text.agents import agent_shown, init_answer, join_state, nodes_seen
from epochlake.metastore.waiting import MOST_SECONDS

app = typer.Typer(help="Agents on storage nodes: they see each other and their volumes.", no_args_is_help=True)

Address = Annotated[str, typer.Argument(metavar="HOST:PORT", help="Any agent of the cluster.", show_default=False)]
TokenFile = Annotated[
    str | None, typer.Option("--token-file", metavar="FILE", help="The token that all agents of the cluster share.")
]
Certificate = Annotated[str | None, typer.Option("--tls-certificate", metavar="FILE", help="Its certificate, in PEM.")]
Key = Annotated[str | None, typer.Option("--tls-key", metavar="FILE", help="The key of the certificate.")]
Authority = Annotated[
    str | None, typer.Option("--tls-authority", metavar="FILE", help="Who signs the certificates of all agents.")
]


def _seconds(option: str, least: float, most: float, help: str) -> Any:
    """An option of seconds in a range: infinity and what is no number are in none.

    Both bounds beside the name of an option would leave no room for the names of others in a narrow terminal.
    """

    def look(seconds: float) -> float:
        why = beyond(seconds, least, most)
        if why is not None:
            raise typer.BadParameter(f"{why}.")
        return seconds

    return typer.Option(option, metavar="SECONDS", callback=look, help=help)


@app.command("run")
def run(
    context: typer.Context,
    home: Annotated[
        str, typer.Option("--home", metavar="DIR", help="What it must not forget; its own.", show_default=False)
    ],
    name: Annotated[
        str | None, typer.Option("--name", metavar="NODE", help="The node that it is on; needed at its first start.")
    ] = None,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where it answers; port 0: any that is free.")
    ] = "127.0.0.1:7610",
    advertise: Annotated[
        str | None, typer.Option("--advertise", metavar="HOST:PORT", help="Where others reach it; else as --listen.")
    ] = None,
    seed: Annotated[
        list[str] | None, typer.Option("--seed", metavar="HOST:PORT", help="Another agent. Repeat for several.")
    ] = None,
    volume: Annotated[
        list[str] | None,
        typer.Option(
            "--volume",
            metavar="NAME=URI[,BYTES]",
            help="What the node joins with, and what is watched until the log names others. Repeat for several.",
        ),
    ] = None,
    join: Annotated[
        str | None,
        typer.Option("--join", metavar="DATACENTER/RACK", help="Ask that its node may join, once a cluster answers."),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="NAME", help="Join a cluster of this name only.")
    ] = None,
    join_timeout: Annotated[
        float, _seconds("--join-timeout", SHORTEST_JOIN, MOST_SECONDS, "Then it asks no more.")
    ] = 600.0,
    admit: Annotated[
        bool, typer.Option("--admit", help="Let nodes join whose agents ask this one. Use it with a token.")
    ] = False,
    found: Annotated[
        bool,
        typer.Option(
            "--found", help="Where no agent knows of a cluster, the one with the lowest id begins one at the root."
        ),
    ] = False,
    coordination_server: Annotated[
        str | None,
        typer.Option(
            "--coordination-server",
            metavar="SERVER",
            help="Run this ZooKeeper server in the home, as ZooKeeper writes it: '4=zk4:2888:3888;2181'. Needs Java.",
        ),
    ] = None,
    period: Annotated[float, _seconds("--period", SHORTEST_PERIOD, LONGEST_PERIOD, "One probe is sent in each.")] = 1.0,
    token_file: TokenFile = None,
    tls_certificate: Certificate = None,
    tls_key: Key = None,
    tls_authority: Authority = None,
) -> None:
    """Run an agent until SIGTERM or Ctrl-C. This process becomes one that is small and loads nothing else."""
    require_h11()
    session = of(context)
    given: list[tuple[str, str | None]] = [
        ("--home", home),
        ("--name", name),
        ("--listen", listen),
        ("--advertise", advertise),
        ("--root", session.configuration.root),
        ("--conf", session.conf_file),
        ("--period", str(period)),
        ("--join", join),
        ("--cluster", cluster),
        ("--coordination-server", coordination_server),
        ("--join-timeout", str(join_timeout)),
        ("--token-file", token_file),
        ("--tls-certificate", tls_certificate),
        ("--tls-key", tls_key),
        ("--tls-authority", tls_authority),
        *(("--seed", one) for one in seed or ()),
        *(("--volume", one) for one in volume or ()),
    ]
    words = [word for option, value in given if value is not None for word in (option, value)]
    words += (["--found"] if found else []) + (["--admit"] if admit else [])
    session.close()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "epochlake.jobs.agent", *words])


@app.command("show")
def show(
    context: typer.Context,
    address: Address,
    token_file: TokenFile = None,
    tls_certificate: Certificate = None,
    tls_key: Key = None,
    tls_authority: Authority = None,
) -> None:
    """Show an agent: its cluster, its copy of the log, its volumes, and what it thinks people should look at."""
    client = asking(token_file, tls_certificate, tls_key, tls_authority)
    from epochlake.jobs.agent.asking import state_of

    of(context).show(state_of(address, client), agent_shown)


@app.command("nodes")
def nodes(
    context: typer.Context,
    address: Address,
    token_file: TokenFile = None,
    tls_certificate: Certificate = None,
    tls_key: Key = None,
    tls_authority: Authority = None,
) -> None:
    """List the nodes as the log has them, and beside it how an agent sees them. What it sees changes nothing."""
    client = asking(token_file, tls_certificate, tls_key, tls_authority)
    from epochlake.jobs.agent.asking import nodes_of

    of(context).show(nodes_of(address, client), nodes_seen)


@app.command("init")
def init(
    context: typer.Context,
    address: Address,
    metadata_nodes: Annotated[
        list[str],
        typer.Option(
            "--metadata-nodes", metavar="NODE[,NODE]", help="All of them begin it, or none.", show_default=False
        ),
    ],
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="The name of the cluster.")] = None,
    timeout: Annotated[float, _seconds("--timeout", 0, MOST_SECONDS, "How long to wait.")] = 120.0,
    token_file: TokenFile = None,
    tls_certificate: Certificate = None,
    tls_key: Key = None,
    tls_authority: Authority = None,
) -> None:
    """Begin a cluster at the root of idle agents. An error names each node that cannot be part of it, and why.

    Without an answer the same call to any of them is safe.
    """
    client = asking(token_file, tls_certificate, tls_key, tls_authority)
    from epochlake.jobs.agent.asking import init as begun
    from epochlake.jobs.agent.initialising import InitOrder

    order = InitOrder(tuple(parse_names(metadata_nodes)), name)
    of(context).show(begun(address, order, client, timeout), init_answer)


@app.command("cancel-join")
def cancel_join(
    context: typer.Context,
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="The agent that asks.", show_default=False)],
    token_file: TokenFile = None,
    tls_certificate: Certificate = None,
    tls_key: Key = None,
    tls_authority: Authority = None,
) -> None:
    """Let an agent ask no more that its node may join. What the log has already `request cancel` takes back."""
    client = asking(token_file, tls_certificate, tls_key, tls_authority)
    from epochlake.jobs.agent.asking import cancel_join as cancelled

    of(context).show(cancelled(address, client), join_state)
