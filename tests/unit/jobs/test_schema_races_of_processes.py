"""The races of seed 001 between processes that share nothing but the root: changes of tables against each other, and
against writers.

Threads of one process share a follower and a queue; what decides here is the log alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from epochlake.jobs import administration

from tests.support.altering_process import Asked, changed_at_once, writing
from tests.support.clusters import FOUR, SmallCluster, placed, without_zookeeper

TABLE = "air.flights"
COLUMNS = [("id", "bigint", False), ("note", "string", True)]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallCluster]:
    without_zookeeper(monkeypatch)
    made = placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"})
    with made.cluster:
        yield made


def notes(table: SmallCluster, name: str = TABLE) -> dict[int, str]:
    found = table.cluster.scan(name, consistency="ALL").read_all().to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row["note"] for row in found}


def done(outcomes: list[int | str]) -> list[int]:
    return [one for one in outcomes if isinstance(one, int)]


def test_processes_that_change_columns_at_once_each_get_theirs_and_no_number_is_given_twice(
    table: SmallCluster,
) -> None:
    def adds(own: str) -> list[Asked]:
        return [
            Asked("alter_table", (TABLE,), {"add": [(name, "int", True)]}) for name in (f"{own}1", "same", f"{own}2")
        ]

    outcomes = changed_at_once(table.cluster.configuration, adds("a"), adds("b"), adds("c"))
    assert all(isinstance(one[0], int) and isinstance(one[2], int) for one in outcomes), outcomes
    assert sorted(map(str, (one[1] for one in outcomes)))[1:] == ["column-exists"] * 2
    columns = table.cluster.catch_up().table(TABLE).columns
    names = ["a1", "a2", "b1", "b2", "c1", "c2", "id", "note", "same"]
    assert sorted(column.name for column in columns) == names
    assert sorted(column.column_id for column in columns) == list(range(1, 10))
    epochs = [epoch for one in outcomes for epoch in done(one)]
    assert len(set(epochs)) == len(epochs) == 7


def test_of_processes_that_rename_one_column_at_once_one_does_and_the_other_is_told(table: SmallCluster) -> None:
    table.cluster.write(TABLE, [{"id": 1, "note": "kept"}])
    renames = [[Asked("alter_table", (TABLE,), {"rename": {"note": name}})] for name in ("text", "words")]
    outcomes = changed_at_once(table.cluster.configuration, *renames)
    assert sorted(map(str, (one[0] for one in outcomes)))[1] == "unknown-column"
    [name] = {column.name for column in table.cluster.catch_up().table(TABLE).columns} - {"id"}
    assert isinstance(outcomes[["text", "words"].index(name)][0], int)
    [row] = table.cluster.scan(TABLE).read_all().to_pylist()
    assert row == {"id": 1, name: "kept"}


def test_of_a_table_that_processes_make_and_drop_at_once_one_history_is_left(table: SmallCluster) -> None:
    made = [Asked("create_table", ("air.t", COLUMNS, ["id"]), {"tablets": 1})] * 4
    gone = [Asked("drop_table", ("air.t",), {})] * 4
    outcomes = changed_at_once(table.cluster.configuration, made, made, gone, gone)
    assert {one for said in outcomes for one in said if isinstance(one, str)} <= {
        "table-exists",
        "unknown-table",
        "stale-plan",
    }, outcomes
    creations = [epoch for said in outcomes[:2] for epoch in done(said)]
    drops = [epoch for said in outcomes[2:] for epoch in done(said)]
    # Each creation is followed by the drop of that table before the next one.
    order = sorted([(epoch, "create") for epoch in creations] + [(epoch, "drop") for epoch in drops])
    assert creations
    assert [kind for _, kind in order] == ["create", "drop"] * (len(order) // 2) + ["create"] * (len(order) % 2)
    assert len({epoch for epoch, _ in order}) == len(order)
    is_there = "air.t" in table.cluster.catch_up().schema.by_name
    assert is_there == (order[-1][1] == "create")
    if not is_there:
        administration.create_table(table.cluster, "air.t", COLUMNS, ["id"], tablets=1)
    table.cluster.write("air.t", [{"id": 1, "note": "x"}])
    assert notes(table, "air.t") == {1: "x"}


def test_processes_that_write_to_a_table_which_is_dropped_are_told_and_what_they_were_told_comes_back(
    table: SmallCluster,
) -> None:
    with writing(table.cluster.configuration, TABLE, 2) as writers:
        writers.hear(4)
        administration.drop_table(table.cluster, TABLE)
        writers.hear(1_000_000)
    assert writers.stopped == ["unknown-table"] * 2
    # A table that is made under the name gets nothing of what was under way for the other one.
    administration.create_table(table.cluster, TABLE, COLUMNS, ["id"], tablets=2)
    assert notes(table) == {}
    administration.restore_table(table.cluster, TABLE, new_name="before")
    found = notes(table, "air.before")
    assert found.keys() >= writers.acknowledged
    assert all(note == f"of {key}" for key, note in found.items())


def test_processes_that_write_while_a_table_is_dropped_made_anew_and_dropped_write_to_no_other_table(
    table: SmallCluster,
) -> None:
    """They know the table by its name; each row is in the table that had the name when it was acknowledged."""
    anew = [
        Asked("drop_table", (TABLE,), {}),
        Asked("create_table", (TABLE, COLUMNS, ["id"]), {"tablets": 1}),
        Asked("drop_table", (TABLE,), {}),
    ]
    with writing(table.cluster.configuration, TABLE, 2) as writers:
        writers.hear(4)
        [outcome] = changed_at_once(table.cluster.configuration, anew)
        writers.hear(1_000_000)
    assert len(done(outcome)) == 3, outcome
    assert set(writers.stopped) == {"unknown-table"}
    dropped = table.cluster.catch_up().dropped.named(TABLE)
    assert len(dropped) == 2
    found: dict[int, str] = {}
    for number, one in enumerate(dropped):
        administration.restore_table(table.cluster, TABLE, table_id=one.table.table_id, new_name=f"t{number}")
        there = notes(table, f"air.t{number}")
        assert not found.keys() & there.keys()
        found |= there
    assert found.keys() >= writers.acknowledged


def test_processes_that_write_while_the_keyspace_gets_another_name_lose_nothing(table: SmallCluster) -> None:
    with writing(table.cluster.configuration, TABLE, 2) as writers:
        writers.hear(4)
        [outcome] = changed_at_once(
            table.cluster.configuration,
            [Asked("rename_keyspace", ("air", "sky"), {}), Asked("rename_keyspace", ("sky", "sea"), {})],
        )
        writers.hear(1_000_000)
    assert len(done(outcome)) == 2, outcome
    assert set(writers.stopped) == {"unknown-table"}
    found = notes(table, "sea.flights")
    assert found.keys() >= writers.acknowledged
    assert all(note == f"of {key}" for key, note in found.items())


def test_processes_that_write_while_others_change_columns_at_once_lose_nothing(table: SmallCluster) -> None:
    changes = [
        [Asked("alter_table", (TABLE,), {"add": [(f"{own}{number}", "int", True)]}) for number in range(2)]
        for own in "ab"
    ]
    with writing(table.cluster.configuration, TABLE, 1) as writers:
        outcomes = changed_at_once(table.cluster.configuration, *changes)
        writers.hear(2)
        administration.alter_table(table.cluster, TABLE, rename={"note": "text"})
        writers.hear(2)
        administration.alter_table(table.cluster, TABLE, drop=["text"])
        writers.hear(1_000_000)
    assert [len(done(one)) for one in outcomes] == [2, 2], outcomes
    assert writers.stopped == ["schema-changed"]
    found = table.cluster.scan(TABLE, consistency="ALL").read_all().to_pylist()
    assert {row["id"] for row in found} >= writers.acknowledged
    assert all(row == {"id": row["id"], "a0": None, "a1": None, "b0": None, "b1": None} for row in found)
