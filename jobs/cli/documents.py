"""The documents of the command line: what `--output json` prints. Keys are stable; docs/cli.md is made from them."""

from __future__ import annotations

from typing import Any

import msgspec
from epochlake.jobs.views.movements import RingPlan
from epochlake.jobs.views.status import NodeStatus
from epochlake.metastore.metadata.differences import Difference
from epochlake.metastore.metadata.model import Column, CompactionOptions


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

    `epoch`: at which its acknowledgements were judged. `already`: the batch of this name had reached the level before.
    `missing`: what each replica said that has not acknowledged although it should have; the level was reached without.
    `warnings`: what does no harm to this write and should not stay so. `casts`: columns that were stored as another
    type; `filled`: columns that a file lacks, which are null; `parts`: each write, with the file that its rows are
    from.
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


class RequestRow(msgspec.Struct, frozen=True):
    """A topology request: of what kind and about what, and what became of it. `epoch` is the one that changed it last.

    `reason` is why it was asked for, `detail` why it was paused, cancelled or failed. `left_out`: how many older
    requests the list leaves out for its `--limit`, the same in each of its rows.
    """

    request_id: str
    kind: str
    about: str
    state: str
    paused: bool
    reason: str
    detail: str | None
    requested_epoch: int
    started_epoch: int | None
    epoch: int
    left_out: int = 0


class NodeShown(msgspec.Struct, frozen=True):
    """A node in full: how it is, the tokens that it owns, and the open requests that it takes part in."""

    node: NodeStatus
    tokens: tuple[int, ...]
    requests: tuple[RequestRow, ...]
    epoch: int


class KeyspaceRow(msgspec.Struct, frozen=True):
    """A keyspace; `replication` is replicas by datacenter, or `replication_factor` of SimpleStrategy."""

    name: str
    placement: str
    strategy: str
    replication: dict[str, int]
    tables: int
    epoch: int


class TableRow(msgspec.Struct, frozen=True):
    """A table in a list; `in_transition` of its `tablets` are on their way. On the ring `tablets` are ranges."""

    name: str
    table_id: str
    placement: str
    append_only: bool
    primary_key: tuple[str, ...]
    columns: int
    tablets: int
    in_transition: int
    epoch: int


class TableOptions(msgspec.Struct, frozen=True):
    """How tablets are sized, where they may go, and how the table is compacted; null: as everywhere, or no limit."""

    target_bytes: int | None
    min_tablets: int
    max_tablets: int | None
    tags: tuple[str, ...]
    apart_from: tuple[str, ...]
    compaction: CompactionOptions = CompactionOptions()


class TableShown(msgspec.Struct, frozen=True):
    """A table in full; `version` is the state id of the last change of its schema.

    On the ring `tablets` are ranges, and `replicas_by_node` counts how many of them each node gets the writes of.
    """

    name: str
    table_id: str
    placement: str
    append_only: bool
    primary_key: tuple[str, ...]
    columns: tuple[Column, ...]
    version: str
    tablets: int
    in_transition: int
    replicas_by_node: dict[str, int]
    options: TableOptions
    epoch: int


class LogRow(msgspec.Struct, frozen=True):
    """An entry of the log. `summary` is for people, `committed_at` ISO 8601.

    `left_out`: how many older entries the list leaves out for its `--limit`, the same in each of its rows.
    """

    epoch: int
    event: str
    summary: str
    author: str
    reason: str
    committed_at: str
    request_id: str
    left_out: int = 0


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


class Differences(msgspec.Struct, frozen=True):
    """What differs between two epochs."""

    before: int
    after: int
    changes: tuple[Difference, ...]


class FindingRow(msgspec.Struct, frozen=True):
    """Something that does not hold; `where` is an epoch or a replica."""

    where: str
    code: str
    message: str


class Verified(msgspec.Struct, frozen=True):
    """What was verified. `quorums`: also whether, at every epoch, each read quorum met each write quorum.

    With `--tablets` also replica tables: violations of INV-TABL-1 count as findings.

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


class ErrorDocument(msgspec.Struct, frozen=True):
    """What went wrong; on stderr, stdout stays empty."""

    error: ErrorBody
