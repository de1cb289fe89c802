"""Generated columns: computed of every row that is written, by whichever way it comes and whoever knew of what."""

from __future__ import annotations

import inspect
import pickle
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from epochlake.jobs import administration
from epochlake.jobs.administration.columns import parse_added, parse_columns
from epochlake.jobs.administration.past_rows import rollback, time_of_newest
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.gate.arrow_rows import rows_to_write
from epochlake.jobs.gate.commit_phase import CommitPhase
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.gate.generated_expressions import row_generation, with_generated
from epochlake.jobs.gate.merge_journal import MergeJournal
from epochlake.jobs.gate.merging import Merging
from epochlake.jobs.gate.spilled_rows import SpilledRows, spill
from epochlake.jobs.replicas.generated_rows import values_of
from epochlake.jobs.upkeep.compacting import EVERYTHING
from epochlake.jobs.upkeep.compaction import compact
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.model import Column, Generated, Table
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.rejections import Code

from tests.support.clusters import grow, without_zookeeper
from tests.support.command_line import CommandLine

TABLE = "shop.visits"
DAY = "day date generated always as (date(at))"
LABEL = "label string not null generated always as (coalesce(city, '?') || '-' || cast(id as string))"
COLUMNS = ["id bigint", "at timestamp", "city string", f"{DAY}, {LABEL}"]
NOON = datetime(2020, 2, 29, 23, 59, tzinfo=UTC)
ROME = {"id": 1, "at": NOON, "city": "Rome"}
ROME_WHOLE = {**ROME, "day": date(2020, 2, 29), "label": "Rome-1"}
WRONG = {**ROME, "id": 9, "label": "Rome-1"}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    without_zookeeper(monkeypatch)
    with grow(tmp_path) as grown:
        administration.create_keyspace(grown, "shop", {"dc1": 3})
        administration.create_table(grown, TABLE, COLUMNS, ["id"], tablets=2)
        yield grown


def rows(cluster: Cluster) -> list[dict[str, object]]:
    return sorted(cluster.scan(TABLE).read_all().to_pylist(), key=lambda row: row["id"])


def merge(cluster: Cluster, row: dict[str, object], values: dict[str, str] | None = None) -> object:
    made = cluster.merge(TABLE, pa.Table.from_pylist([row]))
    return (made.when_not_matched_insert_all() if values is None else made.when_matched_update(values)).execute()


