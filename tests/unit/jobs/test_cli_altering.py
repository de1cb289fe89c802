"""`table alter` and `table show` for columns: what is said becomes one epoch, and what is refused says why."""

from __future__ import annotations

import json

import pytest
from epochlake.jobs.administration.columns import parse_added
from epochlake.jobs.cluster import Cluster
from epochlake.metastore.metadata.model import Column
from epochlake.placement.errors import InvalidRequest

from tests.support.command_line import CommandLine

PARSED = {
    "c int": Column("c", "int"),
    "c decimal(10, 2) not null default -1.5": Column("c", "decimal(10, 2)", False, default="-1.5"),
    "c string default 'it''s, or not'": Column("c", "string", default="it's, or not"),
    "c string DEFAULT ''": Column("c", "string", default=""),
    "`c` array<int>": Column("c", "array<int>"),
}


@pytest.mark.parametrize("text", PARSED)
def test_a_column_is_read_with_its_default(text: str) -> None:
    assert parse_added([text]) == (PARSED[text],)
    assert parse_added([f"{text}, d date"]) == (PARSED[text], Column("d", "date"))


@pytest.mark.parametrize("text", ["c", "c int default", "c int default 'x", "c default 5", "c int default 5 6"])
def test_a_column_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_added([text])


def test_all_that_is_said_of_columns_is_one_epoch_and_is_shown(grown: CommandLine) -> None:
    grown.done("table", "create", "air.t", "--column", "id bigint, note string, size int", "--primary-key", "id")
    words = ["--drop", "note", "--add", "note string default 'a, b'", "--rename", "id:key", "--widen", "size:bigint"]
    done = grown.done(
        "table", "alter", "air.t", *words, "--comment", "size:in cm: wide", "--order", "size", "--reason", "r"
    )
    shown = grown.done("table", "show", "air.t")
    assert [(one["name"], one["column_id"], one["stored_as"]) for one in shown["columns"]] == [
        ("size", 3, "size"),
        ("key", 1, "id"),
        ("note", 4, "note#4"),
    ]
    assert (shown["columns"][0]["type"], shown["columns"][0]["comment"]) == ("bigint", "in cm: wide")
    assert (shown["columns"][2]["default"], shown["primary_key"]) == ("a, b", ["key"])
    assert shown["columns_epoch"] == done["epoch"] == grown.log()[-1][0]
    assert shown["dropped"] == [{"column_id": 2, "name": "note", "stored_as": "note", "epoch": done["epoch"]}]
    assert "dropped: note (by epoch" in grown.text("table", "show", "air.t").out
    before = grown.done("table", "show", "air.t", "--at", str(done["epoch"] - 1))
    assert ([one["name"] for one in before["columns"]], before["dropped"]) == (["id", "note", "size"], [])


SENSELESS = [
    (["--rename", "note"], "OLD:NEW"),
    (["--rename", "note:a", "--rename", "note:b"], "twice"),
    (["--drop", "note", "--comment", "note:x"], "dropped, and changed"),
    (["--drop", "note", "--min-tablets", "8"], "one after the other"),
    (["--order", "id,id"], "twice"),
    (["--add", "c int default 1.5"], "is no int"),
    (["--add", "c nothing"], "cannot be stored"),
    (["--ttl", "note"], "COLUMN DURATION"),
    (["--ttl", "note 1 day"], "is no duration"),
    (["--ttl", "note 0.5s"], "whole seconds"),
    (["--ttl", "note 1d", "--no-ttl"], "one after the other"),
    (["--no-ttl", "--drop", "note"], "one after the other"),
]


@pytest.mark.parametrize(("words", "said"), SENSELESS)
def test_what_makes_no_sense_is_refused_before_anything_is_committed(
    unchanged: CommandLine, words: list[str], said: str
) -> None:
    before = unchanged.log()
    refused = unchanged.text("table", "alter", "air.flights", *words)
    assert refused.code == 2
    assert said in refused.error_text
    assert unchanged.log() == before


