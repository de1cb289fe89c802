"""The tracks of the coordinator that keep as many ZooKeeper servers as the size of the cluster asks for, and publish
where they are.

Both do their work in threads of their own, since rounds cannot wait for servers that catch up. The one that keeps them
chooses among the members and the servers that agents run (coordination_choice.py), and changes the ensemble by the
same steps as `metadata reconfigure --coordination`, one change at a time. What an operator has begun is left to them,
also when it is unfinished; what the machine has begun it goes on with, whoever was killed. A choice that was made from
what is not so any more is not begun. (docs/decisions/147-agents-that-run-zookeeper.md,
154-the-ensemble-is-changed-beside-the-rounds.md)
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from epochlake.jobs.upkeep.aside import Aside, StoodDown
from epochlake.jobs.upkeep.coordination_choice import Circumstances, Offer, choose, normal_nodes
from epochlake.jobs.upkeep.coordination_members import Ensemble, ask_all
from epochlake.metastore import threads
from epochlake.metastore.configuration import EMBEDDED, Configuration
from epochlake.metastore.coordination.ensemble import EnsembleConfiguration, Server, next_step, parse_server
from epochlake.metastore.coordination.keeping import KeeperState, KeptChange
from epochlake.metastore.coordination.published import publish
from epochlake.metastore.coordination.reconfiguring import UnfinishedChange
from epochlake.metastore.coordination.server_answers import Answer
from epochlake.metastore.errors import ConfigurationError, CoordinationUnavailable
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.placement.errors import EpochlakeError, InvalidRequest
from kazoo.exceptions import KazooException

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster

logger = logging.getLogger(__name__)

RETRY_SECONDS = 60.0
"""How long after a look the next one comes."""
LONGEST_WRITTEN = 255


class Silence:
    """For how long servers have been in trouble, as far as somebody has looked: who was paused for an hour has not
    seen an hour of silence.
    """

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, str], float] = {}
        self._looked_at: float | None = None

    def seen(self, silent: Collection[Server], now: float) -> dict[int, float]:
        """Seconds by number, of those that are silent now."""
        passed = 0.0 if self._looked_at is None else min(now - self._looked_at, 2 * RETRY_SECONDS)
        self._looked_at = now
        known = self._seconds
        self._seconds = {key: known[key] + passed if key in known else 0.0 for key in map(_key, silent)}
        return {number: seconds for (number, _), seconds in self._seconds.items()}


class LookingTrack(ABC):
    """A track that looks at the ensemble once in a while, in a thread of its own, and does there what it finds to do.

    `woken` is set when a look has ended, `begin` begins it. What comes of the ensemble, whatever it is, ends no
    coordinator; an error of another kind that nobody has foreseen does.
    """

    subject: str
    """What it says that something stands in the way of."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Callable[[], float],
        woken: threading.Event | None,
        begin: Callable[[Callable[[], None]], None],
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._look_at = 0.0
        self._aside = Aside[str](woken, begin)
        self.blocked: list[str] = []

    @property
    def working(self) -> bool:
        return self._aside.working

    def settle(self) -> None:
        self._take()
        if self._aside.working:
            self._waits(f"{self.doing or 'it is looked at'}: left to the next coordinator")

    def stand_down(self) -> None:
        self._aside.stand_down()

    def advance(self, metadata: ClusterMetadata) -> bool:
        """Never anything that is committed: the ensemble is needed for that. Raises what nobody has foreseen."""
        self._take()
        if self._clock() >= self._look_at and self._aside.start(lambda: self._look(metadata)):
            self._look_at = self._clock() + RETRY_SECONDS
            self._take()
        if self.doing and self._aside.working:
            self._waits(self.doing)
        return False

    def idle(self, metadata: ClusterMetadata) -> bool:
        return not self._aside.working

    @abstractmethod
    def _look(self, metadata: ClusterMetadata) -> str:
        """In a thread of its own: what stands in the way, else empty. Raises EpochlakeError, KazooException."""

    @abstractmethod
    def _failed(self, error: EpochlakeError) -> None:
        """A look came to nothing."""

    @property
    def doing(self) -> str:
        """What a look that goes on is at, where it has said so."""
        return ""

    def _waits(self, why: str) -> None:
        self.blocked.append(f"{self.subject}: {why}")

    def _take(self) -> None:
        ended = self._aside.take()
        if ended is None:
            return
        waits, error = ended
        if isinstance(error, KazooException):
            error = CoordinationUnavailable(f"ZooKeeper answers what nobody has foreseen ({type(error).__name__})")
        if isinstance(error, StoodDown):
            self._look_at = 0.0
        elif isinstance(error, EpochlakeError):
            self._failed(error)
        elif error is not None:
            raise error
        elif waits:
            self._waits(waits)


