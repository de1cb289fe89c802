"""Making a Delta table: by one first commit, which one of those who make it at once puts, whole and on the disk.

Left to its own, delta-rs lets both of two succeed: the second one makes a second commit, by which the table has another
id from then on. Here the second one is told, and has what the first one made, once it is seen to be what it wanted. On
a file system the commit is put as all of ours are (`delta_commits.py`); on an object store delta-rs puts it, and tries
no second time (docs/decisions/169-one-commit-makes-a-table.md).
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import DeltaError
from epochlake.metastore import delta_commits
from epochlake.metastore.delta_commits import MADE_ONCE, Action, CommitName
from epochlake.metastore.storage import failures, places
from epochlake.metastore.storage.storage import Storage

NO_SECOND_TRY = CommitProperties(max_commit_retries=0)
"""For `DeltaTable.create`: who comes second makes no second commit."""

TIMESTAMP = '"timestamp_ntz"'
"""A type that came to Delta later, as schemas name it."""
TIMESTAMPS = "timestampNtz"
"""The feature that says so of a table."""


class NewTable(NamedTuple):
    """What a table is to be. `schema`: Delta's JSON. `fixed`: those of its columns whose types never change later; a
    table of another release may have fewer of them.
    """

    schema: str
    configuration: Mapping[str, str]
    fixed: Collection[str]
    partition_columns: Sequence[str] = ()
    name: str | None = None
    description: str | None = None

    def actions(self) -> list[Action]:
        """The first commit."""
        metadata = {
            "id": str(uuid.uuid4()),
            "name": self.name,
            "description": self.description,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": self.schema,
            "partitionColumns": list(self.partition_columns),
            "createdTime": time.time_ns() // 1_000_000,
            "configuration": {**self.configuration, MADE_ONCE: "true"},
        }
        return [protocol_of(self.schema), {"metaData": metadata}]

    def difference(self, name: str | None, schema: str, partition_columns: Sequence[str]) -> str:
        """How a table with these is another one than this; "" where it is not."""
        if name != self.name:
            return f"its name is {name}, and not {self.name}"
        if list(partition_columns) != list(self.partition_columns):
            return f"it has the partition columns {list(partition_columns)}, and not {list(self.partition_columns)}"
        there, wanted = _types(schema), _types(self.schema)
        for column in wanted:
            if column in self.fixed and there.get(column, wanted[column]) != wanted[column]:
                return f"its column {column} has the type {there[column]}, and not {wanted[column]}"
        return ""


def create_table(storage: Storage, uri: str, wanted: NewTable) -> None:
    """Make the empty table, in a directory whose parent is there; what is there already stays as it is.

    It is on the disk, with the name of its directory, before anybody can see it. Raises StorageUnavailable, and that is
    StorageMisconfigured where another table lies there.
    """
    if places.local_path(uri) is None:
        storage.within_deadline("create the table", uri, lambda: _create_in_store(storage, uri, wanted))
        return
    storage.create_directory(uri)
    storage.create_directory(places.join(uri, delta_commits.LOG))
    # First, so that nobody builds on a table whose directory a power cut takes away.
    storage.sync_always(directories=[uri, uri.rstrip("/").rpartition("/")[0]])
    has_begun = delta_commits.has_begun(storage, uri)
    if not has_begun and delta_commits.put_commit(storage, CommitName(uri, 0), "CREATE TABLE", wanted.actions()):
        return
    _require_wanted(storage, uri, wanted)


def _require_wanted(storage: Storage, uri: str, wanted: NewTable) -> None:
    try:
        first = delta_commits.read_commit(storage, CommitName(uri, 0))
    except (failures.MissingFile, delta_commits.TornCommit):
        return  # it has been cleaned up, or is damaged: who opens the table judges it
    for action in first:
        if isinstance(metadata := action.get("metaData"), Mapping):
            _require_same(
                uri, wanted, metadata.get("name"), str(metadata["schemaString"]), metadata["partitionColumns"]
            )


def _require_same(uri: str, wanted: NewTable, name: str | None, schema: str, partition_columns: Sequence[str]) -> None:
    if difference := wanted.difference(name, schema, partition_columns):
        raise failures.StorageMisconfigured(
            f"another table than was to be made lies at {uri}: {difference}",
            hint="Move it elsewhere, or choose another place",
        )


def _create_in_store(storage: Storage, uri: str, wanted: NewTable) -> None:
    options = storage.delta_options(uri)
    try:
        DeltaTable.create(
            places.delta_uri(uri),
            Schema.from_json(wanted.schema),
            mode="ignore",
            partition_by=list(wanted.partition_columns) or None,
            name=wanted.name,
            description=wanted.description,
            configuration=dict(wanted.configuration),
            storage_options=options,
            commit_properties=NO_SECOND_TRY,
            raise_if_key_not_exists=False,
        )
    except DeltaError:
        if not DeltaTable.is_deltatable(places.delta_uri(uri), storage_options=options):
            raise
    there = DeltaTable(places.delta_uri(uri), storage_options=options)
    metadata = there.metadata()
    _require_same(uri, wanted, metadata.name, there.schema().to_json(), metadata.partition_columns)


def protocol_of(schema: str) -> Action:
    """The protocol of a table with these columns, Delta's JSON. None can be opened that leaves out what types need."""
    if not needs_feature(schema):
        return {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    features = {"readerFeatures": [TIMESTAMPS], "writerFeatures": [TIMESTAMPS]}
    return {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}


def needs_feature(schema: str) -> bool:
    """Whether a table with these columns has to say that it has a type which came to Delta later."""
    return TIMESTAMP in schema


def _types(schema: str) -> dict[str, object]:
    return {field["name"]: field["type"] for field in json.loads(schema)["fields"]}
