"""A replicated table of an existing Delta table: created, loaded at one of its versions, and compared with it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
from deltalake import DeltaTable
from epochlake.jobs.administration.schema import TableCreation
from epochlake.jobs.exchange.casting import fit
from epochlake.jobs.exchange.delta_sources import is_delta, open_delta, rows_of_delta
from epochlake.jobs.exchange.proposing import propose
from epochlake.jobs.exchange.sources import ROWS_OF_PART, in_parts
from epochlake.jobs.gate.arrow_rows import ArrowRows, rows_to_write
from epochlake.jobs.gate.row_digests import RowDigest, digested_columns
from epochlake.jobs.gate.writing import Written
from epochlake.jobs.replicas.row_values import shown_rows
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import CreateTable
from epochlake.metastore.metadata.model import Table
from epochlake.placement.consistency import ConsistencyLevel
from epochlake.placement.errors import InvalidRequest, InvariantViolated, words_of
from epochlake.placement.rejections import Code
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
        raise InvalidRequest(
            f"there is no Delta table at {origin or 'an empty name'}",
            hint="Name its directory, that with _delta_log; for other files there are `table create --like` and `load`",
        )
    if consistency is not None:
        ConsistencyLevel.parse(consistency)
    begun = _begun(cluster, origin, full_name)
    why = "as before"
    if begun.creation is None:
        source = open_delta(origin)
        proposal = propose(origin, primary_key)
        _require_key(source, origin, proposal.primary_key)
        why = proposal.why
        reason = f"adopted from {origin}, version {source.version()}, table {source.metadata().id}"
        change = TableCreation(full_name, proposal.columns, proposal.primary_key, tablets=tablets)
        cluster.commit(change, request_id=begun.request_id, reason=reason)
        # Of two that begin at once one has created the table, and what it has pinned counts for both.
        begun = _begun(cluster, origin, full_name)
    if begun.creation is None:
        raise Rejected(Code.UNKNOWN_TABLE, f"{full_name} was dropped while it was being adopted")
    source = open_delta(origin, begun.version)
    if begun.origin_id != str(source.metadata().id):
        raise InvalidRequest(
            f"{full_name} was begun from another table at {origin} than is there now",
            hint="Drop it, and begin anew",
        )
    table = msgspec.structs.replace(begun.creation.table, keyspace=full_name.partition(".")[0])
    if primary_key and tuple(primary_key) != table.primary_key:
        raise InvalidRequest(
            f"{full_name} was begun with the primary key {', '.join(table.primary_key)}",
            hint="Leave --primary-key out to go on with it, or drop the table, and adopt it again",
        )
    parts = already = rows = wanted = 0
    fragments = _files_of(source, origin)
    for through, (path, batches) in enumerate(fragments, start=1):
        for number, part in enumerate(batches):
            fitted, _ = fit(part, table, number * ROWS_OF_PART)
            name = f"{begun.request_id}/{source.version()}/{path}/{number}"
            written = _write(cluster, table, fitted, consistency, name)
            parts, already, rows = parts + 1, already + written.already, rows + written.rows
            wanted = _added(wanted, _digest(fitted, table))
        progress(through, len(fragments))
    _require_the_same(cluster, table, consistency, rows, wanted)
    return Adopted(
        full_name, origin, source.version(), tuple(table.primary_key), why, rows, parts, already, begun.epoch
    )


def _require_key(source: DeltaTable, origin: str, primary_key: Sequence[str]) -> None:
    """Before anything is created: what the first rows say against a key. Raises InvalidRequest."""
    data = rows_of_delta(source, origin)
    if not set(primary_key) <= set(data.schema.names):
        return  # the creation says which columns there are not
    try:
        rows = data.head(ROWS_OF_PART, columns=list(primary_key))
    except (OSError, pa.ArrowException) as error:
        raise InvalidRequest(f"the Delta table {origin} cannot be read: {words_of(error)}") from error
    empty = [name for name in primary_key if rows.column(name).null_count]
    if empty:
        raise InvalidRequest(f"{', '.join(empty)} of {origin} is null in some rows, and no key", hint=_OTHER_KEY)
    with suppress(pa.ArrowException):  # types that Arrow does not group by
        keys = rows.group_by(list(primary_key)).aggregate([([], "count_all")])
        twice = keys.filter(pc.field("count_all") > 1).drop_columns(["count_all"]).slice(0, 1)
        if twice.num_rows:
            raise InvalidRequest(f"rows of {origin} have the same primary key {shown_rows(twice)[0]}", hint=_OTHER_KEY)


_OTHER_KEY = "Name another --primary-key, or leave it out: one is proposed"


class _Begun(NamedTuple):
    """An adoption as the log has it: its request, and the creation of its table, None where it has not begun."""

    request_id: str
    creation: CreateTable | None = None
    epoch: int = 0
    version: int | None = None
    origin_id: str = ""


def _begun(cluster: Cluster, origin: str, full_name: str) -> _Begun:
    """What there is of this adoption. One whose table was dropped is over: what comes after it is another one, under a
    request id of its own.
    """
    metadata = cluster.catch_up()
    keyspace, _, name = full_name.partition(".")
    known = metadata.schema.keyspaces.get(keyspace)
    for before in () if known is None else known.former_names:
        # Its keyspace was called so when it was begun: its batches have names of then.
        earlier = _begun_as(cluster, metadata, origin, f"{before}.{name}", full_name)
        if earlier.creation is not None:
            return earlier
    return _begun_as(cluster, metadata, origin, full_name, full_name)


def _begun_as(cluster: Cluster, metadata: ClusterMetadata, origin: str, then: str, full_name: str) -> _Begun:
    """What there is of an adoption that was begun as the table `then`, which is called `full_name` now."""
    named = "adopt-" + hashlib.sha256(f"{origin}\n{then}".encode()).hexdigest()[:32]
    for number in count(1):
        request_id = named if number == 1 else f"{named}-{number}"
        entry = cluster.follower.request_entry(request_id)
        if entry is None:
            return _Begun(request_id)
        creation = entry.decode()
        pinned = _ORIGIN.search(entry.reason)
        if pinned is None or not isinstance(creation, CreateTable):
            continue  # somebody else has used the id
        now = metadata.schema.tables.get(creation.table.table_id)
        if now is not None and now.full_name == full_name:
            return _Begun(request_id, creation, entry.epoch, int(pinned["version"]), pinned["id"])
    raise AssertionError


def _write(cluster: Cluster, table: Table, rows: pa.Table, consistency: str | None, batch: str) -> Written:
    """Write a part to this table, and to no other one that has got its name meanwhile."""

    def fitting(now: Table) -> ArrowRows:
        if now.table_id != table.table_id:
            raise Rejected(
                Code.UNKNOWN_TABLE, f"{table.full_name} was dropped and made anew while it was being adopted"
            )
        return rows_to_write(rows, now)

    with cluster.gate() as gate:
        made, target = gate.planning.conformed(table.full_name, fitting)
        return gate.write(made, target, consistency, batch)


def _files_of(source: DeltaTable, origin: str) -> list[tuple[str, Iterator[pa.Table]]]:
    """Each data file of a version by its name, with its rows in parts."""
    data = rows_of_delta(source, origin)

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
            "written to it since it was created, or a file was changed",
            hint="Where others were to write to it already, nothing is wrong; else drop the table, and adopt it again",
        )


def _digest(rows: pa.Table, table: Table) -> int:
    return int(RowDigest(digested_columns(table), table, table).of_arrow(rows).sum(dtype=np.int64))


def _added(one: int, other: int) -> int:
    return (one + other) % 2**64
