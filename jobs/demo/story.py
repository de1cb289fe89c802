"""What has happened in a demo, as data: batches, reads, moments, processes; the JSON document is made of it."""

from __future__ import annotations

import msgspec
from epochlake.jobs.demo.checksum import Checksum
from epochlake.jobs.demo.children import Ended


class Write(msgspec.Struct, frozen=True):
    """A batch that was acknowledged. Planned at `planned_epoch`, judged at `epoch`, after so many `rounds`.

    One of several parts was planned first, judged last, and in the worst case after so many rounds. `started` and
    `ended` in seconds since 1970. `missing`: what the replicas said that did not acknowledge.
    """

    batch: int
    name: str
    rows: int
    files: int
    bytes: int
    planned_epoch: int
    epoch: int
    rounds: int
    missing: dict[str, str]
    started: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.started


class Read(msgspec.Struct, frozen=True):
    """A count at QUORUM while all this went on; `expected` is what was acknowledged when it began."""

    rows: int
    expected: int
    epoch: int
    started: float
    ended: float


class ReadBack(msgspec.Struct, frozen=True):
    """The whole table read back at `level`: its checksum, or why it could not be had."""

    level: str
    checksum: Checksum | None
    error: str | None
    seconds: float


class Deed(msgspec.Struct, frozen=True):
    """Something that was done to the cluster from outside."""

    at: float
    what: str
    node: str


class Holding(msgspec.Struct, frozen=True):
    """What a node holds: tablets and rows of the table (superseded rows included), bytes of its files."""

    node: str
    rack: str
    state: str
    tablets: int
    rows: int
    bytes: int


class Moment(msgspec.Struct, frozen=True):
    """What the nodes hold at an epoch. `lost`: their storage is gone, nothing is known of them."""

    name: str
    epoch: int
    holdings: tuple[Holding, ...]
    lost: tuple[str, ...] = ()


class CoordinatorTotals(msgspec.Struct, frozen=True):
    """What the coordinator says that it has done."""

    tablets_moved: int
    tablets_reverted: int
    bytes_streamed: int
    requests_finished: int


class Story(msgspec.Struct):
    """Everything that has happened so far; grows while the demo goes on."""

    started: float
    source: Checksum
    batches: int
    tablets: int
    replication: int
    writes: list[Write] = []
    reads: list[Read] = []
    deeds: list[Deed] = []
    moments: list[Moment] = []
    processes: list[Ended] = []
    streamed: CoordinatorTotals | None = None
    ended: float = 0.0

    @property
    def acknowledged(self) -> int:
        return sum(write.rows for write in self.writes)
