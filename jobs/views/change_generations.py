"""Generations of change streams as documents: which streams there are since when, each a range of tokens."""

from __future__ import annotations

from itertools import zip_longest

import msgspec
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.placement.rejections import Code
from epochlake.placement.showing import Listing, Shown


class TokenRange(Shown, msgspec.Struct, frozen=True):
    """A stream: its tokens from `first` to `last`, both included."""

    stream: int
    first: int
    last: int


class GenerationStatus(Shown, msgspec.Struct, frozen=True):
    """A generation of the streams of a table, committed in `epoch`, `at` seconds since 1970.

    Its changes come after the position `begins`, up to the position `ends`, which is null for the newest one. `begins`
    is null while it is not known yet. `streams`: the ranges, which have each token once.
    """

    table: str
    generation: int
    epoch: int
    at: float
    begins: int | None
    ends: int | None
    streams: tuple[TokenRange, ...]


def generations_of(metadata: ClusterMetadata, name: str) -> Listing[GenerationStatus]:
    """The generations of which changes are kept, or may be, the oldest first. Raises Rejected."""
    table = metadata.table(name)
    stream = metadata.change_streams.get(table.table_id)
    if stream is None:
        raise Rejected(
            Code.NO_CHANGES, f"the changes of {name} are not kept", hint=f"Run `epochlake changes keep {name}` first"
        )
    known = stream.known_generations
    return Listing(
        GenerationStatus(
            name,
            one.number,
            one.epoch,
            one.at / 1_000_000,
            one.position,
            None if later is None else later.position,
            tuple(TokenRange(number, low, high) for number, (low, high) in enumerate(one.ranges)),
        )
        for one, later in zip_longest(known, known[1:])
    )
