"""Which ZooKeeper servers a machine may choose: no fewer voters, nobody given up early, no way without a quorum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import pytest
from epochlake.jobs.upkeep.coordination_choice import Choice, Circumstances, Offer, choose
from epochlake.jobs.upkeep.coordination_member_track import RETRY_SECONDS, Silence
from epochlake.metastore.coordination.ensemble import OBSERVER, Server, next_step, parse_server
from epochlake.metastore.metadata.model import Node, NodeId, NodeState
from epochlake.placement.log_members import member_count
from hypothesis import given
from hypothesis import strategies as st

GRACE = 100.0
SILENT = "it does not answer"


def server(number: int, host: str = "zk") -> Server:
    """A negative one is an observer."""
    made = parse_server(f"{abs(number)}={host}{abs(number)}:2888:3888;2181")
    return made if number > 0 else made.as_role(OBSERVER)


def node(number: int, rack: str, *, maintenance: bool = False) -> Node:
    made = Node(NodeId(number), f"n{number}", f"h{number}", "dc1", rack, (), NodeState.NORMAL)
    return msgspec.structs.replace(made, maintenance=maintenance)


def known(
    members: Sequence[int],
    racks: Sequence[str],
    offers: Sequence[int] | None = None,
    *,
    dead: Mapping[int, float] | None = None,
    maintenance: Sequence[int] = (),
) -> Circumstances:
    """Servers of numbers on nodes of the same numbers, all of which have an agent unless said otherwise. `dead`: by
    number, for how long.
    """
    numbers = range(1, len(racks) + 1) if offers is None else offers
    gone = dead or {}
    return Circumstances(
        members=tuple(map(server, members)),
        normal={f"n{at}": node(at, rack, maintenance=at in maintenance) for at, rack in enumerate(racks, 1)},
        runs_on={},
        offers=tuple(Offer(f"n{number}", server(number)) for number in numbers),
        troubles=dict.fromkeys(gone, SILENT),
        silent={number: gone[number] for number in gone if number in set(map(abs, members))},
        grace=GRACE,
    )


def numbers(choice: Choice) -> list[int] | None:
    if choice.servers is None:
        return None
    return [one.number if one.votes else -one.number for one in choice.servers]


@pytest.mark.parametrize(
    ("circumstances", "chosen", "waits"),
    [
        (known([1], "ab"), None, ""),
        (known([1], "abc"), [1, 2, 3], ""),
        (known([1], "aabc"), [1, 3, 4], ""),
        (known([1, 2, 3], "aabc"), [1, 3, 4], ""),
        (known([1, 2, 3], "abcabc"), [1, 2, 3, 4, 5], ""),
        (known([1, 2, 3], "abcabc", [1, 2, 3, 4]), None, "4 of 5 servers are there on normal nodes"),
        (known([1], "abcabc", [1, 2, 3, 4]), [1, 2, 3], "4 of 5 servers are there on normal nodes"),
        (known([1], "abc", [1, 2]), None, "2 of 3 servers are there on normal nodes"),
        # Silence, shorter and longer than the grace.
        (known([1, 2, 3], "abcd", dead={3: 99.0}), None, "server 3 may come back (it does not answer)"),
        (known([1, 2, 3], "abcd", dead={3: 100.0}), [1, 2, 4], ""),
        (known([1, 2, 3], "abc", dead={3: 100.0}), None, "normal nodes, and server 3 cannot be replaced"),
        (known([1, 2, 3], "abcd", dead={4: 0.0}), None, ""),
        (known([1, 2, 3], "abcdef", dead={1: 1.0}), None, "server 1 may come back"),
        (known([1, 2, 3], "abcde", dead={2: 500.0, 3: 500.0}), None, "most of the voters do not answer"),
        # Who comes back after somebody has taken the place waits for the next one.
        (known([1, 2, 4], "abcd"), None, ""),
        # Members whose node has left, or is about to be away; nobody knows where an operator's own one runs.
        (known([1, 2, 9], "abc"), None, "on which node server 9 runs was not said: name it as 9@NODE"),
        (msgspec.structs.replace(known([1, 2, 9], "abc"), runs_on={9: "n9"}), [1, 2, 3], ""),
        (msgspec.structs.replace(known([1, 2, 9], "abc"), runs_on={9: "n3"}), None, ""),
        (known([1, 2, 3], "abcd", maintenance=[3]), None, ""),
        (known([1], "abcd", maintenance=[3]), [1, 2, 4], ""),
        # A change that is half done and cannot go on goes back: four voters outlive what three do.
        (known([1, 2, 3, 4], "abcdef", dead={5: 9.0, 6: 9.0}), [1, 2, 3], "4 of 5 servers are there on normal nodes"),
        # A smaller cluster; where most of those that are left would be dead, these leave first.
        (known([1, 2, 3, 4, 5], "abc"), [1, 2, 3], "on which node server 4 runs"),
        (known([1, 2, 3, 4, 5], "ab", dead={4: 500.0, 5: 500.0}), [1, 2, 3], "on which node server 3"),
        (known([], "abc"), None, "most of the voters do not answer"),
        (known([1], ""), None, "on which node server 1"),
    ],
)
def test_a_machine_chooses(circumstances: Circumstances, chosen: list[int] | None, waits: str) -> None:
    if waits.startswith("on which node") and chosen is not None:
        with_nodes = {one.number: f"n{one.number}" for one in circumstances.members}
        circumstances, waits = msgspec.structs.replace(circumstances, runs_on=with_nodes), ""
    choice = choose(circumstances)
    assert numbers(choice) == chosen
    assert waits in choice.waits if waits else not choice.waits
    if choice.servers is not None:
        assert choice.runs_on == {one.number: f"n{one.number}" for one in choice.servers}


def test_what_is_offered_twice_or_is_a_members_elsewhere_is_nobodys() -> None:
    plain = known([1], "abcd", [1, 2, 3])
    assert numbers(choose(plain)) == [1, 2, 3]
    for false in (
        Offer("n4", server(3, "liar")),
        Offer("n4", server(3)),
        Offer("n4", parse_server(f"7={str(server(3))[9:]}")),
    ):
        assert choose(msgspec.structs.replace(plain, offers=(*plain.offers, false))).servers is None
    # What is said of a member is believed where it is said of its place.
    moved = msgspec.structs.replace(plain, offers=(*plain.offers[1:], Offer("n1", server(1, "liar"))))
    assert "on which node server 1 runs" in choose(moved).waits
    twice = msgspec.structs.replace(plain, offers=(*plain.offers, Offer("n9", server(1))))
    assert "on which node server 1 runs" in choose(twice).waits
    assert numbers(choose(msgspec.structs.replace(twice, runs_on={1: "n1"}))) == [1, 2, 3]


racks = st.lists(st.sampled_from("abc"), min_size=1, max_size=9)
every = st.builds(
    lambda racks, members, observers, offers, dead, away: msgspec.structs.replace(
        known(
            [-number if number in observers else number for number in sorted(members)], racks, sorted(offers), dead=dead
        ),
        runs_on={number: f"n{number}" for number in members - away},
    ),
    racks,
    st.sets(st.integers(1, 12), min_size=1, max_size=7),
    st.sets(st.integers(1, 12), max_size=1),
    st.sets(st.integers(1, 12)),
    st.dictionaries(st.integers(1, 12), st.sampled_from([0.0, GRACE - 1, GRACE, 10 * GRACE]), max_size=5),
    st.sets(st.integers(1, 12), max_size=1),
)


def votes(servers: Sequence[Server]) -> int:
    return sum(one.votes for one in servers)


@given(every)
def test_no_choice_of_a_machine_lowers_a_quorum_or_gives_up_early_or_counts_on_who_is_silent(
    circumstances: Circumstances,
) -> None:
    choice, before = choose(circumstances), circumstances.members
    if choice.servers is None:
        return
    wanted = member_count(len(circumstances.normal))
    assert votes(choice.servers) % 2 == 1
    assert votes(choice.servers) >= min(wanted - (wanted + 1) % 2, votes(before) - (votes(before) + 1) % 2)
    assert not circumstances.troubles.keys() & {one.number for one in choice.servers}
    assert all(circumstances.silent[n] >= GRACE for n in circumstances.troubles.keys() & {m.number for m in before})
    reached = {one.number: one for one in before}
    while (step := next_step(tuple(reached.values()), choice.servers)) is not None:
        if step.joining is not None:
            assert step.joining.number not in circumstances.troubles
            reached[step.joining.number] = step.joining
        else:
            assert step.leaving is not None
            del reached[step.leaving]
        answering = [one for one in reached.values() if one.number not in circumstances.troubles]
        assert 2 * votes(answering) > votes(list(reached.values()))


@given(every)
def test_choices_come_to_an_end_while_nothing_else_changes(circumstances: Circumstances) -> None:
    seen = []
    while (choice := choose(circumstances)).servers is not None:
        assert choice.servers not in seen
        seen.append(choice.servers)
        circumstances = msgspec.structs.replace(circumstances, members=choice.servers, runs_on=choice.runs_on)
    assert len(seen) <= 2


def test_an_hour_in_which_nobody_looked_is_no_hour_of_silence() -> None:
    silence, one, other = Silence(), server(1), server(2)
    assert silence.seen([one], 1_000.0) == {1: 0.0}
    assert silence.seen([one, other], 1_060.0) == {1: 60.0, 2: 0.0}
    assert silence.seen([one, other], 4_660.0) == {1: 60.0 + 2 * RETRY_SECONDS, 2: 2 * RETRY_SECONDS}
    assert silence.seen([other], 4_670.0) == {2: 2 * RETRY_SECONDS + 10.0}
    assert silence.seen([one, server(2, "elsewhere")], 4_680.0) == {1: 0.0, 2: 0.0}
