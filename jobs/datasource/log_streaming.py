"""The log of epochs as a stream: each epoch comes once, from any epoch on, whatever becomes of the log's files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from epochlake.jobs.datasource.errors import as_spark_says
from epochlake.jobs.datasource.metadata_reading import log_between
from epochlake.jobs.datasource.options import ReadOptions
from epochlake.metastore.following import history
from epochlake.placement.errors import InvalidRequest
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

EPOCH = "epoch"
HASH = "hash"

Offset = dict[str, int | str]


class Epochs(InputPartition):
    """The epochs after the first position, up to the second."""

    def __init__(self, after: Offset, up_to: Offset) -> None:
        super().__init__(None)
        self.after = after
        self.up_to = up_to


class LogStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are epochs: they are gapless, never change, and do not depend on versions of the log's table.

    With its epoch an offset has the hash of the entry there, which stands for all of the history before it. So a
    checkpoint that is continued on the log of another cluster, or on one that was reset to an older copy, is refused.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._last: int | None = None

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember the newest epoch: a query with `availableNow` ends there. See `ChangeStreamReader`."""
        with as_spark_says(), self._options.open() as cluster:
            self._last = cluster.catch_up().epoch

    def initialOffset(self) -> Offset:
        """Before the first epoch that is asked for."""
        return {EPOCH: max(0, (self._options.starting_epoch or 1) - 1)}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The newest epoch."""
        with as_spark_says(), self._options.open() as cluster:
            newest = cluster.catch_up().epoch
            first = int(start[EPOCH])
            if first > newest:
                if HASH in start:
                    raise _another_history(self._options, first)
                return start  # an epoch to come, which the option asks for
            if self._last is not None:
                newest = min(newest, max(self._last, first, 1))
            found = history.entries(cluster.log(), max(first, 1), newest)
            if first and found[0].hash != start.get(HASH, found[0].hash):
                raise _another_history(self._options, first)
            return {EPOCH: found[-1].epoch, HASH: found[-1].hash}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """One for all of them: there are few."""
        return [Epochs(start, end)] if int(end[EPOCH]) > int(start[EPOCH]) else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of `system.log`."""
        assert isinstance(partition, Epochs)
        after, up_to = partition.after, partition.up_to
        with as_spark_says():
            found = log_between(self._options, int(after[EPOCH]) + 1, int(up_to[EPOCH]))
            before, last = found["previous_hash"][0].as_py(), found["hash"][-1].as_py()
            if before != after.get(HASH, before) or last != up_to.get(HASH, last):
                raise _another_history(self._options, int(up_to[EPOCH]))
            yield from found.to_batches()

    def commit(self, end: Offset) -> None:
        """Nothing is kept for a stream."""


def _another_history(options: ReadOptions, epoch: int) -> InvalidRequest:
    return InvalidRequest(
        f"the checkpoint of this stream of {options.table} is of another history: its epoch {epoch} is not in this log",
        hint="Name the root that the stream was begun with, or begin anew, with a checkpoint of its own",
    )
