"""DataFrames of a table show and filter what is stored, whatever a session is set to, and as Spark compares values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from epochlake.jobs import administration
from epochlake.jobs.replicas import leaving_out, reading
from epochlake.metastore.metadata.model import Column

from tests.support.clusters import FOUR, placed, spark_stages_all, without_zookeeper
from tests.support.session_settings import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLIGHTS = "air.flights"
LONG_AGO = datetime(1500, 3, 1, 12, tzinfo=UTC)

Row = dict[str, object]


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    without_zookeeper(monkeypatch)


def as_texts(rows: Sequence[Row]) -> list[str]:
    """Rows that compare as they do here: a moment is one in every zone."""

    def text(value: object) -> str:
        if isinstance(value, dict):
            return repr({name: text(one) for name, one in value.items()})
        is_moment = isinstance(value, datetime) and value.tzinfo is not None
        return repr(value.astimezone(UTC).isoformat() if is_moment else value)

    return sorted(text(row) for row in rows)


def in_spark(value: float | None) -> tuple[bool, float]:
    """A number as Spark orders it: NaN is the greatest of all."""
    assert value is not None
    return (True, 0.0) if value != value else (False, value)


NAN, ZERO = in_spark(math.nan), in_spark(0.0)
FILTERS = {
    "> 1": lambda one: one > (False, 1.0),
    "= 'NaN'": lambda one: one == NAN,
    "= 0": lambda one: one == ZERO,
    "<> 0.5": lambda one: one != (False, 0.5),
    "in (0, 'NaN')": lambda one: one in (ZERO, NAN),
    "< 0.25": lambda one: one < (False, 0.25),
}


@pytest.mark.connect
@pytest.mark.parametrize(("column", "told"), [("d", "named"), ("f", "looked up"), ("inner.y.d", "by tasks")])
def test_a_filter_loses_no_row_with_nan_or_with_the_other_zero(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, column: str, told: str
) -> None:
    """Each batch is a row group whose least and greatest value say nothing of its NaN, and there are both zeros."""
    monkeypatch.setattr(reading, "TOLD_HERE", -1 if told == "by tasks" else 1 << 22)
    monkeypatch.setattr(leaving_out, "NAMED_POSITIONS", 0 if told == "looked up" else 256)
    columns = [("id", "bigint", False), ("d", "double", True), ("f", "float", True)]
    # Where a struct has such a number, all columns are told to Spark in another way. By a field with a dot in its name
    # Spark leaves nothing out.
    nested = column.startswith("inner")
    columns += [("inner", "struct<n:int,y:struct<d:double>,`x.y`:double>", True)] if nested else []
    small = placed(tmp_path, FOUR, {0: "ABC"}, columns=columns)
    stored: dict[int, float | None] = {}
    with small.cluster:
        for first, numbers in [
            (0, [math.nan, 0.5]),
            (3, [-0.0]),
            (10, [0.0, None]),
            (20, [math.nan]),
            (1, [0.5, 0.25]),
        ]:
            batch = {first + place: number for place, number in enumerate(numbers)}
            small.cluster.write(
                FLIGHTS,
                [
                    {"id": id_, "d": number, "f": number}
                    | ({"inner": {"n": id_, "y": {"d": number}, "x.y": number}} if nested else {})
                    for id_, number in batch.items()
                ],
            )
            stored |= batch
        with small.cluster.pipeline("reader", spark) as pipeline:
            frame = pipeline.read(FLIGHTS)
            for text, matches in FILTERS.items():
                expected = sorted(id_ for id_, one in stored.items() if one is not None and matches(in_spark(one)))
                asked = text.replace("'NaN'", f"{'float' if column == 'f' else 'double'}('NaN')")
                found = sorted(row.id for row in frame.where(f"{column} {asked}").select("id").collect())
                assert found == expected, f"{column} {asked}"
            # The numbers are those that were written, to the sign of a zero.
            for row in frame.collect():
                shown = [row.d, row.f, *([row.inner["y"]["d"], row.inner["x.y"]] if nested else [])]
                assert repr(shown) == repr([stored.pop(row.id)] * len(shown))
            assert not stored


MOMENTS = {"spark.sql.timestampType": "TIMESTAMP_NTZ", "spark.sql.session.timeZone": "Asia/Tokyo"}
SETTINGS: dict[str, dict[str, str]] = {
    "moments have no zone": MOMENTS,
    "moments in structs have no zone": MOMENTS,
    "days are of an old Spark": {"spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY"},
    "days of long ago are refused": {"spark.sql.parquet.datetimeRebaseModeInRead": "EXCEPTION"},
    "names are patterns": {"spark.sql.parser.quotedRegexColumnNames": "true"},
    "backslashes are letters": {"spark.sql.parser.escapedStringLiterals": "true"},
    "files are read by the second reader": {"spark.sql.sources.useV1SourceList": ""},
}
LOCAL = LONG_AGO.replace(tzinfo=None)
COLUMNS = [
    ("id", "bigint", False),
    ("at", "timestamp", True),
    ("local", "timestamp_ntz", True),
    ("day", "date", True),
    ("d", "double", True),
    ("a.", "int", True),
    ("ab", "int", True),
    ("ü%", "int", True),
]
INNER = ("inner", "struct<at:timestamp,timestamp:date>", True)
NOTE = "it's \\ one"


def a_row(id_: int) -> Row:
    return dict(
        zip([name for name, _, _ in COLUMNS], (id_, LONG_AGO, LOCAL, date(1, 1, 1), -0.0, id_, -id_, 7), strict=True)
    )


@pytest.mark.connect
@pytest.mark.parametrize("what", SETTINGS)
def test_a_session_reads_and_writes_the_same_rows_whatever_it_is_set_to(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    from pyspark.sql import functions as F

    spark_stages_all(monkeypatch)
    nested = "structs" in what
    columns = [*COLUMNS, INNER] if nested else COLUMNS
    inner = {"inner": {"at": LONG_AGO, "timestamp": date(1500, 2, 28)}} if nested else {}
    small = placed(tmp_path, FOUR, {0: "ABC"}, columns=columns)
    with small.cluster:
        for count in (8, 6):
            small.cluster.write(FLIGHTS, [a_row(id_) | inner for id_ in range(count)])
        small.cluster.write(FLIGHTS, [a_row(7) | inner], batch="once")
        added: Row = {} if nested else {"note": NOTE, "since": LONG_AGO}
        if nested:
            administration.alter_table(small.cluster, FLIGHTS, rename={"inner.at": "when"})
            inner = {"inner": {"when": LONG_AGO, "timestamp": date(1500, 2, 28)}}
        else:
            defaults = [
                Column("note", "string", default=NOTE),
                Column("since", "timestamp", default=LONG_AGO.isoformat()),
            ]
            administration.alter_table(small.cluster, FLIGHTS, add=defaults)
        model = {id_: a_row(id_) | inner | added for id_ in range(8)}
        with settings(spark, SETTINGS[what]), small.cluster.pipeline("job", spark) as pipeline:
            some = pipeline.read(FLIGHTS).where(F.col("id") < 4)
            # What has a default is left out.
            again = pipeline.read(FLIGHTS).where(F.col("id") == 7).drop(*added)
            assert pipeline.write(again, FLIGHTS, batch="once").already
            if nested:
                # Fields in another order are put into theirs by a cast.
                some = some.withColumn("inner", F.struct("inner.timestamp", "inner.when"))
            pipeline.write(some.drop(*added).withColumn("id", F.col("id") + 8), FLIGHTS)
            model |= {8 + id_: model[id_] | {"id": 8 + id_} for id_ in range(4)}
            pipeline.delete(spark.range(2), FLIGHTS)
            del model[0], model[1]
            for read in (pipeline.read(FLIGHTS), pipeline.read(FLIGHTS, keys=[{"id": id_} for id_ in range(12)])):
                assert as_texts(read.toArrow().to_pylist()) == as_texts(list(model.values()))


@pytest.mark.connect
def test_fields_whose_names_are_no_words_are_written_and_read(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark_stages_all(monkeypatch)
    odd = "array<struct<`x.y`:int,`9-%`:struct<`ü`:double>>>"
    small = placed(tmp_path, FOUR, {0: "ABC"}, columns=[("id", "bigint", False), ("of", odd, True)])
    rows: list[Row] = [{"id": id_, "of": [{"x.y": id_, "9-%": {"ü": 0.5}}, None]} for id_ in range(3)]
    with small.cluster, small.cluster.pipeline("job", spark) as pipeline:
        pipeline.write(spark.createDataFrame([tuple(row.values()) for row in rows], f"id bigint, of {odd}"), FLIGHTS)
        assert as_texts(pipeline.read(FLIGHTS).toArrow().to_pylist()) == as_texts(rows)
        assert as_texts(small.cluster.scan(FLIGHTS).read_all().to_pylist()) == as_texts(rows)
