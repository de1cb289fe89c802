"""Values that Spark's JVM is given by a few calls, where PySpark makes many, or needs them as a text.

A call takes a tenth of a millisecond, and waits for Python's lock besides. All of this lies below the API of Spark.
Where a session has no JVM (one of Connect), where a service does not let Python call this, and where another Spark has
it under another name, there is None, and whoever asked goes the way of the API.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession

_T = TypeVar("_T")

_BETWEEN = "\n"
"""Paths are sent as one text, with this between them."""


def loaded(spark: SparkSession, reader: DataFrameReader, paths: Sequence[str]) -> DataFrame | None:
    """`reader.load(paths)`, which makes a call for each path."""
    if any(_BETWEEN in path for path in paths):
        return None

    def called(class_of: Callable[[str], Any]) -> DataFrame:
        from pyspark.sql import DataFrame

        every = class_of("java.util.regex.Pattern").compile(_BETWEEN).split(_BETWEEN.join(paths))
        return DataFrame(reader._jreader.load(every), spark)

    return _called(spark, called)


def is_unset(spark: SparkSession, words: NDArray[np.int64], place: str, bit: str) -> Column | None:
    """`NOT (getbit(get(words, place), bit) <=> 1)`: whether a bit of a word is not set, or there is no word at a place.

    The words are a constant: Spark has it at once, with no subquery to plan and to run, in a form that no plan shows
    and that it takes a word from as fast as from a column. As a list of Python each would be an expression. `place` and
    `bit` are expressions of SQL.
    """

    def called(class_of: Callable[[str], Any]) -> Column:
        from pyspark.sql.classic.column import Column

        functions = class_of("org.apache.spark.sql.functions")
        word = functions.get(_constant(class_of, words), functions.expr(place))
        is_set = functions.getbit(word, functions.expr(bit)).eqNullSafe(1)
        return Column(getattr(functions, "not")(is_set))

    return _called(spark, called)


def _constant(class_of: Callable[[str], Any], numbers: NDArray[np.int64]) -> Any:
    """An array of bigint as a column of the JVM."""
    sent = class_of("java.nio.ByteBuffer").wrap(numbers.astype(">i8").tobytes()).asLongBuffer()
    longs = class_of("java.nio.LongBuffer").allocate(len(numbers)).put(sent).array()
    array = class_of("org.apache.spark.sql.catalyst.expressions.UnsafeArrayData").fromPrimitiveArray(longs)
    bigint = class_of("org.apache.spark.sql.types.DataTypes").LongType
    type_ = class_of("org.apache.spark.sql.types.ArrayType")(bigint, False)
    literal = class_of("org.apache.spark.sql.catalyst.expressions.Literal")(array, type_)
    return class_of("org.apache.spark.sql.classic.ExpressionUtils").column(literal)


def _called(spark: SparkSession, calls: Callable[[Callable[[str], Any]], _T]) -> _T | None:
    """What `calls` makes of classes of the JVM, which it gets by their names."""
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        return None
    from py4j.java_gateway import JavaClass
    from py4j.protocol import Py4JError, Py4JJavaError

    try:
        # A class by its whole name, where `jvm.java.util` asks the JVM at each point.
        return calls(lambda name: JavaClass(name, jvm._gateway_client))
    except Py4JJavaError:
        raise  # it was called, and what it says of the files is what anybody would be told
    except (Py4JError, AttributeError, TypeError, ImportError):
        return None
