"""A generated column comes between the staging of a write and its landing, or in the middle of that, or is killed.

A row that lands after the replicas know of the column has its value, whichever way it came. Null is only in rows that a
replica had before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from epochlake.jobs import administration
from epochlake.jobs.administration import altering
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.gate import commit_phase, writing
from epochlake.jobs.gate.commit_phase import CommitPhase
from epochlake.jobs.gate.errors import ConsistencyNotReached
from epochlake.jobs.gate.merge import _PlannedMerge
from epochlake.jobs.gate.merging import Merging
from epochlake.jobs.replicas.commits import commit_files
from epochlake.jobs.replicas.replica import ReplicaAddress
from epochlake.jobs.upkeep.repair import repair
from epochlake.metastore.configuration import Configuration, PipelineSettings
from epochlake.metastore.errors import Rejected
from epochlake.placement.errors import InvalidRequest

from tests.support.clusters import FOUR, SmallCluster, placed, without_zookeeper
from tests.support.command_line import CommandLine
from tests.support.killed_access import Killed, killed_at
from tests.support.landing import before_landing, between_commits
from tests.support.slices import some

TABLE = "air.flights"
SIZE = "size int generated always as (length(note))"
ROWS = [{"id": number, "note": "x" * (number + 1)} for number in range(8)]
WHOLE = {number: number + 1 for number in range(8)}


def made(path: Path, append_only: bool = False) -> SmallCluster:
    configuration = Configuration(pipeline=PipelineSettings(attempts=2))
    return placed(path, FOUR, {0: "ABC", 1: "BCA"}, configuration=configuration, append_only=append_only)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(commit_phase, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(writing, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(altering, "BARRIER_SECONDS", 0.5)


@pytest.fixture(params=[False, True], ids=["keyed", "append-only"])
def table(request: pytest.FixtureRequest, tmp_path: Path, quick: None) -> Iterator[SmallCluster]:
    one = made(tmp_path, request.param)
    with one.cluster:
        yield one


@pytest.fixture
def keyed(tmp_path: Path, quick: None) -> Iterator[SmallCluster]:
    one = made(tmp_path)
    with one.cluster:
        yield one


def alter(cluster: Cluster, definition: str = SIZE) -> None:
    administration.alter_table(cluster, TABLE, add=[definition])


def sizes(cluster: Cluster) -> dict[int, int | None]:
    """What is generated for each row; each is shown once."""
    found = cluster.scan(TABLE, consistency="ALL").read_all().to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row["size"] for row in found}


@pytest.mark.parametrize("batch", [None, "b"], ids=["without a name", "named"])
def test_what_was_staged_before_lands_with_the_value(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch, batch: str | None
) -> None:
    before_landing(monkeypatch, lambda: alter(table.cluster))
    written = table.cluster.write(TABLE, ROWS, consistency="ALL", batch=batch)
    assert (written.rows, written.already, sizes(table.cluster)) == (8, False, WHOLE)
    if batch is not None:
        assert table.cluster.write(TABLE, ROWS, consistency="ALL", batch=batch).already
        assert sizes(table.cluster) == WHOLE


def test_each_of_several_that_come_one_after_another_is_computed(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    land = CommitPhase.land
    left = [f"c{number} int generated always as (length(note) + {number})" for number in range(3)]

    def landed(phase: CommitPhase) -> object:
        if left:
            alter(table.cluster, left.pop())
        return land(phase)

    monkeypatch.setattr(CommitPhase, "land", landed)
    table.cluster.write(TABLE, ROWS[:1], consistency="ALL")
    [row] = table.cluster.scan(TABLE).read_all().to_pylist()
    assert row == {"id": 0, "note": "x", "c0": 1, "c1": 2, "c2": 3}


def test_a_column_that_is_dropped_and_made_anew_meanwhile_is_computed_as_the_new_one(
    keyed: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    alter(keyed.cluster)

    def anew() -> None:
        administration.alter_table(keyed.cluster, TABLE, drop=["size"])
        alter(keyed.cluster, "size int generated always as (length(note) * 10)")

    before_landing(monkeypatch, anew)
    keyed.cluster.write(TABLE, ROWS[:2], consistency="ALL")
    assert sizes(keyed.cluster) == {0: 10, 1: 20}


def test_a_batch_of_changes_lands_with_the_value_and_its_deletes(
    keyed: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyed.cluster.write(TABLE, ROWS[:4], consistency="ALL")
    before_landing(monkeypatch, lambda: alter(keyed.cluster))
    keyed.cluster.write(TABLE, ROWS[4:6], deletes=[{"id": 0}, {"id": 1}], consistency="ALL")
    assert sizes(keyed.cluster) == {2: None, 3: None, 4: 5, 5: 6}


def test_deletes_land_as_they_were_staged(keyed: SmallCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    keyed.cluster.write(TABLE, ROWS[:2], consistency="ALL")
    before_landing(monkeypatch, lambda: alter(keyed.cluster))
    keyed.cluster.delete(TABLE, [{"id": 0}], consistency="ALL")
    assert sizes(keyed.cluster) == {1: None}


def test_rows_of_which_it_cannot_be_computed_are_refused_and_none_lands(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_landing(
        monkeypatch, lambda: alter(table.cluster, "size int generated always as (length(note) * 2000000000)")
    )
    with pytest.raises(InvalidRequest, match=r"'size', .* cannot be computed of these rows"):
        table.cluster.write(TABLE, ROWS[:2], consistency="ALL")
    repair(table.cluster, TABLE)
    assert sizes(table.cluster) == {}


@pytest.mark.parametrize("batch", [None, "b"], ids=["without a name", "named"])
def test_what_a_minority_had_before_is_a_row_of_before_where_it_cannot_be_replaced(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch, batch: str | None
) -> None:
    """It stays as it is in an append-only table, where it would be shown twice, and in a named batch, which somebody
    may know of already. Nothing is shown twice, and nothing is lost.
    """
    with monkeypatch.context() as patched:
        between_commits(patched, table, "C", lambda: alter(table.cluster))
        table.cluster.write(TABLE, ROWS, consistency="QUORUM", batch=batch)
    repair(table.cluster, TABLE)
    replaced = batch is None and not table.table.append_only
    assert sizes(table.cluster) == (WHOLE if replaced else dict.fromkeys(WHOLE))
    if batch is not None:
        table.cluster.write(TABLE, ROWS, consistency="ALL", batch=batch)
        assert sizes(table.cluster) == dict.fromkeys(WHOLE)


@pytest.mark.parametrize("level", ["ONE", "QUORUM"])
def test_a_write_that_met_no_fence_and_finds_the_column_afterwards_writes_its_rows_again(
    keyed: SmallCluster, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    """As where who changes the table is killed between its commit and the fences, or has not reached some replica."""
    proper, once = altering.fence_replicas, [True]

    def landed(address: ReplicaAddress, *args: object, **rest: object) -> object:
        outcome = commit_files(address, *args, **rest)  # type: ignore[arg-type]
        if once:
            once.clear()
            monkeypatch.setattr(altering, "fence_replicas", lambda *_: None)
            alter(keyed.cluster)
            monkeypatch.setattr(altering, "fence_replicas", proper)
        return outcome

    monkeypatch.setattr(commit_phase, "commit_files", landed)
    monkeypatch.setattr(altering._Fenced, "_let_merges_end", lambda *_: None)
    keyed.cluster.write(TABLE, ROWS, consistency=level)
    assert sizes(keyed.cluster) == WHOLE


def test_nothing_is_staged_again_that_a_replica_which_does_not_answer_may_show_besides(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = made(tmp_path, append_only=True)

    def change() -> None:
        table.lose("C")
        alter(table.cluster)

    with table.cluster:
        with monkeypatch.context() as patched:
            between_commits(patched, table, "C", change)
            with pytest.raises(ConsistencyNotReached, match="may hold a part that nobody else has"):
                table.cluster.write(TABLE, ROWS, consistency="QUORUM")
        table.bring_back("C")
        repair(table.cluster, TABLE)
        assert sizes(table.cluster) == dict.fromkeys(WHOLE)


def test_a_batch_whose_process_ended_before_it_landed_lands_with_the_value_when_it_comes_again(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_: CommitPhase) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(CommitPhase, "land", killed)
        with suppress(Killed):
            table.cluster.write(TABLE, ROWS, consistency="ALL", batch="b")
    alter(table.cluster)
    assert not table.cluster.write(TABLE, ROWS, consistency="ALL", batch="b").already
    assert sizes(table.cluster) == WHOLE
    with pytest.raises(Rejected, match="batch 'b'"):
        table.cluster.write(TABLE, ROWS[1:], consistency="ALL", batch="b")


def test_a_file_that_is_loaded_lands_with_the_value(
    grown: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown.done("table", "create", TABLE, "--column", "id bigint, note string", "--primary-key", "id")
    (tmp_path / "rows.csv").write_text("id,note\n1,x\n2,xx\n")
    before_landing(monkeypatch, lambda: grown.done("table", "alter", TABLE, "--add", SIZE))
    grown.done("load", TABLE, str(tmp_path / "rows.csv"))
    assert {row["id"]: row["size"] for row in grown.done("query", TABLE)} == {1: 1, 2: 2}


@pytest.mark.parametrize("moment", ["before its rows are looked at again", "after that"])
def test_a_merge_that_is_planned_before_computes_it_also_where_who_changed_the_table_was_killed(
    keyed: SmallCluster, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Who changes the table lets merges end before it returns; a killed one does not."""
    keep, still_holds, once = Merging._keep, _PlannedMerge.still_holds, [True]

    def change() -> None:
        if once:
            once.clear()
            monkeypatch.setattr(altering, "fence_replicas", lambda *_: None)
            monkeypatch.setattr(altering._Fenced, "_let_merges_end", lambda *_: None)
            with Cluster(keyed.cluster.configuration) as other:
                alter(other)

    def kept(merging: Merging, *args: object) -> bool:
        if moment != "after that":
            change()
        return keep(merging, *args)  # type: ignore[arg-type]

    def holds(planned: _PlannedMerge) -> bool:
        held = still_holds(planned)
        change()
        return held

    monkeypatch.setattr(Merging, "_keep", kept)
    monkeypatch.setattr(_PlannedMerge, "still_holds", holds)
    keyed.cluster.merge(TABLE, pa.Table.from_pylist(ROWS)).when_not_matched_insert_all().execute()
    assert not once
    assert sizes(keyed.cluster) == WHOLE


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_write_that_is_killed_at_any_access_behind_a_change_leaves_no_null(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Its rows are there with their values after repair, or not at all; the same batch comes to its end then."""
    with made(tmp_path).cluster as cluster:
        for step in count(1, some(1, 5)):
            name, column = f"b{step}", f"size{step}"
            rows = [{"id": 10 * step + one, "note": "xxx"} for one in range(4)]
            ended = False
            with monkeypatch.context() as patched, ExitStack() as killing, suppress(Killed):

                def change(column: str = column, step: int = step, killing: ExitStack = killing) -> None:
                    alter(cluster, f"{column} int generated always as (length(note))")
                    killing.enter_context(killed_at(step, after=after))

                before_landing(patched, change)
                cluster.write(TABLE, rows, consistency="QUORUM", batch=name)
                ended = True
            repair(cluster, TABLE)
            assert null_in(cluster, column, rows) == 0, step
            cluster.write(TABLE, rows, consistency="ALL", batch=name)
            assert null_in(cluster, column, rows) == 0, step
            if ended:
                break
        assert step > 8


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_change_that_is_killed_at_any_access_leaves_no_null_in_what_lands_afterwards(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    with made(tmp_path).cluster as cluster:
        for step in count(1, some(1, 5)):
            column = f"size{step}"
            rows = [{"id": 10 * step + one, "note": "xxx"} for one in range(4)]
            ended: list[bool] = []

            def change(step: int = step, column: str = column, ended: list[bool] = ended) -> None:
                with Cluster(cluster.configuration) as other, suppress(Killed):
                    with killed_at(step, after=after):
                        alter(other, f"{column} int generated always as (length(note))")
                    ended.append(True)

            with monkeypatch.context() as patched:
                before_landing(patched, change)
                cluster.write(TABLE, rows, consistency="QUORUM")
            repair(cluster, TABLE)
            if column in {one.name for one in cluster.catch_up().table(TABLE).columns}:
                assert null_in(cluster, column, rows) == 0, step
            if ended:
                break
        assert step > 8


def null_in(cluster: Cluster, column: str, rows: list[dict[str, object]]) -> int:
    """How many of these rows are there, and have null in a column."""
    wanted = {row["id"] for row in rows}
    found = cluster.scan(TABLE, consistency="ALL").read_all().to_pylist()
    return sum(row[column] is None for row in found if row["id"] in wanted)
