"""Reads as of an earlier time: what they show under compaction, deletes that are forgotten, vacuum and moves."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from epochlake.jobs import administration
from epochlake.jobs.administration.past_rows import rollback
from epochlake.jobs.administration.unused_files import sweep
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.gate import commit_phase
from epochlake.jobs.gate.arrow_reading import question
from epochlake.jobs.gate.errors import ConsistencyNotReached, HistoryNotKept
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.gate.moments import micros_of, moment_of
from epochlake.jobs.gate.past_reading import MergeTree
from epochlake.jobs.gate.writing import Written
from epochlake.jobs.replicas.ledger import Merge, Replaced
from epochlake.jobs.replicas.replica import open_snapshot
from epochlake.jobs.replicas.scanning import scan
from epochlake.jobs.upkeep import compaction, vacuum
from epochlake.metastore import announcing
from epochlake.metastore.coordination.leases import Lease
from epochlake.placement.errors import InvalidRequest

from tests.support.clusters import FOUR, SmallCluster, placed, without_zookeeper
from tests.support.compactions import Released, reaching
from tests.support.versions import compact_here, write_versions

TABLE = "air.flights"
Shown = dict[int, str]


@pytest.fixture(autouse=True)
def leases(monkeypatch: pytest.MonkeyPatch) -> list[Lease]:
    """The live pipelines, as compaction and vacuum see them; none."""
    live: list[Lease] = []
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(Cluster, "coordination", lambda *_: None)
    monkeypatch.setattr(compaction, "live_leases", lambda cluster: list(live))
    monkeypatch.setattr("epochlake.jobs.administration.unused_files.live_leases", lambda cluster: list(live))
    monkeypatch.setattr(vacuum, "CLOCK_MARGIN_MS", -10_000)  # also what was replaced just now
    monkeypatch.setattr(announcing, "announce", lambda coordination, lease: Released())
    return live


@pytest.fixture
def table(tmp_path: Path) -> SmallCluster:
    return placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"})


def now() -> int:
    """A time that is over: what is written after this is later."""
    time.sleep(0.002)
    return time.time_ns() // 1000 - 1


def at(table: SmallCluster, when: int, **options: object) -> Shown:
    """The rows as they were, as id -> note."""
    rows = table.cluster.scan(TABLE, as_of=moment_of(when), **options).read_all().to_pylist()  # type: ignore[arg-type]
    assert len({row["id"] for row in rows}) == len(rows), "a row is shown twice"
    return {row["id"]: row["note"] for row in rows}


def at_last(table: SmallCluster) -> Shown:
    """The rows as they are."""
    return {row["id"]: row["note"] for row in table.cluster.scan(TABLE).read_all().to_pylist()}


def change(table: SmallCluster, notes: Mapping[int, str | None]) -> None:
    """Write rows, id -> note; None: delete it."""
    written = [{"id": row, "note": note} for row, note in notes.items() if note is not None]
    deleted = [{"id": row} for row, note in notes.items() if note is None]
    if written:
        table.cluster.write(TABLE, written)
    if deleted:
        table.cluster.delete(TABLE, deleted)


def vacuum_all(table: SmallCluster) -> None:
    """Vacuum what no table keeps for its history, however young."""
    sweep(table.cluster, older_than_seconds=0)


def changed_thrice(table: SmallCluster) -> dict[int, Shown]:
    """Writes, upserts and deletes with the rows that there are after each: time -> rows."""
    rows: Shown = {}
    known = {}
    for part in range(3):
        notes: Mapping[int, str | None] = {
            row: None if part == 2 and row % 5 == 0 else f"{row} of {part}" for row in range(part * 4, 20)
        }
        change(table, notes)
        rows = {**rows, **{row: note for row, note in notes.items() if note is not None}}
        rows = {row: note for row, note in rows.items() if notes.get(row, "") is not None}
        known[now()] = rows
    return known


def test_a_read_as_of_a_time_shows_the_rows_that_there_were(table: SmallCluster) -> None:
    known = changed_thrice(table)
    for when, rows in known.items():
        assert at(table, when) == rows
        assert table.cluster.count(TABLE, as_of=moment_of(when)) == len(rows)
        assert table.cluster.get(TABLE, 8, as_of=moment_of(when)) == {"id": 8, "note": rows[8]}
        some = table.cluster.scan(TABLE, keys=[{"id": 10}, {"id": 77}], as_of=moment_of(when)).read_all().to_pylist()
        assert [row["note"] for row in some] == [note for row, note in rows.items() if row == 10]


@pytest.mark.parametrize("grace", [0.0, 1e6], ids=["deletes-forgotten", "deletes-kept"])
def test_compaction_changes_no_time_before_it(table: SmallCluster, grace: float) -> None:
    known = changed_thrice(table)
    for _ in range(2):
        compact_here(table, tombstone_grace_seconds=grace)
        for when, rows in known.items():
            for level in ("ONE", "QUORUM", "ALL"):
                assert at(table, when, consistency=level) == rows
        change(table, {7: "late", 30: "new"})
        known[now()] = {**list(known.values())[-1], 7: "late", 30: "new"}
    compact_here(table, tombstone_grace_seconds=grace)
    for when, rows in known.items():
        assert at(table, when) == rows


def test_a_table_of_which_all_was_deleted_and_forgotten_is_read_as_it_was(table: SmallCluster) -> None:
    change(table, dict.fromkeys(range(10), "there"))
    there = now()
    change(table, dict.fromkeys(range(10)))
    compact_here(table)
    assert table.cluster.count(TABLE) == 0
    assert at(table, there) == dict.fromkeys(range(10), "there")


def test_a_key_that_was_deleted_and_forgotten_is_looked_up_as_it_was(table: SmallCluster) -> None:
    change(table, dict.fromkeys(range(30), "there"))
    there = now()
    change(table, dict.fromkeys(range(29)))
    compact_here(table)
    for row in range(30):
        assert table.cluster.get(TABLE, row, as_of=moment_of(there)) == {"id": row, "note": "there"}
        assert (table.cluster.get(TABLE, row) is None) == (row < 29)


def test_a_row_of_a_clock_that_was_ahead_does_not_hide_what_was_before_it(table: SmallCluster) -> None:
    write_versions(table, {1: "before"})
    ahead = now() + 3_600_000_000
    write_versions(table, {1: "ahead"}, at=ahead)
    write_versions(table, {2: "ahead"}, at=ahead)
    compact_here(table)
    assert at(table, ahead - 1_000_000) == {1: "before"}
    assert at(table, ahead) == {1: "ahead", 2: "ahead"}


def test_a_compaction_by_a_clock_that_is_behind_hides_no_earlier_one(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    then = now()
    there, late = dict.fromkeys(range(20), "there"), dict.fromkeys(range(50, 58), "late")
    write_versions(table, there, at=then)
    write_versions(table, dict.fromkeys(range(15)), at=then + 10)
    compact_here(table)
    write_versions(table, late, at=then)
    with monkeypatch.context() as patch:
        patch.setattr(compaction.time, "time_ns", lambda: (then - 3_600_000_000) * 1000)
        compact_here(table, tombstone_grace_seconds=1e6)
    assert at(table, then + 1) == {**there, **late}
    assert at(table, now()) == {**dict.fromkeys(range(15, 20), "there"), **late}


def test_half_a_compaction_shows_the_past_on_every_set_of_replicas(table: SmallCluster) -> None:
    known = changed_thrice(table)
    for reached in ("A", "BC"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compaction, "commit_files", reaching(table.volumes(reached)))
            compact_here(table)
        for lost in ("", "A", "B", "C"):
            with table.without(lost):
                for when, rows in known.items():
                    assert at(table, when, consistency="QUORUM") == rows


def test_vacuum_takes_the_past_of_a_table_that_keeps_none_and_the_read_says_so(table: SmallCluster) -> None:
    known = changed_thrice(table)
    compact_here(table)
    later = now()
    vacuum_all(table)
    for when in known:
        with pytest.raises(HistoryNotKept) as refused:
            at(table, when)
        assert when < refused.value.since <= later
        assert refused.value.exit_code == 1
    last = list(known.values())[-1]
    assert at(table, refused.value.since) == at(table, later) == last


def test_a_table_that_keeps_its_history_is_read_as_it_was_after_vacuum(table: SmallCluster) -> None:
    administration.keep_history(table.cluster, TABLE, 3600.0)
    known = changed_thrice(table)
    compact_here(table)
    vacuum_all(table)
    report = sweep(table.cluster, older_than_seconds=0)
    assert sum(one.history for one in report.replicas) > 0
    assert all(one.history_size > one.history for one in report.replicas)
    for when, rows in known.items():
        assert at(table, when) == rows
    administration.keep_history(table.cluster, TABLE, 0.0)
    vacuum_all(table)
    with pytest.raises(HistoryNotKept):
        at(table, min(known))


def test_one_whole_copy_on_any_replica_is_enough(table: SmallCluster) -> None:
    known = changed_thrice(table)
    compact_here(table)
    for node in "AB":
        live = {file.path for file in open_snapshot(table.address(node)).all_files.values()}
        for path in Path(table.address(node).uri).glob("_tablet=*/*.parquet"):
            if f"{path.parent.name}/{path.name}" not in live:
                path.unlink()
    for when, rows in known.items():
        assert at(table, when) == rows
    with table.without("C"), pytest.raises(HistoryNotKept) as refused:
        at(table, min(known))
    assert refused.value.exit_code == 75
    assert refused.value.unreachable


def test_a_torn_copy_of_the_past_is_passed_over(table: SmallCluster) -> None:
    known = changed_thrice(table)
    compact_here(table)
    for node in "AB":
        live = {file.path for file in open_snapshot(table.address(node)).all_files.values()}
        for path in Path(table.address(node).uri).glob("_tablet=*/*.parquet"):
            if f"{path.parent.name}/{path.name}" not in live:
                path.write_bytes(path.read_bytes()[:-20])
    for when, rows in known.items():
        assert at(table, when) == rows
    assert not table.cluster.damage.of(table.table.table_id)


def test_what_is_no_past_is_refused(table: SmallCluster) -> None:
    change(table, {1: "one"})
    with pytest.raises(InvalidRequest, match="still to come"):
        table.cluster.count(TABLE, as_of=datetime.now(UTC) + timedelta(hours=1))
    with pytest.raises(InvalidRequest, match="no zone"):
        table.cluster.count(TABLE, as_of=datetime(2013, 1, 1))
    with pytest.raises(InvalidRequest, match="cannot be understood"):
        table.cluster.count(TABLE, as_of="yesterday")
    with pytest.raises(HistoryNotKept, match="it was made later") as refused:
        table.cluster.count(TABLE, as_of="2013-01-01T10:00:00+01:00")
    assert table.cluster.count(TABLE, as_of=moment_of(refused.value.since)) == 0


def test_moments_keep_their_microseconds() -> None:
    for micros in (0, 1, 1_700_000_000_123_457, 4_102_444_799_999_999, -1):
        assert micros_of(moment_of(micros)) == micros_of(moment_of(micros).isoformat()) == micros


def test_what_is_no_time_is_said_to_be_none() -> None:
    with pytest.raises(InvalidRequest, match=r"^5 is no time\. Give a text in ISO 8601 or a datetime\. Say the zone"):
        micros_of(5)


def differences(table: SmallCluster, first: int, last: int | None) -> dict[int, tuple[str, str | None, str | None]]:
    """Rows by their id: in what way they differ, the note before and after."""
    until = None if last is None else moment_of(last)
    rows = table.cluster.changed_rows(TABLE, moment_of(first), until).read_all().to_pylist()
    return {row["id"]: (row["_change"], row["_before"] and row["_before"]["note"], row["note"]) for row in rows}


def test_the_rows_that_differ_between_two_times_are_told_with_what_they_were(table: SmallCluster) -> None:
    change(table, dict.fromkeys(range(6), "old"))
    first = now()
    change(table, {1: "new", 2: None, 7: "came"})
    change(table, {3: "passing", 8: "passing"})
    change(table, {3: "old", 8: None})
    last = now()
    expected = {1: ("changed", "old", "new"), 2: ("removed", "old", "old"), 7: ("added", None, "came")}
    assert differences(table, first, last) == expected
    compact_here(table)
    assert differences(table, first, last) == differences(table, first, None) == expected
    assert differences(table, last, None) == {}
    with pytest.raises(InvalidRequest, match="is before"):
        differences(table, last, first)


def test_a_rollback_writes_the_rows_as_they_were_and_deletes_what_came(table: SmallCluster) -> None:
    change(table, dict.fromkeys(range(6), "old"))
    first = now()
    rows = at(table, first)
    change(table, {1: "new", 2: None, 7: "came"})
    compact_here(table)
    told = rollback(table.cluster, TABLE, moment_of(first), dry_run=True)
    assert (told.rewritten, told.brought_back, told.deleted, told.epoch) == (1, 1, 1, None)
    assert len(at(table, now())) == 6
    assert at(table, now()) != rows
    done = rollback(table.cluster, TABLE, moment_of(first))
    assert (done.rewritten, done.brought_back, done.deleted, done.already) == (1, 1, 1, False)
    assert at(table, now()) == rows
    change(table, {9: "later"})
    again = rollback(table.cluster, TABLE, moment_of(first), until=done.until)
    assert again.already
    assert at(table, now()) == {**rows, 9: "later"}
    assert rollback(table.cluster, TABLE, moment_of(now())).epoch is None


def test_a_rollback_that_failed_is_ended_by_the_same_call_and_lands_once(table: SmallCluster) -> None:
    change(table, dict.fromkeys(range(6), "old"))
    first = now()
    rows = at(table, first)
    change(table, {1: "new", 2: None, 7: "came"})
    until = moment_of(now())
    with table.without("BC"), pytest.raises(ConsistencyNotReached):
        rollback(table.cluster, TABLE, moment_of(first), until=until)
    with table.without("B"), pytest.raises(ConsistencyNotReached):
        rollback(table.cluster, TABLE, moment_of(first), until=until, consistency="ALL")
    assert not rollback(table.cluster, TABLE, moment_of(first), until=until, consistency="ALL").already
    assert at(table, now()) == rows
    change(table, {1: "later"})
    assert rollback(table.cluster, TABLE, moment_of(first), until=until).already
    assert at(table, now()) == {**rows, 1: "later"}


@pytest.mark.parametrize("append_only", [False, True])
def test_random_histories_are_read_as_they_were_or_refused(tmp_path: Path, append_only: bool) -> None:
    seed = random.randrange(1 << 30)
    drawn = random.Random(seed)
    table = placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"}, append_only=append_only)
    known: dict[int, Shown] = {}
    rows: Shown = {}
    refused = shown = 0
    for step in range(30):
        what = drawn.choice(["write"] * 4 + ["delete"] * (0 if append_only else 2) + ["compact", "compact", "vacuum"])
        if what == "compact":
            compact_here(table, tombstone_grace_seconds=drawn.choice([0.0, 1e6]))
        elif what == "vacuum" and step > 20:
            vacuum_all(table)
        else:
            keys = [100 * step + key for key in range(5)] if append_only else drawn.sample(range(12), 5)
            notes = {key: None if what == "delete" else f"{key} of {step}" for key in keys}
            with table.without(drawn.choice(["", "A", "B"])):
                change(table, notes)
            rows = {key: note for key, note in {**rows, **notes}.items() if note is not None}
        known[now()] = rows
    for when, then in known.items():
        try:
            found = at(table, when, consistency=drawn.choice(["QUORUM", "ALL"]))
        except HistoryNotKept as error:
            refused += int(error.since > when)
            continue
        assert found == then, f"seed {seed}, as of {when}"
        shown += 1
    assert shown > 0, f"seed {seed}"
    assert shown + refused == len(known), f"seed {seed}"


def test_a_range_may_have_been_merged_for_years() -> None:
    depth = 5_000
    merges = {
        f"c-{number}": Merge(
            "t", f"c-{number}", 0, 9, 1, number, (Replaced(f"c-{number - 1}" if number else "a", 0, 9),)
        )
        for number in range(depth)
    }
    assert MergeTree(merges, 0).made_at(f"c-{depth - 1}") == depth - 1
    late = {**merges, "c-0": msgspec.structs.replace(merges["c-0"], at=depth)}
    assert MergeTree(late, 0).made_at(f"c-{depth - 1}") == depth


def clock(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    """The clock of this machine is so far ahead of others."""
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + seconds * 1_000_000_000)


def test_a_clock_that_is_behind_leaves_out_no_row_that_was_acknowledged(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(table, dict.fromkeys(range(6), "old"))
    first = now()
    change(table, {1: "new", 2: None, 7: "came"})
    expected = {1: ("changed", "old", "new"), 2: ("removed", "old", "old"), 7: ("added", None, "came")}
    clock(monkeypatch, -3600)
    assert differences(table, first, None) == expected
    compact_here(table)  # the delete is told by no file any more
    assert differences(table, first, None) == expected


def test_rows_of_a_clock_that_was_ahead_are_rolled_back_and_stay_so(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(table, dict.fromkeys(range(6), "old"))
    first = now()
    ahead = now() + 3_600_000_000
    with monkeypatch.context() as patch:
        clock(patch, 3600)
        change(table, {1: "new", 2: None, 7: "came"})
    done = rollback(table.cluster, TABLE, moment_of(first))
    assert (done.rewritten, done.brought_back, done.deleted) == (1, 1, 1)
    assert at_last(table) == dict.fromkeys(range(6), "old")
    assert micros_of(done.until) >= ahead
    compact_here(table, tombstone_grace_seconds=1e6)
    assert at_last(table) == dict.fromkeys(range(6), "old")
    change(table, {1: "later"})
    assert rollback(table.cluster, TABLE, moment_of(first), until=done.until).already
    assert at_last(table) == {**dict.fromkeys(range(6), "old"), 1: "later"}


def test_a_rollback_by_a_clock_that_is_behind_wins_over_what_is_there(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(table, dict.fromkeys(range(6), "old"))
    first = now()
    change(table, {1: "new", 2: None, 7: "came"})
    clock(monkeypatch, -3600)
    done = rollback(table.cluster, TABLE, moment_of(first))
    assert (done.rewritten, done.brought_back, done.deleted) == (1, 1, 1)
    assert at_last(table) == dict.fromkeys(range(6), "old")


def test_a_rollback_that_failed_says_with_which_end_it_is_the_same(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(table, dict.fromkeys(range(6), "old"))
    first = now()
    change(table, {1: "new", 2: None, 7: "came"})
    write = Gate.write

    def write_without(gate: Gate, *asked: object, **options: object) -> Written:
        with table.without("BC"):
            return write(gate, *asked, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Gate, "write", write_without)
        with pytest.raises(ConsistencyNotReached) as failed:
            rollback(table.cluster, TABLE, moment_of(first))
    [until] = re.findall(r"with until (\S+) lands", failed.value.hint)
    change(table, {8: "between"})
    done = rollback(table.cluster, TABLE, moment_of(first), until=until)
    assert (done.until, done.deleted) == (until, 1)
    assert at(table, now()) == {**dict.fromkeys(range(6), "old"), 8: "between"}


def test_a_rollback_that_failed_on_most_replicas_counts_as_none_for_the_next_one(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(table, dict.fromkeys(range(6), "old"))
    first = now()
    change(table, {1: "new", 2: None, 7: "came"})
    with monkeypatch.context() as patch:
        patch.setattr(commit_phase, "commit_files", reaching(table.volumes("A")))
        with pytest.raises(ConsistencyNotReached):
            rollback(table.cluster, TABLE, moment_of(first))
    with table.without("C"):
        rollback(table.cluster, TABLE, moment_of(first))
    for lost in "ABC":
        with table.without(lost):
            assert at_last(table) == dict.fromkeys(range(6), "old"), lost


def test_vacuum_leaves_alone_what_a_running_read_of_the_past_needs(
    table: SmallCluster, leases: list[Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vacuum, "CLOCK_MARGIN_MS", 0)
    known = changed_thrice(table)
    compact_here(table)
    now()
    with Gate(table.cluster, "history") as gate:
        plan = gate.plan_read(table.table, None, None, min(known))
        assert gate._presence is not None
        lease = gate._presence._lease
        assert lease.needs_from <= min(known) // 1000 < lease.started_at
        leases.append(lease)
        vacuum_all(table)
        of = question(table.table)
        rows = [row for batch in scan(plan, of.asked) for row in batch.to_pylist()]
        assert {row["id"]: row["note"] for row in rows} == known[min(known)]
    leases.clear()
    now()
    vacuum_all(table)
    with pytest.raises(HistoryNotKept):
        at(table, min(known))
