"""One stream of a generation as Spark's source reads it, in this process: offsets, tasks, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from epochlake.jobs.administration.change_streams import ChangesKept, keep_changes
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.datasource.change_reading import (
    CHANGE_TYPE,
    ChangeReader,
    ChangeStreamReader,
    parts_of_the_tokens,
)
from epochlake.jobs.datasource.options import ReadOptions
from epochlake.jobs.datasource.source import EpochlakeDataSource
from epochlake.jobs.upkeep.change_generations import keep_divided
from epochlake.metastore.committing.changes import Call
from epochlake.metastore.metadata.events import DecideResize, FinishResize
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.tablets.resizing import Resize
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tests.support.changes import FLIGHTS, alone, flights, rows, stream_of, told
from tests.support.clusters import SmallCluster

EIGHT = dict.fromkeys(range(8), "a")


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallCluster]:
    """A table of two tablets that keeps its changes, in streams; the source opens its cluster."""
    alone(monkeypatch)
    with flights(tmp_path, 2) as small:

        def opened(_: ReadOptions) -> AbstractContextManager[Cluster]:
            return nullcontext(small.cluster)

        monkeypatch.setattr(ReadOptions, "open", opened)
        keep_changes(small.cluster, FLIGHTS)
        keep_divided(small.cluster, stream_of(small))
        small.cluster.write(FLIGHTS, rows(EIGHT))
        yield small


def split(small: SmallCluster) -> None:
    """The table has four tablets, and the changes another generation."""
    table_id = small.table.table_id
    small.cluster.commit(DecideResize(table_id, Resize.SPLIT, 1))
    small.cluster.commit(FinishResize(table_id, 1))
    assert keep_divided(small.cluster, stream_of(small)).published


def schema(*, before: bool = False) -> StructType:
    """What Spark says that the source has told of itself."""
    row = [StructField("id", LongType()), StructField("note", StringType())]
    return StructType([*row, *CHANGE_TYPE.fields, *([StructField("_before", StructType(row))] if before else [])])


def source(generation: int, stream: int, **options: object) -> EpochlakeDataSource:
    asked = {"generation": generation, "stream": stream, **options}
    return EpochlakeDataSource({"path": FLIGHTS, "changes": "true"} | {name: str(one) for name, one in asked.items()})


def batch(generation: int, stream: int, **options: object) -> list[dict[str, Any]]:
    """The rows that a batch has."""
    asked = source(generation, stream, **options)
    reader = asked.reader(schema(before="before" in options))
    assert isinstance(reader, ChangeReader)
    return [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]


def streaming(generation: int, stream: int, **options: object) -> ChangeStreamReader:
    asked = source(generation, stream, **options)
    reader = asked.streamReader(schema())
    assert isinstance(reader, ChangeStreamReader)
    return reader


def between(reader: ChangeStreamReader, start: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
    """The keys that a micro-batch from an offset on has, and where it ends."""
    end = reader.latestOffset(start, ReadAllAvailable())
    tasks = reader.partitions(start, end)
    return sorted(row["id"] for task in tasks for batch in reader.read(task) for row in batch.to_pylist()), end


def test_streams_of_a_generation_have_each_change_once_and_end_where_it_does(kept: SmallCluster) -> None:
    ids = [sorted(key for _, key, _ in told(kept, generation=1, stream=stream)) for stream in (0, 1)]
    assert all(ids)
    reader = streaming(1, 0)
    found, end = between(reader, reader.initialOffset())
    assert found == ids[0]
    split(kept)
    kept.cluster.write(FLIGHTS, rows(dict.fromkeys(range(8), "b")))
    for stream in (0, 1):
        first = batch(1, stream)
        assert sorted((row["id"], row["note"]) for row in first) == [(one, "a") for one in ids[stream]]
        assert sorted(row["id"] for row in batch(1, stream, after=0, upTo=first[0]["_position"])) == ids[stream]
    rest, ended = between(reader, end)
    assert rest == []
    assert reader.latestOffset(ended, ReadAllAvailable()) == ended, "the generation has ended"
    second = [row for stream in range(4) for row in batch(2, stream, before="true")]
    assert sorted((row["id"], row["note"], row["_before"]["note"]) for row in second) == [
        (one, "b", "a") for one in range(8)
    ]
    others = [streaming(2, stream) for stream in range(4)]
    assert sorted(key for one in others for key in between(one, one.initialOffset())[0]) == [*range(8)]
    assert batch(1, 0, after=ended["position"] + 1) == [], "what comes after it is of the next one"


def test_a_checkpoint_of_one_stream_is_refused_for_another(kept: SmallCluster) -> None:
    start = streaming(1, 0).initialOffset()
    end = streaming(1, 0).latestOffset(start, ReadAllAvailable())
    with pytest.raises(PySparkException, match=r"is of the changes of air\.flights in stream 0 of generation 1,"):
        streaming(1, 1).latestOffset(start, ReadAllAvailable())
    with pytest.raises(PySparkException, match="is those in stream 1 of generation 1"):
        streaming(1, 1).partitions(start, end)
    assert streaming(1, 0, reader="r").partitions(start, end)
    asked = EpochlakeDataSource({"path": FLIGHTS, "changes": "true"})
    with pytest.raises(PySparkException, match="is those in all streams"):
        asked.streamReader(schema()).latestOffset(start, ReadAllAvailable())


def test_a_reader_of_one_stream_is_refused_another_before_it_reads(kept: SmallCluster) -> None:
    first = streaming(1, 0, reader="r")
    first.commit(first.latestOffset(first.initialOffset(), ReadAllAvailable()))
    other = streaming(1, 1, reader="r")
    said = "reader r has read stream 0 of generation 1 up to position"
    with pytest.raises(PySparkException, match=said):
        other.initialOffset()
    with pytest.raises(PySparkException, match=said):
        other.commit(first.initialOffset())
    kept.cluster.write(FLIGHTS, rows(EIGHT))
    split(kept)
    with pytest.raises(PySparkException, match="Let it come to the end of the generation before"):
        streaming(2, 0, reader="r").initialOffset()


@pytest.mark.parametrize(("generation", "stream"), [(1, 2), (2, 0), (9, 0)])
def test_a_stream_that_there_is_not_is_refused(kept: SmallCluster, generation: int, stream: int) -> None:
    said = f"have no stream {stream} of generation {generation}"
    with pytest.raises(PySparkException, match=said):
        batch(generation, stream)
    with pytest.raises(PySparkException, match=said):
        streaming(generation, stream).initialOffset()


def test_parts_of_a_range_of_tokens_have_each_token_once() -> None:
    for count, of in ((3, (-5, 4)), (7, (0, 2)), (32, (MIN_TOKEN, -1)), (1, (MIN_TOKEN, MAX_TOKEN))):
        parts = parts_of_the_tokens(count, of)
        assert (parts[0][0], parts[-1][1]) == of
        assert all(low <= high for low, high in parts)
        assert all(one[1] + 1 == other[0] for one, other in pairwise(parts))


def test_a_root_in_an_object_store_keeps_no_changes(kept: SmallCluster) -> None:
    call = Call("r", kept.cluster.storage, root="s3://bucket/root")
    with pytest.raises(InvalidRequest, match="below a root on a file system, and this one is s3://bucket/root"):
        ChangesKept(FLIGHTS).plan(kept.cluster.catch_up(), call)
