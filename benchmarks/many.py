"""How what is done all day grows with a cluster: tablets of a table, tables, volumes, files of a replica.

Each is grown alone, and everything is measured at its beginning and at its end: a write of 1,000 rows, a lookup, a
round of a coordinator that has nothing to do, and `status`. What a user does is not to grow with what is not his.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
from epochlake.jobs.administration.nodes import add_node
from epochlake.jobs.administration.schema import create_table
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.coordinator.coordinator import Coordinator
from epochlake.jobs.coordinator.effects.replicas import replica_address
from epochlake.jobs.replicas.commits import commit_files
from epochlake.jobs.replicas.files import new_file_id
from epochlake.jobs.replicas.outcomes import Acknowledged
from epochlake.jobs.replicas.replica import open_snapshot
from epochlake.jobs.views.status import status
from epochlake.metastore.metadata.model import Column
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN

from benchmarks.clusters import opened
from benchmarks.harness import Result, medians

ROUNDS = 7
ROWS = 1_000
COLUMNS = (Column("id", "bigint", False), Column("kind", "int"), Column("weight", "double"), Column("note", "string"))
TABLE = "air.here"
LINKS = 30_000
"""So many names a file may have on the usual file systems, and more."""
WORKS = ("a write of 1,000 rows", "a lookup", "a round with nothing to do", "status")


def of_tablets() -> list[Result]:
    """A table of 16, and one of 16,384 tablets."""
    with opened() as (cluster, _):
        few = _measured(cluster, 16)
    with opened() as (cluster, _):
        many = _measured(cluster, 16_384)
    return _compared(few, many, "16,384 tablets", "16")


def of_tables() -> list[Result]:
    """A cluster with one table, and with 1,000 more."""
    with opened() as (cluster, _):
        few = _measured(cluster, 16)
        for number in range(1_000):
            create_table(cluster, f"air.other_{number}", COLUMNS, ("id",), tablets=4)
        many = _measured(cluster, None)
    return _compared(few, many, "1,000 tables more", "one")


def of_volumes() -> list[Result]:
    """Three volumes, and 100."""
    with opened() as (cluster, _):
        few = _measured(cluster, 64)
    with opened() as (cluster, directory):
        for number in range(97):
            place = directory / "more" / str(number)
            add_node(cluster, f"m{number}", "dc1", f"r{number % 3 + 1}", [("v1", str(place), 10**12)])
        Coordinator(cluster).run(until_idle=True)
        many = _measured(cluster, 64)
    return _compared(few, many, "100 volumes", "3")


def of_files() -> list[Result]:
    """Replicas of some, and of 100,000 files each, none of which a compaction has put together."""
    with opened() as (cluster, _):
        few = _measured(cluster, 16)
        _add_files(cluster, 100_000)
        many = _measured(cluster, None)
    return _compared(few, many, "100,000 files a replica", "some 20")


def _add_files(cluster: Cluster, count: int) -> None:
    """So many files more in each replica of the table, of a row each, with tokens all over the ring.

    So many writes would take an hour: they are copies of one file, under names of their own, which no lookup of
    `_measured` opens. What is committed, and what readers and writers look through, is as after so many writes.
    """
    metadata = cluster.metadata
    table = metadata.table(TABLE)
    tokens = range(MIN_TOKEN, MAX_TOKEN, (MAX_TOKEN - MIN_TOKEN) // count)
    volumes = [volume.volume_id for node in metadata.directory.nodes.values() for volume in node.volumes]
    addresses = [replica_address(cluster.storage, metadata, table.table_id, volume) for volume in volumes]
    like = max(
        open_snapshot(addresses[0]).all_files.values(), key=lambda file: (file.window[1] - file.window[0], file.file_id)
    )
    directory = like.path.rpartition("/")[0]
    files = [
        msgspec.structs.replace(
            like, file_id=name, path=f"{directory}/{name}.parquet", rows=1, min_token=token, max_token=token
        )
        for token, name in ((token, new_file_id()) for token in tokens if like.window[0] <= token <= like.window[1])
    ]
    for address in addresses:
        source = Path(address.uri, like.path)
        for number, file in enumerate(files):
            path = Path(address.uri, file.path)
            if number % LINKS:
                path.hardlink_to(source)
            else:
                source = Path(shutil.copyfile(source, path))
        for start in range(0, len(files), 5_000):
            some = files[start : start + 5_000]
            outcome = commit_files(
                address, some, epoch=metadata.epoch, app_id="files", app_version=start, ledger=cluster.ledger
            )
            assert isinstance(outcome, Acknowledged), outcome


def _measured(cluster: Cluster, tablets: int | None) -> dict[str, float]:
    """Milliseconds of each work; `tablets`: the table is made first, with so many."""
    if tablets is not None:
        create_table(cluster, TABLE, COLUMNS, ("id",), tablets=tablets)
    numbers = itertools.count(1 if tablets is None else 1_000)
    cluster.write(TABLE, _rows(ROWS, 0))
    keys = itertools.cycle(range(ROWS))
    coordinator = Coordinator(cluster)
    coordinator.run(until_idle=True)
    works: dict[str, Callable[[], object]] = dict(
        zip(
            WORKS,
            (
                lambda: cluster.write(TABLE, _rows(ROWS, next(numbers))),
                lambda: cluster.get(TABLE, next(keys)),
                coordinator.round,
                lambda: status(cluster),
            ),
            strict=True,
        )
    )
    for work in works.values():
        work()
    return {name: seconds * 1000 for name, seconds in medians(ROUNDS, works).items()}


def _compared(few: dict[str, float], many: dict[str, float], size: str, before: str) -> list[Result]:
    return [Result(f"{name}, {size}", many[name], "ms", few[name], before) for name in WORKS]


def _rows(count: int, number: int) -> pa.Table:
    """Rows that no other number has."""
    ids = range(number * ROWS, number * ROWS + count)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "kind": pa.array([id_ % 100 for id_ in ids], pa.int32()),
            "weight": pa.array([id_ / 7 for id_ in ids], pa.float64()),
            "note": pa.array([f"note {id_}" for id_ in ids]),
        }
    )


BENCHMARKS: dict[str, Callable[[], list[Result]]] = {
    "of_tablets": of_tablets,
    "of_tables": of_tables,
    "of_volumes": of_volumes,
    "of_files": of_files,
}
