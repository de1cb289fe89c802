"""Every part of the cluster metadata as a Spark DataFrame, at any epoch (design, section 6).

The metadata is small beside the data and is here already, so a DataFrame is made of the Arrow tables of
`metastore/tables/metadata.py`; no job runs for it, and it is the same on a classic session and on Spark Connect. Only
the history is read by Spark itself: it is the log's own Delta table, as long as the cluster is old.

    frames = MetadataFrames(spark, cluster)
    frames.tablets.groupBy("table").count()
    frames.at(17).nodes
    frames.diff(3, 17)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import pyarrow as pa
from epochlake.metastore.committing.arguments import require_epoch_number
from epochlake.metastore.errors import UnknownFormat
from epochlake.metastore.following.history import metadata_at
from epochlake.metastore.following.snapshots import Snapshots
from epochlake.metastore.log.entry import decode_event
from epochlake.metastore.log.files import SCHEMA
from epochlake.metastore.log.log_place import LogPlace
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.tables import metadata as tables
from epochlake.metastore.tables.columns import EPOCH, SUMMARY
from epochlake.placement.dataframes.frames import frame_of
from epochlake.placement.errors import InvalidRequest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType


def nodes(spark: SparkSession, metadata: ClusterMetadata) -> DataFrame:
    """A row for each node, those that left included: `columns.NODES_SCHEMA`."""
    return frame_of(spark, tables.nodes(metadata))


def volumes(spark: SparkSession, metadata: ClusterMetadata) -> DataFrame:
    """A row for each volume: `columns.VOLUMES_SCHEMA`."""
    return frame_of(spark, tables.volumes(metadata))


def keyspaces(spark: SparkSession, metadata: ClusterMetadata) -> DataFrame:
    """A row for each keyspace: `columns.KEYSPACES_SCHEMA`."""
    return frame_of(spark, tables.keyspaces(metadata))


def table_definitions(spark: SparkSession, metadata: ClusterMetadata) -> DataFrame:
    """A row for each table: `columns.TABLES_SCHEMA`."""
    return frame_of(spark, tables.tables(metadata))


def tablets(spark: SparkSession, metadata: ClusterMetadata) -> DataFrame:
    """A row for each tablet: `columns.TABLETS_SCHEMA`."""
    return frame_of(spark, tables.tablets(metadata))


def transitions(spark: SparkSession, metadata: ClusterMetadata) -> DataFrame:
    """A row for each tablet in transition: `columns.TRANSITIONS_SCHEMA`."""
    return frame_of(spark, tables.transitions(metadata))


def ring_ranges(spark: SparkSession, metadata: ClusterMetadata) -> DataFrame:
    """A row for each range of each ring keyspace: `columns.RING_RANGES_SCHEMA`."""
    return frame_of(spark, tables.ring_ranges(metadata))


def operations(spark: SparkSession, metadata: ClusterMetadata) -> DataFrame:
    """A row for each operation in flight on the ring: `columns.OPERATIONS_SCHEMA`."""
    return frame_of(spark, tables.operations(metadata))


def read_placements(spark: SparkSession, metadata: ClusterMetadata) -> DataFrame:
    """A row for each replica that serves reads of a tablet or ring range: `columns.READ_PLACEMENTS_SCHEMA`."""
    return frame_of(spark, tables.read_placements(metadata))


def write_placements(spark: SparkSession, metadata: ClusterMetadata) -> DataFrame:
    """A row for each replica that must get the writes of a tablet or ring range: `columns.WRITE_PLACEMENTS_SCHEMA`."""
    return frame_of(spark, tables.write_placements(metadata))


def requests(spark: SparkSession, metadata: ClusterMetadata) -> DataFrame:
    """A row for each topology request: `columns.REQUESTS_SCHEMA`."""
    return frame_of(spark, tables.requests(metadata))


def part(spark: SparkSession, metadata: ClusterMetadata, name: str) -> DataFrame:
    """A table of the metadata by its name, also one of a component that has no function here.

    Raises InvalidRequest, naming the tables that there are, for another name.
    """
    parts = tables.parts_of(type(metadata))
    if name not in parts:
        raise InvalidRequest(f"the metadata has no table {name!r} (tables: {', '.join(parts)})")
    return frame_of(spark, parts[name](metadata))


def diff(spark: SparkSession, before: ClusterMetadata, after: ClusterMetadata) -> DataFrame:
    """A row for each change from one version to another: `columns.CHANGES_SCHEMA`."""
    return frame_of(spark, tables.diff(before, after))


def history(spark: SparkSession, log: LogPlace, up_to: int | None = None) -> DataFrame:
    """The log's own Delta table (design, section 4) and `summary`, a line for people; up to an epoch when given.

    In no order: sort by `epoch`. An event that this version does not know is summed up by its kind.
    """
    rows = log.frame(spark).select(*SCHEMA.names)
    if up_to is not None:
        rows = rows.where(F.col(EPOCH) <= up_to)
    summed_up = StructType([*rows.schema.fields, StructField(SUMMARY, StringType(), nullable=False)])
    return rows.mapInArrow(_with_summaries, summed_up)


def _with_summaries(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        told = (batch[name].to_pylist() for name in ("epoch", "event", "payload", "attachment"))
        lines = [_summary(*row) for row in zip(*told, strict=True)]
        yield batch.append_column(SUMMARY, pa.array(lines, pa.string()))


def _summary(epoch: int, event: str, payload: str, attachment: bytes | None) -> str:
    try:
        return decode_event(event, payload, attachment, epoch=epoch).summary()
    except UnknownFormat:
        return event


class OpenCluster(Protocol):
    """What is needed of an open cluster (`epochlake.jobs.cluster.Cluster`)."""

    @property
    def log_place(self) -> LogPlace:
        """Where its log is."""
        ...

    @property
    def snapshots(self) -> Snapshots:
        """Its snapshots."""
        ...

    def catch_up(self) -> ClusterMetadata:
        """The newest committed metadata."""
        ...


class MetadataFrames:
    """The metadata of a cluster as DataFrames, for notebooks and jobs.

    Unpinned, each attribute shows the newest epoch at the moment when it is taken. `at(epoch)` and `now()` pin an
    epoch: take frames that are to be joined from one of these.
    """

    def __init__(self, spark: SparkSession, cluster: OpenCluster, *, pinned: ClusterMetadata | None = None) -> None:
        self._spark = spark
        self._cluster = cluster
        self._pinned = pinned

    def at(self, epoch: int) -> MetadataFrames:
        """The same as of `epoch`. Raises InvalidRequest, naming the epochs that are there, for one that is not."""
        return MetadataFrames(self._spark, self._cluster, pinned=self._metadata_at(epoch))

    def now(self) -> MetadataFrames:
        """The same, pinned to the newest epoch."""
        return MetadataFrames(self._spark, self._cluster, pinned=self._cluster.catch_up())

    @property
    def metadata(self) -> ClusterMetadata:
        """What the frames are made of."""
        return self._pinned if self._pinned is not None else self._cluster.catch_up()

    @property
    def epoch(self) -> int:
        """The epoch that the frames show."""
        return self.metadata.epoch

    @property
    def nodes(self) -> DataFrame:
        """A row for each node, those that left included."""
        return nodes(self._spark, self.metadata)

    @property
    def volumes(self) -> DataFrame:
        """A row for each volume; capacities are bytes."""
        return volumes(self._spark, self.metadata)

    @property
    def keyspaces(self) -> DataFrame:
        """A row for each keyspace."""
        return keyspaces(self._spark, self.metadata)

    @property
    def tables(self) -> DataFrame:
        """A row for each table."""
        return table_definitions(self._spark, self.metadata)

    @property
    def tablets(self) -> DataFrame:
        """A row for each tablet of each table."""
        return tablets(self._spark, self.metadata)

    @property
    def transitions(self) -> DataFrame:
        """A row for each tablet in transition."""
        return transitions(self._spark, self.metadata)

    @property
    def ring_ranges(self) -> DataFrame:
        """A row for each range of each ring keyspace."""
        return ring_ranges(self._spark, self.metadata)

    @property
    def operations(self) -> DataFrame:
        """A row for each operation in flight on the ring."""
        return operations(self._spark, self.metadata)

    @property
    def read_placements(self) -> DataFrame:
        """A row for each replica that serves reads of a tablet or ring range."""
        return read_placements(self._spark, self.metadata)

    @property
    def write_placements(self) -> DataFrame:
        """A row for each replica that must get the writes of a tablet or ring range."""
        return write_placements(self._spark, self.metadata)

    @property
    def requests(self) -> DataFrame:
        """A row for each topology request."""
        return requests(self._spark, self.metadata)

    @property
    def history(self) -> DataFrame:
        """Every entry up to the epoch of these frames, sorted."""
        return history(self._spark, self._cluster.log_place, self.epoch).sort(EPOCH)

    def part(self, name: str) -> DataFrame:
        """A table of the metadata by its name: `nodes`, `tablets`, … Raises InvalidRequest for another name."""
        return part(self._spark, self.metadata, name)

    def diff(self, epoch_a: int, epoch_b: int) -> DataFrame:
        """What changed from one epoch to another."""
        return diff(self._spark, self._metadata_at(epoch_a), self._metadata_at(epoch_b))

    def _metadata_at(self, epoch: int) -> ClusterMetadata:
        require_epoch_number(epoch)
        # A handle of its own: see metastore/following/history.py.
        return metadata_at(self._cluster.log_place.open(), self._cluster.snapshots, epoch)
