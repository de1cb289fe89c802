"""What a pipeline says when it cannot keep its promise. It never reports a success on a guess."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from epochlake.placement.errors import EpochlakeError

SHOWN = 8
"""Names of ranges in a message; the rest is counted."""


class Ranges(msgspec.Struct, frozen=True):
    """Ranges of a table for people: `kind` (tablet, or range on the ring), their numbers, and what they are called."""

    kind: str
    numbers: tuple[int, ...]
    names: tuple[str, ...]

    def __str__(self) -> str:
        more = f" and {len(self.names) - SHOWN} more" if len(self.names) > SHOWN else ""
        return f"{len(self.names)} {self.kind}(s) ({', '.join(self.names[:SHOWN])}{more})"


class ConsistencyNotReached(EpochlakeError):
    """The consistency level was not reached for some tablets or ranges. What landed stays; retrying the same batch is
    safe.

    `ranges` are those, by the epoch `epoch`, at which they were last judged; `tablets` their numbers; `replicas` what
    each volume that is missing said.
    """

    exit_code = 75

    def __init__(self, asked: str, level: str, epoch: int, ranges: Ranges, replicas: Mapping[str, str]) -> None:
        said = "; ".join(f"{volume}: {reason}" for volume, reason in replicas.items()) or "placement kept moving"
        super().__init__(
            f"{asked} did not reach {level} at epoch {epoch} for {ranges}. "
            f"Replicas that are missing: {said}. Bring them back, or replace their node, and try again"
        )
        self.level = level
        self.epoch = epoch
        self.ranges = ranges
        self.tablets = ranges.numbers
        self.replicas = dict(replicas)