def test_checks_are_added_shown_validated_and_dropped(grown: CommandLine, cluster: Cluster) -> None:
    grown.done("table", "create", "air.c", "--column", "id bigint, n int", "--primary-key", "id")
    grown.done("table", "alter", "air.c", "--add-check", "small: n < 5", "--add-check", "set: n is not null")
    shown = grown.done("table", "show", "air.c")["checks"]
    assert [(one["name"], one["predicate"], one["validated"]) for one in shown] == [
        ("small", "n < 5", None),
        ("set", "n is not null", None),
    ]
    assert "not validated" in grown.text("table", "show", "air.c").out
    cluster.write("air.c", [{"id": 1, "n": 4}])
    found = grown.done("table", "validate", "air.c", "--check", "set")
    assert (found["rows"], found["checks"][0]["violated"]) == (1, 0)
    grown.done("table", "alter", "air.c", "--drop-check", "small")
    cluster.write("air.c", [{"id": 2, "n": 9}])
    grown.done("table", "alter", "air.c", "--add-check", "small: n < 5")
    bad = grown.text("table", "validate", "air.c")
    assert bad.code == 4
    assert "small (n < 5): violated by 1 row" in bad.out
    assert "checked by set, small" in grown.done("log", "list")[-1]["summary"]


def test_a_table_is_created_with_checks_that_are_shown(grown: CommandLine) -> None:
    create = ["table", "create", "air.t", "--column", "id bigint, size int", "--primary-key", "id", "--tablets", "2"]
    refused = grown.json(*create, "--check", "big")
    assert (refused.code, "NAME: PREDICATE" in refused.error["hint"]) == (2, True)
    done = grown.done(*create, "--check", "big: size > 3", "--check", "known: id is not null")
    shown = grown.done("table", "show", "air.t")["checks"]
    assert [(one["name"], one["predicate"], one["epoch"]) for one in shown] == [
        ("big", "size > 3", done["epoch"]),
        ("known", "id is not null", done["epoch"]),
    ]


def test_a_keyspace_is_renamed_and_its_old_name_leads_to_the_new_one(grown: CommandLine) -> None:
    create = ["table", "create", "air.t", "--column", "id bigint", "--primary-key", "id", "--tablets", "2"]
    grown.done(*create)
    assert "heavens" in json.dumps(grown.done("keyspace", "rename", "air", "heavens", "--dry-run"))
    assert grown.done("table", "show", "air.t")
    grown.done("keyspace", "rename", "air", "heavens")
    assert grown.done("log", "list")[-1]["summary"] == "keyspace air renamed to heavens"
    refused = grown.json("table", "show", "air.t")
    assert "use heavens.t" in refused.error["hint"]
    assert grown.done("table", "show", "heavens.t")


@pytest.mark.parametrize("name", ["system", "System"])
def test_no_keyspace_is_called_as_the_metadata_are(grown: CommandLine, name: str) -> None:
    for asked in (["create", name, "--replication", "dc1=3"], ["rename", "air", name]):
        for dry in (["--dry-run"], []):
            refused = grown.json("keyspace", *asked, *dry)
            assert (refused.code, refused.error["code"]) == (3, "reserved-name")
            assert "Spark reads its tables as system.tablets" in refused.error["message"]
    assert [one["name"] for one in grown.done("keyspace", "list")] == ["air"]


def test_a_ttl_is_given_shown_changed_and_taken_away(grown: CommandLine, cluster: Cluster) -> None:
    create = ["table", "create", "air.v", "--column", "id bigint, seen timestamp, n int", "--primary-key", "id"]
    refused = grown.json(*create, "--ttl", "n 30d")
    assert (refused.code, refused.error["code"]) == (3, "invalid-ttl")
    grown.done(*create, "--ttl", "seen 30d")
    assert grown.done("table", "show", "air.v")["ttl"] | {"since": ""} == {
        "column": "seen",
        "seconds": 2_592_000,
        "since": "",
    }
    assert "rows expire 30 d after seen, since 20" in grown.text("table", "show", "air.v").out
    planned = grown.done("table", "alter", "air.v", "--ttl", "seen 90min", "--dry-run")
    assert planned["event"] == "AlterTimeToLive"
    grown.done("table", "alter", "air.v", "--ttl", "seen 90min")
    assert "rows expire 90 min after seen" in grown.text("table", "show", "air.v").out
    same = grown.json("table", "alter", "air.v", "--ttl", "seen 90min")
    assert (same.code, same.error["code"]) == (3, "nothing-to-do")
    grown.done("table", "alter", "air.v", "--no-ttl")
    assert grown.done("table", "show", "air.v")["ttl"]["seconds"] is None
    assert "no rows expire since" in grown.text("table", "show", "air.v").out
    assert "no further rows of table air.v expire" in grown.done("log", "list")[-1]["summary"]
