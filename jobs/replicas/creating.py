"""Making a replica table: by delta-rs, or by a first commit of our own where delta-rs cannot look."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from functools import partial

from deltalake import DeltaTable, Schema
from epochlake.jobs.replicas.protocols import protocol_of
from epochlake.metastore import delta_commits
from epochlake.metastore.storage import places
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.tokens import TABLET


def create_table(storage: Storage, uri: str, schema: Schema, configuration: Mapping[str, str]) -> None:
    """Create the empty table, partitioned by tablet; does nothing when it is there. Raises StorageUnavailable."""
    by_delta_rs = storage.disk.is_shared or places.local_path(uri) is None
    create = _create_by_delta_rs if by_delta_rs else _put_first_commit
    storage.within_deadline("create the replica table", uri, partial(create, storage, uri, schema, configuration))


def _create_by_delta_rs(storage: Storage, uri: str, schema: Schema, configuration: Mapping[str, str]) -> None:
    DeltaTable.create(
        places.delta_uri(uri),
        schema=schema,
        mode="ignore",
        partition_by=[TABLET],
        configuration=dict(configuration),
        storage_options=storage.delta_options(uri),
        raise_if_key_not_exists=False,
    )


def _put_first_commit(storage: Storage, uri: str, schema: Schema, configuration: Mapping[str, str]) -> None:
    declared = schema.to_json()
    metadata = {
        "id": str(uuid.uuid4()),
        "name": None,
        "description": None,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": declared,
        "partitionColumns": [TABLET],
        "createdTime": time.time_ns() // 1_000_000,
        "configuration": dict(configuration),
    }
    storage.create_directory(uri)
    storage.create_directory(places.join(uri, delta_commits.LOG))
    # Of two that create it at once one does.
    delta_commits.put_commit(storage, uri, 0, "CREATE TABLE", [protocol_of(declared), {"metaData": metadata}])
