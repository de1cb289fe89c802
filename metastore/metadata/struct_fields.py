"""The fields of structs within a column, as a tree, and what a change makes of it. Pure.

A field has one name in files for ever, as a column has: whatever it is called now, no other field of its struct ever
gets that name. Until a field of a column is changed for the first time nothing is said of them: then each is called in
files as it is in the type.

A *path* names a field from its column on: names, and `element`, `value` or `key` where it goes into an array or a map.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from epochlake.metastore.metadata.model import Column, StructField
from epochlake.placement.column_ddl import DeltaType, ddl_of, delta_type

ELEMENT, KEY, VALUE = "element", "key", "value"

Path = tuple[str, ...]


class Leaf(msgspec.Struct, frozen=True):
    """A type without parts, by Delta's name."""

    type: str


class ArrayOf(msgspec.Struct, frozen=True):
    element: Tree


class MapOf(msgspec.Struct, frozen=True):
    key: Tree
    value: Tree


class Member(msgspec.Struct, frozen=True):
    """A field of a struct; `field_id` 0: it has no number yet."""

    name: str
    stored_as: str
    type: Tree
    field_id: int = 0
    added: bool = False
    comment: str | msgspec.UnsetType = msgspec.UNSET


class StructOf(msgspec.Struct, frozen=True):
    members: tuple[Member, ...]


Tree = Leaf | ArrayOf | MapOf | StructOf


class Place(NamedTuple):
    """A field in a tree: its path, and the same with the names in files."""

    path: Path
    stored_path: Path
    member: Member
    in_key: bool


class FieldChanges(msgspec.Struct, frozen=True):
    """What becomes of the fields of a column, by their paths of before. `add`: by the path of the struct, () for that
    of the column. `comment`: UNSET takes it away. `order`: which fields come first, by their names of after.
    """

    add: Mapping[Path, Sequence[Member]] = {}
    drop: frozenset[Path] = frozenset()
    rename: Mapping[Path, str] = {}
    widen: Mapping[Path, Tree] = {}
    comment: Mapping[Path, str | msgspec.UnsetType] = {}
    order: Mapping[Path, Sequence[str]] = {}


def tree_of(column: Column) -> Tree:
    """The type of a column. Raises ValueError where as many fields are said as the type does not have."""
    said = None if column.fields is msgspec.UNSET else iter(column.fields)
    tree = _tree(delta_type(column.type), said)
    if said is not None and next(said, None) is not None:
        raise ValueError(f"column {column.name!r} says more fields than {column.type} has")
    return tree


def of_type(type_: DeltaType) -> Tree:
    """A type of which nothing else is said."""
    return _tree(type_, None)


def with_tree(column: Column, tree: Tree) -> Column:
    """The column with the type and the fields of a tree, whose fields all have numbers."""
    fields = tuple(
        StructField(one.member.field_id, one.member.stored_as, one.member.added, one.member.comment)
        for one in places(tree)
    )
    return msgspec.structs.replace(column, type=ddl_of(type_of(tree)), fields=fields)


def numbered(tree: Tree, last: int) -> tuple[Tree, int]:
    """The tree with numbers for the fields that have none, from `last` + 1 on, and the last number that was given."""
    alteration = _Alteration(FieldChanges(), _nothing, last)
    return alteration.numbered(tree), alteration.last


def places(tree: Tree) -> Iterator[Place]:
    """All fields, a struct before the fields in it."""
    return _places(tree, (), (), False)


def structs(tree: Tree) -> Iterator[tuple[Path, StructOf]]:
    """All structs, each by the path to it."""
    match tree:
        case ArrayOf():
            inside: list[tuple[str, Tree]] = [(ELEMENT, tree.element)]
        case MapOf():
            inside = [(KEY, tree.key), (VALUE, tree.value)]
        case StructOf():
            yield (), tree
            inside = [(one.name, one.type) for one in tree.members]
        case _:
            return
    for step, part in inside:
        for path, struct in structs(part):
            yield (step, *path), struct


def type_of(tree: Tree, *, stored: bool = False) -> DeltaType:
    """The type as Delta has it; with `stored` under the names in files."""
    match tree:
        case Leaf():
            return tree.type
        case ArrayOf():
            return {"type": "array", "elementType": type_of(tree.element, stored=stored), "containsNull": True}
        case MapOf():
            key, value = type_of(tree.key, stored=stored), type_of(tree.value, stored=stored)
            return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    fields = [
        {
            "name": one.stored_as if stored else one.name,
            "type": type_of(one.type, stored=stored),
            "nullable": True,
            "metadata": {},
        }
        for one in tree.members
    ]
    return {"type": "struct", "fields": fields}


def stored_type(column: Column) -> DeltaType:
    """The type of a column under the names that fields have in files."""
    return delta_type(column.type) if column.fields is msgspec.UNSET else type_of(tree_of(column), stored=True)


