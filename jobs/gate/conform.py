"""Making a DataFrame what the table declares, or saying exactly why it is not: fitting.py has the rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from epochlake.jobs.gate.fitting import VOID, canonical, is_same_type, require_fitting_columns
from epochlake.jobs.gate.spark_types import type_text
from epochlake.jobs.replicas.file_columns import default_sql
from epochlake.jobs.replicas.intervals import merged
from epochlake.jobs.replicas.schema import DELETED
from epochlake.metastore.metadata.model import Column, Table
from epochlake.metastore.metadata.struct_fields import ArrayOf, MapOf, StructOf, Tree, of_type, tree_of, type_of
from epochlake.placement.column_ddl import ddl_of, delta_type, spark_type
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.tokens import TOKEN, Interval, with_token
from msgspec import UNSET
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def conform(df: DataFrame, table: Table) -> DataFrame:
    """The columns of `df` in the table's order and types; generated ones only where `df` has them. Raises
    InvalidRequest naming every column that is wrong.
    """
    require_dataframe(df, table, table.columns)
    return _selected(df, table, table.columns)


def conform_keys(df: DataFrame, table: Table) -> DataFrame:
    """The primary key of `df`, with every other column of the table null: the rows of a delete."""
    keys = [column for column in table.columns if column.name in table.primary_key]
    require_dataframe(df, table, keys)
    selected = _selected(df.select(*[f"`{name}`" for name in df.columns if name in table.primary_key]), table, keys)
    return selected.select(
        *[
            F.col(f"`{one.name}`") if one in keys else F.lit(None).cast(spark_type(one.type)).alias(one.name)
            for one in table.columns
        ]
    )


def conform_changes(rows: DataFrame, deletes: DataFrame, table: Table) -> DataFrame:
    """Rows to write and keys to delete as one batch of changes: `_deleted` says which is which."""
    upserts = conform(rows, table).withColumn(DELETED, F.lit(False))
    keys = conform_keys(deletes, table)
    given = [f"`{name}`" for name in keys.columns if name in upserts.columns]
    return upserts.unionByName(keys.select(*given).withColumn(DELETED, F.lit(True)))


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
        hint=f"Make it with spark.createDataFrame(rows, {schema!r}), or write it without Spark with "
        f"cluster.write({table.full_name!r}, rows)",
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
    given = [(field.name, type_text(field.dataType)) for field in df.schema.fields]
    require_fitting_columns(table, columns, given)
    types = dict(given)
    # Generated columns that are not given are computed where rows are encoded.
    wanted = [column for column in columns if column.name in types or column.generated is UNSET]
    return df.select(*[_as_declared(column, types.get(column.name)) for column in wanted])


def _as_declared(column: Column, given: str | None) -> SparkColumn:
    if given is None:
        missing = F.lit(None).cast(spark_type(column.type)) if column.default is UNSET else F.expr(default_sql(column))
        return missing.alias(column.name)
    named = F.col(f"`{column.name}`")
    have, wanted = canonical(given), canonical(column.type)
    if have == wanted:
        return named
    if column.fields is not UNSET and not is_same_type(have, wanted) and have != VOID:
        # Spark casts structs field by field in their order: each is put where it belongs first.
        named = in_order(named, of_type(delta_type(given)), tree_of(column))
    # Also where only upper and lower case of fields differ: files are read by other engines, which find a field by its
    # very name, and give null for others.
    return named.cast(spark_type(column.type)).alias(column.name)


def in_order(values: SparkColumn, have: Tree, wanted: Tree) -> SparkColumn:
    """Values with the fields that are wanted, each found by its name; null for one that they leave out."""
    if type_of(have) == type_of(wanted):
        return values
    match have, wanted:
        case StructOf(), StructOf():
            given = {one.name: one.type for one in have.members}
            fields = [
                (
                    in_order(values.getField(one.name), given[one.name], one.type)
                    if one.name in given
                    else F.lit(None).cast(spark_type(ddl_of(type_of(one.type))))
                ).alias(one.name)
                for one in wanted.members
            ]
            return F.when(values.isNotNull(), F.struct(*fields))
        case ArrayOf(), ArrayOf():
            return F.transform(values, lambda one: in_order(one, have.element, wanted.element))
        case MapOf(), MapOf():
            return F.transform_values(values, lambda _, one: in_order(one, have.value, wanted.value))
    return values
