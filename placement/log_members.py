"""Which nodes keep copies of the log: how many by the size of the cluster, apart from each other, and few changes.

Sizes are those that seed 002 (CEP-21, growing and shrinking the CMS) gives as an example.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping

import msgspec

SIZES = ((2, 1), (5, 3), (100, 5))
"""Up to so many nodes, so many members."""
MOST = 10


class Candidate(msgspec.Struct, frozen=True):
    """A node that could keep a copy of the log, and where it would. `is_member`: it keeps one now."""

    name: str
    datacenter: str
    rack: str
    place: str
    is_member: bool = False


def member_count(nodes: int) -> int:
    """How many members a cluster of so many nodes is to have; 0 without a node."""
    return min(nodes, next((count for most, count in SIZES if nodes <= most), MOST))


def choose_members(candidates: Collection[Candidate], count: int) -> list[Candidate]:
    """`count` of the candidates, all of them where there are no more; by name.

    They are spread over datacenters as evenly as these have candidates, and over the racks of each. Of choices that are
    spread alike it is one with the most of those that are members already, then the first by name: the same whoever
    asks, and in whatever order.
    """
    by_rack: dict[str, dict[str, list[Candidate]]] = defaultdict(lambda: defaultdict(list))
    for one in sorted(candidates, key=lambda one: (not one.is_member, one.name)):
        by_rack[one.datacenter][one.rack].append(one)
    in_order = {datacenter: _in_turns(racks) for datacenter, racks in by_rack.items()}
    return sorted(_in_turns(in_order, by_rack)[:count], key=lambda one: one.name)


def _in_turns(
    groups: Mapping[str, list[Candidate]], by_rack: Mapping[str, Mapping[str, list[Candidate]]] | None = None
) -> list[Candidate]:
    """All of some groups, in each turn one of each that has one left: so the first are spread, however many are taken.

    In a turn those come first that are the first ones of their racks, if `by_rack` is given, and then those that are
    members.
    """
    ordered: list[Candidate] = []
    for turn in range(max(map(len, groups.values()), default=0)):

        def rank(name: str, turn: int = turn) -> tuple[int, bool, str]:
            one = groups[name][turn]
            before = 0 if by_rack is None else by_rack[one.datacenter][one.rack].index(one)
            return before, not one.is_member, name

        left = [name for name, group in groups.items() if len(group) > turn]
        ordered += [groups[name][turn] for name in sorted(left, key=rank)]
    return ordered


def spread_of(chosen: Iterable[Candidate]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How many each datacenter has, and each rack, the most first."""
    members = list(chosen)
    datacenters = Counter(one.datacenter for one in members)
    racks = Counter((one.datacenter, one.rack) for one in members)
    return tuple(sorted(datacenters.values(), reverse=True)), tuple(sorted(racks.values(), reverse=True))
