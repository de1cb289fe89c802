"""`placement/hashing.py` gives the tokens that Spark gives."""

from __future__ import annotations

import random

import pytest
from epochlake.placement.hashing import token_of
from epochlake.placement.tokens import TOKEN, with_token
from pyspark.sql import SparkSession

VALUES: dict[str, list[str]] = {
    "tinyint": ["-128", "7"],
    "smallint": ["-32768", "300"],
    "int": ["0", "-1", "2147483647"],
    "bigint": ["0", "-1", "9223372036854775807", "1545"],
    "boolean": ["true", "false"],
    "string": ["", "a", "UA", "é", "x" * 31, "x" * 32, "x" * 33, "a longer text, of more than one block of bytes" * 3],
    "date": ["1969-12-31", "2013-01-01"],
    "timestamp": ["2013-01-01T05:00:00Z", "1969-12-31T23:59:59.999999Z"],
    "timestamp_ntz": ["2013-01-01T05:00:00"],
    "decimal(10,2)": ["123.45", "-0.01"],
    "decimal(38,3)": ["12345678901234567890123456789012345.678", "-128", "-0.129", "0", "0.255"],
}


@pytest.mark.parametrize("type_", VALUES)
def test_the_token_of_a_value_is_the_one_that_spark_gives(spark: SparkSession, type_: str) -> None:
    rows = spark.createDataFrame([(text,) for text in VALUES[type_]], "text string")
    tokens = rows.selectExpr("text", f"cast(text as {type_}) as k").transform(with_token(["k"])).collect()
    assert {row["text"]: row[TOKEN] for row in tokens} == {text: token_of([(type_, text)]) for text in VALUES[type_]}


def test_the_token_of_a_key_of_several_columns_is_the_one_that_spark_gives(spark: SparkSession, seed: int) -> None:
    dice = random.Random(seed)
    keys = [(str(dice.randrange(-(2**63), 2**63)), "".join(dice.choices("abcé ", k=n)), n) for n in range(40)]
    rows = spark.createDataFrame(keys, "a string, b string, n int").selectExpr("cast(a as bigint) a", "b", "n")
    tokens = {row["n"]: row[TOKEN] for row in rows.transform(with_token(["a", "b", "n"])).collect()}
    assert tokens == {n: token_of([("bigint", a), ("string", b), ("int", str(n))]) for a, b, n in keys}
