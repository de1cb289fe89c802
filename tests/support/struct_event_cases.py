"""Events that change fields of structs, on metadata that they do and do not fit: cases for `test_events.py`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import msgspec
import numpy as np
from epochlake.metastore.metadata.attachments import encode_replicas
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import AlterColumns, CreateTable, EnableFeatures
from epochlake.metastore.metadata.features import SUPPORTED
from epochlake.metastore.metadata.model import Check, Column, StructField, Table

from tests.support.histories import applied, small_cluster

HOMES = "id-homes"
COLUMNS = (
    Column("id", "bigint", nullable=False),
    Column("a", "struct<s:string,z:int>"),
    Column("l", "array<struct<p:int>>"),
    Column("m", "map<struct<k:int>,struct<v:int>>"),
    Column("n", "int"),
)
KEY = ("id",)
CHECK = Check("said", "l is not null", (3,))


@cache
def scenes() -> dict[str, ClusterMetadata]:
    """`structs` has a table of them; in `fielded` the fields of one have changed, and another is checked."""
    small = small_cluster()
    created = CreateTable(Table(HOMES, "air", "homes", COLUMNS, KEY), 1, encode_replicas(np.array([[1, 2]], np.int32)))
    structs = applied([EnableFeatures(SUPPORTED), created], small)
    event = homes(structs, a=("struct<s:string,w:int>", (field(6, "s"), field(8, "w", added=True))))
    fielded = applied([msgspec.structs.replace(event, checks=(CHECK,))], structs)
    return {"structs": structs, "fielded": fielded, "structs before": applied([created], small)}


def field(number: int, stored_as: str, *, added: bool = False) -> StructField:
    return StructField(number, stored_as, added)


Fields = tuple[StructField, ...] | msgspec.UnsetType


def homes(metadata: ClusterMetadata, **columns: tuple[str, Fields]) -> AlterColumns:
    """The event by which columns of `air.homes` have these types and fields, or are added with them."""
    table = metadata.schema.tables[HOMES]
    known = {column.name for column in table.columns}
    made = [
        msgspec.structs.replace(column, type=columns[column.name][0], fields=columns[column.name][1])
        if column.name in columns
        else column
        for column in table.numbered
    ]
    made += [
        Column(name, type_, column_id=table.last_column_id + 1, stored_as=name, fields=fields)
        for name, (type_, fields) in columns.items()
        if name not in known
    ]
    return AlterColumns(HOMES, "air.homes", table.version, tuple(made))


def changed(scene: str, **columns: tuple[str, Fields]) -> Callable[[], AlterColumns]:
    return lambda: homes(scenes()[scene], **columns)


def created_with_fields() -> CreateTable:
    column = Column("a", "struct<s:string>", fields=(field(3, "s"),))
    table = Table("id-other", "air", "other", (COLUMNS[0], column), ("id",))
    return CreateTable(table, 1, encode_replicas(np.array([[1, 2]], np.int32)))


S, Z = field(6, "s"), field(7, "z")
W = field(8, "w", added=True)
FIELDED = (S, W)
"""The fields of `a` in `fielded`, which had a `z` once."""

REJECTED: list[tuple[str, object, str]] = [
    ("structs before", changed("structs before", a=("struct<s:string>", (S,))), "feature-not-enabled"),
    ("structs", created_with_fields, "invalid-event"),
    ("structs", changed("structs", b=("struct<s:string>", (S,))), "invalid-event"),
    ("fielded", changed("fielded", a=("struct<s:string,w:int>", msgspec.UNSET)), "invalid-event"),
    ("structs", changed("structs", a=("struct<s:string,z:int>", (S,))), "invalid-event"),
    ("structs", changed("structs", a=("struct<s:string>", (S, Z))), "invalid-event"),
    ("structs", changed("structs", a=("struct<s:", (S,))), "invalid-event"),
    ("structs", changed("structs", id=("bigint", ())), "invalid-event"),
    (
        "structs",
        changed("structs", m=("map<struct<q:int>,struct<v:int>>", (field(6, "k"), field(7, "v")))),
        "key-column",
    ),
    ("structs", changed("structs", a=("struct<s:int,z:int>", (S, Z))), "narrower-type"),
    ("structs", changed("structs", a=("array<struct<s:string>>", (S,))), "narrower-type"),
    ("structs", changed("structs", a=("struct<s:string,S:int>", (S, Z))), "column-exists"),
    ("structs", changed("structs", a=("struct<s:string,y:int>", (S, field(7, "S", added=True)))), "column-exists"),
    # A name that files have values under, of a field that is there, that was dropped, or that is dropped now.
    ("fielded", changed("fielded", a=("struct<s:string,z:int>", (S, field(9, "z", added=True)))), "invalid-event"),
    ("fielded", changed("fielded", a=("struct<s:string,z:int>", (S, field(9, "Z", added=True)))), "invalid-event"),
    ("fielded", changed("fielded", a=("struct<s:string,z:int>", (S, field(9, "W", added=True)))), "invalid-event"),
    ("fielded", changed("fielded", a=("struct<s:string,z:int>", (S, field(9, "z#9")))), "invalid-event"),
    ("structs", changed("structs", a=("struct<s:string,`x y`:int>", (S, field(7, "x", added=True)))), "invalid-name"),
    ("structs", changed("structs", a=("struct<s:string,`x.y`:int>", (S, Z))), "invalid-name"),
    # Numbers that are not new, that are another field's, or that are changed.
    ("structs", changed("structs", a=("struct<s:string,z:int>", (S, field(5, "z")))), "invalid-event"),
    ("structs", changed("structs", a=("struct<s:string,z:int>", (S, field(6, "z")))), "invalid-event"),
    ("structs", changed("structs", a=("struct<s:string,z:int>", (S, field(7, "z", added=True)))), "invalid-event"),
    ("fielded", changed("fielded", a=("struct<s:string,w:int>", (S, field(8, "w")))), "invalid-event"),
    ("fielded", changed("fielded", a=("struct<s:string,w:int>", (field(9, "s"), FIELDED[1]))), "invalid-event"),
    (
        "fielded",
        changed(
            "fielded",
            a=("struct<s:string,w:int,n:struct<o:int>>", (*FIELDED, field(9, "n", added=True), field(7, "o"))),
        ),
        "invalid-event",
    ),
    ("structs", changed("structs", m=("map<struct<k:int>,struct<v:int>>", (field(3, "k"), Z))), "invalid-event"),
    ("fielded", changed("fielded", l=("array<struct<q:int>>", (field(9, "p"),))), "checked-column"),
    ("fielded", changed("fielded", l=("array<struct<q:int>>", (field(9, "q", added=True),))), "checked-column"),
    ("fielded", changed("fielded", a=("struct<s:string,w:int>", FIELDED)), "nothing-to-do"),
]

VALID: list[tuple[str, object]] = [
    ("structs", changed("structs", a=("struct<s:string,z:int>", (S, Z)))),
    ("structs", changed("structs", a=("struct<z:bigint,t:string>", (field(6, "z"), field(7, "s"))))),
    (
        "structs",
        changed(
            "structs",
            m=("map<struct<k:int>,struct<v:double,w:int>>", (field(6, "k"), field(7, "v"), W)),
        ),
    ),
    ("fielded", changed("fielded", a=("struct<s:string,z:int>", (S, field(9, "z#9", added=True))))),
    (
        "fielded",
        changed("fielded", l=("array<struct<p:bigint,q:int>>", (field(9, "p"), field(10, "q", added=True)))),
    ),
    ("fielded", changed("fielded", n=("bigint", msgspec.UNSET))),
]
