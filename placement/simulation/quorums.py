"""Quorum intersection: for two views that may be in use at once, every read quorum meets every write quorum.

Exhaustive: every read quorum is enumerated, and for each of them it is decided exactly whether any write quorum
avoids it. What makes a write quorum is design section 10: a majority of the old replicas *and* of the new ones, as
far as writes go to them. Barriers stand between steps (majorities of old, new and both together), so that of one
range only views one step apart are in use at once; that a barrier leaves no quorum to an older view is checked here
as well. Nodes whose storage is declared lost are in no quorum of a view that knows of it, and a barrier never takes
them for fenced: they may be back for a view that does not (docs/decisions/026-lost-storage.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from itertools import combinations, count

import msgspec
import numpy as np
from epochlake.placement.ring.placements import Assignment, Delta, applied_to_reads, inverse, on_grid
from epochlake.placement.ring.state import LOST, RingState
from epochlake.placement.ring.strategies import Replication
from epochlake.placement.ring.tokens import NodeIds, Tokens

Nodes = frozenset[int]


class RangeView(msgspec.Struct, frozen=True):
    """What a coordinator may go by for one range: who serves reads, who gets writes, and the old and new replicas.

    `lost` are those among them that are declared lost.
    """

    reads: Nodes
    writes: Nodes
    old: Nodes
    new: Nodes
    lost: Nodes = frozenset()


Pair = tuple[RangeView, RangeView]


class Views(msgspec.Struct, frozen=True, eq=False):
    """The views of all ranges of a keyspace at one epoch, by the starts of the ranges."""

    starts: Tokens
    views: list[RangeView]


class Counterexample(msgspec.Struct, frozen=True):
    """A quorum that something which it must meet can avoid, and the views in which that happens."""

    what: str
    quorum: Nodes
    earlier: RangeView
    later: RangeView

    def __str__(self) -> str:
        return f"{self.what} {sorted(self.quorum)}: {_shown(self.earlier)}, then {_shown(self.later)}"


def all_views(state: RingState) -> dict[str, Views]:
    """The views of every keyspace."""
    return {keyspace: _views(state, replication) for keyspace, replication in state.keyspaces.items()}


def disjoint_in_step(
    before: Mapping[str, Views], after: Mapping[str, Views], datacenters: Mapping[int, str], known: set[Pair]
) -> Counterexample | None:
    """A counterexample between two epochs that follow each other, over all ranges of all keyspaces.

    `known`: pairs of views that were found good already, in this history; those found good now are added.
    """
    for keyspace in before.keys() & after.keys():
        earlier, later = before[keyspace], after[keyspace]
        for pair in {*_together(earlier, later)} - known:
            found = disjoint_quorums(*pair, datacenters)
            if found is not None:
                return found
            known.add(pair)
    return None


def _together(earlier: Views, later: Views) -> Iterable[Pair]:
    """The views of each range of the finer of both covers."""
    if np.array_equal(earlier.starts, later.starts):
        return zip(earlier.views, later.views, strict=True)
    grid = np.union1d(earlier.starts, later.starts)
    at_earlier = (earlier.starts.searchsorted(grid, side="right") - 1).tolist()
    at_later = (later.starts.searchsorted(grid, side="right") - 1).tolist()
    return ((earlier.views[a], later.views[b]) for a, b in zip(at_earlier, at_later, strict=True))


def disjoint_in_history(states: Iterable[RingState]) -> Iterator[tuple[int, Counterexample]]:
    """Position and counterexample of every state of a history whose quorums do not all meet those of the one
    before."""
    previous: dict[str, Views] | None = None
    known: set[Pair] = set()
    for position, state in enumerate(states):
        views = all_views(state)
        datacenters = {node.node_id: node.datacenter for node in state.nodes.values()}
        found = None if previous is None else disjoint_in_step(previous, views, datacenters, known)
        if found is not None:
            yield position, found
        previous = views


def disjoint_quorums(earlier: RangeView, later: RangeView, datacenters: Mapping[int, str]) -> Counterexample | None:
    """A counterexample for one range at two views one step apart: at QUORUM, and at LOCAL_QUORUM of each
    datacenter."""
    roles = _roles((*_groups(earlier), *_groups(later)))
    found = _avoided_somewhere(
        tuple(sorted([_number(datacenters[node]) << BITS | role for node, role in roles.items()]))
    )
    if found is None:
        return None
    scope, what, quorum = found
    members = [node for node in roles if scope is None or _number(datacenters[node]) == scope]
    ordered = sorted(members, key=lambda node: (roles[node], node))
    return Counterexample(what, frozenset(n for i, n in enumerate(ordered) if quorum >> i & 1), earlier, later)


def _roles(groups: tuple[Nodes, ...]) -> dict[int, int]:
    """For each node a bit mask: which of the groups it is in."""
    bits: dict[Nodes, int] = {}
    for index, group in enumerate(groups):
        bits[group] = bits.get(group, 0) | 1 << index
    roles: dict[int, int] = {}
    for group, mask in bits.items():
        for node in group:
            roles[node] = roles.get(node, 0) | mask
    return roles


Masks = tuple[int, int, int, int, int]
BITS = 2 * len(RangeView.__struct_fields__)
"""So many groups a node can be in: the five of an earlier view and the five of a later one."""


@lru_cache(maxsize=100_000)
def _avoided_somewhere(roles: tuple[int, ...]) -> tuple[int | None, str, int] | None:
    """What `_avoided` finds in all datacenters together (None) or in one of them; a role has its datacenter's number
    above its bits."""
    numbers = sorted({role >> BITS for role in roles})
    scopes: list[int | None] = [None, *numbers] if len(numbers) > 1 else [None]
    for scope in scopes:
        found = _avoided(tuple(sorted(role & (1 << BITS) - 1 for role in roles if scope in (None, role >> BITS))))
        if found is not None:
            return scope, *found
    return None


@cache
def _number(datacenter: str) -> int:
    """A number for each datacenter that was ever asked for."""
    return next(_NUMBERS)


_NUMBERS = count()


@lru_cache(maxsize=100_000)
def _avoided(roles: tuple[int, ...]) -> tuple[str, int] | None:
    """A read quorum that a write quorum or a barrier avoids, or a write quorum that a barrier avoids.

    Nodes are only what they belong to, in ascending order: pairs of views that are alike are checked once. The quorum
    is a bit mask over them.
    """
    sets = [sum(1 << index for index, role in enumerate(roles) if role >> group & 1) for group in range(BITS)]
    earlier = (sets[0], sets[1], sets[2], sets[3], sets[4])
    later = (sets[5], sets[6], sets[7], sets[8], sets[9])
    for what, reader, writer in (
        ("a write at the later view misses the read quorum at the earlier", earlier, later),
        ("a write at the earlier view misses the read quorum at the later", later, earlier),
        ("a write misses the read quorum at the same view", later, later),
    ):
        targets = _targets(writer)
        for quorum in _majorities(reader[0], reader[4]):
            if targets and all(_has_majority(target, quorum | writer[4]) for target in targets):
                return what, quorum
    reads, _, old, new, lost = earlier
    fenced = [group for group in (old, new, old | new) if group]
    for quorum in _majorities(reads, lost):
        if all(_may_leave_out(group, quorum, later[4]) for group in fenced):
            return "a barrier leaves out the read quorum at the earlier view", quorum
    # A write holds a majority of each target: it is enough that those of one target cannot be left out.
    left_out = [
        next((q for q in _majorities(target, lost) if all(_may_leave_out(g, q, later[4]) for g in fenced)), 0)
        for target in _targets(earlier)
    ]
    if left_out and all(left_out):
        return "a barrier leaves out the write quorum at the earlier view", left_out[0]
    return None


def _targets(view: Masks) -> list[int]:
    """The sets of which a write needs a majority each: old and new replicas, as far as they get writes."""
    _, writes, old, new, _ = view
    return [group for group in {old, new} if group and group & ~writes == 0]


def _has_majority(group: int, without: int) -> bool:
    return (group & ~without).bit_count() > group.bit_count() // 2


def _may_leave_out(group: int, quorum: int, lost: int) -> bool:
    """Whether a barrier over a group can be passed with no fence in a quorum.

    What is declared lost counts in no barrier: it is not opened, and may be back for who does not know of it.
    """
    return _has_majority(group, quorum | lost)


@lru_cache(maxsize=10_000)
def _majorities(group: int, without: int) -> tuple[int, ...]:
    """Every smallest majority of a group that has none of `without` in it; of an empty group none."""
    left = group & ~without
    members = [1 << index for index in range(left.bit_length()) if left >> index & 1]
    return tuple(sum(chosen) for chosen in combinations(members, group.bit_count() // 2 + 1)) if group else ()


def _views(state: RingState, replication: Replication) -> Views:
    """Old replicas are those with all that is in flight taken back, new ones those with all of it done."""
    now = state.placements[replication]
    grid = now.reads.starts
    old, new = now.reads, now.reads
    for operation in reversed(list(state.operations.values())):
        for delta in reversed(operation.deltas.get(replication, ())[: operation.next_step]):
            old = applied_to_reads(old, inverse(_unsplit(delta)))
    for operation in state.operations.values():
        for delta in operation.deltas.get(replication, ())[operation.next_step :]:
            new = applied_to_reads(new, delta)
    columns = [_sets(now.reads, grid)]
    columns += [columns[0] if side is now.reads else _sets(side, grid) for side in (now.writes, old, new)]
    lost = frozenset(node.node_id for node in state.nodes.values() if node.lost or node.state in LOST)
    return Views(grid, [_view(*sets, lost) for sets in zip(*columns, strict=True)])


@lru_cache(maxsize=50_000)
def _view(reads: Nodes, writes: Nodes, old: Nodes, new: Nodes, lost: Nodes) -> RangeView:
    """One object for views that come again: they are compared with each other after every step."""
    return RangeView(reads, writes, old, new, lost & (reads | writes | old | new))


def _sets(assignment: Assignment, grid: Tokens) -> list[Nodes]:
    if grid is assignment.starts or np.array_equal(grid, assignment.starts):
        return _own_sets(assignment)
    return _rows(on_grid(assignment, grid))


@lru_cache(maxsize=64)
def _own_sets(assignment: Assignment) -> list[Nodes]:
    """The sets of an assignment, which is often the same one after the next step."""
    return _rows(assignment.replicas)


def _rows(replicas: NodeIds) -> list[Nodes]:
    rows, width = replicas.shape
    data, size = replicas.tobytes(), width * replicas.itemsize
    return [_nodes(data[row * size : (row + 1) * size]) for row in range(rows)]


@lru_cache(maxsize=50_000)
def _nodes(row: bytes) -> Nodes:
    """The nodes of a row of replicas; one object for rows that come again."""
    nodes = np.frombuffer(row, dtype=np.int32)
    return frozenset(nodes[nodes >= 0].tolist())


def _groups(view: RangeView) -> tuple[Nodes, Nodes, Nodes, Nodes, Nodes]:
    return view.reads, view.writes, view.old, view.new, view.lost


def _shown(view: RangeView) -> str:
    reads, writes, old, new, lost = (sorted(group) for group in _groups(view))
    return f"reads {reads} writes {writes} (old {old}, new {new}{f', lost {lost}' if lost else ''})"


def _unsplit(delta: Delta) -> Delta:
    """The delta without its splits: taking it back leaves the cover as it is."""
    return msgspec.structs.replace(delta, split=delta.split[:0], merge=delta.merge[:0])
