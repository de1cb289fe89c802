"""How big every replica of a tablet is, measured by a Spark job: what balancing and resizing decide from.

A replica table's own log says how many bytes each of its files has, so a task opens a table and adds up,
and reads no data. Volumes that do not answer have no rows in the answer: not measured is not empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
from epochlake.jobs.coordinator.loads import bytes_by_tablet
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.replica import ReplicaAddress, open_snapshot
from epochlake.metastore import storage
from epochlake.metastore.configuration import StorageSettings, TabletSettings
from epochlake.metastore.errors import StorageUnavailable, WrongCluster
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import NodeState, VolumeId
from epochlake.metastore.planning.balancing import Loads
from epochlake.placement.dataframes.frames import frame_of
from epochlake.placement.dataframes.resizing import resizes
from epochlake.placement.tablets.resizing import Goal
from epochlake.placement.tablets.tablet_map import NO_REPLICA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 64
_SIZES = pa.schema(
    [("table_id", pa.string()), ("tablet", pa.int32()), ("volume_id", pa.int32()), ("bytes", pa.int64())]
)


class _Place(msgspec.Struct, frozen=True, eq=False):
    """A replica table, and the tablets that it is a replica of among `count`."""

    address: ReplicaAddress
    count: int
    tablets: np.ndarray


def tablet_sizes(spark: SparkSession, metadata: ClusterMetadata) -> DataFrame:
    """(table_id, tablet, volume_id, bytes) of each replica of a tablet whose replica table answers, empty ones too."""
    from epochlake.placement.dataframes.frames import (
        schema_of,  # only here: commands that start no Spark must not pay for it
    )

    places = _places(metadata)
    task = partial(_measure_numbered, places, storage.used_settings())
    numbers = spark.range(0, len(places), numPartitions=max(1, min(PARTITIONS, len(places))))
    return numbers.mapInArrow(task, schema_of(_SIZES))


def planned_resizes_frame(spark: SparkSession, metadata: ClusterMetadata, settings: TabletSettings) -> DataFrame:
    """What should be split and merged, decided from sizes that Spark measures: see `resizes`."""
    rows = [
        {
            "table_id": table_id,
            "count": tablet_map.count,
            "replicas": int((tablet_map.to_array() != NO_REPLICA).sum()) // tablet_map.count,
            "target_bytes": metadata.schema.tables[table_id].options.target_bytes or settings.target_bytes,
            "min_count": metadata.schema.tables[table_id].options.min_count,
            "max_count": metadata.schema.tables[table_id].options.max_count,
            "resize_type": tablet_map.resize_type,
        }
        for table_id, tablet_map in sorted(metadata.tablets.maps.items())
    ]
    numbers = ("count", "replicas", "target_bytes", "min_count", "max_count")
    schema = pa.schema(
        [("table_id", pa.string()), *[(name, pa.int64()) for name in numbers], ("resize_type", pa.string())]
    )
    tables = frame_of(spark, pa.Table.from_pylist(rows, schema))
    volumes = sum(len(n.volumes) for n in metadata.directory.nodes.values() if n.state is NodeState.NORMAL)
    return resizes(tables, tablet_sizes(spark, metadata), Goal(settings.per_volume, volumes))


def measure_loads_by_spark(spark: SparkSession, metadata: ClusterMetadata) -> Loads:
    """As `measure_loads` of the coordinator, measured by executors."""
    found = tablet_sizes(spark, metadata).toArrow()
    keys = zip(*(found[name].to_pylist() for name in ("table_id", "tablet", "volume_id")), strict=True)
    sizes = dict(zip(keys, found["bytes"].to_pylist(), strict=True))
    measured = {(table_id, volume) for table_id, _, volume in sizes}
    asked = {(place.address.table_id, place.address.volume_id) for place in _places(metadata)}
    return Loads(sizes, frozenset(volume for _, volume in asked - measured))


def _places(metadata: ClusterMetadata) -> list[_Place]:
    found = []
    for table_id, tablet_map in sorted(metadata.tablets.maps.items()):
        for volume in sorted(set(tablet_map.to_array().ravel().tolist()) - {NO_REPLICA}):
            if _may_answer(metadata, volume):
                address = address_of(metadata, metadata.schema.tables[table_id], volume)
                found.append(_Place(address, tablet_map.count, tablet_map.tablets_on([volume]).astype(np.int32)))
    return found


def _may_answer(metadata: ClusterMetadata, volume: VolumeId) -> bool:
    return metadata.directory.node_of_volume[volume].state is not NodeState.LEFT


def _measure_numbered(
    places: Sequence[_Place], settings: StorageSettings, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    storage.use_settings(settings)
    for batch in batches:
        for number in batch.column(0).to_pylist():
            place = places[number]
            try:
                sizes = bytes_by_tablet(open_snapshot(place.address).all_files.values(), place.count)
            except (StorageUnavailable, WrongCluster):
                continue
            rows = len(place.tablets)
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([place.address.table_id] * rows, pa.string()),
                    pa.array(place.tablets, pa.int32()),
                    pa.array([place.address.volume_id] * rows, pa.int32()),
                    pa.array([sizes.get(tablet, 0) for tablet in place.tablets.tolist()], pa.int64()),
                ],
                schema=_SIZES,
            )
