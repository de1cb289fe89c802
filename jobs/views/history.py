"""The history as lists show it: entries of the log, and what differs between two epochs."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from epochlake.jobs.views.summaries import summary
from epochlake.metastore.errors import LogUnreadable
from epochlake.metastore.log.entry import Entry
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.differences import Difference, diff
from epochlake.placement.showing import Shown


class LogRow(Shown, msgspec.Struct, frozen=True):
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


class Differences(Shown, msgspec.Struct, frozen=True):
    """What differs between two epochs."""

    before: int
    after: int
    changes: tuple[Difference, ...]


def differences(before: ClusterMetadata, after: ClusterMetadata) -> Differences:
    """What has changed from one version of the metadata to another one."""
    return Differences(before.epoch, after.epoch, tuple(diff(before, after)))


def log_row(entry: Entry, metadata: ClusterMetadata | None) -> LogRow:
    """An entry; `metadata` gives names, where it can be had."""
    return LogRow(
        epoch=entry.epoch,
        event=entry.event,
        summary=_summary(entry, metadata),
        author=entry.author,
        reason=entry.reason,
        committed_at=_iso(entry.committed_at),
        request_id=entry.request_id,
    )


def _summary(entry: Entry, metadata: ClusterMetadata | None) -> str:
    """What the entry says, also when it cannot be read: a list of a damaged log is still a list."""
    try:
        return summary(entry.decode(), metadata)
    except LogUnreadable as error:
        return str(error)


def _iso(microseconds: int) -> str:
    return datetime.fromtimestamp(microseconds / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
