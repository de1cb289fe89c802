"""The log of epochs as a stream: each epoch comes once, from any epoch on, whatever becomes of the log's files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from epochlake.jobs.datasource.errors import as_spark_says
from epochlake.jobs.datasource.metadata_reading import log_between
from epochlake.jobs.datasource.options import ReadOptions
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

EPOCH = "epoch"


class Epochs(InputPartition):
    """The epochs after the first number, up to the second."""

    def __init__(self, after: int, up_to: int) -> None:
        super().__init__(None)
        self.after = after
        self.up_to = up_to


class LogStream(DataSourceStreamReader):
    """Offsets are epochs: they are gapless, never change, and do not depend on versions of the log's table."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def initialOffset(self) -> dict[str, int]:
        """Before the first epoch that is asked for."""
        return {EPOCH: max(0, (self._options.starting_epoch or 1) - 1)}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """The newest epoch."""
        with as_spark_says(), self._options.open() as cluster:
            return {EPOCH: cluster.catch_up().epoch}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """One for all of them: there are few."""
        return [Epochs(start[EPOCH], end[EPOCH])] if end[EPOCH] > start[EPOCH] else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of `system.log`."""
        assert isinstance(partition, Epochs)
        with as_spark_says():
            yield from log_between(self._options, partition.after + 1, partition.up_to).to_batches()

    def commit(self, end: dict[str, int]) -> None:
        """Nothing is kept for a stream."""
