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
from epochlake.jobs.replicas.change_index import ChangeIndex, ChangesGone
from epochlake.jobs.replicas.change_reading import ChangesDamaged, Wanted, changes_of
from epochlake.jobs.upkeep.change_streams import keep_up
from epochlake.metastore.storage.failures import StorageDamaged
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.consistency import ConsistencyLevel
from epochlake.placement.errors import EpochlakeError
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType, TimestampType

from tests.support.changes import (
    FLIGHTS,
    alone,
    data_files,
    flights,
    index_of,
    replica_files,
    rows,
    staged_by,
    stream_of,
    told,
)
from tests.support.clusters import SmallCluster
from tests.support.command_line import CommandLine
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


def test_a_flipped_bit_in_an_entry_of_the_index_is_an_error_and_never_another_entry(kept: SmallCluster) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    index = index_of(kept)
    position = index.tail().position
    entry = index.entry(position)
    path = Path(index.uri) / "_delta_log" / f"{position:020}.json"
    good = path.read_bytes()
    refused = 0
    for bit in range(8 * len(good)):
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            found = ChangeIndex(STORAGE, index.uri).entry(position)
        except EpochlakeError:
            refused += 1
        else:
            assert found == entry, bit
    assert refused > 4 * len(good)


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


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)


def test_what_is_damaged_or_gone_is_copied_anew_from_a_replica_that_has_it_whole(kept: SmallCluster) -> None:
    for key in range(4):
        kept.cluster.write(FLIGHTS, rows({key: "a"}))
    shown = told(kept)
    [first, second, third, fourth] = data_files(kept)
    good = {path: path.read_bytes() for path in data_files(kept)}
    flip(first)
    exchanged(second, third)
    fourth.unlink()
    # Only one replica has them whole: the others have rotten ones, with as many bytes, or none.
    rotten = [path for path in replica_files(kept) if path.name == first.name]
    for path in rotten[:-1]:
        flip(path)
    rotten[0].unlink()
    stream = stream_of(kept)
    assert keep_up(kept.cluster, stream).healed == 0, "a coordinator does not read all bytes again and again"
    report = keep_up(kept.cluster, stream, check_bytes=True)
    assert (report.healed, report.damaged) == (4, ())
    report.require_whole()
    assert {path: path.read_bytes() for path in data_files(kept)} == good
    assert told(kept) == shown
    assert keep_up(kept.cluster, stream, check_bytes=True).healed == 0


def test_what_nobody_has_whole_stays_as_it_is_and_is_named(kept: SmallCluster) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    first = index_of(kept).tail().position
    [path] = data_files(kept)
    kept.cluster.write(FLIGHTS, rows({2: "b"}))
    [other] = set(data_files(kept)) - {path}
    path.write_bytes(b"torn")
    other.unlink()
    for copy in replica_files(kept):
        if copy.name == path.name:
            flip(copy)
        elif copy.name == other.name:
            copy.unlink()
    report = keep_up(kept.cluster, stream_of(kept), check_bytes=True)
    assert report.healed == 0
    [rotten, gone] = report.damaged
    assert rotten.startswith(f"position {first}: {path} is damaged: ")
    assert "it could not be copied anew (" in rotten
    assert gone == f"position {first + 1}: {other} is damaged: the file is not there; no replica has it any more"
    with pytest.raises(StorageDamaged, match="could not be copied anew: 2"):
        report.require_whole()
    assert path.read_bytes() == b"torn"
    index_of(kept).drop(first + 1)
    assert keep_up(kept.cluster, stream_of(kept), check_bytes=True).damaged == (), (
        "what is not kept any more is not missed"
    )


def test_the_command_line_says_what_to_do_and_does_it(kept: SmallCluster, capsys: pytest.CaptureFixture[str]) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    [path] = data_files(kept)
    flip(path)
    line = CommandLine(Path(kept.cluster.root.uri), capsys)
    refused = line.json("changes", "read", FLIGHTS)
    assert refused.code == 1
    assert f"{path} is damaged" in refused.err
    heal = ("changes", "keep-up", FLIGHTS, "--check-bytes")
    assert f"`epochlake {' '.join(heal)}`" in refused.err
    assert line.done(*heal)["healed"] == 1
    assert line.text("changes", "read", FLIGHTS).code == 0
    for copy in [path, *replica_files(kept)]:
        flip(copy)
    lost = line.text(*heal)
    assert lost.code == 1
    assert f"{path} is damaged" in "".join(lost.out.split("\n"))
    assert "could not be copied anew: 1" in lost.err


def test_a_copy_that_arrives_damaged_is_not_told_to_be_whole(
    kept: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.cluster.write(FLIGHTS, rows({1: "a"}))
    [path] = data_files(kept)
    path.unlink()
    copy_file = Storage.copy_file

    def copied(storage: Storage, source: str, target: str) -> int:
        size = copy_file(storage, source, target)
        flip(Path(target))
        return size

    monkeypatch.setattr(Storage, "copy_file", copied)
    report = keep_up(kept.cluster, stream_of(kept), check_bytes=True)
    assert (report.healed, len(report.damaged)) == (0, 1)
    monkeypatch.undo()
    alone(monkeypatch)
    assert keep_up(kept.cluster, stream_of(kept), check_bytes=True).healed == 1


def wanted(small: SmallCluster) -> Wanted:
    asked = small.cluster.changes(FLIGHTS)
    return Wanted(small.table, asked.schema.empty_table().select(["id", "note"]).schema)
