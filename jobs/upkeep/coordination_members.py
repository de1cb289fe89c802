"""The coordination members of a cluster, which run its ZooKeeper ensemble: looked at, chosen and changed."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec
from epochlake.jobs.upkeep.coordination_choice import chosen_servers, normal_nodes
from epochlake.metastore.configuration import AUTO, EMBEDDED, Configuration
from epochlake.metastore.coordination.client import Coordination
from epochlake.metastore.coordination.ensemble import (
    OBSERVER,
    VOTER,
    EnsembleConfiguration,
    Server,
    next_step,
    parse_server,
)
from epochlake.metastore.coordination.keeping import KEEPER, KeeperState, Keeping, tell, told
from epochlake.metastore.coordination.member_addresses import follow_members
from epochlake.metastore.coordination.publication import PublishedEnsemble
from epochlake.metastore.coordination.published import last_number, newest, publish
from epochlake.metastore.coordination.reconfiguring import (
    STEP_SECONDS,
    EnsembleMover,
    EnsembleNotes,
    require_named_change,
)
from epochlake.metastore.coordination.server_answers import LOOK_SECONDS, Answer, ask
from epochlake.metastore.coordination.whereabouts import Asked, Whereabouts
from epochlake.metastore.errors import ConfigurationError
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import Node
from epochlake.metastore.root import Root
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import EpochlakeError, InvalidRequest
from epochlake.placement.log_members import member_count

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster

logger = logging.getLogger(__name__)

MOST_NAMED = 10
ROLES = {VOTER: "voter", OBSERVER: "observer"}


class CoordinationMemberRow(msgspec.Struct, frozen=True):
    """A ZooKeeper server. `server`: its number; `address`: where the others reach it, `client`: where clients do.
    `role`: voter or observer. `node`: the node that it runs on, as far as somebody has said so, else empty. `state`:
    leader, follower or observer as it says itself; `trouble`: why it does not say so, else empty.
    """

    server: int
    address: str
    client: str
    role: str
    node: str
    state: str
    trouble: str


class CoordinationChange(msgspec.Struct, frozen=True):
    """A change of the coordination members that was begun and not ended: from `before` to `target`, as ZooKeeper writes
    them, and the step that comes next.
    """

    before: tuple[str, ...]
    target: tuple[str, ...]
    next: str


class CoordinationMembers(msgspec.Struct, frozen=True):
    """The ZooKeeper servers, as the ensemble itself names them at a version of its configuration. `connect`: where
    clients reach them, where the ensemble knows; `configured`: what `[zookeeper] connect` is; `published`: what
    processes find below the root, empty where nothing is. `change`: what was begun and not ended, else null. `keeper`:
    what the coordinator that keeps them does, as it has said last; null where none has.
    """

    version: str
    members: tuple[CoordinationMemberRow, ...]
    change: CoordinationChange | None
    connect: str
    configured: str
    published: str = ""
    keeper: KeeperState | None = None


class CoordinationProposed(msgspec.Struct, frozen=True):
    """The coordination members that a cluster is to have, as ZooKeeper writes them: chosen for its normal `nodes`, or
    named (null). `steps`: what is done for it, in order. `unavailable`: servers that were not chosen among, each with
    why. `runs_on`: by number, the node that a server runs on, as far as that is known.
    """

    nodes: int | None
    members: tuple[str, ...]
    steps: tuple[str, ...]
    unavailable: dict[str, str]
    runs_on: dict[str, str]


class Ensemble:
    """The ensemble of a configuration, and of what its cluster has published; close it at the end. `cluster_id` and
    `others`: see Whereabouts. `adopt`: the ensemble that is configured, whatever was published. Raises
    ConfigurationError for the embedded ZooKeeper, CoordinationUnavailable, UnknownFormat.
    """

    def __init__(
        self,
        configuration: Configuration,
        cluster_id: str | None,
        *,
        adopt: bool = False,
        others: Asked | None = None,
    ) -> None:
        settings = configuration.zookeeper
        if settings.connect == EMBEDDED:
            raise ConfigurationError(
                "[zookeeper] connect is 'embedded': one server on the machine of the root, and no ensemble",
                hint="Set up servers as docs/upkeep.md says, and name them in [zookeeper] connect",
            )
        if adopt and settings.connect == AUTO:
            raise ConfigurationError(
                "[zookeeper] connect is 'auto', and which ensemble is to be adopted was not said",
                hint="Name its servers in [zookeeper] connect",
            )
        self._configured = settings.connect
        self._adopt = adopt
        self._others = others
        self._cluster_id = cluster_id
        self._storage = Storage(configuration.storage)
        self._root = Root(configuration.root)
        # From now on whoever adopts another one goes before it, also if this process stands still until tomorrow.
        self._after = last_number(self._storage, self._root.coordination) if adopt else None
        self._guide = None if adopt else Whereabouts(configuration, self._storage, cluster_id, others)
        self._session = Coordination(
            settings.connect if self._guide is None else self._guide.first(),
            settings.path,
            session_timeout=settings.session_timeout_seconds,
            operator=settings.operator,
            guide=self._guide,
        )
        follow_members(self._session)
        self.mover = EnsembleMover(self._session, STEP_SECONDS, LOOK_SECONDS)
        self.keeping = Keeping(self._session)

    def __enter__(self) -> Ensemble:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def publish(self, cluster_id: str) -> PublishedEnsemble | None:
        """Let every process that knows the root find it. Raises as `published.publish`, and InvalidRequest where it is
        to be adopted and cannot be published.
        """
        found = publish(
            self._session,
            self._storage,
            self._root.coordination,
            cluster_id,
            adopt=self._adopt,
            after=self._after,
            beyond=self._known_to_others(cluster_id) if self._adopt else 0,
        )
        if found is None and self._adopt:
            raise InvalidRequest(
                f"the ZooKeeper at {self._configured} cannot be adopted: it is one server alone, is kept by groups or "
                "weights, or knows itself by other addresses",
                hint="Begin an ensemble by `epochlake metadata prepare-server --alone`, and name its own addresses in "
                "[zookeeper] connect",
            )
        return found

    def _known_to_others(self, cluster_id: str) -> int:
        """The highest number that others have seen published; 0 where nobody answers."""
        try:
            said = [] if self._others is None else [one.published for one in self._others()]
        except EpochlakeError as error:
            logger.info("nobody else says what was published of the ZooKeeper ensemble: %s", error)
            return 0
        return max((one.number for one in said if one is not None and one.cluster_id == cluster_id), default=0)

    def tell(self, cluster_id: str, state: KeeperState) -> None:
        """Say what the coordinator of a cluster does to the ensemble. Never raises."""
        tell(self._session, self._session.path(cluster_id, KEEPER), state)

    def describe(self) -> CoordinationMembers:
        """The members as they answer, and what is unfinished."""
        now, notes = self.mover.configuration(), self.mover.notes()
        answers = ask_all(now.servers)
        change = None
        if notes.change is not None:
            step = next_step(now.servers, [parse_server(one) for one in notes.change.target])
            change = CoordinationChange(notes.change.before, notes.change.target, str(step or "to call it ended"))
        published = newest(self._storage, self._root.coordination, self._cluster_id)
        keeper = None
        if (kept := self.keeping.read()) is not None:
            keeper = told(self._session, self._session.path(kept.cluster, KEEPER))
        return CoordinationMembers(
            version=f"{now.version:x}",
            members=tuple(_row(server, answers[server.number], notes) for server in now.servers),
            change=change,
            connect=now.connect,
            configured=self._configured,
            published="" if published is None else published.connect,
            keeper=keeper,
        )

    def named(
        self, members: Sequence[str], metadata: Callable[[], ClusterMetadata] | None = None
    ) -> CoordinationProposed:
        """What changes when these become the members. Raises InvalidRequest for what cannot be understood, and for what
        `reconfigure` would refuse.

        `metadata`: what knows the nodes, asked where a server is said to run on one. Where it does not answer, as in an
        outage or before the cluster begins, what was said is believed.
        """
        now, notes = self.mover.configuration(), self.mover.notes()
        known = _known(now, notes)
        servers, runs_on = _parsed(members, known)
        require_named_change(now, servers, LOOK_SECONDS)
        if runs_on and metadata is not None:
            try:
                nodes = metadata()
            except EpochlakeError as error:
                logger.info("it is not known whether the log has nodes %s: %s", sorted({*runs_on.values()}), error)
            else:
                _require_nodes(nodes, runs_on)
        return _proposed(now, servers, None, {}, runs_on)

    def propose(self, cluster: Cluster, candidates: Sequence[str] = ()) -> CoordinationProposed:
        """As many members as the size of the cluster asks for, chosen among those that are there and `candidates`: each
        on another normal node, spread over datacenters and racks, with few changes. Raises InvalidRequest when too few
        can be.
        """
        now, notes = self.mover.configuration(), self.mover.notes()
        known = _known(now, notes)
        named, said = _parsed(candidates, known)
        metadata = cluster.catch_up()
        _require_nodes(metadata, said)
        runs_on = {int(number): node for number, node in notes.nodes.items()} | said
        # A candidate by its number alone is one of the members: it says where that runs.
        of_number = {server.number: server for server in (*named, *now.servers)}
        answers = ask_all(tuple(of_number.values()))
        normal = normal_nodes(metadata)
        found: dict[str, list[Server]] = {}
        unavailable: dict[str, str] = {}
        for number, server in sorted(of_number.items()):
            node = normal.get(runs_on.get(number, ""))
            reason = _obstacle(server, answers[number], runs_on.get(number), node, now)
            if reason or node is None:
                unavailable[f"server {number}"] = reason
            else:
                found.setdefault(node.name, []).append(server)
        members = {server.number: server for server in now.servers}
        servers = chosen_servers(found, normal, members, member_count(len(normal)))
        if servers is None:
            raise _too_few(len(normal), unavailable)
        chosen_on = {server.number: runs_on[server.number] for server in servers}
        return _proposed(now, servers, len(normal), unavailable, chosen_on)

    def reconfigure(self, proposed: CoordinationProposed) -> None:
        """Make the members those that were proposed. Raises as `EnsembleMover.begin`."""
        nodes = {int(number): node for number, node in proposed.runs_on.items()}
        self.mover.begin([parse_server(one) for one in proposed.members], nodes)


def ask_all(servers: Sequence[Server]) -> dict[int, Answer]:
    """What each says, by its number; a server that hangs holds up nobody else."""
    with ThreadPoolExecutor(max(1, len(servers))) as pool:
        return dict(
            zip(
                [server.number for server in servers],
                pool.map(lambda server: ask(server, LOOK_SECONDS), servers),
                strict=True,
            )
        )


def _row(server: Server, answer: Answer, notes: EnsembleNotes) -> CoordinationMemberRow:
    trouble = answer.trouble
    if not trouble and answer.number != server.number:
        trouble = f"server {answer.number} is there"
    return CoordinationMemberRow(
        server=server.number,
        address=server.address,
        client=server.reached_at,
        role=ROLES[server.role],
        node=notes.nodes.get(str(server.number), ""),
        state="" if trouble else answer.state,
        trouble=trouble,
    )


def _known(now: EnsembleConfiguration, notes: EnsembleNotes) -> dict[int, Server]:
    """The servers that a number alone names: the members, and those of an unfinished change."""
    change = notes.change
    of_change = [parse_server(one) for one in (*change.before, *change.target)] if change is not None else []
    return {server.number: server for server in (*of_change, *now.servers)}


def _parsed(members: Sequence[str], known: Mapping[int, Server]) -> tuple[list[Server], dict[int, str]]:
    """Servers as they are named on the command line, and on which nodes they run: `4=zk4:2888:3888;2181@n4`, and `4`,
    `4@n4`, `4:observer` for those that are known.
    """
    servers: list[Server] = []
    runs_on: dict[int, str] = {}
    for member in members:
        text, _, node = member.partition("@")
        number, _, role = text.partition(":")
        if not re.fullmatch(r"\s*[0-9]{1,18}\s*", number):
            server = parse_server(text)
        elif int(number) not in known:
            raise InvalidRequest(
                f"server {number} is not known to the ensemble", hint=f"Write it out: '{number}=HOST:2888:3888;2181'"
            )
        elif role not in ("", *ROLES, *ROLES.values()):
            raise InvalidRequest(f"{role!r} is no part of a server", hint="There are voter and observer")
        else:
            server = known[int(number)].as_role(OBSERVER if role == OBSERVER else VOTER)
        servers.append(server)
        if node:
            runs_on[server.number] = node
    return servers, runs_on


def _require_nodes(metadata: ClusterMetadata, runs_on: Mapping[int, str]) -> None:
    """Raise InvalidRequest where a server is said to run on a node that the log does not name: it has no rack, so the
    server would never be chosen.
    """
    names = {node.name for node in metadata.directory.nodes.values()}
    for number, node in runs_on.items():
        if node not in names:
            there = ", ".join(sorted(names)[:MOST_NAMED]) + (", …" if len(names) > MOST_NAMED else "")
            raise InvalidRequest(
                f"server {number} is said to run on {node}, and the log names no such node",
                hint=f"Name one of its nodes ({there}), or leave out @{node}"
                if names
                else f"Add the node first, or leave out @{node}",
            )


def _obstacle(server: Server, answer: Answer, name: str | None, node: Node | None, now: EnsembleConfiguration) -> str:
    """Why a server cannot be chosen, else empty."""
    is_member = now.find(server.number) is not None
    if name is None:
        return f"on which node it runs was not said: name it as {server.number}@NODE"
    if node is None:
        return f"{name} is no normal node"
    if node.maintenance and not is_member:
        return f"{name} is in maintenance"
    if answer.trouble:
        return answer.trouble
    if answer.number != server.number:
        return f"server {answer.number} is there"
    return ""


def _proposed(
    now: EnsembleConfiguration,
    servers: Sequence[Server],
    nodes: int | None,
    unavailable: dict[str, str],
    runs_on: Mapping[int, str],
) -> CoordinationProposed:
    wanted = sorted(servers, key=lambda server: server.number)
    steps = []
    reached = {server.number: server for server in now.servers}
    while (step := next_step(tuple(reached.values()), wanted)) is not None:
        steps.append(str(step))
        if step.joining is not None:
            reached[step.joining.number] = step.joining
        elif step.leaving is not None:
            del reached[step.leaving]
    return CoordinationProposed(
        nodes=nodes,
        members=tuple(map(str, wanted)),
        steps=tuple(steps),
        unavailable=dict(sorted(unavailable.items())),
        runs_on={str(number): node for number, node in sorted(runs_on.items())},
    )


def _too_few(nodes: int, unavailable: Mapping[str, str]) -> InvalidRequest:
    count = member_count(nodes)
    if not count:
        return InvalidRequest("no node is normal yet that could run a ZooKeeper server", hint="Name the servers")
    said = "; ".join(f"{name}: {reason}" for name, reason in sorted(unavailable.items())) or "no others were named"
    return InvalidRequest(
        f"a cluster of {nodes} normal nodes is to have {count} coordination members, and fewer can be one ({said})",
        hint="Prepare servers on more nodes and name them beside --auto, as '4=HOST:2888:3888;2181@NODE'; or name all",
    )
