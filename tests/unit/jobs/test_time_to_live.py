"""Rows that expire: what reads show, what compaction drops, and that no alteration brings a part of them back."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest
from epochlake.jobs import administration
from epochlake.jobs.administration import right_clocks, times_to_live
from epochlake.jobs.administration.altering import ReplicasNotFenced
from epochlake.jobs.administration.past_rows import changed_rows, rollback
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.gate import commit_phase
from epochlake.jobs.gate.arrow_reading import question
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.replicas.damage import ExpectedFile
from epochlake.jobs.replicas.replica import ReplicaSnapshot
from epochlake.jobs.replicas.scanning import scan
from epochlake.jobs.upkeep import compaction, expired_files
from epochlake.jobs.upkeep.compacting import EVERYTHING, EXPIRED, CompactionPolicy
from epochlake.jobs.upkeep.compaction import CompactionReport, compact
from epochlake.jobs.upkeep.compaction_track import due_tables
from epochlake.jobs.upkeep.expired_files import Expiry
from epochlake.jobs.upkeep.repair import repair
from epochlake.jobs.views.health import _measured as measured
from epochlake.metastore import announcing
from epochlake.metastore.errors import Rejected, StorageUnavailable
from epochlake.metastore.metadata.model import Table
from epochlake.metastore.metadata.time_to_live import SKEW_MICROS
from epochlake.metastore.storage import clocks
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.rejections import Code

from tests.support.clusters import grow, without_zookeeper
from tests.support.compactions import Released, reaching
from tests.support.slices import DRAW, some

TABLE = "air.visits"
COLUMNS = [("id", "bigint", False), ("seen", "timestamp", True), ("note", "string", True)]
HOUR, DAY = 3600, 86_400
REAL = time.time_ns


class Clock:
    """The clock of this process, which a test sets forward."""

    def __init__(self) -> None:
        self.ahead = 0

    def __call__(self) -> int:
        return REAL() + self.ahead

    def forward(self, seconds: float) -> None:
        self.ahead += int(seconds * 1_000_000_000)

    def now(self) -> datetime:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=self() // 1000)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "time_ns", made)
    return made


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Iterator[Cluster]:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(compaction, "live_leases", lambda cluster: [])
    # Time passes for the root as it does here, though its files have the times of the machine.
    monkeypatch.setattr(compaction, "behind", lambda storage, root: None)
    monkeypatch.setattr(right_clocks, "ahead_of", lambda storage, root: 0)
    monkeypatch.setattr(announcing, "announce", lambda coordination, lease: Released())
    with grow(tmp_path) as grown:
        yield grown


@pytest.fixture
def visits(cluster: Cluster) -> Cluster:
    administration.create_table(cluster, TABLE, COLUMNS, ["id"], tablets=2, ttl=("seen", timedelta(days=1)))
    return cluster


def put(cluster: Cluster, clock: Clock, *rows: tuple[int, float | None], note: str = "") -> datetime:
    """Write rows: the key, and how many seconds ago it was seen. Returns what is taken for now."""
    now = clock.now()
    cluster.write(
        TABLE,
        [
            {"id": key, "seen": None if ago is None else now - timedelta(seconds=ago), "note": note or f"{key}"}
            for key, ago in rows
        ],
    )
    return now


def shown(cluster: Cluster, **how: object) -> set[int]:
    return {row["id"] for row in cluster.scan(TABLE, **how).read_all().to_pylist()}  # type: ignore[arg-type]


def compacted(cluster: Cluster, policy: CompactionPolicy = EVERYTHING, grace: float = 0.0) -> CompactionReport:
    return compact(cluster, TABLE, policy=policy, tombstone_grace_seconds=grace)


def stored(cluster: Cluster) -> int:
    """How many rows the files have that a read would look at, whatever has expired."""
    with Gate(cluster, "look") as gate:
        plan = gate.plan_read(cluster.catch_up().table(TABLE))
        runs = (*plan.alone, *(run for section in plan.sections for run in section))
        return sum(run.copy.file.rows for run in runs)


# What reads show


def test_no_read_shows_a_row_that_has_expired(visits: Cluster, clock: Clock) -> None:
    put(visits, clock, (1, 0), (2, 2 * DAY), (3, None), (4, DAY - HOUR))
    assert shown(visits) == {1, 3, 4}
    assert shown(visits, columns=["id"], where=pc.field("note") != "3") == {1, 4}
    assert shown(visits, keys=[{"id": 1}, {"id": 2}]) == {1}
    assert (visits.get(TABLE, 2), visits.count(TABLE)) == (None, 3)
    clock.forward(2 * HOUR)
    assert (shown(visits), visits.get(TABLE, 4), visits.count(TABLE)) == ({1, 3}, None, 2)
    clock.forward(10 * 365 * DAY)
    assert shown(visits) == {3}


def test_an_older_version_never_comes_back_because_the_newest_has_expired(visits: Cluster, clock: Clock) -> None:
    put(visits, clock, *((key, -DAY * 30) for key in range(20)), note="seen in a month")
    put(visits, clock, *((key, 2 * DAY) for key in range(10)), note="seen long ago")
    assert shown(visits) == set(range(10, 20))
    assert visits.count(TABLE) == 10
    assert shown(visits, where=pc.field("note") == "seen in a month") == set(range(10, 20))
    put(visits, clock, (3, 0))
    assert shown(visits) == {3, *range(10, 20)}


def test_a_read_goes_by_the_time_at_which_it_was_planned(visits: Cluster, clock: Clock) -> None:
    put(visits, clock, (1, DAY - 60))
    with Gate(visits, "read") as gate:
        of = question(visits.metadata.table(TABLE))
        plan = gate.plan_read(of.table)
        clock.forward(HOUR)
        assert [batch.num_rows for batch in scan(plan, of.asked)] == [1]
        assert [batch.num_rows for batch in scan(plan, of.asked)] == [1]
    assert shown(visits) == set()


def test_a_read_as_of_a_time_is_judged_by_that_time(cluster: Cluster, clock: Clock) -> None:
    administration.create_table(cluster, TABLE, COLUMNS, ["id"], tablets=2)
    put(cluster, clock, (1, 0), (2, 2 * DAY))
    clock.forward(60)
    before = clock.now()
    clock.forward(60)
    administration.set_ttl(cluster, TABLE, "seen", DAY)
    clock.forward(60)
    after = clock.now()
    clock.forward(2 * DAY)
    assert (shown(cluster), shown(cluster, as_of=after), shown(cluster, as_of=before)) == (set(), {1}, {1, 2})


def test_a_difference_shows_what_has_expired_in_between(visits: Cluster, clock: Clock) -> None:
    put(visits, clock, (1, DAY - HOUR), (2, 0))
    clock.forward(1)
    since = clock.now()
    clock.forward(2 * HOUR)
    rows = changed_rows(visits, TABLE, since, clock.now()).read_all().to_pylist()
    assert [(row["id"], row["_change"]) for row in rows] == [(1, "removed")]


def test_a_rollback_neither_brings_expired_rows_back_nor_deletes_them(visits: Cluster, clock: Clock) -> None:
    put(visits, clock, (1, DAY - HOUR), (2, 0), (3, DAY - HOUR))
    clock.forward(1)
    to = clock.now()
    clock.forward(2 * HOUR)
    put(visits, clock, (2, 0), (3, 0), note="later")
    done = rollback(visits, TABLE, to)
    assert (done.rewritten, done.brought_back, done.deleted) == (1, 0, 1)
    assert shown(visits) == {2}


def test_a_merge_inserts_where_the_row_has_expired(visits: Cluster, clock: Clock) -> None:
    put(visits, clock, (1, 2 * DAY), (2, 0))
    source = [{"id": key, "seen": clock.now(), "note": "merged"} for key in (1, 2)]
    merge = visits.merge(TABLE, source).when_matched_update({"note": "'matched'"}).when_not_matched_insert_all()
    done = merge.execute()
    assert (done.inserted, done.updated) == (1, 1)
    assert {row["id"]: row["note"] for row in visits.scan(TABLE).read_all().to_pylist()} == {1: "merged", 2: "matched"}


def test_the_row_before_a_change_is_none_where_it_had_expired(visits: Cluster, clock: Clock) -> None:
    administration.keep_changes(visits, TABLE)
    put(visits, clock, (1, DAY - HOUR), (2, 0))
    clock.forward(2 * HOUR)
    put(visits, clock, (1, 0), (2, 0), note="again")
    changes = visits.changes(TABLE, before=True)
    told = [row for batch in changes for row in batch.to_pylist()]
    again = {row["id"]: row["_before"] for row in told if row["note"] == "again"}
    assert again[1] is None
    assert again[2]["note"] == "2"
    assert len(told) == 4, "expiry is no change of its own"


# What is asked of a table


@pytest.mark.parametrize(
    ("column", "seconds", "code"),
    [("nothing", DAY, Code.UNKNOWN_COLUMN), ("note", DAY, Code.INVALID_TTL), ("seen", 10**12, Code.INVALID_TTL)],
)
def test_what_cannot_say_when_rows_expire_is_refused(cluster: Cluster, column: str, seconds: int, code: Code) -> None:
    with pytest.raises(Rejected) as refused:
        administration.create_table(cluster, TABLE, COLUMNS, ["id"], ttl=(column, seconds))
    assert refused.value.code == code
    administration.create_table(cluster, TABLE, COLUMNS, ["id"])
    with pytest.raises(Rejected) as refused:
        administration.set_ttl(cluster, TABLE, column, seconds)
    assert refused.value.code == code
    with pytest.raises(Rejected, match="no rows of"):
        administration.drop_ttl(cluster, TABLE)


@pytest.mark.parametrize("type_", ["timestamp_ntz", "TIMESTAMP_NTZ", "date", "bigint"])
def test_a_column_that_does_not_say_which_moment_it_means_is_refused(cluster: Cluster, type_: str) -> None:
    columns = [("id", "bigint", False), ("seen", "timestamp", True), ("local", type_, True)]
    said = f"rows of {TABLE} cannot expire by column 'local', which is {type_}"
    with pytest.raises(Rejected, match=said) as refused:
        administration.create_table(cluster, TABLE, columns, ["id"], ttl=("local", DAY))
    assert refused.value.code == Code.INVALID_TTL
    administration.create_table(cluster, TABLE, columns, ["id"], tablets=1)
    for earlier in (False, True):
        if earlier:
            administration.set_ttl(cluster, TABLE, "seen", DAY)
        with pytest.raises(Rejected, match=said) as refused:
            administration.set_ttl(cluster, TABLE, "local", DAY)
        assert (refused.value.code, "of type timestamp" in refused.value.hint) == (Code.INVALID_TTL, True)


def test_a_day_by_which_rows_could_not_expire_does_not_begin_to_when_it_is_widened(cluster: Cluster) -> None:
    columns = [("id", "bigint", False), ("local", "date", True)]
    administration.create_table(cluster, TABLE, columns, ["id"], tablets=1)
    administration.alter_table(cluster, TABLE, widen={"local": "timestamp_ntz"})
    with pytest.raises(Rejected, match="which is timestamp_ntz"):
        administration.set_ttl(cluster, TABLE, "local", DAY)
    # A moment is what a program makes of it that knows the zone.
    administration.alter_table(cluster, TABLE, add=["seen timestamp"])
    administration.set_ttl(cluster, TABLE, "seen", DAY)


@pytest.mark.parametrize("duration", [0, -1, 0.5, float("nan"), float("inf"), True, "1d", timedelta(milliseconds=1)])
def test_what_is_no_whole_number_of_seconds_is_refused(visits: Cluster, duration: object) -> None:
    with pytest.raises(InvalidRequest, match=f"rows of {TABLE} cannot live for") as refused:
        administration.set_ttl(visits, TABLE, "seen", duration)  # type: ignore[arg-type]
    assert repr(duration) in refused.value.reason
    assert "timedelta(hours=1)" in refused.value.hint


@pytest.mark.parametrize("ttl", [5, "seen", ("seen",), (1, 60)])
def test_a_time_to_live_of_a_new_table_is_a_column_and_a_duration(visits: Cluster, ttl: object) -> None:
    columns = [("id", "bigint", False), ("seen", "timestamp", True)]
    with pytest.raises(InvalidRequest, match=r"by which column of air\.other rows expire"):
        administration.create_table(visits, "air.other", columns, ["id"], ttl=ttl)  # type: ignore[arg-type]
    administration.create_table(visits, "air.other", columns, ["id"], tablets=1, ttl=("seen", np.int64(60)))
    shown_ttl = visits.table("air.other").ttl
    assert shown_ttl is not None
    assert shown_ttl.seconds == 60


def test_the_column_is_renamed_and_never_dropped(visits: Cluster, clock: Clock) -> None:
    put(visits, clock, (1, 0), (2, 2 * DAY))
    administration.alter_table(visits, TABLE, rename={"seen": "visited"}, add=["seen timestamp"])
    visits.write(TABLE, [{"id": 3, "visited": None, "seen": clock.now() - timedelta(days=9), "note": ""}])
    assert shown(visits) == {1, 3}
    for _ in range(2):
        with pytest.raises(Rejected) as refused:
            administration.alter_table(visits, TABLE, drop=["visited"])
        assert refused.value.code == Code.TTL_COLUMN
        if visits.metadata.table(TABLE).lifetimes[-1].seconds is not None:
            administration.drop_ttl(visits, TABLE)


def test_a_column_that_came_later_counts_with_its_default(cluster: Cluster, clock: Clock) -> None:
    administration.create_table(cluster, TABLE, COLUMNS, ["id"], tablets=1)
    put(cluster, clock, (1, 0))
    administration.alter_table(cluster, TABLE, add=["kept timestamp default '2020-01-01T00:00:00Z'"])
    put(cluster, clock, (2, 0))
    cluster.write(TABLE, [{"id": 3, "seen": None, "note": "", "kept": clock.now()}])
    administration.set_ttl(cluster, TABLE, "kept", DAY)
    assert shown(cluster) == {3}


# Later ones, and none


def test_rows_that_have_expired_stay_so_with_a_longer_ttl_and_with_none(visits: Cluster, clock: Clock) -> None:
    put(visits, clock, (1, 2 * DAY), (2, DAY - HOUR))
    administration.set_ttl(visits, TABLE, "seen", 30 * DAY)
    clock.forward(2 * HOUR)
    assert shown(visits) == {2}
    administration.drop_ttl(visits, TABLE)
    clock.forward(365 * DAY)
    put(visits, clock, (3, 500 * DAY), (4, 364 * DAY))
    assert shown(visits) == {2, 4}


def test_a_row_that_is_written_with_a_moment_of_what_has_expired_has_expired_too(visits: Cluster, clock: Clock) -> None:
    put(visits, clock, (1, 2 * DAY))
    administration.set_ttl(visits, TABLE, "seen", 30 * DAY)
    put(visits, clock, (1, 2 * DAY), (2, 2 * DAY), (3, HOUR))
    assert shown(visits) == {3}


def test_a_reader_that_planned_before_the_change_reads_by_it_when_the_command_has_returned(
    visits: Cluster, clock: Clock
) -> None:
    put(visits, clock, (1, HOUR), (2, 0))
    with Gate(visits, "reader") as gate:
        known = gate.planning.table(TABLE)
        with another(visits) as other:
            administration.set_ttl(other, TABLE, "seen", 60)
        asked = []

        def read(table: object) -> list[int]:
            of = question(table)  # type: ignore[arg-type]
            asked.append(of.table.version)
            plan = gate.plan_read(of.table)
            return [row["id"] for batch in scan(plan, of.asked) for row in batch.to_pylist()]

        assert gate.planning.as_it_is(TABLE, read) == [2]
        assert asked[0] == known.version != asked[-1]


def another(cluster: Cluster) -> Cluster:
    """Another program on the same cluster."""
    return Cluster(cluster.configuration)


def test_a_change_that_was_held_up_is_planned_again_and_one_that_comes_too_late_says_so(
    visits: Cluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, calls = times_to_live._Fenced.prepare, []

    def slow(self: object, event: object, metadata: object) -> None:
        prepare(self, event, metadata)  # type: ignore[arg-type]
        calls.append(event)
        if len(calls) == 1:
            clock.forward(HOUR)

    monkeypatch.setattr(times_to_live._Fenced, "prepare", slow)
    administration.set_ttl(visits, TABLE, "seen", 2 * DAY)
    assert len(calls) == 2
    assert clock() // 1000 - visits.metadata.table(TABLE).lifetimes[-1].since < SKEW_MICROS // 4

    def fenced(*arguments: object) -> None:
        clock.forward(HOUR)

    monkeypatch.setattr(times_to_live, "fence_replicas", fenced)
    with pytest.raises(ReplicasNotFenced, match="held up for so long") as late:
        administration.set_ttl(visits, TABLE, "seen", 3 * DAY)
    assert "epochlake repair air.visits" in str(late.value.hint)


# What compaction drops


def test_compaction_drops_what_had_expired_an_hour_ago_and_is_old_enough_to_forget(
    visits: Cluster, clock: Clock
) -> None:
    put(visits, clock, *((key, 0) for key in range(10)))
    put(visits, clock, *((key, 0) for key in range(10, 20)))
    put(visits, clock, (99, None), (98, -DAY))
    clock.forward(DAY + HOUR / 2)
    compacted(visits)
    assert (shown(visits), stored(visits)) == ({98, 99}, 22)
    put(visits, clock, (97, 0))
    clock.forward(HOUR)
    compacted(visits, grace=30 * DAY)
    assert (shown(visits), stored(visits)) == ({97, 98, 99}, 23)
    put(visits, clock, (97, 0))
    compacted(visits)
    assert (shown(visits), stored(visits)) == ({97, 98, 99}, 3)


def test_a_row_that_was_written_lately_stays_for_its_grace_however_long_ago_it_has_expired(
    visits: Cluster, clock: Clock
) -> None:
    clock.forward(2 * DAY)
    put(visits, clock, *((key, 9 * DAY) for key in range(10)))
    put(visits, clock, *((key, 0) for key in range(10, 20)))
    compacted(visits, grace=HOUR / 2)
    assert (shown(visits), stored(visits)) == (set(range(10, 20)), 20)
    clock.forward(HOUR)
    put(visits, clock, *((key, 0) for key in range(10, 20)))
    compacted(visits, grace=HOUR / 2)
    assert (shown(visits), stored(visits)) == (set(range(10, 20)), 10)


def test_a_compaction_whose_clock_has_jumped_ahead_drops_no_row_that_others_show(
    visits: Cluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "behind", clocks.behind)
    put(visits, clock, *((key, 0) for key in range(10)))
    put(visits, clock, (1, 0), (10, 3 * DAY))
    clock.forward(60 * DAY)
    compacted(visits)
    assert (shown(visits), stored(visits)) == (set(), 11), "what had expired before the jump may go another time"
    clock.forward(-60 * DAY)
    assert shown(visits) == {*range(10)}


@pytest.mark.parametrize(("days", "said"), [(60, "ahead of"), (-5, "behind")])
def test_no_time_to_live_begins_by_a_clock_that_the_root_contradicts(
    visits: Cluster, clock: Clock, monkeypatch: pytest.MonkeyPatch, days: int, said: str
) -> None:
    put(visits, clock, (1, 0), (2, 2 * DAY))
    before = visits.metadata.epoch
    monkeypatch.setattr(right_clocks, "ahead_of", clocks.ahead_of)
    clock.forward(days * DAY)
    for change in (
        lambda: administration.set_ttl(visits, TABLE, "seen", timedelta(days=90)),
        lambda: administration.drop_ttl(visits, TABLE),
        lambda: administration.create_table(visits, "air.late", COLUMNS, ["id"], tablets=1, ttl=("seen", DAY)),
    ):
        with pytest.raises(Rejected, match=f"seconds {said} that of") as refused:
            change()
        assert refused.value.code == Code.INVALID_TTL
    clock.forward(-days * DAY)
    assert (visits.catch_up().epoch, shown(visits)) == (before, {1})
    administration.set_ttl(visits, TABLE, "seen", timedelta(days=90))
    assert shown(visits) == {1}, "what has expired stays so"


def test_files_of_nothing_but_expired_rows_are_a_reason_to_compact_once(visits: Cluster, clock: Clock) -> None:
    put(visits, clock, *((key, 0) for key in range(40)))
    administration.alter_table(visits, TABLE, add=["more string"])
    usual = CompactionPolicy()
    assert not compacted(visits, usual).compacted
    clock.forward(DAY + 2 * HOUR)
    assert due_tables(visits, [TABLE]) == []  # its grace is ten days
    done = compacted(visits, usual)
    assert {one.reason for one in done.compacted} == {EXPIRED}
    assert (stored(visits), shown(visits)) == (0, set())
    assert not compacted(visits, usual).compacted
    put(visits, clock, *((key, 2 * DAY) for key in range(40)))
    clock.forward(11 * DAY)
    assert [due.table for due in due_tables(visits, [TABLE])] == [TABLE]


def due_for_expired_rows(cluster: Cluster) -> int:
    """How many ranges `status` shows as due because of expired rows."""
    found = measured(cluster, cluster.catch_up(), cluster.metadata.table(TABLE)).backlog
    return 0 if found is None else found.expired


def test_status_shows_what_is_due_because_rows_have_expired_and_until_when_it_is(visits: Cluster, clock: Clock) -> None:
    put(visits, clock, *((key, 0) for key in range(40)))
    seen = []
    for days in (0, 0.9, 0.2, 8.8, 0.05, 1.1, 0.1, 5):
        clock.forward(days * DAY)
        told = due_for_expired_rows(visits)
        assert (told > 0) == bool(due_tables(visits, [TABLE]))
        seen.append(told)
    # A day to live, ten of grace, from then on: and nothing was written.
    assert seen == [0, 0, 0, 0, 0, 2, 2, 2]
    administration.set_ttl(visits, TABLE, "seen", 30 * DAY)
    assert due_for_expired_rows(visits) == 2, "what has expired stays so"
    compact(visits, TABLE)
    assert due_for_expired_rows(visits) == 0
    put(visits, clock, *((key, 0) for key in range(40)))
    clock.forward(35 * DAY)
    assert due_for_expired_rows(visits) == 0
    administration.set_ttl(visits, TABLE, "seen", DAY)
    assert due_for_expired_rows(visits) == 0 == len(due_tables(visits, [TABLE]))
    clock.forward(11 * DAY)
    assert due_for_expired_rows(visits) == 2


def test_status_reads_few_footers_once_each_and_none_after_one_that_cannot_be_read(
    visits: Cluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, proper = [], expired_files._read_newest
    fails: list[str] = []

    def counted(column: str, copy: ExpectedFile) -> int | None:
        read.append(copy.file.file_id)
        if fails:
            raise StorageUnavailable("it does not answer")
        return proper(column, copy)

    monkeypatch.setattr(expired_files, "_read_newest", counted)
    monkeypatch.setattr(expired_files, "MOST_LOOKED_AT", 4)
    monkeypatch.setattr(expired_files, "THREADS", 2)
    for number in range(3):
        put(visits, clock, *((key, 0) for key in range(number * 10, number * 10 + 10)))
    files = len({file for one in snapshots(visits) for file in one.all_files})
    assert due_for_expired_rows(visits) == len(read) == 0
    clock.forward(12 * DAY)
    fails.append("now")
    assert (due_for_expired_rows(visits), len(read)) == (0, 2)
    fails.clear()
    assert (due_for_expired_rows(visits), len(read)) == (0, 2), "not at once again"
    told, looked = [], []
    for _ in range(4):
        clock.forward(700)
        told.append(due_for_expired_rows(visits))
        looked.append(len(read) - 2)
    assert looked == [min(files, 4 * number) for number in range(1, 5)]
    assert (sorted(told), told[-1]) == (told, 2)
    assert len(set(read)) == files


def snapshots(cluster: Cluster) -> Iterable[ReplicaSnapshot]:
    with Gate(cluster, "look") as gate:
        return gate.planning.open_for_write(cluster.metadata.table(TABLE))[0].values()


def test_a_row_that_has_expired_goes_only_with_all_that_it_shadows(
    visits: Cluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(visits, clock, *((key, -99 * DAY) for key in range(10)), note="would come back")
    with monkeypatch.context() as patched:
        patched.setattr(commit_phase, "commit_files", reaching({1, 2}))
        put(visits, clock, *((key, 0) for key in range(10)))
    clock.forward(2 * DAY)
    # Without repair replicas differ: then nothing is forgotten.
    compact(visits, TABLE, policy=EVERYTHING, tombstone_grace_seconds=0.0, repairing=False)
    assert shown(visits) == set()
    compacted(visits)
    assert (shown(visits), stored(visits)) == (set(), 0)
    repair(visits, TABLE)
    assert shown(visits) == set()


@pytest.mark.parametrize("volumes", [set(), {1}, {1, 2}])
def test_a_longer_ttl_after_a_compaction_that_was_killed_shows_the_same_rows_on_every_replica(
    visits: Cluster, clock: Clock, monkeypatch: pytest.MonkeyPatch, volumes: set[int]
) -> None:
    put(visits, clock, *((key, 0) for key in range(10)))
    put(visits, clock, *((key, -HOUR * key) for key in range(5, 15)))
    clock.forward(DAY + 10 * HOUR)
    with monkeypatch.context() as patched:
        patched.setattr(compaction, "commit_files", reaching(volumes))
        compacted(visits)
    administration.set_ttl(visits, TABLE, "seen", 30 * DAY)
    kept = set(range(11, 15))
    every = [shown(visits, consistency=level) for level in ("ONE", "QUORUM", "ALL") for _ in range(3)]
    assert every == [kept] * 9
    repair(visits, TABLE)
    compacted(visits)
    assert [shown(visits, consistency="ONE") for _ in range(3)] == [kept] * 3


def test_a_compaction_that_knows_only_the_shorter_ttl_drops_no_row_that_the_longer_one_shows(
    visits: Cluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(visits, clock, *((key, 0) for key in range(10)))
    put(visits, clock, *((key, -HOUR * key) for key in range(5, 15)))
    clock.forward(DAY + 10 * HOUR)
    before, known = shown(visits), Expiry.of

    def paused(table: Table, at: int) -> Expiry:
        with another(visits) as other:
            administration.set_ttl(other, TABLE, "seen", 30 * DAY)
        clock.forward(20 * DAY)
        return known(table, at)

    with monkeypatch.context() as patched:
        # The worst: whoever made the TTL longer was killed before it fenced a replica, and the compaction lands on one.
        patched.setattr(times_to_live, "fence_replicas", lambda *_: None)
        patched.setattr(times_to_live, "SKEW_MICROS", 1 << 60)
        patched.setattr(compaction.Expiry, "of", paused)
        patched.setattr(compaction, "commit_files", reaching({1}))
        compacted(visits)
    assert [shown(visits, consistency=level) for level in ("ONE", "ONE", "ONE", "QUORUM", "ALL")] == [before] * 5
    assert before == {11, 12, 13, 14}


def test_a_table_that_is_append_only_loses_what_has_expired_and_nothing_else(cluster: Cluster, clock: Clock) -> None:
    administration.create_table(cluster, TABLE, COLUMNS, ["id"], tablets=2, append_only=True, ttl=("seen", DAY))
    put(cluster, clock, *((key, 0) for key in range(20)))
    put(cluster, clock, *((key, -DAY) for key in range(5, 25)), (99, None))
    assert (len(shown(cluster)), cluster.count(TABLE)) == (26, 41)
    clock.forward(DAY + 2 * HOUR)
    assert (shown(cluster), cluster.count(TABLE)) == ({*range(5, 25), 99}, 21)
    compacted(cluster)
    assert (shown(cluster), cluster.count(TABLE), stored(cluster)) == ({*range(5, 25), 99}, 21, 21)


def test_rows_expire_by_a_column_of_the_primary_key(cluster: Cluster, clock: Clock) -> None:
    columns = [("id", "bigint", False), ("seen", "timestamp", False), ("note", "string", True)]
    administration.create_table(cluster, TABLE, columns, ["id", "seen"], tablets=2, ttl=("seen", DAY))
    put(cluster, clock, *((key, 0) for key in range(9)), *((key, 2 * DAY) for key in range(5, 20)))
    put(cluster, clock, *((key, 3 * DAY) for key in range(20)))
    assert shown(cluster) == set(range(9))
    assert shown(cluster, where=pc.field("note") == "4") == {4}
    clock.forward(2 * HOUR)
    compacted(cluster)
    assert (shown(cluster), stored(cluster)) == (set(range(9)), 9)


def test_what_compaction_has_dropped_is_there_as_of_a_time_before_it_expired(visits: Cluster, clock: Clock) -> None:
    put(visits, clock, *((key, 0) for key in range(10)))
    put(visits, clock, *((key, -DAY) for key in range(5)))
    clock.forward(60)
    before = clock.now()
    clock.forward(DAY + 2 * HOUR)
    compacted(visits)
    assert (shown(visits), stored(visits)) == (set(range(5)), 5)
    assert shown(visits, as_of=before) == set(range(10))
    assert shown(visits, as_of=clock.now()) == set(range(5))


def test_of_two_changes_at_once_each_is_planned_on_what_the_other_has_left(visits: Cluster, clock: Clock) -> None:
    def change(seconds: int) -> None:
        with another(visits) as program:
            administration.set_ttl(program, TABLE, "seen", seconds)

    with ThreadPoolExecutor(4) as programs:
        list(programs.map(change, [2 * DAY, 3 * DAY, 4 * DAY, 5 * DAY]))
    had = visits.catch_up().table(TABLE).lifetimes
    assert sorted(one.seconds or 0 for one in had) == [DAY, 2 * DAY, 3 * DAY, 4 * DAY, 5 * DAY]
    assert [one.since for one in had] == sorted({one.since for one in had})


class Model:
    """The rows, and before which moment they have expired: never less than it was when anybody looked."""

    def __init__(self, seconds: int | None) -> None:
        self.seconds = seconds
        self._rows: dict[int, datetime | None] = {}
        self._bound = datetime(1970, 1, 1, tzinfo=UTC)

    def write(self, now: datetime, rows: Mapping[int, int | None]) -> None:
        self._rows |= {key: None if ago is None else now - timedelta(seconds=ago) for key, ago in rows.items()}

    def delete(self, keys: Iterable[int]) -> None:
        self._rows = {key: seen for key, seen in self._rows.items() if key not in keys}

    def shown(self, now: datetime) -> set[int]:
        if self.seconds is not None:
            self._bound = max(self._bound, now - timedelta(seconds=self.seconds))
        return {key for key, seen in self._rows.items() if seen is None or seen >= self._bound}


def test_random_histories_show_what_a_model_shows_at_every_level(
    visits: Cluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = int(DRAW)
    print(f"EPOCHLAKE_TESTS_DRAW={seed} takes the same histories")
    model = Model(DAY)
    for history in range(some(12, 1)):
        dice = random.Random(f"ttl {seed} {history}")
        for _ in range(12):
            step = dice.choice(["write", "write", "delete", "wait", "wait", "alter", "compact", "killed", "repair"])
            if step == "write":
                written = {key: dice.choice([None, 0, HOUR, DAY, -DAY]) for key in dice.sample(range(30), 8)}
                model.write(put(visits, clock, *written.items()), written)
            elif step == "delete":
                keys = dice.sample(range(30), 3)
                visits.delete(TABLE, [{"id": key} for key in keys])
                model.delete(keys)
            elif step == "wait":
                clock.forward(dice.choice([HOUR, 5 * HOUR, DAY]))
            elif step == "alter":
                model.shown(clock.now())
                model.seconds = dice.choice([one for one in (None, HOUR * 3, DAY, 3 * DAY) if one != model.seconds])
                if model.seconds is None:
                    administration.drop_ttl(visits, TABLE)
                else:
                    administration.set_ttl(visits, TABLE, "seen", model.seconds)
            elif step == "repair":
                repair(visits, TABLE)
            else:
                reached = {1, 2, 3} if step == "compact" else set(dice.sample([1, 2, 3], dice.randint(0, 2)))
                with monkeypatch.context() as patched:
                    patched.setattr(compaction, "commit_files", reaching(reached))
                    compacted(visits, grace=dice.choice([0.0, 0.0, DAY]))
            now = model.shown(clock.now())
            for level in ("ONE", "QUORUM", "ALL"):
                assert shown(visits, consistency=level) == now, f"history {history}, after {step}, at {level}"
