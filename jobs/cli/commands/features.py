"""`feature list|enable`: what the members of a cluster may use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from epochlake.jobs.administration.features import FeatureEnabling
from epochlake.jobs.cli.arguments import At, of
from epochlake.jobs.cli.asking_agents import asking
from epochlake.jobs.cli.changing import How, carry_out, change_command
from epochlake.jobs.cli.text.features import feature_list
from epochlake.jobs.views.features import feature_rows
from epochlake.metastore.announcing import live_leases
from epochlake.metastore.errors import CoordinationUnavailable, Rejected
from epochlake.metastore.metadata.features import SUPPORTED, lacks
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.rejections import Code

if TYPE_CHECKING:
    from epochlake.jobs.agent.documents import NodeSeen

app = typer.Typer(help="What all members support, and the cluster may use.", no_args_is_help=True)


def require_support(seen: Sequence[NodeSeen], features: tuple[str, ...]) -> None:
    """That every agent that answers supports features. Raises Rejected."""
    for node in seen:
        if node.seen not in ("alive", "suspect"):
            continue
        lacking = features if node.features is None else lacks(features, node.features)
        if lacking:
            said = "has not been heard yet" if node.features is None else f"does not support {', '.join(lacking)}"
            raise Rejected(
                Code.FEATURE_LACKING,
                f"the agent of node {node.name!r} at {node.address} {said}",
                hint="Upgrade it, and start it again" if node.features is not None else "Try again in a moment",
            )


@app.command("list")
def list_(context: typer.Context, at: At = None) -> None:
    """List the features: since when each is enabled, or who does not support it yet."""
    session = of(context)
    metadata = session.cluster.at(at)
    try:
        leases = live_leases(session.cluster) if at is None else []
    except CoordinationUnavailable as error:
        session.warn(f"it is not known who lives: {error}")
        leases = []
    session.show(feature_rows(metadata, leases), feature_list)


@change_command(app, "enable")
def enable(
    context: typer.Context,
    how: How,
    feature: Annotated[
        list[str] | None, typer.Argument(metavar="FEATURE…", help="As `feature list` names them.", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that this version supports.")] = False,
    agent: Annotated[
        str | None,
        typer.Option("--agent", metavar="HOST:PORT", help="Ask an agent as well who answers, and what runs there."),
    ] = None,
) -> None:
    """Let the cluster use features, for ever: versions that lack one stop here.

    Refused while an agent that has announced its version, a pipeline or a job that lives does not support one. Agents
    of a version before features announce nothing: --agent finds those that answer.
    """
    if bool(feature) == everything:
        raise InvalidRequest("name features, or give --all", hint="Run `epochlake feature list` to see them")
    if agent is not None:
        client = asking()
        from epochlake.jobs.agent.asking import nodes_of

        require_support(nodes_of(agent, client), tuple(feature or SUPPORTED))
    carry_out(of(context), how, FeatureEnabling(tuple(feature or ())))
