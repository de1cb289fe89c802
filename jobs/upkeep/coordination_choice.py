"""Which ZooKeeper servers a cluster is to have: how many, in which racks, and when one of them is given up. Pure.

A machine that chooses gives up nobody who may come back soon, throws out no server of which it does not know where it
runs, never makes an ensemble smaller because servers are missing, and takes no way on which at any step too few of the
voters would answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec
from epochlake.metastore.coordination.ensemble import OBSERVER, VOTER, Server, next_step
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import Node, NodeState
from epochlake.placement.log_members import Candidate, choose_members, member_count


class Offer(msgspec.Struct, frozen=True):
    """A server that the agent of a node runs."""

    node: str
    server: Server


class Circumstances(msgspec.Struct, frozen=True):
    """What is known when servers are chosen. `normal`: the nodes of the log, by name; `runs_on`: by number, the node of
    a member, as somebody has said. `troubles`: by number, why a server cannot be counted on now; who answers is not in
    it. `silent`: by number, for how many seconds a member in trouble has been so; it is given up after `grace` seconds.
    """

    members: tuple[Server, ...]
    normal: Mapping[str, Node]
    runs_on: Mapping[int, str]
    offers: tuple[Offer, ...]
    troubles: Mapping[int, str]
    silent: Mapping[int, float]
    grace: float


class Choice(msgspec.Struct, frozen=True):
    """The servers that an ensemble is to have, and on which nodes they run; None where it is to stay as it is. `waits`:
    what stands in the way of a better one, else empty.
    """

    servers: tuple[Server, ...] | None
    runs_on: Mapping[int, str]
    waits: str = ""


def choose(known: Circumstances) -> Choice:
    """What a machine may make of an ensemble without being told."""
    members = {one.number: one for one in known.members}
    runs_on, offered = _where(known)

    def stays(why: str = "") -> Choice:
        return Choice(None, {}, why)

    answering = [one for one in known.members if one.number not in known.troubles]
    for number in sorted(members):
        trouble = known.troubles.get(number, "")
        silent = known.silent.get(number, 0.0)
        if trouble and silent < known.grace:
            return stays(f"server {number} may come back ({trouble}): it is given up after {known.grace:g} s")
        if not trouble and number not in runs_on:
            return stays(f"on which node server {number} runs was not said: name it as {number}@NODE")
    if not _is_majority(answering, known.members):
        return stays("most of the voters do not answer")
    found: dict[str, list[Server]] = {}
    for server in (*answering, *(one for one in offered if one.number not in known.troubles)):
        node = known.normal.get(runs_on[server.number])
        if node is not None and (server.number in members or not node.maintenance):
            found.setdefault(node.name, []).append(server)
    wanted = member_count(len(known.normal))
    count = wanted if len(found) >= wanted else len(found) - (len(found) + 1) % 2
    # An even voter is one more to wait for: four outlive as many losses as three.
    voters = sum(one.votes for one in known.members)
    if not count or count < min(wanted, voters - (voters + 1) % 2):
        dead = sorted(members.keys() & known.troubles.keys())
        lost = f", and {', '.join(f'server {number}' for number in dead)} cannot be replaced" if dead else ""
        return stays(f"{len(found)} of {wanted} servers are there on normal nodes{lost}")
    few = f"{len(found)} of {wanted} servers are there on normal nodes" if count < wanted else ""
    ideal = chosen_servers(found, known.normal, members, count)
    alive = {one.number for one in (*answering, *offered)} - known.troubles.keys()
    # Where the whole way is not safe, those that are dead go first.
    for target in (ideal, answering):
        if target is None or sum(one.votes for one in target) % 2 == 0:
            continue
        servers = tuple(sorted(target, key=lambda one: one.number))
        if servers == tuple(sorted(known.members, key=lambda one: one.number)):
            return stays(few)
        if _is_safe(known.members, servers, alive):
            nodes = {one.number: runs_on[one.number] for one in servers}
            return Choice(servers, nodes, few)
    return stays("too few of the voters answer on the way to other servers")


def _where(known: Circumstances) -> tuple[dict[int, str], list[Server]]:
    """By number, the node that each server runs on, and the servers that are offered and no members.

    What an agent says of a member goes before what somebody has said once; where several agents do, it is not known. A
    number or a place that is offered twice, or that is a member's elsewhere, is nobody's.
    """
    members = {one.number: one for one in known.members}
    runs_on = {number: node for number, node in known.runs_on.items() if number in members}
    others: dict[int, list[Offer]] = {}
    said: dict[int, set[str]] = {}
    for offer in known.offers:
        server = offer.server
        there = members.get(server.number)
        if there is None:
            others.setdefault(server.number, []).append(offer)
        elif there.as_role(server.role) == server:
            said.setdefault(server.number, set()).add(offer.node)
    for number, names in said.items():
        if len(names) == 1:
            [runs_on[number]] = names
        elif runs_on.get(number) not in names:
            runs_on.pop(number, None)
    taken = [place for one in known.members for place in (one.address, one.reached_at)]
    taken += [place for of in others.values() for one in of for place in (one.server.address, one.server.reached_at)]
    offered = []
    for _, of in sorted(others.items()):
        if len(of) == 1 and taken.count(of[0].server.address) == taken.count(of[0].server.reached_at) == 1:
            offered.append(of[0].server.as_role(VOTER))
            runs_on[of[0].server.number] = of[0].node
    return runs_on, offered


def _is_safe(members: Collection[Server], target: Collection[Server], alive: Collection[int]) -> bool:
    """Whether at every step of the way a majority of the voters answers."""
    reached = {one.number: one for one in members}
    while (step := next_step(tuple(reached.values()), target)) is not None:
        if step.joining is not None:
            reached[step.joining.number] = step.joining
        elif step.leaving is not None:
            del reached[step.leaving]
        if not _is_majority([one for one in reached.values() if one.number in alive], reached.values()):
            return False
    return True


def _is_majority(some: Collection[Server], servers: Collection[Server]) -> bool:
    """Whether some of the servers have a majority of the votes."""
    return 2 * sum(one.votes for one in some) > sum(one.votes for one in servers)


def normal_nodes(metadata: ClusterMetadata) -> dict[str, Node]:
    """The nodes that can run a server of the cluster, by name."""
    nodes = metadata.directory.nodes.values()
    return {node.name: node for node in nodes if node.state is NodeState.NORMAL and not node.lost}


def chosen_servers(
    found: Mapping[str, Sequence[Server]], normal: Mapping[str, Node], members: Mapping[int, Server], count: int
) -> list[Server] | None:
    """`count` servers, an odd number of them voters; None where there are not so many nodes with one."""

    def candidates(names: Sequence[str], is_member: Callable[[Server], bool]) -> list[Candidate]:
        return [
            Candidate(name, normal[name].datacenter, normal[name].rack, name, is_member(best[name])) for name in names
        ]

    def votes(server: Server) -> bool:
        return server.number in members and members[server.number].votes

    # Of two servers on one machine one is enough: that which is there already.
    best = {
        name: min(servers, key=lambda one: (not votes(one), one.number not in members, one.number))
        for name, servers in found.items()
    }
    if len(best) < count or not count:
        return None
    chosen = [one.name for one in choose_members(candidates(sorted(best), lambda one: one.number in members), count)]
    voters = {one.name for one in choose_members(candidates(chosen, votes), count - (count + 1) % 2)}
    return [best[name].as_role(VOTER if name in voters else OBSERVER) for name in chosen]
