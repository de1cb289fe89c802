"""Structs whose fields change: random changes against a model, over values as files have them, without a cluster."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO
from itertools import count

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from epochlake.jobs.administration.altering import ColumnAlteration, ColumnChanges
from epochlake.jobs.gate.python_values import array_of
from epochlake.jobs.replicas.column_types import arrow_type
from epochlake.jobs.replicas.struct_columns import as_now, as_stored, fields_of
from epochlake.metastore.committing.changes import Call
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.attachments import encode_replicas
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import CreateTable, EnableFeatures
from epochlake.metastore.metadata.features import SUPPORTED
from epochlake.metastore.metadata.model import Column, Table
from epochlake.metastore.metadata.struct_fields import places, tree_of

from tests.support.histories import applied, small_cluster
from tests.support.slices import THOROUGH

TABLE = "air.homes"
NAMES = ("a", "b", "c", "A")
CALL = Call("request", storage=None)  # type: ignore[arg-type]
"""Planning asks storage for nothing."""


@dataclass(eq=False)
class Field:
    """A field of the model: it is itself, whatever it is called."""

    name: str
    type: Type


@dataclass(eq=False)
class Type:
    """`int` or `bigint`, an array or a map of `inside`, or a struct of `fields`."""

    kind: str
    inside: Type | None = None
    fields: list[Field] = field(default_factory=list)

    def ddl(self) -> str:
        if self.kind == "struct":
            return f"struct<{','.join(f'`{one.name}`:{one.type.ddl()}' for one in self.fields)}>"
        if self.inside is not None:
            return f"{self.kind}<{'string,' if self.kind == 'map' else ''}{self.inside.ddl()}>"
        return self.kind

    def structs(self, path: str) -> Iterator[tuple[str, Type]]:
        """All structs with their paths as text."""
        if self.kind == "struct":
            yield path, self
            for one in self.fields:
                yield from one.type.structs(f"{path}.`{one.name}`")
        elif self.inside is not None:
            yield from self.inside.structs(f"{path}.{'element' if self.kind == 'array' else 'value'}")


def made(dice: random.Random, depth: int = 0) -> Type:
    """A random type."""
    kind = dice.choice(["int", "bigint", "struct", "array", "map"]) if 0 < depth < 3 else "int" if depth else "struct"
    if kind == "struct":
        names = dice.sample(["a", "b", "c"], dice.randint(1, 3))
        return Type(kind, fields=[Field(name, made(dice, depth + 1)) for name in names])
    if kind in ("array", "map"):
        return Type(kind, made(dice, depth + 1))
    return Type(kind)


def value_of(type_: Type, dice: random.Random, numbers: Iterator[int]) -> object:
    """A random value, by fields and not by names; no number is in two of them."""
    if dice.random() < 0.2:
        return None
    if type_.kind == "struct":
        return {one: value_of(one.type, dice, numbers) for one in type_.fields}
    if type_.inside is not None:
        values = [value_of(type_.inside, dice, numbers) for _ in range(dice.randint(0, 2))]
        return values if type_.kind == "array" else {f"k{place}": value for place, value in enumerate(values)}
    return next(numbers)


def shown(value: object, type_: Type) -> object:
    """A value under the names of a type of later: what it has not is null."""
    if value is None:
        return None
    if type_.kind == "struct":
        assert isinstance(value, dict)
        return {one.name: shown(value.get(one), one.type) for one in type_.fields}
    if type_.kind == "array":
        assert isinstance(value, list)
        assert type_.inside is not None
        return [shown(one, type_.inside) for one in value]
    if type_.kind == "map":
        assert isinstance(value, dict)
        assert type_.inside is not None
        return {key: shown(one, type_.inside) for key, one in value.items()}
    return value


def changed(type_: Type, dice: random.Random) -> Mapping[str, object]:
    """One to three random changes, which the model makes as well; names are those of before."""
    asked: dict[str, dict[str, object]] = {"add": {}, "drop": {}, "rename": {}, "widen": {}, "comment": {}}
    later = []
    for path, struct in list(type_.structs("s")):
        for one in list(struct.fields):
            place, drawn = f"{path}.`{one.name}`", dice.random()
            if any(place.startswith(gone) for gone in asked["drop"]):
                continue
            if drawn < 0.12:
                asked["drop"][place] = None
                later.append((struct.fields.remove, one))
            elif drawn < 0.3:
                name = dice.choice(NAMES)
                asked["rename"][place] = name
                later.append((lambda pair: setattr(pair[0], "name", pair[1]), (one, name)))
            elif drawn < 0.4 and one.type.kind == "int":
                asked["widen"][place] = "bigint"
                later.append((lambda type_: setattr(type_, "kind", "bigint"), one.type))
            elif drawn < 0.45:
                asked["comment"][place] = "said"
        if dice.random() < 0.3 and not any(path.startswith(gone) for gone in asked["drop"]):
            new = Field(dice.choice(NAMES), made(dice, 2))
            asked["add"][f"{path}.`{new.name}`"] = new.type.ddl()
            later.append((struct.fields.append, new))
    for change, of in later:
        change(of)  # type: ignore[operator]
    return {
        "add": tuple(Column(path, str(ddl)) for path, ddl in asked["add"].items()),
        "drop": tuple(asked["drop"]),
        **{kind: asked[kind] for kind in ("rename", "widen", "comment")},
    }


def is_possible(type_: Type) -> bool:
    """Whether each struct has a field, and no two fields of it share a name."""
    return all(
        struct.fields and len({one.name.lower() for one in struct.fields}) == len(struct.fields)
        for _, struct in type_.structs("s")
    )


def created(ddl: str) -> ClusterMetadata:
    columns = (Column("id", "bigint", nullable=False), Column("s", ddl))
    table = Table("id-homes", "air", "homes", columns, ("id",))
    event = CreateTable(table, 1, encode_replicas(np.array([[1, 2]], dtype=np.int32)))
    return applied([EnableFeatures(SUPPORTED), event], small_cluster())


def column_of(metadata: ClusterMetadata) -> Column:
    return next(one for one in metadata.table(TABLE).numbered if one.name == "s")


def altered(metadata: ClusterMetadata, **changes: object) -> ClusterMetadata:
    return applied([ColumnAlteration(TABLE, ColumnChanges(**changes)).plan(metadata, CALL)], metadata)  # type: ignore[arg-type]


def in_a_file(values: pa.ChunkedArray, column: Column, dice: random.Random) -> pa.ChunkedArray:
    """Values as a file keeps them, at times as Parquet gives them back, in pieces that begin anywhere."""
    tree = fields_of(column)
    stored = values if tree is None else as_stored(values, tree)
    if dice.random() < 0.3:
        file = BytesIO()
        pq.write_table(pa.table([stored], schema=pa.schema([pa.field("s", stored.type)])), file)
        stored = pq.read_table(BytesIO(file.getvalue()), schema=None).column("s")
    cut = dice.randint(0, len(stored))
    return pa.chunked_array([*stored.slice(0, cut).chunks, *stored.slice(cut).chunks], stored.type)


def read(stored: pa.ChunkedArray, column: Column) -> pa.ChunkedArray:
    tree = fields_of(column)
    return stored if tree is None else as_now(stored, tree)


SEEDS = range(400 if THOROUGH else 25)


@pytest.mark.parametrize("seed", SEEDS)
def test_values_never_come_back_nor_show_under_another_field_whatever_becomes_of_the_fields(seed: int) -> None:
    dice, numbers = random.Random(seed), count(1)
    type_ = made(dice)
    metadata = created(type_.ddl())
    files: list[tuple[pa.ChunkedArray, list[object]]] = []
    for _ in range(12):
        column = column_of(metadata)
        rows = [value_of(type_, dice, numbers) for _ in range(dice.randint(0, 4))]
        values = pa.chunked_array([array_of([shown(row, type_) for row in rows], arrow_type(column.type))])
        files.append((in_a_file(values, column, dice), rows))
        if dice.random() < 0.3 and files:  # a merge writes what it reads
            place = dice.randrange(len(files))
            files[place] = (in_a_file(read(files[place][0], column), column, dice), files[place][1])
        before = remembered(type_)
        asked = changed(type_, dice)
        if not any(asked.values()):
            continue
        if not is_possible(type_):
            with pytest.raises(Rejected) as rejected:
                altered(metadata, **asked)
            assert rejected.value.code in ("column-exists", "no-columns")
            put_back(before)
            continue
        if any(asked[kind] for kind in ("add", "drop", "widen")):
            metadata = altered(metadata, **asked)
        else:  # a name that it has, a comment that is said already
            with suppress(Rejected):
                metadata = altered(metadata, **asked)
        column = column_of(metadata)
        assert arrow_type(column.type) == arrow_type(type_.ddl())
        for stored, written in files:
            found = read(stored, column).to_pylist(maps_as_pydicts="strict")
            assert found == [shown(row, type_) for row in written]
    require_own_numbers(metadata.table(TABLE))


def parts_of(type_: Type) -> Iterator[Type]:
    """The type and all within it."""
    yield type_
    for part in [*([] if type_.inside is None else [type_.inside]), *(one.type for one in type_.fields)]:
        yield from parts_of(part)


def remembered(type_: Type) -> list[tuple[Type, str, list[tuple[Field, str]]]]:
    """What a type is made of, to be put back: a change that is refused changes nothing."""
    return [(part, part.kind, [(one, one.name) for one in part.fields]) for part in parts_of(type_)]


def put_back(before: list[tuple[Type, str, list[tuple[Field, str]]]]) -> None:
    for part, kind, fields in before:
        part.kind, part.fields = kind, [one for one, _ in fields]
        for one, name in fields:
            one.name = name


def require_own_numbers(table: Table) -> None:
    """No column and no field share a number, and none has one above the last."""
    numbers = [column.column_id for column in table.numbered]
    for column in table.numbered:
        if column.fields is not msgspec.UNSET:
            numbers += [one.member.field_id for one in places(tree_of(column))]
    assert len(set(numbers)) == len(numbers)
    assert max(numbers) <= table.last_column_id