class CoordinationMemberTrack(LookingTrack):
    """`[zookeeper] members = "auto"`. `offers`: the servers that agents say they run, each by its node and as ZooKeeper
    writes it; it raises EpochlakeError where no agent answers.
    """

    subject = "coordination members"

    def __init__(
        self,
        cluster: Cluster,
        offers: Callable[[], Iterable[tuple[str, str]]],
        clock: Callable[[], float] = time.monotonic,
        woken: threading.Event | None = None,
        begin: Callable[[Callable[[], None]], None] = threads.begin,
    ) -> None:
        super().__init__(cluster, clock, woken, begin)
        self._offers = offers
        self._silence = Silence()
        self._doing = ""

    @property
    def doing(self) -> str:
        return self._doing

    def _failed(self, error: EpochlakeError) -> None:
        logger.warning("the coordination members are left as they are for now: %s", error)
        self._waits(error.statement)

    def _look(self, metadata: ClusterMetadata) -> str:
        self._doing = ""
        keeper, cluster_id = f"{socket.gethostname()}:{os.getpid()}", metadata.identity.cluster_id
        with Ensemble(self._cluster.configuration, cluster_id, others=self._cluster.others) as ensemble:

            def tell(doing: str, waits: str = "") -> None:
                ensemble.tell(cluster_id, KeeperState(keeper, time.time(), doing, waits))

            def on_step(doing: str) -> None:
                self._aside.require_leading()
                if doing != self._doing:
                    self._doing = doing
                    tell(doing)

            ensemble.mover.on_step = on_step
            try:
                waits = self._keep(ensemble, metadata)
            except EpochlakeError as error:
                tell("", error.statement)
                raise
            finally:
                self._doing = ""
            tell("", waits)
            return waits

    def _keep(self, ensemble: Ensemble, metadata: ClusterMetadata) -> str:
        """Change the ensemble where it has to be; what stands in the way, else empty. Raises EpochlakeError."""
        cluster_id = metadata.identity.cluster_id
        seen, kept = ensemble.mover.look(), ensemble.keeping.read() or KeptChange(cluster_id)
        if kept.cluster != cluster_id:
            raise InvalidRequest(
                f"the ensemble is kept by another cluster, {kept.cluster}",
                hint="Let one cluster keep it; where that one is gone, delete the znode /epochlake-ensemble-kept",
            )
        members, change = seen.configuration.servers, seen.notes.change
        if change is not None and not kept.began(seen):
            return "somebody has begun a change of them that is unfinished"
        if change is not None and not kept.noted:
            # Whoever has noted it was killed before this could be said. From now on it can be taken back.
            kept = KeptChange(cluster_id, change.target, noted=True)
            ensemble.keeping.write(kept)
        offers = _parsed(self._offers())
        servers = {one.number: one for one in (*(offer.server for offer in offers), *members)}
        troubles = _troubles(servers.values(), ask_all(tuple(servers.values())), seen.configuration)
        silent = self._silence.seen([one for one in members if one.number in troubles], self._clock())
        if change is not None and _can_go_on(change, members, troubles):
            ensemble.mover.go_on(_servers(change.target))
            ensemble.keeping.write(KeptChange(cluster_id))
            logger.warning("the coordination members are %s", ", ".join(change.target))
            return ""
        choice = choose(
            Circumstances(
                members=members,
                normal=normal_nodes(metadata),
                runs_on={int(number): node for number, node in seen.notes.nodes.items()},
                offers=offers,
                troubles=troubles,
                silent=silent,
                grace=self._cluster.configuration.zookeeper.replace_after_seconds,
            )
        )
        if choice.servers is None:
            return choice.waits
        target = tuple(map(str, choice.servers))
        if kept.was_taken_back(seen, target):
            return f"somebody has taken back the change to {', '.join(target)}: make it by hand"
        began = KeptChange(cluster_id, target, () if change is None else change.target)
        self._aside.require_leading()
        ensemble.keeping.write(began)
        ensemble.mover.note_from(seen, choice.servers, choice.runs_on)
        ensemble.keeping.write(KeptChange(cluster_id, target, noted=True))
        logger.warning("the coordination members are to be %s", ", ".join(target))
        ensemble.mover.go_on(choice.servers)
        ensemble.keeping.write(KeptChange(cluster_id))
        return choice.waits


