"""The rows of one write, as an engine holds them: fit for their table, and able to be staged."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from epochlake.jobs.gate.batches import Count
from epochlake.jobs.replicas.staging import StagedFile
from epochlake.jobs.replicas.staging_plan import StagingPlan
from epochlake.placement.tokens import Interval


class Rows(Protocol):
    """Rows that have the table's columns with their declared types; of a delete, the key columns count."""

    def stage(self, plan: StagingPlan, *, digested: bool = False) -> list[StagedFile]:
        """Store them in the directories of the write replicas of their ranges; the files, in token order.

        `digested`: add up the digests of the rows of each file. Raises InvalidRequest, and nothing of it will ever be
        visible: see `staging.stage`.
        """
        ...

    def counted(self) -> Count:
        """How many they are, and the sum of their digests."""
        ...

    def within(self, windows: Collection[Interval]) -> Rows:
        """Those with a token in one of the windows, first and last token."""
        ...
