"""Twenty agents start at once, in any order, while messages get lost and agents are killed: exactly one founds."""

from __future__ import annotations

import random
from collections.abc import Iterable

import msgspec
import pytest
from epochlake.jobs.agent import discovery
from epochlake.jobs.agent.discovery import Ask, Discovery, DiscoveryState, Phase, Told
from epochlake.jobs.agent.messages import Tag

from tests.support.slices import sliced


class Message(msgspec.Struct, frozen=True):
    to: str
    body: Ask | Told
    number: str = ""


class World:
    """Agents by address, their homes, and a network that loses, doubles and delays.

    A kill may come after any single step: what was written to the home stands, what was to be sent is lost.
    """

    def __init__(self, seed: int, count: int = 20, faults: float = 0.2) -> None:
        self.chance = random.Random(seed)
        self.faults = faults
        ids = self.chance.sample(range(10_000), count)
        self.ids = {f"h{n}:1": f"{one:04}" for n, one in enumerate(ids)}
        common = self.chance.choice(sorted(self.ids))
        # Some know the common seed, the others one that leads there.
        order = [common, *self.chance.sample(sorted(set(self.ids) - {common}), count - 1)]
        self.seeds = {
            place: tuple({order[self.chance.randrange(max(1, n))] for _ in range(self.chance.randint(1, 3))})
            for n, place in enumerate(order)
        }
        self.homes: dict[str, DiscoveryState] = {}
        self.running: dict[str, Discovery] = {}
        self.numbers: dict[tuple[str, str], str] = {}
        self.network: list[Message] = []
        self.founded: list[str] = []
        self.tag = Tag("lake", "1")

    def start(self, place: str) -> None:
        self.running[place] = Discovery(self.ids[place], place, self.seeds[place], self.homes.get(place))
        self.numbers = {key: number for key, number in self.numbers.items() if key[0] != place}
        self._keep(place)

    def _keep(self, place: str) -> bool:
        """Write the home; False when the agent was killed right after it."""
        self.homes[place] = self.running[place].state
        if self.chance.random() < self.faults / 10:
            del self.running[place]
            return False
        return True

    def send(self, message: Message) -> None:
        if self.chance.random() < self.faults:
            return
        if len(self.network) > 100:
            self.network.pop(self.chance.randrange(len(self.network)))
        self.network += [message] * (2 if self.chance.random() < self.faults else 1)

    def step(self) -> None:
        """One thing happens: a start, a kill, a message that arrives, or an agent that goes on."""
        asleep = sorted(self.ids.keys() - self.running.keys())
        if asleep and self.chance.random() < 0.2:
            self.start(self.chance.choice(asleep))
        elif self.running and self.chance.random() < self.faults / 10:
            del self.running[self.chance.choice(sorted(self.running))]
        elif self.network and self.chance.random() < 0.7:
            message = self.network.pop(self.chance.randrange(len(self.network)))
            if message.to in self.running:
                self.receive(message)
        elif self.running:
            self.go_on(self.chance.choice(sorted(self.running)))

    def receive(self, message: Message) -> None:
        place, agent = message.to, self.running[message.to]
        if isinstance(message.body, Ask):
            answer = agent.asked(message.body)
            if self._keep(place):
                self.send(Message(message.body.address, answer))
        else:
            at = message.body.address
            agent.told(message.body, at=at, number=self.numbers.get((place, at), ""))
            self._keep(place)

    def go_on(self, place: str) -> None:
        agent = self.running[place]
        if agent.may_found():
            if not self._keep(place):
                return
            if agent.agent_id not in self.founded:
                self.founded.append(agent.agent_id)
            if self.chance.random() < 0.5:  # founding takes its time
                agent.found(self.tag)
                self._keep(place)
            return
        for at in self.chance.sample(agent.to_ask(), min(2, len(agent.to_ask()))):
            # A question that is asked again has the number of before: late answers count, until the agent is killed.
            number = self.numbers.setdefault((place, at), str(self.chance.random()))
            self.send(Message(at, agent.ask(number)))

    def all_have_found(self) -> bool:
        return self.running.keys() == self.ids.keys() and all(
            agent.state.phase is Phase.FOUND for agent in self.running.values()
        )


