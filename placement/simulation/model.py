"""A simple model of range movements, to compare production with. It shares no placement code with it.

Nothing is ever planned, locked or changed in place. A node's replicas are found by walking a sorted
list of tokens in plain Python, datacenter by datacenter; and what reads and writes are while operations are in flight
follows from *which rings are in force*: reads go by the ring that has every operation past its MID step applied,
writes by the ring of the finished ones together with the ring of those past their START.

A ring is named by the changes that are applied to the tokens of the finished ones, so each is walked once for as long
as those tokens stay. Equal sets of nodes are one object (`Pool`): comparing them is comparing objects.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple

LOWEST = -(2**63)
HIGHEST = 2**63

Owners = dict[int, tuple[int, ...]]
Nodes = frozenset[int]
Names = tuple[str, ...]


class Cover(NamedTuple):
    """Ranges by their ascending starts, the first one `LOWEST`, each up to the next start; and the nodes of each."""

    starts: list[int]
    nodes: list[Nodes]

    def at(self, token: int) -> Nodes:
        """Nodes of the range that begins at `token` or holds the tokens just above it."""
        return self.nodes[bisect_right(self.starts, token) - 1]

    def spans(self) -> list[tuple[int, int]]:
        return list(zip(self.starts, [*self.starts[1:], LOWEST], strict=True))


class Pool:
    """One object for each set of nodes."""

    def __init__(self) -> None:
        self._known: dict[Nodes, Nodes] = {}

    def one(self, nodes: Iterable[int]) -> Nodes:
        wanted = frozenset(nodes)
        return self._known.setdefault(wanted, wanted)


class ModelOperation:
    """An operation: whose tokens become what, and how many of its four steps are done.

    `given_up` are the replicas that it would have led to, once it is on its way back; None where it changed none.
    """

    def __init__(self, tokens: Owners, at_once: bool) -> None:
        self.tokens = tokens
        self.done = 1
        self.at_once = at_once
        self.cancelling = False
        self.given_up: tuple[list[int], list[Nodes | None]] = ([LOWEST], [None])


class Model:
    """The cluster as a dictionary of tokens and a list of changes in flight.

    `places`: datacenter and rack of every node. `factors`: replicas for each datacenter, or `{"": n}` for a strategy
    that does not look at datacenters.
    """

    def __init__(
        self, places: dict[int, tuple[str, str]], tokens: Owners, factors: dict[str, int], pool: Pool | None = None
    ) -> None:
        self.places = places
        self.tokens = _with(tokens, {})
        self.factors = factors
        self.changes: dict[str, ModelOperation] = {}
        self._pool = pool or Pool()
        self._bounds: list[int] | None = None
        self._covers: dict[Names, Cover] = {}
        self._cuts: dict[Names, Cover] = {}
        self._walks: dict[tuple[tuple[int, int], ...], dict[int, Nodes]] = {}
        self._unions: dict[tuple[Nodes, ...], Nodes] = {}

    def prepare(self, name: str, tokens: Owners) -> None:
        """`tokens`: what the nodes that take part own afterwards, nothing for those that go."""
        self.changes[name] = ModelOperation(tokens, at_once=not self.tokens)
        self._cut_anew()

    def advance(self, name: str) -> None:
        change = self.changes[name]
        change.done += 1
        if change.done == 4:
            self.tokens = _with(self.tokens, change.tokens)
            del self.changes[name]
            self._covers.clear()
            self._cut_anew()

    def retreat(self, name: str) -> None:
        """One step back; from then on the change is on its way back."""
        change = self.changes[name]
        if not change.cancelling:
            before, after = self._cut(()), self._cut((name,))
            differs = zip(before.nodes, after.nodes, strict=True)
            change.given_up = (before.starts, [new if new is not old else None for old, new in differs])
        change.done -= 1
        change.cancelling = True
        if change.done == 0:
            del self.changes[name]
            self._cut_anew()

    def bounds(self) -> list[int]:
        """Where ranges begin: at the lowest token and at each token that somebody owns or is about to own."""
        if self._bounds is None:
            found = {token for owned in self.tokens.values() for token in owned}
            found.update(
                token for change in self.changes.values() for owned in change.tokens.values() for token in owned
            )
            self._bounds = sorted(found | {LOWEST})
        return self._bounds

    def reads(self) -> Cover:
        return self._cut(self._past(3))

    def writes(self) -> Cover:
        finished, started = self._cut(self._past(4)), self._cut(self._past(2))
        if finished is started:
            nodes = finished.nodes
        else:
            nodes = [
                old if old is new else self._united((old, new))
                for old, new in zip(finished.nodes, started.nodes, strict=True)
            ]
        # What is on its way back still writes to where it would have led; others no longer count on it.
        for change in self.changes.values():
            if change.cancelling and change.done == 2:
                starts, given_up = change.given_up
                more = [given_up[bisect_right(starts, start) - 1] for start in finished.starts]
                nodes = [old if new is None else self._united((old, new)) for old, new in zip(nodes, more, strict=True)]
        return Cover(finished.starts, nodes)

    def settled(self) -> Cover:
        """What reads and writes will be when all that is in flight has ended."""
        return self._covered(self._staying())

    def settled_tokens(self) -> Owners:
        return self._ring(self._staying())

    def affected(self, name: str) -> list[tuple[int, int]]:
        """Ranges whose replicas, or whose bounds, one change in flight alters by itself."""
        before, after = self._covered(()), self._covered((name,))
        return [span for span, _ in _pairs(before) ^ _pairs(after)]

    def _staying(self) -> Names:
        return tuple(name for name, change in self.changes.items() if not change.cancelling)

    def _past(self, steps: int) -> Names:
        """Changes in flight that have done so many steps and are not on their way back."""
        return tuple(
            name
            for name, change in self.changes.items()
            if (change.done >= steps and not change.cancelling) or change.at_once
        )

    def _ring(self, names: Names) -> Owners:
        tokens = self.tokens
        for name in names:
            tokens = _with(tokens, self.changes[name].tokens)
        return tokens

    def _cut_anew(self) -> None:
        self._bounds = None
        self._cuts.clear()

    def _cut(self, names: Names) -> Cover:
        """Replicas by that ring, on ranges cut at every token that somebody owns or is about to own."""
        cut = self._cuts.get(names)
        if cut is None:
            covered, starts = self._covered(names), self.bounds()
            nodes = covered.nodes if covered.starts == starts else [covered.at(start) for start in starts]
            cut = self._cuts[names] = Cover(starts, nodes)
        return cut

    def _covered(self, names: Names) -> Cover:
        covered = self._covers.get(names)
        if covered is None:
            covered = self._covers[names] = self._walk_all(self._ring(names))
        return covered

    def _walk_all(self, ring: Owners) -> Cover:
        owners = sorted((token, node) for node, owned in ring.items() for token in owned)
        if not owners:
            return Cover([LOWEST], [self._pool.one(())])
        starts = sorted({LOWEST, *(token for token, _ in owners)})
        ends = [*starts[1:], HIGHEST]
        if "" in self.factors:
            return Cover(starts, list(map(_by_end(owners, self._walked(owners, "")), ends)))
        sides = []
        for datacenter in self.factors:
            local = [(token, node) for token, node in owners if self.places[node][0] == datacenter]
            if local:
                sides.append(map(_by_end(local, self._walked(local, datacenter)), ends))
        return Cover(starts, [self._united(found) for found in zip(*sides, strict=True)])

    def _walked(self, owners: list[tuple[int, int]], datacenter: str) -> dict[int, Nodes]:
        """Replicas that a walk over these tokens alone chooses from each of them on."""
        key = tuple(owners)
        if key not in self._walks:
            if len(self._walks) > 64:
                self._walks.clear()
            circle = [node for _, node in owners]
            racks = {node: self.places[node][1] if datacenter else "" for node in circle}
            factor = self.factors[datacenter]
            spare = max(0, factor - len(set(racks.values()))) if datacenter else factor
            self._walks[key] = {
                token: self._pool.one(_chosen(circle[start:] + circle[:start], racks, factor, spare))
                for start, (token, _) in enumerate(owners)
            }
        return self._walks[key]

    def _united(self, sets: tuple[Nodes, ...]) -> Nodes:
        known = self._unions.get(sets)
        if known is None:
            if len(self._unions) > 20_000:
                self._unions.clear()
            known = self._unions[sets] = self._pool.one(frozenset().union(*sets))
        return known


def _chosen(nodes: list[int], racks: dict[int, str], factor: int, spare: int) -> set[int]:
    """Of the nodes in ring order: new racks always, known racks as often as there are spare replicas."""
    chosen: set[int] = set()
    seen: set[str] = set()
    passed: set[int] = set()
    for node in nodes:
        if len(chosen) == factor:
            break
        if node in chosen or node in passed:
            continue
        if racks[node] not in seen:
            chosen.add(node)
            seen.add(racks[node])
        elif spare:
            chosen.add(node)
            spare -= 1
        else:
            passed.add(node)
    return chosen


def _by_end(owners: list[tuple[int, int]], walked: dict[int, Nodes]) -> Callable[[int], Nodes]:
    """Replicas of the range with that end: those of the first of these tokens at or above it, round the top."""
    tokens = [token for token, _ in owners]
    replicas = [walked[token] for token in tokens]
    replicas.append(replicas[0])
    return lambda end: replicas[bisect_left(tokens, end)]


def _with(tokens: Owners, changed: Owners) -> Owners:
    merged = {**tokens, **changed}
    return {node: owned for node, owned in merged.items() if owned}


def _pairs(cover: Cover) -> set[tuple[tuple[int, int], Nodes]]:
    return set(zip(cover.spans(), cover.nodes, strict=True))


def together(left: Cover, right: Cover) -> Iterator[tuple[Nodes, Nodes]]:
    """What the two say of each range of the finer of both."""
    if left.starts == right.starts:
        return zip(left.nodes, right.nodes, strict=True)
    return ((left.at(start), right.at(start)) for start in {*left.starts, *right.starts})


def overlapping(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> tuple[int, int] | None:
    """A range of `left` that overlaps one of `right`, those around the top all overlapping; None when there is
    none."""
    around_top = any(LOWEST in span for span in right)
    ordered = sorted((low, _order(high)) for low, high in right)
    lows = [low for low, _ in ordered]
    reached = list(accumulate((high for _, high in ordered), max))
    for low, high in sorted(left):
        before = bisect_left(lows, _order(high)) - 1
        if (around_top and LOWEST in (low, high)) or (before >= 0 and reached[before] > low):
            return low, high
    return None


def _order(end: int) -> int:
    """Ends in ring order: the lowest token, as an end, is the top."""
    return HIGHEST if end == LOWEST else end
