"""Values of columns with structs in data files, and back: fields by their names in files, or by those of now.

A field that a file lacks is null, one that the column has no more is left out, and where it is in the struct does not
matter. A struct that is null stays so, and one that is there stays there also where a file has none of its fields.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pyarrow as pa
from epochlake.jobs.replicas.column_types import arrow_type_of
from epochlake.metastore.metadata.model import Column
from epochlake.metastore.metadata.struct_fields import ArrayOf, MapOf, Member, StructOf, Tree, tree_of, type_of
from epochlake.placement.column_ddl import ddl_of

FIELD_ID = b"PARQUET:field_id"


def fields_of(column: Column) -> Tree | None:
    """The fields of a column; None where nothing is said of them."""
    return None if column.fields is msgspec.UNSET else tree_of(column)


def structs_of(column: Column) -> Tree | None:
    """The type of a column with structs; None for one without. Where nothing is said of its fields, files call them so,
    but for upper and lower case: Spark has written fields as they came.
    """
    return tree_of(column) if "struct" in column.type.lower() else None


def as_now(values: pa.ChunkedArray, tree: Tree) -> pa.ChunkedArray:
    """Values as a file has them, with the fields and types of now."""
    return _converted(values, tree, stored=True)


def as_declared(values: pa.ChunkedArray, tree: Tree) -> pa.ChunkedArray:
    """Values that name fields as now, in any order and some of them perhaps left out, with all of them. Raises
    ArrowException for a value that its type cannot hold.
    """
    return _converted(values, tree, stored=False)


def as_stored(values: pa.ChunkedArray, tree: Tree) -> pa.ChunkedArray:
    """Values of now as a file keeps them: fields under their names there, each with its number."""
    type_ = _stored_type(values.type, tree)
    return pa.chunked_array([_called(piece, type_) for piece in values.chunks], type_)


def stored_ddl(column: Column) -> str:
    """The type of a column under the names that fields have in files."""
    tree = fields_of(column)
    return column.type if tree is None else ddl_of(type_of(tree, stored=True))


def completed(value: object, tree: Tree) -> object:
    """A value of Python with null for each field that was added and that it leaves out."""
    if value is None:
        return None
    match tree:
        case ArrayOf() if isinstance(value, list | tuple):
            return [completed(one, tree.element) for one in value]
        case MapOf() if isinstance(value, Mapping):
            return {key: completed(one, tree.value) for key, one in value.items()}
        case StructOf() if isinstance(value, Mapping):
            known = {one.name: one for one in tree.members}
            made = {name: completed(one, known[name].type) if name in known else one for name, one in value.items()}
            return {one.name: None for one in tree.members if one.added and one.name not in made} | made
    return value


def _converted(values: pa.ChunkedArray, tree: Tree, *, stored: bool) -> pa.ChunkedArray:
    now = type_of(tree)
    type_ = arrow_type_of(now)
    # A type that is equal says nothing where a name is used again: in the file it is another field.
    if values.type == type_ and (not stored or now == type_of(tree, stored=True)):
        return values
    return pa.chunked_array([_as(piece, tree, type_, stored) for piece in values.chunks], type_)


def _as(values: pa.Array, tree: Tree, type_: pa.DataType, stored: bool) -> pa.Array:
    # Of no values at all some come at places that their buffers do not have.
    if not len(values) or pa.types.is_null(values.type):
        return pa.nulls(len(values), type_)
    match tree:
        case ArrayOf() if _is_list(values.type):
            values = values.cast(pa.list_(values.type.value_type)) if not pa.types.is_list(values.type) else values
            return _with_parts(values, type_, [_as(values.values, tree.element, type_.value_type, stored)])
        case MapOf() if pa.types.is_map(values.type):
            keys = _as(values.keys, tree.key, type_.key_type, stored)
            items = _as(values.items, tree.value, type_.item_type, stored)
            return _with_parts(values, type_, [_entries(type_, keys, items)])
        case StructOf() if pa.types.is_struct(values.type):
            return _struct(values, tree, type_, stored)
    return values if values.type == type_ else values.cast(type_)


def _struct(values: pa.StructArray, tree: StructOf, type_: pa.StructType, stored: bool) -> pa.Array:
    parts = []
    for member, field in zip(tree.members, type_, strict=True):
        place = _place(values.type, member, stored)
        parts.append(
            pa.nulls(len(values), field.type)
            if place is None
            else _as(values.field(place), member.type, field.type, stored)
        )
    return pa.StructArray.from_arrays(parts, fields=list(type_), mask=values.is_null())


def _place(type_: pa.StructType, member: Member, stored: bool) -> int | None:
    name = member.stored_as if stored else member.name
    place = type_.get_field_index(name)
    if place >= 0:
        return int(place)
    # Spark does not tell fields apart by upper and lower case, and once they were written as they came.
    alike = [number for number, field in enumerate(type_) if field.name.lower() == name.lower()]
    return alike[0] if len(alike) == 1 else None


def _stored_type(type_: pa.DataType, tree: Tree) -> pa.DataType:
    match tree:
        case ArrayOf():
            return pa.list_(pa.field("element", _stored_type(type_.value_type, tree.element)))
        case MapOf():
            return pa.map_(_stored_type(type_.key_type, tree.key), _stored_type(type_.item_type, tree.value))
        case StructOf():
            return pa.struct(
                [
                    pa.field(
                        member.stored_as, _stored_type(field.type, member.type), True, {FIELD_ID: str(member.field_id)}
                    )
                    for member, field in zip(tree.members, type_, strict=True)
                ]
            )
    return type_


def _called(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """Values with other names of fields, and nothing else."""
    if not len(values):
        return pa.nulls(0, type_)
    if pa.types.is_list(type_):
        return _with_parts(values, type_, [_called(values.values, type_.value_type)])
    if pa.types.is_map(type_):
        entries = _entries(type_, _called(values.keys, type_.key_type), _called(values.items, type_.item_type))
        return _with_parts(values, type_, [entries])
    if pa.types.is_struct(type_):
        parts = [_called(values.field(place), field.type) for place, field in enumerate(type_)]
        return pa.StructArray.from_arrays(parts, fields=list(type_), mask=values.is_null())
    return values


def _with_parts(values: pa.Array, type_: pa.DataType, parts: list[pa.Array]) -> pa.Array:
    """An array or a map with other parts under the same offsets."""
    buffers = values.buffers()[:2]
    return pa.Array.from_buffers(type_, len(values), buffers, values.null_count, values.offset, parts)


def _entries(type_: pa.MapType, keys: pa.Array, items: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([keys, items], fields=[type_.key_field, type_.item_field])


def _is_list(type_: pa.DataType) -> bool:
    return pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_)
