"""What a name of a merge or an overwrite stands for beside its rows, and what the clauses for all columns ask for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.compute as pc
import pytest
from epochlake.jobs import administration
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.gate.merge_journal import Intent, MergeJournal
from epochlake.metastore.errors import Rejected, StorageUnavailable
from epochlake.placement.errors import InvalidRequest

from tests.support.clusters import placed, without_zookeeper

STOCK = "air.stock"
COLUMNS = [("id", "bigint", False), ("n", "int", True), ("city", "string", True)]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    without_zookeeper(monkeypatch)
    with placed(tmp_path, {"A": ("dc1", "r1")}, "A", replication={"dc1": 1}).cluster as opened:
        administration.create_table(opened, STOCK, COLUMNS, ["id"], tablets=1)
        yield opened


def rows_of(cluster: Cluster) -> dict[Any, tuple[Any, ...]]:
    return {row["id"]: (row["n"], row["city"]) for row in cluster.scan(STOCK).read_all().to_pylist()}


def put(cluster: Cluster, *rows: tuple[int, int, str]) -> None:
    cluster.write(STOCK, [{"id": key, "n": n, "city": city} for key, n, city in rows])


def test_a_name_that_counts_is_refused_for_another_part_or_other_clauses(cluster: Cluster) -> None:
    """The rows are the same, none or one; what is asked is not."""
    put(cluster, *((key, key % 3, "Rome") for key in range(9)))
    none = cluster.scan(STOCK).read_all().slice(0, 0)
    first, second = pc.field("n") == 0, pc.field("n") == 1
    assert cluster.overwrite(STOCK, none, where=first, batch="run").deleted == 3
    for _ in range(2):
        with pytest.raises(Rejected, match="another part of the table"):
            cluster.overwrite(STOCK, none, where=second, batch="run")
    with pytest.raises(Rejected, match="another part of the table"):
        cluster.overwrite(STOCK, none, batch="run")
    assert cluster.overwrite(STOCK, none, where=first, batch="run").already
    assert {row[0] for row in rows_of(cluster).values()} == {1, 2}

    one = cluster.merge(STOCK, [{"id": 2}])
    tens = one.when_matched_update({"n": "10", "city": "'Oslo'"}, condition="target.n < 5")
    assert tens.execute(batch="run").updated == 1
    others = (
        one.when_matched_update({"n": "20", "city": "'Oslo'"}, condition="target.n < 5"),
        one.when_matched_update({"n": "10", "city": "'Oslo'"}),
        one.when_matched_update({"n": "10"}, condition="target.n < 5"),
        one.when_matched_delete(),
        tens.when_not_matched_insert({"n": "1"}),
    )
    for other in others:
        with pytest.raises(Rejected, match="other clauses"):
            other.execute(batch="run")
    again = one.when_matched_update({"city": "'Oslo'", "n": "10"}, condition="target.n<5").execute(batch="run")
    assert (again.already, again.updated) == (True, 1)
    assert rows_of(cluster)[2] == (10, "Oslo")


def test_a_name_of_which_nothing_counts_may_be_tried_with_other_clauses(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(cluster, (1, 1, "Rome"))
    with monkeypatch.context() as patched:

        def refused(*_: object) -> bool:
            raise StorageUnavailable("the root does not answer")

        patched.setattr(MergeJournal, "put", refused)
        with suppress(StorageUnavailable):
            cluster.merge(STOCK, [{"id": 1}]).when_matched_update({"n": "7"}).execute(batch="run")
    assert cluster.merge(STOCK, [{"id": 1}]).when_matched_update({"n": "8"}).execute(batch="run").updated == 1
    assert rows_of(cluster)[1][0] == 8


def test_a_merge_that_an_earlier_version_has_made_is_known_whatever_is_asked(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(cluster, (1, 1, "Rome"))
    merge = cluster.merge(STOCK, [{"id": 1, "n": 5}]).when_matched_update({"n": "target.n + source.n"})
    with monkeypatch.context() as patched:
        intend = MergeJournal.intend

        def as_before(journal: MergeJournal, batch: str, before: int, intent: Intent) -> bool:
            return intend(journal, batch, before, msgspec.structs.replace(intent, asked=msgspec.UNSET))

        patched.setattr(MergeJournal, "intend", as_before)
        assert merge.execute(batch="run").updated == 1
    assert merge.execute(batch="run").already
    assert rows_of(cluster)[1][0] == 6


def test_a_program_that_merges_all_columns_goes_on_when_the_table_gets_more(cluster: Cluster) -> None:
    put(cluster, (1, 1, "Rome"))
    administration.alter_table(cluster, STOCK, add=["z int default 7", "s string"])
    cluster.write(STOCK, [{"id": 2, "n": 2, "city": "Oslo", "z": 9, "s": "x"}])
    row = {"n": 5, "city": "Bonn"}
    merge = cluster.merge(STOCK, [{"id": key, **row} for key in (1, 2, 3)])
    done = merge.when_matched_update_all().when_not_matched_insert_all().execute()
    assert (done.updated, done.inserted) == (2, 1)
    found = {one["id"]: one for one in cluster.scan(STOCK).read_all().to_pylist()}
    assert found == {
        1: {"id": 1, **row, "z": 7, "s": None},
        2: {"id": 2, **row, "z": 9, "s": "x"},
        3: {"id": 3, **row, "z": 7, "s": None},
    }
    administration.alter_table(cluster, STOCK, rename={"n": "m"})
    for clause in (merge.when_matched_update_all(), merge.when_not_matched_insert_all()):
        with pytest.raises(InvalidRequest, match=r"no column m, and a clause takes all.*n is called m now"):
            clause.execute()
