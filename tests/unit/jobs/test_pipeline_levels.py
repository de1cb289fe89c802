"""Consistency levels with storage that does not answer: reached, or refused by name; and it comes back."""

from __future__ import annotations

from pathlib import Path

import pytest
from epochlake.jobs.gate import commit_phase
from epochlake.jobs.gate.errors import ConsistencyNotReached
from epochlake.jobs.replicas.replica import open_snapshot
from epochlake.metastore.configuration import Configuration, PipelineSettings
from epochlake.metastore.errors import Rejected
from epochlake.placement.errors import InvalidRequest

from tests.support.clusters import FOUR, SmallCluster, assert_at_rest, placed, without_zookeeper
from tests.support.failures import mounted, remount

ONE_TRY = Configuration(pipeline=PipelineSettings(attempts=1))
TWO_DATACENTERS = {name: ("dc1" if name in "ABC" else "dc2", f"r{number}") for number, name in enumerate("ABCDEF")}

CASES = [
    # replicas, level, away, succeeds
    ("ABC", "ONE", "AB", True),
    ("ABC", "TWO", "A", True),
    ("ABC", "TWO", "AB", False),
    ("ABC", "QUORUM", "A", True),
    ("ABC", "QUORUM", "AC", False),
    ("ABC", "ALL", "", True),
    ("ABC", "ALL", "B", False),
    ("AB", "ONE", "A", True),
    ("AB", "TWO", "", True),
    ("AB", "QUORUM", "A", False),
    ("A", "QUORUM", "", True),
    ("A", "TWO", "", False),
    ("A", "ONE", "A", False),
    ("ABCDEF", "QUORUM", "AB", True),
    ("ABCDEF", "QUORUM", "ABC", False),
    ("ABCDEF", "LOCAL_QUORUM", "ADEF", True),
    ("ABCDEF", "LOCAL_QUORUM", "AB", False),
    ("ABCDEF", "EACH_QUORUM", "AF", True),
    ("ABCDEF", "EACH_QUORUM", "EF", False),
]


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(commit_phase, "RETRY_SECONDS", 0.0)


def cluster_of(tmp_path: Path, replicas: str) -> SmallCluster:
    nodes = {name: TWO_DATACENTERS[name] for name in replicas} if "D" in replicas else FOUR
    return placed(tmp_path, nodes, replicas, configuration=ONE_TRY)


@pytest.mark.parametrize(("replicas", "level", "away", "succeeds"), CASES)
def test_a_level_is_reached_or_refused_with_tablets_and_replicas_named(
    tmp_path: Path, replicas: str, level: str, away: str, succeeds: bool
) -> None:
    cluster = cluster_of(tmp_path, replicas)
    pipeline = cluster.pipeline(dc="dc1")
    with cluster.without(away):
        if succeeds:
            written = cluster.write(pipeline, level)
            assert written in cluster.read(pipeline, level)
        else:
            for attempt in (cluster.write, cluster.read):
                with pytest.raises(ConsistencyNotReached, match=rf"{level} at epoch \d+ for 1 tablet \(0\)") as e:
                    attempt(pipeline, level)
                assert e.value.tablets == (0,)
                assert {name[0] for name in e.value.replicas} == set(away)


def test_a_local_quorum_needs_a_datacenter_that_has_replicas(tmp_path: Path) -> None:
    cluster = placed(tmp_path, {n: TWO_DATACENTERS[n] for n in "ABCD"}, "ABC", configuration=ONE_TRY)
    for dc, reason in ((None, "Say so with datacenter"), ("dc2", "no replica there"), ("dc9", "no datacenter 'dc9'")):
        with pytest.raises(InvalidRequest if dc != "dc9" else Rejected, match=reason):
            cluster.write(cluster.pipeline(dc=dc), "LOCAL_QUORUM")
    assert [cluster.files_on(node) for node in "ABC"] == [set()] * 3


def test_rows_that_were_acknowledged_while_a_node_was_away_are_read_when_it_is_back(tmp_path: Path) -> None:
    cluster = placed(tmp_path, FOUR, "ABC", configuration=ONE_TRY)
    acknowledged = []
    for away in "CABCAB":
        with cluster.without(away):
            acknowledged.append(cluster.write(cluster.pipeline()))
    assert_at_rest(cluster, acknowledged)


