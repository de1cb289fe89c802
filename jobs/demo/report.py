"""The document of a demo: what was checked, what happened, how fast. `--output json` prints exactly this."""

from __future__ import annotations

import msgspec
from epochlake.jobs.demo.checks import Check
from epochlake.jobs.demo.checksum import Checksum
from epochlake.jobs.demo.children import Ended
from epochlake.jobs.demo.story import CoordinatorTotals, Moment, Read, ReadBack, Write
from epochlake.jobs.demo.timeline import Stretch


class Throughput(msgspec.Struct, frozen=True):
    """Rows a second as a pipeline sees them; `stored_bytes` count every replica, `streamed` is the coordinator's."""

    rows_written: int
    write_seconds: float
    rows_written_per_second: int
    stored_bytes: int
    rows_read: int
    read_seconds: float
    rows_read_per_second: int
    epochs: int
    streamed: CoordinatorTotals | None


class DemoReport(msgspec.Struct, frozen=True):
    """All of it. `ok`: every check holds. `root` is where it was, `kept` whether it still is."""

    ok: bool
    seconds: float
    root: str
    kept: bool
    source: Checksum
    checks: tuple[Check, ...]
    timeline: tuple[Stretch, ...]
    nodes: tuple[Moment, ...]
    throughput: Throughput
    writes: tuple[Write, ...]
    reads: tuple[Read, ...]
    read_back: tuple[ReadBack, ...]
    processes: tuple[Ended, ...]


class Failure(msgspec.Struct, frozen=True):
    """The document of a demo that could not be brought to its end."""

    error: str
    root: str
    ok: bool = False
