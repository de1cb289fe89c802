"""Tables as assets of Airflow: a task that has written to one says at which epoch, and DAGs are scheduled by it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from airflow.sdk import Asset

if TYPE_CHECKING:
    from epochlake.jobs.airflow_provider.task_cluster import TaskCluster

SCHEME = "epochlake"


def table_asset(table: str, cluster: str = "epochlake") -> Asset:
    """The asset that a table is: `epochlake://CLUSTER/KEYSPACE/TABLE`. `table` is its full name, `air.flights`.

    `cluster` is any name by which your DAGs tell clusters apart. Raises ValueError for a name without a keyspace.
    """
    keyspace, _, name = table.partition(".")
    if not (keyspace and name and cluster):
        raise ValueError(f"{table!r} of cluster {cluster!r} is no table: give its keyspace and its name, air.flights")
    uri = f"{SCHEME}://{cluster}/{keyspace}/{name}"
    return Asset(name=uri, uri=uri)


def normalised(parts: SplitResult) -> SplitResult:
    """For Airflow: the URI of an asset, when it is that of a table. Raises ValueError for another one."""
    if not parts.netloc or len([word for word in parts.path.split("/") if word]) != 2 or parts.query:
        raise ValueError("the URI of a table is epochlake://CLUSTER/KEYSPACE/TABLE")
    return parts._replace(path="/" + "/".join(word for word in parts.path.split("/") if word))


def tell_assets(context: Mapping[str, Any], outlets: Iterable[object], cluster: TaskCluster) -> None:
    """Give the events of the tables among `outlets` what was written: the epoch, the rows, the names of the batches."""
    for outlet in outlets:
        if not isinstance(outlet, Asset) or urlsplit(outlet.uri).scheme != SCHEME:
            continue
        table = urlsplit(outlet.uri).path.strip("/").replace("/", ".")
        landed = [one for one in cluster.landed if one.written.table == table]
        context["outlet_events"][outlet].extra = {
            "table": table,
            "epoch": max((one.written.epoch for one in landed), default=cluster.metadata.epoch),
            "rows": sum(one.written.rows for one in landed),
            "batches": [one.batch for one in landed],
        }
