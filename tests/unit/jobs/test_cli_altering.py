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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("c", "the column 'c' cannot be read"),
        ("c int default", "'int default'|'c int default'"),
        ("c int default 'x", "default"),
        ("c default 5", "'c'"),
        ("c int default 5 6", "default"),
        ("", "its definition is empty"),
        (" ", "its definition is empty"),
        ("c int,", "before or after a comma there is nothing"),
        ("c decimal(50,2)", "from 1 to 38"),
        ("c struct<>", "'>' stands where the name of a field should"),
        ("c struct<a:int,>", "'>' stands where the name of a field should"),
        ("c map<string>", "'>' stands where ',' should"),
    ],
)
def test_a_column_that_cannot_be_read_is_refused_with_a_hint(text: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as refused:
        parse_added([text])
    assert refused.value.hint


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


def test_fields_of_structs_are_changed_and_shown_by_their_paths(grown: CommandLine) -> None:
    columns = "id bigint, home struct<street:string,zip:int>, trips array<struct<days:int>>"
    grown.done("table", "create", "air.p", "--column", columns, "--primary-key", "id")
    words = ["--add", "home.city string, note string", "--drop", "home.zip", "--rename", "home.street:road"]
    words += ["--widen", "trips.element.days:bigint", "--comment", "home.street:where it is", "--order", "home.city"]
    planned = grown.done("table", "alter", "air.p", *words, "--dry-run")
    assert "struct<city:string,road:string>" in json.dumps(planned)
    done = grown.done("table", "alter", "air.p", *words)
    shown = grown.done("table", "show", "air.p")
    assert [(one["name"], one["type"], one["column_id"]) for one in shown["columns"]] == [
        ("id", "bigint", 1),
        ("home", "struct<city:string,road:string>", 2),
        ("trips", "array<struct<days:bigint>>", 3),
        ("note", "string", 8),
    ]
    fields = [field for one in shown["columns"] for field in one["fields"]]
    assert [(one["path"], one["field_id"], one["stored_as"], one["added"]) for one in fields] == [
        ("home.city", 6, "city", True),
        ("home.road", 4, "street", False),
        ("trips.element.days", 7, "days", False),
    ]
    assert shown["dropped_fields"] == [
        {"column_id": 2, "name": "home.zip", "stored_path": ["zip"], "epoch": done["epoch"]}
    ]
    told = grown.text("table", "show", "air.p").out
    assert all(part in told for part in ("home.road", "where it is", "dropped: home.zip (by epoch"))


def test_a_column_with_a_dot_in_its_name_is_none_of_a_struct(grown: CommandLine) -> None:
    columns = "id bigint, home struct<street:string>, `home.of` int"
    grown.done("table", "create", "air.p", "--column", columns, "--primary-key", "id")
    grown.done("table", "alter", "air.p", "--add", "`a.b` int, `home`.`x-y` int, home.z int")
    grown.done("table", "alter", "air.p", "--drop", "home.of", "--rename", "a.b:c", "--comment", "home.`x-y`:said")
    shown = grown.done("table", "show", "air.p")["columns"]
    assert [(one["name"], one["type"]) for one in shown] == [
        ("id", "bigint"),
        ("home", "struct<street:string,`x-y`:int,z:int>"),
        ("c", "int"),
    ]


FIELDS_REFUSED = [
    (["--drop", "home.no"], 3, "unknown-column", "home.street, home.zip"),
    (["--add", "id.x int"], 3, "unknown-column", "is bigint, and has no fields"),
    (["--drop", "home.street,home.zip"], 3, "no-columns", "Drop the whole of it"),
    (["--widen", "home.zip:smallint"], 3, "narrower-type", "bigint of tinyint"),
    (["--rename", "home.zip:a b"], 3, "invalid-name", "Use no space"),
    (["--add", "hmoe.x int"], 3, "unknown-column", "in backquotes: `hmoe.x`"),
    (["--rename", "home:house", "--add", "house.x int"], 3, "unknown-column", "the name that the column has now"),
    (["--add", "home.x int default 5"], 2, "", "Add it without"),
    (["--rename", "home.zip:home.code"], 2, "", "without its path"),
    (["--nullable", "home.zip"], 2, "", ""),
    (["--add", "home. int"], 2, "", "as address.street"),
    (["--drop", "home..zip"], 2, "", "as address.street"),
]


@pytest.mark.parametrize(("words", "code", "error", "hint"), FIELDS_REFUSED)
def test_a_change_of_fields_that_cannot_be_says_why_and_commits_nothing(
    grown: CommandLine, words: list[str], code: int, error: str, hint: str
) -> None:
    columns = "id bigint, home struct<street:string,zip:int>"
    grown.done("table", "create", "air.p", "--column", columns, "--primary-key", "id")
    before = grown.log()
    for dry in (["--dry-run"], []):
        refused = grown.json("table", "alter", "air.p", *words, *dry)
        assert (refused.code, grown.log()) == (code, before)
        assert refused.error.get("code", "") == error or not error
        assert hint in refused.error.get("hint", "")


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
