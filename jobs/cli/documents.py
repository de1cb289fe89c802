"""The documents of the command line: what `--output json` prints. Keys are stable; docs/cli.md is made from them."""

from __future__ import annotations

from typing import Any

import msgspec
from epochlake.jobs.views.movements import RingPlan
from epochlake.metastore.metadata.differences import Difference


class Changed(msgspec.Struct, frozen=True):
    """A change that is in the log. `already`: an earlier try with this request id had committed it.

    `details` are particular to the command (the id of a new table, volumes that were left out, …).
    """

    epoch: int
    request_id: str
    already: bool
    what: str
    details: dict[str, Any] = {}


class Planned(msgspec.Struct, frozen=True):
    """What a change would do, with `--dry-run`: the event as the log would have it, and what differs after it.

    `ring` is what a topology request would do to the ring, null where no keyspace is on it. `already` is the epoch that
    was committed before under the request id that was given, null for none: nothing would be committed again.
    """

    dry_run: bool
    on_epoch: int
    event: str
    payload: Any
    what: str
    changes: tuple[Difference, ...]
    details: dict[str, Any] = {}
    ring: RingPlan | None = None
    already: int | None = None


class LoadedOf(msgspec.Struct, frozen=True):
    """A write of some rows of a file, in a batch of this name."""

    file: str
    batch: str | None
    rows: int
    epoch: int
    already: bool


class Loaded(msgspec.Struct, frozen=True):
    """Rows of files that were written, or deleted by their keys, at a consistency level.

    `epoch`: at which its acknowledgements were judged. `already`: the batch of this name had reached the level before
    the call.
    `missing`: what each replica said that has not acknowledged although it should have; the level was reached without.
    `warnings`: what does no harm to this write and should not stay so. `casts`: columns that were stored as another
    type; `filled`: columns that a file lacks; `defaults`: of those the ones that have a default, with its text, while
    others are null; `parts`: each write, with the file that its rows are from.
    """

    table: str
    rows: int
    files: int
    bytes: int
    epoch: int
    consistency: str
    deleted: bool
    already: bool
    missing: dict[str, str]
    warnings: tuple[str, ...] = ()
    casts: dict[str, str] = {}
    filled: tuple[str, ...] = ()
    parts: tuple[LoadedOf, ...] = ()
    defaults: dict[str, str] = {}


class LogEntry(msgspec.Struct, frozen=True):
    """An entry in full, with its event, its place in the chain, and what it changed."""

    epoch: int
    event: str
    summary: str
    author: str
    reason: str
    committed_at: str
    request_id: str
    state_id: str
    previous_state_id: str
    incarnation: int
    format: int
    previous_hash: str
    hash: str
    attachment_bytes: int
    payload: Any
    changes: tuple[Difference, ...]


class FindingRow(msgspec.Struct, frozen=True):
    """Something that does not hold; `where` is an epoch or a replica."""

    where: str
    code: str
    message: str


class Verified(msgspec.Struct, frozen=True):
    """What was verified. `quorums`: also whether, at every epoch, each read quorum met each write quorum.

    With `--tablets` also replica tables: violations of INV-TABL-1, rows on a replica that its volume does not own,
    count as findings.

    Replicas that differ, or that were unreachable, are `notices`: repair is for them, nothing is wrong. So are rows
    that a request in flight has moved away from a replica, and takes away there before it ends.
    """

    holds: bool
    last_epoch: int
    entries: int
    events: int
    snapshots: int
    replicas: int
    quorums: bool
    findings: tuple[FindingRow, ...]
    notices: tuple[FindingRow, ...]


class Compacted(msgspec.Struct, frozen=True):
    """The compaction of the log: how many small files became how many. No entry was changed."""

    files_removed: int
    files_added: int


class Healed(msgspec.Struct, frozen=True):
    """Entries that were stored more than once, and are stored once now (with `dry_run`: would be).

    `copies`: how many too many; `epochs`: of which ranges, first and last. No entry was lost or changed. `mended`: what
    became (would become) of torn and missing commits of the log, a sentence for each.
    """

    dry_run: bool
    copies: int
    epochs: tuple[tuple[int, int], ...]
    files_removed: int
    files_added: int
    mended: tuple[str, ...] = ()


class TabletRow(msgspec.Struct, frozen=True):
    """Where a tablet is, or a range of the ring. Replicas are `node/volume`: those that are read, and are written.

    `stage` is that of its transition; on the ring, the last step of the operation that changes the range.
    """

    tablet: int
    label: str
    token_start: int
    token_end: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    stage: str | None
    operation: str | None = None


class PlacementShown(msgspec.Struct, frozen=True):
    """Where the tablets of a table are, on the ring its ranges; `rows` may be fewer than `tablets` (`--limit`)."""

    table: str
    epoch: int
    placement: str
    tablets: int
    rows: tuple[TabletRow, ...]


class PipelineRow(msgspec.Struct, frozen=True):
    """A live pipeline, by its lease; `started_at` ISO 8601, by the clock of `host`."""

    name: str
    pipeline_id: str
    epoch: int
    tables: tuple[str, ...]
    started_at: str
    host: str
    pid: int


class ConfigurationRow(msgspec.Struct, frozen=True):
    """A configuration key with its value here. Values of storage options are never shown."""

    section: str
    key: str
    value: Any
    expected: str
    description: str


class ErrorBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """`type` is the kind of error, `code` that of a rejection, `request_id` the one to submit again with.

    `message` says all of it; `hint` is the part that says what to do.
    """

    type: str
    message: str
    exit_code: int
    code: str | None = None
    request_id: str | None = None
    hint: str | None = None


class PreparedServer(msgspec.Struct, frozen=True):
    """A ZooKeeper server that can be started: as ZooKeeper writes it, its directory, and the command that starts it."""

    server: str
    directory: str
    command: str


class ErrorDocument(msgspec.Struct, frozen=True):
    """What went wrong; on stderr, stdout stays empty."""

    error: ErrorBody
