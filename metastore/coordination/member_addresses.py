"""A session that goes on with the servers of its ensemble when these change: it asks the ensemble where they are.

kazoo keeps the hosts that it was given. The ensemble says in a znode who its servers are, so a process that lives
longer than they do learns of the new ones, and uses them when its connection breaks. The configured addresses stay in
the list: an ensemble that was set up anew is at these.

Addresses that an ensemble knows itself by need not be those by which its clients reach it (a proxy, translated
addresses). So they are used only when a configured one is among them, or was before. Nothing here blocks, and nothing
depends on it but how soon there is a connection again.
"""

from __future__ import annotations

import logging
from typing import Any

from epochlake.metastore.coordination.client import Coordination
from epochlake.metastore.coordination.ensemble import parse_configuration
from epochlake.metastore.coordination.reconfiguring import CONFIGURATION
from epochlake.placement.errors import InvalidRequest
from kazoo.protocol.states import EventType, WatchedEvent

logger = logging.getLogger(__name__)


def follow_members(coordination: Coordination) -> None:
    """Let a session use the addresses that its ensemble names, for as long as it is open."""
    MemberAddresses(coordination)


class MemberAddresses:
    """What one session has learnt of where its ensemble is. It looks when it is made, after each reconnect, and when
    the ensemble has changed.
    """

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self._configured = coordination.connect_string
        self._trusted = False
        coordination.on_connected(self._look)
        self._look()

    def learn(self, configuration: str) -> None:
        """What the znode of the configuration holds. Never raises."""
        try:
            members = parse_configuration(configuration).connect
        except (InvalidRequest, ValueError) as error:
            logger.debug("what ZooKeeper says of its servers cannot be read: %s", error)
            return
        hosts, slash, chroot = self._configured.partition("/")
        configured = hosts.split(",")
        named = [place for place in members.split(",") if place]
        self._trusted = self._trusted or not set(named).isdisjoint(configured)
        if not self._trusted or not named:
            return
        self._coordination.moved_to(",".join(dict.fromkeys([*named, *configured])) + slash + chroot)

    def _look(self) -> None:
        if not self._coordination.closed:
            # The answer is taken by kazoo's own threads, which must not wait for anything.
            self._coordination.client.get_async(CONFIGURATION, watch=self._changed).rawlink(self._answered)

    def _changed(self, event: WatchedEvent) -> None:
        # A watch that a broken connection ended is set again after the reconnect.
        if event.type == EventType.CHANGED:
            self._look()

    def _answered(self, result: Any) -> None:
        if result.successful():
            self.learn(result.value[0].decode("utf-8", "replace"))
