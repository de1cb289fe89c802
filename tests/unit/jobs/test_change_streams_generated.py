"""What a write is in its table's stream that is staged again as a generated column has come: one change of each row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from epochlake.jobs import administration
from epochlake.jobs.administration import altering
from epochlake.jobs.administration.change_streams import keep_changes
from epochlake.jobs.gate import commit_phase, writing
from epochlake.jobs.gate.errors import ConsistencyNotReached
from epochlake.jobs.replicas.commits import commit_files
from epochlake.jobs.replicas.replica import ReplicaAddress
from epochlake.jobs.upkeep.change_streams import keep_up
from epochlake.jobs.upkeep.repair import repair

from tests.support.changes import FLIGHTS, ONE_TRY, alone, replica_files, stream_of
from tests.support.clusters import FOUR, SmallCluster, placed
from tests.support.killed_access import Killed
from tests.support.landing import before_landing, between_commits

SIZE = "size int generated always as (length(note))"
ROWS = [{"id": number, "note": "x" * (number + 1)} for number in range(8)]
WHOLE = {number: number + 1 for number in range(8)}


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    alone(monkeypatch)
    monkeypatch.setattr(writing, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(altering, "BARRIER_SECONDS", 0.5)


def made(path: Path, append_only: bool) -> SmallCluster:
    """A table with a stream, of two tablets; only the first one is on node C."""
    small = placed(path, FOUR, {0: "ABC", 1: "ABX"}, configuration=ONE_TRY, append_only=append_only)
    keep_changes(small.cluster, FLIGHTS)
    return small


@pytest.fixture(params=[False, True], ids=["keyed", "append-only"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallCluster]:
    small = made(tmp_path, request.param)
    with small.cluster:
        yield small


def alter(small: SmallCluster) -> None:
    administration.alter_table(small.cluster, FLIGHTS, add=[SIZE])


def sizes(small: SmallCluster) -> dict[int, int | None]:
    """What is generated for each row as reads show it; each is shown once."""
    found = small.cluster.scan(FLIGHTS, consistency="ALL").read_all().to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row["size"] for row in found}


def changed(small: SmallCluster) -> dict[int, int | None]:
    """What is generated in the changes, none of which is late; each row has one. Nothing may still land."""
    report = keep_up(small.cluster, stream_of(small))
    found = [row for batch in small.cluster.changes(FLIGHTS) for row in batch.to_pylist()]
    assert report.open == 0
    assert not any(row["_late"] for row in found)
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row["size"] for row in found}


@pytest.mark.parametrize("batch", [None, "b"], ids=["without a name", "named"])
def test_what_was_staged_before_and_landed_nowhere_is_one_change(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch, batch: str | None
) -> None:
    before_landing(monkeypatch, lambda: alter(table))
    table.cluster.write(FLIGHTS, ROWS, consistency="ALL", batch=batch)
    assert changed(table) == sizes(table) == WHOLE


@pytest.mark.parametrize("batch", [None, "b"], ids=["without a name", "named"])
def test_what_a_minority_had_before_is_one_change(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch, batch: str | None
) -> None:
    """Rows of the first tablet are on C when the column comes, and those of the other one are nowhere."""
    with monkeypatch.context() as patched:
        between_commits(patched, table, "C", lambda: alter(table))
        table.cluster.write(FLIGHTS, ROWS, consistency="QUORUM", batch=batch)
    assert changed(table) == sizes(table)
    repair(table.cluster, FLIGHTS)
    shown = sizes(table)
    assert shown.keys() == WHOLE.keys()
    replaced = batch is None and not table.table.append_only
    assert (None in shown.values()) != replaced
    assert {key: size for key, size in shown.items() if size is not None}.items() <= WHOLE.items()
    table.cluster.write(FLIGHTS, [{"id": 100, "note": "x"}])
    assert changed(table) == {**shown, 100: 1}


@pytest.mark.parametrize("level", ["ONE", "QUORUM"])
def test_what_met_no_fence_and_is_written_again_is_one_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    proper, once = altering.fence_replicas, [True]
    small = made(tmp_path, False)

    def landed(address: ReplicaAddress, *args: Any, **rest: Any) -> object:
        outcome = commit_files(address, *args, **rest)
        if once:
            once.clear()
            monkeypatch.setattr(altering, "fence_replicas", lambda *_: None)
            alter(small)
            monkeypatch.setattr(altering, "fence_replicas", proper)
        return outcome

    monkeypatch.setattr(commit_phase, "commit_files", landed)
    monkeypatch.setattr(altering._Fenced, "_let_merges_end", lambda *_: None)
    with small.cluster:
        small.cluster.write(FLIGHTS, ROWS, consistency=level)
        assert not once
        assert changed(small) == sizes(small) == WHOLE


@pytest.mark.parametrize("batch", [None, "b"], ids=["without a name", "named"])
def test_a_write_that_fails_when_it_is_written_again_is_in_the_stream_as_far_as_reads_show_it(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch, batch: str | None
) -> None:
    def change() -> None:
        alter(table)
        table.lose("A")
        table.lose("B")

    with monkeypatch.context() as patched:
        between_commits(patched, table, "C", change)
        with pytest.raises(ConsistencyNotReached):
            table.cluster.write(FLIGHTS, ROWS, consistency="QUORUM", batch=batch)
    table.bring_back("A")
    table.bring_back("B")
    repair(table.cluster, FLIGHTS)
    keep_up(table.cluster, stream_of(table))
    found = [row for part in table.cluster.changes(FLIGHTS) for row in part.to_pylist()]
    counted = [row for row in found if not row["_late"]]
    assert {row["id"]: row["size"] for row in counted} == sizes(table)
    if table.table.append_only:
        assert len(found) == len(counted) == len(sizes(table))


def test_what_a_later_try_of_a_batch_has_staged_anew_is_not_brought_back_by_who_settles_the_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try has died with its first tablet on C; what it had staged of the other one is lost since, but for
    the copy of the stream.
    """
    small = made(tmp_path, True)

    def committed(address: ReplicaAddress, *args: Any, **rest: Any) -> object:
        if address.volume_id != small.volume("C"):
            raise Killed
        return commit_files(address, *args, **rest)

    with small.cluster:
        with monkeypatch.context() as patched:
            patched.setattr(commit_phase, "commit_files", committed)
            with pytest.raises(Killed):
                small.cluster.write(FLIGHTS, ROWS, consistency="QUORUM", batch="b")
        on_c = small.files_on("C")
        for path in replica_files(small):
            if path.stem not in on_c:
                path.unlink()
        small.cluster.write(FLIGHTS, ROWS, consistency="QUORUM", batch="b")
        found = keep_up(small.cluster, stream_of(small))
        assert (found.settled, found.open) == (1, 0)
        assert len(small.cluster.scan(FLIGHTS, consistency="ALL").read_all()) == len(ROWS)
        assert sum(batch.num_rows for batch in small.cluster.changes(FLIGHTS)) == len(ROWS)
