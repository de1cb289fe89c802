"""Reads of what is asked: columns, a filter and keys give what reading everything and choosing then gives."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from epochlake.jobs.gate.arrow_reading import question
from epochlake.jobs.gate.errors import ConsistencyNotReached, ReadDisturbed
from epochlake.jobs.replicas import (
    answering,
    counting,
    leaving_out,
    reading,
    run_files,
    scanning,
    sections,
    shared_tokens,
)
from epochlake.jobs.replicas.skipping import RowGroups
from epochlake.jobs.replicas.superseding import judged
from epochlake.metastore.configuration import Configuration, PipelineSettings
from epochlake.metastore.errors import Rejected
from epochlake.placement.errors import InvalidRequest

from tests.support.clusters import FOUR, SmallCluster, placed, without_zookeeper

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ONE_TRY = Configuration(pipeline=PipelineSettings(attempts=1))
FLIGHTS = "air.flights"
COLUMNS = [
    ("code", "string", False),
    ("part", "decimal(6,1)", False),
    ("amount", "decimal(20,2)", True),
    ("delay", "double", True),
    ("at", "timestamp", True),
    ("note", "string", True),
    ("names", "array<string>", True),
]
KEY = ("code", "part")
PARTS = tuple(map(Decimal, ("0.0", "1.5", "99999.9", "-0.1", "-2.0")))
MOMENT = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)

Row = dict[str, object]

Chosen = Callable[[Row], bool]


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    without_zookeeper(monkeypatch)


@pytest.fixture
def wide(tmp_path: Path) -> Iterator[SmallCluster]:
    cluster = placed(
        tmp_path, FOUR, dict.fromkeys(range(4), "ABC"), columns=COLUMNS, primary_key=KEY, configuration=ONE_TRY
    )
    with cluster.cluster:
        yield cluster


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallCluster]:
    cluster = placed(tmp_path, FOUR, dict.fromkeys(range(4), "ABC"), configuration=ONE_TRY)
    with cluster.cluster:
        yield cluster


def a_row(dice: random.Random, number: int, note: str) -> Row:
    """A row for each number; upper and lower case, and numbers that are none, are keys of their own."""
    return {
        "code": ("a", "A", "ä", "a ", "")[number % 5] + str(number // 25),
        "part": PARTS[number // 5 % 5],
        "amount": dice.choice([None, Decimal(dice.randrange(-500, 500)).scaleb(-2)]),
        "delay": dice.choice([None, math.nan, 0.0, -0.0, math.inf, dice.randrange(50) / 2]),
        "at": dice.choice([None, MOMENT + timedelta(microseconds=dice.randrange(3))]),
        "note": note,
        "names": dice.choice([None, [], [None, note]]),
    }


def as_lines(rows: Sequence[Row], columns: Sequence[str]) -> Counter[str]:
    """Rows that compare as they do here: there is one zero, and one UTC."""
    named = {"-0.0": "0.0", "zoneinfo.ZoneInfo(key='UTC')": "datetime.timezone.utc"}
    lines = [repr([row[name] for name in columns]) for row in rows]
    return Counter(reduce(lambda line, one: line.replace(*one), named.items(), line) for line in lines)


def number(value: object) -> bool:
    return value is not None and value == value


FILTERS: dict[str, tuple[pc.Expression | None, Chosen]] = {
    "none": (None, lambda row: True),
    "a number": (pc.field("delay") > 12, lambda row: number(row["delay"]) and row["delay"] > 12),  # type: ignore[operator]
    "no number": (pc.is_nan(pc.field("delay")), lambda row: row["delay"] is not None and row["delay"] != row["delay"]),
    "zero": (pc.field("delay") == 0, lambda row: row["delay"] == 0),
    "null": (pc.field("amount").is_null(), lambda row: row["amount"] is None),
    "a decimal": (
        pc.field("amount") < pa.scalar(Decimal("1.25"), pa.decimal128(20, 2)),
        lambda row: row["amount"] is not None and row["amount"] < Decimal("1.25"),  # type: ignore[operator]
    ),
    "a moment": (
        pc.field("at") >= pa.scalar(MOMENT + timedelta(microseconds=1), pa.timestamp("us", "UTC")),
        lambda row: row["at"] is not None and row["at"] > MOMENT,  # type: ignore[operator]
    ),
    "an old version": (pc.field("note") == "3", lambda row: row["note"] == "3"),
    "a key": (pc.field("code") == "A1", lambda row: row["code"] == "A1"),
    "a range of keys": (
        (pc.field("code") >= "a") & (pc.field("part") < pa.scalar(Decimal(1), pa.decimal128(6, 1))),
        lambda row: row["code"] >= "a" and row["part"] < 1,  # type: ignore[operator]
    ),
    "a key or more": (
        (pc.field("code") == "ä0") | (pc.field("note") > "5"),
        lambda row: row["code"] == "ä0" or row["note"] > "5",  # type: ignore[operator]
    ),
    "some": (pc.field("code").isin(["a1", "a 2", "none"]), lambda row: row["code"] in ("a1", "a 2")),
    "nothing": (pc.field("code") > "\U0010ffff", lambda row: False),
}


@pytest.mark.connect
def test_what_is_asked_for_is_what_choosing_from_everything_gives(
    wide: SmallCluster, spark: SparkSession, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random writes and deletes, some of them while replicas are away, over tablets that move; parts are tiny."""
    dice = random.Random(seed)
    monkeypatch.setattr(sections.divided, "__defaults__", (dice.choice([1, 4, 1 << 16]),))
    monkeypatch.setattr(answering, "LEAST_TASK_ROWS", dice.choice([8, 1 << 17]))
    monkeypatch.setattr(reading, "TOLD_HERE", dice.choice([-1, 1 << 18]))
    monkeypatch.setattr(leaving_out, "NAMED_POSITIONS", dice.choice([0, 3, 256]))
    monkeypatch.setattr(leaving_out, "LOOKED_UP", dice.choice([0, 2, 512]))
    monkeypatch.setattr(leaving_out, "SEARCHED", dice.choice([0, 16]))
    if dice.random() < 0.5:
        monkeypatch.setattr(leaving_out, "is_unset", lambda *_: None)
    monkeypatch.setattr(shared_tokens, "LONG_TO_SHORT", dice.choice([0, 4]))
    monkeypatch.setattr(scanning, "ONCE_BYTES", dice.choice([1, 1 << 25]))
    monkeypatch.setattr(reading, "WHOLE_ROWS", dice.choice([0, 20, 1 << 18]))
    model: dict[object, Row] = {}
    for batch in range(8):
        chosen = dice.sample(range(100), dice.choice([1, 2, 40]))
        rows = [a_row(dice, one, str(batch)) for one in chosen]
        keys = [(row["code"], row["part"]) for row in rows]
        with wide.without(dice.choice(["", "A", "B", "C"])):
            if dice.random() < 0.3:
                wide.cluster.delete(FLIGHTS, [{name: row[name] for name in KEY} for row in rows])
                model = {key: row for key, row in model.items() if key not in keys}
            else:
                wide.cluster.write(FLIGHTS, rows)
                model |= dict(zip(keys, rows, strict=True))
        if batch == 4:
            wide.start("A", "X", tablet=3)
            wide.until(None, tablet=3)
    names = [name for name, _, _ in COLUMNS]
    with wide.cluster.pipeline("reader", spark) as pipeline:
        everything = pipeline.read(FLIGHTS)
        assert as_lines(everything.toArrow().to_pylist(), names) == as_lines(list(model.values()), names)
        for what, (where, matches) in dice.sample(sorted(FILTERS.items(), key=lambda one: one[0]), 7):
            columns = dice.choice([None, dice.sample(names, dice.randint(1, 3))])
            some = dice.choice([None, dice.sample(range(110), 30)])
            asked = None if some is None else [{name: a_row(dice, one, "")[name] for name in KEY} for one in some]
            among = None if asked is None else {(row["code"], row["part"]) for row in asked}
            expected = [row for key, row in model.items() if matches(row) and (among is None or key in among)]
            read = pipeline.read(FLIGHTS, columns=columns, where=where, keys=asked)
            assert read.schema == everything.select(*(columns or names)).schema
            found = as_lines(read.toArrow().to_pylist(), columns or names)
            assert found == as_lines(expected, columns or names), f"seed {seed}: {what}, {columns}, {some}"
            without = wide.cluster.scan(FLIGHTS, columns=columns, where=where, keys=asked)
            assert as_lines(without.read_all().to_pylist(), columns or names) == found, f"seed {seed}: {what}"
            assert pipeline.count(FLIGHTS, where=where, keys=asked) == len(expected), f"seed {seed}: {what}"
            assert wide.cluster.count(FLIGHTS, where=where, keys=asked) == len(expected), f"seed {seed}: {what}"
        monkeypatch.setattr(counting, "COUNTED_HERE", -1)
        assert pipeline.count(FLIGHTS) == len(model)


