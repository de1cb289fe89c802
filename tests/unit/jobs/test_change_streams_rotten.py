"""Files of change streams that rot, are exchanged, or are gone: an error that names them, and never other changes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from epochlake.jobs.administration.change_streams import keep_changes
from epochlake.jobs.datasource.change_reading import ChangeReader
from epochlake.jobs.datasource.given_schema import Given
from epochlake.jobs.datasource.options import read_options
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.replicas.change_index import ChangesGone
from epochlake.jobs.replicas.change_reading import ChangesDamaged, Wanted, changes_of
from epochlake.placement.consistency import ConsistencyLevel
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType, TimestampType

from tests.support.changes import FLIGHTS, alone, data_files, flights, index_of, rows, staged_by, told
from tests.support.clusters import SmallCluster
from tests.support.storages import STORAGE

SAMPLE = 150
"""Flips of one bit; all of them were tried when this was written."""

DECLARED = StructType(
    [
        *(StructField("id", LongType()), StructField("note", StringType()), StructField("_change", StringType())),
        *(StructField("_written_at", TimestampType()), StructField("_position", LongType())),
        StructField("_late", BooleanType()),
    ]
)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallCluster]:
    alone(monkeypatch)
    with flights(tmp_path, 1) as small:
        keep_changes(small.cluster, FLIGHTS)
        yield small


def exchanged(first: Path, second: Path) -> None:
    """The files change places, as they may when a disk is put together again by hand."""
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)


def test_a_flipped_bit_in_a_file_of_a_stream_is_an_error_and_never_another_change(
    kept: SmallCluster, seed: int
) -> None:
    chance = random.Random(seed)
    kept.cluster.write(FLIGHTS, rows({1: "a", 2: "b"}))
    [path] = data_files(kept)
    good, shown = path.read_bytes(), told(kept)
    refused, said = 0, set()
    for _ in range(SAMPLE):
        flipped = bytearray(good)
        flipped[chance.randrange(len(good))] ^= 1 << chance.randrange(8)
        path.write_bytes(flipped)
        try:
            found = told(kept)
        except ChangesDamaged as error:
            said.add(error.reason.partition(" is damaged: ")[0])
            refused += 1
        else:
            assert found == shown
    assert refused > SAMPLE // 2
    position = index_of(kept).tail().position
    assert said == {f"the changes of {FLIGHTS} at position {position} cannot be shown, as their file {path}"}
    assert ChangesDamaged.exit_code == 1, "trying again does not help"
    path.write_bytes(good)
    assert told(kept) == shown


def test_files_of_a_stream_that_changed_places_are_refused(kept: SmallCluster) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    kept.cluster.write(FLIGHTS, rows({2: "b"}))
    index = index_of(kept)
    [first, second] = index.entries(0, index.tail().position)
    exchanged(*data_files(kept))
    with pytest.raises(ChangesDamaged):
        told(kept)
    # Also where both have as many bytes.
    [file], [other] = first.files, second.files
    first = msgspec.structs.replace(first, files=(msgspec.structs.replace(file, size=other.size),))
    with pytest.raises(ChangesDamaged, match="another file lies under its name"):
        list(changes_of(STORAGE, index, first, wanted(kept)))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (Path.unlink, "the file is not there"),
        (lambda path: path.write_bytes(b""), "it has 0 bytes of "),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "bytes of "),
        (lambda path: path.write_bytes(path.read_bytes()[:-8] + b"\xff" * 4 + b"PAR1"), "no readable footer"),
    ],
)
def test_whoever_reads_is_told_which_file_is_damaged(
    kept: SmallCluster, damage: Callable[[Path], object], said: str
) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    first = set(data_files(kept))
    kept.cluster.write(FLIGHTS, rows({1: "b"}))
    position = index_of(kept).tail().position
    [second] = set(data_files(kept)) - first
    [path] = first
    damage(path)
    with pytest.raises(ChangesDamaged, match=f"at position {position - 1} .*{path} is damaged: .*{said}"):
        told(kept)
    assert told(kept, after=position - 1) == [("upsert", 1, "b")], "what comes after it is read"
    with pytest.raises(ChangesDamaged, match=path.name):  # the row before it is in the damaged one
        list(kept.cluster.changes(FLIGHTS, after=position - 1, before=True))
    settings = msgspec.json.encode(kept.cluster.configuration).decode()
    spark = ChangeReader(
        read_options({"path": FLIGHTS, "changes": "true", "settings": settings}), Given(DECLARED, by_user=False)
    )
    with pytest.raises(PySparkRuntimeError, match=f"{path.name} is damaged"):
        [list(spark.read(task)) for task in spark.partitions()]
    index_of(kept).drop(position - 1)
    assert told(kept) == [("upsert", 1, "b")]
    assert second.exists()


def test_what_a_change_is_compared_with_is_proved_as_well(kept: SmallCluster) -> None:
    with Gate(kept.cluster, "slow") as slow:
        staged = staged_by(slow, kept, {1: "older"})
        before = set(data_files(kept))
        kept.cluster.write(FLIGHTS, rows({1: "newer"}))
        [newer] = set(data_files(kept)) - before
        slow.writing.land(kept.table, staged, ConsistencyLevel.QUORUM)
    late = index_of(kept).tail().position - 1
    assert told(kept, after=late) == [("upsert late", 1, "older")]
    kept.cluster.write(FLIGHTS, rows({2: "b"}))
    [other] = set(data_files(kept)) - before - {newer}
    data = newer.read_bytes()
    newer.write_bytes(data[: len(data) // 2] + other.read_bytes()[len(data) // 2 :])
    with pytest.raises(ChangesDamaged, match=newer.name):
        told(kept, after=late)


def test_a_reader_that_comes_too_late_is_told_so_and_of_no_damage(kept: SmallCluster) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    index = index_of(kept)
    position = index.tail().position
    entry = index.entry(position)
    assert entry is not None
    kept.cluster.write(FLIGHTS, rows({2: "b"}))
    index.drop(position)
    with pytest.raises(ChangesGone):
        list(changes_of(STORAGE, index, entry, wanted(kept)))


def test_a_file_from_before_seals_is_read_by_its_pages(kept: SmallCluster) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    [path] = data_files(kept)
    pq.write_table(
        pq.read_table(path, partitioning=None).replace_schema_metadata(None),
        path,
        store_schema=False,
        write_page_checksum=True,
    )
    index = index_of(kept)
    entry = index.entry(index.tail().position)
    assert entry is not None
    [file] = entry.files
    entry = msgspec.structs.replace(entry, files=(msgspec.structs.replace(file, size=path.stat().st_size),))
    [batch] = changes_of(STORAGE, index, entry, wanted(kept))
    assert batch.column("note").to_pylist() == ["a"]


def wanted(small: SmallCluster) -> Wanted:
    asked = small.cluster.changes(FLIGHTS)
    return Wanted(small.table, asked.schema.empty_table().select(["id", "note"]).schema)
