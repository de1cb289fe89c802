"""Merges, overwrites and batches of changes without Spark, over real Delta tables."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from epochlake.jobs import administration
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.gate import commit_phase, merge_journal, merging
from epochlake.jobs.gate.errors import ConsistencyNotReached, MergeContended, MergeUnfinished, NamedRanges
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.gate.merge_finishing import MergeFinishing
from epochlake.jobs.gate.merge_journal import Intent, MergeEntry, MergeJournal
from epochlake.jobs.gate.writing import Writing
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.staging import StagedFile
from epochlake.metastore.errors import LogUnreadable, Rejected, StorageUnavailable
from epochlake.metastore.storage import places
from epochlake.placement.consistency import ConsistencyLevel
from epochlake.placement.errors import InvalidRequest

from tests.support import killed_access
from tests.support.clusters import FOUR, placed, without_zookeeper
from tests.support.making import commits_of
from tests.support.slices import some
from tests.support.storages import STORAGE

STOCK = "air.stock"
COLUMNS = [("id", "bigint", False), ("n", "int", True), ("city", "string", True), ("price", "decimal(8,2)", True)]
ADD = {"n": "coalesce(target.n, 0) + source.n"}


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(commit_phase, "RETRY_SECONDS", 0.0)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with placed(tmp_path, FOUR, dict.fromkeys(range(2), "ABC")).cluster as opened:
        administration.create_table(opened, STOCK, COLUMNS, ["id"], tablets=4)
        yield opened


def rows_of(cluster: Cluster) -> dict[Any, tuple[Any, ...]]:
    rows = cluster.scan(STOCK).read_all().to_pylist()
    assert len(rows) == len({row["id"] for row in rows})
    return {row["id"]: (row["n"], row["city"], row["price"]) for row in rows}


def put(cluster: Cluster, *rows: tuple[int, int | None, str | None]) -> None:
    given = [{"id": key, "n": n, "city": city, "price": Decimal(1)} for key, n, city in rows]
    cluster.write(STOCK, given)


def test_upserts_and_deletes_of_one_batch_land_together_and_once(cluster: Cluster) -> None:
    put(cluster, (1, 1, "Rome"), (2, 2, "Oslo"))
    new = [{"id": 3, "n": 3, "city": "Bonn", "price": None}]
    assert not cluster.write(STOCK, new, deletes=[{"id": 1}], batch="one").already
    assert cluster.write(STOCK, new, deletes=[{"id": 1}], batch="one").already
    assert {key: row[0] for key, row in rows_of(cluster).items()} == {2: 2, 3: 3}
    with pytest.raises(Rejected, match="one"):
        cluster.write(STOCK, new, deletes=[{"id": 2}], batch="one")


def test_two_changes_of_one_key_are_refused(cluster: Cluster) -> None:
    with pytest.raises(InvalidRequest, match="same primary key"):
        cluster.write(STOCK, [{"id": 1, "n": 1, "city": "Rome", "price": None}], deletes=[{"id": 1}])
    assert rows_of(cluster) == {}


def test_columns_that_a_merge_does_not_set_keep_their_values_and_new_rows_are_inserted(cluster: Cluster) -> None:
    put(cluster, (1, 1, "Rome"), (2, None, "Oslo"), (3, 7, "Bonn"))
    source = [{"id": 1, "n": 10}, {"id": 2, "n": 20}, {"id": 4, "n": 40}]
    merge = cluster.merge(STOCK, source).when_matched_update(ADD).when_not_matched_insert({"n": "source.n"})
    merged = merge.execute()
    assert (merged.inserted, merged.updated, merged.deleted, merged.planned) == (1, 2, 0, 1)
    one = Decimal("1.00")
    wanted = {1: (11, "Rome", one), 2: (20, "Oslo", one), 3: (7, "Bonn", one), 4: (40, None, None)}
    assert rows_of(cluster) == wanted


def test_the_first_clause_that_a_row_fits_counts(cluster: Cluster) -> None:
    put(cluster, (1, 5, "Rome"), (2, 5, "Oslo"), (3, 5, "Bonn"), (4, None, "Kiel"))
    source = [{"id": key, "gone": key == 1, "more": key * 100} for key in range(1, 7)]
    merged = (
        cluster.merge(STOCK, source)
        .when_matched_delete("source.gone")
        .when_matched_update(
            {"n": "source.more - target.n * 2", "city": "'set'"}, "not target.n is null and source.id < 3"
        )
        .when_matched_update({"city": pc.utf8_upper(pc.field("target.city"))}, "target.n is null")
        .when_not_matched_insert({"n": "source.more", "city": "'it''s new'"}, "source.id = 5")
        .execute()
    )
    assert (merged.inserted, merged.updated, merged.deleted) == (1, 2, 1)
    found = {key: row[:2] for key, row in rows_of(cluster).items()}
    assert found == {2: (190, "set"), 3: (5, "Bonn"), 4: (None, "KIEL"), 5: (500, "it's new")}


def test_insert_if_absent_leaves_rows_that_are_there(cluster: Cluster) -> None:
    put(cluster, (1, 1, "Rome"))
    source = [{"id": key, "n": 9, "city": "new", "price": None} for key in (1, 2)]
    assert cluster.merge(STOCK, source).when_not_matched_insert_all().execute().inserted == 1
    assert {key: row[0] for key, row in rows_of(cluster).items()} == {1: 1, 2: 9}


def test_a_clause_that_sets_a_column_by_its_former_name_is_told_the_new_one(cluster: Cluster) -> None:
    administration.alter_table(cluster, STOCK, rename={"n": "m"})
    with pytest.raises(InvalidRequest, match=r"has no column n; n is called m now\. It has id, m"):
        cluster.merge(STOCK, [{"id": 1}]).when_matched_update({"n": "1"}).execute()


@pytest.mark.parametrize(
    ("source", "clauses", "said"),
    [
        ([{"id": 1, "n": 1}, {"id": 1, "n": 2}], lambda m: m.when_matched_update(ADD), "two rows of the source"),
        ([{"id": None, "n": 1}], lambda m: m.when_matched_update(ADD), "without id"),
        ([{"n": 1}], lambda m: m.when_matched_update(ADD), "column id"),
        ([{"id": 1, "n": 1}], lambda m: m, "no clause"),
        ([{"id": 1, "n": 1}], lambda m: m.when_matched_update({"m": "source.n"}), "no column m"),
        ([{"id": 1, "n": 1}], lambda m: m.when_matched_update({"id": "source.n"}), "primary key"),
        ([{"id": 1, "n": 1}], lambda m: m.when_matched_update({"n": "source.m"}), "source.m"),
        ([{"id": 1, "n": 1}], lambda m: m.when_matched_update({"n": "n + 1"}), "cannot be read at 'n'"),
        ([{"id": 1, "n": 1}], lambda m: m.when_matched_update({"n": "source.n + (1"}), "at its end"),
        ([{"id": 1, "n": 1}], lambda m: m.when_matched_update({"n": "'a'"}), "column n is int, not string"),
        ([{"id": 1, "n": 2**31}], lambda m: m.when_matched_update({"n": "source.n"}), "cannot hold|not bigint|big|fit"),
        ([{"id": 1, "n": 1}], lambda m: m.when_matched_update(ADD, "source.n"), "gives int"),
        ([{"id": 1, "n": 1}], lambda m: m.when_matched_update_all(), "price"),
        ([{"id": 1, "n": 1}], lambda m: m.when_not_matched_insert({"n": "target.n"}), "target.n|computed"),
    ],
)
def test_a_merge_that_does_not_fit_is_refused_and_changes_nothing(
    cluster: Cluster, source: Any, clauses: Any, said: str
) -> None:
    put(cluster, (1, 1, "Rome"))
    before = rows_of(cluster)
    with pytest.raises(InvalidRequest, match=said):
        clauses(cluster.merge(STOCK, source)).execute()
    assert rows_of(cluster) == before


def test_a_merge_of_a_level_that_does_not_see_other_merges_is_refused(cluster: Cluster) -> None:
    with pytest.raises(InvalidRequest, match="ONE"):
        cluster.merge(STOCK, [{"id": 1, "n": 1}]).when_matched_update(ADD).execute(consistency="ONE")


def test_a_named_merge_counts_once_and_refuses_another_source(cluster: Cluster) -> None:
    put(cluster, (1, 1, "Rome"))

    def again(n: int) -> Any:
        merge = cluster.merge(STOCK, [{"id": 1, "n": n}]).when_matched_update(ADD)
        return merge.when_not_matched_insert({"n": "source.n"}).execute(batch="b")

    assert not again(5).already
    assert again(5).already
    put(cluster, (1, 100, "Rome"))
    assert again(5).already
    assert rows_of(cluster)[1][0] == 100
    with pytest.raises(Rejected, match="batch 'b'"):
        again(6)


def test_a_named_merge_that_has_changed_nothing_counts_as_well(cluster: Cluster) -> None:
    merge = cluster.merge(STOCK, [{"id": 1, "n": 5}]).when_matched_update(ADD)
    assert merge.execute(batch="b").updated == 0
    put(cluster, (1, 1, "Rome"))
    assert merge.execute(batch="b").already
    assert rows_of(cluster)[1][0] == 1


def test_a_write_between_the_read_and_the_last_look_has_the_merge_planned_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(cluster, (1, 1, "Rome"))
    stage, times = Writing.stage, []

    def beside(self: Writing, *given: Any) -> Any:
        staged = stage(self, *given)
        times.append(1)
        if len(times) == 1:
            put(cluster, (1, 50, "Bonn"))
        return staged

    monkeypatch.setattr(Writing, "stage", beside)
    merged = cluster.merge(STOCK, [{"id": 1, "n": 5}]).when_matched_update(ADD).execute()
    assert merged.planned == 2
    assert rows_of(cluster)[1][:2] == (55, "Bonn")


def test_a_write_of_other_rows_has_no_merge_planned_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    put(cluster, (1, 1, "Rome"))
    stage = Writing.stage

    def beside(self: Writing, *given: Any) -> Any:
        put(cluster, (2, 50, "Bonn"))
        return stage(self, *given)

    monkeypatch.setattr(Writing, "stage", beside)
    assert cluster.merge(STOCK, [{"id": 1, "n": 5}]).when_matched_update(ADD).execute().planned == 1


def test_merges_at_the_same_time_without_any_lease_lose_nothing(cluster: Cluster) -> None:
    put(cluster, (1, 0, "Rome"))
    done: list[int] = []

    def count(who: int) -> None:
        for number in range(6):
            merge = cluster.merge(STOCK, [{"id": 1, "n": 1}]).when_matched_update(ADD)
            while True:
                try:
                    merge.execute(batch=f"{who}/{number}")
                    break
                except MergeContended:
                    continue
            done.append(1)

    threads = [threading.Thread(target=count, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (rows_of(cluster)[1][0], len(done)) == (24, 24)


def test_a_merge_that_others_overtake_each_time_gives_up_and_has_changed_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(cluster, (1, 0, "Rome"))
    monkeypatch.setattr(merging, "TRIES", 2)
    keep = MergeJournal.keep

    def overtaken(self: MergeJournal, *given: Any) -> None:
        keep(self, *given)
        monkeypatch.setattr(MergeJournal, "keep", keep)
        cluster.merge(STOCK, [{"id": 1, "n": 100}]).when_matched_update(ADD).execute()
        monkeypatch.setattr(MergeJournal, "keep", overtaken)

    monkeypatch.setattr(MergeJournal, "keep", overtaken)
    with pytest.raises(MergeContended, match="2 tries"):
        cluster.merge(STOCK, [{"id": 1, "n": 1}]).when_matched_update(ADD).execute()
    assert rows_of(cluster)[1][0] == 200


@pytest.mark.parametrize("step", ["create_directory", "write_bytes", "sync_always"])
def test_a_merge_whose_copies_go_while_it_makes_them_finds_its_number_taken(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    put(cluster, (1, 0, "Rome"))
    keep = MergeJournal.keep

    def beside(self: MergeJournal, *given: Any) -> None:
        storage = self._storage
        whole = getattr(storage, step)

        def overtaken(*named: Any, **more: Any) -> Any:
            before = whole(*named, **more) if step == "create_directory" else None
            patch.undo()
            cluster.merge(STOCK, [{"id": 1, "n": 100}]).when_matched_update(ADD).execute()
            return before if step == "create_directory" else whole(*named, **more)

        monkeypatch.setattr(MergeJournal, "keep", keep)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(storage, step, overtaken)
            keep(self, *given)

    monkeypatch.setattr(MergeJournal, "keep", beside)
    merged = cluster.merge(STOCK, [{"id": 1, "n": 1}]).when_matched_update(ADD).execute()
    assert merged.planned == 2
    assert rows_of(cluster)[1][0] == 101


class Killed(BaseException):
    """As if the process ended here."""


@pytest.mark.parametrize("at", ["keep", "intend", "put", "finish"])
@pytest.mark.parametrize("after", [False, True])
def test_a_merge_that_is_killed_anywhere_and_tried_again_counts_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, at: str, after: bool
) -> None:
    put(cluster, (1, 1, "Rome"))
    whole = getattr(MergeJournal, at)

    def killed(self: MergeJournal, *given: Any) -> None:
        if after:
            whole(self, *given)
        raise Killed

    merge = cluster.merge(STOCK, [{"id": 1, "n": 5}]).when_matched_update(ADD)
    other = cluster.merge(STOCK, [{"id": 1, "n": 100}]).when_matched_update(ADD)
    with monkeypatch.context() as patch:
        patch.setattr(MergeJournal, at, killed)
        patch.setattr(MergeJournal, "forget", lambda *_: None)
        with pytest.raises(Killed):
            merge.execute(batch="b")
    other.execute()
    merge.execute(batch="b")
    other.execute()
    assert merge.execute(batch="b").already
    assert rows_of(cluster)[1][0] == 206


def test_a_merge_whose_process_was_killed_is_finished_by_the_next_one_though_nothing_staged_is_left(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put(cluster, (1, 1, "Rome"))
    before = {path for path in tmp_path.rglob("*.parquet") if "root" not in path.parts}

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Writing, "land", killed)
        with pytest.raises(Killed):
            cluster.merge(STOCK, [{"id": 1, "n": 5}]).when_matched_update(ADD).execute()
    staged = {path for path in tmp_path.rglob("*.parquet") if "root" not in path.parts} - before
    assert staged
    for path in staged:
        path.unlink()
    cluster.merge(STOCK, [{"id": 1, "n": 100}]).when_matched_update(ADD).execute()
    assert rows_of(cluster)[1][0] == 106
    assert not list((tmp_path / "root" / "merges").rglob("copies/*"))


def test_a_merge_that_counts_and_has_not_reached_its_replicas_says_so_and_is_finished_under_its_name(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(cluster, (1, 1, "Rome"))

    def short(*_: Any, **__: Any) -> None:
        raise ConsistencyNotReached("the write", "QUORUM", 1, NamedRanges("tablet", (), ()), {})

    merge = cluster.merge(STOCK, [{"id": 1, "n": 5}]).when_matched_update(ADD)
    with monkeypatch.context() as patch:
        patch.setattr(Writing, "land", short)
        with pytest.raises(MergeUnfinished, match="count twice"):
            merge.execute(batch="b")
    assert rows_of(cluster)[1][0] == 1
    assert not merge.execute(batch="b").already
    assert merge.execute(batch="b").already
    assert rows_of(cluster)[1][0] == 6


def test_overwriting_leaves_the_new_rows_and_what_was_written_meanwhile(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(cluster, (1, 1, "Rome"), (2, 2, "Oslo"), (3, 3, "Bonn"))
    stage = Writing.stage

    def beside(self: Writing, *given: Any) -> Any:
        monkeypatch.setattr(Writing, "stage", stage)
        staged = stage(self, *given)
        put(cluster, (2, 22, "again"), (9, 9, "new"))
        return staged

    monkeypatch.setattr(Writing, "stage", beside)
    new = [{"id": key, "n": 0, "city": "here", "price": None} for key in (3, 4)]
    merged = cluster.overwrite(STOCK, new)
    assert (merged.inserted, merged.updated, merged.deleted) == (1, 1, 2)
    assert {key: row[0] for key, row in rows_of(cluster).items()} == {2: 22, 3: 0, 4: 0, 9: 9}


def test_a_part_of_a_table_is_overwritten_by_rows_of_that_part(cluster: Cluster) -> None:
    put(cluster, (1, 1, "Rome"), (2, 2, "Oslo"), (13, 3, "Bonn"))
    new = [{"id": 5, "n": 5, "city": None, "price": None}]
    cluster.overwrite(STOCK, new, where=pc.field("id") < 10, batch="day")
    assert cluster.overwrite(STOCK, new, where=pc.field("id") < 10, batch="day").already
    assert set(rows_of(cluster)) == {5, 13}
    with pytest.raises(InvalidRequest, match="1 of the rows"):
        cluster.overwrite(STOCK, new, where=pc.field("id") > 10)
    cluster.overwrite(STOCK, [])
    assert rows_of(cluster) == {}


def test_the_journal_finds_its_tail_whatever_its_hint_says(cluster: Cluster) -> None:
    put(cluster, (1, 0, "Rome"))
    for _ in range(9):
        cluster.merge(STOCK, [{"id": 1, "n": 1}]).when_matched_update(ADD).execute()
    journal = MergeJournal(cluster.storage, cluster.root.merges, cluster.metadata.table(STOCK).table_id)
    assert journal.tail() == 9
    for hint in (b"3", b"", b"x", b"500"):
        cluster.storage.replace_bytes(f"{journal._uri}/hint", hint)
        assert journal.tail() == 9


def test_of_many_that_put_one_entry_into_an_object_store_at_once_one_has_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_journal, "places", _NothingIsLocal())
    told: dict[int, bool] = {}

    def put(number: int) -> None:
        told[number] = merge_journal._put_once(STORAGE, str(tmp_path / "7.json"), str(number).encode())

    for round_of in range(3):
        threads = [threading.Thread(target=put, args=(8 * round_of + number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    [winner] = [number for number, put_it in told.items() if put_it]
    assert merge_journal._read(STORAGE, str(tmp_path / "7.json")) == str(winner).encode()
    assert commits_of(str(tmp_path / "7.json")) == ["00000000000000000000.json"]
    assert merge_journal._read(STORAGE, str(tmp_path / "8.json")) is None


class _NothingIsLocal:
    """Places, as if all of them were in object stores."""

    def __getattr__(self, name: str) -> Any:
        return getattr(places, name)

    def local_path(self, uri: str) -> None:
        return None


def test_a_try_that_wakes_after_others_of_its_name_finds_its_number_taken(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(cluster, (1, 1, "Rome"))
    merge = cluster.merge(STOCK, [{"id": 1, "n": 5}]).when_matched_update(ADD)
    intend = MergeJournal.intend
    asleep: list[tuple[MergeJournal, Intent]] = []

    def stops(self: MergeJournal, batch: str, before: int, intent: Intent) -> bool:
        intend(self, batch, before, intent)
        asleep.append((self, intent))
        raise Killed

    monkeypatch.setattr(MergeJournal, "intend", stops)
    monkeypatch.setattr(MergeJournal, "forget", lambda *_: None)
    for _ in range(2):  # one that sleeps, and one that is killed in the same place
        with pytest.raises(Killed):
            merge.execute(batch="b")
    journal, first = asleep[0]
    assert not journal.put(first.number, MergeEntry(first.attempt, STOCK))
    monkeypatch.setattr(MergeJournal, "intend", intend)
    merge.execute(batch="b")
    assert rows_of(cluster)[1][0] == 6


def test_a_merge_without_rows_changes_nothing_and_names_of_merges_and_overwrites_are_apart(cluster: Cluster) -> None:
    put(cluster, (1, 1, "Rome"), (2, 2, "Oslo"))
    rows = [{"id": 1, "n": 5, "city": "Bonn", "price": None}]
    assert cluster.merge(STOCK, []).when_matched_update(ADD).execute().rows == 0
    cluster.merge(STOCK, rows).when_matched_update_all().execute(batch="b")
    assert cluster.overwrite(STOCK, rows, batch="b").deleted == 1
    assert rows_of(cluster) == {1: (5, "Bonn", None)}


def test_columns_that_change_while_a_merge_lands_do_not_stop_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(cluster, (1, 1, "Rome"))
    keep = MergeJournal.keep

    def altered(self: MergeJournal, *given: Any) -> None:
        keep(self, *given)
        monkeypatch.setattr(MergeJournal, "keep", keep)
        administration.alter_table(cluster, STOCK, add=["kind string default 'plain'"], drop=["city"])

    monkeypatch.setattr(MergeJournal, "keep", altered)
    merge = cluster.merge(STOCK, [{"id": 1, "n": 5}, {"id": 2, "n": 5}])
    merge = merge.when_matched_update(ADD).when_not_matched_insert({"n": "source.n"})
    merge.execute(batch="b")
    assert merge.execute(batch="b").already
    merge.execute(batch="c")
    cluster.merge(STOCK, [{"id": 3}]).when_not_matched_insert({"n": 1}).execute()
    found = {row["id"]: (row["n"], row["kind"]) for row in cluster.scan(STOCK).read_all().to_pylist()}
    assert found == {1: (11, "plain"), 2: (10, "plain"), 3: (1, "plain")}
    assert "city" not in cluster.scan(STOCK).schema.names


def journal_of(cluster: Cluster) -> MergeJournal:
    return MergeJournal(cluster.storage, cluster.root.merges, cluster.catch_up().table(STOCK).table_id)


def killed_when_it_counts(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """A merge of row 1 that counts, and of which nothing has landed; what it has staged."""
    before = {path for path in tmp_path.rglob("*.parquet") if "root" not in path.parts}

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Writing, "land", killed)
        with pytest.raises(Killed):
            cluster.merge(STOCK, [{"id": 1, "n": 5}]).when_matched_update(ADD).execute()
    return sorted({path for path in tmp_path.rglob("*.parquet") if "root" not in path.parts} - before)


def test_damage_of_the_copy_of_a_merge_comes_to_no_replica(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put(cluster, (1, 1, "Rome"))
    for path in killed_when_it_counts(cluster, monkeypatch, tmp_path):
        path.unlink()
    [copy] = (path for path in (tmp_path / "root" / "merges").rglob("copies/*/*") if path.is_file())
    whole = copy.read_bytes()
    copy.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    again = cluster.merge(STOCK, [{"id": 1, "n": 100}]).when_matched_update(ADD)
    with pytest.raises(StorageUnavailable, match="not those that were written"):
        again.execute()
    assert rows_of(cluster)[1][0] == 1
    copy.write_bytes(whole)
    again.execute()
    assert rows_of(cluster)[1][0] == 106


def test_a_flipped_bit_in_an_entry_is_found_and_no_merge_counts_twice(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(cluster, (1, 1, "Rome"))
    merge = cluster.merge(STOCK, [{"id": 1, "n": 5}]).when_matched_update(ADD)
    merge.execute(batch="b")
    entry = Path(journal_of(cluster)._entry_uri(1))
    data = entry.read_bytes()
    at = data.index(b'"attempt":"') + len(b'"attempt":"')
    entry.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(LogUnreadable, match="not those that were written"):
        merge.execute(batch="b")
    entry.write_bytes(data)
    assert merge.execute(batch="b").already
    assert rows_of(cluster)[1][0] == 6


@pytest.mark.parametrize("merges", [1, 4])
def test_where_the_entry_of_a_finished_merge_is_gone_its_number_is_not_taken_again_and_nothing_counts_twice(
    cluster: Cluster, merges: int
) -> None:
    put(cluster, (1, 1, "Rome"))
    merge = cluster.merge(STOCK, [{"id": 1, "n": 5}]).when_matched_update(ADD)
    for number in range(merges):
        merge.execute(batch=f"b{number}")
    journal = journal_of(cluster)
    entry = Path(journal._entry_uri(merges))
    data = entry.read_bytes()
    entry.unlink()
    for hint in (str(merges).encode(), b"1", b""):
        cluster.storage.replace_bytes(f"{journal._uri}/hint", hint)
        for batch in (f"b{merges - 1}", "another", None):
            with pytest.raises(LogUnreadable, match="is gone, of a merge that was finished"):
                merge.execute(batch=batch)
    assert rows_of(cluster)[1][0] == 1 + 5 * merges
    entry.write_bytes(data)
    assert merge.execute(batch=f"b{merges - 1}").already
    assert not merge.execute(batch="another").already
    assert rows_of(cluster)[1][0] == 6 + 5 * merges


def test_the_tail_is_found_that_somebody_else_has_put_and_finished_meanwhile(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(cluster, (1, 1, "Rome"))
    journal, finished = journal_of(cluster), MergeJournal.is_finished

    def merged(self: MergeJournal, number: int) -> bool:
        monkeypatch.setattr(MergeJournal, "is_finished", finished)
        cluster.merge(STOCK, [{"id": 1, "n": 5}]).when_matched_update(ADD).execute()
        return self.is_finished(number)

    monkeypatch.setattr(MergeJournal, "is_finished", merged)
    assert journal.tail() == 1


def test_an_entry_of_an_earlier_version_is_finished(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put(cluster, (1, 1, "Rome"))
    killed_when_it_counts(cluster, monkeypatch, tmp_path)
    entry = Path(journal_of(cluster)._entry_uri(1))
    head, _, _ = entry.read_bytes().rpartition(b',"digest"')
    entry.write_bytes(head + b"}")
    cluster.merge(STOCK, [{"id": 1, "n": 100}]).when_matched_update(ADD).execute()
    assert rows_of(cluster)[1][0] == 106


def test_a_merge_whose_table_is_dropped_when_it_counts_says_that_it_counts_and_does_once_it_is_restored(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(cluster, (1, 1, "Rome"))
    entry_put = MergeJournal.put

    def dropped(self: MergeJournal, number: int, entry: MergeEntry) -> bool:
        counts = entry_put(self, number, entry)
        monkeypatch.setattr(MergeJournal, "put", entry_put)
        administration.drop_table(cluster, STOCK, keep_seconds=3600)
        return counts

    monkeypatch.setattr(MergeJournal, "put", dropped)
    merge = cluster.merge(STOCK, [{"id": 1, "n": 5}]).when_matched_update(ADD)
    with pytest.raises(MergeUnfinished, match="was dropped"):
        merge.execute(batch="b")
    administration.restore_table(cluster, STOCK)
    assert not merge.execute(batch="b").already
    assert rows_of(cluster)[1][0] == 6


def test_a_merge_takes_its_copies_from_a_replica_that_has_them_whole(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put(cluster, (1, 1, "Rome"))
    stage = Writing.stage

    def damaged(self: Writing, *given: Any) -> Any:
        staged = stage(self, *given)
        path = Path(_place(cluster, min(staged[0].stored)), staged[0].file.path)
        data = path.read_bytes()
        path.write_bytes(data[:40] + bytes([data[40] ^ 1]) + data[41:])
        whole[path.name] = data
        return staged

    whole: dict[str, bytes] = {}
    monkeypatch.setattr(Writing, "stage", damaged)
    before = {path for path in tmp_path.rglob("*.parquet") if "root" not in path.parts}

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Writing, "land", killed)
        with pytest.raises(Killed):
            cluster.merge(STOCK, [{"id": 1, "n": 5}]).when_matched_update(ADD).execute()
    for path in {path for path in tmp_path.rglob("*.parquet") if "root" not in path.parts} - before:
        path.unlink()
    monkeypatch.setattr(Writing, "stage", stage)
    cluster.merge(STOCK, [{"id": 1, "n": 100}]).when_matched_update(ADD).execute()
    assert rows_of(cluster)[1][0] == 106
    [(name, data)] = whole.items()
    assert {path.read_bytes() for path in tmp_path.rglob(name)} == {data}


def _place(cluster: Cluster, volume: int) -> str:
    metadata = cluster.catch_up()
    return address_of(cluster.storage, metadata, metadata.table(STOCK), volume).uri


def test_who_stores_a_file_again_that_is_live_by_now_never_tears_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put(cluster, (1, 1, "Rome"))
    for path in killed_when_it_counts(cluster, monkeypatch, tmp_path):
        path.unlink()
    journal, table = journal_of(cluster), cluster.catch_up().table(STOCK)
    entry = journal.entry(1)
    assert entry is not None
    with Gate(cluster, "finishing") as gate:
        finishing = MergeFinishing(gate.planning, gate.writing, journal)
        finishing.land(table, 1, entry, ConsistencyLevel.ALL)
        places_of = [Path(_place(cluster, volume), entry.files[0].file.path) for volume in entry.files[0].stored]
        whole = [path.read_bytes() for path in places_of]
        disk = cluster.storage.disk

        def cut_short(path: str, *_: Any, **__: Any) -> None:
            Path(path).write_bytes(b"")
            raise Killed

        monkeypatch.setattr(disk, "open_output", cut_short)
        monkeypatch.setattr(disk, "write", cut_short)
        with pytest.raises(Killed):
            finishing._stored_again(table, 1, entry, StagedFile(entry.files[0].file, frozenset(), {}))
        assert [path.read_bytes() for path in places_of] == whole


@pytest.mark.parametrize("after", [False, True])
def test_a_merge_that_is_killed_at_any_access_with_others_in_between_counts_once(cluster: Cluster, after: bool) -> None:
    put(cluster, (1, 0, "Rome"))
    other = cluster.merge(STOCK, [{"id": 1, "n": 100}]).when_matched_update(ADD)
    merge = cluster.merge(STOCK, [{"id": 1, "n": 1}]).when_matched_update(ADD)
    total = 0
    for step in count(1, some(1, 3)):
        ended = False
        with killed_access.killed_at(step, after=after) as seen, suppress(killed_access.Killed):
            merge.execute(batch=f"b{step}")
            ended = True
        other.execute()
        merge.execute(batch=f"b{step}")
        total += 101
        assert rows_of(cluster)[1][0] == total, seen[-1:]
        if ended:
            break
    assert step > 20
