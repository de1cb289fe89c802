"""What is looked at from outside of a history is noticed when the rule behind it is broken, and else nothing is."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from epochlake.jobs.administration import unused_files
from epochlake.jobs.gate import verified_reading
from epochlake.jobs.gate.commit_phase import CommitPhase
from epochlake.jobs.gate.planning import Planning
from epochlake.jobs.replicas.change_entries import Totals
from epochlake.jobs.replicas.change_readers import Readers
from epochlake.jobs.replicas.schema import DELETED, WRITTEN_AT
from epochlake.jobs.testing import log_checkers, log_histories, row_checkers
from epochlake.jobs.testing.keeping import Kept
from epochlake.jobs.testing.log_histories import log_history
from epochlake.jobs.testing.nemesis import FOLLOWING
from epochlake.jobs.testing.power import restore
from epochlake.jobs.testing.replica_files import Unreadable, decoded
from epochlake.jobs.testing.row_histories import row_history
from epochlake.jobs.testing.scenario import Fault, Operation, Part, Scenario, Settings
from epochlake.jobs.testing.world import ROOT, World
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


def read_and_cleaned_up() -> Scenario:
    """A pipeline that has begun before what it may read is merged, and is cleaned up by somebody else."""
    writes = tuple(Operation("write", 0.2, f"w{number}", (0,), "ALL") for number in range(3))
    lives = Operation("read", 6.0, level="QUORUM")
    upkeep = (Operation("compact", 2.0, number=2), Operation("vacuum", 2.5), Operation("vacuum", 1.0))
    parts = (Part("pipeline0", "pipeline", ((*writes, lives),)), Part("upkeep", "upkeep", (upkeep,)))
    settings = Settings(delta=True, tablets=1, replication=3, clock_margin=1.0)
    return Scenario("rows", 3, 8.0, settings, parts)


def test_a_file_is_noticed_that_a_pipeline_may_read_and_vacuum_deletes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert row_checkers.violations(row_history(read_and_cleaned_up())) == []
    monkeypatch.setattr(unused_files, "live_leases", lambda _: [])
    found = row_checkers.violations(row_history(read_and_cleaned_up()))
    assert any("pipeline0 lives, and vacuum has deleted" in one for one in found), found


def test_a_copy_with_a_damaged_end_is_noticed_that_a_read_is_planned_with(monkeypatch: pytest.MonkeyPatch) -> None:
    writes = tuple(Operation("write", 0.2, f"w{number}", (0, 1), "ALL") for number in range(2))
    reads = tuple(Operation("read", 0.3, level="QUORUM") for _ in range(4))
    parts = (Part("pipeline0", "pipeline", ((*writes, *reads),)),)
    rots = Fault("flipped bit", 0.8, place="/disks/n1")  # with this seed, in a footer
    scenario = Scenario("rows", 2, 3.0, Settings(tablets=1, replication=3, append_only=True), parts, (rots,))
    assert row_checkers.violations(row_history(scenario)) == []
    monkeypatch.setattr(verified_reading, "_damaged", lambda _: [])
    found = row_checkers.violations(row_history(scenario))
    assert any("whose end was damaged before it began" in one for one in found), found


REPLICA = "/disks/n1/air/flights"


def kept_of(world: World) -> tuple[Kept, str]:
    """What is looked at when a vacuum has ended, and the only file of a replica table."""
    table = REPLICA
    log = f"{table}/_delta_log/{0:020}.json"
    world.disk.make_directory("/disks")
    restore(world.disk, "/disks", {log: b'{"add": {"path": "t/f.parquet"}}\n', f"{table}/t/f.parquet": b"rows"})
    return Kept(world, lambda _: True, loses=False), f"{table}/t/f.parquet"


@pytest.mark.parametrize(
    ("left", "said"),
    [("f.parquet", ""), (".f.parquet.vacuum-1", "under another name, and it is live"), ("", "which is live")],
)
def test_a_live_file_is_noticed_that_vacuum_has_not_left_where_it_was(left: str, said: str) -> None:
    with World(3) as world:
        kept, path = kept_of(world)
        with kept.cleaning(lambda: [REPLICA]):
            data = world.disk.read(path)
            world.disk.delete(path)
            if left:
                world.disk.write(path.replace("f.parquet", left), data, new=True)
        assert [said in one for one in kept.wrong] == [True] * bool(said)


def test_what_was_over_before_a_pipeline_began_may_go() -> None:
    with World(3) as world:
        kept, path = kept_of(world)
        log = path.replace("t/f.parquet", f"_delta_log/{1:020}.json")
        world.disk.write(log, b'{"remove": {"path": "t/f.parquet"}}\n', new=True)

        def work() -> None:
            with kept.living("one", [REPLICA]), kept.cleaning(lambda: [REPLICA]):
                world.disk.delete(path)

        world.until_done(world.run(world.process("somebody"), work))
        assert kept.wrong == []


def test_commits_of_the_log_are_noticed_for_which_no_checkpoint_stands_that_is_on_the_disk() -> None:
    with World(3, delta=True) as world:
        world.found()
        log = f"{ROOT}/log/_delta_log"
        checkpoint = f"{log}/{3:020}.checkpoint.parquet"
        world.cuttable.write(checkpoint, b"a checkpoint", new=True)
        world.disk.write(f"{log}/{4:020}.json", b"", new=True)
        assert log_histories.only_in_memory(world) == []
        for version in range(4):
            if world.disk.status(f"{log}/{version:020}.json") is not None:
                world.disk.delete(f"{log}/{version:020}.json")
        [said] = log_histories.only_in_memory(world)
        assert said == "the commits of the log before 4 were deleted, and no checkpoint of them is on the disk"
        world.cuttable.sync([checkpoint], [log])
        assert log_histories.only_in_memory(world) == []


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


def followed(changes: str) -> Scenario:
    """A pipeline that writes, a follower of the changes that is killed between two batches, and who keeps them up."""
    writes = tuple(Operation("write", 0.2, f"w{number}", tuple(range(8)), "QUORUM") for number in range(6))
    follows = tuple(Operation("follow", 0.25, "f0") for _ in range(8))
    keeps = tuple(Operation("keep up changes", 0.2) for _ in range(12))
    parts = (
        Part("pipeline0", "pipeline", (writes,)),
        Part("follower0", "follower", (follows,)),
        Part("settler0", "upkeep", (keeps,)),
    )
    settings = Settings(tablets=4, replication=2, changes=changes, append_only=True)
    return Scenario("rows", 5, 3.0, settings, parts, (Fault("kill", 0.0, "follower0", when=FOLLOWING, nth=3),))


def test_changes_that_go_before_their_readers_have_them_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert row_checkers.violations(row_history(followed("held"))) == []
    monkeypatch.setattr(Readers, "all", lambda _: [])
    found = row_checkers.violations(row_history(followed("held")))
    assert any("f0 had to begin again" in one for one in found), found


def test_what_operators_are_told_of_a_stream_is_compared_with_what_readers_are_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Totals, "with_write", lambda totals, files: totals)
    found = row_checkers.violations(row_history(followed("kept")))
    assert any("the stream is said to have 0 rows" in one for one in found), found
