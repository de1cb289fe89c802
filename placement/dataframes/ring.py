"""Placements of a ring as DataFrames, computed by Spark in parallel over slices of the ring.

Who owns which token is small (some megabytes for a thousand nodes) and goes to every task; what follows
from it is not, and each task computes it for its own slice of the ranges (`slices.py`). The rows are those of the
whole-ring functions, whatever the number of slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
import numpy as np
import pyarrow as pa
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.ring.placements import Assignment, Placements
from epochlake.placement.ring.slices import slice_placements, slices_of
from epochlake.placement.ring.state import Operation
from epochlake.placement.ring.strategies import Replication
from epochlake.placement.ring.tokens import Location, Ring, ring_of
from pyspark.sql import DataFrame

NODE_COLUMNS = ("node_id", "datacenter", "rack")
TOKEN_COLUMNS = ("node_id", "token")
PLACEMENT_DDL = "start_token bigint, end_token bigint, replicas array<int>"
SLICES = 16

_SCHEMA = pa.schema(
    [("start_token", pa.int64()), ("end_token", pa.int64()), ("replicas", pa.list_(pa.int32()))]  # as PLACEMENT_DDL
)


def read_placements(
    nodes: DataFrame,
    tokens: DataFrame,
    replication: Replication,
    operations: Sequence[Operation] = (),
    slices: int = SLICES,
) -> DataFrame:
    """Which nodes serve reads of each range `(start_token, end_token]`: start_token, end_token, replicas.

    - `nodes`: node_id, datacenter, rack. `tokens`: node_id, token; who owns none has no row there.
    - `operations`: those in flight, in the order in which they were prepared; `tokens` are those owned now, without
      them.
    - `slices`: into how many tasks the ring is cut.

    An end of -2^63 is the top of the ring. Replicas are in ring order where no operation has changed them. Raises
    `InvalidRequest` for columns that are missing, and a token with two owners.
    """
    return _placements(nodes, tokens, replication, operations, slices, lambda placements: placements.reads)


def write_placements(
    nodes: DataFrame,
    tokens: DataFrame,
    replication: Replication,
    operations: Sequence[Operation] = (),
    slices: int = SLICES,
) -> DataFrame:
    """Which nodes must get the writes of each range; as `read_placements`."""
    return _placements(nodes, tokens, replication, operations, slices, lambda placements: placements.writes)


def _placements(
    nodes: DataFrame,
    tokens: DataFrame,
    replication: Replication,
    operations: Sequence[Operation],
    slices: int,
    side: Callable[[Placements], Assignment],
) -> DataFrame:
    ring = _ring(nodes, tokens)
    concerned = [_only(operation, replication) for operation in operations if replication in operation.deltas]
    cut = slices_of(ring, slices)

    def place(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                begin, end = cut[number]
                placements, high = slice_placements(ring, replication, begin, end, concerned)
                yield _rows(side(placements), high)

    numbers = tokens.sparkSession.range(0, len(cut), 1, len(cut))
    return numbers.mapInArrow(place, PLACEMENT_DDL)


def _ring(nodes: DataFrame, tokens: DataFrame) -> Ring:
    for frame, columns, name in ((nodes, NODE_COLUMNS, "nodes"), (tokens, TOKEN_COLUMNS, "tokens")):
        missing = [column for column in columns if column not in frame.columns]
        if missing:
            raise InvalidRequest(
                f"placements need the columns {', '.join(columns)} of {name}: {', '.join(missing)} missing, there are "
                f"{', '.join(frame.columns)}."
            )
    standing = nodes.select(*NODE_COLUMNS).toArrow().to_pylist()
    places = {row["node_id"]: Location(row["datacenter"], row["rack"]) for row in standing}
    table = tokens.select(*TOKEN_COLUMNS).toArrow().sort_by("node_id")
    owners, values = (table[column].to_numpy() for column in TOKEN_COLUMNS)
    known, first = np.unique(owners, return_index=True)
    spans = zip(known.tolist(), first, np.append(first, len(values))[1:], strict=True)
    owned = {node: values[begin:end].tolist() for node, begin, end in spans}
    strangers = sorted(owned.keys() - places.keys())
    if strangers:
        raise InvalidRequest(f"nodes {strangers} own tokens but are not among the nodes", hint="Give their places too")
    return ring_of(owned, places)


def _only(operation: Operation, replication: Replication) -> Operation:
    """The operation without what it does to other settings: it goes to every task."""
    return msgspec.structs.replace(operation, deltas={replication: operation.deltas[replication]}, locks={})


def _rows(assignment: Assignment, high: int) -> pa.RecordBatch:
    starts, replicas = assignment.starts, assignment.replicas
    held = replicas >= 0
    offsets = np.concatenate([[0], np.cumsum(held.sum(axis=1))]).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(replicas[held], pa.int32()))
    ends = np.append(starts[1:], np.int64(high))
    return pa.RecordBatch.from_arrays([pa.array(starts), pa.array(ends), lists], schema=_SCHEMA)
