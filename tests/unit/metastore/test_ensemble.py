"""The servers of an ensemble as ZooKeeper writes them, and the steps from any set of them to any other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from epochlake.metastore.coordination.ensemble import (
    OBSERVER,
    VOTER,
    EnsembleConfiguration,
    Server,
    Step,
    next_step,
    parse_configuration,
    parse_server,
    require_change,
    require_possible,
)
from epochlake.placement.errors import InvalidRequest


def server(number: int, role: str = VOTER) -> Server:
    return Server(number, f"zk{number}:2888:3888", f"0.0.0.0:{2180 + number}", role)


@pytest.mark.parametrize(
    ("written", "shown", "reached_at"),
    [
        ("4=zk4:2888:3888;2181", "server.4=zk4:2888:3888:participant;0.0.0.0:2181", "zk4:2181"),
        ("server.4=zk4:2888:3888:observer;zk4-clients:2181", None, "zk4-clients:2181"),
        ("server.1=[::1]:2888:3888:participant;[::1]:2181", None, "[::1]:2181"),
        ("server.2=a:1:2|b:1:2:participant;0.0.0.0:2181", None, "a:2181"),
        ("server.3=zk3:2888:3888", "server.3=zk3:2888:3888:participant", ""),
        ("server.5=zk5:1:2:participant;;0.0.0.0:2281", None, ""),
        ("server.5=zk5:1:2:participant;0.0.0.0:2181;0.0.0.0:2281", None, "zk5:2181"),
    ],
)
def test_a_server_is_read_and_written_as_zookeeper_does(written: str, shown: str | None, reached_at: str) -> None:
    parsed = parse_server(written)
    assert (str(parsed), parsed.reached_at) == (shown or written, reached_at)
    assert parse_server(str(parsed)) == parsed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "4",
        "zk4:2888:3888;2181",
        "4=zk4:2888",
        "4=zk4:2888:3888:leader;2181",
        "group.1=1:2",
        "x=1:2:3;4\n5",
        "\u0664=zk4:2888:3888;2181",
        "4=z\u0137:2888:3888;2181",
        f"{'9' * 5000}=zk4:2888:3888;2181",
        f"4=zk4:{'9' * 5000}:3888;2181",
    ],
)
def test_what_is_no_server_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is no server of a ZooKeeper ensemble"):
        parse_server(text)


def test_a_configuration_has_a_version_and_says_where_clients_go() -> None:
    parsed = parse_configuration(f"{server(3, OBSERVER)}\n{server(1)}\nversion=10000000a")
    assert (parsed.version, [one.number for one in parsed.servers]) == (0x10000000A, [1, 3])
    assert ([one.number for one in parsed.voters], parsed.connect) == ([1], "zk1:2181,zk3:2183")
    assert parse_configuration("") == parse_configuration("version=0")


def test_a_configuration_with_groups_is_refused_as_steps_would_lose_them() -> None:
    with pytest.raises(InvalidRequest):
        parse_configuration(f"{server(1)}\nweight.1=2\nversion=1")


@pytest.mark.parametrize(
    ("servers", "reason"),
    [
        ([server(1), server(1, OBSERVER)], "server 1 is named twice"),
        ([server(1), server(2)], "2 of the servers would vote"),
        ([server(1, OBSERVER)], "0 of the servers would vote"),
        ([server(1), Server(2, "zk1:2888:3888", "zk2:2181", OBSERVER)], "zk1:2888:3888 is the address of two"),
        ([Server(1, "zk1:2888:3888", "")], "no address for clients"),
    ],
)
def test_what_cannot_be_an_ensemble_is_refused(servers: list[Server], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        require_possible(servers)


def test_a_server_that_is_to_be_elsewhere_under_its_number_is_refused() -> None:
    now = EnsembleConfiguration(1, (server(1), server(2, OBSERVER)))
    require_change(now, [server(1), server(2, OBSERVER)])
    require_change(now, [server(2)])
    with pytest.raises(InvalidRequest, match="server 1 is at zk1:2888:3888 already"):
        require_change(now, [Server(1, "zk9:2888:3888", "0.0.0.0:2181")])
    with pytest.raises(InvalidRequest, match="2 of the servers would vote"):
        require_change(now, [server(1), server(2)])


def test_an_even_number_votes_where_dead_ones_leave_and_nobody_else_changes() -> None:
    now = EnsembleConfiguration(1, (server(1), server(2), server(3), server(4, OBSERVER)))
    require_change(now, [server(1), server(3), server(4, OBSERVER)], dead=[2])
    require_change(now, [server(1), server(3)], dead=[2])
    require_change(now, [server(1), server(3), server(2, OBSERVER)], dead=[2])
    for target, dead in (
        ([server(1), server(3)], [3]),
        ([server(1), server(3)], []),
        ([server(1), server(4)], [2, 3]),
        ([server(1), server(2), server(3), server(4)], [1]),
        ([server(4, OBSERVER)], [1, 2, 3]),
    ):
        with pytest.raises(InvalidRequest, match="of the servers would vote"):
            require_change(now, target, dead)


def taken(servers: tuple[Server, ...], step: Step) -> tuple[Server, ...]:
    """The servers of after a step."""
    changed = step.leaving if step.joining is None else step.joining.number
    left = [one for one in servers if one.number != changed]
    return tuple(sorted([*left, step.joining] if step.joining is not None else left))


def steps(servers: tuple[Server, ...], target: tuple[Server, ...]) -> Iterator[tuple[Step, tuple[Server, ...]]]:
    """The steps, and the servers after each."""
    while (step := next_step(servers, target)) is not None:
        servers = taken(servers, step)
        yield step, servers


def ensembles() -> list[tuple[Server, ...]]:
    """All that four servers can be with an odd number of voters."""
    found = []
    for roles in itertools.product((None, VOTER, OBSERVER), repeat=4):
        members = tuple(server(number, role) for number, role in enumerate(roles, 1) if role is not None)
        if sum(one.votes for one in members) % 2:
            found.append(members)
    return found


def outlived(servers: tuple[Server, ...]) -> int:
    """How many voters may be lost at the same time."""
    return (sum(one.votes for one in servers) - 1) // 2


def test_steps_lead_from_any_servers_to_any_others_and_never_outlive_less_than_one_of_the_ends() -> None:
    for before, after in itertools.product(ensembles(), repeat=2):
        path = [before, *(servers for _, servers in steps(before, after))]
        assert path[-1] == after
        assert len(path) <= 10
        assert min(map(outlived, path)) >= min(outlived(before), outlived(after))
        assert all(any(one.votes for one in servers) for servers in path)


def test_the_next_step_depends_on_nothing_but_what_is_there_and_what_is_to_be() -> None:
    before, after = (server(1), server(2), server(3)), (server(3), server(4), server(5))
    path = [str(step) for step, _ in steps(before, after)]
    assert path == [
        "server 4 becomes a voter",
        "server 5 becomes a voter",
        "server 1 leaves",
        "server 2 leaves",
    ]
    halfway = list(steps(before, after))[1][1]
    assert [str(step) for step, _ in steps(halfway, after)] == path[2:]
    assert [str(step) for step, _ in steps(halfway, before)] == ["server 4 leaves", "server 5 leaves"]


def test_an_observer_beside_a_single_voter_leaves_before_it_votes() -> None:
    before = (server(1), server(2, OBSERVER))
    path = [str(step) for step, _ in steps(before, (server(1), server(2), server(3)))]
    assert path[:2] == ["server 2 leaves", "server 2 becomes a voter"]
    of_three = (server(1), server(2), server(3), server(4, OBSERVER))
    assert str(next_step(of_three, (server(1), server(2), server(4)))) == "server 4 becomes a voter"
