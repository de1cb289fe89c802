"""Events of tables with generated columns, on metadata that they do and do not fit: cases for `test_events.py`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import msgspec
import numpy as np
from epochlake.metastore.metadata.attachments import encode_replicas
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import AlterColumns, CreateTable, EnableFeatures
from epochlake.metastore.metadata.features import SUPPORTED
from epochlake.metastore.metadata.model import Column, Generated, Table

from tests.support.histories import applied, small_cluster

TRIPS = "id-trips"
TWICE = Generated("n * 2", (3,))
COLUMNS = (
    Column("id", "bigint", nullable=False),
    Column("twice", "bigint", generated=TWICE),
    Column("n", "int"),
    Column("note", "string"),
)


@cache
def scenes() -> dict[str, ClusterMetadata]:
    """`generated` has a table with a column that is computed of another one."""
    small = small_cluster()
    featured = applied([EnableFeatures(SUPPORTED)], small)
    return {
        "generated": applied([created(*COLUMNS)], featured),
        "generated before": applied([created(COLUMNS[0], *COLUMNS[2:])], small),
    }


def created(*columns: Column) -> CreateTable:
    table = Table(TRIPS, "air", "trips", columns, ("id",))
    return CreateTable(table, 1, encode_replicas(np.array([[1, 2]], np.int32)))


def altered(scene: str, *new: Column, **columns: dict[str, object] | None) -> Callable[[], AlterColumns]:
    """The event by which columns get these, are gone (None), or are added."""

    def made() -> AlterColumns:
        table = scenes()[scene].schema.tables[TRIPS]
        kept = [
            msgspec.structs.replace(column, **(columns.get(column.name) or {}))
            for column in table.numbered
            if columns.get(column.name, {}) is not None
        ]
        last = table.last_column_id + 1
        more = [msgspec.structs.replace(one, column_id=last, stored_as=one.name) for one in new]
        return AlterColumns(TRIPS, "air.trips", table.version, (*kept, *more))

    return made


def computed(expression: str = "n + 1", *columns: int, **other: object) -> Column:
    return msgspec.structs.replace(Column("more", "int", generated=Generated(expression, columns or (3,))), **other)


REJECTED: list[tuple[str, object, str]] = [
    ("small", lambda: created(*COLUMNS), "feature-not-enabled"),
    ("generated before", altered("generated before", computed("n", 2)), "feature-not-enabled"),
    (
        "featured",
        lambda: created(Column("id", "bigint", False, generated=TWICE), *COLUMNS[1:]),
        "invalid-generated-column",
    ),
    ("featured", lambda: created(*COLUMNS, computed("twice", 2)), "invalid-generated-column"),
    ("featured", lambda: created(*COLUMNS, computed("more", 5)), "invalid-generated-column"),
    ("featured", lambda: created(*COLUMNS, computed("n", 9)), "invalid-event"),
    ("featured", lambda: created(*COLUMNS, computed("")), "invalid-generated-column"),
    ("featured", lambda: created(*COLUMNS, computed("n" * 4_001)), "invalid-generated-column"),
    ("featured", lambda: created(*COLUMNS, computed(generated=Generated("1"))), "invalid-event"),
    ("featured", lambda: created(*COLUMNS, computed(default="1")), "invalid-generated-column"),
    ("generated", altered("generated", computed(nullable=False)), "invalid-default"),
    ("generated", altered("generated", twice={"generated": msgspec.UNSET}), "invalid-generated-column"),
    ("generated", altered("generated", twice={"generated": Generated("n * 3", (3,))}), "invalid-generated-column"),
    ("generated", altered("generated", note={"generated": Generated("n", (3,))}), "invalid-generated-column"),
    ("generated", altered("generated", computed("twice", 2)), "invalid-generated-column"),
    ("generated", altered("generated", n={"name": "m"}), "generating-column"),
    ("generated", altered("generated", n={"type": "bigint"}), "generating-column"),
    ("generated", altered("generated", n=None), "generating-column"),
]

VALID: list[tuple[str, object]] = [
    ("featured", lambda: created(*COLUMNS)),
    ("generated", altered("generated", computed())),
    ("generated", altered("generated", computed("note", 4), twice=None)),
    ("generated", altered("generated", n=None, twice=None)),
    ("generated", altered("generated", twice={"name": "double"}, n={"nullable": True, "comment": "how many"})),
    ("generated", altered("generated", note={"name": "text"})),
]
