"""Commands on clusters with keyspaces on the ring: what they ask for, what a dry run tells, what is refused."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from epochlake.jobs import administration, spark_session
from epochlake.jobs.administration import unused_files
from epochlake.jobs.cli.reference import DOCUMENTS
from epochlake.jobs.cli.text.coordinator import live
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.coordinator.coordinator import Progress
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.replica import open_snapshot
from epochlake.jobs.upkeep import compaction
from epochlake.jobs.upkeep.compacting import EVERYTHING
from epochlake.jobs.upkeep.compaction import Budget, CompactionReport
from epochlake.jobs.views import status as status_module
from epochlake.jobs.views.open_requests import CoordinatorStatus
from epochlake.jobs.views.status import operations_in_flight, status
from epochlake.metastore.metadata.events import StartRequest
from epochlake.metastore.metadata.model import RequestState
from epochlake.placement.ring.state import Step
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN
from rich.console import Console

from tests.support import clusters
from tests.support.command_line import COLUMNS, CommandLine, fits
from tests.support.rings import FOUR, QUICK, TURN, RingCluster, join, leave, ringed
from tests.support.slices import sliced
from tests.support.storages import STORAGE

ADD = ["node", "add", "X", "--datacenter", "dc1", "--rack", "r2", "--volume", "disk/x,1GB"]


@pytest.fixture
def ring(alone: None, tmp_path: Path) -> RingCluster:
    """Four nodes in three racks, keyspace `air` at three replicas on the ring, a table with rows."""
    return ringed(tmp_path, FOUR, configuration=QUICK)


@pytest.fixture
def line(ring: RingCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line on the cluster of `ring`."""
    return CommandLine(tmp_path / "root", capsys)


@pytest.fixture(scope="session")
def _ring_kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("ring")
    with pytest.MonkeyPatch.context() as patched:
        clusters.without_zookeeper(patched)
        ring = ringed(directory, FOUR, configuration=QUICK)
        administration.create_keyspace(ring.cluster, "flat", {"dc1": 1})
        administration.create_table(ring.cluster, "flat.t", clusters.COLUMNS, ["id"], tablets=4)
        ring.cluster.close()
    return directory


