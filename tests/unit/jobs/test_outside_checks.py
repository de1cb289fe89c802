"""What is looked at from outside of a history is noticed when the rule behind it is broken, and else nothing is."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from epochlake.jobs.gate.commit_phase import CommitPhase
from epochlake.jobs.gate.planning import Planning
from epochlake.jobs.replicas.schema import DELETED, WRITTEN_AT
from epochlake.jobs.testing import log_checkers, row_checkers
from epochlake.jobs.testing.log_histories import log_history
from epochlake.jobs.testing.replica_files import Unreadable, decoded
from epochlake.jobs.testing.row_histories import row_history
from epochlake.jobs.testing.scenario import Fault, Operation, Part, Scenario, Settings
from epochlake.metastore.log.delta import DeltaLog


def written_and_read() -> Scenario:
    """A pipeline that writes, and one that reads and is not told by ZooKeeper of the epochs that an operator makes."""
    writes = tuple(Operation("write", 0.3, f"w{number}", (0, 1), "QUORUM") for number in range(3))
    reads = tuple(Operation("read", 0.4, level="QUORUM") for _ in range(4))
    switches = tuple(Operation("balance", 0.3, on=bool(number % 2)) for number in range(4))
    parts = (
        Part("pipeline0", "pipeline", (writes,)),
        Part("pipeline1", "pipeline", (reads,)),
        Part("operator", "operator", (switches,)),
    )
    late = Fault("cut", 0.2, "pipeline1", seconds=2.5)
    return Scenario("rows", 3, 3.0, Settings(tablets=1, replication=3), parts, (late,))


def appended_at_once() -> Scenario:
    """Two processes that append to a log on a real table, of which one stands still right before its commit."""
    commits = {
        name: tuple(Operation("commit", 0.0, f"{name}{n}", number=7, seconds=60.0) for n in range(3))
        for name in ("p0", "p1")
    }
    parts = tuple(Part(name, "commits", (asked,)) for name, asked in commits.items())
    still = Fault("pause", 0.0, seconds=15.0, when="log write")
    return Scenario("log", 3, 25.0, Settings(delta=True, compact_every=1000), parts, (still,))


def test_a_read_that_is_planned_at_an_epoch_of_before_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert row_checkers.violations(row_history(written_and_read())) == []
    monkeypatch.setattr(Planning, "catch_up_before", lambda planning, table: planning.require(table))
    found = row_checkers.violations(row_history(written_and_read()))
    assert any("has planned a read at epoch" in one for one in found), found


def test_an_acknowledgement_without_receipts_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CommitPhase, "_receipted", lambda *_: None)
    found = row_checkers.violations(row_history(written_and_read()))
    assert any("the root has a receipt of [] only" in one for one in found), found


def test_what_a_lost_append_has_stored_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert log_checkers.violations(log_history(appended_at_once())) == []
    monkeypatch.setattr(DeltaLog, "_discard", lambda *_: None)
    found = log_checkers.violations(log_history(appended_at_once()))
    assert any("no commit of the log names" in one for one in found), found


def test_a_file_of_which_the_name_of_a_column_has_rotted_is_unreadable() -> None:
    rows = {"id": [1], "note": ["w"], WRITTEN_AT: [5], DELETED: [False]}
    assert [row.key for row in decoded(stored(rows))] == [1]
    for name in rows:
        with pytest.raises(Unreadable):
            list(decoded(stored({f"{name}x" if one == name else one: values for one, values in rows.items()})))


def stored(rows: dict[str, list[object]]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(rows), sink)
    return bytes(sink.getvalue())
