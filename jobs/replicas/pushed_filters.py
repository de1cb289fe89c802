"""Columns of a scan as a query sees them. Filters of the query may go down to the files, but for those on a number with
a point.

Spark hands a filter on a column to its Parquet reader, which leaves out row groups by the least and the greatest value
that they have. For Spark NaN is the greatest of all numbers, equal to itself, and 0.0 is equal to -0.0; the bounds in a
file leave NaN out, and its dictionaries tell the zeros apart. So rows would be lost.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from epochlake.metastore.metadata.model import Column as TableColumn
from epochlake.metastore.metadata.struct_fields import Leaf, StructOf, Tree, of_type
from epochlake.placement.column_ddl import delta_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_WITH_POINT = ("float", "double")
_WORD = re.compile(r"\w+\Z", re.ASCII)


def shown(columns: Sequence[TableColumn]) -> Callable[[DataFrame], DataFrame]:
    """Chooses these columns of a scan. A number with a point is the same one, by an expression that Spark's Parquet
    reader does not understand; in arrays and maps no reader looks for what a filter asks.
    """
    trees = [of_type(delta_type(column.type)) for column in columns]
    if all(map(_WORD.match, (column.name for column in columns))) and not any(map(_is_struct_of_points, trees)):
        # Text is sooner told to Spark than columns.
        texts = [_text(column.name, tree) for column, tree in zip(columns, trees, strict=True)]
        return lambda frame: frame.selectExpr(*texts)
    # Any other name in backquotes is a pattern where a session says so.
    chosen = [_column(column.name, tree) for column, tree in zip(columns, trees, strict=True)]
    return lambda frame: frame.select(*chosen)


def _text(name: str, tree: Tree) -> str:
    if isinstance(tree, Leaf) and tree.type in _WITH_POINT:
        return f"nanvl(`{name}`, CAST('NaN' AS {tree.type})) AS `{name}`"
    return f"`{name}`"


def _column(name: str, tree: Tree) -> Column:
    from pyspark.sql import functions as F

    column = F.col(_quoted(name))
    return _as_it_is(column, tree).alias(name) if _has_point(tree) else column


def _as_it_is(values: Column, tree: Tree) -> Column:
    """Values of a type with a number with a point. Spark reads only the fields of a struct that a query asks for."""
    from pyspark.sql import functions as F

    match tree:
        case Leaf():
            return F.nanvl(values, F.lit("NaN").cast(tree.type))
        case StructOf():
            for one in tree.members:
                if _has_point(one.type):
                    field = _as_it_is(values.getField(one.name), one.type)
                    values = values.withField(_quoted(one.name), field)
    return values


def _is_struct_of_points(tree: Tree) -> bool:
    return isinstance(tree, StructOf) and _has_point(tree)


def _has_point(tree: Tree) -> bool:
    if isinstance(tree, StructOf):
        return any(_has_point(one.type) for one in tree.members)
    return isinstance(tree, Leaf) and tree.type in _WITH_POINT


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
