"""Tables of the metadata for Spark, `system.tablets` and its like, and the log itself: as of any epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from epochlake.jobs.datasource.errors import as_spark_says
from epochlake.jobs.datasource.options import ReadOptions
from epochlake.metastore.errors import UnknownFormat
from epochlake.metastore.following import history
from epochlake.metastore.log.entry import Entry
from epochlake.metastore.log.files import SCHEMA
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.tables.columns import SUMMARY
from epochlake.metastore.tables.metadata import parts_of
from epochlake.placement.dataframes.frames import schema_of
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.near_names import nearest
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

LOG = "log"


class MetadataReader(DataSourceReader):
    """Reads a table of the metadata, in one task."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """One: all of it. Here it is decided which epoch is the newest: a task that is tried again shows the same."""
        with as_spark_says():
            return [InputPartition(epoch_of(self._options))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows."""
        with as_spark_says():
            yield from table_of(self._options, partition.value).to_batches()


def epoch_of(options: ReadOptions) -> int:
    """The epoch that is asked for; without one the newest. Raises InvalidRequest for one that is not in the log."""
    with options.open() as cluster:
        newest = cluster.catch_up().epoch
    if options.epoch is not None and options.epoch > newest:
        raise history.no_such_epoch(options.epoch, newest)
    return newest if options.epoch is None else options.epoch


def table_of(options: ReadOptions, epoch: int | None) -> pa.Table:
    """A table of the metadata as of an epoch, None: without rows. Raises InvalidRequest for an unknown name."""
    return plain(_table_of(options, epoch))


def metadata_schema(options: ReadOptions) -> StructType:
    """The columns of a table of the metadata. Raises InvalidRequest for an unknown name."""
    return schema_of(table_of(options, None).schema)


def log_between(options: ReadOptions, first: int, last: int) -> pa.Table:
    """The rows of `system.log` from one epoch to another."""
    with options.open() as cluster:
        return _log(history.entries(cluster.log(), first, last))


def plain(table: pa.Table) -> pa.Table:
    """A table without dictionaries: Spark has no such columns."""
    fields = [
        pa.field(field.name, field.type.value_type, field.nullable) if pa.types.is_dictionary(field.type) else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))


def _table_of(options: ReadOptions, epoch: int | None) -> pa.Table:
    name = options.metadata_table or ""
    if name == LOG:
        if epoch is None:
            return _log([])
        with options.open() as cluster:
            return _log(history.entries(cluster.log(), last=epoch))
    parts = parts_of(ClusterMetadata)
    if name not in parts:
        known = [f"system.{one}" for one in sorted([*parts, LOG])]
        near = nearest(options.table, known)
        meant = f"Did you mean {near!r}? " if near else ""
        raise InvalidRequest(
            f"the metadata has no table {options.table!r}", hint=f"{meant}There are {', '.join(known)}"
        )
    if epoch is None:
        return parts[name](ClusterMetadata.empty())
    with options.open() as cluster:
        log = cluster.log()
        return parts[name](history.metadata_at(log, cluster.snapshots, epoch))


def _log(entries: Sequence[Entry]) -> pa.Table:
    columns = {name: [getattr(entry, name) for entry in entries] for name in SCHEMA.names}
    rows = pa.table({name: pa.array(values, SCHEMA.field(name).type) for name, values in columns.items()}, SCHEMA)
    summaries = pa.array([_summary(entry) for entry in entries], pa.string())
    return rows.append_column(pa.field(SUMMARY, pa.string(), nullable=False), summaries)


def _summary(entry: Entry) -> str:
    try:
        return entry.decode().summary()
    except UnknownFormat:
        return entry.event