def played(world: World, steps: int = 60_000) -> World:
    for _ in range(steps):
        world.step()
        assert len(world.founded) <= 1, world.founded
        if world.all_have_found():
            return world
    raise AssertionError({place: agent.waits_for() for place, agent in world.running.items()})


@sliced(at_least=15)
@pytest.mark.parametrize("seed", range(300))
def test_of_twenty_agents_exactly_one_founds_whatever_is_lost_doubled_late_or_killed(seed: int) -> None:
    world = played(World(seed))
    assert len(world.founded) == 1
    assert {agent.state.tag for agent in world.running.values()} == {world.tag}


@pytest.mark.parametrize("seed", range(5))
def test_the_lowest_id_founds_among_those_that_know_each_other(seed: int) -> None:
    world = World(seed)
    world.seeds = dict.fromkeys(world.ids, tuple(world.ids))
    for place in world.ids:
        world.start(place)
    assert played(world).founded == [min(world.ids.values())]


@pytest.mark.parametrize("seed", range(5))
def test_a_cluster_that_is_there_is_found_and_none_is_founded(seed: int) -> None:
    world = World(seed)
    member = world.chance.choice(sorted(world.ids))
    world.start(member)
    world.running.setdefault(member, Discovery(world.ids[member], member, (), None)).found(world.tag)
    world.homes[member] = msgspec.structs.replace(world.running[member].state, known=tuple(world.ids))
    world.running[member].state = world.homes[member]
    # It is what all seeds lead to.
    for place in world.ids:
        world.seeds[place] = (*world.seeds[place], member)
    assert played(world).founded == []


def three(*known: str) -> Iterable[Discovery]:
    return (Discovery(f"{n}", f"h{n}:1", tuple(known), None) for n in (1, 2, 3))


def talk(asking: Discovery, asked: Discovery) -> None:
    asking.told(asked.asked(asking.ask("7")), at=asked.address, number="7")


def test_nobody_founds_while_an_address_has_not_answered() -> None:
    first, second, _ = three("h2:1", "h3:1")
    talk(first, second)
    assert not first.may_found()
    assert first.waits_for() == "no answer yet from h3:1"


def test_an_agent_that_founds_goes_on_founding_after_a_kill() -> None:
    alone = Discovery("1", "h1:1", (), None)
    assert alone.may_found()
    again = Discovery("1", "h1:1", (), alone.state)
    assert again.may_found()
    assert again.state.phase is Phase.FOUNDING


def test_a_lower_id_that_comes_later_waits_for_the_founder() -> None:
    first, second, _ = three("h2:1")
    assert second.may_found()
    talk(first, second)
    assert not first.may_found()
    assert first.waits_for() == "the agent at h2:1 founds the cluster"
    second.found(Tag("lake", "1"))
    talk(first, second)
    assert first.state.tag == Tag("lake", "1")


def test_an_answer_to_an_earlier_question_or_to_another_agent_is_left_alone() -> None:
    first, second, _ = three("h2:1")
    answer = second.asked(first.ask("7"))
    before = first.state
    first.told(answer, at="h2:1", number="8")
    first.told(msgspec.structs.replace(answer, to="9"), at="h2:1", number="7")
    assert first.state == before


def test_two_clusters_are_told_and_neither_is_joined() -> None:
    first, second, third = three("h2:1", "h3:1")
    second.found(Tag("lake", "1"))
    third.found(Tag("sea", "2"))
    talk(first, second)
    talk(first, third)
    assert first.state.tag == Tag("lake", "1")
    assert "two clusters" in first.waits_for()


def test_nobody_founds_who_cannot_remember_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "MOST_ADDRESSES", 2)
    first, second, third = three("h2:1")
    second.asked(third.ask("1"))
    talk(first, second)
    assert not first.may_found()
    assert "by hand" in first.waits_for()
