"""Where the ensemble of a cluster is, as one session knows it: what is configured, and what the cluster has published.

`[zookeeper] connect` is where a process begins as long as nothing is published, and a second thought afterwards: the
published addresses come first, and when none of them answers both are tried, along with what was published meanwhile.
Whoever answers has to know the seal of what is published (proved_connection.py), also at a configured address. With
`auto` nothing is configured but the root. (docs/decisions/153-published-ensemble.md)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from epochlake.metastore.configuration import AUTO, Configuration
from epochlake.metastore.coordination.publication import Heard, PublishedEnsemble
from epochlake.metastore.coordination.published import IDENTITY, NothingWhole, newest, parse_identity
from epochlake.metastore.errors import CoordinationUnavailable, StorageUnavailable, UnknownFormat
from epochlake.metastore.root import Root
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import EpochlakeError, InvalidRequest

logger = logging.getLogger(__name__)

Asked = Callable[[], Sequence[Heard]]
"""Asks others who know, and returns what each has said. It may raise EpochlakeError."""


def whereabouts(
    configuration: Configuration, storage: Storage, cluster_id: str | None = None, others: Asked | None = None
) -> Whereabouts | None:
    """Those of a new session, see Whereabouts; None in a simulated world, which has one address for ever."""
    return Whereabouts(configuration, storage, cluster_id, others)


class Whereabouts:
    """What one session knows. `cluster_id`: what was published for another cluster does not count; None: it is not
    known yet. `others`: who is asked as well when no published address answers.

    `look` and `refusal` read the root, in whatever thread calls them; all else returns at once. The others raise
    CoordinationUnavailable where the root cannot be read, and UnknownFormat.
    """

    def __init__(
        self, configuration: Configuration, storage: Storage, cluster_id: str | None = None, others: Asked | None = None
    ) -> None:
        self._configured = "" if configuration.zookeeper.connect == AUTO else configuration.zookeeper.connect
        self._storage = storage
        self._directory = Root(configuration.root).coordination
        self._root = configuration.root
        self._cluster_id = cluster_id
        self._others = others
        self._published: PublishedEnsemble | None = None
        self._heard = Heard()
        self.refused = ""
        """Why the server that was met last is not asked; empty when none was refused."""
        self._read()

    @property
    def published(self) -> PublishedEnsemble | None:
        return self._published

    @property
    def number(self) -> int:
        return 0 if self._published is None else self._published.number

    def first(self) -> str:
        """Where to begin, as a connect string. Raises CoordinationUnavailable where nothing is known."""
        if self._published is not None:
            return self._published.connect
        return self._configured or self.look()

    def look(self) -> str:
        """All addresses that are known, when those of before do not answer; the root is read anew for it."""
        try:
            self._read()
        except EpochlakeError as error:
            logger.info("where the ZooKeeper ensemble is was not read anew: %s", error)
        try:
            self._listen()
        except EpochlakeError as error:
            logger.info("nobody else says where the ZooKeeper ensemble is: %s", error)
        published = "" if self._published is None else self._published.connect
        chroot = (self._configured or published).partition("/")[2]
        told = "" if self._heard.published is None else self._heard.published.connect
        known = (published, told, ",".join(self._heard.servers), self._configured)
        hosts = [one.partition("/")[0] for one in known]
        places = [place for one in hosts for place in one.split(",") if place]
        if not places:
            raise CoordinationUnavailable(
                f"where the ZooKeeper ensemble is was not published at {self._root}, and [zookeeper] connect is 'auto'",
                hint="Name its servers in [zookeeper] connect, for one run of the coordinator at least",
            )
        return ",".join(dict.fromkeys(places)) + (f"/{chroot}" if chroot else "")

    def asked_for(self) -> str:
        """Also where nothing was published when the root was read last: somebody may have done it since."""
        return IDENTITY

    def refusal(self, data: bytes | None) -> str:
        self.refused = self._refusal(data)
        if self.refused:
            logger.warning("a ZooKeeper server is not asked: %s", self.refused)
        return self.refused

    def unproved(self, why: str) -> None:
        self.refused = why
        logger.warning("a ZooKeeper server is not asked: %s", why)

    def _refusal(self, data: bytes | None) -> str:
        # A server that was restored knows all that was published until then, and so it may be with this process, which
        # was paused meanwhile. The root is read when the server has answered: it says what has to be known now.
        try:
            self._read()
        except EpochlakeError as error:
            if not self._holds(error):
                return f"what it has to know cannot be read: {error.statement}"
        published = self._published
        if published is None:
            return ""
        if not data:
            return "it has never been published for this cluster"
        try:
            return parse_identity(data).refusal(published)
        except UnknownFormat as error:
            return error.statement

    def _holds(self, error: EpochlakeError) -> bool:
        """Whether what is known has to do, as nothing of what was published is whole any more."""
        return isinstance(error, NothingWhole) and self._published is not None

    def _listen(self) -> None:
        """Ask the others. What the root says goes before what they say, but for where servers may be."""
        if self._others is None:
            return
        self._heard = _newest_of(self._others(), self._cluster_id)
        if self._published is None:
            self._published = self._heard.published

    def _read(self) -> None:
        try:
            found = newest(self._storage, self._directory, self._cluster_id)
        except StorageUnavailable as error:
            raise CoordinationUnavailable(
                f"where the ZooKeeper ensemble is cannot be read: {error.statement}", hint=error.hint
            ) from error
        # What was published stays what has to be proved, also when the root goes back to before that or is emptied.
        if found is not None:
            self._published = found


def _newest_of(said: Sequence[Heard], cluster_id: str | None) -> Heard:
    """What was published last for a cluster, as far as somebody has seen it, and all servers that they have named:
    who was cut off for an hour has seen less. What is said of other clusters does not count.

    Raises InvalidRequest where nobody knows, or where it is not known which of several clusters is meant.
    """
    known = [(one.published, one) for one in said if one.published is not None]
    clusters = sorted({published.cluster_id for published, _ in known})
    if cluster_id is None and len(clusters) > 1:
        raise InvalidRequest(f"the agents that were asked are of several clusters ({', '.join(clusters)})")
    ours = [(published, one) for published, one in known if cluster_id in (None, published.cluster_id)]
    if not ours:
        of_others = f", but those of {', '.join(clusters)}" if clusters else ""
        raise InvalidRequest(f"the agents that were asked know no ensemble of the cluster{of_others}")
    newest_seen, _ = max(ours, key=lambda pair: pair[0].number)
    return Heard(newest_seen, tuple(dict.fromkeys(server for _, one in ours for server in one.servers)))
