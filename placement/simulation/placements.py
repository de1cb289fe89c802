"""The placement simulator of seed 002: a cluster that grows by random range movements, checked after every step.

A run is a function of its seed and its configuration. It starts with RF+1 nodes in each datacenter and joins, leaves,
moves, replaces, cancels, goes on by one step, and takes snapshots at random, until the cluster has grown and nothing
is in flight. After every step production is compared with the independent `model`, and with what must hold whatever
the model says. The first thing that does not ends the run with a `SimulationFailure` that says how to run it again.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import msgspec
import numpy as np
from epochlake.placement.errors import InvariantViolated
from epochlake.placement.rejections import Code
from epochlake.placement.ring.codec import decode_state, encode_state
from epochlake.placement.ring.errors import PlanRejected
from epochlake.placement.ring.operations import plan_join, plan_leave, plan_move, plan_replace
from epochlake.placement.ring.placements import Assignment, Placements
from epochlake.placement.ring.state import NodeState, Operation, RingNode, RingState, ring_state
from epochlake.placement.ring.steps import accepted, advanced, cancelled, retreated, settled_placements, settled_tokens
from epochlake.placement.ring.strategies import NETWORK_TOPOLOGY, SIMPLE, SIMPLE_OPTION, replication_of
from epochlake.placement.ring.tokens import MAX_TOKEN, MIN_TOKEN, NodeIds
from epochlake.placement.simulation.model import Cover, Model, Nodes, Owners, Pool, overlapping, together
from epochlake.placement.simulation.quorums import Pair, all_views, disjoint_in_step

_KEYSPACE = "simulated"
_RACKS = 3


class SimulationSettings(msgspec.Struct, frozen=True):
    """`operations` at once, replicas (in each datacenter), datacenters (0: SimpleStrategy), nodes to grow to.

    `cancelling` is how often an operation in flight is cancelled, out of the times that something happens.
    """

    operations: int
    factor: int
    datacenters: int
    nodes: int = 50
    tokens: int = 1
    quorums: bool = True
    cancelling: float = 0.03


class SimulationReport(msgspec.Struct, frozen=True):
    """What a run did. `done` counts steps by what they were, `rejected` plans by their code."""

    seed: int
    configuration: SimulationSettings
    steps: int
    done: dict[str, int]
    rejected: dict[str, int]
    nodes: int


class SimulationFailure(InvariantViolated):
    """Something that must always hold did not, at one step of one run."""

    def __init__(self, configuration: SimulationSettings, seed: int, step: int, what: str) -> None:
        super().__init__(f"seed {seed}, step {step}: {what}", hint=f"Run it again with seed {seed} and {configuration}")
        self.configuration = configuration
        self.seed = seed
        self.step = step
        self.what = what


CONFIGURATIONS = tuple(
    SimulationSettings(operations, factor, datacenters)
    for datacenters in (0, 3)
    for factor in (2, 3, 5)
    for operations in (1, 3, 5)
)


def simulate_placements(configuration: SimulationSettings, seed: int) -> SimulationReport:
    """One run; raises `SimulationFailure`."""
    run = _Run(configuration, seed)
    try:
        run.until_grown()
    except (InvariantViolated, KeyError) as error:
        if isinstance(error, SimulationFailure):
            raise
        raise run.failure(f"{type(error).__name__}: {error}") from error
    owners = sum(bool(node.tokens) for node in run.state.nodes.values())
    return SimulationReport(seed, configuration, run.step, dict(run.done), dict(run.rejected), owners)


class _Run:
    """One run on its way: production's state, the model's, and the source of chance."""

    def __init__(self, configuration: SimulationSettings, seed: int) -> None:
        self.configuration = configuration
        self.seed = seed
        self.chance = random.Random(repr((seed, msgspec.structs.astuple(configuration))))
        self.step = 0
        self.done: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.names = 0
        self.rejected_at = -1
        names = [f"dc{number}" for number in range(1, max(1, configuration.datacenters) + 1)]
        nodes = [
            RingNode(index, name, self._rack(), NodeState.NORMAL, self._tokens())
            for index, name in enumerate(name for name in names for _ in range(configuration.factor + 1))
        ]
        if configuration.datacenters:
            replication = replication_of(NETWORK_TOPOLOGY, dict.fromkeys(names, configuration.factor))
            factors = dict.fromkeys(names, configuration.factor)
        else:
            replication = replication_of(SIMPLE, {SIMPLE_OPTION: configuration.factor})
            factors = {"": configuration.factor}
        self.ids = len(nodes) - 1
        self.datacenters = names
        self.state = ring_state(nodes, {_KEYSPACE: replication})
        places = {node.node_id: (node.datacenter, node.rack) for node in nodes}
        self.pool = Pool()
        self.model = Model(places, {node.node_id: node.tokens for node in nodes}, factors, self.pool)
        self.rows = _Rows(self.pool)
        # Pairs of sets that were found good already: what is said of sets alone need be looked at once.
        self.counted: set[tuple[Nodes, Nodes]] = set()
        self.written_before: set[tuple[Nodes, Nodes]] = set()
        self.counts: dict[Nodes, Counter[str]] = {}
        self.views = all_views(self.state)
        self.met: set[Pair] = set()

    def failure(self, what: str) -> SimulationFailure:
        return SimulationFailure(self.configuration, self.seed, self.step, what)

    def until_grown(self) -> None:
        self._check(self.state)
        limit = 400 * self.configuration.nodes
        while self.state.operations or len(self.state.tokens()) < self.configuration.nodes:
            if self.step > limit:
                raise self.failure(f"the cluster has not grown to {self.configuration.nodes} nodes in {limit} steps")
            self._one_step()
        self._check_like_fresh()

    def _one_step(self) -> None:
        # After a rejection something else comes first: most likely the next plan would meet the same locks.
        growing = len(self.state.tokens()) < self.configuration.nodes and self.rejected_at != self.step
        free = self.configuration.operations - len(self.state.operations)
        roll = self.chance.random()
        if not self.state.operations or (growing and free and roll < 0.4):
            self._prepare()
        elif roll > 1 - self.configuration.cancelling:
            self._cancel()
        elif 0.4 <= roll < 0.43:
            self._snapshot()
        else:
            self._go_on()

    def _prepare(self) -> None:
        kind = self.chance.choices(("join", "leave", "move", "replace"), (70, 8, 11, 11))[0]
        name = f"{kind}-{self.names}"
        self.names += 1
        before = self.state
        with_newcomer, plan, tokens = getattr(self, f"_{kind}")(before, name)
        try:
            operation: Operation = plan()
        except PlanRejected as rejection:
            self.rejected[rejection.code] += 1
            self.rejected_at = self.step
            self._check_rejection(rejection, name, tokens)
            return
        self.model.prepare(name, tokens)
        after = accepted(with_newcomer, operation)
        self._check_apart(name)
        self._check_restored(with_newcomer, cancelled(after, name))
        self._went(kind, after)

    def _join(self, state: RingState, name: str) -> tuple[RingState, Callable[[], Operation], Owners]:
        grown, node = self._registered(state, self.chance.choice(self.datacenters))
        tokens = self._tokens()
        return grown, lambda: plan_join(grown, name, node, tokens), {node: tokens}

    def _leave(self, state: RingState, name: str) -> tuple[RingState, Callable[[], Operation], Owners]:
        node = self._member(state)
        return state, lambda: plan_leave(state, name, node), {node: ()}

    def _move(self, state: RingState, name: str) -> tuple[RingState, Callable[[], Operation], Owners]:
        node, tokens = self._member(state), self._tokens()
        return state, lambda: plan_move(state, name, node, tokens), {node: tokens}

    def _replace(self, state: RingState, name: str) -> tuple[RingState, Callable[[], Operation], Owners]:
        replaced = self._member(state)
        grown, node = self._registered(state, state.nodes[replaced].datacenter)
        tokens = state.nodes[replaced].tokens
        return grown, lambda: plan_replace(grown, name, replaced, node), {replaced: (), node: tokens}

    def _registered(self, state: RingState, datacenter: str) -> tuple[RingState, int]:
        self.ids += 1  # Never used again, also when the plan is rejected: the model remembers where an id stood.
        node = RingNode(self.ids, datacenter, self._rack())
        self.model.places[node.node_id] = (node.datacenter, node.rack)
        return msgspec.structs.replace(state, nodes={**state.nodes, node.node_id: node}), node.node_id

    def _go_on(self) -> None:
        """One step of an operation in flight: forth, or back when it is being cancelled."""
        name = self.chance.choice(sorted(self.state.operations))
        if self.state.operations[name].cancelling:
            self._retreat(name)
            return
        before, foretold = self.state, self.model.settled()
        self.model.advance(name)
        after = advanced(before, name)
        if self.model.settled() != foretold:  # By the model; production's is compared with it after every step.
            raise self.failure(f"the settled placement changed when {name} went on")
        self._check_new_readers(before, after)
        self._went("advance", after)

    def _cancel(self) -> None:
        self._retreat(self.chance.choice(sorted(self.state.operations)))

    def _retreat(self, name: str) -> None:
        self.model.retreat(name)
        after = retreated(self.state, name)
        self._check_new_readers(self.state, after)
        self._went("cancel", after)

    def _snapshot(self) -> None:
        data = encode_state(self.state)
        restored = decode_state(data)
        if encode_state(restored) != data:
            raise self.failure("a snapshot that was read back is not what was written")
        self._went("snapshot", restored)

    def _went(self, what: str, after: RingState) -> None:
        self.step += 1
        self.done[what] += 1
        self.state = after
        self._check(after)
        if self.configuration.quorums:
            views = all_views(after)
            datacenters = {node.node_id: node.datacenter for node in after.nodes.values()}
            found = disjoint_in_step(self.views, views, datacenters, self.met)
            if found is not None:
                raise self.failure(str(found))
            self.views = views

    def _check(self, state: RingState) -> None:
        """Everything that holds of any state, whatever led to it."""
        placements, settled = self._placements(state), self.model.settled()
        if state.tokens() != self.model.tokens:
            raise self.failure("tokens differ from the model's")
        if settled_tokens(state) != self.model.settled_tokens():
            raise self.failure("the tokens foretold differ from the model's")
        reads, writes = self._cover(placements.reads), self._cover(placements.writes)
        for found in (reads, writes):
            if found.starts != self.model.bounds():
                raise self.failure("ranges do not begin exactly at the tokens")
        self._compare("reads", reads, self.model.reads())
        self._compare("writes", writes, self.model.writes())
        foretold = settled_placements(state)[state.keyspaces[_KEYSPACE]]
        self._compare("the reads foretold", self._cover(foretold.reads), settled)
        self._compare("the writes foretold", self._cover(foretold.writes), settled)
        for readers, writers in {*zip(reads.nodes, writes.nodes, strict=True)} - self.counted:
            self._check_counts(readers, writers)
            self.counted.add((readers, writers))

    def _check_counts(self, readers: Nodes, writers: Nodes) -> None:
        read, written = self._counts(readers), self._counts(writers)
        for group in self.datacenters if self.configuration.datacenters else [""]:
            if read[group] != self.configuration.factor:
                raise self.failure(
                    f"{sorted(readers)} are {read[group]} read replicas, not {self.configuration.factor}"
                )
            if written[group] < self.configuration.factor:
                raise self.failure(f"{sorted(writers)} are only {written[group]} write replicas")
        if not readers <= writers:
            raise self.failure(f"{sorted(readers - writers)} are read from, but not written to")

    def _check_new_readers(self, before: RingState, after: RingState) -> None:
        """Who reads a range was written to before, in each piece of it where ranges were merged."""
        written, read = self._cover(self._placements(before).writes), self._cover(self._placements(after).reads)
        for writers, readers in {*together(written, read)} - self.written_before:
            if not readers <= writers:
                raise self.failure(f"a range is read from {sorted(readers - writers)}, which were no writers before")
            self.written_before.add((writers, readers))

    def _check_like_fresh(self) -> None:
        """With nothing in flight, placements are those of a fresh cluster with the same tokens."""
        fresh = self._placements(ring_state(self.state.nodes.values(), self.state.keyspaces))
        grown = self._placements(self.state)
        self._compare("reads", self._cover(grown.reads), self._cover(fresh.reads), "in a fresh cluster")
        self._compare("writes", self._cover(grown.writes), self._cover(fresh.writes), "in a fresh cluster")

    def _check_apart(self, name: str) -> None:
        """Operations in flight alter disjoint ranges, by the model's own reckoning."""
        asked = self.model.affected(name)
        for other in self.model.changes:
            if other != name:
                span = overlapping(asked, self.model.affected(other))
                if span is not None:
                    raise self.failure(f"{name} was accepted although {other} alters {span} too")

    def _check_rejection(self, rejection: PlanRejected, name: str, tokens: Owners) -> None:
        """A plan is not rejected for a lock that nobody needs."""
        if rejection.code != Code.RANGES_LOCKED or rejection.operation_id is None:
            return
        self.model.prepare(name, tokens)
        apart = overlapping(self.model.affected(name), self.model.affected(rejection.operation_id)) is None
        self.model.retreat(name)
        if apart:
            raise self.failure(f"{name} was rejected, but shares no range: {rejection.reason}")

    def _check_restored(self, before: RingState, back: RingState) -> None:
        same = before.nodes == back.nodes and set(before.operations) == set(back.operations)
        mine, other = self._placements(before), self._placements(back)
        same &= self._cover(mine.reads) == self._cover(other.reads)
        same &= self._cover(mine.writes) == self._cover(other.writes)
        if not same:
            raise self.failure("cancelling a prepared operation does not restore what was there before")

    def _compare(self, what: str, found: Cover, expected: Cover, where: str = "by the model") -> None:
        if found != expected:
            have, want = (dict(zip(cover.spans(), cover.nodes, strict=True)) for cover in (found, expected))
            span = min({*have.items()} ^ {*want.items()})[0]
            raise self.failure(f"{what} of {span} are {_shown(have.get(span))}, {where} {_shown(want.get(span))}")

    def _cover(self, assignment: Assignment) -> Cover:
        return self.rows.cover(assignment)

    def _counts(self, nodes: Nodes) -> Counter[str]:
        known = self.counts.get(nodes)
        if known is None:
            known = self.counts[nodes] = Counter(map(self._group, nodes))
        return known

    def _group(self, node: int) -> str:
        """Of whom there are as many replicas as the factor says: those of the node's datacenter, or all."""
        return self.state.nodes[node].datacenter if self.configuration.datacenters else ""

    def _placements(self, state: RingState) -> Placements:
        return state.placements[state.keyspaces[_KEYSPACE]]

    def _member(self, state: RingState) -> int:
        return self.chance.choice(sorted(state.tokens()))

    def _rack(self) -> str:
        return f"r{self.chance.randint(1, _RACKS)}"

    def _tokens(self) -> tuple[int, ...]:
        return tuple(sorted(self.chance.randint(MIN_TOKEN, MAX_TOKEN) for _ in range(self.configuration.tokens)))


class _Known(dict[bytes, Nodes]):
    """The nodes of a row of replicas."""

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self._pool = pool

    def __missing__(self, row: bytes) -> Nodes:
        nodes = np.frombuffer(row, dtype=np.int32)
        self[row] = found = self._pool.one(nodes[nodes >= 0].tolist())
        return found


class _Rows:
    """Assignments of production as covers of the model's kind. Rows with the same bytes are the same set."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._covers: dict[Assignment, Cover] = {}
        self._known = _Known(pool)

    def cover(self, assignment: Assignment) -> Cover:
        found = self._covers.get(assignment)
        if found is None:
            if len(self._covers) > 32:
                self._covers.clear()
            found = self._covers[assignment] = Cover(assignment.starts.tolist(), self._nodes(assignment.replicas))
        return found

    def _nodes(self, replicas: NodeIds) -> list[Nodes]:
        count, width = replicas.shape
        if not width:
            return [self._pool.one(())] * count
        data, size = replicas.tobytes(), width * replicas.itemsize
        return [self._known[data[at : at + size]] for at in range(0, len(data), size)]


def _shown(nodes: frozenset[int] | None) -> str:
    return "no such range" if nodes is None else str(sorted(nodes))
