"""A stream that cannot be read, for Spark to ask: where making a reader fails, Spark tells of an error of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Never

import pyarrow as pa
from epochlake.jobs.datasource.errors import EpochlakeSparkError
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit


class RefusedStream(DataSourceStreamReader):
    """Answers every question with the error for which there is no reader."""

    def __init__(self, error: EpochlakeSparkError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        """Raises the error, as all of them do."""
        self._refuse()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """See `initialOffset`: a stream that has a checkpoint begins here."""
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """See `initialOffset`: one that has a micro-batch to end begins here."""
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """See `initialOffset`."""
        self._refuse()

    def _refuse(self) -> Never:
        raise self._error
