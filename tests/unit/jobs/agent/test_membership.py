"""Who is seen how: simulated agents, a clock of rounds, and a network that loses what it is told to lose."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from epochlake.jobs.agent.membership import FORGOTTEN_AFTER, MOST_PEERS, Membership
from epochlake.jobs.agent.messages import MOST_SIGHTINGS, PROTOCOL, Introduction, Seen, Sighting

Reaches = Callable[[str, str], bool]


class Agents:
    """Agents a0, a1, … that probe each other once a round; `reaches` says whether a message arrives."""

    def __init__(self, count: int, seed: int) -> None:
        self.chance = random.Random(seed)
        self.members = {f"a{n}": Membership(f"a{n}", random.Random(self.chance.random())) for n in range(count)}
        self.reaches: Reaches = lambda sender, receiver: True
        self.now = 0.0
        self.messages = 0
        self.told = 0

    def introduction(self, name: str) -> Introduction:
        counter = self.members[name].counter
        return Introduction(name, name, f"{name}:1", None, PROTOCOL, "1", counter, 0)

    def call(self, sender: str, receiver: str) -> bool:
        self.messages += 1
        if receiver not in self.members or not self.reaches(sender, receiver):
            return False
        self._take(receiver, sender)
        if not self.reaches(receiver, sender):
            return False
        self._take(sender, receiver)
        return True

    def _take(self, receiver: str, sender: str) -> None:
        told = self.members[sender].sightings()
        self.told = max(self.told, len(told))
        self.members[receiver].heard(self.introduction(sender), self.now)
        self.members[receiver].merge(told, self.now)

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            self.now += 1.0
            for name, member in list(self.members.items()):
                target = member.next_target()
                if target is not None and not self.call(name, target.agent_id):
                    helpers = member.helpers(target.agent_id)
                    if not any(self.call(name, h.agent_id) and self.call(h.agent_id, target.agent_id) for h in helpers):
                        member.missed(target.agent_id, self.now)
                member.tick(self.now)

    def seen(self, by: str) -> dict[str, Seen]:
        return {peer.agent_id: peer.seen for peer in self.members[by].peers.values()}


def started(count: int, seed: int = 1) -> Agents:
    agents = Agents(count, seed)
    for name in list(agents.members)[1:]:
        agents.call(name, "a0")
    agents.run(30)
    return agents


@pytest.mark.parametrize("seed", range(5))
def test_agents_that_know_one_seed_come_to_see_each_other(seed: int) -> None:
    agents = started(20, seed)
    for name in agents.members:
        assert agents.seen(name) == {other: Seen.ALIVE for other in agents.members if other != name}


@pytest.mark.parametrize("seed", range(5))
def test_a_dead_agent_is_unreachable_for_everybody_and_nobody_else_is(seed: int) -> None:
    agents = started(20, seed)
    del agents.members["a7"]
    agents.run(80)
    for name in agents.members:
        assert [other for other, seen in agents.seen(name).items() if seen is not Seen.ALIVE] == ["a7"]
        assert agents.seen(name)["a7"] is Seen.UNREACHABLE


def test_one_broken_link_makes_nobody_unreachable() -> None:
    agents = started(10)
    agents.reaches = lambda sender, receiver: {sender, receiver} != {"a1", "a2"}
    agents.run(100)
    assert agents.seen("a1")["a2"] is Seen.ALIVE
    assert agents.seen("a2")["a1"] is Seen.ALIVE


def test_an_agent_that_was_paused_is_seen_again() -> None:
    agents = started(10)
    paused = agents.members.pop("a3")
    agents.run(80)
    assert agents.seen("a1")["a3"] is Seen.UNREACHABLE
    agents.members["a3"] = paused
    agents.run(60)
    assert all(agents.seen(name)["a3"] is Seen.ALIVE for name in agents.members if name != "a3")


def test_what_is_told_of_an_agent_that_lives_is_denied_and_the_denial_is_believed() -> None:
    me, other = Membership("me", random.Random(1)), Membership("other", random.Random(2))
    suspected = Sighting("me", "me", "me:1", Seen.SUSPECT, 0)
    other.merge([Sighting("me", "me", "me:1", Seen.ALIVE, 0), suspected], 0.0)
    assert other.peers["me"].seen is Seen.SUSPECT
    me.merge([suspected], 1.0)
    assert me.counter == 1
    other.merge([Sighting("me", "me", "me:1", Seen.ALIVE, 0)], 1.0)
    assert other.peers["me"].seen is Seen.SUSPECT
    other.merge([Sighting("me", "me", "me:1", Seen.ALIVE, 1)], 1.0)
    assert other.peers["me"].seen is Seen.ALIVE


def test_both_sides_of_a_partition_are_whole_again_after_it() -> None:
    agents = started(10)
    left = {"a0", "a1", "a2"}
    agents.reaches = lambda sender, receiver: (sender in left) == (receiver in left)
    agents.run(80)
    assert {other for other, seen in agents.seen("a0").items() if seen is Seen.ALIVE} == left - {"a0"}
    agents.reaches = lambda sender, receiver: True
    agents.run(80)
    assert all(set(agents.seen(name).values()) == {Seen.ALIVE} for name in agents.members)


def test_what_all_agents_send_grows_linearly_with_their_number() -> None:
    per_agent = {}
    for count in (50, 200):
        agents = Agents(count, 3)
        for name in list(agents.members)[1:]:
            agents.call(name, "a0")
        agents.messages = 0
        agents.run(20)
        per_agent[count] = agents.messages / count / 20
        assert agents.told <= MOST_SIGHTINGS
    assert per_agent[200] <= per_agent[50] * 1.1 <= 1.5


def test_a_new_agent_at_an_address_takes_the_place_of_the_one_that_was_there() -> None:
    member = Membership("me", random.Random(1))
    member.heard(Introduction("old", "n1", "h:1", None, PROTOCOL, "1"), 0.0)
    member.heard(Introduction("new", "n1", "h:1", None, PROTOCOL, "1"), 1.0)
    assert list(member.peers) == ["new"]


def test_who_invents_agents_does_not_fill_the_memory() -> None:
    member = Membership("me", random.Random(1))
    for batch in range(0, 2 * MOST_PEERS, MOST_SIGHTINGS):
        told = [Sighting(f"x{n}", "x", f"x:{n}", Seen.ALIVE, 0) for n in range(batch, batch + MOST_SIGHTINGS)]
        member.merge(told, 0.0)
    assert len(member.peers) == MOST_PEERS
    member.merge([Sighting(f"y{n}", "y", f"y:{n}", Seen.ALIVE, 0) for n in range(1000)], 0.0)
    assert len(member.peers) == MOST_PEERS


def test_what_has_not_answered_for_a_day_is_forgotten() -> None:
    member = Membership("me", random.Random(1))
    member.heard(Introduction("a", "a", "a:1", None, PROTOCOL, "1"), 0.0)
    member.missed("a", 1.0)
    member.tick(1000.0)
    assert member.peers["a"].seen is Seen.UNREACHABLE
    member.tick(1000.0 + FORGOTTEN_AFTER)
    assert not member.peers