def at(tree: Tree, path: Path) -> Tree | None:
    """What is at a path; None where there is nothing."""
    for step in path:
        match tree:
            case ArrayOf() if step == ELEMENT:
                tree = tree.element
            case MapOf() if step in (KEY, VALUE):
                tree = tree.value if step == VALUE else tree.key
            case StructOf():
                found = next((one for one in tree.members if one.name == step), None)
                if found is None:
                    return None
                tree = found.type
            case _:
                return None
    return tree


def changed(tree: Tree, changes: FieldChanges, taken: Callable[[Path], frozenset[str]], last: int) -> tuple[Tree, int]:
    """The tree after changes of fields that it has, each with a number, those that have none from `last` + 1 on; and
    the last number that was given. `taken`: the names in files, in small letters, of the fields that a struct had once,
    by its path in files.
    """
    alteration = _Alteration(changes, taken, last)
    return alteration.changed(alteration.numbered(tree), (), ()), alteration.last


class _Alteration:
    """One change of the fields of a column; `last` is the number that was given last."""

    def __init__(self, changes: FieldChanges, taken: Callable[[Path], frozenset[str]], last: int) -> None:
        self._changes = changes
        self._taken = taken
        self.last = last

    def numbered(self, tree: Tree) -> Tree:
        if not isinstance(tree, StructOf):
            return _inside(tree, lambda part, _: self.numbered(part))
        return StructOf(tuple(self._numbered(member) for member in tree.members))

    def _numbered(self, member: Member) -> Member:
        number = member.field_id or self._next()
        return msgspec.structs.replace(member, field_id=number, type=self.numbered(member.type))

    def _next(self) -> int:
        self.last += 1
        return self.last

    def changed(self, tree: Tree, path: Path, stored: Path) -> Tree:
        changes = self._changes
        if path in changes.widen:
            return changes.widen[path]
        if not isinstance(tree, StructOf):
            return _inside(tree, lambda part, step: self.changed(part, (*path, step), (*stored, step)))
        members = [
            msgspec.structs.replace(
                one,
                name=changes.rename.get((*path, one.name), one.name),
                comment=changes.comment.get((*path, one.name), one.comment),
                type=self.changed(one.type, (*path, one.name), (*stored, one.stored_as)),
            )
            for one in tree.members
            if (*path, one.name) not in changes.drop
        ]
        names = {one.stored_as.lower() for one in tree.members} | self._taken(stored)
        for one in changes.add.get(path, ()):
            new = self._numbered(one)
            stored_as = one.name if one.name.lower() not in names else f"{one.name}#{new.field_id}"
            while stored_as.lower() in names:
                stored_as += "#"
            names.add(stored_as.lower())
            members.append(msgspec.structs.replace(new, stored_as=stored_as, added=True))
        first = {name: place for place, name in enumerate(changes.order.get(path, ()))}
        return StructOf(tuple(sorted(members, key=lambda one: first.get(one.name, len(first)))))


def _nothing(_: Path) -> frozenset[str]:
    return frozenset()


def _places(tree: Tree, path: Path, stored: Path, in_key: bool) -> Iterator[Place]:
    match tree:
        case ArrayOf():
            yield from _places(tree.element, (*path, ELEMENT), (*stored, ELEMENT), in_key)
        case MapOf():
            yield from _places(tree.key, (*path, KEY), (*stored, KEY), True)
            yield from _places(tree.value, (*path, VALUE), (*stored, VALUE), in_key)
        case StructOf():
            for one in tree.members:
                inner, inner_stored = (*path, one.name), (*stored, one.stored_as)
                yield Place(inner, inner_stored, one, in_key)
                yield from _places(one.type, inner, inner_stored, in_key)


def _inside(tree: Tree, make: Callable[[Tree, str], Tree]) -> Tree:
    """An array or a map with other parts, each made of the one that it has and the step to it."""
    match tree:
        case ArrayOf():
            return ArrayOf(make(tree.element, ELEMENT))
        case MapOf():
            return MapOf(make(tree.key, KEY), make(tree.value, VALUE))
    return tree


def _tree(type_: DeltaType, said: Iterator[StructField] | None) -> Tree:
    match type_:
        case str():
            return Leaf(type_)
        case {"type": "array", "elementType": element}:
            return ArrayOf(_tree(element, said))  # type: ignore[arg-type]
        case {"type": "map", "keyType": key, "valueType": value}:
            return MapOf(_tree(key, said), _tree(value, said))  # type: ignore[arg-type]
    members = []
    for one in type_["fields"]:  # type: ignore[attr-defined]
        field = None if said is None else next(said, None)
        if said is not None and field is None:
            raise ValueError("a struct says fewer fields than it has")
        inner = _tree(one["type"], said)
        if field is None:
            members.append(Member(one["name"], one["name"], inner))
        else:
            members.append(Member(one["name"], field.stored_as, inner, field.field_id, field.added, field.comment))
    return StructOf(tuple(members))