def test_a_marker_that_vanishes_during_the_commit_is_no_acknowledgement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = placed(tmp_path, FOUR, "ABC", configuration=ONE_TRY)
    cluster.lose("C")
    lose_during_commit(monkeypatch, cluster, "B")
    with pytest.raises(ConsistencyNotReached, match="may be lost with its volume"):
        cluster.write(cluster.pipeline())


def lose_during_commit(monkeypatch: pytest.MonkeyPatch, cluster: SmallCluster, node: str) -> None:
    from epochlake.jobs.replicas import commits

    volume, commit = cluster.volume(node), commits._commit

    def losing(snapshot, *rest):  # type: ignore[no-untyped-def]
        version = commit(snapshot, *rest)
        if snapshot.address.volume_id == volume:
            cluster.lose(node)
        return version

    monkeypatch.setattr(commits, "_commit", losing)


def test_a_volume_that_becomes_read_only_is_missing_and_counts_again_when_it_can_be_written(tmp_path: Path) -> None:
    with mounted(tmp_path / "volumes" / "C", "8m") as volume:
        cluster = placed(tmp_path, FOUR, "ABC", configuration=ONE_TRY)
        pipeline = cluster.pipeline()
        remount(volume, "ro")
        written = cluster.write(pipeline, skip="C")
        with cluster.without("B"), pytest.raises(ConsistencyNotReached, match=r"C/d1: .*read-only"):
            cluster.write(pipeline, skip="C")
        assert written in cluster.read(pipeline)
        remount(volume, "rw")
        with cluster.without("B"):
            later = cluster.write(pipeline)
        assert {written, later} <= cluster.read(pipeline)


def test_a_file_in_place_of_a_replica_s_directory_is_a_replica_that_is_missing(tmp_path: Path) -> None:
    cluster = placed(tmp_path, FOUR, "ABC", configuration=ONE_TRY)
    first = cluster.write(cluster.pipeline())
    directory = Path(cluster.address("B").uri)
    directory.rename(directory.with_name("away"))
    directory.write_text("in the way")
    second = cluster.write(cluster.pipeline(), skip="B")
    with cluster.without("A"), pytest.raises(ConsistencyNotReached, match="B/d1"):
        cluster.read(cluster.pipeline())
    directory.unlink()
    directory.with_name("away").rename(directory)
    assert_at_rest(cluster, [first, second])


def test_a_lost_replica_table_is_not_made_anew(tmp_path: Path) -> None:
    cluster = placed(tmp_path, FOUR, "ABC", configuration=ONE_TRY)
    acknowledged = [cluster.write(cluster.pipeline())]
    directory = Path(cluster.address("B").uri)
    directory.rename(directory.with_name("away"))
    acknowledged.append(cluster.write(cluster.pipeline()))
    cluster.start("A", "X")
    cluster.until(None)
    assert not directory.exists()
    directory.with_name("away").rename(directory)
    assert_at_rest(cluster, acknowledged)


def test_staged_files_that_were_cleaned_up_before_a_late_commit_are_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was paused for so long that its lease ended, and unused files were deleted meanwhile."""
    cluster = placed(tmp_path, FOUR, "ABC", configuration=ONE_TRY)
    assert cluster.write(cluster.pipeline())

    def cleaned_up(self: commit_phase.CommitPhase, number: int) -> int:
        for node in "ABC":
            for path in Path(cluster.address(node).uri).glob("_tablet=*/*.parquet"):
                if path.stem not in cluster.files_on(node):
                    path.unlink()
        return original(self, number)

    original = commit_phase.CommitPhase._round
    monkeypatch.setattr(commit_phase.CommitPhase, "_round", cleaned_up)
    with pytest.raises(ConsistencyNotReached, match="is not there any more"):
        cluster.write(cluster.pipeline())
    for node in "ABC":
        files = open_snapshot(cluster.address(node)).all_files.values()
        assert all((Path(cluster.address(node).uri) / file.path).exists() for file in files)
