"""The track that compacts: when it begins, what it leaves alone, and that a round never waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

import msgspec
import pytest
from epochlake.jobs import administration
from epochlake.jobs.administration.operators import OptionChanges
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.replicas.replica import open_snapshot
from epochlake.jobs.upkeep import compaction, compaction_track
from epochlake.jobs.upkeep.compaction_track import (
    LIVELY_SECONDS,
    LONGEST_LOOK_SECONDS,
    LOOK_SECONDS,
    LOOKING_SHARE,
    STUCK_SECONDS,
    CompactionTrack,
    Due,
    WaveReport,
    Work,
)
from epochlake.metastore.configuration import CoordinatorSettings
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.metadata.events import DecideResize
from epochlake.metastore.metadata.model import CompactionOptions
from epochlake.placement.tablets.resizing import Resize
from epochlake.placement.tablets.transitions import Stage

from tests.support.clusters import FOUR, SmallCluster, placed, without_zookeeper
from tests.support.compactions import reaching, without_leases
from tests.support.versions import read_versions, write_versions

TABLE = "air.flights"


class Played:
    """A track whose clock, day and thread belong to the test."""

    def __init__(self, cluster: Cluster, **settings: object) -> None:
        self.now = 0.0
        self.day = datetime(2026, 1, 1, 12, 0)
        self.begun: list[str] = []
        self.looking_takes = 0.0
        self.wave_takes = 0.0
        self.due: list[Due] | Exception = []
        self.wave: WaveReport | Exception = WaveReport(1, 1000)
        self.halted: Callable[[], bool] = lambda: False
        self._tasks: list[Callable[[], None]] = []
        coordinator = CoordinatorSettings(**settings)  # type: ignore[arg-type]
        cluster.configuration = msgspec.structs.replace(cluster.configuration, coordinator=coordinator)
        work = Work(self._look, self._compact)
        self.cluster = cluster
        self.track = CompactionTrack(cluster, work, lambda: self.now, lambda: self.day, self._tasks.append)

    def _look(self, tables: Sequence[str]) -> list[Due]:
        self.begun.append("look")
        self.now += self.looking_takes
        if isinstance(self.due, Exception):
            raise self.due
        return [one for one in self.due if one.table in tables]

    def _compact(self, table: str, most_bytes: int, halted: Callable[[], bool]) -> WaveReport:
        self.begun.append(f"{table} {most_bytes}")
        self.halted = halted
        self.now += self.wave_takes
        if isinstance(self.wave, Exception):
            raise self.wave
        return self.wave

    def round(self) -> list[str]:
        """What a round begins; it is done when the round is over."""
        before = len(self.begun)
        self.track.advance(self.cluster.catch_up())
        while self._tasks:
            self._tasks.pop()()
        return self.begun[before:]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallCluster:
    without_zookeeper(monkeypatch)
    return placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"})


@pytest.fixture
def played(table: SmallCluster) -> Played:
    return Played(table.cluster, compaction_bytes_per_second=0)


def test_it_looks_compacts_what_is_due_and_looks_again_after_a_while(played: Played) -> None:
    played.due = [Due(TABLE, 1.0)]
    played.wave = WaveReport(1, 1000, left=True)
    assert played.round() == ["look"]
    assert played.round() == [f"{TABLE} {compaction_track.WAVE_BYTES}"]
    played.wave = WaveReport(1, 1000)
    assert played.round() == [f"{TABLE} {compaction_track.WAVE_BYTES}"], "there was more"
    played.due = []
    assert played.round() == []
    played.now += LONGEST_LOOK_SECONDS
    assert played.round() == ["look"]
    assert played.round() == []


def test_what_takes_long_to_look_at_is_looked_at_rarely(played: Played) -> None:
    played.looking_takes = 30.0
    played.round()
    played.round()
    played.now += LOOKING_SHARE * 30.0 - 1
    assert played.round() == []
    played.now += 1
    assert played.round() == ["look"]


def test_where_nothing_is_due_it_looks_less_and_less_often(played: Played) -> None:
    waited = []
    for due in ([], [], [], [], [], [], [Due(TABLE, 1.0)], []):
        played.due = due
        began = played.now
        while "look" not in played.round():
            played.now += 0.5
        waited.append(played.now - began)
    assert waited == [0.0, 2.0, 4.0, 8.0, 16.0, 16.0, 16.0, LOOK_SECONDS]


def test_tables_that_are_written_to_are_looked_at_again_soon_also_where_it_is_too_early(played: Played) -> None:
    """A look right after a wave finds little. By the next one, after twice as long, files would have piled up."""
    began = played.now
    for due in ([Due(TABLE, 1.0)], [], [], [Due(TABLE, 1.0)], []):
        played.due = due
        assert "look" in played.round()
        played.round()
        assert not played.track.idle(played.cluster.metadata), "rounds go on at the pace of work"
        played.now += LOOK_SECONDS
    assert played.now - began == 5 * LOOK_SECONDS
    waited = []
    while not waited or waited[-1] < LONGEST_LOOK_SECONDS:
        before = played.now
        while "look" not in played.round():
            played.now += LOOK_SECONDS
        waited.append(played.now - before)
    *soon, two, four, eight, sixteen = waited
    assert set(soon) <= {0.0, LOOK_SECONDS}
    assert sum(soon) > LIVELY_SECONDS - 4 * LOOK_SECONDS
    assert [two, four, eight, sixteen] == [2.0, 4.0, 8.0, 16.0]
    played.round()
    assert played.track.idle(played.cluster.metadata)


def test_a_round_goes_on_while_a_wave_hangs_and_begins_no_second_one(table: SmallCluster) -> None:
    hangs, released = threading.Event(), threading.Event()

    def hang(tables: Sequence[str]) -> list[Due]:
        hangs.set()
        released.wait(60)
        return []

    track = CompactionTrack(table.cluster, Work(hang, lambda table, size: WaveReport()))
    metadata = table.metadata
    for _ in range(3):
        assert not track.advance(metadata)
        assert hangs.wait(60)
        assert not track.idle(metadata)
        assert not track.woken.is_set()
    released.set()
    assert track.woken.wait(60)


def test_nothing_is_begun_while_a_tablet_moves_unless_it_is_stuck_and_its_table_never(
    table: SmallCluster, played: Played
) -> None:
    administration.create_keyspace(table.cluster, "sea", {"dc1": 1})
    other = administration.create_table(table.cluster, "sea.tides", [("id", "bigint", False)], ("id",), tablets=1)
    assert other.tablets == 1
    played.due = [Due(TABLE, 2.0), Due("sea.tides", 1.0)]
    played.round()
    table.start("C", "X", tablet=0)
    played.round()
    for stage in (Stage.WRITE_BOTH_READ_OLD, Stage.STREAMING, Stage.WRITE_BOTH_READ_NEW):
        table.until(stage)
        assert played.round() == [], "it has come further"
        played.now += STUCK_SECONDS - 1
        assert played.round() == []
    played.now += 1
    assert played.round() == [f"sea.tides {compaction_track.WAVE_BYTES}"]
    table.until(None)
    played.now += LONGEST_LOOK_SECONDS
    assert played.round() == ["look"]
    assert played.round() == [f"{TABLE} {compaction_track.WAVE_BYTES}"]


def test_a_wave_that_runs_is_halted_when_a_tablet_begins_to_move_and_goes_on_afterwards(
    table: SmallCluster, played: Played
) -> None:
    played.due, played.wave = [Due(TABLE, 1.0)], WaveReport(0, 0, left=True, halted=True)
    assert played.round() == ["look"]
    assert played.round() == [f"{TABLE} {compaction_track.WAVE_BYTES}"]
    assert not played.halted()
    table.start("A", "X")
    assert played.round() == []
    assert played.halted()
    table.until(None)
    played.wave = WaveReport(1, 1000)
    assert played.round() == [f"{TABLE} {compaction_track.WAVE_BYTES}"], "it does not rest, nor is it looked at again"
    assert not played.halted()
    administration.pause_changes(table.cluster, reason="backup")
    played.round()
    assert played.halted()


def test_a_table_that_is_being_divided_and_paused_changes_hold_it_up(table: SmallCluster, played: Played) -> None:
    played.due = [Due(TABLE, 1.0)]
    administration.pause_changes(table.cluster, reason="backup")
    assert played.round() == []
    administration.resume_changes(table.cluster)
    assert played.round() == ["look"]
    table.cluster.commit(DecideResize(table.table.table_id, Resize.SPLIT, 1, "large"))
    assert played.round() == []
    table.cluster.commit(DecideResize(table.table.table_id, Resize.NONE, 2, "not so large"))
    played.now += LONGEST_LOOK_SECONDS
    assert played.round() == ["look"]
    assert played.round() == [f"{TABLE} {compaction_track.WAVE_BYTES}"]


def test_it_keeps_to_its_hours_and_its_bytes_a_second(table: SmallCluster) -> None:
    played = Played(table.cluster, compaction_bytes_per_second=100, compaction_hours="22:00-06:00")
    played.due, played.wave, played.wave_takes = [Due(TABLE, 1.0)], WaveReport(1, 3000, left=True), 10.0
    assert played.round() == []
    for hour, minute, expected in ((21, 59, []), (22, 0, ["look"]), (5, 59, [f"{TABLE} 3000"]), (6, 0, [])):
        played.day = datetime(2026, 1, 1, hour, minute)
        assert played.round() == expected
    played.day = datetime(2026, 1, 1, 23, 0)
    assert played.round() == [], "3,000 bytes at 100 a second take 30 seconds, of which 10 are over"
    played.now += 19.0
    assert played.round() == []
    played.now += 1.0
    assert played.round() == [f"{TABLE} 3000"]


def test_a_table_that_cannot_be_compacted_rests_longer_each_time(played: Played) -> None:
    played.due = [Due(TABLE, 1.0)]
    rests = []
    away = StorageUnavailable("a disk is away")
    for outcome in (away, WaveReport(), WaveReport(), WaveReport(), away, away, WaveReport()):
        played.wave = outcome
        while played.round() != [f"{TABLE} {compaction_track.WAVE_BYTES}"]:
            played.now += 1.0
        begun = played.now
        while played.round() != ["look"]:
            played.now += 1.0
        rests.append(played.now - begun)
    assert [rest // 60 for rest in rests] == [1, 2, 4, 8, 5, 5, 10], "nobody tells that a disk has room again"


def say(table: SmallCluster, **options: object) -> None:
    said = CompactionOptions(**options)  # type: ignore[arg-type]
    administration.alter_table(table.cluster, TABLE, OptionChanges(compaction=said))


@pytest.mark.parametrize(
    ("usual", "said", "compacted"), [("on", False, False), ("off", True, True), ("off", None, False)]
)
def test_a_table_may_say_otherwise_than_the_configuration(
    table: SmallCluster, usual: str, said: bool | None, compacted: bool
) -> None:
    played = Played(table.cluster, compaction=usual)
    played.due = [Due(TABLE, 1.0)]
    if said is not None:
        say(table, by_itself=said)
    assert (played.round() == ["look"]) is compacted


def test_a_table_may_have_hours_of_its_own(table: SmallCluster) -> None:
    played = Played(table.cluster, compaction_hours="22:00-06:00")
    assert played.round() == []
    say(table, hours="11:00-13:00")
    assert played.round() == ["look"]
    assert played.round() == []
    played.day = datetime(2026, 1, 1, 23, 0)
    played.now += LONGEST_LOOK_SECONDS
    assert played.round() == []
    say(table, hours="")
    assert played.round() == ["look"]


def test_what_cannot_be_looked_at_is_looked_at_again(played: Played) -> None:
    played.due = StorageUnavailable("the root does not answer")
    assert played.round() == ["look"]
    assert played.round() == []
    played.now += LONGEST_LOOK_SECONDS
    assert played.round() == ["look"]


@pytest.mark.parametrize("reached", ["ABC", "A"])
def test_it_compacts_a_real_table_without_repairing_and_comes_to_an_end(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch, reached: str
) -> None:
    without_leases(monkeypatch)
    monkeypatch.setattr(compaction, "repair", lambda *_, **__: pytest.fail("it repairs"))
    monkeypatch.setattr(compaction, "commit_files", reaching(table.volumes(reached)))
    for number in range(9):
        write_versions(table, {row: f"{number} {row}" for row in range(40)})
    track = CompactionTrack(table.cluster, begin=lambda task: task())
    compacted = [track.advance(table.metadata) for _ in range(4)]
    assert compacted == ([False, False, True, False] if reached == "ABC" else [False] * 4)
    merged = [sum(file.is_merged for file in open_snapshot(table.address(node)).all_files.values()) for node in "ABC"]
    assert merged == ([2, 2, 2] if reached == "ABC" else [2, 0, 0])
    assert read_versions(table, "ALL") == [(row, f"8 {row}") for row in range(40)]


def test_a_wave_that_is_halted_has_kept_what_it_did(table: SmallCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    without_leases(monkeypatch)
    monkeypatch.setattr(compaction, "HALTED_WAVE_BYTES", 1)
    for number in range(9):
        write_versions(table, {row: f"{number} {row}" for row in range(40)})
    asked: list[bool] = []

    def halted() -> bool:
        asked.append(len(asked) > 0)
        return asked[-1]

    assert compaction_track.wave(table.cluster, TABLE, 1 << 30, lambda: True) == WaveReport(0, 0, True, True)
    report = compaction_track.wave(table.cluster, TABLE, 1 << 30, halted)
    assert (report.ranges, report.left, report.halted) == (1, True, True)
    merged = {
        node: [file.is_merged for file in open_snapshot(table.address(node)).all_files.values()] for node in "ABC"
    }
    assert all(sorted(files) == [False] * 9 + [True] for files in merged.values())
    report = compaction_track.wave(table.cluster, TABLE, 1 << 30, lambda: False)
    assert (report.ranges, report.left, report.halted) == (1, False, False)
    assert read_versions(table, "ALL") == [(row, f"8 {row}") for row in range(40)]
