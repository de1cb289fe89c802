"""`placement simulate` from files, from the output of Cassandra's tools, and with operations said in words."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import CommandLine
from tests.unit.placement.test_ring_nodetool import DESCRIBERING, RING

CLUSTER: dict[str, Any] = {
    "nodes": [
        {"id": number, "name": f"n{number}", "dc": "dc1", "rack": f"r{1 + number % 3}", "tokens": [number * 2**60]}
        for number in range(-3, 4)
    ],
    "keyspaces": [{"name": "ks", "strategy": "NetworkTopologyStrategy", "replication": {"dc1": 3}, "bytes": 7 * 10**9}],
}
for number, node in enumerate(CLUSTER["nodes"]):
    node["id"] = number
FROM_RING = ["--nodetool-ring", "ring.txt", "--replication", "ks:east=2,west=1"]


@pytest.fixture
def files(empty: CommandLine, tmp_path: Path) -> CommandLine:
    """The command line in a directory with descriptions of clusters, where no cluster of its own is."""
    (tmp_path / "ring.txt").write_text(RING)
    (tmp_path / "describering.txt").write_text(DESCRIBERING)
    (tmp_path / "cluster.json").write_text(json.dumps(CLUSTER))
    (tmp_path / "with_ops.json").write_text(json.dumps({**CLUSTER, "ops": [{"op": "leave", "node": 1}]}))
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "torn.json").write_text('{"nodes": [')
    (tmp_path / "no_text.txt").write_bytes(b"\xff\xfe\x00")
    return empty


def simulated(files: CommandLine, *words: str) -> Any:
    return files.done("placement", "simulate", *words)


def test_the_output_of_nodetool_becomes_a_document_that_is_answered(files: CommandLine) -> None:
    ring = simulated(files, *FROM_RING)
    described = simulated(files, "--nodetool-describering", "describering.txt", "--replication", "ks:east=2,west=1")
    assert {node["address"] for node in ring["nodes"]} == {"10.0.0.1", "10.0.0.2", "10.1.0.1"}
    ends = [[end for _, end, _ in document["keyspaces"][0]["ranges"]] for document in (ring, described)]
    assert ends[0] == ends[1]
    assert all(len(nodes) == 3 for _, _, nodes in ring["keyspaces"][0]["ranges"])


def test_an_answer_is_a_document_that_can_be_asked_again(files: CommandLine, tmp_path: Path) -> None:
    first = simulated(files, *FROM_RING, "--op", "join 10.0.0.9 east/rack-a tokens=4")
    (tmp_path / "again.json").write_text(json.dumps(first))
    assert simulated(files, "again.json") == first


def test_a_document_is_read_from_standard_input(files: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    class Given:
        buffer = io.BytesIO(json.dumps(CLUSTER).encode())

    expected = simulated(files, "cluster.json")
    monkeypatch.setattr(sys, "stdin", Given)
    assert simulated(files, "-") == expected


# The operation in words, the kinds that it becomes, and the bytes that would move (RF 3, 7 nodes, 7 GB).
WORDS: dict[str, tuple[str, list[str]]] = {
    "join": ("join n9 dc1/r1 tokens=3", ["join"]),
    "join with tokens": ("join n9 dc1/r1 tokens=-5,+6", ["join"]),
    "leave": ("leave n1", ["leave"]),
    "decommission": ("decommission n1", ["leave"]),
    "leave by number": ("leave 2", ["leave"]),
    "move": ("move n1 tokens=-123", ["move"]),
    "move to as many": ("move n1 tokens=2", ["move"]),
    "replace": ("replace n1 n9", ["replace"]),
    "replace with other tokens": ("replace n1 n9 tokens=2", ["replace"]),
    "remove": ("remove n1", ["remove"]),
    "rebuild": ("rebuild n1 from=dc1", ["rebuild"]),
    "replication": ("replication ks:dc1=1", ["change_replication", "change_replication"]),
}


@pytest.mark.parametrize(("words", "kinds"), WORDS.values(), ids=WORDS)
def test_an_operation_in_words_is_carried_out_to_its_end(files: CommandLine, words: str, kinds: list[str]) -> None:
    answer = simulated(files, "cluster.json", "--op", words)
    assert [op["op"] for op in answer["ops"]] == kinds
    assert [step["result"] for step in answer["steps"]] == ["success"] * 4 * len(kinds)
    assert (answer["settled"], answer["final_equivalent_to_fresh_calculation"]) == (True, True)
    moved = answer["steps"][0]["bytes"]["ks"]
    assert moved == 0 if "replication" in words else moved > 0
    text = files.text("placement", "simulate", "cluster.json", "--op", words)
    assert text.code == 0
    assert "everything is done" in text.out


def test_counted_tokens_are_allocated_on_the_ring_as_it_will_be_then(files: CommandLine) -> None:
    answer = simulated(files, "cluster.json", "--op", "join n8 dc1/r1 tokens=3", "--op", "join n9 dc1/r1 tokens=3")
    first, second = (set(op["tokens"]) for op in answer["ops"])
    assert (len(first), len(second), first & second) == (3, 3, set())
    assert {step["result"] for step in answer["steps"]} == {"success"}


def test_a_rejected_operation_is_told_once_with_its_reason(files: CommandLine) -> None:
    refused = files.json("placement", "simulate", *FROM_RING, "--op", "leave 10.0.0.2")
    assert refused.code == 3
    assert {step["result"] for step in refused.json["steps"]} == {"rejected"}
    told = files.text("placement", "simulate", *FROM_RING, "--op", "leave 10.0.0.2")
    assert (told.code, told.err.startswith("epochlake: rejected (operation-refused): operation 0: ")) == (3, True)
    text = " ".join(told.out.split())
    assert text.count("rejected,") == 1
    assert "datacenter east has 2 nodes" in text
    assert "1 operation rejected" in text


def test_keyspaces_and_sizes_on_the_command_line_take_the_place_of_those_in_the_file(files: CommandLine) -> None:
    words = ["cluster.json", "--replication", "a:dc1=2", "--replication", "b:3", "--bytes", "a=2GB"]
    answer = simulated(files, *words, "--op", "join n9 dc1/r1")
    assert [(k["name"], k["strategy"], k.get("bytes")) for k in answer["keyspaces"]] == [
        ("a", "NetworkTopologyStrategy", 2 * 10**9),
        ("b", "SimpleStrategy", None),
    ]
    assert set(answer["steps"][0]["bytes"]) == {"a"}


def test_ranges_that_change_are_shown_first_and_the_rest_is_counted(files: CommandLine) -> None:
    words = ["placement", "simulate", "cluster.json", "--op", "move n3 tokens=42"]
    everything = files.text(*words, "--limit", "0").out
    short = files.text(*words, "--limit", "2").out
    assert "raise --limit" not in everything
    assert "raise --limit" in short
    assert short.count(" changed\n") <= everything.count(" changed\n")
    assert len(short) < len(everything)


BAD: dict[str, tuple[list[str], list[str]]] = {
    "no cluster": ([], ["FILE.json", "--nodetool-ring"]),
    "two clusters": (["cluster.json", "--nodetool-ring", "ring.txt"], ["only one"]),
    "no replication": (["--nodetool-ring", "ring.txt"], ["--replication"]),
    "no such file": (["--nodetool-ring", "no.txt", "--replication", "ks:dc1=1"], ["no.txt"]),
    "no text": (["--nodetool-ring", "no_text.txt", "--replication", "ks:dc1=1"], ["no_text.txt", "no text"]),
    "wrong tool": (["--nodetool-describering", "ring.txt", "--replication", "k:1"], ["ring.txt", "describering"]),
    "no JSON": (["torn.json"], ["torn.json", "JSON"]),
    "no object": (["list.json"], ["list.json", "object"]),
    "unreadable keyspace": ([*FROM_RING, "--replication", "ks"], ["'ks'", "NAME:DATACENTER=REPLICAS"]),
    "unreadable factor": (["--nodetool-ring", "ring.txt", "--replication", "ks:east=two"], ["east=two"]),
    "datacenter twice": (["--nodetool-ring", "ring.txt", "--replication", "ks:east=1,east=2"], ["'east'", "twice"]),
    "keyspace twice": ([*FROM_RING, "--replication", "ks:east=1"], ["'ks'", "twice"]),
    "datacenter without nodes": (["--nodetool-ring", "ring.txt", "--replication", "ks:north=1"], ["'north'", "east"]),
    "size of nothing": ([*FROM_RING, "--bytes", "other=1TB"], ["'other'", "ks"]),
    "unreadable size": ([*FROM_RING, "--bytes", "ks"], ["KEYSPACE=SIZE"]),
    "no operation": ([*FROM_RING, "--op", ""], ["join NAME DC/RACK"]),
    "unknown operation": ([*FROM_RING, "--op", "explode 10.0.0.1"], ["explode", "join NAME DC/RACK"]),
    "unfinished operation": ([*FROM_RING, "--op", "join 10.0.0.9"], ["missing"]),
    "no place": ([*FROM_RING, "--op", "join 10.0.0.9 east"], ["'east'", "DATACENTER/RACK"]),
    "unknown word": ([*FROM_RING, "--op", "leave 10.0.0.1 now"], ["'now'"]),
    "unknown node": ([*FROM_RING, "--op", "leave 10.9.9.9"], ["10.9.9.9", "10.0.0.2"]),
    "known node": ([*FROM_RING, "--op", "join 10.0.0.1 east/rack-a"], ["10.0.0.1", "already"]),
    "move to nowhere": ([*FROM_RING, "--op", "move 10.0.0.1"], ["tokens="]),
    "no tokens": ([*FROM_RING, "--op", "join n9 east/rack-a tokens=0"], ["0 tokens"]),
    "no token": ([*FROM_RING, "--op", "join n9 east/rack-a tokens=1,x"], ["'x'", "whole number"]),
    "token too big": ([*FROM_RING, "--op", f"join n9 east/rack-a tokens={2**63}"], [str(2**63)]),
    "token twice": ([*FROM_RING, "--op", "join n9 east/rack-a tokens=1,2,1"], ["token 1", "twice"]),
    "unknown keyspace": ([*FROM_RING, "--op", "replication other:east=1"], ["'other'", "ks"]),
    "same replication": ([*FROM_RING, "--op", "replication ks:east=2,west=1"], ["already"]),
    "nothing kept": ([*FROM_RING, "--op", "replication ks:east=0"], ["no replicas"]),
    "operations in the file": (["with_ops.json", "--op", "leave n1"], ["--op", "'ops'"]),
}


@pytest.mark.parametrize(("words", "said"), BAD.values(), ids=BAD)
def test_what_cannot_be_simulated_is_one_clear_error(files: CommandLine, words: list[str], said: list[str]) -> None:
    result = files.text("placement", "simulate", *words)
    assert result.code == 2, result.err
    assert [word for word in said if word not in result.error_text] == []
