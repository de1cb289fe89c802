"""Whether the columns of given rows are those that a table declares, whatever engine holds the rows.

Types are widened where no value can change (an int for a bigint), and never otherwise: a cast that loses something is
for the caller to write down.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
from epochlake.metastore.metadata.model import Column, Table
from epochlake.metastore.metadata.struct_fields import ArrayOf, Leaf, MapOf, StructOf, Tree, of_type, places, tree_of
from epochlake.placement.column_ddl import ddl_of, delta_type
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.widening import is_wider

VOID = "void"
"""The type of a column that has only nulls."""

_WIDER = {
    "tinyint": {"smallint", "int", "bigint", "float", "double"},
    "smallint": {"int", "bigint", "float", "double"},
    "int": {"bigint", "double"},
    # Arrow has these, and Spark has not.
    "uint8": {"smallint", "int", "bigint", "float", "double"},
    "uint16": {"int", "bigint", "float", "double"},
    "uint32": {"bigint", "double"},
    "halffloat": {"float", "double"},
    "float": {"double"},
    "date": {"timestamp_ntz"},
}


def require_fitting_columns(table: Table, columns: Sequence[Column], given: Sequence[tuple[str, str]]) -> None:
    """That `given`, columns with the names of their types, are `columns` in any order, each of its type or of one that
    can be widened to it; those that a table got later may be missing. Raises InvalidRequest naming every column that is
    wrong.
    """
    names = [name for name, _ in given]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidRequest(
            f"these rows do not fit table {table.full_name}: they have {', '.join(twice)} twice",
            hint="Drop or rename one",
        )
    problems = unknown_columns(columns, names)
    if problems:
        problems += what_became(table, names)
    types = dict(given)
    for column in columns:
        wanted = canonical(column.type)
        if column.name not in types:
            if table.may_be_left_out(column):
                continue
            problems.append(f"column {column.name} ({wanted}) is missing")
        elif not _fits(canonical(types[column.name]), wanted) and not has_its_fields(column, types[column.name]):
            problems.append(wrong_type(column, types[column.name]))
            problems += _what_became_of_fields(table, column)
    if problems:
        raise misfit(table, problems, columns)


def unknown_columns(columns: Sequence[Column], names: Collection[str]) -> list[str]:
    """What is wrong where names are not those of any column: nothing, or one sentence."""
    known = {column.name.lower(): column.name for column in columns}
    unknown = [name for name in names if name not in known.values()]
    # Spark's own tables take names in any case, and here they count as they are written.
    told = [f"{name} (but {known[name.lower()]})" if name.lower() in known else name for name in unknown]
    return [f"it has no column {', '.join(told)}"] if unknown else []


def what_became(table: Table, names: Collection[str]) -> list[str]:
    """What happened to columns that a table had once under some of these names."""
    known = {column.name for column in table.columns}
    unknown = [name for name in names if name not in known]
    became = {one.name: f"{one.name} was dropped by epoch {one.epoch}" for one in table.dropped}
    became |= {one.stored_name: f"{one.stored_name} is called {one.name} now" for one in table.columns}
    return [became[name] for name in unknown if name in became]


def _what_became_of_fields(table: Table, column: Column) -> list[str]:
    """What happened to fields of a column, for whom it has another type than was thought."""
    if column.fields is msgspec.UNSET:
        return []
    became = [
        f"{one.name} was dropped by epoch {one.epoch}"
        for one in table.dropped_fields
        if one.column_id == column.column_id
    ]
    renamed = [
        f"{'.'.join((column.name, *one.path[:-1], one.stored_path[-1]))} is called {one.member.name} now"
        for one in places(tree_of(column))
        if one.path[-1] != one.stored_path[-1] and "#" not in one.stored_path[-1]
    ]
    return [*became, *renamed]


def wrong_type(column: Column, given: str) -> str:
    """What is wrong where a column comes with another type."""
    return f"column {column.name} is {canonical(column.type)}, not {canonical(given)}"


def misfit(table: Table, problems: Sequence[str], columns: Sequence[Column] = (), hint: str = "") -> InvalidRequest:
    """The error for rows with these problems; `columns`: those that were asked for, where these are not all. `hint`:
    what else to do with rows than to give other columns.
    """
    keys = bool(columns) and len(columns) < len(table.columns)
    asked = f"the primary key ({', '.join(table.primary_key)})" if keys else "exactly the table's columns"
    asking = f"Give {asked}, each cast to its type"
    return InvalidRequest(
        f"these {'keys' if keys else 'rows'} do not fit table {table.full_name}: {'; '.join(problems)}",
        hint=asking if keys else hint or asking,
    )


def canonical(type_name: str) -> str:
    """One spelling of a type: the short one that Spark shows."""
    try:
        return ddl_of(delta_type(type_name))
    except InvalidRequest:  # of a type that no table has
        return type_name.lower().replace(" ", "")


def is_same_type(one: str, other: str) -> bool:
    """Whether two types in the canonical spelling are one, upper and lower case of fields aside."""
    return one.lower().replace(" ", "") == other.lower().replace(" ", "")


def has_its_fields(column: Column, given: str) -> bool:
    """Whether values of another type have the fields of a column that says them: each by its name, in any order, of its
    type or of one that can be widened to it, those that were added perhaps not.
    """
    if column.fields is msgspec.UNSET:
        return False
    try:
        return _has_fields(of_type(delta_type(given)), tree_of(column))
    except InvalidRequest:  # of a type that no table has
        return False


def _has_fields(have: Tree, wanted: Tree) -> bool:
    match have, wanted:
        case StructOf(), StructOf():
            given = {one.name: one.type for one in have.members}
            known = {one.name: one for one in wanted.members}
            return (
                len(given) == len(have.members)
                and given.keys() <= known.keys()
                and all(one.added for name, one in known.items() if name not in given)
                and all(_has_fields(type_, known[name].type) for name, type_ in given.items())
            )
        case ArrayOf(), ArrayOf():
            return _has_fields(have.element, wanted.element)
        case MapOf(), MapOf():
            return _has_fields(have.key, wanted.key) and _has_fields(have.value, wanted.value)
        case Leaf(), Leaf():
            return _fits(ddl_of(have.type), ddl_of(wanted.type))
    return False


def _fits(have: str, wanted: str) -> bool:
    # Also what a column may be widened to: who has written it all the time goes on with the type of before.
    return is_same_type(have, wanted) or have == VOID or wanted in _WIDER.get(have, ()) or is_wider(have, wanted)
