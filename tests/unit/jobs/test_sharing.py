"""Neighbouring ranges share a file while their rows are few, and never across a border."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from epochlake.jobs.replicas.sharing import joined, shared
from epochlake.jobs.replicas.slices import slice_of
from epochlake.jobs.replicas.staging_plan import Routing, StagingPlan
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN, TOKEN, range_label

from tests.support.replicas import TABLE, tablets_on
from tests.support.storages import STORAGE

LOWS = np.array([MIN_TOKEN, *range(0, 70, 10)], dtype=np.int64)
ROUTE = np.array([0, 0, 0, 0, 0, 1, 1, 0], dtype=np.int32)
ROUTING = Routing(LOWS, tuple(f"3-{n}" for n in range(8)), ((), ()), ROUTE)


def test_ranges_come_together_in_powers_of_two_where_their_replicas_are_the_same() -> None:
    assert joined(ROUTING, 8).lows.tolist() == [MIN_TOKEN, 40, 60]
    assert joined(ROUTING, 8).route.tolist() == [0, 1, 0]
    assert joined(ROUTING, 7).lows.tolist() == [MIN_TOKEN, 30, 40, 60]
    assert joined(ROUTING, 3).lows.tolist() == joined(ROUTING, 2).lows.tolist() == [MIN_TOKEN, 10, 30, 40, 50, 60]
    assert joined(ROUTING, 1) is ROUTING


def test_a_range_alone_keeps_its_name_and_nothing_is_joined_at_a_border() -> None:
    assert joined(ROUTING, 2).labels[:3] == (range_label(MIN_TOKEN, 9), range_label(10, 29), "3-4")
    assert joined(ROUTING, 8).labels == (range_label(MIN_TOKEN, 39), range_label(40, 59), "3-7")
    bordered = Routing(LOWS, ROUTING.labels, ROUTING.routes, ROUTE, borders=(10, 12))
    assert joined(bordered, 8).lows.tolist() == [MIN_TOKEN, 10, 40, 60]


@pytest.mark.parametrize("tasks", [1, 3, 4, 7, 64, 200])
def test_a_task_joins_its_own_ranges_only(tasks: int, seed: int) -> None:
    chosen = random.Random(seed)
    lows = np.unique([MIN_TOKEN, *[chosen.randrange(MIN_TOKEN, MAX_TOKEN) >> chosen.randrange(8) for _ in range(100)]])
    routing = Routing(lows, tuple(str(n) for n in range(len(lows))), ((),), np.zeros(len(lows), dtype=np.int32))
    begun = set(joined(routing, len(lows), tasks).lows.tolist())
    own = slice_of(lows, tasks).tolist()
    firsts = [low for low, task, before in zip(lows.tolist(), own, [None, *own], strict=False) if task != before]
    assert begun == set(firsts)


def test_a_task_tells_from_its_first_rows_how_many_ranges_share_a_file(seed: int) -> None:
    """Of rows that are spread evenly each file gets about what it may have; no row is lost or comes twice."""
    chosen = np.random.default_rng(seed)
    for rows in (0, 1, 100, 40_000):
        tokens = np.sort(chosen.integers(MIN_TOKEN, MAX_TOKEN, rows))
        table = pa.table({TOKEN: tokens})
        batches = [table.schema.empty_table().to_batches(), table.to_batches(max_chunksize=1000)]
        plan = StagingPlan(TABLE, tablets_on(64, {}), 1, False, 1 << 20, STORAGE, shared_file_bytes=1 << 16)
        same = Routing(plan.routing.lows, plan.routing.labels, ((),), np.zeros(64, dtype=np.int32))
        routing, given = shared(
            StagingPlan(TABLE, same, 1, False, 1 << 20, STORAGE, shared_file_bytes=1 << 16),
            [batch for some in batches for batch in some],
        )
        assert pa.Table.from_batches(given, table.schema).equals(table)
        # 320,000 bytes are five files of 65,536; groups of eight tablets have 40,000 bytes each.
        assert len(routing.lows) == (8 if rows == 40_000 else 1)
    untouched, _ = shared(StagingPlan(TABLE, same, 1, False, 1 << 20, STORAGE, shared_file_bytes=0), [])
    assert untouched is same
