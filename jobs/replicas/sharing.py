"""Neighbouring ranges share a file while their rows are few.

A write of few rows would make a file of a few rows for each of many ranges, and three copies of each. So a task looks
at its first rows, tells how much a range has, and takes as many neighbouring ranges with the same write replicas
together as are worth a file. Such a file is cut where the ranges part later on; only a split leaves it as it is
(docs/decisions/051-work-without-spark.md). Runs on executors: it imports no Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np
import pyarrow as pa
from epochlake.jobs.replicas.slices import slice_of
from epochlake.jobs.replicas.staging_plan import Routing, StagingPlan
from epochlake.metastore.metadata.placements import highs, index_of
from epochlake.placement.tokens import TOKEN, range_label


def shared(plan: StagingPlan, batches: Iterable[pa.RecordBatch]) -> tuple[Routing, Iterator[pa.RecordBatch]]:
    """The routing to stage a task's rows by, and these rows. Holds the first rows, up to what a shared file may have.

    `batches`: with `_token`, in token order; none of the rows need be in them.
    """
    routing = plan.routing
    if not plan.shared_file_bytes:
        return routing, iter(batches)
    batches = iter(batches)
    first: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            first.append(batch)
            size += batch.nbytes
        if size > plan.shared_file_bytes:
            break
    width = len(routing.lows)
    if size > plan.shared_file_bytes:
        ends = np.array([first[0].column(TOKEN)[0].as_py(), first[-1].column(TOKEN)[-1].as_py()], dtype=np.int64)
        begin, end = index_of(routing.lows, ends).tolist()
        width = plan.shared_file_bytes * (end - begin + 1) // size
    return joined(routing, width, plan.tasks), chain(first, batches)


def joined(routing: Routing, width: int, tasks: int = 1) -> Routing:
    """The routing with up to `width` neighbouring ranges as one, where they have the same replicas and the same task.

    Ranges come together in groups of a power of two, counted from the first one: then writes of a size use the same
    directories. Nothing is joined at the routing's borders. As all tasks of a write join ranges of their own only, no
    two of its files are of windows that meet.
    """
    if width <= 1:
        return routing
    lows = routing.lows
    task = slice_of(lows, tasks)
    group = len(lows) if width >= len(lows) else 1 << width.bit_length() - 1
    parted = np.arange(len(lows)) % group == 0
    parted[1:] |= (routing.route[1:] != routing.route[:-1]) | (task[1:] != task[:-1])
    parted |= np.isin(lows, np.array(routing.borders, dtype=np.int64))
    first = np.flatnonzero(parted)
    last = np.append(first[1:], len(lows)) - 1
    labels = tuple(
        routing.labels[begin] if begin == end else range_label(low, high)
        for begin, end, low, high in zip(
            first.tolist(), last.tolist(), lows[first].tolist(), highs(lows)[last].tolist(), strict=True
        )
    )
    return Routing(lows[first], labels, routing.routes, routing.route[first], borders=routing.borders)
