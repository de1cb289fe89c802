"""A simple model of range movements, to compare production with. It shares no placement code with it.

The one idea: nothing is ever planned, locked or changed in place. A node's replicas are found by walking a sorted
list of tokens, range by range, in plain Python, every time; and what reads and writes are while operations are in
flight follows from *which rings are in force*: reads go by the ring that has every operation past its MID step
applied, writes by the ring of the finished ones together with the ring of those past their START.
"""

from __future__ import annotations

from bisect import bisect_left

LOWEST = -(2**63)

Owners = dict[int, tuple[int, ...]]
Covered = dict[tuple[int, int], frozenset[int]]


class Change:
    """An operation: whose tokens become what, and how many of its four steps are done."""

    def __init__(self, name: str, tokens: Owners, touches_at_once: bool) -> None:
        self.name = name
        self.tokens = tokens
        self.done = 1
        self.at_once = touches_at_once
        self.cancelling = False
        self.given_up: Covered = {}


class Model:
    """The cluster as a dictionary of tokens and a list of changes in flight.

    `places`: datacenter and rack of every node. `factors`: replicas for each datacenter, or `{"": n}` for a strategy
    that does not look at datacenters.
    """

    def __init__(self, places: dict[int, tuple[str, str]], tokens: Owners, factors: dict[str, int]) -> None:
        self.places = places
        self.tokens = tokens
        self.factors = factors
        self.changes: dict[str, Change] = {}
        self._walks: dict[tuple[tuple[int, int], ...], Covered] = {}

    def prepare(self, name: str, tokens: Owners) -> None:
        """`tokens`: what the nodes that take part own afterwards, nothing for those that go."""
        self.changes[name] = Change(name, tokens, touches_at_once=not self.tokens)

    def advance(self, name: str) -> None:
        change = self.changes[name]
        change.done += 1
        if change.done == 4:
            self.tokens = _with(self.tokens, change.tokens)
            del self.changes[name]

    def retreat(self, name: str) -> None:
        """One step back; from then on the change is on its way back."""
        change = self.changes[name]
        if not change.cancelling:
            before, after = self._cut(self.tokens), self._cut(_with(self.tokens, change.tokens))
            change.given_up = {span: nodes for span, nodes in after.items() if nodes != before[span]}
        change.done -= 1
        change.cancelling = True
        if change.done == 0:
            del self.changes[name]

    def reads(self) -> Covered:
        return self._cut(self._ring(3))

    def writes(self) -> Covered:
        written = [self._cut(self._ring(4)), self._cut(self._ring(2))]
        # What is on its way back still writes to where it would have led; others no longer count on it.
        result = {span: frozenset().union(*(covered[span] for covered in written)) for span in written[0]}
        for change in self.changes.values():
            if change.cancelling and change.done == 2:
                for span in result:
                    result[span] |= _holders(change.given_up, span)
        return result

    def settled(self) -> Covered:
        """What reads and writes will be when all that is in flight has ended."""
        return self._covered(self.settled_tokens())

    def settled_tokens(self) -> Owners:
        tokens = self.tokens
        for change in self.changes.values():
            if not change.cancelling:
                tokens = _with(tokens, change.tokens)
        return tokens

    def affected(self, name: str) -> list[tuple[int, int]]:
        """Ranges whose replicas, or whose bounds, one change in flight alters by itself."""
        before = self._covered(self.tokens)
        after = self._covered(_with(self.tokens, self.changes[name].tokens))
        return [span for span in before.keys() | after.keys() if before.get(span) != after.get(span)]

    def _ring(self, steps: int) -> Owners:
        """Tokens with every change in flight applied that has done so many steps and is not on its way back."""
        tokens = self.tokens
        for change in self.changes.values():
            if (change.done >= steps and not change.cancelling) or change.at_once:
                tokens = _with(tokens, change.tokens)
        return tokens

    def _cut(self, ring: Owners) -> Covered:
        """Replicas by that ring, on ranges cut at every token that somebody owns or is about to own."""
        bounds = {token for owned in self.tokens.values() for token in owned}
        bounds.update(token for change in self.changes.values() for owned in change.tokens.values() for token in owned)
        covered = self._covered(ring)
        tops = sorted(_order(end) for _, end in covered)
        by_top = {_order(end): nodes for (_, end), nodes in covered.items()}
        return {(low, high): by_top[tops[bisect_left(tops, _order(high))]] for low, high in _spans(bounds)}

    def _covered(self, ring: Owners) -> Covered:
        owners = tuple(sorted((token, node) for node, owned in ring.items() for token in owned))
        if owners not in self._walks:
            if len(self._walks) > 64:
                self._walks.clear()
            self._walks[owners] = self._walk_all(list(owners))
        return self._walks[owners]

    def _walk_all(self, owners: list[tuple[int, int]]) -> Covered:
        if not owners:
            return {(LOWEST, LOWEST): frozenset()}
        racks: dict[str, set[str]] = {}
        members: dict[str, set[int]] = {}
        for _, node in owners:
            datacenter, rack = self.places[node]
            racks.setdefault(datacenter, set()).add(rack)
            members.setdefault(datacenter, set()).add(node)
        tokens = [token for token, _ in owners]
        circle = [node for _, node in owners]
        covered: Covered = {}
        for low, high in _spans(set(tokens)):
            start = 0 if high == LOWEST else tokens.index(high)
            around = list(dict.fromkeys(circle[start:] + circle[:start]))
            if "" in self.factors:
                covered[low, high] = frozenset(around[: self.factors[""]])
                continue
            chosen: set[int] = set()
            for datacenter, factor in self.factors.items():
                if datacenter in members:
                    local = [node for node in around if self.places[node][0] == datacenter]
                    chosen |= self._choose(local, factor, len(racks[datacenter]))
            covered[low, high] = frozenset(chosen)
        return covered

    def _choose(self, nodes: list[int], factor: int, racks: int) -> set[int]:
        """Of the nodes of one datacenter in ring order: new racks always, known racks as often as there are spare
        replicas."""
        spare = max(0, factor - racks)
        chosen: list[int] = []
        seen: set[str] = set()
        for node in nodes:
            rack = self.places[node][1]
            if len(chosen) == factor:
                break
            if rack not in seen:
                chosen.append(node)
                seen.add(rack)
            elif spare:
                chosen.append(node)
                spare -= 1
        return set(chosen)


def _with(tokens: Owners, changed: Owners) -> Owners:
    merged = {**tokens, **changed}
    return {node: owned for node, owned in merged.items() if owned}


def _holders(covered: Covered, span: tuple[int, int]) -> frozenset[int]:
    """Nodes that hold the range that `span` lies in; none where no range does."""
    for (low, high), nodes in covered.items():
        if low <= span[0] and _order(span[1]) <= _order(high):
            return nodes
    return frozenset()


def _order(end: int) -> int:
    """Ends in ring order: the lowest token, as an end, is the top."""
    return 2**63 if end == LOWEST else end


def _spans(bounds: set[int]) -> list[tuple[int, int]]:
    starts = sorted(bounds | {LOWEST})
    return list(zip(starts, [*starts[1:], LOWEST], strict=True))


def overlapping(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> tuple[int, int] | None:
    """A range of `left` that overlaps one of `right`, those around the top all overlapping; None when there is
    none."""
    for low, high in left:
        for other_low, other_high in right:
            around_top = LOWEST in (low, high) and LOWEST in (other_low, other_high)
            if around_top or (low < _order(other_high) and other_low < _order(high)):
                return low, high
    return None
