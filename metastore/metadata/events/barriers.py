"""The event that tells of a barrier which did not wait for all that it was to wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec
from epochlake.metastore.metadata.events.base import Event, require
from epochlake.placement.rejections import Code

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata


class RelaxedBarrier(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The barrier of `what` (a tablet's stage, an operation's step) was to be passed at `level` and was at `passed_at`.

    `missing` says what had not acknowledged it, and why.
    """

    what: str
    level: str
    passed_at: str
    missing: str = ""


class RelaxBarriers(Event, frozen=True):
    """Some barriers have waited for `barrier_timeout_seconds` and relax, never below what QUORUM needs.

    It changes nothing but the history: what follows it may be unsafe for requests that count on the level asked for,
    such as LOCAL_QUORUM in a datacenter that did not answer.
    """

    during_upgrade: ClassVar[bool] = True

    barriers: tuple[RelaxedBarrier, ...]

    def check(self, metadata: ClusterMetadata) -> None:
        require(bool(self.barriers), Code.NOTHING_TO_DO, "no barrier is named that would relax")

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        return metadata

    def summary(self) -> str:
        first = self.barriers[0]
        more = f" (and {len(self.barriers) - 1} more)" if len(self.barriers) > 1 else ""
        return f"the barrier of {first.what} relaxes from {first.level} to {first.passed_at}: {first.missing}{more}"
