"""What the JVM is given by a few calls is what PySpark gives it by many; a JVM that does not take it is left alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from epochlake.jobs import jvm_calls
from pyspark.errors import AnalysisException

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

LEAST, MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def told_unset(spark: SparkSession, words: list[int], places: range) -> set[tuple[int, int]]:
    """Places and bits that are told to be unset, of all bits of the words at these places."""
    unset = jvm_calls.is_unset(spark, np.array(words, np.int64), "cast(place as int)", "cast(bit as int)")
    assert unset is not None
    every = spark.range(places.start * 64, places.stop * 64, numPartitions=2)
    frame = every.selectExpr("id >> 6 AS place", "id & 63 AS bit")
    return {(row.place, row.bit) for row in frame.where(unset).collect()}


@pytest.mark.parametrize("count", [1, 63, 64, 65, 1000])
def test_bits_of_a_constant_are_those_that_were_given(spark: SparkSession, count: int) -> None:
    dice = np.random.default_rng(count)
    numbers = dice.integers(LEAST, MOST, count, dtype=np.int64, endpoint=True)
    numbers[: min(5, count)] = [LEAST, -1, 0, 1, MOST][: min(5, count)]
    words = numbers.tolist()
    places = range(-2, count + 2)
    expected = {
        (place, bit)
        for place in places
        for bit in range(64)
        if not (0 <= place < count and (words[place] & (1 << 64) - 1) >> bit & 1)
    }
    assert told_unset(spark, words, places) == expected


def test_a_plan_does_not_show_the_words_and_tells_them_apart(spark: SparkSession) -> None:
    one, same, other = (
        jvm_calls.is_unset(spark, np.array(words), "cast(id as int)", "0") for words in ([12344, 1], [12344, 1], [1, 1])
    )
    assert one is not None
    assert same is not None
    assert other is not None
    frames = [spark.range(3).where(unset) for unset in (one, same, other)]
    assert "12344" not in frames[0]._jdf.queryExecution().toString()  # type: ignore[attr-defined]
    assert frames[0].sameSemantics(frames[1])
    assert not frames[0].sameSemantics(frames[2]), "what is cached of one would be shown of another"
    assert [frame.count() for frame in frames] == [2, 2, 1]


def test_paths_that_are_sent_together_are_loaded_and_a_missing_one_is_the_usual_error(
    spark: SparkSession, tmp_path: Path
) -> None:
    paths = [str(tmp_path / name) for name in ("a b", "ü;x", "one")]
    for number, path in enumerate(paths):
        spark.range(number, number + 1).write.parquet(path)
    loaded = jvm_calls.loaded(spark, spark.read, paths)
    assert loaded is not None
    assert sorted(row.id for row in loaded.collect()) == [0, 1, 2]
    assert jvm_calls.loaded(spark, spark.read, [*paths, "two\nlines"]) is None
    with pytest.raises(AnalysisException, match="gone"):
        jvm_calls.loaded(spark, spark.read, [*paths, str(tmp_path / "gone")])


@pytest.mark.parametrize("changed", ["java.util.regex.Pattern", "java.nio.ByteBuffer", "none"])
def test_a_jvm_that_has_other_classes_or_does_not_let_them_be_called_is_left_alone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    import py4j.java_gateway

    class_of = py4j.java_gateway.JavaClass
    monkeypatch.setattr(
        py4j.java_gateway,
        "JavaClass",
        lambda name, client: class_of(f"{name}OfAnotherSpark" if name == changed else name, client),
    )
    spark.range(1).write.parquet(str(tmp_path / "rows"))
    asked = [str(tmp_path / "rows")]
    assert (jvm_calls.loaded(spark, spark.read, asked) is None) is (changed == "java.util.regex.Pattern")
    assert (jvm_calls.is_unset(spark, np.array([1]), "0", "0") is None) is (changed == "java.nio.ByteBuffer")


def test_a_session_of_connect_has_no_jvm_to_call() -> None:
    connected: Any = SimpleNamespace()
    assert jvm_calls.is_unset(connected, np.array([1]), "0", "0") is None
    assert jvm_calls.loaded(connected, connected, ["a"]) is None
