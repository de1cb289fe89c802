"""Commands that change the cluster: what they commit, what they tell, and that a dry run changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from epochlake.jobs.cli import changing
from epochlake.jobs.cluster import Cluster
from epochlake.metastore import metastore
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.metadata.events import EnableFeatures
from epochlake.metastore.metadata.features import CHANGE_GENERATIONS, SUPPORTED
from epochlake.metastore.metadata.model import NodeState

from tests.support.clusters import finish, join
from tests.support.command_line import COLUMNS, CommandLine

CHANGED = {"epoch", "request_id", "already", "what", "details"}
PLANNED = {"dry_run", "on_epoch", "event", "payload", "what", "changes", "details", "ring", "already"}
CHANGE = {"component", "name", "field", "before", "after"}

CHANGES: dict[str, list[str]] = {
    "RegisterNode": ["node", "add", "n4", "--datacenter", "dc1", "--rack", "r1", "--volume", "d1=n4,1GB"],
    "CreateKeyspace": ["keyspace", "create", "k", "--replication", "dc1=2"],
    "ShelveTable": ["table", "drop", "air.flights"],
    "AlterColumns": ["table", "alter", "air.flights", "--drop", "note", "--add", "c int default 5"],
    "CreateTable": ["table", "create", "air.t", "--column", COLUMNS, "--primary-key", "id", "--tablets", "4"],
    "PauseChanges": ["changes", "pause"],
    "SwitchBalancing": ["balance", "pause"],
    "TakeSnapshot": ["log", "snapshot"],
}


@pytest.mark.parametrize(("event", "words"), CHANGES.items(), ids=CHANGES)
def test_a_dry_run_shows_the_event_and_leaves_everything_as_it_is(
    unchanged: CommandLine, event: str, words: list[str]
) -> None:
    before, files = unchanged.log(), sorted(unchanged.root.parent.rglob("*"))
    document = unchanged.done(*words, "--dry-run")
    assert set(document) == PLANNED
    assert (document["dry_run"], document["on_epoch"], document["event"]) == (True, before[-1][0], event)
    assert all(set(change) == CHANGE for change in document["changes"])
    assert "dry run" in unchanged.text(*words, "--dry-run").out
    assert (unchanged.log(), sorted(unchanged.root.parent.rglob("*"))) == (before, files)


@pytest.mark.parametrize("words", CHANGES.values(), ids=CHANGES)
def test_a_change_under_one_request_id_is_made_once_and_said_to_be_done(grown: CommandLine, words: list[str]) -> None:
    if "air.flights" in words:
        grown.done("table", "create", "air.flights", "--column", COLUMNS, "--primary-key", "id")
    first = grown.done(*words, "--request-id", "once", "--reason", "because")
    again = grown.json(*words, "--request-id", "once")
    assert set(first) == CHANGED
    assert again.code == 0
    assert (again.json["epoch"], again.json["already"]) == (first["epoch"], True)
    shown = grown.done("log", "show", str(first["epoch"]))
    assert (shown["request_id"], shown["reason"]) == ("once", "because")


def test_a_request_id_that_comes_again_with_another_change_is_rejected_and_both_are_named(grown: CommandLine) -> None:
    create = ["keyspace", "create", "first", "--replication", "dc1=2"]
    first = grown.done(*create, "--request-id", "once")
    before = grown.log()
    for other in (
        ["keyspace", "create", "second", "--replication", "dc1=2"],
        CHANGES["CreateTable"],
        ["log", "snapshot"],
    ):
        refused = grown.json(*other, "--request-id", "once")
        assert (refused.code, refused.error["code"]) == (3, "request-id-used")
        assert '"first"' in refused.error["message"]
        assert other[1] in refused.error["message"].partition("Now it comes with")[2]
    assert grown.log() == before
    again = grown.done(*create, "--request-id", "once", "--timeout", "50", "--reason", "tried again")
    assert (again["epoch"], again["already"]) == (first["epoch"], True)


@pytest.mark.parametrize("words", CHANGES.values(), ids=CHANGES)
def test_a_change_is_rejected_when_the_cluster_is_not_at_the_expected_epoch(
    unchanged: CommandLine, words: list[str]
) -> None:
    before = unchanged.log()
    for more in ([], ["--dry-run"]):
        result = unchanged.json(*words, "--expect-epoch", "3", *more)
        assert (result.code, result.error["code"]) == (3, "epoch-moved")
    assert unchanged.log() == before


def test_both_words_for_a_snapshot_are_one_change(grown: CommandLine) -> None:
    preview = grown.done("metadata", "snapshot", "--dry-run")
    assert preview["event"] == "TakeSnapshot"
    first = grown.done("metadata", "snapshot", "--request-id", "once")
    assert grown.log()[-1][0] == first["epoch"]
    again = grown.done("log", "snapshot", "--request-id", "once")
    assert (again["epoch"], again["already"]) == (first["epoch"], True)


def test_a_change_is_made_when_the_cluster_is_at_the_expected_epoch(grown: CommandLine) -> None:
    epoch = grown.log()[-1][0]
    assert grown.done("balance", "pause", "--expect-epoch", str(epoch))["epoch"] == epoch + 1


def test_a_cluster_begins_and_says_who_it_is(empty: CommandLine) -> None:
    assert empty.done("init", "--name", "lake", "--dry-run")["event"] == "Initialise"
    assert not empty.root.exists()
    begun = empty.done("init", "--name", "lake", "--reason", "first", "--request-id", "r")
    assert begun["epoch"] == 1
    assert begun["details"]["root"] == str(empty.root)
    status = empty.done("status")
    assert (status["cluster"], status["cluster_id"]) == ("lake", begun["details"]["cluster_id"])
    other = empty.json("init", "--name", "sea", "--request-id", "r")
    assert (other.code, other.error["code"]) == (3, "request-id-used")
    again = empty.done("init", "--request-id", "r")
    assert (again["epoch"], again["already"]) == (1, True)


def test_a_node_goes_through_its_life_by_commands(grown: CommandLine, cluster: Cluster, tmp_path: Path) -> None:
    grown.done(*CHANGES["RegisterNode"], "--request-id", "j4")
    finish(cluster, "j4")
    leave = grown.done("node", "decommission", "n4", "--reason", "old")
    request = grown.done("status")["requests"][0]
    assert (request["request_id"], request["kind"], request["reason"]) == (leave["request_id"], "leave", "old")
    grown.done("node", "cancel", "n4")
    assert grown.done("status")["requests"] == []
    grown.done("node", "replace", "n2", "n5", "--volume", str(tmp_path / "n5"))
    nodes = {node["name"]: node for node in grown.done("node", "list")}
    assert (nodes["n5"]["replaces"], nodes["n5"]["rack"], nodes["n5"]["state"]) == ("n2", "r2", "joining")
    remove = grown.done("node", "remove", "n4")
    finish(cluster, remove["request_id"])
    assert "n4" not in [node["name"] for node in grown.done("node", "list")]
    assert {"n4"} <= {node["name"] for node in grown.done("node", "list", "--all")}
    assert cluster.catch_up().node("n4").state is NodeState.LEFT


def test_a_table_goes_through_its_life_by_commands(grown: CommandLine) -> None:
    grown.done(*CHANGES["CreateTable"])
    columns = "at timestamp, tail string not null"
    grown.done("table", "create", "air.log", "--column", columns, "--primary-key", "at,tail", "--append-only")
    rows = grown.done("table", "list")
    assert [(row["name"], row["append_only"], row["tablets"]) for row in rows] == [
        ("air.log", True, 16),
        ("air.t", False, 4),
    ]
    shown = grown.done("table", "show", "air.t")
    assert [tuple(column.values()) for column in shown["columns"]] == [
        ("id", "bigint", False, 1, "id", None, None, [], None),
        ("note", "string", True, 2, "note", None, None, [], None),
    ]
    assert shown["replicas_by_node"] == {"n1": 4, "n2": 4, "n3": 4}
    assert grown.done("keyspace", "list")[0] | {"epoch": 0} == {
        "name": "air",
        "placement": "tablets",
        "strategy": "NetworkTopologyStrategy",
        "replication": {"dc1": 3},
        "tables": 2,
        "epoch": 0,
    }
    for table in ("air.t", "air.log"):
        grown.done("table", "drop", table)
    grown.done("keyspace", "drop", "air")
    assert grown.done("table", "list") == grown.done("keyspace", "list") == []


def test_volumes_that_got_no_tablets_are_told(grown: CommandLine, cluster: Cluster, tmp_path: Path) -> None:
    join(cluster, tmp_path / "volumes", "n4", "r1")
    next((tmp_path / "volumes" / "n4").glob("*.json")).unlink()
    document = grown.done(*CHANGES["CreateTable"])
    assert list(document["details"]["no_tablets_on"]) == ["n4/d1"]


def test_paused_changes_are_refused_with_the_reason_until_they_are_resumed(grown: CommandLine) -> None:
    grown.done("changes", "pause", "--reason", "upgrade")
    refused = grown.json("balance", "pause")
    assert (refused.code, refused.error["code"]) == (3, "changes-paused")
    assert "upgrade" in refused.error["message"]
    grown.done("changes", "resume")
    grown.done("balance", "pause", "--reason", "load")
    assert grown.done("status")["switches"]["balancing_reason"] == "load"
    grown.done("balance", "resume")


def test_a_change_that_is_committed_is_never_told_as_a_failure(
    grown: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise StorageUnavailable("the disk is gone")

    monkeypatch.setattr(changing, "entries", away)
    document = grown.done("balance", "pause")
    assert document["epoch"] == grown.log()[-1][0]
    assert "the disk is gone" in document["what"]


def test_text_and_json_tell_the_same_change(grown: CommandLine) -> None:
    text = grown.text("balance", "pause", "--request-id", "r").out
    document = grown.done("balance", "pause", "--request-id", "r")
    assert document["what"] in text
    assert f"epoch {document['epoch']}" in text
    assert "r" in text.split()


def test_global_options_are_taken_wherever_they_stand(grown: CommandLine) -> None:
    first: Any = grown.text("status", "--output", "json")
    last: Any = grown.text("status", "-o", "json", "--verbose")
    assert json.loads(first.out) == json.loads(last.out)


def test_a_node_in_maintenance_keeps_its_replicas_and_is_told_so(grown: CommandLine) -> None:
    changed = grown.done("node", "maintenance", "n1", "on", "--reason", "new disks")
    assert changed["what"].startswith("node n1 goes into maintenance")
    nodes = {node["name"]: node["maintenance"] for node in grown.done("node", "list")}
    assert nodes == {"n1": True, "n2": False, "n3": False}
    assert "maintenance" in grown.text("status").out
    assert grown.json("node", "maintenance", "n1", "on").error["code"] == "nothing-to-do"
    grown.done("node", "maintenance", "n1", "off")
    assert not any(node["maintenance"] for node in grown.done("node", "list"))


def test_weights_and_tags_of_nodes_are_set_as_a_whole(grown: CommandLine) -> None:
    grown.done("node", "set", "n1", "--weight", "0.5", "--tag", "ssd,new")
    grown.done("node", "set", "n1", "--tag", "ssd")
    node = next(node for node in grown.done("node", "list") if node["name"] == "n1")
    assert (node["weight"], node["tags"]) == (0.5, ["ssd"])
    assert "weight 0.5, ssd" in grown.text("status").out
    grown.done("node", "set", "n1", "--no-tags")
    node = next(node for node in grown.done("node", "list") if node["name"] == "n1")
    assert (node["weight"], node["tags"]) == (0.5, [])


def test_a_table_says_how_its_tablets_are_sized_and_where_they_may_go(grown: CommandLine) -> None:
    grown.done(*CHANGES["CreateTable"])
    usual = grown.done("table", "show", "air.t")["options"]
    for node in ("n1", "n2", "n3"):
        grown.done("node", "set", node, "--tag", "ssd")
    changed = grown.done("table", "alter", "air.t", "--target-size", "1GiB", "--max-tablets", "8", "--tag", "ssd")
    assert "ssd" in changed["what"]
    shown = grown.done("table", "show", "air.t")["options"]
    assert shown == usual | {"target_bytes": 1 << 30, "max_tablets": 8, "tags": ["ssd"]}
    assert "only on nodes tagged ssd" in " ".join(grown.text("table", "show", "air.t").out.split())
    grown.done("table", "alter", "air.t", "--target-size", "0", "--max-tablets", "0", "--no-tags")
    assert grown.done("table", "show", "air.t")["options"] == usual


def test_a_table_says_how_it_is_compacted(grown: CommandLine) -> None:
    grown.done(*CHANGES["CreateTable"])
    usual = grown.done("table", "show", "air.t")["options"]
    words = ["--compaction", "off", "--compaction-hours", "22:00-06:00", "--tombstone-grace", "3h"]
    changed = grown.done("table", "alter", "air.t", *words)
    said = "not compacted by itself, compacted 22:00-06:00, deletes remembered for 3 hours"
    assert changed["what"].endswith(said)
    kept = {"by_itself": False, "hours": "22:00-06:00", "tombstone_grace_seconds": 10800.0}
    assert grown.done("table", "show", "air.t")["options"] == usual | {"compaction": kept}
    assert said.replace(", ", "; ") in " ".join(grown.text("table", "show", "air.t").out.split())
    assert grown.json("table", "alter", "air.t", "--compaction", "off").error["code"] == "nothing-to-do"
    grown.done("table", "alter", "air.t", "--compaction", "usual", "--tombstone-grace", "usual")
    changed = grown.done("table", "alter", "air.t", "--compaction-hours", "usual")
    assert changed["what"].endswith("; compacted as usual")
    assert grown.done("table", "show", "air.t")["options"] == usual


OPERATORS: dict[str, tuple[list[str], int, list[str]]] = {
    "maintenance of nobody": (["node", "maintenance", "n9", "on"], 3, ["'n9'"]),
    "maintenance, perhaps": (["node", "maintenance", "n1", "perhaps"], 2, ["perhaps"]),
    "maintenance that is off": (["node", "maintenance", "n1", "off"], 3, ["not in maintenance"]),
    "nothing to set": (["node", "set", "n1"], 2, ["weight", "tags"]),
    "no weight": (["node", "set", "n1", "--weight", "0"], 3, ["'n1'", "maintenance"]),
    "weight that is no number": (["node", "set", "n1", "--weight", "heavy"], 2, ["--weight"]),
    "tags and no tags": (["node", "set", "n1", "--tag", "a", "--no-tags"], 2, ["one of the two"]),
    "nothing to alter": (["table", "alter", "air.flights"], 2, ["air.flights", "size"]),
    "alter nothing": (["table", "alter", "air.no", "--min-tablets", "2"], 3, ["air.no"]),
    "three tablets": (["table", "alter", "air.flights", "--min-tablets", "3"], 3, ["power of two"]),
    "more than most": (["table", "alter", "air.flights", "--min-tablets", "8", "--max-tablets", "4"], 3, ["8", "4"]),
    "no size": (["table", "alter", "air.flights", "--target-size", "big"], 2, ["'big'"]),
    "tags of nobody": (["table", "alter", "air.flights", "--tag", "gpu"], 3, ["gpu", "Tag more nodes"]),
    "hours of no day": (["table", "alter", "air.flights", "--compaction-hours", "late"], 3, ["late", "22:00-06:00"]),
    "no grace": (["table", "alter", "air.flights", "--tombstone-grace", "soon"], 2, ["'soon'"]),
    "compacted perhaps": (["table", "alter", "air.flights", "--compaction", "perhaps"], 2, ["perhaps"]),
    "apart from nothing": (["table", "alter", "air.flights", "--apart-from", "air.no"], 3, ["air.no"]),
    "apart from itself": (["table", "alter", "air.flights", "--apart-from", "air.flights"], 3, ["air.flights"]),
}


@pytest.mark.parametrize(("words", "code", "said"), OPERATORS.values(), ids=OPERATORS)
def test_what_operators_cannot_mean_is_one_clear_error(
    unchanged: CommandLine, words: list[str], code: int, said: list[str]
) -> None:
    before = unchanged.log()
    result = unchanged.text(*words)
    assert result.code == code, result.err
    assert [word for word in said if word not in result.error_text] == [], result.err
    assert unchanged.log() == before


def test_a_dry_run_knows_a_request_id_that_was_used(grown: CommandLine) -> None:
    committed = grown.done("balance", "pause", "--request-id", "weekly", "--reason", "a")
    grown.done("balance", "resume")
    before = grown.log()
    document = grown.done("balance", "pause", "--request-id", "weekly", "--dry-run")
    assert (document["already"], document["on_epoch"]) == (committed["epoch"], committed["epoch"] - 1)
    assert [one["field"] for one in document["changes"]] != []
    told = " ".join(grown.text("balance", "pause", "--request-id", "weekly", "--dry-run").out.split())
    assert f"Nothing would be: epoch {committed['epoch']} has this request id" in told
    refused = grown.json("balance", "resume", "--request-id", "weekly", "--dry-run")
    assert (refused.code, refused.error["code"]) == (3, "request-id-used")
    assert grown.done("balance", "pause", "--request-id", "another", "--dry-run")["already"] is None
    assert grown.log() == before


def test_who_looks_for_generations_is_told_what_they_wait_for(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster that an older version has begun: no coordinator makes any before the feature is enabled."""
    monkeypatch.setattr(metastore, "SUPPORTED", tuple(name for name in SUPPORTED if name != CHANGE_GENERATIONS))
    grown: CommandLine = request.getfixturevalue("grown")
    grown.done("table", "create", "air.flights", "--column", COLUMNS, "--primary-key", "id")
    grown.done("changes", "keep", "air.flights")
    assert "after `feature enable change-generations`" in grown.text("changes", "generations", "air.flights").out
    monkeypatch.setattr(metastore, "SUPPORTED", SUPPORTED)
    request.getfixturevalue("cluster").commit(EnableFeatures((CHANGE_GENERATIONS,)))
    assert "yet: a coordinator does it" in grown.text("changes", "generations", "air.flights").out
    grown.done("changes", "keep-up", "air.flights")
    assert [one["generation"] for one in grown.done("changes", "generations", "air.flights")] == [1]
