"""A named batch that is tried again after its table got other columns: the same rows are the same, others are not."""

from __future__ import annotations

import datetime
import math
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from epochlake.jobs import administration
from epochlake.jobs.administration.columns import parse_added
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.gate.arrow_rows import rows_to_write
from epochlake.jobs.gate.row_digests import RowDigest, digested_columns
from epochlake.jobs.gate.writing import Written
from epochlake.metastore.errors import Rejected

from tests.support.clusters import grow, without_zookeeper

TABLE, NESTED, KEYED = "air.events", "air.nested", "air.sales"
COLUMNS = [
    ("id", "bigint", False),
    ("note", "string", True),
    ("n", "int", True),
    ("rate", "float", True),
    ("price", "decimal(6,2)", True),
    ("day", "date", True),
]
OF_NESTED = [
    ("id", "bigint", False),
    ("at", "struct<zip:int,city:string>", True),
    ("list", "array<struct<p:smallint>>", True),
]
ROWS: list[dict[str, Any]] = [
    {
        "id": number,
        "note": None if number % 7 == 0 else f"note {number}",
        "n": number - 20,
        "rate": [0.1, -0.0, math.nan, None, math.inf][number % 5],
        "price": Decimal(number) / 4,
        "day": datetime.date(2026, 1, 1) + datetime.timedelta(days=number),
    }
    for number in range(40)
]
NESTED_ROWS: list[dict[str, Any]] = [
    {
        "id": number,
        "at": None if number % 5 == 0 else {"zip": number, "city": None if number % 3 else "Rome"},
        "list": [{"p": number}, None] if number % 2 else None,
    }
    for number in range(40)
]
ALTERATIONS: dict[str, dict[str, Any]] = {
    "a column with a default": {"add": parse_added(["zone string not null default 'x'"])},
    "a column without one": {"add": parse_added(["k int"])},
    "wider whole numbers": {"widen": {"n": "bigint"}},
    "wider numbers of all kinds": {"widen": {"n": "double", "rate": "double", "price": "decimal(20,4)"}},
    "a time in the place of a day": {"widen": {"day": "timestamp_ntz"}},
    "other names, and another order": {"rename": {"note": "remark", "n": "note"}, "order": ["day", "remark"]},
    "a column that is computed": {"add": parse_added(["twice bigint generated always as (n * 2)"])},
}

OTHERS: list[dict[str, Any]] = [
    {"n": 2**40},
    {"n": -20 + 2**32},
    {"rate": 0.5},
    {"rate": 1e300},
    {"price": Decimal("0.0001")},
    {"price": Decimal("123456789.25")},
    {"day": datetime.datetime(2026, 1, 1, 0, 0, 0, 1)},
    {"zone": None},
    {"zone": ""},
    {"k": 0},
    {"note": "another"},
]
OF_FIELDS: dict[str, Any] = {
    "add": parse_added(["at.k int", "list.element.q string", "k int"]),
    "widen": {"at.zip": "bigint", "list.element.p": "int"},
    "rename": {"at.city": "town", "list": "items"},
    "order": ["at.k"],
}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    without_zookeeper(monkeypatch)
    with grow(tmp_path) as grown:
        administration.create_table(grown, TABLE, COLUMNS, ["id"], tablets=2, append_only=True)
        administration.create_table(grown, NESTED, OF_NESTED, ["id"], tablets=2, append_only=True)
        yield grown


def renamed(rows: list[dict[str, Any]], columns: dict[str, str], fields: dict[str, str]) -> list[dict[str, Any]]:
    def named(value: Any) -> Any:
        return {fields.get(name, name): one for name, one in value.items()} if isinstance(value, dict) else value

    return [{columns.get(name, name): named(value) for name, value in row.items()} for row in rows]


def rows_after(what: str) -> list[dict[str, Any]]:
    """The rows as a program gives them that knows of the change."""
    return renamed(ROWS, ALTERATIONS[what].get("rename", {}), {})


def as_earlier_versions(cluster: Cluster) -> None:
    """Let all decisions be those of earlier versions, which say neither what their digests are of nor have one
    themselves.
    """
    decisions = list(Path(cluster.root.batches).glob("*/*.json"))
    assert decisions
    for decision in decisions:
        told = msgspec.json.decode(decision.read_bytes())
        assert told.pop("columns")
        assert told.pop("digest")
        decision.write_bytes(msgspec.json.encode(told))


def ids(cluster: Cluster, table: str = TABLE) -> list[int]:
    return sorted(cluster.scan(table, columns=["id"]).read_all()["id"].to_pylist())


def write(cluster: Cluster, rows: list[dict[str, Any]], batch: str = "b", table: str = TABLE) -> Written:
    return cluster.write(table, rows, batch=batch, consistency="ALL")


@pytest.mark.parametrize("earlier", [False, True])
def test_a_batch_that_has_landed_is_known_again_after_a_change_of_columns(cluster: Cluster, earlier: bool) -> None:
    tables = {f"air.t{number}": what for number, what in enumerate(ALTERATIONS)}
    for table in tables:
        administration.create_table(cluster, table, COLUMNS, ["id"], tablets=1, append_only=True)
        assert not write(cluster, ROWS, table=table).already
    if earlier:
        as_earlier_versions(cluster)
    for table, what in tables.items():
        administration.alter_table(cluster, table, **ALTERATIONS[what])
        assert write(cluster, rows_after(what), table=table).already, what
        assert ids(cluster, table) == [*range(40)]


