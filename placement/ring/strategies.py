"""Replication strategies for a whole ring at once.

A strategy asks for the *first k distinct* nodes, or racks, met when walking the ring from a token. For
all tokens together that is computed by doubling: what the window of 2w tokens shows is what its first half shows,
then what is new in its second half. Most tokens are done after a few rounds, and no ring needs more than log2(tokens)
of them.

Rules: those of Apache Cassandra as the oracle cases show them (`tests/data/oracles`), see `NetworkTopologyStrategy`
below.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec
import numpy as np
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.ring.tokens import MIN_TOKEN, NodeIds, Ring
from numpy.typing import NDArray

SIMPLE = "SimpleStrategy"
NETWORK_TOPOLOGY = "NetworkTopologyStrategy"
SIMPLE_OPTION = "replication_factor"

Offsets = NDArray[np.int32]
_NEVER = np.iinfo(np.int32).max


class Replication(msgspec.Struct, frozen=True, order=True):
    """A replication setting: what decides a placement, shared by all keyspaces that have it.

    `factors`: pairs of datacenter and replicas (NetworkTopologyStrategy), or `(("replication_factor", n),)`
    (SimpleStrategy). `changing` names the keyspace whose replication is being changed: it has a placement of its own
    then.
    """

    strategy: str
    factors: tuple[tuple[str, int], ...]
    changing: str = ""

    def factor(self, datacenter: str) -> int:
        """Replicas wanted in a datacenter; for SimpleStrategy, in the whole ring whatever the datacenter."""
        key = SIMPLE_OPTION if self.strategy == SIMPLE else datacenter
        return dict(self.factors).get(key, 0)

    @property
    def total(self) -> int:
        """Replicas wanted in all datacenters together."""
        return sum(factor for _, factor in self.factors)


def replication_of(strategy: str, options: dict[str, int]) -> Replication:
    """A checked replication setting; raises `InvalidRequest` on an unknown strategy, option or factor."""
    if strategy not in (SIMPLE, NETWORK_TOPOLOGY):
        raise InvalidRequest(f"strategy {strategy!r} is not known", hint=f"Use {SIMPLE} or {NETWORK_TOPOLOGY}")
    if strategy == SIMPLE and set(options) != {SIMPLE_OPTION}:
        raise InvalidRequest(f"{SIMPLE} takes {SIMPLE_OPTION!r} and nothing else, not {sorted(options)}.")
    for name, factor in options.items():
        if factor < 0:
            raise InvalidRequest(f"{strategy}: {name!r} asks for {factor} replicas", hint="Give 0 or more")
    return Replication(strategy, tuple(sorted(options.items())))


def natural_replicas(ring: Ring, replication: Replication) -> NodeIds:
    """Replicas of every range of the ring: node ids (ranges, widest), in ring order, padded with -1.

    Row i belongs to range i of `ring.starts`. The order is that in which walking the ring from the range's end meets
    the replicas, over all datacenters.
    """
    if len(ring.tokens) == 0:
        return np.empty((0, 0), dtype=np.int32)
    return _by_range(ring, walked_positions(ring, replication))


def walked_positions(ring: Ring, replication: Replication) -> Offsets:
    """Where a walk from each token meets its replicas: positions (tokens, widest), which count on beyond the end of the
    ring, turn after turn."""
    if replication.strategy == SIMPLE:
        return _simple(ring, replication.factor(""))
    return _network_topology(ring, replication)


def first_distinct(keys: NDArray[np.int32], count: int) -> Offsets:
    """For each position of a circle, how far ahead the first `count` distinct keys stand: (positions, count),
    ascending.

    `count` must not exceed the number of distinct keys. Time is O(positions · count² · log(longest walk)).
    """
    size = len(keys)
    seen = np.full((count, size), -1, dtype=np.int32)
    offsets = np.zeros((count, size), dtype=np.int32)
    if count < 2:
        seen[:count] = keys
        return offsets.T
    # Each position knows the distinct keys of a window that starts there; `reach` is the window's length. The first
    # window ends with the first key that differs, so that long runs of one rack cost nothing.
    step = _to_next_other(keys)
    seen[0], seen[1], offsets[1] = keys, keys[_wrapped(np.arange(size) + step, size)], step
    filled, reach = np.full(size, 2, dtype=np.int32), step + 1
    rows = np.arange(size if count > 2 else 0)
    while len(rows):
        ahead = _wrapped(rows + reach[rows], size)
        # In the first round all rows are open, and need no copies: what a row knows already never changes.
        everywhere = len(rows) == size
        mine = seen if everywhere else seen[:, rows]
        mine_at = offsets if everywhere else offsets[:, rows]
        mine_filled = filled if everywhere else filled[rows]
        for column in range(int(filled[ahead].max())):
            key = seen[column][ahead]
            new = (key >= 0) & (mine_filled < count)
            for other in mine:
                new &= other != key
            place = np.flatnonzero(new)
            columns = mine_filled[place]
            mine[columns, place] = key[place]
            mine_at[columns, place] = offsets[column][ahead[place]] + reach[rows[place]]
            mine_filled[place] += 1
        reach[rows] = np.minimum(reach[rows] + reach[ahead], size)
        if not everywhere:
            seen[:, rows], offsets[:, rows], filled[rows] = mine, mine_at, mine_filled
        rows = rows[mine_filled < count]
    return offsets.T


def _wrapped(positions: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Positions on a circle of that size; none is more than a turn beyond it."""
    return np.where(positions >= size, positions - size, positions)


