"""Which ZooKeeper servers a cluster is to have, how they are named on the command line, and what their files hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from epochlake.jobs.upkeep.coordination_choice import chosen_servers
from epochlake.jobs.upkeep.coordination_members import Ensemble, _parsed
from epochlake.metastore.coordination.ensemble import (
    OBSERVER,
    EnsembleConfiguration,
    Server,
    parse_configuration,
    parse_server,
)
from epochlake.metastore.coordination.reconfiguring import EnsembleNotes
from epochlake.metastore.coordination.server_files import DYNAMIC, STATIC, digest_of, write_server_files
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import Node, NodeId, NodeState
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.log_members import member_count
from epochlake.testing import local_cluster

from tests.support.command_line import CommandLine
from tests.support.storages import STORAGE


def server(number: int) -> Server:
    return parse_server(f"{number}=zk{number}:2888:3888;2181")


def nodes(racks: Sequence[str]) -> dict[str, Node]:
    """A node for each, n01, n02, …"""
    return {
        f"n{at:02}": Node(NodeId(at), f"n{at:02}", f"h{at}", "dc1", rack, (), NodeState.NORMAL)
        for at, rack in enumerate(racks, 1)
    }


def chosen(racks: Sequence[str], members: Sequence[Server] = (), spares: int | None = None) -> list[Server] | None:
    """Of a server for each node, with the number of the node, or for the first `spares` of them."""
    normal = nodes(racks)
    found = {name: [server(int(name[1:]))] for name in list(normal)[:spares]}
    return chosen_servers(found, normal, {one.number: one for one in members}, member_count(len(normal)))


@pytest.mark.parametrize(
    ("size", "voters", "observers"), [(1, 1, 0), (2, 1, 0), (3, 3, 0), (5, 3, 0), (6, 5, 0), (100, 5, 0), (101, 9, 1)]
)
def test_as_many_members_as_the_size_of_the_cluster_asks_for_and_an_odd_number_votes(
    size: int, voters: int, observers: int
) -> None:
    found = chosen([f"r{at % 10}" for at in range(size)])
    assert found is not None
    assert [sum(one.votes for one in found), sum(not one.votes for one in found)] == [voters, observers]


def test_members_are_spread_over_racks_and_those_of_before_stay() -> None:
    assert chosen(["a", "a", "a", "b", "c"]) == [server(1), server(4), server(5)]
    assert chosen(["a", "a", "a", "b", "c"], [server(3), server(5)]) == [server(3), server(4), server(5)]
    # Rack a has two of the three: one of them gives way.
    assert chosen(["a", "a", "b", "c"], [server(1), server(2), server(3)]) == [server(1), server(3), server(4)]


def test_of_ten_the_one_that_observed_before_goes_on_observing() -> None:
    before = [server(number).as_role(OBSERVER) if number == 3 else server(number) for number in range(1, 11)]
    assert chosen([f"r{at % 10}" for at in range(101)], before) == before


def test_of_two_servers_on_one_node_the_one_that_is_there_is_enough() -> None:
    normal = nodes(["a", "b", "c"])
    found = {"n01": [server(1), server(7)], "n02": [server(2)], "n03": [server(3), server(9)]}
    assert chosen_servers(found, normal, {7: server(7)}, 3) == [server(7), server(2), server(3)]


def test_too_few_nodes_with_a_server_are_no_reason_to_have_fewer() -> None:
    assert chosen(["a", "b", "c"], spares=2) is None
    assert chosen([]) is None


def test_known_servers_are_named_by_their_numbers() -> None:
    known = {4: server(4), 5: server(5).as_role(OBSERVER)}
    servers, runs_on = _parsed(["4:observer@n4", "5@n5", "6=zk6:2888:3888;2181@n6", "5:voter"], known)
    assert servers == [server(4).as_role(OBSERVER), server(5), server(6), server(5)]
    assert runs_on == {4: "n4", 5: "n5", 6: "n6"}


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("7", "server 7 is not known"),
        ("4:leader", "'leader' is no part"),
        ("zk4", "is no server"),
        ("²", "is no server"),
        ("9" * 5000, "is no server"),
    ],
)
def test_what_names_no_server_is_refused(named: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        _parsed([named], {4: server(4)})


class Quiet:
    """An ensemble of three servers that nobody has to ask."""

    def configuration(self) -> EnsembleConfiguration:
        return EnsembleConfiguration(1, (server(1), server(2), server(3)))

    def notes(self) -> EnsembleNotes:
        return EnsembleNotes(nodes={"1": "gone"})


def ensemble() -> Ensemble:
    made = Ensemble.__new__(Ensemble)
    made.mover = Quiet()  # type: ignore[assignment]
    return made


def test_a_server_runs_on_a_node_that_the_log_names_as_far_as_the_log_can_be_read(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "lake", nodes=2, replication=2, racks=2) as lake:
        metadata = lake.cluster.catch_up()
        words = ["1", "2@n2", "4=zk4:2888:3888;2181@nosuchnode"]
        with pytest.raises(
            InvalidRequest, match="server 4 is said to run on nosuchnode, and the log names no"
        ) as error:
            ensemble().named(words, lambda: metadata)
        assert error.value.hint == "Name one of its nodes (n1, n2), or leave out @nosuchnode"
        with pytest.raises(InvalidRequest, match="server 4 is said to run on nosuchnode"):
            ensemble().propose(lake.cluster, words)
    proposed = ensemble().named(["1", "2@n2", "4=zk4:2888:3888;2181@n1"], lambda: metadata)
    assert proposed.runs_on == {"2": "n2", "4": "n1"}

    def away() -> ClusterMetadata:
        raise StorageUnavailable("the root is away")

    def unasked() -> ClusterMetadata:
        raise AssertionError("nothing was said of a node")

    assert ensemble().named(words, away).runs_on == {"2": "n2", "4": "nosuchnode"}
    assert ensemble().named(["1", "2", "3"], unasked).runs_on == {}


def test_a_server_begins_with_the_members_and_itself_and_keeps_what_somebody_has_set(tmp_path: Path) -> None:
    place = tmp_path / "größer"
    write_server_files(STORAGE, str(place), server(4), [server(1), server(2)], "super:secret")
    settings = (place / STATIC).read_text(encoding="latin-1")
    assert (place / "data" / "myid").read_text() == "4\n"
    assert parse_configuration((place / DYNAMIC).read_text()).servers == (server(1), server(2), server(4))
    assert f"superDigest={digest_of('super:secret')}\n" in settings
    assert "secret" not in settings.replace("superDigest", "")
    assert f"dynamicConfigFile={tmp_path}/gr\\u00f6\\u00dfer/zoo.cfg.dynamic\n" in settings
    # As ZooKeeper leaves it, and somebody has changed it.
    changed = settings.replace("tickTime=500", "tickTime=2000").replace(DYNAMIC, f"{DYNAMIC}.100000003")
    (place / STATIC).write_text(changed, encoding="latin-1")
    write_server_files(STORAGE, str(place), server(4), [server(2), server(4)])
    again = (place / STATIC).read_text(encoding="latin-1")
    assert sorted(again.splitlines()) == sorted(settings.replace("tickTime=500", "tickTime=2000").splitlines())
    assert parse_configuration((place / DYNAMIC).read_text()).servers == (server(2), server(4))


def test_a_directory_with_the_data_of_another_server_is_left_as_it_is(tmp_path: Path) -> None:
    write_server_files(STORAGE, str(tmp_path), server(4), [server(1)])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(InvalidRequest, match="has the data of server 4, and server 5 is to be prepared there"):
        write_server_files(STORAGE, str(tmp_path), server(5), [server(1)])
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    (tmp_path / "data" / "myid").write_text("")  # torn, by whoever wrote it
    write_server_files(STORAGE, str(tmp_path), server(5), [server(1)])


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("1=zk9:2888:3888;2181", "server 1 is at zk1:2888:3888 already"),
        ("9=zk1:2888:3888;2181", "zk1:2181 is the address of two servers"),
        ("4=zk4:2888:3888", "no address for clients"),
        ("4=zk4:2888:99999;2181", "99999 is no port"),
        ("4=zk4:0:3888;2181", "0 is no port"),
        ("4=zk4:2888:3888;2888", "server 4 has one port for two purposes"),
        ("256=zk4:2888:3888;2181", "256 is no number of a ZooKeeper server"),
        ("0=zk4:2888:3888;2181", "0 is no number of a ZooKeeper server"),
        ("4=0.0.0.0:2888:3888;2181", "0.0.0.0:2888:3888 is no address at which other servers could reach server 4"),
        ("4=zk4:2888:3888|[::]:2888:3888;2181", "is no address at which other servers could reach server 4"),
    ],
)
def test_a_server_that_would_take_the_place_of_another_or_not_start_is_not_prepared(
    tmp_path: Path, written: str, reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        write_server_files(STORAGE, str(tmp_path / "place"), parse_server(written), [server(1), server(2)])
    assert not (tmp_path / "place").exists()


def test_the_command_that_starts_a_server_is_one_line_in_a_narrow_terminal(
    empty: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = ("metadata", "prepare-server", tmp_path / "a place", "1=zk1:2888:3888;2181", "--alone")
    command = empty.done(*words)["command"]
    assert len(command) > 80
    assert empty.text(*words).out.splitlines()[-1] == command


def test_a_digest_is_what_zookeeper_makes_of_a_password() -> None:
    # The digest that ZooKeeper's own tests have for this password.
    assert digest_of("super:super") == "super:gG7s8t3oDEtIqF6DM9LlI/R+9Ss="


def test_the_embedded_zookeeper_has_no_coordination_members(
    empty: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in (["describe"], ["reconfigure", "--status"]):
        refused = empty.json("metadata", *words, "--coordination")
        assert (refused.code, refused.error["hint"][:14]) == (2, "Set up servers")
    monkeypatch.setenv("EPOCHLAKE__ZOOKEEPER__OPERATOR", "super:secret")
    assert "secret" not in empty.text("config", "show").out


@pytest.mark.parametrize("words", [["--auto", "--resume"], ["4", "--accept-loss"], ["--resume", "--dry-run"], []])
def test_what_does_not_go_together_is_refused(empty: CommandLine, words: list[str]) -> None:
    assert empty.json("metadata", "reconfigure", "--coordination", *words).code == 2
