"""What the log asks of the fields within a column that stays: which are the same ones in files, and which are gone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from epochlake.metastore.metadata.events.base import require
from epochlake.metastore.metadata.model import Check, Column, DroppedField, Table
from epochlake.metastore.metadata.struct_fields import (
    ArrayOf,
    Leaf,
    MapOf,
    Member,
    Path,
    Place,
    StructOf,
    Tree,
    places,
    tree_of,
    type_of,
)
from epochlake.placement.column_ddl import ddl_of
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.rejections import Code
from epochlake.placement.widening import is_wider

UNUSABLE = frozenset(" ,;{}()\n\t=`.")
"""No field that is added or renamed has one of these in its name: neither a file nor a path could name it."""


def require_fields(table: Table, before: Column | None, after: Column, checks: Sequence[Check]) -> None:
    """That what is said of the fields of a column is whole, and that each which stays is the same one in files.

    `before`: the column as it was; None for one that is new, of which nothing is said. `checks`: those that stay.
    """
    name = f"column {after.name!r} of {table.full_name}"
    if before is None or after.fields is msgspec.UNSET:
        was_said = before is not None and before.fields is not msgspec.UNSET
        require(
            after.fields is msgspec.UNSET and not was_said,
            Code.INVALID_EVENT,
            f"{name} is new and says numbers of its fields, or says none of them any more",
        )
        return
    was, now = _tree(before, name), _tree(after, name)
    require(bool(after.fields), Code.INVALID_EVENT, f"{name} is {after.type}, and has no fields")
    _require_same(_Within(table, before), was, now, (), ())
    renamed_or_gone = list(_renamed_or_gone(was, now))
    held = [check.name for check in checks if after.column_id in check.columns]
    require(
        not held or not renamed_or_gone,
        Code.CHECKED_COLUMN,
        f"check {', '.join(held)} of {table.full_name} reads column {before.name!r}: its fields keep their names",
        hint=f"Drop the check first: --drop-check {','.join(held)}",
    )


def field_numbers(column: Column) -> list[int]:
    """The numbers of the fields of a column that says them."""
    return [] if column.fields is msgspec.UNSET else [field.field_id for field in column.fields]


def dropped_fields(before: Column, after: Column, epoch: int) -> Iterator[DroppedField]:
    """The fields that a column has no more; of a struct that is gone only itself."""
    if after.fields is msgspec.UNSET:
        return
    kept = {one.stored_path for one in places(tree_of(after))}
    gone: set[Path] = set()
    for one in places(tree_of(before)):
        if one.stored_path in kept or any(one.stored_path[:end] in gone for end in range(len(one.stored_path))):
            continue
        gone.add(one.stored_path)
        assert before.column_id is not msgspec.UNSET
        yield DroppedField(before.column_id, ".".join((before.name, *one.path)), one.stored_path, epoch)


def _tree(column: Column, name: str) -> Tree:
    try:
        return tree_of(column)
    except (InvalidRequest, ValueError) as error:
        require(False, Code.INVALID_EVENT, f"{name}: {error}")
        raise


class _Within(msgspec.Struct, frozen=True):
    """The column in which fields are compared."""

    table: Table
    column: Column

    def named(self, path: Path) -> str:
        return f"{'.'.join((self.column.name, *path))!r} of {self.table.full_name}"

    def dropped(self, stored_path: Path) -> set[str]:
        """The names in files, in small letters, that a struct has had once."""
        return {
            one.stored_path[-1].lower()
            for one in self.table.dropped_fields
            if one.column_id == self.column.column_id and one.stored_path[:-1] == stored_path
        }


def _require_same(within: _Within, was: Tree, now: Tree, path: Path, stored: Path) -> None:
    match was, now:
        case ArrayOf(), ArrayOf():
            _require_same(within, was.element, now.element, (*path, "element"), (*stored, "element"))
        case MapOf(), MapOf():
            require(
                _called(was.key) == _called(now.key),
                Code.KEY_COLUMN,
                f"the keys of {within.named(path)} stay as they are: two could become one",
                hint="Change the fields of its values",
            )
            _require_same(within, was.key, now.key, (*path, "key"), (*stored, "key"))
            _require_same(within, was.value, now.value, (*path, "value"), (*stored, "value"))
        case StructOf(), StructOf():
            _require_same_struct(within, was, now, path, stored)
        case _:
            _require_wider(within, was, now, path)


def _require_wider(within: _Within, was: Tree, now: Tree, path: Path) -> None:
    before, after = ddl_of(type_of(was)), ddl_of(type_of(now))
    wider = isinstance(was, Leaf) and isinstance(now, Leaf) and is_wider(before, after)
    require(
        was == now or wider,
        Code.NARROWER_TYPE,
        f"field {within.named(path)} is {before}, and cannot become {after}",
        hint="Wider are smallint, int, bigint of tinyint; double of float and of int; decimals with more digits before "
        "and behind the point; timestamp_ntz of date",
    )


def _require_same_struct(within: _Within, was: StructOf, now: StructOf, path: Path, stored: Path) -> None:
    named = within.named(path)
    for kind in ("name", "stored_as"):
        names = [getattr(one, kind).lower() for one in now.members]
        twice = next((one for one in now.members if names.count(getattr(one, kind).lower()) > 1), None)
        require(
            twice is None,
            Code.COLUMN_EXISTS,
            f"struct {named} would have a field {'' if twice is None else twice.name!r} twice",
            hint="Upper and lower case do not tell fields apart",
        )
    known = {one.stored_as: one for one in was.members}
    taken = {name.lower() for name in known} | within.dropped(stored)
    for one in now.members:
        before = known.get(one.stored_as)
        _require_numbered(within, before, one, (*path, one.name))
        if before is None or before.name != one.name:
            _require_name(within, one.name, (*path, one.name))
        if before is None:
            require(
                one.added and one.stored_as.lower() not in taken,
                Code.INVALID_EVENT,
                f"files have values of another field of struct {named} under {one.stored_as!r}",
            )
            for inner in places(one.type):
                _require_numbered(within, None, inner.member, (*path, one.name, *inner.path))
            continue
        _require_same(within, before.type, one.type, (*path, before.name), (*stored, one.stored_as))


def _require_numbered(within: _Within, before: Member | None, after: Member, path: Path) -> None:
    """That a number is that of before, or a new one."""
    new = before is None or not before.field_id
    same = before is not None and (before.field_id, before.added) == (after.field_id, after.added)
    require(
        after.field_id > within.table.last_column_id if new else same,
        Code.INVALID_EVENT,
        f"field {within.named(path)} has a number that is not its own",
    )
    require(
        not new or before is None or not after.added,
        Code.INVALID_EVENT,
        f"field {within.named(path)} is said to be added, and is there",
    )


def _require_name(within: _Within, name: str, path: Path) -> None:
    require(
        bool(name) and not set(name) & UNUSABLE,
        Code.INVALID_NAME,
        f"a field of a struct cannot be called {name!r} ({within.named(path)})",
        hint="Use no space and none of .,;{}()=`",
    )


def _renamed_or_gone(was: Tree, now: Tree) -> Iterator[Place]:
    after = {one.stored_path: one for one in places(now)}
    for one in places(was):
        if one.stored_path not in after or after[one.stored_path].member.name != one.member.name:
            yield one


def _called(tree: Tree) -> str:
    """A type with both names of each field."""
    return ddl_of(type_of(tree)) + ddl_of(type_of(tree, stored=True))