def _to_next_other(keys: NDArray[np.int32]) -> Offsets:
    """For each position of a circle with two keys or more, how far ahead the first different key stands."""
    last_of_run = np.flatnonzero(keys != np.roll(keys, -1)).astype(np.int32)
    ends = np.append(last_of_run, last_of_run[0] + np.int32(len(keys)))
    lengths = np.diff(np.concatenate([[-1], last_of_run, [len(keys) - 1]]))
    return np.repeat(ends, lengths) - np.arange(len(keys), dtype=np.int32) + np.int32(1)


def _simple(ring: Ring, factor: int) -> Offsets:
    """The first `factor` distinct nodes from each token, whatever their datacenter or rack: all of one rack."""
    offsets = chosen_before(Circle(ring.owners, ring.node_ids, np.zeros_like(ring.racks), factor))
    return np.arange(len(ring.tokens), dtype=np.int32)[:, None] + offsets


def _network_topology(ring: Ring, replication: Replication) -> Offsets:
    """Each datacenter chooses by itself; all choices are then put into the order in which a walk meets them.

    A position counts on beyond the end of the ring, so that a walk's positions only grow.
    """
    size = len(ring.tokens)
    choices = []
    for index, name in enumerate(ring.datacenter_names):
        factor = replication.factor(name)
        if factor == 0:
            continue
        positions = np.flatnonzero(ring.datacenters[ring.owners] == index).astype(np.int32)
        ahead = np.arange(len(positions), dtype=np.int32)[:, None]
        ahead = ahead + chosen_before(Circle(ring.owners[positions], ring.node_ids, ring.racks, factor))
        walked = np.concatenate([positions, positions + np.int32(size)])[ahead]
        # A walk from any token of the ring meets this datacenter at its first token at or after that one; the walks
        # from beyond its last token meet the first one a turn later.
        walked = np.concatenate([walked, walked[:1] + np.int32(size)])
        choices.append(np.repeat(walked, np.diff(positions, prepend=-1, append=size - 1), axis=0))
    if not choices:
        return np.empty((size, 0), dtype=np.int32)
    ordered = np.concatenate(choices, axis=1)
    if len(choices) > 1:
        ordered.sort(axis=1)
    return ordered


class Circle:
    """The tokens of one datacenter as a key: equal where the same nodes of the same racks own them in the same
    order."""

    def __init__(self, owners: NodeIds, node_ids: NodeIds, racks: NodeIds, factor: int) -> None:
        self.owners = owners
        self.racks = racks
        self.factor = factor
        self._key = (node_ids[owners].tobytes(), racks[owners].tobytes(), factor)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Circle) and self._key == other._key


@lru_cache(maxsize=32)
def chosen_before(circle: Circle) -> Offsets:
    """What `_one_datacenter` chooses, remembered for the last circles that were asked for.

    Planning asks again and again: for the ring as it is and as it will be, which differ in one datacenter, and for
    each set of operations in flight. An entry takes some 2 MB where a datacenter has 85,000 tokens and RF 3.
    """
    offsets = _one_datacenter(circle.owners, circle.racks, circle.factor)
    offsets.setflags(write=False)
    return offsets


def _one_datacenter(owners: NodeIds, racks: NodeIds, factor: int) -> Offsets:
    """Offsets of the replicas that one datacenter chooses from each of its tokens, ascending.

    At most min(factor, nodes) replicas. The first node met of each rack is taken; a node of a rack already met is
    taken at once while fewer than `factor - racks` such repeats were taken, even before racks not yet met. A node
    that was passed over stays passed over, so only first meetings of nodes matter.
    """
    nodes = int(np.count_nonzero(np.bincount(owners)))
    rack_count = int(np.count_nonzero(np.bincount(racks[owners])))
    if factor >= nodes or rack_count == 1:
        return first_distinct(owners, min(factor, nodes))
    first_of_rack = first_distinct(racks[owners], min(factor, rack_count))
    if factor <= rack_count:
        return first_of_rack
    # Among the first `factor` distinct nodes at most `rack_count` are the first of their rack: enough repeats are
    # there.
    distinct = first_distinct(owners, factor)
    repeats = ~(distinct[:, :, None] == first_of_rack[:, None, :]).any(axis=2)
    taken = repeats & (np.cumsum(repeats, axis=1) <= factor - rack_count)
    both = np.concatenate([first_of_rack, np.where(taken, distinct, _NEVER)], axis=1)
    return np.sort(both, axis=1)[:, :factor]


def _by_range(ring: Ring, walked: Offsets) -> NodeIds:
    """From positions by token to nodes by range: the range that ends at the top belongs to the first token's owner.

    Positions are less than three turns: one to the datacenter's first token, one for its walk, one for the token's
    own.
    """
    size, width = walked.shape
    holders = np.tile(ring.node_ids[ring.owners], 3)
    if ring.tokens[0] == MIN_TOKEN:
        return np.roll(holders[walked], -1, axis=0)
    replicas = np.empty((size + 1, width), dtype=np.int32)
    np.take(holders, walked, out=replicas[:size], mode="clip")
    replicas[size] = replicas[0]
    return replicas
