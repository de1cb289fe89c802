"""Tables that several make at once, or that somebody makes who is killed: the four kinds that a cluster has."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from deltalake import DeltaTable, Schema
from epochlake.jobs.replicas.change_index import ChangeIndex
from epochlake.jobs.replicas.ledger import Ledger, Merge, Replaced
from epochlake.jobs.replicas.replica import ReplicaAddress, create_replica, open_snapshot
from epochlake.metastore.delta_commits import MADE_ONCE, commit_uri
from epochlake.metastore.log.delta import DeltaLog, create_log_table
from epochlake.metastore.storage.storage import Storage

from tests.support.logs import chain
from tests.support.replicas import CLUSTER_ID, TABLE

Making = Callable[[Storage, Path], str]
"""Makes a table below a directory, in a volume that is there; the table's URI."""


def a_log(storage: Storage, root: Path) -> str:
    create_log_table(storage, str(root / "log"))
    return str(root / "log")


def a_ledger(storage: Storage, root: Path) -> str:
    ledger = Ledger(storage, str(root / "compactions"))
    ledger._create()
    return ledger.uri


def a_replica(storage: Storage, root: Path) -> str:
    address = replica_at(storage, root)
    create_replica(address, TABLE, 1)
    return address.uri


def an_index(storage: Storage, root: Path) -> str:
    index = ChangeIndex(storage, str(root / "changes" / "t-1" / "s-1"))
    index.create(TABLE)
    return index.uri


def replica_at(storage: Storage, root: Path) -> ReplicaAddress:
    return ReplicaAddress(storage, CLUSTER_ID, 1, str(root / "v1"), TABLE.keyspace, TABLE.table_id)


KINDS: dict[str, Making] = {"a log": a_log, "a ledger": a_ledger, "a replica": a_replica, "an index": an_index}


def use(storage: Storage, uri: str, kind: str) -> None:
    """See that a table which was just made is whole, and can be written."""
    if kind == "a log":
        log, entries = DeltaLog(storage, uri), chain(1)
        assert log.read(0) == []
        log.append(entries)
        assert DeltaLog(storage, uri).read(0) == entries
    elif kind == "a ledger":
        ledger = Ledger(storage, uri)
        assert len(ledger.record([[Merge("t-1", "c-1", 0, 9, 1, 7, (Replaced("f-1", 0, 9),))]])) == 1
    elif kind == "a replica":
        assert open_snapshot(replica_at(storage, Path(uri).parents[2])).fence == 1
    else:
        assert ChangeIndex(storage, uri).begin(7).newest == 7


def commits_of(uri: str) -> list[str]:
    """The names of a table's commits."""
    return sorted(path.name for path in Path(uri, "_delta_log").glob("[0-9]*.json"))


def metadata_in(uri: str, version: int) -> dict[str, Any]:
    """The metadata that a commit has."""
    lines = [json.loads(line) for line in Path(commit_uri(uri, version)).read_bytes().splitlines()]
    [found] = [line["metaData"] for line in lines if "metaData" in line]
    return dict(found)


def made_by_delta_rs(elsewhere: Path, uri: str, version: int) -> str:
    """Have the commit by which an earlier release makes such a table lie there as this version, as it is where delta-rs
    makes the table that somebody else has made just now; the id that the table has from then on.
    """
    first = metadata_in(uri, 0)
    made = _created(elsewhere, first)
    data = Path(commit_uri(made, 0)).read_bytes()
    Path(commit_uri(uri, version)).write_bytes(data)
    return str(metadata_in(uri, version)["id"])


def _created(elsewhere: Path, like: dict[str, Any]) -> str:
    configuration = {name: value for name, value in like["configuration"].items() if name != MADE_ONCE}
    partitions: Sequence[str] = like["partitionColumns"]
    DeltaTable.create(
        str(elsewhere),
        Schema.from_json(like["schemaString"]),
        partition_by=list(partitions) or None,
        name=like["name"],
        description=like["description"],
        configuration=configuration,
        raise_if_key_not_exists=False,
    )
    return str(elsewhere)
