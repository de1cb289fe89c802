"""Making a DataFrame what the table declares, or saying exactly why it is not.

Types are widened where no value can change (an int for a bigint), and never otherwise: a cast that loses something is
for the caller to write down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from epochlake.jobs.replicas.intervals import merged
from epochlake.metastore.metadata.model import Column, Table
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.tokens import TOKEN, Interval, with_token
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

_ALIASES = {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint", "real": "float"}
_WIDER = {
    "tinyint": {"smallint", "int", "bigint", "float", "double"},
    "smallint": {"int", "bigint", "float", "double"},
    "int": {"bigint", "double"},
    "float": {"double"},
    "date": {"timestamp_ntz"},
}


def conform(df: DataFrame, table: Table) -> DataFrame:
    """The columns of `df` in the table's order and types. Raises InvalidRequest naming every column that is wrong."""
    require_dataframe(df, table, table.columns)
    return _selected(df, table, table.columns)


def conform_keys(df: DataFrame, table: Table) -> DataFrame:
    """The primary key of `df`, with every other column of the table null: the rows of a delete."""
    keys = [column for column in table.columns if column.name in table.primary_key]
    require_dataframe(df, table, keys)
    selected = _selected(df.select(*[c for c in df.columns if c in table.primary_key]), table, keys)
    return selected.select(
        *[
            F.col(f"`{column.name}`") if column in keys else F.lit(None).cast(column.type).alias(column.name)
            for column in table.columns
        ]
    )


def require_dataframe(rows: object, table: Table, columns: Sequence[Column]) -> None:
    """Raises InvalidRequest for rows that are no DataFrame of Spark, or a stream, with what makes one of them."""
    if isinstance(rows, DataFrame):
        if rows.isStreaming:
            raise InvalidRequest(
                f"a stream cannot be written to table {table.full_name} as a whole",
                hint="Write its batches with foreachBatch, and name each: pipeline.write(rows, "
                f"{table.full_name!r}, batch=…)",
            )
        return
    schema = ", ".join(f"{column.name} {column.type}" for column in columns)
    kind = type(rows).__module__.partition(".")[0]
    what = {"builtins": "a " + type(rows).__name__, "pandas": "of pandas", "pyarrow": "of Arrow"}
    raise InvalidRequest(
        f"the rows for table {table.full_name} are {what.get(kind, 'a ' + type(rows).__name__)}, and have to "
        "be a DataFrame of Spark",
        hint=f"Make it with spark.createDataFrame(rows, {schema!r})",
    )


def only_windows(table: Table, windows: Iterable[Interval]) -> Callable[[DataFrame], DataFrame]:
    """Keep the rows whose tokens are in some of the table's windows."""
    wanted = merged(windows)

    def kept(df: DataFrame) -> DataFrame:
        inside = F.lit(False)
        for low, high in wanted:
            inside = inside | F.col(TOKEN).between(low, high)
        return df.transform(with_token(table.primary_key)).where(inside).drop(TOKEN)

    return kept


def _selected(df: DataFrame, table: Table, columns: Sequence[Column]) -> DataFrame:
    given = {field.name: field.dataType.simpleString() for field in df.schema.fields}
    problems = []
    given_names = [field.name for field in df.schema.fields]
    twice = sorted({name for name in given_names if given_names.count(name) > 1})
    if twice:
        raise InvalidRequest(
            f"these rows do not fit table {table.full_name}: they have {', '.join(twice)} twice",
            hint="Drop or rename one",
        )
    unknown = [name for name in given if name not in {column.name for column in columns}]
    if unknown:
        problems.append(f"it has no column {', '.join(unknown)}")
    chosen = []
    for column in columns:
        wanted = _canonical(column.type)
        if column.name not in given:
            problems.append(f"column {column.name} ({wanted}) is missing")
            continue
        have = _canonical(given[column.name])
        if have == wanted:
            chosen.append(F.col(f"`{column.name}`"))
        elif wanted in _WIDER.get(have, ()) or have == "void":
            chosen.append(F.col(f"`{column.name}`").cast(column.type).alias(column.name))
        else:
            problems.append(f"column {column.name} is {wanted}, not {have}")
    if problems:
        raise InvalidRequest(
            f"these rows do not fit table {table.full_name}: {'; '.join(problems)}",
            hint="Give exactly the table's columns, each cast to its type",
        )
    return df.select(*chosen)


def _canonical(type_name: str) -> str:
    name = type_name.lower().replace(" ", "")
    return _ALIASES.get(name, name)
