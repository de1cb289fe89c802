"""The physical topology: who answers, told apart from who is silent by direct and indirect probes, as SWIM does.

Pure: no clock, no chance but the generator that is given, no network. The shell asks whom to probe, probes, and says
what came of it. Each agent probes one other in each period, and asks a few to try before it suspects anybody; what it
learns travels with the probes. So what an agent sends does not grow with the cluster, and what all send grows linearly.

Nothing here changes the metadata: a node that is unreachable is shown, and people decide (seed 002).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import msgspec
from epochlake.jobs.agent.messages import MOST_SIGHTINGS, Introduction, Seen, Sighting

HELPERS = 3
"""So many others are asked to try before an agent that does not answer is suspected."""

SUSPICION_PERIODS = 5.0
"""How many periods, times the logarithm of the cluster's size, a suspect has to deny it."""

TOLD_TIMES = 3.0
"""How often news is passed on, times the logarithm of the cluster's size."""

MOST_PEERS = 10_000
"""More are not remembered: whoever invents agents does not fill the memory."""

FORGOTTEN_AFTER = 86_400.0
"""Seconds after which an agent that has not answered is not probed any more."""

_WORSE = {Seen.ALIVE: 0, Seen.SUSPECT: 1, Seen.UNREACHABLE: 2}


class Peer(msgspec.Struct):
    """Another agent, as it is seen here. `since`: when it was first seen so; `heard`: when it last spoke to us.

    `tag_id`: the cluster that it said it belongs to; empty for a blank one. `features`: what it said it supports, None
    while it is only known from others. `coordination_server`: the ZooKeeper server that it said it runs.
    """

    agent_id: str
    name: str
    address: str
    seen: Seen
    counter: int
    epoch: int
    since: float
    heard: float | None = None
    product_version: str = ""
    tag_id: str = ""
    told: int = 0
    features: tuple[str, ...] | None = None
    coordination_server: str = ""


class Membership:
    """The other agents as one agent sees them. `period` is the time between two probes, in seconds."""

    def __init__(self, agent_id: str, chance: random.Random, period: float = 1.0) -> None:
        self.agent_id = agent_id
        self.counter = 0
        self.peers: dict[str, Peer] = {}
        self._chance = chance
        self._period = period
        self._turn: list[str] = []

    def next_target(self) -> Peer | None:
        """Whom to probe now: each once in a random order, then in another one. None when nobody is known."""
        while self.peers:
            if not self._turn:
                self._turn = sorted(self.peers)
                self._chance.shuffle(self._turn)
            peer = self.peers.get(self._turn.pop())
            if peer is not None:
                return peer
        return None

    def helpers(self, target: str) -> list[Peer]:
        """Who can be asked to probe `target` in our place."""
        others = [p for p in self.peers.values() if p.agent_id != target and p.seen is Seen.ALIVE]
        return self._chance.sample(others, min(HELPERS, len(others)))

    def heard(self, who: Introduction, now: float) -> str | None:
        """An agent has spoken to us itself, which is more than anything that is told of it. Where it was before, if
        that was another address.
        """
        if who.agent_id == self.agent_id:
            return None
        peer = self.peers.get(who.agent_id)
        if peer is None:
            if len(self.peers) >= MOST_PEERS:
                return None
            peer = self.peers[who.agent_id] = Peer(
                who.agent_id, who.name, who.address, Seen.ALIVE, who.counter, who.epoch, now
            )
        # What speaks at an address is what is there now: an agent whose home was cleared comes back as another.
        for other in [p for p in self.peers.values() if p.address == who.address and p is not peer]:
            del self.peers[other.agent_id]
        before = peer.address if peer.address != who.address else None
        if (peer.address, peer.name) != (who.address, who.name):
            peer.address, peer.name, peer.told = who.address, who.name, 0
        peer.heard, peer.product_version, peer.features = now, who.product_version, who.features
        peer.coordination_server = who.coordination_server
        peer.tag_id = "" if who.tag is None else who.tag.id
        peer.epoch = max(peer.epoch, who.epoch)
        if who.counter > peer.counter:
            peer.counter, peer.told = who.counter, 0
        self._is(peer, Seen.ALIVE, now)
        return before

    def missed(self, agent_id: str, now: float) -> None:
        """Neither we nor those that we asked have reached an agent."""
        peer = self.peers.get(agent_id)
        if peer is not None and peer.seen is Seen.ALIVE:
            self._is(peer, Seen.SUSPECT, now)

    def tick(self, now: float) -> None:
        """Let time pass: suspects that have not denied it are unreachable, and the long silent are forgotten."""
        patience = SUSPICION_PERIODS * self._period * self._scale()
        for peer in list(self.peers.values()):
            if peer.seen is Seen.SUSPECT and now - peer.since >= patience:
                self._is(peer, Seen.UNREACHABLE, now)
            elif peer.seen is Seen.UNREACHABLE and now - peer.since >= FORGOTTEN_AFTER:
                del self.peers[peer.agent_id]

    def sightings(self) -> tuple[Sighting, ...]:
        """What to tell with the next message: the newest news, each only so often."""
        enough = math.ceil(TOLD_TIMES * self._scale())
        news = sorted((p for p in self.peers.values() if p.told < enough), key=lambda p: p.told)[:MOST_SIGHTINGS]
        for peer in news:
            peer.told += 1
        return tuple(Sighting(p.agent_id, p.name, p.address, p.seen, p.counter, p.epoch) for p in news)

    def merge(self, told: Iterable[Sighting], now: float) -> None:
        """Take what another agent tells: newer counters go first, and of equal ones the worse sighting."""
        for one in list(told)[:MOST_SIGHTINGS]:
            if one.agent_id == self.agent_id:
                if one.seen is not Seen.ALIVE and one.counter >= self.counter:
                    self.counter = one.counter + 1
                continue
            peer = self.peers.get(one.agent_id)
            if peer is None:
                # One that somebody else has given up need not be known; whoever lives will speak.
                if one.seen is not Seen.UNREACHABLE and len(self.peers) < MOST_PEERS:
                    self.peers[one.agent_id] = Peer(
                        one.agent_id, one.name, one.address, one.seen, one.counter, one.epoch, now
                    )
                continue
            peer.epoch = max(peer.epoch, one.epoch)
            newer = one.counter > peer.counter
            if newer or (one.counter == peer.counter and _WORSE[one.seen] > _WORSE[peer.seen]):
                if newer and one.address != peer.address:
                    peer.address, peer.told = one.address, 0
                peer.counter = one.counter
                self._is(peer, one.seen, now)

    def _is(self, peer: Peer, seen: Seen, now: float) -> None:
        if peer.seen is not seen:
            peer.seen, peer.since, peer.told = seen, now, 0

    def _scale(self) -> float:
        return max(1.0, math.log2(len(self.peers) + 2))
