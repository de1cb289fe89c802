"""Spark reads every encoding that a data file has, of every type: it is relied on, and some encodings it refuses."""

from __future__ import annotations

import datetime
import random
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from epochlake.jobs.replicas.column_encodings import DIFFERENCES, LENGTHS_APART
from epochlake.jobs.replicas.footer_groups import read_footer
from epochlake.jobs.replicas.sealed_groups import SealedGroups, encoded_group
from epochlake.jobs.replicas.sealing import sealed_writer
from epochlake.jobs.replicas.seals import footer_length, hexdigest
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 5000
EPOCH = datetime.datetime(1970, 1, 1)
MAKE = {
    "tinyint": (pa.int8(), lambda n: n % 256 - 128),
    "smallint": (pa.int16(), lambda n: n % 65536 - 32768),
    "int": (pa.int32(), lambda n: n % (1 << 32) - (1 << 31)),
    "bigint": (pa.int64(), lambda n: n - (1 << 62)),
    "date": (pa.date32(), lambda n: (EPOCH + datetime.timedelta(days=n % 40_000 - 20_000)).date()),
    "timestamp": (pa.timestamp("us", "UTC"), lambda n: EPOCH + datetime.timedelta(microseconds=n % (1 << 50))),
    "timestamp_ntz": (pa.timestamp("us"), lambda n: EPOCH - datetime.timedelta(microseconds=n % (1 << 50))),
    "string": (pa.string(), lambda n: f"{n:x}"[: n % 17]),
    "binary": (pa.binary(), lambda n: n.to_bytes(8, "big")[: n % 9]),
    "double": (pa.float64(), lambda n: n / 3),
    "float": (pa.float32(), lambda n: float(n % 65_536)),
    "decimal(12,2)": (pa.decimal128(12, 2), lambda n: Decimal(n % 10**10) / 100),
    "decimal(5,1)": (pa.decimal128(5, 1), lambda n: Decimal(n % 10**5 - 50_000) / 10),
    "decimal(18,0)": (pa.decimal128(18, 0), lambda n: Decimal(n % 10**18)),
    "decimal(38,4)": (pa.decimal128(38, 4), lambda n: Decimal(n) / 100),
    "boolean": (pa.bool_(), lambda n: n % 2 == 0),
    "array<int>": (pa.list_(pa.int32()), lambda n: list(range(n % 4))),
}


def test_spark_reads_what_was_encoded_in_each_way(spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(5)
    few = [chance.getrandbits(62) for _ in range(7)]
    columns: dict[str, pa.Array] = {}
    for name, (type_, make) in MAKE.items():
        for kind, number in (("many", lambda: chance.getrandbits(62)), ("few", lambda: chance.choice(few))):
            values = [None if chance.random() < 0.1 else make(number()) for _ in range(2 * ROWS)]
            columns[f"{kind} {name}"] = pa.array(values, type_)
    rows = pa.table(columns)
    path = tmp_path / "rows.parquet"
    with pa.OSFile(str(path), "wb") as sink, sealed_writer(sink, rows.schema, "f") as writer:
        writer.write(rows.slice(0, ROWS))
        writer.write(rows.slice(ROWS))

    group = pq.ParquetFile(path).metadata.row_group(1)
    used = {group.column(n).path_in_schema: {*group.column(n).encodings} for n in range(group.num_columns)}
    whole = ("tinyint", "smallint", "int", "bigint", "date", "timestamp", "timestamp_ntz", "decimal(12,2)")
    assert all(DIFFERENCES in used[f"many {name}"] for name in whole)
    assert all(LENGTHS_APART in used[f"many {name}"] for name in ("string", "binary"))
    assert all("RLE_DICTIONARY" in used[f"few {name}"] for name in ("bigint", "string", "double", "decimal(38,4)"))

    read = spark.read.option("parquet.page.verify-checksum.enabled", "true").parquet(f"file://{path}")
    assert "Batched: true" in read._jdf.queryExecution().executedPlan().toString()
    # Each value and its place: rows of one file come in their order.
    numbered = read.select("*", F.monotonically_increasing_id().alias("n")).coalesce(1).toArrow().sort_by("n")
    for name in rows.column_names:
        found = numbered.column(name).cast(rows.schema.field(name).type)
        assert found.equals(rows.column(name)), name


def test_spark_reads_row_groups_that_were_copied(spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(6)
    columns = {
        name: pa.array(
            [None if chance.random() < 0.1 else make(chance.getrandbits(62)) for _ in range(3 * ROWS)], type_
        )
        for name, (type_, make) in MAKE.items()
    }
    rows = pa.table({**columns, "number": pa.array(range(3 * ROWS), pa.int64())})
    source, copied = tmp_path / "source.parquet", tmp_path / "copied.parquet"
    with pa.OSFile(str(source), "wb") as sink, sealed_writer(sink, rows.schema, "f") as writer:
        for start in range(0, 3 * ROWS, ROWS):
            writer.write(rows.slice(start, ROWS))

    data = source.read_bytes()
    footer = read_footer(data[-footer_length(data) : -8])
    with pa.OSFile(str(copied), "wb") as sink:
        target = SealedGroups(sink, footer, "g")
        first, group = encoded_group(rows.slice(100, 50))
        target.add([first], group, hexdigest([first]))
        for group in footer.groups[1:]:
            moved = data[group.start : group.start + group.size]
            target.add([moved], group, hexdigest([moved]))
        target.close()

    expected = pa.concat_tables([rows.slice(100, 50), rows.slice(ROWS)])
    read = spark.read.option("parquet.page.verify-checksum.enabled", "true").parquet(f"file://{copied}")
    assert "Batched: true" in read._jdf.queryExecution().executedPlan().toString()
    numbered = read.coalesce(1).toArrow().sort_by("number")
    for name in rows.column_names:
        found = numbered.column(name).cast(rows.schema.field(name).type)
        assert found.equals(expected.column(name)), name
    # Statistics lead to the row group that was moved.
    assert read.where(F.col("number") == 2 * ROWS + 7).count() == 1
    assert read.where(F.col("number") == ROWS - 7).count() == 0