WAYS: dict[str, Callable[[Cluster, dict[str, object]], object]] = {
    "write": lambda cluster, row: cluster.write(TABLE, [row]),
    "named": lambda cluster, row: cluster.write(TABLE, [row], batch="b"),
    "changes": lambda cluster, row: cluster.write(TABLE, [row], deletes=[{"id": 5}]),
    "overwrite": lambda cluster, row: cluster.overwrite(TABLE, [row]),
    "merge": merge,
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_computes_what_is_left_out_and_compares_what_is_given(cluster: Cluster, way: str) -> None:
    with pytest.raises(
        InvalidRequest, match=r"'label', .* of {'id': 9} it is Rome-9, and not Rome-1\. Leave the column"
    ):
        WAYS[way](cluster, WRONG)
    assert rows(cluster) == []
    WAYS[way](cluster, ROME)
    assert rows(cluster) == [ROME_WHOLE]
    if way != "merge":
        # What is given as it would be is the same rows: also under the name of the batch.
        WAYS[way](cluster, ROME_WHOLE)
        assert rows(cluster) == [ROME_WHOLE]


def test_null_is_compared_like_any_value_and_what_is_computed_may_be_refused_as_null(cluster: Cluster) -> None:
    cluster.write(TABLE, [{"id": 1, "at": None, "city": None, "day": None}])
    assert rows(cluster) == [{"id": 1, "at": None, "city": None, "day": None, "label": "?-1"}]
    for day, at in ((None, NOON), (date(2020, 2, 29), None)):
        with pytest.raises(InvalidRequest, match="'day', which is generated as"):
            cluster.write(TABLE, [{"id": 2, "at": at, "city": None, "day": day}])
    administration.create_table(
        cluster, "shop.strict", ["id bigint, n int, m int not null generated always as (n + 1)"], ["id"]
    )
    with pytest.raises(InvalidRequest, match="'m' is declared not nullable"):
        cluster.write("shop.strict", [{"id": 1, "n": None}])
    with pytest.raises(InvalidRequest, match=r"'m', .* cannot be computed of these rows: overflow"):
        cluster.write("shop.strict", [{"id": 1, "n": 2**31 - 1}])
    assert cluster.count("shop.strict") == 0


def test_deletes_have_nothing_that_is_computed(cluster: Cluster) -> None:
    cluster.write(TABLE, [ROME, {**ROME, "id": 2}, {**ROME, "id": 3}])
    cluster.delete(TABLE, [{"id": 2}])
    cluster.write(TABLE, [], deletes=[{"id": 3}])
    assert rows(cluster) == [ROME_WHOLE]


def test_a_merge_computes_anew_of_what_a_row_is_then(cluster: Cluster) -> None:
    cluster.write(TABLE, [ROME])
    merge(cluster, {"id": 1, "to": "Oslo"}, {"city": "source.to"})
    assert rows(cluster) == [{**ROME_WHOLE, "city": "Oslo", "label": "Oslo-1"}]
    with pytest.raises(InvalidRequest, match="it is Oslo-1, and not Bonn"):
        merge(cluster, {"id": 1, "to": "Bonn"}, {"label": "source.to"})
    with pytest.raises(InvalidRequest, match="it is Bonn-1, and not Oslo-1"):
        cluster.merge(
            TABLE, pa.Table.from_pylist([{**ROME, "city": "Bonn", "label": "Oslo-1"}])
        ).when_matched_update_all().execute()
    cluster.merge(TABLE, pa.Table.from_pylist([{**ROME, "city": "Bonn"}])).when_matched_update_all().execute()
    assert rows(cluster) == [{**ROME_WHOLE, "city": "Bonn", "label": "Bonn-1"}]


def test_rows_from_before_a_generated_column_have_null_until_they_are_written(cluster: Cluster) -> None:
    cluster.write(TABLE, [ROME, {**ROME, "id": 2}])
    administration.alter_table(cluster, TABLE, add=["size int generated always as (length(city))"])
    assert [row["size"] for row in rows(cluster)] == [None, None]
    cluster.write(TABLE, [{**ROME, "id": 3}])
    compact(cluster, TABLE, policy=EVERYTHING)
    assert [row["size"] for row in rows(cluster)] == [None, None, 4]
    merge(cluster, {"id": 2, "at": NOON}, {"at": "source.at"})
    assert [row["size"] for row in rows(cluster)] == [None, 4, 4]


def test_a_rollback_computes_what_rows_from_before_did_not_have(cluster: Cluster) -> None:
    cluster.write(TABLE, [ROME])
    before = time_of_newest(cluster, TABLE)
    administration.alter_table(cluster, TABLE, add=["size int generated always as (length(city))"])
    cluster.write(TABLE, [{**ROME, "city": "Berlin"}])
    rollback(cluster, TABLE, before)
    assert rows(cluster) == [{**ROME_WHOLE, "size": 4}]


def test_a_program_that_began_before_there_was_a_generated_column_has_it_computed(cluster: Cluster) -> None:
    administration.alter_table(cluster, TABLE, drop=["label"])

    def write(gate: Gate, row: dict[str, object]) -> Table:
        made, known = gate.planning.conformed(TABLE, lambda table: rows_to_write([row], table))
        gate.write(made, known, None, None)
        return known

    with Gate(cluster, "long") as gate:
        first = write(gate, ROME)
        administration.alter_table(cluster, TABLE, rename={"city": "label"}, drop=["day"])
        administration.alter_table(cluster, TABLE, add=["city string generated always as (label || '!')", DAY])
        # The columns that it has known first are called otherwise now; what it gives is not what they are called now.
        assert write(gate, {"id": 2, "at": NOON, "city": "Oslo"}) == first
        with pytest.raises(InvalidRequest, match="it is Oslo!, and not Bonn!"):
            write(gate, {"id": 3, "at": NOON, "label": "Oslo", "city": "Bonn!"})
        write(gate, {"id": 3, "at": NOON, "label": "Bonn"})
    assert [(row["label"], row["city"], row["day"]) for row in rows(cluster)] == [
        ("Rome", None, None),
        ("Oslo", "Oslo!", NOON.date()),
        ("Bonn", "Bonn!", NOON.date()),
    ]


def test_what_was_staged_before_a_change_of_generated_columns_lands(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column that came in between is computed for these rows, which were not there; one that went is no loss."""
    land, once = CommitPhase.land, [{"add": ["size int generated always as (length(city))"], "drop": ["day"]}]

    def landed(phase: CommitPhase) -> object:
        if once:
            administration.alter_table(cluster, TABLE, **once.pop())
        return land(phase)

    monkeypatch.setattr(CommitPhase, "land", landed)
    cluster.write(TABLE, [ROME])
    assert rows(cluster) == [{**ROME, "label": "Rome-1", "size": 4}]


@pytest.mark.parametrize(
    ("of", "moment"),
    [(Merging, "_keep"), (MergeJournal, "put"), (Merging, "_land_staged")],
    ids=["kept", "counting", "landed"],
)
def test_a_merge_that_was_planned_before_a_generated_column_computes_it_or_was_there_before_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, of: type, moment: str
) -> None:
    proper, once = getattr(of, moment), ["size int generated always as (length(city))"]

    def called(self: object, *args: object) -> object:
        if once:
            with Cluster(cluster.configuration) as other:
                administration.alter_table(other, TABLE, add=[once.pop()])
        return proper(self, *args)

    monkeypatch.setattr(of, moment, called)
    merge(cluster, ROME)
    assert rows(cluster) == [{**ROME_WHOLE, "size": None if moment == "_land_staged" else 4}]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"drop": ["city"]}, Code.GENERATING_COLUMN),
        ({"rename": {"city": "town"}}, Code.GENERATING_COLUMN),
        ({"add": ["x int generated always as (length(label))"]}, Code.INVALID_GENERATED_COLUMN),
        ({"add": ["x int generated always as (1 + 1)"]}, Code.INVALID_GENERATED_COLUMN),
        ({"add": ["x int generated always as (rand())"]}, Code.INVALID_GENERATED_COLUMN),
        ({"add": ["x int generated always as (year(city))"]}, Code.INVALID_GENERATED_COLUMN),
        ({"add": ["x int generated always as (city)"]}, Code.INVALID_GENERATED_COLUMN),
        ({"add": ["x int generated always as (cast(city as int))"]}, Code.INVALID_GENERATED_COLUMN),
        ({"add": ["x string generated always as (substring(city, 0))"]}, Code.INVALID_GENERATED_COLUMN),
        ({"add": ["x string generated always as (city ||)"]}, Code.INVALID_GENERATED_COLUMN),
        ({"add": ["x string generated always as (city || id)"]}, Code.INVALID_GENERATED_COLUMN),
        ({"add": ["x int generated always as (" + "(" * 3000 + "id)"]}, Code.INVALID_GENERATED_COLUMN),
        ({"add": ["x int generated always as (" + "-" * 33 + "id)"]}, Code.INVALID_GENERATED_COLUMN),
        ({"add": ["x int not null generated always as (length(city))"]}, Code.INVALID_DEFAULT),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(cluster: Cluster, change: dict, code: Code) -> None:
    before = cluster.catch_up().state_id
    with pytest.raises(Rejected) as refused:
        administration.alter_table(cluster, TABLE, **change)
    assert (refused.value.code, bool(refused.value.hint)) == (code, True)
    assert cluster.catch_up().state_id == before


def test_a_column_goes_together_with_those_that_are_generated_of_it(cluster: Cluster) -> None:
    cluster.write(TABLE, [ROME])
    administration.alter_table(cluster, TABLE, drop=["city", "label"], rename={"day": "on"}, comment={"at": "when"})
    administration.alter_table(cluster, TABLE, drop=["on"], add=["on int generated always as (year(at))"])
    cluster.write(TABLE, [{"id": 2, "at": NOON}])
    assert rows(cluster) == [{"id": 1, "at": NOON, "on": None}, {"id": 2, "at": NOON, "on": 2020}]
    administration.alter_table(cluster, TABLE, widen={"on": "bigint"})
    cluster.write(TABLE, [{"id": 3, "at": NOON, "on": 2020}])
    assert [row["on"] for row in rows(cluster)] == [None, 2020, 2020]


def test_checks_and_times_to_live_see_what_is_computed(cluster: Cluster) -> None:
    administration.alter_table(
        cluster, TABLE, add=["until timestamp generated always as (at)"], add_checks={"named": "label <> '?-1'"}
    )
    with pytest.raises(InvalidRequest, match="check 'named'"):
        cluster.write(TABLE, [{"id": 1, "at": NOON, "city": None}])
    administration.set_ttl(cluster, TABLE, "until", timedelta(days=30))
    cluster.write(TABLE, [ROME, {**ROME, "id": 2, "at": datetime.now(UTC)}])
    assert [row["id"] for row in rows(cluster)] == [2]


def test_definitions_are_read_with_all_that_an_expression_may_have() -> None:
    text = "id bigint, d decimal(10,2) not null generated always as (coalesce(a, b))"
    read = parse_columns([f"{text}, c boolean GENERATED  ALWAYS AS (a < b) null"], ["id"])
    assert [(one.name, one.type, one.nullable, one.generated) for one in read[1:]] == [
        ("d", "decimal(10,2)", False, Generated("coalesce(a, b)")),
        ("c", "boolean", True, Generated("a < b")),
    ]
    [added] = parse_added(["x string generated always as (a || ' default y)') not null"])
    assert (added.nullable, added.generated) == (False, Generated("a || ' default y)'"))
    [struct] = parse_columns(["s struct<a:int,b:decimal(3,1)>"])
    assert struct.type == "struct<a:int,b:decimal(3,1)>"


@pytest.mark.parametrize(
    "text", ["x int generated always as length(a)", "x int generated as (a)", "x int default 5 generated always as (a)"]
)
def test_a_definition_that_is_not_whole_is_refused_with_one_that_is(text: str) -> None:
    for parse in (parse_columns, parse_added):
        with pytest.raises(InvalidRequest) as refused:
            parse([text])
        assert "generated always as (date(at))" in refused.value.hint


def test_rows_that_tasks_have_spilled_are_complete(cluster: Cluster, tmp_path: Path) -> None:
    table = cluster.metadata.table(TABLE)
    given = pa.RecordBatch.from_pylist([ROME, {**ROME, "id": 2}])
    spills = spill(cluster.storage, str(tmp_path), "task", table, [given])
    with Gate(cluster, "tasks") as gate:
        gate.write(SpilledRows(cluster.storage, spills), table, None, "b")
        whole = [ROME_WHOLE, {**ROME_WHOLE, "id": 2, "label": "Rome-2"}]
        assert gate.write(rows_to_write(whole, table), table, None, "b").already
    assert [row["label"] for row in rows(cluster)] == ["Rome-1", "Rome-2"]


def test_the_command_line_declares_loads_and_shows_what_is_computed(grown: CommandLine, tmp_path: Path) -> None:
    columns = "id bigint, city string, size int not null generated always as (coalesce(length(city), 0))"
    grown.done("table", "create", "air.t", "--column", columns, "--primary-key", "id")
    (tmp_path / "lacking.csv").write_text("id,city\n1,Rome\n2,\n")
    (tmp_path / "given.csv").write_text("id,city,size\n3,Rome,4\n")
    (tmp_path / "wrong.csv").write_text("id,city,size\n4,Rome,5\n")
    for name in ("lacking", "given"):
        grown.done("load", "air.t", str(tmp_path / f"{name}.csv"))
    refused = grown.json("load", "air.t", str(tmp_path / "wrong.csv"))
    assert (refused.code, "it is 4, and not 5" in refused.error["message"]) == (2, True)
    assert sorted(row["size"] for row in grown.done("query", "air.t")) == [0, 4, 4]
    shown = {one["name"]: one["generated"] for one in grown.done("table", "show", "air.t")["columns"]}
    assert shown == {"id": None, "city": None, "size": "coalesce(length(city), 0)"}
    assert "generated as" in grown.text("table", "show", "air.t").out
    refused = grown.json("table", "alter", "air.t", "--rename", "city:town")
    assert (refused.code, refused.error["code"]) == (3, "generating-column")


def test_an_expression_as_large_as_can_be_is_read_by_a_writer_deep_in_a_program(cluster: Cluster) -> None:
    def deep(calls: int, task: Callable[[], object]) -> object:
        return deep(calls - 1, task) if calls else task()

    nested = "(" * 31 + "length(city)" + ")" * 31
    many = " + ".join(["length(city)"] * 250)
    administration.alter_table(
        cluster, TABLE, add=[f"x int generated always as ({nested})", f"y int generated always as ({many})"]
    )
    deep(sys.getrecursionlimit() - len(inspect.stack()) - 520, lambda: cluster.write(TABLE, [ROME]))
    assert rows(cluster) == [{**ROME_WHOLE, "x": 4, "y": 1000}]
    table = cluster.metadata.table(TABLE)
    [_, y] = row_generation(table).columns[-2:]  # type: ignore[union-attr]
    assert str(pickle.loads(pickle.dumps(y.expression))) == str(y.expression)


VALUES = {
    "year(at)": (2020, "int"),
    "month(d) * 100 + day(d)": (105, "int"),
    "hour(local)": (7, "int"),
    "date(at)": (date(2020, 2, 29), "date"),
    "date(local) = d": (False, "boolean"),
    "substring(s, 2, 2)": ("é😀", "string"),
    "substring(s, 3)": ("😀b", "string"),
    "concat(s, '-', cast(n as string), cast(d as string), cast(yes as string))": ("aé😀b-72021-01-05true", "string"),
    "s || nothing": (None, "string"),
    "cast(n * 2 as decimal(5,1))": (Decimal("14.0"), "decimal(5,1)"),
    "cast(m as decimal(4,1))": (Decimal("1.5"), "decimal(4,1)"),
    "m * 2": (Decimal("3.00"), "decimal(12,2)"),
    "`a b`.`c` + n": (10, "bigint"),
    "n between 1 and 9 and not yes": (False, "boolean"),
    "upper(s) like 'A%'": (True, "boolean"),
}


def test_expressions_mean_what_they_say() -> None:
    types = "id bigint, at timestamp, local timestamp_ntz, d date, s string, nothing string, n int, m decimal(10,2)"
    names = parse_columns([f"{types}, yes boolean"], ["id"])
    made = with_generated(
        Table(
            "t",
            "k",
            "t",
            (
                *names,
                Column("a b", "struct<c:bigint>"),
                *(
                    Column(f"x{i}", type_, generated=Generated(text))
                    for i, (text, (_, type_)) in enumerate(VALUES.items())
                ),
            ),
            ("id",),
        )
    )
    generation = row_generation(made)
    assert generation is not None
    row = pa.table(
        {
            "at": pa.array([NOON], pa.timestamp("us", "UTC")),
            "local": pa.array([datetime(1969, 12, 31, 7)], pa.timestamp("us")),
            "d": pa.array([date(2021, 1, 5)]),
            "s": pa.array(["aé😀b"]),
            "nothing": pa.array([None], pa.string()),
            "n": pa.array([7], pa.int32()),
            "m": pa.array([Decimal("1.50")], pa.decimal128(10, 2)),
            "yes": pa.array([True]),
            "a b": pa.array([{"c": 3}], pa.struct([("c", pa.int64())])),
        }
    )
    found = {
        one.column.generated.expression: values_of(one.expression, row).to_pylist()[0]  # type: ignore[union-attr]
        for one in generation.columns
    }
    assert found == {text: value for text, (value, _) in VALUES.items()}
