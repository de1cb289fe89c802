"""A replicated table of an existing Delta table: created, loaded at one of its versions, and compared with it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from epochlake.jobs.administration.schema import TableCreation
from epochlake.jobs.exchange.casting import fit
from epochlake.jobs.exchange.proposing import is_delta, propose
from epochlake.jobs.exchange.sources import ROWS_OF_PART, in_parts
from epochlake.jobs.gate.arrow_rows import hashes
from epochlake.jobs.replicas.staging import digested_columns
from epochlake.metastore.metadata.model import Table
from epochlake.placement.errors import InvalidRequest, InvariantViolated, words_of
from epochlake.placement.showing import Shown

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster

_ORIGIN = re.compile(r"adopted from (?P<uri>.+), version (?P<version>\d+), table (?P<id>\S+)\Z")


class Adopted(Shown, msgspec.Struct, frozen=True):
    """A table that was made of a Delta table. `epoch`: of its creation; `already`: parts that had landed before."""

    table: str
    origin: str
    version: int
    primary_key: tuple[str, ...]
    why: str
    rows: int
    parts: int
    already: int
    epoch: int


Progress = Callable[[int, int], None]
"""Called after each part with the number of files that are through, and of all."""


def adopt(
    cluster: Cluster,
    origin: str,
    full_name: str,
    primary_key: Sequence[str] = (),
    *,
    consistency: str | None = None,
    tablets: int | None = None,
    progress: Progress = lambda done, of: None,
) -> Adopted:
    """Make the replicated table `keyspace.table` of the Delta table at a URI, which stays as it is.

    Its version is pinned when the table is created, and told in the log as the reason of that epoch. A call that ended
    half-way is made again: it goes on with the same version. At the end the rows of both are compared, by their number
    and by a sum of their hashes. Raises InvalidRequest for what is no Delta table or has features that cannot be read
    here, InvariantViolated where the rows are not the same (such as rows with the same key), and as `Cluster.write`.
    """
    if not is_delta(origin):
        raise InvalidRequest(f"there is no Delta table at {origin}", hint="Name its directory, that with _delta_log")
    request_id = "adopt-" + hashlib.sha256(f"{origin}\n{full_name}".encode()).hexdigest()[:32]
    begun = cluster.follower.request_entry(request_id) if cluster.catch_up() else None
    pinned = _ORIGIN.search(begun.reason) if begun is not None else None
    source = _opened(origin, int(pinned["version"]) if pinned else None)
    why = "as before"
    if begun is None:
        proposal = propose(origin, primary_key)
        why = proposal.why
        reason = f"adopted from {origin}, version {source.version()}, table {source.metadata().id}"
        change = TableCreation(full_name, proposal.columns, proposal.primary_key, tablets=tablets)
        epoch = cluster.commit(change, request_id=request_id, reason=reason).epoch
    else:
        epoch = begun.epoch
        if pinned and pinned["id"] != str(source.metadata().id):
            raise InvalidRequest(
                f"{full_name} was begun from another table at {origin} than is there now",
                hint="Drop it, and begin anew",
            )
    table = cluster.catch_up().table(full_name)
    parts = already = rows = wanted = 0
    fragments = _files_of(source)
    for through, (path, batches) in enumerate(fragments, start=1):
        for number, part in enumerate(batches):
            fitted, _ = fit(part, table, number * ROWS_OF_PART)
            name = f"{request_id}/{source.version()}/{path}/{number}"
            written = cluster.write(full_name, fitted, consistency=consistency, batch=name)
            parts, already, rows = parts + 1, already + written.already, rows + written.rows
            wanted = _added(wanted, _digest(fitted, table))
        progress(through, len(fragments))
    _require_the_same(cluster, table, consistency, rows, wanted)
    return Adopted(full_name, origin, source.version(), tuple(table.primary_key), why, rows, parts, already, epoch)


def _opened(origin: str, version: int | None) -> DeltaTable:
    try:
        return DeltaTable(origin, version=version)
    except (OSError, DeltaError) as error:
        which = "" if version is None else f" at version {version}, from which it was begun,"
        raise InvalidRequest(f"the Delta table {origin}{which} cannot be read: {words_of(error)}") from error


def _files_of(source: DeltaTable) -> list[tuple[str, Iterator[pa.Table]]]:
    """Each data file of a version by its name, with its rows in parts."""
    try:
        data = source.to_pyarrow_dataset()
    except (OSError, DeltaError, pa.ArrowException) as error:
        raise InvalidRequest(
            f"the Delta table has what cannot be read without Spark: {words_of(error)}",
            hint="Create the table, and write to it: pipeline.write(spark.read.format('delta')…, batch=…)",
        ) from error

    def rows(fragment: pads.Fragment) -> Iterator[pa.Table]:
        alone = pads.FileSystemDataset([fragment], data.schema, data.format, data.filesystem)
        try:
            yield from in_parts(data.schema, alone.to_batches())
        except (OSError, pa.ArrowException) as error:
            raise InvalidRequest(f"{fragment.path} of the Delta table cannot be read: {words_of(error)}") from error

    fragments = sorted(data.get_fragments(), key=lambda fragment: fragment.path)
    return [(fragment.path, rows(fragment)) for fragment in fragments]


def _require_the_same(cluster: Cluster, table: Table, consistency: str | None, rows: int, wanted: int) -> None:
    found = number = 0
    for batch in cluster.scan(table.full_name, consistency=consistency):
        number += batch.num_rows
        found = _added(found, _digest(pa.Table.from_batches([batch]), table))
    if number < rows:
        raise InvariantViolated(
            f"{table.full_name} has {number:,} rows, and its origin {rows:,}: {rows - number:,} have the key of others",
            hint=f"Drop the table, and adopt it again with another --primary-key than {', '.join(table.primary_key)}",
        )
    if (number, found) != (rows, wanted):
        raise InvariantViolated(
            f"{table.full_name} does not hold the rows of its origin ({number:,} of {rows:,} rows): somebody has "
            "written to it meanwhile, or a file was changed",
            hint="Drop the table, and adopt it again",
        )


def _digest(rows: pa.Table, table: Table) -> int:
    return int(hashes(rows.select(digested_columns(table))).sum(dtype=np.int64))


def _added(one: int, other: int) -> int:
    return (one + other) % 2**64
