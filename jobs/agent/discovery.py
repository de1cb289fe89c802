"""Who founds the cluster: the discovery of a fresh one (seed 001, "Establishing group 0 in a fresh cluster").

Pure: messages in, messages out, and a state that the shell writes to the home **before** it sends anything. An agent
asks every address that it knows, tells what it knows, and is told in turn, until nobody is left to ask. If somebody
belongs to a cluster, that is the one. Otherwise the agent with the lowest id founds one, and all others wait for it.

Why only one founds, when the seeds of all lead to a common agent R. Each founder has an answer of R. Call A the one
that R has answered first, and B the other: R told B of A, so B had to ask A before deciding. Either A was founding by
then, and said so, and B founds never. Or A came to know B by being asked, and had to ask B before deciding: then each
has the id of the other, and only the lower one founds. What an agent has told and been told is in its home before it
speaks, so a kill changes nothing; an agent whose home was cleared has another id, and has to ask everybody again.

Nothing here relies on time. An address that does not answer is waited for: nobody knows what it would have said.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
from epochlake.jobs.agent.messages import PROTOCOL, Tag

MOST_ADDRESSES = 1_000
"""A fresh cluster of more agents than this is founded by hand."""


class Phase(StrEnum):
    SEARCHING = "searching"
    WAITING = "waiting"
    FOUNDING = "founding"
    FOUND = "found"


class DiscoveryState(msgspec.Struct, frozen=True):
    """What discovery must not forget. `answered`: the id of who has answered at each address; `known` has them all.

    `founder`: where the agent is that founds, while this one waits for it. `too_many`: addresses were left out.
    """

    known: tuple[str, ...] = ()
    answered: dict[str, str] = {}
    phase: Phase = Phase.SEARCHING
    tag: Tag | None = None
    founder: str | None = None
    too_many: bool = False


class Ask(msgspec.Struct, frozen=True):
    """What an agent is asked with: who asks, and whom he knows. `number` comes back with the answer."""

    agent_id: str
    address: str
    number: str
    known: tuple[str, ...]
    protocol: int = PROTOCOL


class Told(msgspec.Struct, frozen=True):
    """The answer to an `Ask`: `to` is the id of who has asked."""

    agent_id: str
    address: str
    number: str
    to: str
    known: tuple[str, ...]
    phase: Phase
    tag: Tag | None = None


class TwoClusters(msgspec.Struct, frozen=True):
    """Two agents belong to two clusters: this one joins neither, and people have to say which one is meant."""

    first: Tag
    second: Tag

    def __str__(self) -> str:
        return f"the seeds lead to two clusters, {self.first} and {self.second}: leave out those of the other one"


class Discovery:
    """The discovery of one agent. After each call `state` is what has to be kept before anything is sent."""

    def __init__(self, agent_id: str, address: str, seeds: tuple[str, ...], state: DiscoveryState | None) -> None:
        self.agent_id = agent_id
        self.address = address
        state = state or DiscoveryState()
        known = sorted({*state.known, *seeds, address})
        answered = {place: who for place, who in state.answered.items() if who != agent_id}
        # Who has moved must be asked at the new place, and is known there; the old one may be somebody else's now.
        self.state = msgspec.structs.replace(state, known=tuple(known), answered={**answered, address: agent_id})
        self.two_clusters: TwoClusters | None = None

    def to_ask(self) -> tuple[str, ...]:
        """The addresses to ask now: all that have not answered; when all have, the one that should found."""
        if self.state.phase is Phase.WAITING and self.state.founder is not None:
            return (self.state.founder,)
        if self.state.phase is not Phase.SEARCHING:
            return ()
        waiting = tuple(place for place in self.state.known if place not in self.state.answered)
        if waiting:
            return waiting
        lowest = min(self.state.answered.values())
        return tuple(place for place, who in self.state.answered.items() if who == lowest and who != self.agent_id)

    def ask(self, number: str) -> Ask:
        return Ask(self.agent_id, self.address, number, self.state.known)

    def asked(self, ask: Ask) -> Told:
        """Answer somebody; he is known from now on."""
        if ask.agent_id != self.agent_id:
            self._know((ask.address, *ask.known))
            answered = self.state.answered
            if answered.get(ask.address, ask.agent_id) != ask.agent_id:
                # Another agent is where one has answered: what that one knew is no answer of this one.
                kept = {place: who for place, who in answered.items() if place != ask.address}
                self.state = msgspec.structs.replace(self.state, answered=kept)
        state = self.state
        return Told(self.agent_id, self.address, ask.number, ask.agent_id, state.known, state.phase, state.tag)

    def told(self, told: Told, *, at: str, number: str) -> None:
        """Take the answer to the question `number` that was asked at an address. Any other one is left alone."""
        if told.to != self.agent_id or told.number != number:
            return
        if self.state.phase not in (Phase.SEARCHING, Phase.WAITING):
            if told.tag is not None:
                self.found(told.tag)
            return
        self._know((told.address, *told.known))
        answered = {**self.state.answered, at: told.agent_id}
        state = msgspec.structs.replace(self.state, answered=answered)
        if told.phase is Phase.FOUNDING and told.agent_id != self.agent_id:
            state = msgspec.structs.replace(state, phase=Phase.WAITING, founder=at)
        elif state.founder == at and told.phase in (Phase.SEARCHING, Phase.WAITING):
            # The home of the founder was cleared before it had founded: another agent is there, and all begins anew.
            state = msgspec.structs.replace(state, phase=Phase.SEARCHING, founder=None)
        self.state = state
        if told.tag is not None:
            self.found(told.tag)

    def may_found(self) -> bool:
        """Decide: whether this agent founds. Once it does it does so for ever, and says so to whoever asks."""
        state = self.state
        closed = state.phase is Phase.SEARCHING and all(place in state.answered for place in state.known)
        if closed and not state.too_many and min(state.answered.values()) == self.agent_id:
            self.state = msgspec.structs.replace(state, phase=Phase.FOUNDING)
        return self.state.phase is Phase.FOUNDING

    def found(self, tag: Tag) -> None:
        """There is a cluster: it was founded, or somebody belongs to it."""
        if self.state.tag is not None and self.state.tag.id != tag.id:
            self.two_clusters = TwoClusters(self.state.tag, tag)
            return
        self.state = msgspec.structs.replace(self.state, phase=Phase.FOUND, tag=tag)

    def waits_for(self) -> str:
        """What discovery waits for, for people; empty when it is over."""
        if self.two_clusters is not None:
            return str(self.two_clusters)
        match self.state.phase:
            case Phase.FOUND:
                return ""
            case Phase.FOUNDING:
                return "this agent founds the cluster"
            case Phase.WAITING:
                return f"the agent at {self.state.founder} founds the cluster"
        if self.state.too_many:
            return f"there are more than {MOST_ADDRESSES:,} agents: found the cluster by hand"
        silent = [place for place in self.state.known if place not in self.state.answered]
        if silent:
            return f"no answer yet from {', '.join(silent[:5])}"
        lowest = min(self.state.answered.values())
        return f"the agent at {next(p for p, who in self.state.answered.items() if who == lowest)} is to found it"

    def _know(self, addresses: tuple[str, ...]) -> None:
        known = tuple(sorted({*self.state.known, *addresses}))
        if len(known) > MOST_ADDRESSES:
            # Who is not remembered would not be asked: then nobody can be sure to be the only one.
            self.state = msgspec.structs.replace(self.state, too_many=True)
        elif known != self.state.known:
            self.state = msgspec.structs.replace(self.state, known=known)
