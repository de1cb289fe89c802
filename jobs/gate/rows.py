"""The rows of one write, as an engine holds them: fit for their table, and able to be staged."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from epochlake.jobs.gate.batches import Count
from epochlake.jobs.gate.row_digests import RowDigest
from epochlake.jobs.replicas.staging import Announce, StagedFile
from epochlake.jobs.replicas.staging_plan import StagingPlan
from epochlake.placement.tokens import Interval


class Rows(Protocol):
    """Rows that have the table's columns with their declared types; of a delete, the key columns count."""

    def stage(
        self, plan: StagingPlan, *, digest: RowDigest | None = None, announce: Announce | None = None
    ) -> list[StagedFile]:
        """Store them in the directories of the write replicas of their ranges; the files, in token order.

        `digest`: add up the digests of the rows of each file. `announce` is told of the files while the disks sync
        them, by an engine that stages in this process; others leave it. Raises InvalidRequest, and nothing of it will
        ever be visible: see `staging.stage`.
        """
        ...

    def counted(self, digest: RowDigest) -> Count:
        """How many they are, and the sum of their digests."""
        ...

    def within(self, windows: Collection[Interval]) -> Rows:
        """Those with a token in one of the windows, first and last token."""
        ...
