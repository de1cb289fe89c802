"""A ring as data: ranges of tokens and the nodes that serve each, of a cluster at an epoch or of a what-if."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.placements import RingPlacements, TablePlacements
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.tokens import MIN_TOKEN
from numpy.typing import NDArray

TURN = 2.0**64


class Arcs(msgspec.Struct, frozen=True, eq=False):
    """Ranges of tokens in their order, and who is there.

    `lows` are first tokens (n). `reads` and `writes` are rows of `nodes` (n, width), padded with -1. `groups` is where
    each node stands: its datacenter and rack.
    """

    title: str
    lows: NDArray[np.int64]
    reads: NDArray[np.int64]
    writes: NDArray[np.int64]
    nodes: tuple[str, ...]
    groups: tuple[str, ...]

    @property
    def lengths(self) -> NDArray[np.float64]:
        """The share of all tokens that each range has."""
        starts = self.lows.astype(np.float64)
        return np.diff(np.append(starts, 2.0**63)) / TURN

    def sampled(self, count: int) -> Arcs:
        """At most so many arcs: then they are equal, and each is what its middle is."""
        if len(self.lows) <= count:
            return self
        step = 2**64 // count
        lows = np.array([MIN_TOKEN + number * step for number in range(count)], dtype=np.int64)
        rows = np.searchsorted(self.lows, lows + np.int64(step // 2), side="right") - 1
        return msgspec.structs.replace(self, lows=lows, reads=self.reads[rows], writes=self.writes[rows])


def arcs_of(metadata: ClusterMetadata, name: str) -> Arcs:
    """The ranges of a keyspace on the ring, or of a table. Raises Rejected for a name that there is not, and
    InvalidRequest for a keyspace with tablets: each of its tables is placed by itself."""
    placements, what = _placements(metadata, name)
    nodes = sorted(metadata.directory.nodes)
    row_of = {metadata.directory.nodes[key].name: row for row, key in enumerate(nodes)}
    of_volume = {
        volume.volume_id: row_of[node.name] for node in metadata.directory.nodes.values() for volume in node.volumes
    }
    if isinstance(placements, RingPlacements):  # its ranges may be hundreds of thousands
        rows = np.full(max(of_volume, default=0) + 2, -1, dtype=np.int64)  # padding is the last one
        rows[list(of_volume)] = list(of_volume.values())
        reads, writes = rows[placements.read_volumes], rows[placements.write_volumes]
    else:
        found = [placements.placement(index) for index in range(len(placements.lows))]
        reads = _padded([[of_volume[volume] for volume in one.reads] for one in found])
        writes = _padded([[of_volume[volume] for volume in one.writes] for one in found])
    described = [metadata.directory.nodes[key] for key in nodes]
    return Arcs(
        title=f"{what} at epoch {metadata.epoch}",
        lows=np.asarray(placements.lows, dtype=np.int64),
        reads=reads,
        writes=writes,
        nodes=tuple(node.name for node in described),
        groups=tuple(f"{node.datacenter}/{node.rack}" for node in described),
    )


def arcs_of_answer(answer: Mapping[str, Any], keyspace: str, step: int | None = None) -> Arcs:
    """The ranges of a keyspace of a what-if (`placement/what_if/simulate.py`) after a step, None for the last one.

    Step -1 is the ring before any. Raises InvalidRequest for what the document does not have.
    """
    if "nodes" not in answer:
        raise InvalidRequest(
            "what was handed over is no answer of a what-if", hint="It has nodes and keyspaces, or steps"
        )
    described = {node["id"]: node for node in answer["nodes"]}
    names = [str(node.get("address") or node.get("name") or key) for key, node in described.items()]
    row_of = {key: row for row, key in enumerate(described)}
    placements, when = _answered(answer, keyspace, step)
    reads = placements["reads"]
    writes = reads if placements["writes"] == "same" else placements["writes"]
    lows = sorted({MIN_TOKEN, *(_low(start) for start, _, _ in (*reads, *writes))})
    return Arcs(
        title=f"keyspace {keyspace}{when}",
        lows=np.array(lows, dtype=np.int64),
        reads=_listed(lows, reads, row_of),
        writes=_listed(lows, writes, row_of),
        nodes=tuple(names),
        groups=tuple(f"{node['dc']}/{node['rack']}" for node in described.values()),
    )


def _answered(answer: Mapping[str, Any], keyspace: str, step: int | None) -> tuple[Mapping[str, Any], str]:
    if "steps" not in answer:
        for found in answer.get("keyspaces", []):
            if found.get("name") == keyspace and "ranges" in found:
                return {"reads": found["ranges"], "writes": "same"}, ""
        raise InvalidRequest(f"the what-if has no ranges of a keyspace {keyspace!r}", hint="Hand over what it answered")
    stages = [
        *([answer["start"]] if "start" in answer else []),
        *(one for one in answer["steps"] if "placements" in one),
    ]
    number = len(stages) - 1 if step is None else step + 1
    if not 0 <= number < len(stages):
        raise InvalidRequest(f"the what-if has no step {step}", hint=f"Name one from -1 to {len(stages) - 2}")
    if keyspace not in stages[number]["placements"]:
        raise InvalidRequest(
            f"the what-if has no keyspace {keyspace!r}", hint=f"There are {', '.join(stages[number]['placements'])}"
        )
    when = "before all steps" if number == 0 else f"after step {number} of {len(stages) - 1}"
    return stages[number]["placements"][keyspace], f", {when}"


def _placements(metadata: ClusterMetadata, name: str) -> tuple[TablePlacements, str]:
    if "." in name:
        table = metadata.table(name)
        return metadata.placements(table.table_id), f"table {name}"
    if metadata.keyspace(name).placement != "ring":
        raise InvalidRequest(
            f"the tables of keyspace {name!r} have tablets, and each is placed by itself", hint="Name one of them"
        )
    return metadata.ring_placements(name), f"keyspace {name}"


def _low(start: int) -> int:
    """The first token of a range that begins after `start`, as ranges of rings do."""
    return MIN_TOKEN if start == MIN_TOKEN else start + 1


def _listed(lows: list[int], ranges: list[list[Any]], row_of: Mapping[int, int]) -> NDArray[np.int64]:
    """Who is in each of the arcs that begin at `lows`: the ranges are finer or coarser, and one wraps around."""
    ascending = sorted(ranges, key=lambda one: _low(one[0]))
    starts = np.array([_low(one[0]) for one in ascending], dtype=np.int64)
    rows = np.searchsorted(starts, np.array(lows, dtype=np.int64), side="right") - 1
    # Row -1 is the last one: what lies before the first start belongs to the range that wraps around.
    return _padded([[row_of[node] for node in ascending[row][2]] for row in rows.tolist()])


def _padded(rows: list[list[int]]) -> NDArray[np.int64]:
    width = max(map(len, rows), default=0)
    return np.array([[*row, *[-1] * (width - len(row))] for row in rows], dtype=np.int64).reshape(len(rows), width)
