"""`epochlake_read`, a table function of SQL: what the format reads, with its options as arguments of a query.

A view cannot be told which rows a query wants (docs/decisions/056-data-source.md). An argument of a function belongs to
the one query that it stands in, so keys and filters in it are pushed down safely; and each query is planned anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
from epochlake.jobs.datasource.errors import as_spark_says
from epochlake.jobs.datasource.options import read_options
from epochlake.jobs.datasource.source import EpochlakeDataSource
from epochlake.placement.errors import InvalidRequest
from pyspark.sql import SparkSession
from pyspark.sql.functions import udtf
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult, UserDefinedTableFunction

NAME = "epochlake_read"


@dataclass
class Analyzed(AnalyzeResult):
    """What the query was analyzed as; `options` are those of the format."""

    options: dict[str, str] = field(default_factory=dict)


def register_function(spark: SparkSession, settings: str | None = None) -> None:
    """Make a session know the function; with `settings`, a configuration as JSON, calls need not name the cluster."""
    spark.udtf.register(NAME, cast(UserDefinedTableFunction, udtf(_reading(settings))))


def _reading(settings: str | None) -> type:
    """The function's class: a worker of Spark makes an object of it for the one call that a query is."""

    class Reading:
        def __init__(self, analyzed: Analyzed) -> None:
            self._options = analyzed.options

        @staticmethod
        def analyze(*positional: AnalyzeArgument, **named: AnalyzeArgument) -> AnalyzeResult:
            """The columns, by the metadata of now. Raises Spark's errors for what the format refuses."""
            with as_spark_says():
                options = _options(positional, named, settings)
            return Analyzed(EpochlakeDataSource(options).struct(), options=options)

        def eval(self, *positional: Any, **named: Any) -> Iterator[tuple[Any, ...]]:
            """The rows, planned now."""
            source = EpochlakeDataSource(self._options)
            reader = source.reader(source.struct())
            for partition in reader.partitions():
                for batch in reader.read(partition):
                    assert isinstance(batch, pa.RecordBatch)
                    # Columns by their order: names of a table are its own, and Spark's rows take a tuple.
                    yield from zip(
                        *(column.to_pylist(maps_as_pydicts="strict") for column in batch.columns), strict=True
                    )

    return Reading


def _options(
    positional: tuple[AnalyzeArgument, ...], named: dict[str, AnalyzeArgument], settings: str | None
) -> dict[str, str]:
    if len(positional) != 1:
        raise InvalidRequest(
            f"{NAME} takes one table, and options by their names",
            hint=f"Write SELECT * FROM {NAME}('air.flights', keys => '[7]')",
        )
    options = {name.lower(): _text(name, given) for name, given in named.items()}
    if len(options) < len(named) or "path" in options or "table" in options:
        raise InvalidRequest(f"an argument of {NAME} is given twice", hint="The table comes first, without a name")
    options["path"] = _text("table", positional[0])
    read_options(options)  # with settings those of a view come, and Spark has added others to them
    if settings is not None and not {"conf", "root"} & set(options):
        options["settings"] = settings
    return options


def _text(name: str, given: AnalyzeArgument) -> str:
    """An argument as an option is: text. Raises InvalidRequest for what is not known before the query runs."""
    if given.isTable or not given.isConstantExpression or given.value is None:
        raise InvalidRequest(f"the argument {name} of {NAME} is no constant", hint="Write a text, or a number")
    return str(given.value).lower() if isinstance(given.value, bool) else str(given.value)
