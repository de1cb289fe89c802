"""The ring: who owns which token, as arrays.

Tokens are signed 64-bit numbers. Ranges are `(start, end]` and never wrap: `(MIN, t0], (t0, t1], …, (tn, MIN]`. An
end of `MIN` means the top of the ring, and both pieces around the top belong to the owner of `t0`. So one sorted
array of starts says everything about a cover of the ring: a range ends where the next one starts, the last one at
`MIN`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np
from epochlake.placement.errors import InvalidRequest
from numpy.typing import NDArray

MIN_TOKEN = -(2**63)
MAX_TOKEN = 2**63 - 1

Tokens = NDArray[np.int64]
NodeIds = NDArray[np.int32]


class Location(msgspec.Struct, frozen=True, order=True):
    """Where a node stands. A rack is the pair: `r1` of one datacenter is not `r1` of another."""

    datacenter: str
    rack: str


class Ring(msgspec.Struct, frozen=True, eq=False):
    """Token ownership as arrays.

    `tokens` (n) ascending; `owners` (n) index the node arrays; `node_ids`, `racks`, `datacenters` (k) describe the
    nodes that own tokens, and only those: a node without tokens counts neither as a node nor as a rack.
    """

    tokens: Tokens
    owners: NodeIds
    node_ids: NodeIds
    racks: NodeIds
    datacenters: NodeIds
    datacenter_names: tuple[str, ...]

    @property
    def starts(self) -> Tokens:
        """Starts of the ranges, ascending, the first one `MIN`; empty for an empty ring."""
        return starts_of(self.tokens)


def ring_of(tokens_by_node: Mapping[int, Iterable[int]], places: Mapping[int, Location]) -> Ring:
    """The ring in which each node owns the given tokens; nodes without tokens are left out.

    Raises `InvalidRequest` when a token has two owners or is no signed 64-bit number.
    """
    owned = [(node, list(tokens_by_node[node])) for node in sorted(tokens_by_node)]
    owned = [(node, values) for node, values in owned if values]
    node_ids = np.array([node for node, _ in owned], dtype=np.int32)
    tokens = _checked(owned)
    owners = np.repeat(np.arange(len(owned), dtype=np.int32), [len(values) for _, values in owned])
    order = np.argsort(tokens, kind="stable")
    tokens, owners = tokens[order], owners[order]
    twice = np.flatnonzero(tokens[1:] == tokens[:-1])
    if len(twice):
        first, second = node_ids[owners[twice[0]]], node_ids[owners[twice[0] + 1]]
        raise InvalidRequest(
            f"token {tokens[twice[0]]} is given to node {first} and to node {second}. A token has one owner",
            hint="Change one of them",
        )
    stand = [places[node] for node, _ in owned]
    rack_names = sorted(set(stand))
    names = sorted({place.datacenter for place in rack_names})
    racks = {place: index for index, place in enumerate(rack_names)}
    datacenters = {name: index for index, name in enumerate(names)}
    return Ring(
        tokens=tokens,
        owners=owners,
        node_ids=node_ids,
        racks=np.array([racks[place] for place in stand], dtype=np.int32),
        datacenters=np.array([datacenters[place.datacenter] for place in stand], dtype=np.int32),
        datacenter_names=tuple(names),
    )


def starts_of(tokens: Tokens) -> Tokens:
    """Starts of the ranges that sorted tokens cut the ring into: `MIN`, then every token that is not `MIN` itself."""
    if len(tokens) == 0 or tokens[0] == MIN_TOKEN:
        return tokens
    return np.concatenate([np.array([MIN_TOKEN], dtype=np.int64), tokens])


def ends_of(starts: Tokens) -> Tokens:
    """Ends of the ranges with these starts: each one where the next range starts, the last one `MIN`, the top."""
    return np.concatenate([starts[1:], starts[:1]])


def range_of(starts: Tokens, token: int) -> int:
    """Index of the range that holds `token`. `MIN` itself lies in the last range, whose end it is."""
    if token == MIN_TOKEN:
        return len(starts) - 1
    return int(np.searchsorted(starts, token, side="left")) - 1


def missing_from(tokens: Tokens, known: Tokens) -> Tokens:
    """Those of `tokens` that are not among `known`; both ascending, and so is the result."""
    if not len(known):
        return tokens
    at = np.minimum(known.searchsorted(tokens), len(known) - 1)
    return tokens[known[at] != tokens]


def with_starts(starts: Tokens, more: Tokens) -> Tokens:
    """Starts of the cover that more starts, none of them there yet, cut finer; all ascending."""
    # Two ascending runs: a stable sort merges them in linear time.
    return np.sort(np.concatenate([starts, more]), kind="stable") if len(more) else starts


def _checked(owned: list[tuple[int, list[int]]]) -> Tokens:
    try:
        return np.array([token for _, values in owned for token in values], dtype=np.int64)
    except OverflowError as error:
        node, wrong = next(
            (node, token) for node, values in owned for token in values if not MIN_TOKEN <= token <= MAX_TOKEN
        )
        raise InvalidRequest(
            f"token {wrong} of node {node} is no signed 64-bit number", hint="Choose one from -2^63 to 2^63-1"
        ) from error
