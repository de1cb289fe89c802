"""Fields within columns as people name them: `address.street`, `visits.element.page`, `prices.value.net`.

What is asked of columns and of fields at once is parted here; struct_fields.py makes the columns of it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.model import Column, Table
from epochlake.metastore.metadata.struct_fields import (
    FieldChanges,
    Leaf,
    Member,
    Path,
    StructOf,
    Tree,
    at,
    changed,
    numbered,
    of_type,
    places,
    structs,
    tree_of,
    with_tree,
)
from epochlake.placement.column_ddl import ddl_of, delta_type, quoted
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.rejections import Code

_STEP = re.compile(r"`((?:[^`]|``)+)`|([^.`]+)")


class Named(NamedTuple):
    """What a text names: a column, or with a path a field in it."""

    column: str
    path: Path


def named(text: str, columns: Mapping[str, Column]) -> Named:
    """The column of that name, or the field at that path; what is neither is taken for a column.

    Dots part the steps; a name with a dot is in backquotes. A column whose name is the whole text comes first. Raises
    InvalidRequest for a path into a column that cannot be read.
    """
    if text in columns:
        return Named(text, ())
    steps = _steps(text)
    if len(steps) > 1 and steps[0] in columns:
        return Named(steps[0], tuple(steps[1:]))
    if len(steps) == 1 and text.partition(".")[0] in columns:
        raise InvalidRequest(f"the path {text!r} cannot be read", hint="Write names parted by dots, as address.street")
    return Named(text, ())


def new_name(table: Table, name: str) -> str:
    """The name of a column that is to be added, which is no path: one with a dot is in backquotes. Raises Rejected."""
    steps = _steps(name)
    if len(steps) > 1:
        raise Rejected(
            Code.UNKNOWN_COLUMN,
            f"{table.full_name} has no column {steps[0]} that could get a field {'.'.join(steps[1:])}",
            hint="Paths begin with the name that the column has now; a column with a dot in its name is added in "
            f"backquotes: {quoted(name)}",
        )
    return steps[0]


def _steps(text: str) -> list[str]:
    steps, position = [], 0
    while position <= len(text):
        match = _STEP.match(text, position)
        if match is None:
            return [text]
        whole, plain = match.groups()
        steps.append(plain if whole is None else whole.replace("``", "`"))
        position = match.end()
        if position < len(text) and text[position] != ".":
            return [text]
        position += 1
    return steps


class FieldRequest(msgspec.Struct, frozen=True):
    """What is asked for of the fields of one column: `order` by paths of after, the rest by those of before. `add`: the
    paths of the new ones.
    """

    add: Mapping[Path, Column] = {}
    drop: tuple[Path, ...] = ()
    rename: Mapping[Path, str] = {}
    widen: Mapping[Path, str] = {}
    comment: Mapping[Path, str] = {}
    nullable: tuple[Path, ...] = ()
    order: tuple[Path, ...] = ()


def request_of(asked: Mapping[str, Sequence[tuple[Path, Any]]]) -> FieldRequest:
    """A request of paths by its parts, each with what is to become of it. Raises InvalidRequest for a path twice."""
    for paths in asked.values():
        named_ = [path for path, _ in paths]
        twice = next((path for path in named_ if named_.count(path) > 1), None)
        if twice is not None:
            raise InvalidRequest(f"field {'.'.join(twice)} is named twice", hint="Say once what becomes of it")
    values = {kind: dict(paths) for kind, paths in asked.items()}
    return FieldRequest(
        add=values.get("add", {}),
        drop=tuple(values.get("drop", ())),
        rename=values.get("rename", {}),
        widen=values.get("widen", {}),
        comment=values.get("comment", {}),
        nullable=tuple(values.get("nullable", ())),
        order=tuple(values.get("order", ())),
    )


def columns_with(
    table: Table, columns: Sequence[Column], requests: Mapping[str, FieldRequest], last: int
) -> tuple[list[Column], int]:
    """The columns with their fields changed, by their names of before, and the number that was given last.

    Raises Rejected and InvalidRequest for what a column does not have, or cannot become.
    """
    made = []
    for column in columns:
        request = requests.get(column.name)
        if request is not None:
            column, last = _changed(table, column, request, last)
        made.append(column)
    return made, last


def _changed(table: Table, column: Column, request: FieldRequest, last: int) -> tuple[Column, int]:
    tree = tree_of(column)
    require = _Known(table, column, tree)
    for path in (*request.drop, *request.rename, *request.widen, *request.comment):
        require.field(path)
    if request.nullable:
        raise InvalidRequest(f"field {require.named(request.nullable[0])} may be null already: every field may")
    inside = (*request.rename, *request.widen, *request.comment, *(path[:-1] for path in request.add))
    for path in inside:
        gone = next((one for one in request.drop if path[: len(one)] == one), None)
        if gone is not None:
            raise InvalidRequest(f"field {require.named(gone)} is to be dropped, and changed as well")
    add: dict[Path, list[Member]] = defaultdict(list)
    for path, new in request.add.items():
        require.struct(path[:-1])
        _require_plain(require.named(path), new)
        add[path[:-1]].append(Member(path[-1], path[-1], of_type(delta_type(new.type))))
    for path, name in request.rename.items():
        if "." in name or "`" in name:
            raise InvalidRequest(
                f"field {require.named(path)} cannot be called {name!r}", hint="Give the new name without its path"
            )
    changes = FieldChanges(
        add=add,
        drop=frozenset(request.drop),
        rename=request.rename,
        widen={path: require.widened(path, type_) for path, type_ in request.widen.items()},
        comment={path: text or msgspec.UNSET for path, text in request.comment.items()},
    )
    taken: dict[Path, set[str]] = defaultdict(set)
    for one in table.dropped_fields:
        if one.column_id == column.column_id:
            taken[one.stored_path[:-1]].add(one.stored_path[-1].lower())
    before, last_before = tree, last
    made, last = changed(tree, changes, lambda path: frozenset(taken[path]), last)
    empty = [path for path, struct in structs(made) if not struct.members]
    if empty:
        raise Rejected(
            Code.NO_COLUMNS,
            f"struct {require.named(empty[0])} would have no field left",
            hint="Drop the whole of it, or add a field as well",
        )
    if request.order:
        made, last = changed(made, FieldChanges(order=_orders(table, column, made, request.order)), _none, last)
    if made == numbered(before, last_before)[0]:
        return column, last_before  # they are like that already
    return with_tree(column, made), last


def _none(_: Path) -> frozenset[str]:
    return frozenset()


def _orders(table: Table, column: Column, made: Tree, order: Iterable[Path]) -> dict[Path, list[str]]:
    """Which fields come first, by the path of their struct."""
    require = _Known(table, column, made)
    first: dict[Path, list[str]] = defaultdict(list)
    for path in order:
        require.field(path)
        first[path[:-1]].append(path[-1])
    return first


def _require_plain(name: str, new: Column) -> None:
    """That nothing is asked for which only a column can have."""
    if new.default is not msgspec.UNSET or not new.nullable:
        raise InvalidRequest(
            f"field {name} cannot have a default, or be not null",
            hint="Add it without: rows that are there have null, and a check can ask for a value",
        )


class _Known(NamedTuple):
    """What can be named within a column."""

    table: Table
    column: Column
    tree: Tree

    def named(self, path: Path) -> str:
        return f"{'.'.join(quoted(step) for step in (self.column.name, *path))} of {self.table.full_name}"

    def field(self, path: Path) -> Tree:
        """Raises Rejected (unknown-column) where there is no such field."""
        found = at(self.tree, path)
        if found is None or not isinstance(at(self.tree, path[:-1]), StructOf):
            raise self._unknown(f"{self.table.full_name} has no field {'.'.join((self.column.name, *path))}")
        return found

    def struct(self, path: Path) -> None:
        """Raises Rejected (unknown-column) where there is no struct that could get a field."""
        if not isinstance(at(self.tree, path), StructOf):
            raise self._unknown(f"{'.'.join((self.column.name, *path))} of {self.table.full_name} is no struct")

    def widened(self, path: Path, type_: str) -> Tree:
        """The type as which a field is wanted. Raises Rejected (narrower-type) for one with parts."""
        before, wanted = self.field(path), of_type(delta_type(type_))
        if not isinstance(before, Leaf) or not isinstance(wanted, Leaf):
            raise Rejected(
                Code.NARROWER_TYPE,
                f"field {self.named(path)} is of another kind than {ddl_of(delta_type(type_))}, or has parts",
                hint="Widen the fields in it one by one",
            )
        return wanted

    def _unknown(self, reason: str) -> Rejected:
        known = [".".join((self.column.name, *one.path)) for one in places(self.tree)]
        return Rejected(
            Code.UNKNOWN_COLUMN,
            reason,
            hint=f"Column {self.column.name} has {', '.join(known)}"
            if known
            else f"Column {self.column.name} is {self.column.type}, and has no fields",
        )
