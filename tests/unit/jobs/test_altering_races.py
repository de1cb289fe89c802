"""Columns change while others write, read, move tablets and change columns: each of seed 001's and 002's races.

What was staged for the columns of before lands where nothing of it is lost, and is refused by name where something is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from epochlake.jobs import administration
from epochlake.jobs.administration import altering
from epochlake.jobs.administration.altering import ReplicasNotFenced
from epochlake.jobs.administration.columns import parse_added
from epochlake.jobs.administration.operators import OptionChanges
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.gate import commit_phase
from epochlake.jobs.gate.arrow_reading import question
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.replicas.commits import commit_files
from epochlake.jobs.replicas.file_columns import FileColumns
from epochlake.jobs.replicas.outcomes import Acknowledged
from epochlake.jobs.replicas.replica import DeclaredColumns, open_snapshot
from epochlake.jobs.replicas.run_files import rows_of_file
from epochlake.jobs.replicas.scanning import scan
from epochlake.jobs.replicas.schema import delta_schema
from epochlake.jobs.upkeep.repair import repair
from epochlake.metastore.committing.local_queue import LocalQueue
from epochlake.metastore.configuration import Configuration, PipelineSettings
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.events import AlterColumns, DropTable
from epochlake.metastore.metadata.model import Column
from epochlake.placement.ring.state import Step
from epochlake.placement.tablets.transitions import Stage

from tests.support import rings
from tests.support.altering_process import writing
from tests.support.clusters import FOUR, SmallCluster, placed, reads_trust_fences_alone, without_zookeeper
from tests.support.landing import before_landing
from tests.support.rings import QUICK, ringed
from tests.support.storages import STORAGE
from tests.unit.jobs.test_formats import TABLE as OLD
from tests.unit.jobs.test_formats import replica

TABLE = "air.flights"
ONE_TRY = Configuration(pipeline=PipelineSettings(attempts=1))


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallCluster]:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(commit_phase, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(altering, "BARRIER_SECONDS", 0.5)
    made = placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"}, configuration=ONE_TRY)
    with made.cluster:
        yield made


def rows(cluster: Cluster) -> dict[object, dict[str, object]]:
    found = cluster.scan(TABLE, consistency="ALL").read_all().to_pylist()
    return {next(iter(row.values())): row for row in found}


LOSSLESS = {
    "added": ({"add": parse_added(["c int not null default 7"])}, {"id": 1, "note": "staged", "c": 7}),
    "renamed": ({"rename": {"note": "text", "id": "key"}}, {"key": 1, "text": "staged"}),
    "used again": (
        {"rename": {"note": "text"}, "add": [Column("note", "string")]},
        {"id": 1, "text": "staged", "note": None},
    ),
    "described": ({"comment": {"note": "said"}, "order": ["id"]}, {"id": 1, "note": "staged"}),
}


@pytest.mark.parametrize("way", LOSSLESS)
def test_rows_that_were_staged_before_a_change_land_after_it_where_it_loses_nothing(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    changes, expected = LOSSLESS[way]
    before_landing(monkeypatch, lambda: administration.alter_table(table.cluster, TABLE, **changes))  # type: ignore[arg-type]
    written = table.cluster.write(TABLE, [{"id": 1, "note": "staged"}], consistency="ALL")
    assert written.epoch == table.cluster.catch_up().epoch
    assert rows(table.cluster) == {1: expected}


def test_rows_with_values_of_a_column_that_is_dropped_meanwhile_do_not_land(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.cluster.write(TABLE, [{"id": 1, "note": "before"}], consistency="ALL")
    before_landing(monkeypatch, lambda: administration.alter_table(table.cluster, TABLE, drop=["note"]))
    with pytest.raises(Rejected, match="note by epoch") as refused:
        table.cluster.write(TABLE, [{"id": 2, "note": "staged"}], consistency="ALL")
    assert refused.value.code == "schema-changed"
    assert rows(table.cluster) == {1: {"id": 1}}
    # A delete has no values that could be lost.
    before_landing(
        monkeypatch, lambda: administration.alter_table(table.cluster, TABLE, add=[("note", "string", True)])
    )
    table.cluster.delete(TABLE, [{"id": 1}], consistency="ALL")
    assert rows(table.cluster) == {}


def test_a_batch_of_changes_with_values_of_a_column_that_is_dropped_meanwhile_does_not_land(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.cluster.write(TABLE, [{"id": key, "note": "before"} for key in range(8)], consistency="ALL")
    before_landing(monkeypatch, lambda: administration.alter_table(table.cluster, TABLE, drop=["note"]))
    upserts, keys = [{"id": 100, "note": "staged"}], [{"id": key} for key in range(8)]
    with pytest.raises(Rejected, match="note by epoch"):
        table.cluster.write(TABLE, upserts, deletes=keys, consistency="ALL")
    assert sorted(rows(table.cluster)) == list(range(8))


def test_a_table_that_is_dropped_and_made_anew_meanwhile_gets_no_row(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def anew() -> None:
        administration.drop_table(table.cluster, TABLE)
        administration.create_table(table.cluster, TABLE, [("id", "bigint", False), ("note", "string", True)], ["id"])

    before_landing(monkeypatch, anew)
    with pytest.raises(Rejected, match="was dropped") as refused:
        table.cluster.write(TABLE, [{"id": 1, "note": "staged"}])
    assert refused.value.code == "unknown-table"
    assert rows(table.cluster) == {}


def test_of_two_that_change_columns_at_once_both_are_done_and_no_number_is_given_twice(table: SmallCluster) -> None:
    outcomes: dict[str, object] = {}

    def change(name: str, column: str) -> None:
        try:
            outcomes[name] = administration.alter_table(table.cluster, TABLE, add=[(column, "int", True)])
        except Rejected as rejected:
            outcomes[name] = str(rejected.code)

    asked = [("1", "a"), ("2", "b"), ("3", "same"), ("4", "same")]
    threads = [threading.Thread(target=change, args=one) for one in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    columns = table.cluster.table(TABLE).columns
    assert sorted(column.name for column in columns) == ["a", "b", "id", "note", "same"]
    assert sorted(column.column_id for column in columns) == [1, 2, 3, 4, 5]
    assert sorted(str(outcome) for outcome in (outcomes["3"], outcomes["4"]))[-1] == "column-exists"


def test_a_change_that_was_planned_on_other_columns_changes_nothing(table: SmallCluster) -> None:
    now = table.cluster.metadata.table(TABLE)
    stale = AlterColumns(now.table_id, TABLE, now.version, now.numbered[:1])
    administration.alter_table(table.cluster, TABLE, add=[("c", "int", True)])
    for event in (stale, DropTable("an-older-table", TABLE)):
        epoch = table.cluster.catch_up().epoch
        with pytest.raises(Rejected, match="stale-plan"):
            table.cluster.commit(event)
        assert table.cluster.catch_up().epoch == epoch


def test_of_a_table_that_is_made_and_dropped_at_once_one_history_is_left(table: SmallCluster) -> None:
    said: list[str] = []

    def attempt(change: Callable[[], object]) -> None:
        for _ in range(6):
            try:
                change()
                said.append("done")
            except Rejected as rejected:
                said.append(str(rejected.code))

    columns = [("id", "int", False)]
    made = threading.Thread(
        target=attempt, args=[lambda: administration.create_table(table.cluster, "air.t", columns, ["id"], tablets=1)]
    )
    gone = threading.Thread(target=attempt, args=[lambda: administration.drop_table(table.cluster, "air.t")])
    for thread in (made, gone):
        thread.start()
    for thread in (made, gone):
        thread.join()
    assert set(said) <= {"done", "table-exists", "unknown-table", "stale-plan"}
    names = [one.full_name for one in table.cluster.catch_up().schema.tables.values()]
    if "air.t" in names:
        table.cluster.write("air.t", [{"id": 1}])
        assert table.cluster.count("air.t") == 1


@pytest.mark.parametrize("stage", [Stage.ALLOW_WRITE_BOTH_READ_OLD, Stage.STREAMING, Stage.USE_NEW])
def test_columns_change_in_the_middle_of_a_migration(table: SmallCluster, stage: Stage) -> None:
    table.cluster.write(TABLE, [{"id": number, "note": "old"} for number in range(20)], consistency="ALL")
    table.start("A", "X")
    table.until(stage)
    administration.alter_table(
        table.cluster, TABLE, rename={"note": "text"}, add=parse_added(["c int default 3", "note string"])
    )
    table.cluster.write(TABLE, [{"id": 20, "text": "new", "note": "fresh"}], consistency="QUORUM")
    table.settle()
    found = rows(table.cluster)
    assert found[20] == {"id": 20, "text": "new", "c": 3, "note": "fresh"}
    assert [found[number] for number in range(20)] == [
        {"id": number, "text": "old", "c": 3, "note": None} for number in range(20)
    ]
    version = table.cluster.metadata.table(TABLE).version
    assert open_snapshot(table.address("X")).columns_version <= version
    assert open_snapshot(table.address("B")).columns_version == version


@pytest.mark.parametrize("step", [Step.START, Step.MID])
def test_columns_change_in_the_middle_of_an_operation_on_the_ring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: Step
) -> None:
    without_zookeeper(monkeypatch)
    ring = ringed(tmp_path, rings.FOUR, configuration=QUICK, rows={})
    with ring.cluster:
        ring.cluster.write(TABLE, [{"id": number, "note": "old"} for number in range(40)], consistency="ALL")
        rings.join(ring)
        ring.until(step)
        administration.alter_table(ring.cluster, TABLE, drop=["note"])
        administration.alter_table(ring.cluster, TABLE, add=["note string", "c int default 3"])
        ring.cluster.write(TABLE, [{"id": 40, "note": "new"}], consistency="QUORUM")
        ring.settle()
        expected = [{"id": number, "note": None, "c": 3} for number in range(40)]
        assert rows(ring.cluster) == {row["id"]: row for row in [*expected, {"id": 40, "note": "new", "c": 3}]}


def test_columns_change_in_the_middle_of_a_split(table: SmallCluster) -> None:
    table.cluster.write(TABLE, [{"id": number, "note": "old"} for number in range(40)], consistency="ALL")
    administration.alter_table(table.cluster, TABLE, OptionChanges(min_count=8))
    administration.resume_balancing(table.cluster)
    while not table.metadata.tablets.maps[table.table.table_id].resize_seq_number:
        table.round()
    administration.alter_table(table.cluster, TABLE, rename={"note": "text"}, add=["note string", "c int default 3"])
    table.cluster.write(TABLE, [{"id": 40, "text": "new"}], consistency="QUORUM")
    table.settle()
    assert table.metadata.tablets.maps[table.table.table_id].count == 8
    expected = [{"id": number, "text": "old", "note": None, "c": 3} for number in range(40)]
    assert rows(table.cluster) == {
        row["id"]: row for row in [*expected, {"id": 40, "text": "new", "note": None, "c": 3}]
    }


def test_a_read_that_was_planned_before_a_change_is_planned_again_by_the_fences_alone(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads_trust_fences_alone(monkeypatch)
    with Gate(table.cluster, "reader") as gate, Cluster(table.cluster.configuration, queue=LocalQueue()) as other:
        assert gate.planning.table(TABLE).columns[1].name == "note"
        administration.alter_table(other, TABLE, rename={"note": "text"}, add=parse_added(["c int default 3"]))
        other.write(TABLE, [{"id": 1, "text": "new", "c": 4}])

        def read(known: object) -> list[dict[str, object]]:
            asked = question(known)  # type: ignore[arg-type]
            plan = gate.plan_read(asked.table, "QUORUM", asked.windows)
            return [row for batch in scan(plan, asked.asked) for row in batch.to_pylist()]

        assert gate.planning.as_it_is(TABLE, read) == [{"id": 1, "text": "new", "c": 4}]


def test_a_replica_that_was_away_declares_the_columns_before_a_file_with_them_lands_there(table: SmallCluster) -> None:
    table.cluster.write(TABLE, [{"id": 1, "note": "old"}], consistency="ALL")
    with table.without("C"):
        administration.alter_table(table.cluster, TABLE, drop=["note"])
        administration.alter_table(table.cluster, TABLE, add=[("note", "string", True)])
        table.cluster.write(TABLE, [{"id": 2, "note": "new"}], consistency="QUORUM")
    version = table.cluster.metadata.table(TABLE).version
    assert open_snapshot(table.address("C")).columns_version == ""
    repair(table.cluster, TABLE)
    back = open_snapshot(table.address("C"))
    assert (back.columns_version, '"note#3"' in back.metadata["schemaString"]) == (version, True)
    assert rows(table.cluster) == {1: {"id": 1, "note": None}, 2: {"id": 2, "note": "new"}}


def test_a_change_is_not_done_before_a_quorum_of_every_range_is_fenced_and_can_be_asked_for_again(
    table: SmallCluster,
) -> None:
    with table.without("BC"), pytest.raises(ReplicasNotFenced, match="rows that were made for those of before"):
        administration.alter_table(table.cluster, TABLE, drop=["note"], request_id="mine")
    again = administration.alter_table(table.cluster, TABLE, drop=["note"], request_id="mine")
    assert again.already
    epoch = table.cluster.catch_up().table(TABLE).epoch
    assert all(open_snapshot(table.address(node)).fence >= epoch for node in "ABC")


def test_a_node_is_replaced_after_a_change_and_nothing_comes_back(table: SmallCluster) -> None:
    table.cluster.write(TABLE, [{"id": number, "note": "secret"} for number in range(8)], consistency="ALL")
    administration.alter_table(table.cluster, TABLE, drop=["note"])
    administration.alter_table(table.cluster, TABLE, add=[("note", "string", True)])
    table.lose("A")
    administration.remove_node(table.cluster, "A")
    table.settle()
    assert rows(table.cluster) == {number: {"id": number, "note": None} for number in range(8)}
    assert open_snapshot(table.address("X")).columns_version == table.cluster.metadata.table(TABLE).version


def test_processes_that_know_only_the_columns_of_before_write_during_changes_and_lose_nothing(
    table: SmallCluster,
) -> None:
    changes: list[dict[str, object]] = [
        {"add": parse_added(["c int not null default 1"])},
        {"rename": {"note": "text"}},
        {"add": [Column("more", "string")], "order": ["c"]},
        {"drop": ["text"]},
    ]
    with writing(table.cluster.configuration, TABLE, 2) as writers:
        for change in changes:
            writers.hear(4)
            administration.alter_table(table.cluster, TABLE, **change)  # type: ignore[arg-type]
        writers.hear(1_000_000)
    assert writers.stopped == ["schema-changed"] * 2
    found = table.cluster.scan(TABLE, consistency="ALL").read_all().to_pylist()
    assert len(writers.acknowledged) >= 16
    assert writers.acknowledged <= {row["id"] for row in found}
    assert all(row == {"c": 1, "id": row["id"], "more": None} for row in found)


@pytest.mark.parametrize("generation", [1, 5])
def test_a_replica_table_of_an_earlier_version_of_the_product_takes_files_of_altered_columns(
    tmp_path: Path, generation: int
) -> None:
    address, expected = replica(tmp_path, generation)
    before = open_snapshot(address)
    columns = (*OLD.numbered, Column("c", "int", True, 99, "c#99", "5"))
    altered = msgspec.structs.replace(OLD, columns=columns, version="01990000-0000-7000-8000-000000000000")
    fence = before.fence + 1
    now = msgspec.structs.replace(address, columns=DeclaredColumns(altered.version, fence, delta_schema(altered)))
    outcome = commit_files(now, [], epoch=fence, app_id="new", app_version=1, leaves_mark=True)
    assert isinstance(outcome, Acknowledged)
    after = open_snapshot(now)
    assert (after.fence, after.columns_version) == (fence, altered.version)
    assert after.all_files == before.all_files
    assert "c#99" in after.metadata["schemaString"]
    known_as = FileColumns(columns, len(OLD.columns))
    for file in after.all_files.values():
        groups = rows_of_file(
            STORAGE, f"{address.uri}/{file.path}", None, ["id", "c"], lambda type_: type_, known_as=known_as
        )
        read = [(row["id"], row["c"]) for rows, _ in groups for row in rows.to_pylist()]
        assert read == [(row["id"], 5) for row in expected["rows"][file.file_id]]
