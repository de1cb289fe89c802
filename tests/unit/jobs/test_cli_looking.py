"""Commands that look: status, log, placement and plans, now and at epochs of the past, in text and as JSON."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path

import pytest
from epochlake.jobs import administration
from epochlake.jobs.cli.commands import maintenance
from epochlake.jobs.cli.documents import Changed, Planned
from epochlake.jobs.cli.main import main
from epochlake.jobs.cli.reference import CHANGE, DOCUMENTS, reference, walk
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.views import status as status_module
from epochlake.jobs.views.status import CoordinatorStatus, status
from epochlake.metastore.coordination.leases import Lease
from epochlake.metastore.metadata.events import (
    AdvanceTransitions,
    NewTransition,
    StageChange,
    StartRequest,
    StartTransitions,
)
from epochlake.placement.tablets.transitions import Kind, Stage

from tests.support.clusters import COLUMNS, finish, join
from tests.support.command_line import CommandLine, fits

REPOSITORY = Path(__file__).parents[3]
ORACLES = REPOSITORY / "tests" / "data" / "oracles"

LOOKS: dict[str, list[str]] = {
    "status": ["status"],
    "node list": ["node", "list", "--all"],
    "node show": ["node", "show", "n1"],
    "keyspace list": ["keyspace", "list"],
    "table list": ["table", "list"],
    "table show": ["table", "show", "air.flights"],
    "log list": ["log", "list"],
    "log show": ["log", "show", "5"],
    "log diff": ["log", "diff", "1"],
    "log verify": ["log", "verify", "--tablets", "--quorums"],
    "log compact": ["log", "compact"],
    "log heal": ["log", "heal", "--dry-run"],
    "placement show": ["placement", "show", "air.flights"],
    "placement explain": ["placement", "explain", "air.flights", "--key", "id=7"],
    "plan balance": ["plan", "balance"],
    "plan resize": ["plan", "resize"],
    "request list": ["request", "list", "--all"],
    "repair": ["repair", "air.flights", "--dry-run"],
    "compact": ["compact", "air.flights", "--dry-run"],
    "config show": ["config", "show"],
    "config reference": ["config", "reference"],
}


@pytest.fixture
def moving(grown: CommandLine, cluster: Cluster, tmp_path: Path) -> CommandLine:
    """A fourth node, a table, one of its tablets in stage `streaming`, and a node that is asked to leave."""
    join(cluster, tmp_path / "volumes", "n4", "r1")
    administration.pause_balancing(cluster, reason="the night load")
    created = administration.create_table(cluster, "air.flights", COLUMNS, ["id"], tablets=2)
    metadata = cluster.metadata
    volumes = {node.name: node.volumes[0].volume_id for node in metadata.directory.nodes.values()}
    # Of the two nodes in a rack each has one of the tablets.
    assert volumes["n4"] in metadata.tablets.maps[created.table_id].replicas(1)
    new = NewTransition(created.table_id, 1, Kind.MIGRATION, volumes["n4"], volumes["n1"], "evens out bytes")
    cluster.commit(StartTransitions((new,)))
    stages = [Stage.ALLOW_WRITE_BOTH_READ_OLD, Stage.WRITE_BOTH_READ_OLD, Stage.STREAMING]
    for before, after in pairwise(stages):
        session = "s-1" if after is Stage.STREAMING else None
        cluster.commit(AdvanceTransitions((StageChange(created.table_id, 1, before, after, session),)))
    administration.decommission(cluster, "n4", reason="old disks")
    return grown


@pytest.mark.parametrize(("command", "words"), LOOKS.items(), ids=LOOKS)
def test_every_document_has_exactly_the_keys_that_are_documented(
    unchanged: CommandLine, command: str, words: list[str]
) -> None:
    assert fits(unchanged.done(*words), DOCUMENTS[command])


@pytest.mark.parametrize("words", LOOKS.values(), ids=LOOKS)
def test_text_fits_a_terminal_of_eighty_columns(unchanged: CommandLine, words: list[str]) -> None:
    result = unchanged.text(*words)
    assert (result.code, result.err) == (0, "")
    if words[0] != "config":
        assert max(len(line) for line in result.out.splitlines()) <= 80, result.out


def test_every_command_is_in_the_table_of_documents() -> None:
    assert [name for name, _ in walk() if name not in DOCUMENTS] == []
    assert set(DOCUMENTS) == {name for name, _ in walk()}


def test_the_reference_in_the_documentation_is_the_one_the_code_gives() -> None:
    written = (REPOSITORY / "docs" / "cli.md").read_text(encoding="utf-8")
    assert written == reference(), "run: python -m epochlake.jobs.cli.reference > docs/cli.md"


def test_every_change_takes_the_options_of_changes() -> None:
    wanted = {"dry_run", "reason", "request_id"}
    for name, command in walk():
        if DOCUMENTS[name] == CHANGE:
            assert wanted <= {parameter.name for parameter in command.params}, name
    assert {Changed.__name__, Planned.__name__} == {"Changed", "Planned"}


def test_status_tells_nodes_requests_transitions_and_switches(moving: CommandLine) -> None:
    document = moving.done("status")
    assert {node["name"]: node["state"] for node in document["nodes"]} == dict.fromkeys(
        ("n1", "n2", "n3", "n4"), "normal"
    )
    assert sum(node["tablets"] for node in document["nodes"]) == 6
    assert all(volume["bytes"] == 0 for node in document["nodes"] for volume in node["volumes"])
    assert [(t["kind"], t["stage"], t["tablets"]) for t in document["transitions"]] == [("migration", "streaming", 1)]
    assert (document["switches"]["balancing"], document["switches"]["balancing_reason"]) == (False, "the night load")
    (request,) = document["requests"]
    assert (request["kind"], request["node"], request["reason"]) == ("leave", "n4", "old disks")
    assert request["tablets_left"] >= 1
    text = moving.text("status").out
    for said in ("n4", "leave", "old disks", "streaming", "the night load", "coordinator"):
        assert said in text


def test_status_names_the_volume_that_does_not_answer(moving: CommandLine, tmp_path: Path) -> None:
    next((tmp_path / "volumes" / "n2").glob("*.json")).unlink()
    document = moving.done("status")
    (volume,) = next(node for node in document["nodes"] if node["name"] == "n2")["volumes"]
    assert volume["bytes"] is None
    assert "volumes/n2" in volume["obstacle"]
    text = moving.text("status").out
    assert "unreachable" in text
    assert "volumes/n2" in text.replace("\n", "")
    (unasked,) = next(n for n in moving.done("status", "--metadata-only")["nodes"] if n["name"] == "n2")["volumes"]
    assert (unasked["bytes"], unasked["obstacle"]) == (None, None)


def test_health_says_which_levels_can_be_had_of_each_table_now(moving: CommandLine, tmp_path: Path) -> None:
    whole = moving.done("status", "--check")["health"]
    every = ["ONE", "TWO", "QUORUM", "LOCAL_QUORUM", "EACH_QUORUM", "ALL"]
    assert (whole["available"], whole["consistency"], whole["unavailable"]) == (True, "QUORUM", [])
    assert [(t["table"], t["reads"], t["writes"], t["obstacles"]) for t in whole["tables"]] == [
        ("air.flights", every, every, [])
    ]
    for lost, levels in (("n2", ["ONE", "TWO", "QUORUM", "LOCAL_QUORUM", "EACH_QUORUM"]), ("n3", ["ONE"])):
        next((tmp_path / "volumes" / lost).glob("*.json")).unlink()
        health = moving.done("status")["health"]
        (table,) = health["tables"]
        assert (table["reads"], table["writes"]) == (levels, levels)
        assert lost in {obstacle["place"].partition("/")[0] for obstacle in table["obstacles"]}
        assert health["available"] == (lost == "n2")
    failed = moving.text("status", "--check")
    assert failed.code == 4
    assert "air.flights cannot be read and written at QUORUM now" in " ".join(failed.err.split())
    lines = failed.out.splitlines()
    (verdict,) = [line.split() for line in lines if line.startswith("health ")]
    assert verdict == ["health", "1", "table", "cannot", "be", "had", "at", "QUORUM"]
    assert max(map(len, lines)) <= 80
    assert moving.text("status").code == 0


@pytest.mark.parametrize("unasked", [["--at", "3"], ["--metadata-only"]])
def test_a_check_that_asks_nobody_is_refused(unchanged: CommandLine, unasked: list[str]) -> None:
    assert unchanged.text("status", "--check", *unasked).code == 2
    assert unchanged.done("status", *unasked)["health"] is None


def test_a_drain_tells_its_progress_and_what_blocks_it(
    moving: CommandLine, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_module, "coordinator_status", lambda _: CoordinatorStatus("answers", "host:1"))
    request = cluster.catch_up()
    cluster.commit(StartRequest(next(r.request_id for r in request.open_requests())))
    (running,) = status(cluster).requests
    assert running.tablets_total == running.tablets_left
    assert running.blocked_by == ()
    next((tmp_path / "volumes" / "n4").glob("*.json")).unlink()
    administration.pause_changes(cluster, reason="upgrade")
    paused, gone = status(cluster).requests[0].blocked_by[:2]
    assert "upgrade" in paused
    assert "epochlake node remove n4" in gone


def test_a_request_says_that_nobody_coordinates(moving: CommandLine) -> None:
    (request,) = moving.done("status")["requests"]
    assert any("coordinator run" in obstacle for obstacle in request["blocked_by"])


def test_the_past_is_shown_as_it_was_and_asks_nobody(
    moving: CommandLine, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("coordinator_status", "measure_loads", "probe"):
        monkeypatch.setattr(status_module, name, lambda *_: pytest.fail("asked somebody about the past"))
    first_table = cluster.metadata.table("air.flights").epoch
    before = moving.done("status", "--at", str(first_table - 1))
    assert (before["now"], before["tables"], before["epoch"]) == (False, 0, first_table - 1)
    assert moving.done("status", "--at", str(first_table))["tables"] == 1
    assert moving.done("table", "list", "--at", str(first_table - 1)) == []
    assert len(moving.done("node", "list", "--at", "2")) == 1
    assert "the past" in moving.text("status", "--at", "2").out


def test_a_row_is_explained_from_its_key_to_its_replicas(moving: CommandLine) -> None:
    found = moving.done("placement", "explain", "air.flights", "--tablet", "1")
    assert found["transition"]["stage"] == "streaming"
    assert (found["transition"]["reads_from"], found["transition"]["writes_to"]) == ("old", "both")
    by_role = {replica["role"]: replica for replica in found["replicas"]}
    assert (by_role["pending"]["reads"], by_role["pending"]["writes"]) == (False, True)
    assert (by_role["leaving"]["reads"], by_role["leaving"]["writes"]) == (True, True)
    text = moving.text("placement", "explain", "air.flights", "--tablet", "1").out
    assert "evens out bytes" in " ".join(text.split())
    by_key = moving.done("placement", "explain", "air.flights", "--key", "id=7")
    by_token = moving.done("placement", "explain", "air.flights", "--token", str(by_key["token"]))
    assert by_key == by_token
    assert by_key["token_start"] < by_key["token"] <= by_key["token_end"]


def test_a_placement_shows_reads_and_writes_apart_where_they_differ(moving: CommandLine) -> None:
    rows = moving.done("placement", "show", "air.flights")["rows"]
    assert [(len(row["reads"]), len(row["writes"]), row["stage"]) for row in rows] == [
        (3, 3, None),
        (3, 4, "streaming"),
    ]
    assert len(moving.done("placement", "show", "air.flights", "--limit", "1")["rows"]) == 1


def test_the_log_is_listed_from_its_end_and_by_range_and_kind(moving: CommandLine) -> None:
    everything = moving.done("log", "list", "--limit", "0")
    assert [row["epoch"] for row in everything] == list(range(1, len(everything) + 1))
    newest = moving.done("log", "list", "--limit", "2")
    assert newest == [{**row, "left_out": len(everything) - 2} for row in everything[-2:]]
    assert moving.done("log", "list", "--first", "2", "--last", "3") == everything[1:3]
    joins = moving.done("log", "list", "--event", "RegisterNode")
    assert [row["summary"].split()[1] for row in joins] == ["n1", "n2", "n3", "n4"]
    summaries = [row["summary"] for row in everything]
    assert "join of node n1 begins" in summaries
    assert "1 tablet of air.flights: write_both_read_old → streaming" in summaries


def test_an_epoch_is_shown_with_what_it_changed_and_two_are_compared(moving: CommandLine) -> None:
    shown = moving.done("log", "show", "2")
    assert (shown["event"], shown["payload"]["name"]) == ("RegisterNode", "n1")
    assert ("node", "n1") in [(change["component"], change["name"]) for change in shown["changes"]]
    compared = moving.done("log", "diff", "1", "2")
    assert compared["changes"] == shown["changes"]
    assert moving.done("log", "diff", "2", "1")["changes"][0]["after"] is None


def test_a_sound_log_verifies_and_compacts(moving: CommandLine) -> None:
    before = moving.log()
    verified = moving.done("log", "verify", "--tablets")
    assert (verified["holds"], verified["last_epoch"], verified["findings"]) == (True, before[-1][0], [])
    assert verified["replicas"] >= 4
    assert moving.done("log", "compact")["files_added"] == 1
    assert moving.done("log", "compact")["files_removed"] == 0
    assert moving.log() == before


def test_a_plan_names_each_move_with_its_reason(grown: CommandLine, cluster: Cluster, tmp_path: Path) -> None:
    administration.create_table(cluster, "air.flights", COLUMNS, ["id"], tablets=8)
    assert grown.done("plan", "balance")["moves"] == []
    join(cluster, tmp_path / "volumes", "n4", "r1")
    epoch = cluster.metadata.epoch
    plan = grown.done("plan", "balance")
    assert {move["target"] for move in plan["moves"]} == {"n4/d1"}
    assert all(move["reason"] for move in plan["moves"])
    after = {node["node"]: node["replicas_after"] for node in plan["nodes"]}
    assert after == {"n1": 4, "n2": 8, "n3": 8, "n4": 4}
    assert cluster.catch_up().epoch == epoch
    short, long = (" ".join(grown.text("plan", "balance", *more).out.split()) for more in ([], ["--explain"]))
    assert "n1/d1 n4/d1" in short
    assert plan["moves"][0]["reason"][:20] not in short
    assert plan["moves"][0]["reason"][:20] in long
    assert "more: raise --limit" in grown.text("plan", "balance", "--explain", "--dry-run", "--limit", "1").out


def test_live_pipelines_are_listed(unchanged: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = Lease("nightly", "p-1", 7, ("air.flights",), 1_700_000_000_000, "host", 42)
    monkeypatch.setattr(Cluster, "coordination", lambda *_: None)
    monkeypatch.setattr(maintenance, "live_leases", lambda _: [lease])
    (row,) = unchanged.done("pipeline", "list")
    assert fits([row], DOCUMENTS["pipeline list"])
    assert (row["name"], row["epoch"], row["started_at"]) == ("nightly", 7, "2023-11-14T22:13:20Z")
    assert "nightly" in unchanged.text("pipeline", "list").out


@pytest.mark.parametrize("words", [[], ["node"]], ids=["nothing", "a group"])
def test_help_is_shown_where_a_command_is_missing(
    alone: None, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main(words) == 2
    printed = capsys.readouterr()
    assert "Usage: epochlake" in printed.out
    assert printed.err.splitlines() == [
        "epochlake: A command is missing.",
        f"hint: See `{' '.join(('epochlake', *words))} --help`",
    ]
    assert main([*words, "--help"]) == 0


def test_names_in_brackets_are_printed_and_not_taken_for_styles(unchanged: CommandLine) -> None:
    assert "[log] compact_every" in unchanged.text("config", "show").out


def test_storage_options_are_never_shown(unchanged: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPOCHLAKE__STORAGE__OPTIONS__AWS_SECRET_ACCESS_KEY", "hidden-value")
    for result in (unchanged.text("config", "show"), unchanged.json("config", "show")):
        assert "hidden-value" not in result.out
        assert "AWS_SECRET_ACCESS_KEY" in "".join(result.out.split())


@pytest.mark.parametrize("name", ["placements_edge", "transitions_hand"])
def test_simulating_fills_in_the_answers_of_the_same_document(
    unchanged: CommandLine, tmp_path: Path, name: str
) -> None:
    document = json.loads(gzip.decompress((ORACLES / f"{name}.json.gz").read_bytes()))
    document["cases"] = document["cases"][:3]
    file = tmp_path / "asked.json"
    file.write_text(json.dumps(document))
    answered = unchanged.done("placement", "simulate", file)
    assert [case["name"] for case in answered["cases"]] == [case["name"] for case in document["cases"]]
    text = unchanged.text("placement", "simulate", file)
    assert text.code == 0
    assert document["cases"][0]["name"] in text.out


def test_nothing_in_a_look_is_left_of_a_node_that_has_gone(
    grown: CommandLine, cluster: Cluster, tmp_path: Path
) -> None:
    join(cluster, tmp_path / "volumes", "n4", "r1")
    finish(cluster, administration.decommission(cluster, "n4").request_id)
    assert "n4" not in grown.text("status").out
    states = {node["name"]: node["state"] for node in grown.done("status")["nodes"]}
    assert states["n4"] == "left"
