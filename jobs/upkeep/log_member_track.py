"""The track of the coordinator that keeps as many log members as the size of the cluster asks for.

It follows what the metadata say of nodes: who has joined, left or is lost. A node that does not answer for a while, or
a disk that is away, changes nothing: nobody but an operator knows whether they come back, and an operator replaces them
by `metadata reconfigure --auto`. A change that somebody has left half done is ended, since commits may wait for that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from epochlake.jobs.upkeep import log_members
from epochlake.metastore.configuration import Configuration
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import EpochlakeError, InvalidRequest

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster

logger = logging.getLogger(__name__)

RETRY_SECONDS = 60.0
"""How long after a look that could not be followed the next one comes, and how long somebody else's change may take."""


class LogMemberTrack:
    """`[log] members = "auto"`: log members are chosen again when the nodes of the cluster have changed."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._clock = clock
        self._followed: object = None
        self._look_at = 0.0
        self._unfinished: int | None = None
        self.blocked: list[str] = []

    def advance(self, metadata: ClusterMetadata) -> bool:
        """Never anything that is committed: members are not in the log, as they are needed to read it."""
        nodes = [
            (node.name, node.datacenter, node.rack, node.state, node.lost, node.maintenance, node.volumes)
            for node in metadata.directory.nodes.values()
        ]
        if nodes == self._followed or self._clock() < self._look_at:
            return False
        self._look_at = self._clock() + RETRY_SECONDS
        try:
            if self._follow():
                self._followed = nodes
        except InvalidRequest as error:
            self.blocked.append(f"log members: {error.statement}")
        except StorageUnavailable as error:
            logger.warning("the log members are left as they are for now: %s", error)
            self.blocked.append(f"log members: {error.statement}")
        return False

    def idle(self, metadata: ClusterMetadata) -> bool:
        return True

    def out_of_reach(self) -> None:
        """Called when the log could not be read, as while a change of the members is unfinished. Never raises."""
        if self._clock() < self._look_at:
            return
        self._look_at = self._clock() + RETRY_SECONDS
        try:
            self._end_what_is_unfinished()
        except EpochlakeError as error:
            logger.warning("what is unfinished of the log members stays so for now: %s", error)

    def _end_what_is_unfinished(self) -> bool:
        """Whether there was anything: it is ended when it is met for the second time."""
        unfinished = log_members.unfinished(self._cluster.configuration, self._cluster.storage)
        if unfinished is not None and unfinished == self._unfinished:
            end_unfinished(self._cluster.configuration, self._cluster.storage)
        self._unfinished = unfinished
        return unfinished is not None

    def _follow(self) -> bool:
        """Whether the members are what the nodes ask for."""
        configuration, storage = self._cluster.configuration, self._cluster.storage
        if self._end_what_is_unfinished():
            return False
        proposed = log_members.propose(self._cluster)
        if not proposed.joining and not proposed.leaving:
            return True
        silent = {name for name, reason in proposed.unavailable.items() if reason != log_members.IN_MAINTENANCE}
        if silent:
            raise StorageUnavailable(
                f"{', '.join(sorted(silent))} would be passed over, which may come back",
                hint="Replace what does not come back by `epochlake metadata reconfigure --auto`",
            )
        generation = log_members.reconfigure(
            configuration,
            storage,
            proposed,
            lambda: self._cluster.metadata.identity.cluster_id,
            make_directories=True,
        )
        logger.warning("generation %d of the log members: %s", generation.number, ", ".join(generation.members))
        return True


def kept_automatically(configuration: Configuration) -> bool:
    """Whether the configuration asks for this track."""
    return configuration.log.acknowledge == "majority" and configuration.log.members == "auto"


def end_unfinished(configuration: Configuration, storage: Storage) -> None:
    """End a change of the log members that was left half done, if there is one: a coordinator that was killed in the
    middle of one could not even be opened again. Raises as `log_members.resume`.
    """
    if log_members.unfinished(configuration, storage) is not None:
        ended = log_members.resume(configuration, storage)
        logger.warning("a change of the log members to generation %d was left half done: ended", ended.number)
