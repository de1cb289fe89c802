"""What a task of staging has to know: where the rows of each range go, and how they are written."""

from __future__ import annotations

import msgspec
import numpy as np
from epochlake.jobs.replicas.generated_rows import RowGeneration
from epochlake.jobs.replicas.replica import ReplicaAddress
from epochlake.jobs.replicas.row_checks import RowChecks
from epochlake.metastore.metadata.model import Table
from epochlake.metastore.storage.storage import Storage
from numpy.typing import NDArray


class Routing(msgspec.Struct, frozen=True, eq=False):
    """Where rows go: range i begins at token `lows[i]`, its files are labelled `labels[i]`, and `routes[route[i]]` are
    its write replicas. Ranges with the same replicas share a route: there are far fewer of these.

    `borders`: first tokens of ranges that share no file with the one before.
    """

    lows: NDArray[np.int64]
    labels: tuple[str, ...]
    routes: tuple[tuple[ReplicaAddress, ...], ...]
    route: NDArray[np.int32]
    borders: tuple[int, ...] = ()

    def replicas(self, index: int) -> tuple[ReplicaAddress, ...]:
        return self.routes[self.route[index]]


class StagingPlan(msgspec.Struct, frozen=True, eq=False):
    """All that a task needs to know; travels to the executors.

    `tasks`: how many share the ranges, by slices of the token space. `shared_file_bytes`: neighbouring ranges share a
    file of up to so many bytes in memory; 0: none do. `checks`: what rows are judged by, None for nothing.
    `generation`: how generated columns are computed, None where there are none.
    `kept_at`: a directory at the root that gets a copy of each file as well; empty: none does.
    """

    table: Table
    routing: Routing
    written_at: int
    deleted: bool
    target_file_bytes: int
    storage: Storage
    tasks: int = 1
    shared_file_bytes: int = 0
    checks: RowChecks | None = None
    generation: RowGeneration | None = None
    kept_at: str = ""
