"""Change streams over real Delta tables: what is in them, in which order, and what becomes of writes that die."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import deltalake
import msgspec
import numpy as np
import pyarrow as pa
import pytest
from epochlake.jobs import administration
from epochlake.jobs.administration import create_keyspace, create_table, rename_keyspace
from epochlake.jobs.administration.change_streams import drop_changes, keep_changes
from epochlake.jobs.agent.following import _streams
from epochlake.jobs.agent.metrics import _change_streams
from epochlake.jobs.cli.text.change_streams import in_short
from epochlake.jobs.datasource.change_reading import ChangeReader, ChangeStreamReader
from epochlake.jobs.datasource.given_schema import Given
from epochlake.jobs.datasource.log_streaming import LogStream
from epochlake.jobs.datasource.options import ReadOptions, read_options
from epochlake.jobs.gate import change_recording, commit_phase
from epochlake.jobs.gate.arrow_rows import rows_to_write
from epochlake.jobs.gate.change_recording import ChangeNotKept
from epochlake.jobs.gate.errors import ConsistencyNotReached
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.replicas.change_index import ChangeIndex, ChangesGone
from epochlake.jobs.replicas.change_intents import Intents
from epochlake.jobs.replicas.change_readers import Readers
from epochlake.jobs.upkeep import change_settling
from epochlake.jobs.upkeep.change_streams import drop_old, keep_up, settle
from epochlake.jobs.upkeep.compaction import compact
from epochlake.jobs.views.change_streams import stream_statuses
from epochlake.jobs.views.status import status
from epochlake.metastore.errors import Rejected, StorageUnavailable
from epochlake.placement.consistency import ConsistencyLevel
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.rejections import Code
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, SupportsTriggerAvailableNow
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType, TimestampType

from tests.support.changes import (
    FLIGHTS,
    aged,
    alone,
    applied,
    flights,
    index_of,
    rows,
    shown,
    staged_by,
    stream_of,
    told,
)
from tests.support.clusters import SmallCluster


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    alone(monkeypatch)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SmallCluster]:
    with flights(tmp_path, 8) as small:
        yield small


@pytest.fixture
def kept(cluster: SmallCluster) -> SmallCluster:
    keep_changes(cluster.cluster, FLIGHTS)
    return cluster


def test_every_change_comes_once_in_order_with_its_kind_row_and_time(kept: SmallCluster) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a", 2: "b"}))
    kept.cluster.write(FLIGHTS, rows({1: "c"}))
    kept.cluster.delete(FLIGHTS, [{"id": 2}])
    found = told(kept)
    assert sorted(found[:2]) == [("upsert", 1, "a"), ("upsert", 2, "b")]
    assert found[2:] == [("upsert", 1, "c"), ("delete", 2, None)]
    batches = list(kept.cluster.changes(FLIGHTS))
    times = [time for batch in batches for time in batch.column("_written_at").to_pylist()]
    assert times == sorted(times)
    assert len(set(times)) == 3


def test_a_table_without_a_stream_has_none(cluster: SmallCluster) -> None:
    cluster.cluster.write(FLIGHTS, rows({1: "a"}))
    with pytest.raises(Rejected, match="are not kept"):
        cluster.cluster.changes(FLIGHTS)
    assert not (Path(cluster.cluster.root.uri) / "changes").exists()


def test_what_was_written_before_is_in_the_table_and_not_in_the_stream(cluster: SmallCluster) -> None:
    cluster.cluster.write(FLIGHTS, rows({1: "before"}))
    position = keep_changes(cluster.cluster, FLIGHTS).position
    assert shown(cluster) == {1: "before"}
    cluster.cluster.write(FLIGHTS, rows({2: "after"}))
    assert told(cluster, after=position) == [("upsert", 2, "after")]


def test_a_batch_that_is_tried_again_is_in_the_stream_once(kept: SmallCluster) -> None:
    for _ in range(3):
        kept.cluster.write(FLIGHTS, rows({1: "a", 2: "b"}), batch="monday")
    assert sorted(told(kept)) == [("upsert", 1, "a"), ("upsert", 2, "b")]


def test_whatever_becomes_of_the_replicas_files_the_changes_stay(kept: SmallCluster) -> None:
    for number in range(9):
        kept.cluster.write(FLIGHTS, rows({1: f"v{number}", 100 + number: "x"}), consistency="ALL")
    assert compact(kept.cluster, FLIGHTS).compacted
    found = told(kept)
    assert [note for _, key, note in found if key == 1] == [f"v{number}" for number in range(9)]
    assert len(found) == 18


def test_anybody_can_read_the_index_as_a_delta_table(kept: SmallCluster) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a", 2: "b"}))
    table = deltalake.DeltaTable(index_of(kept).uri)
    found = table.to_pyarrow_table().to_pylist()
    assert {(row["id"], row["note"], row["_deleted"]) for row in found} == {(1, "a", False), (2, "b", False)}


def test_an_older_write_that_comes_second_is_late_and_who_leaves_it_out_has_what_reads_show(kept: SmallCluster) -> None:
    with Gate(kept.cluster, "slow") as slow:
        staged = staged_by(slow, kept, {1: "older", 2: "alone"})
        kept.cluster.write(FLIGHTS, rows({1: "newer"}))
        slow.writing.land(kept.table, staged, ConsistencyLevel.QUORUM)
    found = told(kept)
    assert sorted(found) == [("upsert", 1, "newer"), ("upsert", 2, "alone"), ("upsert late", 1, "older")]
    assert applied(found) == shown(kept) == {1: "newer", 2: "alone"}
    assert told(kept, late=False) == [("upsert", 1, "newer"), ("upsert", 2, "alone")]


def test_a_write_that_died_before_it_was_in_the_index_is_found_there_once(kept: SmallCluster) -> None:
    with (
        patch.object(change_recording.ChangeIndex, "append", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        kept.cluster.write(FLIGHTS, rows({1: "a"}))
    assert shown(kept) == {1: "a"}
    assert told(kept) == []
    assert settle(kept.cluster, stream_of(kept)) == (1, 0, 0)
    assert told(kept) == [("upsert", 1, "a")]
    assert settle(kept.cluster, stream_of(kept)) == (0, 0, 0)


def test_a_writer_is_never_told_of_success_before_its_change_is_kept(kept: SmallCluster) -> None:
    away = StorageUnavailable("the root is away")
    with (
        patch.object(change_recording.ChangeIndex, "append", side_effect=away),
        pytest.raises(ChangeNotKept, match="has reached its level"),
    ):
        kept.cluster.write(FLIGHTS, rows({1: "a"}), batch="b")
    assert kept.cluster.write(FLIGHTS, rows({1: "a"}), batch="b").already
    assert told(kept) == [("upsert", 1, "a")]
    settle(kept.cluster, stream_of(kept))
    assert told(kept) == [("upsert", 1, "a")]


@pytest.mark.parametrize("batch", [None, "named"])
def test_nothing_lands_that_could_not_be_kept(kept: SmallCluster, batch: str | None) -> None:
    away = StorageUnavailable("the root is full")
    with patch.object(Intents, "_announce", side_effect=away), pytest.raises(StorageUnavailable, match="full"):
        kept.cluster.write(FLIGHTS, rows({1: "a"}), batch=batch)
    assert shown(kept) == {}
    assert told(kept) == []


def test_a_failed_write_that_reads_may_show_is_brought_into_the_stream(kept: SmallCluster) -> None:
    with Gate(kept.cluster, "unlucky") as gate:
        staged = staged_by(gate, kept, {1: "on A"})
    with kept.without("BC"):
        with pytest.raises(ConsistencyNotReached):
            gate.writing.land(kept.table, staged, ConsistencyLevel.QUORUM)
        assert settle(kept.cluster, stream_of(kept)) == (0, 0, 1)
        assert told(kept) == []
    assert settle(kept.cluster, stream_of(kept)) == (1, 0, 0)
    assert told(kept) == [("upsert", 1, "on A")]
    assert shown(kept) == {1: "on A"}


def test_a_failed_write_that_no_replica_has_is_forgotten_when_its_files_are_gone(kept: SmallCluster) -> None:
    killed = StorageUnavailable("this process")
    with patch.object(commit_phase.CommitPhase, "_round", side_effect=killed), pytest.raises(StorageUnavailable):
        kept.cluster.write(FLIGHTS, rows({1: "nowhere"}))
    assert settle(kept.cluster, stream_of(kept)) == (0, 0, 1)
    for path in kept.directory.rglob("*.parquet"):
        if "changes" not in path.parts and "_delta_log" not in path.parts:
            path.unlink()
    assert settle(kept.cluster, stream_of(kept)) == (0, 1, 0)
    assert told(kept) == []
    assert not list((Path(index_of(kept).uri) / "data").iterdir())


def test_writes_of_processes_that_live_are_left_alone(kept: SmallCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with Gate(kept.cluster, "alive") as gate:
        with (
            patch.object(change_recording.ChangeIndex, "append", side_effect=KeyboardInterrupt),
            pytest.raises(KeyboardInterrupt),
        ):
            gate.write(rows_to_write(rows({1: "a"}), kept.table), kept.table, None, None)
        lease = type("L", (), {"pipeline_id": gate.pipeline_id})
        monkeypatch.setattr(change_settling, "live_leases", lambda cluster: [lease])
        assert settle(kept.cluster, stream_of(kept)) == (0, 0, 1)


def test_a_named_reader_goes_on_from_what_it_has_told_of(kept: SmallCluster) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    changes = kept.cluster.changes(FLIGHTS, reader="search")
    assert sum(batch.num_rows for batch in changes) == 1
    assert list(told(kept, reader="search")) == [("upsert", 1, "a")]
    changes.commit()
    kept.cluster.write(FLIGHTS, rows({2: "b"}))
    assert told(kept, reader="search") == [("upsert", 2, "b")]


def test_changes_are_kept_for_the_slowest_reader_up_to_the_limit_and_then_one_error_says_how_to_begin_again(
    kept: SmallCluster,
) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    slow = kept.cluster.changes(FLIGHTS, reader="slow")
    kept.cluster.write(FLIGHTS, rows({2: "b"}))
    assert drop_old(kept.cluster, aged(kept, 0.0, 3600.0)) == (0, 0)
    assert [note for _, _, note in told(kept)] == ["a", "b"]
    dropped, size = drop_old(kept.cluster, aged(kept, 0.0, 0.0))
    assert (dropped, size > 0) == (2, True)
    with pytest.raises(ChangesGone, match="not kept any more") as caught:
        list(slow)
    with pytest.raises(ChangesGone, match="read the whole table now"):
        kept.cluster.changes(FLIGHTS, reader="slow")
    kept.cluster.write(FLIGHTS, rows({3: "c"}))
    assert told(kept, after=caught.value.position) == [("upsert", 3, "c")]


def test_what_may_land_late_holds_back_what_it_is_compared_with(kept: SmallCluster) -> None:
    with (
        patch.object(change_recording.ChangeIndex, "append", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        kept.cluster.write(FLIGHTS, rows({1: "older"}))
    kept.cluster.write(FLIGHTS, rows({1: "newer"}))
    assert drop_old(kept.cluster, aged(kept, 0.0, 0.0)) == (0, 0)
    settle(kept.cluster, stream_of(kept))
    assert told(kept) == [("upsert", 1, "newer"), ("upsert late", 1, "older")]
    assert drop_old(kept.cluster, stream_of(kept))[0] == 2


def test_an_index_that_went_back_is_told_to_who_has_read_further(kept: SmallCluster, tmp_path: Path) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    changes = kept.cluster.changes(FLIGHTS, reader="r")
    list(changes)
    changes.commit()
    newest = max((Path(index_of(kept).uri) / "_delta_log").glob("*.json"))
    newest.unlink()
    kept.cluster.change_indexes._known.clear()
    kept.cluster.write(FLIGHTS, rows({1: "another"}))
    with pytest.raises(ChangesGone, match="went back"):
        kept.cluster.changes(FLIGHTS, reader="r")


def test_a_stream_ends_and_another_one_begins(kept: SmallCluster) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    drop_changes(kept.cluster, FLIGHTS)
    kept.cluster.write(FLIGHTS, rows({2: "unseen"}))
    keep_changes(kept.cluster, FLIGHTS)
    kept.cluster.write(FLIGHTS, rows({3: "c"}))
    assert told(kept) == [("upsert", 3, "c")]


def test_a_write_that_runs_while_the_stream_begins_is_written_anew_and_is_in_it(cluster: SmallCluster) -> None:
    with Gate(cluster.cluster, "slow") as slow:
        table = slow.planning.table(FLIGHTS)
        stage, staged = slow.writing._stage, []

        def stage_and_wait(*given: object, **named: object) -> object:
            found = stage(*given, **named)  # type: ignore[arg-type]
            if not staged:
                cluster.cluster.write(FLIGHTS, rows({1: "newer, before the stream"}))
                keep_changes(cluster.cluster, FLIGHTS)
            staged.append(found)
            return found

        with patch.object(slow.writing, "_stage", stage_and_wait):
            slow.write(rows_to_write(rows({1: "slow"}), table), table, None, None)
    assert len(staged) == 2
    assert applied(told(cluster)) == shown(cluster) == {1: "slow"}


def test_positions_and_readers_that_cannot_be_are_refused(kept: SmallCluster) -> None:
    with pytest.raises(ChangesGone, match="end at position"):
        kept.cluster.changes(FLIGHTS, after=99)
    with pytest.raises(Exception, match="cannot be called"):
        kept.cluster.changes(FLIGHTS, reader="../x")
    assert Readers(kept.cluster.storage, index_of(kept)).all() == []
    with pytest.raises(Rejected, match="so long already"):
        keep_changes(kept.cluster, FLIGHTS)
    with pytest.raises(InvalidRequest, match="cannot be kept"):
        administration.change_streams.keep_changes(kept.cluster, FLIGHTS, retention_seconds=-1)


NO_ARGUMENTS = (
    *({"after": one} for one in (True, 1.5, float("nan"), [1], b"2", 0, -1)),
    *({"up_to": one} for one in (True, 1.5, "3", 0)),
    {"reader": 5},
    {"reader": ""},
    *({name: one} for name in ("follow", "late", "before") for one in ("x", 1)),
)


@pytest.mark.parametrize("wrong", NO_ARGUMENTS, ids=str)
def test_arguments_that_cannot_be_meant_are_refused_before_anything_is_read(
    kept: SmallCluster, wrong: dict[str, Any]
) -> None:
    with (
        patch.object(kept.cluster, "catch_up", side_effect=AssertionError("it was read")),
        pytest.raises(InvalidRequest, match=r"cannot be read|cannot be called|'x'|is 1") as refused,
    ):
        kept.cluster.changes(FLIGHTS, **wrong)
    assert refused.value.hint


def test_positions_may_be_numbers_of_numpy_and_what_is_gone_is_said_of_the_table(kept: SmallCluster) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    begun = index_of(kept).begun()
    assert begun is not None
    assert begun.position == 1
    tail = np.int64(kept.cluster.changes_position(FLIGHTS))
    assert [*kept.cluster.changes(FLIGHTS, after=tail)] == []
    # A reader of a stream that has ended is told to begin again by the position 0.
    Readers(kept.cluster.storage, index_of(kept)).set("r", 0)
    with pytest.raises(ChangesGone, match=rf"the changes of {FLIGHTS} up to position 1 are not kept"):
        kept.cluster.changes(FLIGHTS, reader="r")


def test_what_a_late_change_is_compared_with_is_kept_as_long_as_it(kept: SmallCluster) -> None:
    with Gate(kept.cluster, "slow") as slow:
        staged = staged_by(slow, kept, {1: "older"})
        kept.cluster.write(FLIGHTS, rows({1: "newer"}))
        told(kept, reader="r")
        changes = kept.cluster.changes(FLIGHTS, reader="r")
        list(changes)
        changes.commit()
        slow.writing.land(kept.table, staged, ConsistencyLevel.QUORUM)
    assert drop_old(kept.cluster, aged(kept, 0.0, 3600.0)) == (0, 0)
    assert told(kept, reader="r") == [("upsert late", 1, "older")]


def offered(small: SmallCluster, **options: str) -> ReadOptions:
    settings = msgspec.json.encode(small.cluster.configuration).decode()
    return read_options({"path": FLIGHTS, "changes": "true", "settings": settings} | options)


def read_by_spark(reader: ChangeReader | ChangeStreamReader, tasks: Sequence[InputPartition]) -> list[pa.RecordBatch]:
    """What tasks read, each pickled on its way as Spark does."""
    return [batch for task in tasks for batch in reader.read(pickle.loads(pickle.dumps(task)))]


DECLARED = StructType(
    [
        *(StructField("id", LongType()), StructField("note", StringType()), StructField("_change", StringType())),
        *(StructField("_written_at", TimestampType()), StructField("_position", LongType())),
        StructField("_late", BooleanType()),
    ]
)
GIVEN = Given(DECLARED, by_user=False)


def test_a_stream_of_spark_has_each_change_once_between_its_offsets_however_often_it_asks(kept: SmallCluster) -> None:
    stream = ChangeStreamReader(offered(kept, reader="spark"), GIVEN)
    start = stream.initialOffset()
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    middle = stream.latestOffset(start, ReadAllAvailable())
    kept.cluster.write(FLIGHTS, rows({2: "b"}))
    end = stream.latestOffset(middle, ReadAllAvailable())
    for _ in range(2):
        first = read_by_spark(stream, stream.partitions(start, middle))
        assert [row["note"] for batch in first for row in batch.to_pylist()] == ["a"]
    assert first[0].schema == to_arrow_schema(DECLARED, timezone="UTC")
    second = read_by_spark(stream, stream.partitions(middle, end))
    assert [row["note"] for batch in second for row in batch.to_pylist()] == ["b"]
    assert stream.partitions(end, end) == []
    stream.commit(middle)
    [told_of] = Readers(kept.cluster.storage, index_of(kept)).all()
    assert (told_of.name, told_of.position) == ("spark", middle["position"])
    batch = ChangeReader(offered(kept, after=str(middle["position"])), GIVEN)
    assert [row["id"] for one in read_by_spark(batch, batch.partitions()) for row in one.to_pylist()] == [2]


def test_nothing_is_dropped_that_a_query_of_spark_has_not_read_from_its_beginning_on(kept: SmallCluster) -> None:
    """Spark commits a micro-batch when it plans the next one, and what a run has read last with the next run."""
    begun, over = ChangeStreamReader(offered(kept, reader="nightly"), GIVEN), aged(kept, 0.0, 3600.0)
    start = begun.initialOffset()
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    assert drop_old(kept.cluster, over) == (0, 0), "it has committed nothing yet"
    middle = begun.latestOffset(start, ReadAllAvailable())
    assert len(read_by_spark(begun, begun.partitions(start, middle))) == 1
    kept.cluster.write(FLIGHTS, rows({2: "b"}))
    begun.commit(middle)
    end = begun.latestOffset(middle, ReadAllAvailable())
    begun.commit(end)
    # An older copy of the checkpoint, and the same query before it has planned anything.
    for ask in (lambda of: of.latestOffset(middle, ReadAllAvailable()), lambda of: of.partitions(middle, end)):
        begun.commit(end)
        ask(ChangeStreamReader(offered(kept, reader="nightly"), GIVEN))
        [held] = Readers(kept.cluster.storage, index_of(kept)).all()
        assert held.position == middle["position"]
    assert drop_old(kept.cluster, over)[0] == 1, "what came before the copy"
    again = ChangeStreamReader(offered(kept, reader="nightly"), GIVEN)
    found = read_by_spark(again, again.partitions(middle, again.latestOffset(middle, ReadAllAvailable())))
    assert [row["note"] for batch in found for row in batch.to_pylist()] == ["b"]
    # What it has held once moves by commits alone: a query that goes on is not asked to hold again.
    again.commit(end)
    again.latestOffset(middle, ReadAllAvailable())
    [held] = Readers(kept.cluster.storage, index_of(kept)).all()
    assert held.position == end["position"]


def test_a_query_of_spark_that_begins_again_is_held_for_though_its_name_has_told_of_what_is_gone(
    kept: SmallCluster,
) -> None:
    first = ChangeStreamReader(offered(kept, reader="nightly"), GIVEN)
    first.initialOffset()
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    assert drop_old(kept.cluster, aged(kept, 0.0, 0.0))[0] == 1, "it was too slow"
    start = ChangeStreamReader(offered(kept, reader="nightly"), GIVEN).initialOffset()
    kept.cluster.write(FLIGHTS, rows({2: "b"}))
    assert drop_old(kept.cluster, aged(kept, 0.0, 3600.0)) == (0, 0)
    [held] = Readers(kept.cluster.storage, index_of(kept)).all()
    assert held.position == start["position"]


def test_a_run_of_spark_that_takes_what_is_available_ends_where_the_changes_ended_when_it_began(
    kept: SmallCluster,
) -> None:
    """For a source that does not say so Spark takes one micro-batch a run, which may be one that comes again."""
    run = ChangeStreamReader(offered(kept), GIVEN)
    assert isinstance(run, SupportsTriggerAvailableNow)
    start = run.initialOffset()
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    run.prepareForTriggerAvailableNow()
    kept.cluster.write(FLIGHTS, rows({2: "later"}))
    end = run.latestOffset(start, ReadAllAvailable())
    found = read_by_spark(run, run.partitions(start, end))
    assert [row["note"] for batch in found for row in batch.to_pylist()] == ["a"]
    assert run.latestOffset(end, ReadAllAvailable()) == end, "there is nothing more, for this run"
    # What an earlier run has planned beyond, before the root answered, stays.
    beyond = ChangeStreamReader(offered(kept), GIVEN).latestOffset(end, ReadAllAvailable())
    assert beyond["position"] > end["position"]
    assert run.latestOffset(beyond, ReadAllAvailable()) == beyond


def test_a_run_of_spark_over_the_log_ends_at_the_epoch_that_was_the_newest_when_it_began(kept: SmallCluster) -> None:
    settings = msgspec.json.encode(kept.cluster.configuration).decode()
    run = LogStream(read_options({"path": "system.log", "settings": settings}))
    assert isinstance(run, SupportsTriggerAvailableNow)
    run.prepareForTriggerAvailableNow()
    newest = kept.cluster.catch_up().epoch
    drop_changes(kept.cluster, FLIGHTS)
    end = run.latestOffset(run.initialOffset(), ReadAllAvailable())
    assert end["epoch"] == newest
    assert run.latestOffset(end, ReadAllAvailable()) == end
    [epochs] = run.partitions(run.initialOffset(), end)
    assert sum(batch.num_rows for batch in run.read(epochs)) == newest
    later = LogStream(read_options({"path": "system.log", "settings": settings}))
    beyond = later.latestOffset(end, ReadAllAvailable())
    assert beyond["epoch"] > newest
    assert run.latestOffset(beyond, ReadAllAvailable()) == beyond, "what an earlier run has planned stays"


def test_a_stream_of_spark_is_told_that_another_one_has_begun(kept: SmallCluster) -> None:
    stream = ChangeStreamReader(offered(kept), GIVEN)
    start = stream.initialOffset()
    drop_changes(kept.cluster, FLIGHTS)
    keep_changes(kept.cluster, FLIGHTS)
    with pytest.raises(PySparkRuntimeError, match="another one has begun"):
        stream.partitions(start, stream.latestOffset(start, ReadAllAvailable()))


def test_what_a_query_of_spark_has_read_of_a_stream_that_ended_is_no_place_in_the_next_one(kept: SmallCluster) -> None:
    """Spark commits what it has read last when another stream has begun beneath it, before it plans what comes next."""
    query = ChangeStreamReader(offered(kept, reader="nightly"), GIVEN)
    query.initialOffset()
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    end = query.latestOffset(query.initialOffset(), ReadAllAvailable())
    drop_changes(kept.cluster, FLIGHTS)
    keep_changes(kept.cluster, FLIGHTS)
    with pytest.raises(PySparkRuntimeError, match=r"EPOCHLAKE_CHANGES_GONE.*another one has begun"):
        query.commit(end)  # where the next stream has not come so far
    for number in range(end["position"] + 1):
        kept.cluster.write(FLIGHTS, rows({number: "of the next stream"}))
    with pytest.raises(PySparkRuntimeError, match=r"EPOCHLAKE_CHANGES_GONE.*another one has begun"):
        query.commit(end)
    [carried] = Readers(kept.cluster.storage, index_of(kept)).all()
    assert carried.position == 0
    with pytest.raises(ChangesGone):  # under this name nothing of the next stream is skipped unseen
        kept.cluster.changes(FLIGHTS, reader="nightly")


def test_what_a_query_of_spark_has_read_beyond_a_root_that_went_back_is_not_told_of(kept: SmallCluster) -> None:
    query = ChangeStreamReader(offered(kept, reader="nightly"), GIVEN)
    start = query.initialOffset()
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    end = query.latestOffset(start, ReadAllAvailable())
    for lost in ({"position": end["position"] + 1}, {"write": "another write"}):
        with pytest.raises(PySparkRuntimeError, match=r"EPOCHLAKE_CHANGES_GONE.*it went back"):
            query.commit({**end, **lost})
    [held] = Readers(kept.cluster.storage, index_of(kept)).all()
    assert held.position == start["position"]


def test_a_stream_of_spark_goes_on_under_the_new_name_of_its_keyspace_and_is_told_it(kept: SmallCluster) -> None:
    cluster, moved = kept.cluster, "sky.flights"
    before = ChangeStreamReader(offered(kept), GIVEN)
    start = before.initialOffset()
    cluster.write(FLIGHTS, rows({1: "old name"}))
    middle = before.latestOffset(start, ReadAllAvailable())
    rename_keyspace(cluster, "air", "sky")
    cluster.write(moved, rows({2: "new name"}))
    with pytest.raises(PySparkRuntimeError, match=f"use {moved}"):
        before.latestOffset(middle, ReadAllAvailable())
    create_keyspace(cluster, "air", {"dc1": 3})
    create_table(cluster, FLIGHTS, [("id", "bigint", False), ("note", "string", True)], ["id"], tablets=1)
    keep_changes(cluster, FLIGHTS)
    keep_up(cluster, cluster.catch_up().change_streams.by_table[cluster.table(FLIGHTS).table_id])
    cluster.write(FLIGHTS, rows({3: "of another table"}))
    with pytest.raises(PySparkRuntimeError, match=f"is that of {moved} by now.*read {moved}"):
        before.partitions(middle, before.latestOffset(middle, ReadAllAvailable()))
    after = ChangeStreamReader(offered(kept, path=moved), GIVEN)
    found = read_by_spark(after, after.partitions(middle, after.latestOffset(middle, ReadAllAvailable())))
    assert [row["note"] for batch in found for row in batch.to_pylist()] == ["new name"]


def test_options_of_changes_are_refused_where_they_say_nothing() -> None:
    for options, said in (
        ({"after": "3"}, "is for changes"),
        ({"changes": "yes"}, "true or false"),
        ({"changes": "true", "after": "-1"}, "no position"),
        ({"changes": "true", "where": "id = 1"}, "cannot be read with"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            read_options({"path": FLIGHTS, **options})


def test_changes_are_told_as_the_table_is_now_and_a_name_that_is_used_again_shows_nothing_of_before(
    kept: SmallCluster,
) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "secret"}), consistency="ALL")
    kept.cluster.delete(FLIGHTS, [{"id": 1}], consistency="ALL")
    administration.alter_table(kept.cluster, FLIGHTS, drop=["note"], rename={"id": "key"})
    administration.alter_table(kept.cluster, FLIGHTS, add=["note string default 'none'"])
    kept.cluster.write(FLIGHTS, pa.table({"key": [3], "note": ["fresh"]}), consistency="ALL")
    read = [row for batch in kept.cluster.changes(FLIGHTS) for row in batch.to_pylist()]
    assert [(row["_change"], row["key"], row["note"]) for row in read] == [
        ("upsert", 1, "none"),
        ("delete", 1, None),
        ("upsert", 3, "fresh"),
    ]


def test_changes_have_the_columns_that_the_table_has_now(kept: SmallCluster) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    administration.alter_table(kept.cluster, FLIGHTS, rename={"id": "number", "note": "remark"}, add=["gate int"])
    kept.cluster.write(FLIGHTS, [{"number": 1, "remark": "b", "gate": 7}])
    found = [row for batch in kept.cluster.changes(FLIGHTS) for row in batch.to_pylist()]
    assert [(row["number"], row["remark"], row["gate"]) for row in found] == [(1, "a", None), (1, "b", 7)]


@pytest.mark.parametrize("altered", [False, True], ids=["as it was created", "altered before"])
def test_who_follows_while_a_column_becomes_wider_is_told_of_a_value_that_the_one_of_before_cannot_hold(
    cluster: SmallCluster, altered: bool
) -> None:
    table = "air.counted"
    administration.create_table(
        cluster.cluster, table, [("id", "bigint", False), ("n", "int", True)], ["id"], tablets=1
    )
    if altered:
        administration.alter_table(cluster.cluster, table, add=["city string"])
    keep_changes(cluster.cluster, table)
    changes = cluster.cluster.changes(table, follow=True)
    batches = iter(changes)
    administration.alter_table(cluster.cluster, table, widen={"n": "bigint"})
    cluster.cluster.write(table, [{"id": 1, "n": 2}])
    assert next(batches).to_pylist()[0]["n"] == 2, "it fits"
    cluster.cluster.write(table, [{"id": 1, "n": 2**40}])
    with pytest.raises(Rejected, match="have got wider types since these changes were asked for") as refused:
        next(batches)
    assert refused.value.code == Code.SCHEMA_CHANGED
    again = cluster.cluster.changes(table, after=changes.bookmark)
    assert [row["n"] for batch in again for row in batch.to_pylist()] == [2**40]


def test_what_is_kept_for_whom_is_told_without_a_look_at_each_write(
    kept: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.cluster.changes(FLIGHTS, reader="slow")
    for number in range(3):
        kept.cluster.write(FLIGHTS, rows({number: "a", 100 + number: "b"}))
    assert sum(batch.num_rows for batch in kept.cluster.changes(FLIGHTS, reader="quick")) == 6
    quick = kept.cluster.changes(FLIGHTS, reader="quick")
    list(quick)
    quick.commit()
    [one] = stream_statuses(kept.cluster, kept.metadata)
    files = list((Path(index_of(kept).uri) / "data").iterdir())
    assert (one.writes, one.rows, one.bytes) == (3, 6, sum(path.stat().st_size for path in files))
    assert one.kept_for == "the retention"
    assert {reader.name: reader.behind for reader in one.readers} == {"quick": 0, "slow": 3}
    [slow] = (reader for reader in one.readers if reader.name == "slow")
    assert (slow.bytes_behind, slow.lag_seconds > 0, slow.gone) == (one.bytes, True, False)
    assert one.oldest_at is not None
    aged(kept, 0.0, 3600.0)
    assert status(kept.cluster).change_streams[0].kept_for == "reader slow"
    slow_one = kept.cluster.changes(FLIGHTS, reader="slow")
    list(slow_one)
    slow_one.commit()
    drop_old(kept.cluster, stream_of(kept))
    [one] = stream_statuses(kept.cluster, kept.metadata)
    assert (one.writes, one.rows, one.bytes, one.kept_for, one.oldest_at) == (0, 0, 0, "", None)


def test_a_status_is_shown_though_the_root_tells_nothing_of_a_stream(kept: SmallCluster) -> None:
    away = StorageUnavailable("the root is away")
    with patch.object(ChangeIndex, "tail", side_effect=away):
        [one] = status(kept.cluster).change_streams
    assert (one.table, one.obstacle) == (FLIGHTS, "the root is away")
    assert any("the root is away" in str(part) for part in in_short([one]))


def test_an_index_of_an_earlier_version_is_counted_write_by_write(kept: SmallCluster) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    index = index_of(kept)
    position = index.tail().position
    old = index.entry(position)
    assert old is not None
    index._entries[position] = msgspec.structs.replace(old, totals=None)
    kept.cluster.write(FLIGHTS, rows({2: "b", 3: "c"}))
    assert index.entry(position + 1).totals is None  # type: ignore[union-attr]
    [one] = stream_statuses(kept.cluster, kept.metadata)
    assert (one.writes, one.rows) == (2, 3)


def test_metrics_tell_what_is_kept_and_how_far_readers_are_behind(kept: SmallCluster) -> None:
    told(kept, reader="slow")
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    kept.cluster.catch_up()
    seen = _streams(kept.cluster)
    page = "".join(_change_streams(seen, seen[0].readers[0].unread_since + 60.0))  # type: ignore[operator]
    assert f'epochlake_agent_changes_kept_bytes{{table="{FLIGHTS}"}} {seen[0].bytes}\n' in page
    assert f'epochlake_agent_changes_reader_lag_seconds{{table="{FLIGHTS}",reader="slow"}} 60\n' in page
    assert f'epochlake_agent_changes_reader_behind_writes{{table="{FLIGHTS}",reader="slow"}} 1\n' in page
    assert _change_streams((), 0.0) == []