def test_a_count_tells_what_files_know_and_looks_into_the_others(
    small: SmallCluster, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    read = run_files.rows_of_file
    monkeypatch.setattr(run_files, "rows_of_file", lambda *args: opened.append(args[1]) or read(*args))
    assert small.cluster.count(FLIGHTS) == 0
    small.cluster.write(FLIGHTS, [{"id": number, "note": "old"} for number in range(100)])
    assert small.cluster.count(FLIGHTS) == 100
    assert not opened  # each file is beside all others: what it says of itself counts
    assert small.cluster.count(FLIGHTS, where=pc.field("note") == "new") == 0
    assert opened
    small.cluster.delete(FLIGHTS, [{"id": number} for number in range(10)])
    small.cluster.write(FLIGHTS, [{"id": number, "note": "new"} for number in range(5, 30)])
    with small.cluster.pipeline("reader", spark) as pipeline:
        for where, expected in [(None, 95), (pc.field("note") == "new", 25), (pc.field("id") < 20, 15)]:
            assert pipeline.count(FLIGHTS, where=where) == small.cluster.count(FLIGHTS, where=where) == expected
        keys = spark.range(8, 12)
        assert pipeline.count(FLIGHTS, keys=keys, where=pc.field("note") == "old") == 0
        assert pipeline.count(FLIGHTS, keys=keys) == 4
        with pytest.raises(InvalidRequest, match="no_column"):
            pipeline.count(FLIGHTS, where=pc.field("no_column") > 1)


def test_a_filter_on_the_key_leaves_out_row_groups_before_anything_is_merged(
    small: SmallCluster, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches with keys of their own: only one of them is looked into, and no version comes back by that."""
    for batch in range(3):
        first = 1_000 * batch
        small.cluster.write(FLIGHTS, [{"id": first + number, "note": "old"} for number in range(100)])
        small.cluster.write(FLIGHTS, [{"id": first + number, "note": "new"} for number in range(50)])
    with small.cluster.pipeline("reader", spark) as pipeline:
        of = question(small.table, ["note"], pc.field("id") >= 2_000)
        plan = pipeline.gate.plan_read(small.table)
        pieces = [piece for task in plan.tasks for piece in task]
        assert pieces
        looked = [
            one for piece in pieces for one in judged(("id",), piece, RowGroups(of.asked.where, ["id"]).can_match)
        ]
        assert sum(len(one.rows) > 0 for one in looked) == len(looked) / 3
        found = pipeline.read(FLIGHTS, columns=["note"], where=pc.field("id") >= 2_000).toArrow()
        assert Counter(found["note"].to_pylist()) == {"old": 50, "new": 50}
        old = pipeline.read(FLIGHTS, where=(pc.field("id") < 100) & (pc.field("note") == "old"))
        assert sorted(row.id for row in old.collect()) == list(range(50, 100))


@pytest.mark.connect
@pytest.mark.parametrize("told_here", [-1, 1 << 22], ids=["tasks merge", "tasks are told"])
def test_a_filter_finds_no_older_version_whoever_tells_which_count(
    small: SmallCluster, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, told_here: int
) -> None:
    monkeypatch.setattr(reading, "TOLD_HERE", told_here)
    of_tasks: list[object] = []
    to_tasks = answering._told_to_tasks
    monkeypatch.setattr(answering, "_told_to_tasks", lambda *asked: of_tasks.append(to_tasks(*asked)) or of_tasks[-1])
    small.cluster.write(FLIGHTS, [{"id": number, "note": "old"} for number in range(100)])
    small.cluster.write(FLIGHTS, [{"id": number, "note": "new"} for number in range(0, 100, 3)])
    small.cluster.delete(FLIGHTS, [{"id": number} for number in range(0, 100, 7)])
    with small.cluster.pipeline("reader", spark) as pipeline:
        for note, expected in [
            ("old", {number for number in range(100) if number % 3 and number % 7}),
            ("new", {number for number in range(0, 100, 3) if number % 7}),
        ]:
            found = pipeline.read(FLIGHTS, columns=["id"], where=pc.field("note") == note).collect()
            assert sorted(row.id for row in found) == sorted(expected)
    assert [told is None for told in of_tasks] == [told_here < 0] * 2


@pytest.mark.connect
def test_keys_are_read_of_their_own_replicas_in_any_form(tmp_path: Path, spark: SparkSession) -> None:
    apart = placed(tmp_path, FOUR, {0: "AB", 1: "CX"}, configuration=ONE_TRY)
    with apart.cluster:
        apart.cluster.write(FLIGHTS, [{"id": number, "note": "x"} for number in range(20)], consistency="ALL")
        first = sorted(apart.rows_on("A"))
        with apart.without("CX"), apart.cluster.pipeline("reader", spark) as pipeline:
            forms = [
                [{"id": key} for key in first],
                pa.table({"id": first}),
                spark.createDataFrame([(key,) for key in [*first, *first]], "id int"),
            ]
            for keys in forms:
                read = pipeline.read(FLIGHTS, columns=["id"], keys=keys, consistency="ALL")
                assert sorted(row.id for row in read.collect()) == first
            assert pipeline.read(FLIGHTS, keys=[]).collect() == []
            with pytest.raises(ConsistencyNotReached):
                pipeline.read(FLIGHTS, keys=[{"id": key} for key in range(20)], consistency="ALL")


@pytest.mark.connect
def test_what_does_not_fit_is_refused_with_the_reason(wide: SmallCluster, spark: SparkSession) -> None:
    cases: list[tuple[dict[str, object], str]] = [
        ({"columns": ["tail"]}, "it has no column tail"),
        ({"columns": "note"}, "columns are 'note', one text"),
        ({"columns": []}, "at least one"),
        ({"where": "delay > 3"}, "a filter of table air.flights is a str"),
        ({"where": pc.field("note") > 3}, "cannot be applied"),
        ({"keys": [{"code": "a"}]}, "column part .* is missing"),
        ({"keys": [{"code": "a", "part": "x"}]}, "part"),
        ({"keys": spark.createDataFrame([("a",)], "code string")}, "column part .* is missing"),
    ]
    with wide.cluster.pipeline("reader", spark) as pipeline:
        for asked, message in cases:
            with pytest.raises(InvalidRequest, match=message):
                pipeline.read(FLIGHTS, **asked)  # type: ignore[arg-type]
        with pytest.raises(Rejected, match="no table"):
            pipeline.read("air.planes", columns=["id"])


def test_an_asked_read_is_pinned_when_it_is_planned(small: SmallCluster, spark: SparkSession) -> None:
    small.cluster.write(FLIGHTS, [{"id": number, "note": "old"} for number in range(20)])
    small.cluster.write(FLIGHTS, [{"id": number, "note": "new"} for number in range(10)])
    with small.cluster.pipeline("reader", spark) as pipeline:
        planned = [
            pipeline.read(FLIGHTS, columns=["note"]),
            pipeline.read(FLIGHTS, columns=["note"], where=pc.field("id") >= 0),
            pipeline.read(FLIGHTS, columns=["note"], keys=[{"id": number} for number in range(20)]),
        ]
        small.cluster.write(FLIGHTS, [{"id": number, "note": "late"} for number in range(40)])
        for read in planned:
            for _ in range(2):
                assert Counter(row.note for row in read.collect()) == {"old": 10, "new": 10}


@pytest.mark.parametrize("told_here", [True, False])
def test_damage_is_gone_round_or_told_by_the_file_and_read_elsewhere_then(
    small: SmallCluster, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, told_here: bool
) -> None:
    monkeypatch.setattr(reading, "TOLD_HERE", 10**9 if told_here else -1)
    rows = [{"id": number, "note": f"a note that is somewhat longer {number}"} for number in range(500)]
    for _ in range(2):
        small.cluster.write(FLIGHTS, rows, consistency="ALL")
    for node in "AB":
        for path in (small.directory / node).rglob("*.parquet"):
            if "_delta_log" not in str(path):
                data = bytearray(path.read_bytes())
                data[len(data) // 4] ^= 1
                path.write_bytes(data)
    asked: list[dict[str, object]] = [
        {"columns": ["id"]},
        {"where": pc.field("id") < 400},
        {"keys": [{"id": number} for number in range(0, 500, 7)]},
        {},
    ]
    for one in asked:
        for tries in range(6):
            with suppress(ReadDisturbed), small.cluster.pipeline(f"reader {tries}", spark) as pipeline:
                found = pipeline.read(FLIGHTS, **one).toArrow()  # type: ignore[arg-type]
                break
        assert found.num_rows == (400 if "where" in one else 72 if "keys" in one else 500)
        if "columns" not in one:
            assert small.cluster.count(FLIGHTS, **one) == found.num_rows  # type: ignore[arg-type]


def test_a_count_that_meets_damage_is_of_the_replica_that_has_none(small: SmallCluster) -> None:
    for _ in range(2):
        small.cluster.write(FLIGHTS, [{"id": number, "note": "x"} for number in range(500)], consistency="ALL")
    for path in (small.directory / "A").rglob("*.parquet"):
        if "_delta_log" not in str(path):
            data = bytearray(path.read_bytes())
            data[len(data) // 4] ^= 1
            path.write_bytes(data)
    assert {small.cluster.count(FLIGHTS, consistency="ALL") for _ in range(4)} == {500}
