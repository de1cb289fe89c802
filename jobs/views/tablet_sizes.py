"""How big every replica of a tablet is, measured by a Spark job: what balancing and resizing decide from.

Volumes that do not answer have no rows in the answer: not measured is not empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from epochlake.jobs.coordinator.loads import MEASURING_PARTITIONS, measure_tablets
from epochlake.jobs.workers.spark import SparkWorkers
from epochlake.metastore.configuration import TabletSettings
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import NodeState
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.dataframes.frames import frame_of
from epochlake.placement.dataframes.resizing import resizes
from epochlake.placement.tablets.resizing import Goal
from epochlake.placement.tablets.tablet_map import NO_REPLICA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SIZES = pa.schema(
    [("table_id", pa.string()), ("tablet", pa.int32()), ("volume_id", pa.int32()), ("bytes", pa.int64())]
)


def tablet_sizes(spark: SparkSession, storage: Storage, metadata: ClusterMetadata) -> DataFrame:
    """(table_id, tablet, volume_id, bytes) of each replica of a tablet whose replica table answers, empty ones too.

    Measured now, once: the frame is what was found.
    """
    parts = []
    for address, measured in measure_tablets(storage, metadata, SparkWorkers(spark, MEASURING_PARTITIONS)):
        if measured.sizes is None:
            continue
        tablets = metadata.tablets.maps[address.table_id].tablets_on([address.volume_id]).tolist()
        columns = {
            "table_id": [address.table_id] * len(tablets),
            "tablet": tablets,
            "volume_id": [address.volume_id] * len(tablets),
            "bytes": [measured.sizes.get(tablet, 0) for tablet in tablets],
        }
        parts.append(pa.Table.from_pydict(columns, _SIZES))
    return frame_of(spark, pa.concat_tables([_SIZES.empty_table(), *parts]))


def planned_resizes_frame(
    spark: SparkSession, storage: Storage, metadata: ClusterMetadata, settings: TabletSettings
) -> DataFrame:
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
    return resizes(tables, tablet_sizes(spark, storage, metadata), Goal(settings.per_volume, volumes))
