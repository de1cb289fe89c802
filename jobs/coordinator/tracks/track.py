"""What a track of the coordinator is: one kind of work that it moves forward, a round at a time.

Tracks share nothing but the metadata, so each can be understood by itself, one that is stuck or was
overtaken never holds up the others, and a new kind of work is a new track in the coordinator's list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from epochlake.metastore.metadata.cluster import ClusterMetadata


class Track(Protocol):
    """One kind of work. `blocked` says why what is open could not go on; the loop empties it before each round."""

    blocked: list[str]

    def advance(self, metadata: ClusterMetadata) -> bool:
        """Do what can be done now on the newest metadata; whether anything was committed.

        Raises `Rejected` when what was planned does not hold any more: the other tracks go on, this one looks again in
        the next round.
        """

    def idle(self, metadata: ClusterMetadata) -> bool:
        """Whether nothing is left to do; what could be done but need not be (balancing) does not count."""


@runtime_checkable
class WorksAside(Protocol):
    """A track whose work goes on in a thread of its own, while rounds go on."""

    blocked: list[str]

    @property
    def working(self) -> bool:
        """Whether something goes on: a run until idle does not give up meanwhile."""

    def settle(self) -> None:
        """Take what has come of it, and begin nothing. `blocked` says what still goes on."""

    def stand_down(self) -> None:
        """The coordinator leads no more: let what goes on end soon. Does not wait."""


@dataclass
class Tally:
    """What a coordinator has done since it was started, for its report."""

    tablets_moved: int = 0
    tablets_reverted: int = 0
    bytes_streamed: int = 0
    requests_finished: int = 0
