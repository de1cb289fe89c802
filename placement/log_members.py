"""Which nodes keep copies of the log: how many by the size of the cluster, apart from each other, and few changes.

Sizes are those that seed 002 (CEP-21, growing and shrinking the CMS) gives as an example.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable

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
    """`count` of the candidates, all of them where there are no more; by name, which no two of them share.

    They are spread over datacenters as evenly as these have candidates, and over the racks of each. Of choices that are
    spread alike it is one with the most of those that are members already, then the first by name: the same whoever
    asks, and in whatever order.
    """
    by_name = sorted(candidates, key=lambda one: (not one.is_member, one.name))
    in_rack = _turns(by_name, lambda one: (one.datacenter, one.rack))
    by_rack = sorted(by_name, key=lambda one: (in_rack[one.name], not one.is_member, one.rack))
    in_datacenter = _turns(by_rack, lambda one: one.datacenter)
    by_datacenter = sorted(
        by_rack,
        key=lambda one: (in_datacenter[one.name], in_rack[one.name], not one.is_member, one.datacenter),
    )
    return sorted(by_datacenter[:count], key=lambda one: one.name)


def _turns(ordered: Iterable[Candidate], group: Callable[[Candidate], Hashable]) -> dict[str, int]:
    """By name: how many of its group come before each."""
    taken: Counter[Hashable] = Counter()
    turns = {}
    for one in ordered:
        turns[one.name] = taken[group(one)]
        taken[group(one)] += 1
    return turns
