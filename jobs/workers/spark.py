"""Workers in the executors of a Spark session: for many items, and where executors are nearer to the storage."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec
import pyarrow as pa
from epochlake.jobs.workers.pace import divided
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.placement.decoding import decodable
from epochlake.placement.errors import EpochlakeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

_ANSWERS = pa.schema([("number", pa.int64()), ("result", pa.string()), ("error", pa.binary())])
_ANSWERS_DDL = "number bigint, result string, error binary"


class TaskFailed(EpochlakeError):
    """A task raised an error in an executor that cannot be brought to another process; this is what it said."""


class SparkWorkers:
    """At most `partitions` tasks of Spark, each doing its items one after another; None: a task of Spark for each item.

    Executors use storage with the settings of this process. Spark does a task again when its executor is lost, so doing
    an item twice must be harmless. An error of the task itself is not tried again.
    """

    def __init__(self, spark: SparkSession, partitions: int | None = None) -> None:
        self._spark = spark
        self._partitions = partitions

    def run(self, task: Callable[[T], R], items: Iterable[T], *, returns: type[R]) -> list[R]:
        """See `Workers.run`; one Spark job."""
        asked = tuple(items)
        if not asked:
            return []
        partitions = self._partitions_of(asked)
        with divided(task, partitions) as share:
            answers = self._answers(partitions, share, asked)
        return [answer.result(returns) for answer in answers]

    def each(self, task: Callable[[T], R], items: Iterable[T], *, returns: type[R]) -> Iterator[tuple[T, R]]:
        """See `Workers.each`; a Spark job for each partition, and its results when it ends.

        The items of one job, fetched a partition at a time (`toLocalIterator`), would be done in two tasks at a time.
        """
        asked = tuple(items)
        partitions = self._partitions_of(asked)
        # Items next to each other are alike (the largest come first), so each partition gets some of all.
        slices = [asked[number::partitions] for number in range(partitions)]
        with divided(task, partitions) as share:
            for part, answers in ThreadWorkers(partitions).each(partial(self._answers, 1, share), slices):
                for item, answer in zip(part, answers, strict=True):
                    yield item, answer.result(returns)

    def _partitions_of(self, asked: Sequence[T]) -> int:
        return len(asked) if self._partitions is None else min(self._partitions, len(asked))

    def _answers(self, partitions: int, task: Callable[[T], R], asked: Sequence[T]) -> list[_Answer]:
        """What became of each item, in their order."""
        numbers = self._spark.range(0, len(asked), numPartitions=partitions)
        work = partial(_do_numbered, task, asked)
        rows = numbers.mapInArrow(work, _ANSWERS_DDL).toArrow().sort_by("number").to_pylist()
        return [_Answer(row["result"], row["error"]) for row in rows]


class _Answer(msgspec.Struct, frozen=True):
    """A result as JSON, or a pickled error."""

    encoded: str | None
    error: bytes | None

    def result(self, returns: type[R]) -> R:
        """Raises the error of the task."""
        if self.error is not None:
            raise pickle.loads(self.error)
        assert self.encoded is not None
        return msgspec.json.decode(self.encoded, type=decodable(returns))


def _do_numbered(
    task: Callable[[T], R], asked: Sequence[T], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: numbers of items in, answers out."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            answer = _attempt(task, asked[number])
            yield pa.RecordBatch.from_pydict(
                {"number": [number], "result": [answer.encoded], "error": [answer.error]}, schema=_ANSWERS
            )


def _attempt(task: Callable[[T], R], item: T) -> _Answer:
    try:
        return _Answer(msgspec.json.encode(task(item)).decode(), None)
    except Exception as error:
        return _Answer(None, _pickled(error))


def _pickled(error: Exception) -> bytes:
    """The error with the place where it was raised, which a pickle would forget."""
    where = "".join(traceback.format_exception(error))
    error.add_note(f"raised in an executor:\n{where}")
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception:
        # An error whose constructor asks for more than a message, or which holds what cannot be pickled.
        failed = TaskFailed(f"a task failed in an executor: {type(error).__name__}: {error}")
        failed.add_note(where)
        return pickle.dumps(failed)
    return pickled
