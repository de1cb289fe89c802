"""Checks of tables: no row that is written makes one false, by whichever way it comes and whoever knew of what."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from epochlake.jobs import administration
from epochlake.jobs.administration.altering import ReplicasNotFenced
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.gate import commit_phase
from epochlake.jobs.gate.arrow_rows import rows_to_write
from epochlake.jobs.gate.errors import ConsistencyNotReached
from epochlake.jobs.gate.merge_journal import MergeJournal
from epochlake.jobs.gate.merging import Merging
from epochlake.jobs.gate.writing import Writing
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.model import Check
from epochlake.placement.errors import EpochlakeError, InvalidRequest
from epochlake.placement.rejections import Code

from tests.support.clusters import grow, without_zookeeper
from tests.support.compactions import reaching

TABLE = "shop.orders"
COLUMNS = [("id", "bigint", False), ("city", "string", True), ("amount", "int", True)]
PAID = {"paid": "amount >= 0"}
GOOD, BAD = {"id": 1, "city": "Rome", "amount": 1}, {"id": 9, "city": "Oslo", "amount": -1}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    without_zookeeper(monkeypatch)
    with grow(tmp_path) as grown:
        administration.create_keyspace(grown, "shop", {"dc1": 3})
        administration.create_table(grown, TABLE, COLUMNS, ["id"], tablets=2)
        yield grown


def rows(cluster: Cluster) -> dict[int, int | None]:
    return {row["id"]: row["amount"] for row in cluster.scan(TABLE).read_all().to_pylist()}


def merge(cluster: Cluster) -> object:
    source = pa.Table.from_pylist([BAD])
    return cluster.merge(TABLE, source).when_not_matched_insert({name: f"source.{name}" for name in BAD}).execute()


def merge_update(cluster: Cluster) -> object:
    source = pa.Table.from_pylist([GOOD])
    return cluster.merge(TABLE, source).when_matched_update({"amount": "target.amount - 5"}).execute()


WAYS: dict[str, Callable[[Cluster], object]] = {
    "write": lambda cluster: cluster.write(TABLE, [GOOD, BAD]),
    "named": lambda cluster: cluster.write(TABLE, [BAD], batch="b"),
    "changes": lambda cluster: cluster.write(TABLE, [BAD], deletes=[{"id": 1}]),
    "overwrite": lambda cluster: cluster.overwrite(TABLE, [BAD]),
    "merge": merge,
    "merge that updates": merge_update,
}


@pytest.mark.parametrize("way", WAYS)
def test_no_way_leads_a_row_in_that_makes_a_check_false(cluster: Cluster, way: str) -> None:
    administration.alter_table(cluster, TABLE, add_checks=PAID)
    cluster.write(TABLE, [GOOD])
    with pytest.raises(InvalidRequest, match=r"check 'paid' \(amount >= 0\) is false for at least 1 of the rows"):
        WAYS[way](cluster)
    assert rows(cluster) == {1: 1}
    administration.alter_table(cluster, TABLE, drop_checks=["paid"])
    WAYS[way](cluster)
    assert -1 in rows(cluster).values() or rows(cluster) == {1: -4}


def test_a_check_is_satisfied_by_null_and_has_nothing_to_say_of_deletes(cluster: Cluster) -> None:
    administration.alter_table(cluster, TABLE, add_checks={"named": "city is not null", **PAID})
    cluster.write(TABLE, [GOOD, {"id": 2, "city": "Rome", "amount": None}])
    cluster.write(TABLE, [{"id": 3, "city": "Rome", "amount": 3}], deletes=[{"id": 2}])
    cluster.delete(TABLE, [{"id": 1}])
    assert rows(cluster) == {3: 3}


def test_a_check_of_a_column_that_a_writer_leaves_out_looks_at_its_default(cluster: Cluster) -> None:
    administration.alter_table(cluster, TABLE, add=["currency string not null default 'EUR'"])
    administration.alter_table(cluster, TABLE, add_checks={"known": "currency in ('USD')"})
    with pytest.raises(InvalidRequest, match="'known'"):
        cluster.write(TABLE, [GOOD])
    cluster.write(TABLE, [{**GOOD, "currency": "USD"}])


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"add_checks": {"paid": "amount > 1"}}, Code.INVALID_CHECK),
        ({"add_checks": {"PAID": "amount > 1"}}, Code.INVALID_CHECK),
        ({"add_checks": {"other": "amnt > 1"}}, Code.INVALID_CHECK),
        ({"add_checks": {"other": "amount >"}}, Code.INVALID_CHECK),
        ({"add_checks": {"other": "amount > 'x'"}}, Code.INVALID_CHECK),
        ({"add_checks": {"other": "(" * 3000 + "amount"}}, Code.INVALID_CHECK),
        ({"add_checks": {"other": "1 = 1"}}, Code.INVALID_CHECK),
        ({"add_checks": {"no name": "amount > 1"}}, Code.INVALID_NAME),
        ({"drop_checks": ["nope"]}, Code.UNKNOWN_CHECK),
        ({"drop": ["amount"]}, Code.CHECKED_COLUMN),
        ({"rename": {"amount": "cents"}}, Code.CHECKED_COLUMN),
    ],
)
def test_what_is_no_check_or_would_take_one_its_meaning_is_refused(
    cluster: Cluster, changes: dict[str, object], code: Code
) -> None:
    administration.alter_table(cluster, TABLE, add_checks=PAID)
    with pytest.raises(Rejected) as refused:
        administration.alter_table(cluster, TABLE, **changes)  # type: ignore[arg-type]
    assert refused.value.code == code


def test_a_column_that_a_check_reads_is_widened_and_may_be_dropped_together_with_it(cluster: Cluster) -> None:
    administration.alter_table(cluster, TABLE, add_checks=PAID)
    administration.alter_table(cluster, TABLE, widen={"amount": "bigint"}, rename={"city": "town"})
    with pytest.raises(InvalidRequest, match="'paid'"):
        cluster.write(TABLE, [{"id": 1, "town": "Rome", "amount": -(2**40)}])
    administration.alter_table(cluster, TABLE, drop_checks=["paid"], drop=["amount"])
    cluster.write(TABLE, [{"id": 1, "town": "Rome"}])
    assert cluster.table(TABLE).checks == ()


def test_rows_from_before_a_check_are_neither_looked_at_nor_lost_and_validating_finds_them(cluster: Cluster) -> None:
    cluster.write(TABLE, [GOOD, BAD])
    administration.alter_table(cluster, TABLE, add_checks={**PAID, "named": "city <> ''"})
    assert rows(cluster) == {1: 1, 9: -1}
    found = administration.validate_checks(cluster, TABLE)
    assert [(one.name, one.violated, one.examples) for one in found.checks] == [
        ("paid", 1, ({"id": 9},)),
        ("named", 0, ()),
    ]
    assert (found.holds, found.rows, found.epoch) == (False, 2, None)
    assert [one.validated for one in cluster.table(TABLE).checks] == [None, None]
    assert administration.validate_checks(cluster, TABLE, ["named"]).epoch == cluster.metadata.epoch
    version = cluster.table(TABLE).version
    cluster.delete(TABLE, [{"id": 9}])
    assert administration.validate_checks(cluster, TABLE).holds
    assert all(one.validated is not None for one in cluster.table(TABLE).checks)
    assert cluster.table(TABLE).version == version, "nothing is staged anew for that"
    assert administration.validate_checks(cluster, TABLE).epoch is None


def test_validating_finds_rows_that_are_on_one_replica_alone(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    volumes = [volume.volume_id for node in cluster.metadata.directory.members() for volume in node.volumes]
    for volume in volumes:
        with monkeypatch.context() as patch:
            patch.setattr(commit_phase, "commit_files", reaching({volume}))
            with pytest.raises(ConsistencyNotReached):
                cluster.write(TABLE, [{**BAD, "id": volume}])
    administration.alter_table(cluster, TABLE, add_checks=PAID)
    [found] = administration.validate_checks(cluster, TABLE).checks
    assert found.violated == len(volumes) == 3


def in_between(monkeypatch: pytest.MonkeyPatch, of: type, name: str, change: Callable[[], object]) -> None:
    """Once, just before a method is called, something else happens."""
    proper, done = getattr(of, name), []

    def called(self: object, *asked: object, **options: object) -> object:
        if not done:
            done.append(1)
            change()
        return proper(self, *asked, **options)

    monkeypatch.setattr(of, name, called)


def add_check_elsewhere(cluster: Cluster) -> None:
    with Cluster(cluster.configuration) as other:
        administration.alter_table(other, TABLE, add_checks=PAID)


@pytest.mark.parametrize("batch", [None, "b"])
@pytest.mark.parametrize("row", [GOOD, BAD])
def test_rows_that_were_staged_before_a_check_land_where_they_satisfy_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, row: dict[str, object], batch: str | None
) -> None:
    in_between(monkeypatch, Writing, "land", lambda: add_check_elsewhere(cluster))
    if row == BAD:
        with pytest.raises(Rejected, match="made before the table had the check") as refused:
            cluster.write(TABLE, [row], batch=batch)
        assert refused.value.code == Code.CHECK_VIOLATED
        assert rows(cluster) == {}
    else:
        cluster.write(TABLE, [row], batch=batch)
        assert rows(cluster) == {1: 1}


def test_a_batch_that_was_staged_before_a_check_does_not_land_by_being_tried_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(commit_phase, "commit_files", reaching(set()))
        with pytest.raises(ConsistencyNotReached):
            cluster.write(TABLE, [BAD], batch="b")
    administration.alter_table(cluster, TABLE, add_checks=PAID)
    with pytest.raises(Rejected) as refused:
        cluster.write(TABLE, [BAD], batch="b")
    assert refused.value.code == Code.CHECK_VIOLATED
    assert rows(cluster) == {}


def test_a_batch_that_has_landed_before_a_check_is_told_to_have(cluster: Cluster) -> None:
    cluster.write(TABLE, [BAD], batch="b")
    administration.alter_table(cluster, TABLE, add_checks=PAID)
    assert cluster.write(TABLE, [BAD], batch="b").already


@pytest.mark.parametrize(
    ("of", "moment"),
    [(Merging, "_keep"), (MergeJournal, "put"), (Merging, "_land_staged")],
    ids=["kept", "put", "landed"],
)
def test_a_merge_that_was_planned_before_a_check_is_planned_again_or_was_there_before_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, of: type, moment: str
) -> None:
    in_between(monkeypatch, of, moment, lambda: add_check_elsewhere(cluster))
    counted = moment == "_land_staged"
    if not counted:
        with pytest.raises(EpochlakeError):
            merge(cluster)
        assert rows(cluster) == {}
    else:
        merge(cluster)
        assert rows(cluster) == {9: -1}
    assert administration.validate_checks(cluster, TABLE).holds == (not counted)


def test_a_rollback_does_not_bring_back_what_makes_a_check_false(cluster: Cluster) -> None:
    from epochlake.jobs.administration.past_rows import rollback, time_of_newest

    cluster.write(TABLE, [BAD])
    before = time_of_newest(cluster, TABLE)
    cluster.write(TABLE, [{**BAD, "amount": 7}])
    administration.alter_table(cluster, TABLE, add_checks=PAID)
    with pytest.raises(InvalidRequest, match="'paid'"):
        rollback(cluster, TABLE, before)
    assert rows(cluster) == {9: 7}


def test_a_sum_that_overflows_is_no_row_that_satisfies_a_check(cluster: Cluster) -> None:
    administration.alter_table(cluster, TABLE, add_checks={"small": "amount * 2 < 100"})
    with pytest.raises(InvalidRequest, match="cannot be computed"):
        cluster.write(TABLE, [{**GOOD, "amount": 2**31 - 1}])


def test_a_program_that_does_not_know_the_columns_of_a_check_is_judged_by_it(cluster: Cluster) -> None:
    with Cluster(cluster.configuration) as other, other.gate() as gate:
        old = gate.planning.table(TABLE)
        administration.alter_table(cluster, TABLE, rename={"amount": "cents"})
        administration.alter_table(cluster, TABLE, add_checks={"paid": "cents >= 0"})
        with pytest.raises(EpochlakeError, match="'paid'"):
            gate.write(rows_to_write([BAD], old), old, None, None)
        gate.write(rows_to_write([GOOD], old), old, None, None)
    assert cluster.get(TABLE, 1) == {"id": 1, "city": "Rome", "cents": 1}
    assert cluster.count(TABLE, where=pc.field("cents") < 0) == 0


def test_a_merge_that_keeps_on_counting_is_told_by_who_adds_a_check(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(MergeJournal, "put", lambda *_: False)
        with pytest.raises(ReplicasNotFenced, match="a merge that was planned before may still count"):
            administration.alter_table(cluster, TABLE, add_checks=PAID, request_id="r")
        administration.alter_table(cluster, TABLE, add=["c int"])  # asks no merge
    assert cluster.table(TABLE).checks[0].name == "paid"
    administration.alter_table(cluster, TABLE, add_checks=PAID, request_id="r")


def test_a_table_is_created_with_checks_which_hold_from_its_first_row_on(cluster: Cluster) -> None:
    name = "shop.paid"
    created = administration.create_table(cluster, name, COLUMNS, ["id"], checks=PAID)
    epoch = created.committed.epoch
    assert cluster.metadata.table(name).checked == (Check("paid", "amount >= 0", (3,), epoch, epoch),)
    with pytest.raises(InvalidRequest, match=r"check 'paid' \(amount >= 0\) is false"):
        cluster.write(name, [GOOD, BAD])
    cluster.write(name, [GOOD])
    assert cluster.scan(name).read_all().num_rows == 1
    with pytest.raises(Rejected) as refused:
        administration.alter_table(cluster, name, drop=["amount"])
    assert refused.value.code is Code.CHECKED_COLUMN
    administration.alter_table(cluster, name, add=["note string"])
    assert cluster.metadata.table(name).checked == (Check("paid", "amount >= 0", (3,), epoch, epoch),)
    administration.alter_table(cluster, name, drop_checks=["paid"])
    cluster.write(name, [BAD])
    assert cluster.scan(name).read_all().num_rows == 2


@pytest.mark.parametrize(
    "checks", [{"c": "amout >= 0"}, {"c": "amount >="}, {"c": ""}, {"a b": "id > 0"}, {"c": "1 > 0"}]
)
def test_a_table_is_not_created_with_what_is_no_check(cluster: Cluster, checks: dict[str, str]) -> None:
    before = cluster.metadata.epoch
    with pytest.raises(EpochlakeError) as refused:
        administration.create_table(cluster, "shop.other", COLUMNS, ["id"], checks=checks)
    assert isinstance(refused.value, Rejected)
    assert cluster.catch_up().epoch == before
    with pytest.raises(Rejected):
        cluster.metadata.table("shop.other")


def test_two_checks_whose_names_differ_in_case_only_are_not_created(cluster: Cluster) -> None:
    with pytest.raises(Rejected) as refused:
        administration.create_table(cluster, "shop.other", COLUMNS, ["id"], checks={"c": "id > 0", "C": "id > 1"})
    assert refused.value.code is Code.INVALID_CHECK