@pytest.mark.parametrize("earlier", [False, True])
def test_a_batch_is_known_again_after_a_change_of_fields(cluster: Cluster, earlier: bool) -> None:
    assert not write(cluster, NESTED_ROWS, table=NESTED).already
    if earlier:
        as_earlier_versions(cluster)
    administration.alter_table(cluster, NESTED, **OF_FIELDS)
    again = renamed(NESTED_ROWS, {"list": "items"}, {"city": "town"})
    assert write(cluster, again, table=NESTED).already
    for other in (
        {"at": {"zip": 2**40, "town": None}},
        {"at": {"zip": 1, "town": None, "k": 0}},
        {"items": [{"p": 2**20}]},
    ):
        with pytest.raises(Rejected, match="batch-used"):
            write(cluster, [*again[:1], again[1] | other, *again[2:]], table=NESTED)
    assert ids(cluster, NESTED) == [*range(40)]


def test_all_changes_together_and_what_of_it_is_lost_is_staged_again(cluster: Cluster) -> None:
    before = set(Path(cluster.root.batches).parent.parent.rglob("*.parquet"))
    from epochlake.jobs.gate.commit_phase import CommitPhase

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CommitPhase, "land", killed)
        with pytest.raises(RuntimeError, match="killed"):
            write(cluster, ROWS)
    administration.alter_table(cluster, TABLE, add=parse_added(["zone string default 'x'", "k int"]))
    administration.alter_table(cluster, TABLE, widen={"n": "bigint", "rate": "double"})
    for staged in set(Path(cluster.root.batches).parent.parent.rglob("*.parquet")) - before:
        staged.unlink()
    assert not write(cluster, ROWS).already
    assert ids(cluster) == [*range(40)]
    administration.alter_table(cluster, TABLE, add=parse_added(["more date default '2026-01-01'"]), rename={"n": "m"})
    again = renamed(ROWS, {"n": "m"}, {})
    assert write(cluster, again).already
    with pytest.raises(Rejected, match="batch-used"):
        write(cluster, [*again[:-1], again[-1] | {"m": 3}])
    assert ids(cluster) == [*range(40)]


def killed(*_: object) -> None:
    raise RuntimeError("killed")


def test_other_rows_do_not_pass_as_those_of_before(cluster: Cluster) -> None:
    [first] = rows = [{"id": 1, "note": None, "n": -20, "rate": math.inf, "price": None, "day": None}]
    write(cluster, rows)
    widen = {"n": "bigint", "rate": "double", "price": "decimal(20,4)", "day": "timestamp_ntz"}
    administration.alter_table(cluster, TABLE, add=parse_added(["zone string default 'x'", "k int"]), widen=widen)
    assert write(cluster, rows).already
    assert write(cluster, [first | {"zone": "x", "k": None}]).already
    for other in OTHERS:
        with pytest.raises(Rejected, match="batch-used"):
            write(cluster, [first | other])
    assert ids(cluster) == [1]


def test_rows_whose_column_was_dropped_are_those_of_before_only_where_it_was_null(cluster: Cluster) -> None:
    write(cluster, ROWS, "some")
    write(cluster, [row | {"note": None} for row in ROWS], "none")
    administration.alter_table(cluster, TABLE, drop=["note"])
    rows = [{name: value for name, value in row.items() if name != "note"} for row in ROWS]
    assert write(cluster, rows, "none").already
    with pytest.raises(Rejected, match=r"batch-used.*note was dropped"):
        write(cluster, rows, "some")


@pytest.mark.parametrize("earlier", [False, True])
def test_deletes_changes_and_overwrites_are_known_again_as_well(cluster: Cluster, earlier: bool) -> None:
    administration.create_table(cluster, KEYED, COLUMNS, ["id"], tablets=2)
    cluster.write(KEYED, ROWS)
    keys = [{"id": number} for number in range(5)]
    more = [{"id": 1, "n": 5, "other": 2}, {"id": 2, "n": None, "other": 3}]
    counted = cluster.merge(KEYED, more).when_matched_update({"n": "target.n + source.n"})
    tries: list[Callable[[], Any]] = [
        lambda: cluster.delete(KEYED, keys, batch="b"),
        lambda: cluster.write(KEYED, ROWS[:9], deletes=[{"id": 39}], batch="c"),
        *([] if earlier else [lambda: cluster.overwrite(KEYED, ROWS[:20], batch="o")]),
        *([] if earlier else [lambda: counted.execute(batch="m")]),
    ]
    assert not any(one().already for one in tries)
    if earlier:
        as_earlier_versions(cluster)
    administration.alter_table(cluster, KEYED, add=parse_added(["zone string not null default 'x'"]))
    administration.alter_table(cluster, KEYED, widen={"n": "bigint"})
    assert all(one().already for one in tries)
    with pytest.raises(Rejected, match="batch-used"):
        cluster.write(KEYED, [row | {"zone": "y"} for row in ROWS[:9]], deletes=[{"id": 39}], batch="c")


def test_a_program_of_before_the_change_brings_the_same_rows_as_one_of_after_it(cluster: Cluster, seed: int) -> None:
    dice = random.Random(seed)
    before = cluster.catch_up().table(TABLE)
    for what in dice.sample([one for one in ALTERATIONS if not {"rename", "widen"} & {*ALTERATIONS[one]}], 3):
        administration.alter_table(cluster, TABLE, **ALTERATIONS[what])
    now = cluster.catch_up().table(TABLE)
    made = {table.version: rows_to_write(ROWS, table) for table in (before, now)}
    for columns in (digested_columns(before), digested_columns(now)):
        counts = [
            rows.counted(RowDigest(columns, table, now))
            for table, rows in zip((before, now), made.values(), strict=True)
        ]
        assert counts[0] == counts[1]
