"""Bytes that tablets and operations moved, when and where to: from the commits of the replica tables.

Nothing is counted while it happens. Each commit of a stream names its session, which the log gave to one tablet or one
operation. Replica tables keep their commits for a day at least (`LOG_RETENTION_SECONDS`), and so far back it is exact;
what is older has no commits any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.reachability import probe
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore import delta_commits
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.log.entry import Entry
from epochlake.metastore.metadata.events import AdvanceOperation, AdvanceTransitions
from epochlake.metastore.metadata.model import Table, VolumeId
from epochlake.metastore.storage.failures import MissingFile
from epochlake.metastore.storage.places import join
from epochlake.metastore.storage.storage import Storage

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster

THREADS = 16


class Arrival(msgspec.Struct, frozen=True):
    """Files of one commit of a stream: when (milliseconds since 1970), on which node, of which table, how much."""

    at_ms: int
    node: str
    table: str
    bytes: int


class Arrivals(msgspec.Struct, frozen=True):
    """What has arrived, oldest first; `unread`: the volumes that did not answer, or of which a commit is damaged."""

    found: tuple[Arrival, ...]
    unread: tuple[str, ...]


def arrivals(cluster: Cluster) -> Arrivals:
    """All that was streamed to the nodes of now, as far back as their replicas keep their commits."""
    metadata, storage = cluster.catch_up(), cluster.storage
    sessions = sessions_of(cluster.log().read(0))
    present = [node for node in metadata.directory.nodes.values() if node.state != "left" and not node.lost]
    volumes = [volume for node in present for volume in node.volumes]
    answers = probe(storage, metadata, volumes)
    unread = {volume.volume_id for volume in volumes if answers[volume.volume_id].obstacle}
    places = [
        (volume.volume_id, table)
        for table in metadata.schema.tables.values()
        for volume in volumes
        if volume.volume_id not in unread
    ]

    def look(place: tuple[VolumeId, Table]) -> list[Arrival] | None:
        volume, table = place
        node = metadata.directory.node_of_volume[volume].name
        uri = address_of(storage, metadata, table, volume).uri
        try:
            return list(_of_replica(storage, uri, node, table.full_name, sessions))
        except StorageUnavailable:
            return None

    found: list[Arrival] = []
    for (volume, _), several in zip(places, ThreadWorkers(THREADS).run(look, places), strict=True):
        found += several or ()
        if several is None:
            unread.add(volume)
    found.sort(key=lambda one: one.at_ms)
    return Arrivals(tuple(found), tuple(metadata.describe(volume) for volume in sorted(unread)))


def sessions_of(entries: Iterable[Entry]) -> frozenset[str]:
    """The sessions that streams have worked under."""
    sessions: set[str] = set()
    for entry in entries:
        if entry.event not in (AdvanceTransitions.__name__, AdvanceOperation.__name__):
            continue
        match entry.decode():
            case AdvanceTransitions(changes=changes):
                sessions.update(change.session for change in changes if change.session)
            case AdvanceOperation(session=str(session)):
                sessions.add(session)
    return frozenset(sessions)


def _of_replica(storage: Storage, uri: str, node: str, table: str, sessions: frozenset[str]) -> Iterator[Arrival]:
    """What streams have committed to a replica table; nothing where there is none."""
    try:
        files = storage.list_files(join(uri, delta_commits.LOG))
    except MissingFile:
        return
    versions = [int(match[1]) for file in files if (match := delta_commits.COMMIT.fullmatch(file.name))]
    for version in versions:
        try:
            actions: list[Any] = [*delta_commits.read_commit(storage, delta_commits.CommitName(uri, version))]
        except MissingFile:
            continue  # clean-up has taken it since
        if not any(action.get("txn", {}).get("appId") in sessions for action in actions):
            continue
        added = [action["add"] for action in actions if "add" in action]
        if added:
            yield Arrival(_when(actions, added), node, table, sum(add["size"] for add in added))


def _when(actions: Iterable[Mapping[str, dict[str, int]]], added: Iterable[Mapping[str, int]]) -> int:
    told = (action["commitInfo"].get("timestamp") for action in actions if "commitInfo" in action)
    return next((at for at in told if at), 0) or max(add["modificationTime"] for add in added)
