"""What an agent shows over HTTP: its state, and the nodes as the log has them and as they answer. Keys are stable."""

from __future__ import annotations

import msgspec
from epochlake.jobs.agent.coordination_server import CoordinationServerSeen
from epochlake.jobs.agent.home import View
from epochlake.jobs.agent.joining import JoinState
from epochlake.jobs.agent.membership import Peer
from epochlake.jobs.agent.messages import Introduction, Seen, StreamSeen, Tag
from epochlake.jobs.agent.task_messages import TasksSeen
from epochlake.jobs.agent.volumes import VolumeHealth, VolumeSeen
from epochlake.metastore.coordination.publication import PublishedEnsemble


class Health(msgspec.Struct, frozen=True):
    """`status` is `ok` or `degraded`: the agent serves in both, and `problems` says what people should look at."""

    status: str
    problems: tuple[str, ...]


class LogSeen(msgspec.Struct, frozen=True):
    """The copy of the log: how far it goes, what came of following the root last, and how long ago, in seconds."""

    epoch: int
    hash: str
    incarnation: int
    outcome: str
    reason: str
    seconds_ago: float | None


class AgentState(msgspec.Struct, frozen=True):
    """An agent. `tag` is None while it is blank; `discovered` is the cluster that it knows of, a member of it or not.

    `waits`: what the discovery of a fresh cluster waits for; empty where there is nothing to wait for. `join`: how the
    request that its node may join stands; None where it makes none. `streams`: the change streams as of when the log
    was followed last. `tasks`: what it has done near its disks since it was started. `coordination`: the ZooKeeper
    server that it runs; None where it was not asked to.
    """

    agent_id: str
    name: str
    address: str
    tag: Tag | None
    protocol: int
    product_version: str
    discovered: Tag | None
    waits: str
    join: JoinState | None
    log: LogSeen
    volumes: tuple[VolumeSeen, ...]
    problems: tuple[str, ...]
    streams: tuple[StreamSeen, ...] = ()
    tasks: TasksSeen = TasksSeen()
    coordination: CoordinationServerSeen | None = None


class EnsembleKnown(msgspec.Struct, frozen=True):
    """What an agent of the cluster `tag` knows of its ZooKeeper ensemble: what was published, as far as it has seen it;
    and where clients reach the members, as the server beside it names them.
    """

    tag: Tag | None
    published: PublishedEnsemble | None = None
    servers: tuple[str, ...] = ()


class NodeSeen(msgspec.Struct, frozen=True):
    """A node, logical beside physical: `state` is what the log says (None: it is not in it), `seen` what the agent that
    was asked sees (None: no agent of that name is known). `epoch` is how far that agent's copy of the log goes.
    `features`: what the agent said it supports; None where it was not heard itself. `coordination_server`: the
    ZooKeeper server that it said it runs, as ZooKeeper writes it; empty where it runs none, or was not heard itself.
    """

    name: str
    state: str | None
    datacenter: str | None
    rack: str | None
    seen: Seen | None
    address: str | None
    epoch: int | None
    heard_seconds_ago: float | None
    note: str = ""
    features: tuple[str, ...] | None = None
    coordination_server: str = ""


def health(problems: tuple[str, ...]) -> Health:
    return Health("degraded" if problems else "ok", problems)


def problems_of(volumes: tuple[VolumeSeen, ...], log: LogSeen, others: tuple[str, ...]) -> tuple[str, ...]:
    """What people should look at, each in a sentence."""
    bad = (VolumeHealth.FAILING, VolumeHealth.HANGING, VolumeHealth.READ_ONLY)
    said = [f"volume {v.name} is {v.health}" + (f": {v.error}" if v.error else "") for v in volumes if v.health in bad]
    if log.outcome in ("another-cluster", "went-back", "failed", "hanging", "left"):
        said.append(f"the log is not followed ({log.outcome}): {log.reason}")
    return (*said, *others)


def nodes_seen(view: View | None, me: Introduction, peers: tuple[Peer, ...], now: float) -> tuple[NodeSeen, ...]:
    """Every node of the log and every agent, by name. Two agents of one name are shown both, and noted."""
    logged = {node.name: node for node in view.nodes} if view is not None else {}
    found = []
    physical: list[tuple[str, Seen, str, int, float | None, tuple[str, ...] | None, str]] = [
        (me.name, Seen.ALIVE, me.address, me.epoch, 0.0, me.features, me.coordination_server)
    ]
    for peer in peers:
        heard = None if peer.heard is None else now - peer.heard
        said = (peer.features, peer.coordination_server)
        physical.append((peer.name, peer.seen, peer.address, peer.epoch, heard, *said))
    names = [name for name, *_ in physical]
    for name, seen, address, epoch, heard, features, server in physical:
        node = logged.get(name)
        notes = ["several agents have this name"] if names.count(name) > 1 else []
        notes += ["not in the log"] if node is None and view is not None else []
        state, datacenter, rack = (node.state, node.datacenter, node.rack) if node is not None else (None, None, None)
        found.append(
            NodeSeen(name, state, datacenter, rack, seen, address, epoch, heard, ", ".join(notes), features, server)
        )
    for name in logged.keys() - set(names):
        node = logged[name]
        found.append(NodeSeen(name, node.state, node.datacenter, node.rack, None, None, None, None, "no agent"))
    return tuple(sorted(found, key=lambda one: (one.name, one.address or "")))
