"""A table into files of others: whole or not at all, and pinned to one moment."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError
from epochlake.jobs.exchange.export_formats import ExportFormat
from epochlake.jobs.exchange.row_files import Format, already_there, synced, write_rows
from epochlake.metastore.storage import places
from epochlake.placement.errors import InvalidRequest, words_of

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster


class Exported(msgspec.Struct, frozen=True):
    """What was written where. `epoch`: the newest one when the rows were pinned."""

    table: str
    destination: str
    format: str
    rows: int
    epoch: int


def require_no_place_of(cluster: Cluster, destination: Path) -> None:
    """Raises InvalidRequest for a destination within the root or a keyspace of a volume, or above one of them."""
    wanted = Path(os.path.realpath(destination))
    metadata = cluster.metadata
    kept = [
        places.join(volume.uri, keyspace)
        for node in metadata.directory.nodes.values()
        for volume in node.volumes
        for keyspace in metadata.schema.keyspaces
    ]
    for uri in (cluster.root.uri, *kept):
        local = places.local_path(uri)
        place = None if local is None else Path(os.path.realpath(local))
        if place is not None and (wanted.is_relative_to(place) or place.is_relative_to(wanted)):
            raise InvalidRequest(
                f"{destination} is where the cluster keeps what is its own, at {place}", hint="Name another place"
            )


def export(rows: pa.RecordBatchReader, destination: Path, format_: ExportFormat, *, overwrite: bool = False) -> int:
    """Write rows to a file or a Delta table that is not there yet, or takes the place of one; how many.

    A file and a new Delta table are written beside it, and get its name when all of them are there. The rows of a Delta
    table that is there are replaced by one commit of it. Raises InvalidRequest when it cannot be written, or is there
    already without `overwrite`; and what reading the rows raises.
    """
    if destination.exists() and not overwrite:
        raise already_there(destination)
    if format_ is not ExportFormat.DELTA:
        if destination.is_dir():
            raise InvalidRequest(f"{destination} is a directory, and {format_} is one file", hint="Name a file in it")
        return write_rows(rows, destination, Format(format_), replace=overwrite)
    return _export_delta(rows, destination)


def _export_delta(rows: pa.RecordBatchReader, destination: Path) -> int:
    there = destination.exists()
    if there and not (destination / "_delta_log").is_dir():
        raise InvalidRequest(f"{destination} is no Delta table, and is not replaced by one", hint="Name another place")
    place = destination if there else destination.with_name(f".{destination.name}.{uuid.uuid4().hex}")
    reading = _Reading(rows)
    try:
        if there:
            write_deltalake(str(place), reading.stream(), mode="overwrite", schema_mode="overwrite")
        else:
            write_deltalake(str(place), reading.stream())
        _sync_below(place)
        if not there:
            os.rename(place, destination)  # of a directory that has come meanwhile, and is not empty, it makes an error
            synced(destination.parent)
    except BaseException as error:
        if reading.failure is not None:
            raise reading.failure from None
        if isinstance(error, OSError | DeltaError | pa.ArrowException):
            raise InvalidRequest(f"{destination} cannot be written as a Delta table: {words_of(error)}") from error
        raise
    finally:
        if not there:
            shutil.rmtree(place, ignore_errors=True)
    return reading.rows


class _Reading:
    """Rows on their way into another library, which makes a text of what reading them raises. `failure` keeps it."""

    def __init__(self, rows: pa.RecordBatchReader) -> None:
        self.rows = 0
        self.failure: BaseException | None = None
        self._from = rows

    def stream(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self._from.schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._from:
                self.rows += batch.num_rows
                yield batch
        except BaseException as error:
            self.failure = error
            raise


def _sync_below(place: Path) -> None:
    for directory, _, names in os.walk(place):
        for name in names:
            synced(Path(directory) / name)
        synced(Path(directory))