@pytest.fixture
def kept(
    alone: None, _ring_kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    """Like `line`, with keyspace `flat` on tablets; one cluster for all tests that must not change it."""
    monkeypatch.chdir(_ring_kept)
    return CommandLine(_ring_kept / "root", capsys)


# --- tokens on the command line ------------------------------------------------------------------------------------

TOKENS: dict[str, tuple[list[str], list[int]]] = {
    "with a space": (["--token", "-123"], [-123]),
    "with an equals sign": (["--token=-123"], [-123]),
    "several": (["--token=5", "--token", "-5"], [-5, 5]),
    "parted by commas": (["--token", "-7,+8, 9"], [-7, 8, 9]),
    "the least and the greatest": (["--token", str(MIN_TOKEN), f"--token={MAX_TOKEN}"], [MIN_TOKEN, MAX_TOKEN]),
    "none": ([], []),
}


@pytest.mark.parametrize(("words", "tokens"), TOKENS.values(), ids=TOKENS)
def test_tokens_are_taken_with_their_signs_however_they_are_given(
    kept: CommandLine, words: list[str], tokens: list[int]
) -> None:
    for command in (ADD, ["node", "replace", "D", "X", "--volume", "disk/x,1GB", "--force"]):
        assert kept.done(*command, *words, "--dry-run")["payload"].get("tokens", []) == tokens
    if tokens:
        assert kept.done("node", "move", "D", *words, "--dry-run")["payload"]["tokens"] == tokens


def test_tokens_that_are_counted_even_out_what_nodes_of_the_rack_own(kept: CommandLine) -> None:
    planned = kept.done(*ADD, "--tokens", "3", "--dry-run")
    tokens = planned["payload"]["tokens"]
    assert len(set(tokens)) == 3
    (operation,) = planned["ring"]["operations"]
    assert operation["tokens"] == tokens
    (moved,) = operation["keyspaces"]
    # Rack r2 has one node, which holds everything: half of it is the newcomer's.
    assert moved["share"] == pytest.approx(0.5, abs=0.01)


def test_two_nodes_that_are_added_one_after_the_other_get_different_tokens(line: CommandLine) -> None:
    line.done(*ADD, "--tokens", "2")
    second = [word.replace("X", "Y").replace("disk/x", "disk/y") for word in ADD]
    line.done(*second, "--tokens", "2")
    first, other = (set(line.done("log", "show", str(epoch))["payload"]["tokens"]) for epoch in last_two(line))
    assert (len(first), len(other), first & other) == (2, 2, set())


def last_two(line: CommandLine) -> list[int]:
    newest = line.log()[-1][0]
    return [newest - 1, newest]


# --- dry runs ------------------------------------------------------------------------------------------------------

DRY: dict[str, tuple[list[str], str, int]] = {
    "add": ([*ADD, "--token", "0"], "join of node X", 1),
    "move": (["node", "move", "D", "--token", "-5"], "move of node D", 1),
    "decommission": (["node", "decommission", "D"], "leave of node D", 1),
    "forced decommission": (["node", "decommission", "B", "--force"], "leave of node B", 1),
    "remove": (["node", "remove", "D", "--force"], "remove of node D", 1),
    "replace": (["node", "replace", "D", "X", "--volume", "disk/x,1GB", "--force"], "replace of node D by node X", 1),
    "rebuild": (["node", "rebuild", "D", "--from", "dc1"], "rebuild of node D from dc1", 1),
    "more replicas": (["keyspace", "alter", "air", "--replication", "dc1=4"], "change of keyspace air to dc1=4", 1),
    "fewer replicas": (["keyspace", "alter", "air", "--replication", "dc1=1"], "change of keyspace air to dc1=2", 2),
    "another strategy": (
        ["keyspace", "alter", "air", "--replication", "3"],
        "change of keyspace air to replication_factor=3",
        1,
    ),
}


@pytest.mark.parametrize(("words", "what", "operations"), DRY.values(), ids=DRY)
def test_a_dry_run_shows_steps_locks_and_bytes_and_leaves_everything_as_it_is(
    kept: CommandLine, words: list[str], what: str, operations: int
) -> None:
    before, files = kept.log(), sorted(kept.root.parent.rglob("*"))
    ring = kept.done(*words, "--dry-run")["ring"]
    assert (len(ring["operations"]), ring["operations"][0]["what"]) == (operations, what)
    assert (ring["obstacle"], ring["obstacle_code"]) == (None, None)
    for operation in ring["operations"]:
        assert operation["steps"] == ["PREPARE", "START", "MID", "FINISH"]
        (moved,) = operation["keyspaces"]
        assert moved["keyspace"] == "air"
        assert moved["locked"]
        assert (moved["bytes"] > 0) == (moved["share"] > 0) == (moved["ranges"] > 0)
    text = " ".join(kept.text(*words, "--dry-run").out.split())
    assert what in text
    assert "PREPARE → START → MID → FINISH" in text
    assert (kept.log(), sorted(kept.root.parent.rglob("*"))) == (before, files)


def test_a_dry_run_says_what_an_operation_in_flight_would_make_it_wait_for(
    line: CommandLine, ring: RingCluster
) -> None:
    request = join(ring)
    ring.until(Step.START)
    ring_plan = line.done("node", "move", "B", "--token", str(TURN), "--dry-run")["ring"]
    assert ring_plan["obstacle_code"] == "ranges-locked"
    assert request in ring_plan["obstacle"]
    assert "it would wait" in line.text("node", "move", "B", "--token", str(TURN), "--dry-run").out


def test_bytes_of_a_plan_are_those_of_the_files(kept: CommandLine) -> None:
    nodes = {node["name"]: node for node in kept.done("status")["nodes"]}
    # D holds a part of what A holds too; all that B has is what a rebuild of B streams.
    (operation,) = kept.done("node", "rebuild", "B", "--dry-run")["ring"]["operations"]
    assert operation["keyspaces"][0]["bytes"] == pytest.approx(nodes["B"]["bytes"], rel=0.05)


# --- what is refused -----------------------------------------------------------------------------------------------

BAD: dict[str, tuple[list[str], int, list[str]]] = {
    "no token": ([*ADD, "--token", "x"], 2, ["'x'", "whole number"]),
    "token too great": ([*ADD, "--token", str(2**63)], 2, [str(2**63)]),
    "token twice": ([*ADD, "--token", "1", "--token", "1"], 2, ["token 1", "twice"]),
    "empty token": ([*ADD, "--token", "1,"], 2, ["''"]),
    "tokens of a node": ([*ADD, "--token", str(2 * TURN)], 3, [str(2 * TURN), "'C'"]),
    "tokens given and counted": ([*ADD, "--token", "1", "--tokens", "2"], 2, ["one of the two"]),
    "no tokens": ([*ADD, "--tokens", "0"], 2, ["0 tokens"]),
    "too many tokens": ([*ADD, "--tokens", "5000"], 2, ["5000 tokens", "1024"]),
    "tokens that are no number": ([*ADD, "--tokens", "many"], 2, ["--tokens"]),
    "unknown node shown": (["node", "show", "Z"], 3, ["'Z'"]),
    "move to nowhere": (["node", "move", "D"], 2, ["--token", "--tokens"]),
    "move to where it is": (["node", "move", "D", "--token", str(6 * TURN)], 3, ["'D'", "already"]),
    "move of nobody": (["node", "move", "Z", "--token", "1"], 3, ["'Z'"]),
    "leave below replication": (["node", "decommission", "B"], 3, ["'B'", "rack"]),
    "rebuild of nobody": (["node", "rebuild", "Z"], 3, ["'Z'"]),
    "rebuild from nowhere": (["node", "rebuild", "D", "--from", "dc9"], 3, ["'dc9'"]),
    "pause of nothing": (["request", "pause", "D"], 3, ["'D'", "no open request"]),
    "resume of an unknown one": (["request", "resume", "no-such"], 3, ["no-such", "request list"]),
    "cancel of a keyspace at rest": (["request", "cancel", "air"], 3, ["'air'", "no open request"]),
    "a datacenter more for tablets": (
        ["keyspace", "alter", "flat", "--replication", "dc1=1,dc2=1"],
        3,
        ["'flat'", "dc2", "no node"],
    ),
    "replication of tablets above nodes": (
        ["keyspace", "alter", "flat", "--replication", "dc1=9"],
        3,
        ["9 replicas", "4"],
    ),
    "replication as it is": (["keyspace", "alter", "air", "--replication", "dc1=3"], 3, ["already"]),
    "replication above nodes": (["keyspace", "alter", "air", "--replication", "dc1=9"], 3, ["9 replicas", "4"]),
    "no replication": (["keyspace", "alter", "air", "--replication", "dc1=0"], 3, ["no replica"]),
    "unreadable replication": (["keyspace", "alter", "air", "--replication", "many"], 2, ["'many'"]),
    "strategy of another replication": (
        ["keyspace", "alter", "air", "--replication", "dc1=2", "--strategy", "SimpleStrategy"],
        2,
        ["SimpleStrategy takes one number", "dc1=2"],
    ),
    "replication of another strategy": (
        ["keyspace", "create", "k", "--replication", "3", "--strategy", "NetworkTopologyStrategy"],
        2,
        ["dc1=3", "replication_factor=3"],
    ),
    "unknown strategy": (["keyspace", "alter", "air", "--replication", "dc1=2", "--strategy", "X"], 2, ["--strategy"]),
    "unknown keyspace": (["keyspace", "alter", "none", "--replication", "dc1=2"], 3, ["'none'"]),
    "unknown placement": (["keyspace", "create", "k", "--placement", "disk", "--replication", "3"], 2, ["disk"]),
    "simple strategy for tablets": (["keyspace", "create", "k", "--replication", "3"], 3, ["SimpleStrategy"]),
    "more than nodes": (["keyspace", "create", "k", "--placement", "ring", "--replication", "5"], 3, ["5 replicas"]),
    "tablets on the ring": (
        ["table", "create", "air.t", "--column", COLUMNS, "--primary-key", "id", "--tablets", "4"],
        2,
        ["'air'", "no tablets"],
    ),
    "range too high": (["placement", "explain", "air.flights", "--range", "99"], 2, ["range 99", "0 to"]),
    "unknown table repaired": (["repair", "air.no"], 3, ["air.no"]),
    "unknown table compacted": (["compact", "air.no"], 3, ["air.no"]),
    "no size": (["compact", "air.flights", "--target-size", "big"], 2, ["'big'"]),
    "no duration": (["compact", "air.flights", "--tombstone-grace", "soon"], 2, ["'soon'"]),
}


@sliced(at_least=15)
@pytest.mark.parametrize(("words", "code", "said"), BAD.values(), ids=BAD)
def test_bad_input_is_one_clear_error_and_changes_nothing(
    kept: CommandLine, words: list[str], code: int, said: list[str]
) -> None:
    before = kept.log()
    result = kept.text(*words)
    assert result.code == code, result.err
    assert [word for word in said if word not in result.error_text] == [], result.err
    assert kept.json(*words).error["exit_code"] == code
    assert kept.log() == before


@pytest.mark.parametrize("words", [words for words, _, _ in DRY.values()], ids=DRY)
def test_a_request_is_rejected_when_the_cluster_is_not_at_the_expected_epoch(
    kept: CommandLine, words: list[str]
) -> None:
    before = kept.log()
    for more in ([], ["--dry-run"]):
        result = kept.json(*words, "--expect-epoch", "3", *more)
        assert (result.code, result.error["code"]) == (3, "epoch-moved")
    assert kept.log() == before


def test_requests_are_asked_for_once_and_not_beside_each_other(line: CommandLine) -> None:
    first = line.done("node", "decommission", "D", "--request-id", "once", "--reason", "because")
    again = line.json("node", "decommission", "D", "--request-id", "once")
    assert (again.code, again.json["epoch"], again.json["already"]) == (0, first["epoch"], True)
    assert line.done("log", "show", str(first["epoch"]))["reason"] == "because"
    busy = line.json("node", "move", "D", "--token", "5")
    assert (busy.code, busy.error["code"]) == (3, "request-in-the-way")
    line.done(*ADD, "--token", "7")
    second = [word.replace("X", "Y").replace("disk/x", "disk/y") for word in ADD]
    taken = line.json(*second, "--token", "7")
    assert (taken.code, taken.error["code"]) == (3, "tokens-taken")


# --- requests, from asking to ending -------------------------------------------------------------------------------


def test_a_request_is_listed_paused_resumed_and_cancelled(line: CommandLine, ring: RingCluster) -> None:
    asked = line.done("node", "decommission", "D", "--reason", "old")["request_id"]
    (row,) = line.done("request", "list")
    assert (row["request_id"], row["kind"], row["about"], row["reason"]) == (asked, "leave", "D", "old")
    line.done("request", "pause", "D", "--reason", "busy")
    (shown,) = line.done("status")["requests"]
    assert (shown["paused"], shown["detail"]) == (True, "busy")
    assert any("request resume" in obstacle for obstacle in shown["blocked_by"])
    assert not ring.round()
    assert ring.request(asked).state is RequestState.PENDING
    assert line.json("request", "pause", asked).error["code"] == "nothing-to-do"
    line.done("request", "resume", asked)
    line.done("request", "cancel", "D", "--reason", "not today")
    assert line.done("request", "list") == []
    ended = line.done("request", "list", "--all")[-1]
    assert (ended["state"], ended["detail"]) == ("cancelled", "not today")
    assert "cancelled" in line.text("request", "list", "--all").out


def test_a_change_of_replication_is_asked_for_and_named_by_its_keyspace(line: CommandLine, ring: RingCluster) -> None:
    line.done("keyspace", "alter", "air", "--replication", "dc1=2", "--reason", "room")
    (shown,) = line.done("status")["requests"]
    assert (shown["node"], shown["keyspace"], shown["kind"]) == ("", "air", "keyspace_rf_change")
    assert "replication of air" in line.text("status").out
    assert "replication of air" in line.text("request", "list").out
    ring.settle()
    assert line.done("keyspace", "list")[0]["replication"] == {"dc1": 2}
    summaries = [row["summary"] for row in line.done("log", "list")]
    assert "PREPARE of the change of replication of keyspace air" in summaries
    assert line.done("log", "verify", "--tablets", "--quorums")["holds"]


def test_a_change_of_replication_that_has_begun_names_the_operation_that_it_waits_for(
    line: CommandLine, ring: RingCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_module, "coordinator_status", lambda _: CoordinatorStatus("answers", "host:1"))
    leave(ring)
    ring.until(Step.START)
    line.done("keyspace", "alter", "air", "--replication", "dc1=2", "--request-id", "fewer")
    ring.cluster.commit(StartRequest("fewer"))
    waiting = next(row for row in line.done("status")["requests"] if row["request_id"] == "fewer")
    assert waiting["state"] == "running"
    (obstacle,) = waiting["blocked_by"]
    assert "locked by" in obstacle
    assert "leave of node 'D'" in obstacle


def test_an_operation_tells_its_step_its_locks_and_how_far_it_is(
    line: CommandLine, ring: RingCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_module, "coordinator_status", lambda _: CoordinatorStatus("answers", "host:1"))
    request = leave(ring)
    ring.until(Step.START)
    (operation,) = line.done("status")["operations"]
    assert (operation["request_id"], operation["what"]) == (request, "leave of node D")
    assert (operation["step"], operation["next_step"], operation["cancelling"]) == ("START", "MID", False)
    assert operation["session"]
    assert operation["keyspaces"] == ["air"]
    assert operation["locked_ranges"] > 0
    streamed = operation["streamed"]
    assert 0 <= streamed["bytes_streamed"] <= streamed["bytes_total"]
    assert streamed["rows_total"] > 0
    assert status(ring.cluster, ask_volumes=False).operations[0].streamed is None
    text = " ".join(line.text("status").out.split())
    assert "START done" in text
    assert "MID comes next" in text
    assert line.done("status")["requests"][0]["blocked_by"] == []
    ring.lose("C")
    (silent,) = line.done("status")["requests"][0]["blocked_by"]
    assert "C/d1" in silent


def test_an_operation_that_is_cancelled_after_its_reads_moved_is_told_on_its_way_back(
    line: CommandLine, ring: RingCluster
) -> None:
    request = leave(ring)
    ring.until(Step.MID)
    line.done("request", "cancel", request, "--reason", "wrong node")
    (shown,) = line.done("status")["requests"]
    assert (shown["state"], shown["detail"]) == ("cancelling", "wrong node")
    (operation,) = line.done("status")["operations"]
    assert (operation["cancelling"], operation["next_step"]) == (True, None)
    assert "is being taken back" in line.text("status").out
    ring.settle()
    assert ring.request(request).state is RequestState.CANCELLED
    summaries = [row["summary"] for row in line.done("log", "list")]
    assert "MID of leave of node D, taken back" in summaries
    assert "leave of node D is cancelled" in summaries
    assert summaries[-1] == "leave of node D is taken back"
    assert line.done("log", "verify", "--tablets", "--quorums")["holds"]


def test_vacuum_looks_at_every_volume_of_a_table_on_the_ring(
    line: CommandLine, ring: RingCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cluster, "coordination", lambda *_: None)
    monkeypatch.setattr(unused_files, "live_leases", lambda _: [])
    swept = line.done("vacuum")["replicas"]
    assert sorted(replica["volume"] for replica in swept) == ["A/d1", "B/d1", "C/d1", "D/d1"]
    assert {(replica["files"], replica["obstacle"]) for replica in swept} == {(0, None)}
    assert "1970-01-01" in line.text("vacuum", "--older-than", "300000d").out
    ring.lose("D")
    assert [replica["volume"] for replica in line.done("vacuum")["replicas"] if replica["obstacle"]] == ["D/d1"]


# --- looking at the ring -------------------------------------------------------------------------------------------


def test_ranges_end_exactly_at_the_tokens_of_nodes(kept: CommandLine) -> None:
    shown = kept.done("placement", "show", "air.flights")
    ends = [row["token_end"] for row in shown["rows"]]
    assert ends == [*(token * TURN for token in (-6, -2, 2, 6)), MAX_TOKEN]
    assert [row["token_start"] for row in shown["rows"]] == [MIN_TOKEN, *ends[:-1]]
    assert (shown["placement"], shown["tablets"]) == ("ring", 5)


def test_a_row_on_the_ring_is_explained_with_the_operation_that_moves_it(line: CommandLine, ring: RingCluster) -> None:
    by_key = line.done("placement", "explain", "air.flights", "--key", "id=7")
    assert by_key["operation"] is None
    assert [replica["role"] for replica in by_key["replicas"]] == ["replica"] * 3
    assert "The range is settled" in line.text("placement", "explain", "air.flights", "--key", "id=7").out
    leave(ring)
    ring.until(Step.START)
    found = line.done("placement", "explain", "air.flights", "--token", str(5 * TURN))
    by_role = {replica["role"]: replica for replica in found["replicas"]}
    assert (by_role["leaving"]["node"], by_role["leaving"]["reads"], by_role["leaving"]["writes"]) == ("D", True, True)
    assert (by_role["pending"]["reads"], by_role["pending"]["writes"]) == (False, True)
    assert (found["operation"]["reads_from"], found["operation"]["writes_to"]) == ("old", "both")
    rows = line.done("placement", "show", "air.flights")["rows"]
    assert {row["stage"] for row in rows if len(row["writes"]) > len(row["reads"])} == {"START"}
    epoch = line.log()[-1][0]
    ring.settle()
    assert line.done("placement", "explain", "air.flights", "--token", str(5 * TURN), "--at", str(epoch)) == found


LOOKS: dict[str, list[str]] = {
    "status": ["status"],
    "node list": ["node", "list", "--all"],
    "node show": ["node", "show", "B"],
    "request list": ["request", "list", "--all"],
    "keyspace list": ["keyspace", "list"],
    "table list": ["table", "list"],
    "table show": ["table", "show", "air.flights"],
    "log verify": ["log", "verify", "--tablets", "--quorums"],
    "placement show": ["placement", "show", "air.flights"],
    "placement explain": ["placement", "explain", "air.flights", "--key", "id=7"],
    "plan balance": ["plan", "balance"],
    "plan resize": ["plan", "resize"],
    "repair": ["repair", "air.flights", "--dry-run"],
    "compact": ["compact", "air.flights", "--dry-run"],
}


@pytest.mark.parametrize(("command", "words"), LOOKS.items(), ids=LOOKS)
def test_documents_of_a_ring_have_the_documented_keys_and_fit_a_terminal(
    kept: CommandLine, command: str, words: list[str]
) -> None:
    assert fits(kept.done(*words), DOCUMENTS[command])
    text = kept.text(*words)
    assert text.code == 0
    assert max(len(row) for row in text.out.splitlines()) <= 80, text.out


def test_status_tells_who_owns_how_much_of_each_keyspace(kept: CommandLine) -> None:
    nodes = {node["name"]: node for node in kept.done("status")["nodes"]}
    assert {name: node["tokens"] for name, node in nodes.items()} == dict.fromkeys("ABCD", 1)
    assert sum(node["owns"]["air"] for node in nodes.values()) == pytest.approx(3)
    assert nodes["B"]["owns"]["air"] == pytest.approx(1)
    assert "The ring" in kept.text("status").out
    assert kept.done("node", "show", "C")["tokens"] == [2 * TURN]
    assert str(2 * TURN) in kept.text("node", "show", "C").out


def test_a_table_is_created_on_all_volumes_of_the_ring_or_not_at_all(line: CommandLine, ring: RingCluster) -> None:
    created = line.done("table", "create", "air.t", "--column", COLUMNS, "--primary-key", "id")
    assert created["what"] == "table air.t (on the ring)"
    ring.lose("C")
    before = line.log()
    for more in ([], ["--dry-run"]):
        refused = line.text("table", "create", "air.u", "--column", COLUMNS, "--primary-key", "id", *more)
        assert refused.code == 75
        assert "C" in refused.error_text
    assert line.log() == before


def test_a_replica_that_missed_a_write_is_repaired(line: CommandLine, ring: RingCluster) -> None:
    with ring.without("B"):
        ring.write_rows(ring.pipeline(), {100: TURN}, "QUORUM")
    planned = line.done("repair", "air.flights", "--dry-run")
    assert planned["differing"] == 1
    assert "would be copied" in line.text("repair", "air.flights", "--dry-run").out
    done = line.done("repair", "air.flights")
    assert [replica["replica"] for replica in done["replicas"] if replica["files"]] == ["B/d1"]
    assert line.done("repair", "air.flights", "--dry-run")["differing"] == 0


def test_a_coordinator_on_a_terminal_shows_a_bar_for_each_operation(ring: RingCluster) -> None:
    leave(ring)
    ring.until(Step.START)
    screen = Console(file=io.StringIO(), force_terminal=True, width=120)
    with live(screen, partial(operations_in_flight, ring.cluster)) as told:
        assert told is not None
        told(Progress(ring.metadata.epoch, {}, 0, 0, 0, ()))
    drawn = cast(io.StringIO, screen.file).getvalue()
    assert "leave of node D" in drawn
    assert "START done" in drawn
    with live(Console(file=io.StringIO()), tuple) as nobody:
        assert nobody is None


def test_a_repair_that_could_not_reach_a_replica_tells_what_it_did_and_is_worth_retrying(
    line: CommandLine, ring: RingCluster
) -> None:
    ring.lose("B")
    result = line.json("repair", "air.flights")
    assert result.code == 75
    assert list(result.json["unreachable"]) == ["B/d1"]
    assert "run it again" in result.err.lower()
    ring.bring_back("B")
    assert line.json("repair", "air.flights").code == 0


def test_what_a_compaction_is_asked_for_reaches_it(kept: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    report = CompactionReport("air.flights", 1, False, 5, (), (), None, None, 0, 0)
    asked: dict[str, object] = {}

    def compact(cluster: Cluster, table: str, session: object, **options: object) -> CompactionReport:
        asked.update(options, table=table, session=session)
        return report

    monkeypatch.setattr(compaction, "compact", compact)
    monkeypatch.setattr(spark_session, "session", lambda name: name)
    words = ["compact", "air.flights", "--all", "--tombstone-grace", "2h", "--target-size", "1MiB"]
    assert kept.done(*words)["ranges"] == 5
    assert asked["session"] is None
    assert kept.done(*words, "--spark")["ranges"] == 5
    assert asked == {
        "table": "air.flights",
        "session": "epochlake-compaction",
        "dry_run": False,
        "policy": EVERYTHING,
        "tombstone_grace_seconds": 7200.0,
        "target_file_bytes": 1 << 20,
        "budget": Budget(),
        "workers": None,
    }
    kept.done(*words, "--for", "1h", "--at-most", "2GB")
    assert asked["budget"] == Budget(2_000_000_000, 3600.0)
    assert "none of 5 ranges is worth compacting" in kept.text(*words).out


def test_a_repeated_request_finds_its_own_table_on_the_ring(ring: RingCluster) -> None:
    first = administration.create_table(ring.cluster, "air.t", clusters.COLUMNS, ["id"], request_id="once")
    again = administration.create_table(ring.cluster, "air.t", clusters.COLUMNS, ["id"], request_id="once")
    assert (again.committed.epoch, again.committed.already) == (first.committed.epoch, True)
    assert (again.table_id, again.tablets, first.tablets) == (first.table_id, 0, 0)
    metadata = ring.metadata
    replicas = [
        address_of(STORAGE, metadata, metadata.table("air.t"), volume)
        for volume in metadata.ring_volumes(first.table_id)
    ]
    assert len(replicas) == len(FOUR)
    assert all(open_snapshot(address).all_files == {} for address in replicas)


def test_tokens_are_printed_whole_on_narrow_terminals_and_rows_are_lines_in_a_pipe(
    kept: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = [row["token_end"] for row in kept.done("placement", "show", "air.flights")["rows"]]
    narrow = kept.text("placement", "show", "air.flights").out
    assert [end for end in ends if f" {end} " not in narrow] == []
    assert max(map(len, narrow.splitlines())) <= 80
    monkeypatch.delenv("COLUMNS")
    piped = [line.split() for line in kept.text("placement", "show", "air.flights").out.splitlines()]
    rows = [words for words in piped if words and words[0].isdecimal()]
    assert [int(words[2]) for words in rows] == ends
    assert all("/" in words[3] for words in rows)


def test_a_keyspace_on_the_ring_is_renamed_with_its_rows_and_a_node_joins_after_it(
    line: CommandLine, ring: RingCluster
) -> None:
    before = ring.cluster.catch_up().table("air.flights")
    rows = ring.cluster.count("air.flights")
    line.done("keyspace", "rename", "air", "heavens")
    ring.cluster.catch_up()
    assert ring.cluster.count("heavens.flights") == rows > 0
    ring.cluster.write("heavens.flights", [{"id": 1_000_000, "note": "after"}])
    ring.add("X", ("dc1", "r2", (7,)))
    ring.until(None)
    after = ring.cluster.catch_up().table("heavens.flights")
    assert (after.table_id, after.directory) == (before.table_id, "air")
    assert ring.cluster.count("heavens.flights") == rows + 1
