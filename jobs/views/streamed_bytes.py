"""Bytes that tablets and operations moved, when and where to: from the commits of the replica tables.

Nothing is counted while it happens. Each commit of a stream names its session, which the log gave to one tablet or one
operation. Replica tables keep their commits for a day at least (`LOG_RETENTION_SECONDS`), and so far back it is exact;
what is older has no commits any more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.log.entry import Entry
from epochlake.metastore.metadata.events import AdvanceOperation, AdvanceTransitions
from epochlake.metastore.storage.storage import Storage

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster
    from epochlake.metastore.metadata.cluster import ClusterMetadata

THREADS = 16
_COMMIT = re.compile(r"(\d{20})\.json$")


class Arrival(msgspec.Struct, frozen=True):
    """Files of one commit of a stream: when (milliseconds since 1970), on which node, of which table, how much."""

    at_ms: int
    node: str
    table: str
    bytes: int


def arrivals(cluster: Cluster) -> list[Arrival]:
    """All that was streamed to the nodes of now, as far back as their replicas keep their commits; oldest first.

    A volume that does not answer is left out.
    """
    metadata = cluster.catch_up()
    sessions = sessions_of(cluster.log().read(0))
    places = _places(cluster.storage, metadata)

    def look(place: tuple[str, str, str]) -> list[Arrival]:
        uri, node, table = place
        try:
            return list(_of_replica(cluster.storage, uri, node, table, sessions))
        except StorageUnavailable:
            return []

    found = ThreadWorkers(THREADS).run(look, places)
    return sorted((one for several in found for one in several), key=lambda one: one.at_ms)


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


def _places(storage: Storage, metadata: ClusterMetadata) -> list[tuple[str, str, str]]:
    """The replica tables that there may be: where, on which node, of which table."""
    present = [
        (volume.volume_id, node.name)
        for node in metadata.directory.nodes.values()
        if node.state != "left" and not node.lost
        for volume in node.volumes
    ]
    return [
        (address_of(storage, metadata, table, volume).uri, node, table.full_name)
        for table in metadata.schema.tables.values()
        for volume, node in present
    ]


def _of_replica(storage: Storage, uri: str, node: str, table: str, sessions: frozenset[str]) -> Iterable[Arrival]:
    log = f"{uri.rstrip('/')}/_delta_log"
    for name in storage.list_names(log):
        if _COMMIT.search(name) is None:
            continue
        actions = [json.loads(line) for line in storage.read_bytes(f"{log}/{name}").splitlines() if line.strip()]
        if not any(action.get("txn", {}).get("appId") in sessions for action in actions):
            continue
        added = [action["add"] for action in actions if "add" in action]
        if added:
            yield Arrival(_when(actions, added), node, table, sum(add["size"] for add in added))


def _when(actions: Iterable[Mapping[str, dict[str, int]]], added: Iterable[Mapping[str, int]]) -> int:
    told = (action["commitInfo"].get("timestamp") for action in actions if "commitInfo" in action)
    return next((at for at in told if at), 0) or max(add["modificationTime"] for add in added)