class PublishingTrack(LookingTrack):
    """Lets every process that knows the root find the ensemble, whoever has changed it. A publication is begun and
    ended at once: who has stood down ends it, and what comes late finds its number taken.
    """

    subject = "where the ZooKeeper ensemble is"

    def __init__(
        self,
        cluster: Cluster,
        clock: Callable[[], float] = time.monotonic,
        woken: threading.Event | None = None,
        begin: Callable[[Callable[[], None]], None] = threads.begin,
    ) -> None:
        super().__init__(cluster, clock, woken, begin)

    def _failed(self, error: EpochlakeError) -> None:
        logger.warning("%s was not published: %s", self.subject, error)

    def _look(self, metadata: ClusterMetadata) -> str:
        cluster = self._cluster
        publish(cluster.coordination(), cluster.storage, cluster.root.coordination, metadata.identity.cluster_id)
        return ""


def is_published(configuration: Configuration) -> bool:
    """Whether there may be an ensemble to publish."""
    return configuration.zookeeper.connect != EMBEDDED


def require_keepable(configuration: Configuration) -> None:
    """Raise ConfigurationError for an ensemble that is to be kept and cannot be."""
    if configuration.zookeeper.connect == EMBEDDED:
        raise ConfigurationError(
            "[zookeeper] members is 'auto', and [zookeeper] connect is 'embedded'",
            hint="Set up servers as docs/upkeep.md says, and name them in [zookeeper] connect",
        )
    if not configuration.zookeeper.operator:
        raise ConfigurationError(
            "[zookeeper] members is 'auto', and only the operator of the ensemble can change it",
            hint="Give the coordinator EPOCHLAKE__ZOOKEEPER__OPERATOR=super:PASSWORD",
        )


def kept_automatically(configuration: Configuration) -> bool:
    """Whether the configuration asks for this track."""
    return configuration.zookeeper.members == "auto"


def _parsed(offers: Iterable[tuple[str, str]]) -> tuple[Offer, ...]:
    """Offers that can be understood: anybody may say anything."""
    found = []
    for node, written in sorted(offers):
        try:
            if len(written) <= LONGEST_WRITTEN:
                found.append(Offer(node, parse_server(written)))
        except InvalidRequest as error:
            logger.warning("what the agent of %s offers is left out: %s", node, error)
    return tuple(found)


def _troubles(servers: Collection[Server], answers: dict[int, Answer], now: EnsembleConfiguration) -> dict[int, str]:
    """By number, why a server cannot be counted on. A server that is no member yet has to know the members."""
    found = {}
    for server in servers:
        answer = answers[server.number]
        trouble = answer.trouble
        if not trouble and answer.number != server.number:
            trouble = f"server {answer.number} is there"
        known = None if answer.configuration is None else answer.configuration.servers
        if not trouble and now.find(server.number) is None and known != now.servers:
            trouble = "the servers that it knows are others"
        if trouble:
            found[server.number] = trouble
    return found


def _can_go_on(change: UnfinishedChange, members: Sequence[Server], troubles: Collection[int]) -> bool:
    """Whether the next step of a change does not wait for a server that does not answer."""
    step = next_step(members, _servers(change.target))
    return step is None or step.joining is None or step.joining.number not in troubles


def _servers(written: Iterable[str]) -> list[Server]:
    return [parse_server(one) for one in written]


def _key(server: Server) -> tuple[int, str]:
    return server.number, server.address
