"""A keyspace gets another name beside whatever else goes on with its tables, or with its names."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from epochlake.jobs import administration
from epochlake.jobs.administration import adopting, schema
from epochlake.jobs.administration.adopting import adopt
from epochlake.jobs.administration.past_rows import rollback
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.exchange import loading
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.gate.merging import Merged, Merging
from epochlake.jobs.upkeep import compaction
from epochlake.jobs.upkeep import repair as repairing
from epochlake.jobs.upkeep.change_streams import keep_up
from epochlake.jobs.upkeep.compaction import compact
from epochlake.jobs.upkeep.repair import repair
from epochlake.jobs.views.status import status
from epochlake.metastore.errors import Rejected
from epochlake.metastore.following.quorums import verify_quorums
from epochlake.metastore.metadata.differences import diff
from epochlake.metastore.metadata.events import FinishTabletReplication
from epochlake.metastore.metadata.model import PlacementKind
from epochlake.metastore.tables.metadata import PARTS
from epochlake.placement.errors import EpochlakeError, InvalidRequest
from epochlake.placement.rejections import Code
from epochlake.placement.tablets.transitions import Stage

from tests.support.changes import alone
from tests.support.clusters import FOUR, SmallCluster, placed
from tests.support.rings import ringed

OLD, NEW = "air.flights", "sky.flights"
ROWS = [{"id": row, "note": f"note {row}"} for row in range(8)]
MORE = {"id": 99, "note": "more"}


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallCluster:
    alone(monkeypatch)
    made = placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"})
    made.cluster.write(OLD, ROWS, batch="first")
    return made


def rows_of(cluster: Cluster, name: str = NEW, **asked: object) -> list[dict[str, object]]:
    return sorted(cluster.scan(name, **asked).read_all().to_pylist(), key=lambda row: row["id"])  # type: ignore[arg-type]


def rename(cluster: Cluster, name: str = "air", new_name: str = "sky") -> None:
    administration.rename_keyspace(cluster, name, new_name)


def by_another(cluster: Cluster, *, anew: bool = False) -> None:
    """Somebody else renames the keyspace; with `anew` the old name is another table's from then on."""
    with Cluster(cluster.configuration) as other:
        rename(other)
        if anew:
            administration.create_keyspace(other, "air", {"dc1": 3})
            administration.create_table(other, OLD, [("id", "bigint", False), ("note", "string", True)], ["id"])
            other.write(OLD, [{"id": 1, "note": "of another table"}])


def once_before(
    monkeypatch: pytest.MonkeyPatch, of: object, name: str, meanwhile: Callable[[], None], *, after: bool = False
) -> list[int]:
    """The first time that something is called, `meanwhile` happens before it, or `after` it."""
    proper, done = getattr(of, name), []

    def called(*asked: object, **options: object) -> object:
        first = not done
        done.append(1)
        if first and not after:
            meanwhile()
        found = proper(*asked, **options)
        if first and after:
            meanwhile()
        return found

    monkeypatch.setattr(of, name, called)
    return done


# --- what changes where tablets are ---------------------------------------------------------------------------


def test_a_keyspace_whose_replication_is_being_altered_is_renamed_and_gets_there(table: SmallCluster) -> None:
    cluster = table.cluster
    administration.change_replication(cluster, "air", {"dc1": 4})
    table.round()
    rename(cluster)
    assert [(one.keyspace, one.tablets_left) for one in status(cluster).replications] == [("sky", 2)]
    cluster.write(NEW, [MORE], consistency="ALL")
    for _ in range(60):
        table.round()
    keyspace = cluster.catch_up().keyspace("sky")
    assert not status(cluster).replications
    tablet_map = cluster.metadata.tablets.maps[table.table.table_id]
    assert (keyspace.replication, {len(replicas) for replicas in tablet_map}) == ({"dc1": 4}, {4})
    assert rows_of(cluster, consistency="ALL") == [*ROWS, MORE]
    assert verify_quorums(cluster.log()) == ()


@pytest.mark.parametrize("stage", [Stage.STREAMING, Stage.WRITE_BOTH_READ_NEW, Stage.CLEANUP])
def test_a_tablet_that_moves_arrives_in_the_renamed_table(table: SmallCluster, stage: Stage) -> None:
    cluster = table.cluster
    table.start("C", "X")
    table.until(stage)
    rename(cluster)
    [moving] = PARTS["transitions"](cluster.catch_up()).to_pylist()
    assert (moving["keyspace"], moving["table"]) == ("sky", "flights")
    cluster.write(NEW, [MORE], consistency="ALL")
    table.until(None)
    assert rows_of(cluster, consistency="ALL") == [*ROWS, MORE]
    assert Path(table.address("X").uri).parent.name == "air", "who joins later uses the directory of the others"
    assert Path(table.address("X").uri, "_delta_log").is_dir()
    assert verify_quorums(cluster.log()) == ()


def test_pins_and_single_replicas_stay_and_are_shown_under_the_new_name(table: SmallCluster) -> None:
    cluster = table.cluster
    administration.pin_tablets(cluster, OLD, (0,), reason="hot")
    administration.add_replicas(cluster, OLD, (1,), "X")
    before = cluster.catch_up()
    rename(cluster)
    assert [(one.component, one.name, one.field) for one in diff(before, cluster.catch_up())] == [
        ("keyspace", "air", ""),
        ("keyspace", "sky", ""),
        ("table", NEW, "keyspace"),
        ("table", NEW, "stored_in"),
    ]
    assert [(row["keyspace"], row["table"]) for row in PARTS["pins"](cluster.catch_up()).to_pylist()] == [
        ("sky", "flights")
    ]
    table.until(None, tablet=1)
    administration.drop_replicas(cluster, NEW, (1,), "A")
    table.until(None, tablet=1)
    administration.unpin_tablets(cluster, NEW, (0,))
    assert set(cluster.catch_up().tablets.maps[table.table.table_id].replicas(1)) == set(table.volumes("BCX"))
    assert rows_of(cluster, consistency="ALL") == ROWS


# --- what is stored beside rows --------------------------------------------------------------------------------


def test_a_reader_of_changes_goes_on_where_it_was_and_one_that_is_open_ends_its_stream(table: SmallCluster) -> None:
    cluster = table.cluster
    administration.keep_changes(cluster, OLD)
    keep_up(cluster, cluster.catch_up().change_streams.by_table[table.table.table_id])
    cluster.write(OLD, [{"id": 1, "note": "old name"}])
    known = cluster.changes(OLD, reader="mine")
    assert [row["note"] for batch in known for row in batch.to_pylist()] == ["old name"]
    known.commit()
    opened = iter(cluster.changes(OLD, after=known.position, follow=True))
    rename(cluster)
    cluster.write(NEW, [{"id": 1, "note": "new name"}])
    assert next(opened)["note"].to_pylist() == ["new name"]
    again = cluster.changes(NEW, reader="mine")
    assert [row["note"] for batch in again for row in batch.to_pylist()] == ["new name"]
    with pytest.raises(Rejected) as refused:
        cluster.changes(OLD, reader="mine")
    assert "use sky.flights" in refused.value.hint


def test_checks_of_a_table_hold_under_its_new_name(table: SmallCluster) -> None:
    cluster, columns = table.cluster, [("id", "bigint", False)]
    administration.create_table(cluster, "air.checked", columns, ["id"], checks={"small": "id < 10"})
    rename(cluster)
    with pytest.raises(InvalidRequest, match="small"):
        cluster.write("sky.checked", [{"id": 10}])
    cluster.write("sky.checked", [{"id": 9}])
    administration.alter_table(cluster, "sky.checked", add=["more string"])
    assert rows_of(cluster, "sky.checked") == [{"id": 9, "more": None}]
    [check] = cluster.table("sky.checked").checks
    assert (check.name, check.validated) == ("small", check.epoch), "they hold since it was made, and still do"


def test_the_table_as_it_was_before_the_renaming(table: SmallCluster) -> None:
    cluster = table.cluster
    administration.keep_history(cluster, OLD, 3600.0)
    before, moment = cluster.catch_up().epoch, datetime.now(UTC)
    time.sleep(0.002)
    cluster.write(OLD, [{"id": 0, "note": "later"}])
    rename(cluster)
    cluster.write(NEW, [MORE])
    assert rows_of(cluster) == [{"id": 0, "note": "later"}, *ROWS[1:], MORE]
    assert rows_of(cluster, as_of=moment) == ROWS
    with pytest.raises(Rejected) as refused:
        rows_of(cluster, OLD, as_of=moment)
    assert f"use {NEW}" in refused.value.hint
    rollback(cluster, NEW, to=moment)
    assert rows_of(cluster) == ROWS
    # The metadata of then has the name of then.
    assert cluster.at(before).table(OLD).table_id == cluster.catch_up().table(NEW).table_id
    with pytest.raises(Rejected) as refused:
        cluster.at(before).table(NEW)
    assert (refused.value.code, refused.value.hint) == (Code.UNKNOWN_TABLE, f"Did you mean {OLD!r}?")


# --- whoever is under way --------------------------------------------------------------------------------------


def merge(cluster: Cluster, name: str) -> Merged:
    asked = cluster.merge(name, [{"id": 0, "note": "merged"}, MORE]).when_matched_update({"note": "source.note"})
    return asked.when_not_matched_insert({"id": "source.id", "note": "source.note"}).execute(batch="m")


def test_a_merge_that_is_under_way_lands_in_the_renamed_table(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = table.cluster
    done = once_before(monkeypatch, Merging, "_attempt", lambda: by_another(cluster))
    assert merge(cluster, OLD).rows == 2
    assert done
    assert rows_of(cluster) == [{"id": 0, "note": "merged"}, *ROWS[1:], MORE]
    assert merge(cluster, NEW).already


@pytest.mark.parametrize("anew", [False, True])
def test_a_repair_goes_on_with_its_table_whatever_has_its_name(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch, anew: bool
) -> None:
    cluster = table.cluster
    with table.without("C"):
        cluster.write(OLD, [MORE])
    done = once_before(monkeypatch, repairing, "_heal", lambda: by_another(cluster, anew=anew), after=True)
    monkeypatch.setattr(repairing, "settle_restored", once_settled := _Settled(repairing.settle_restored))
    report = repair(cluster, OLD)
    assert done
    assert sum(one.files for one in report.replicas) == 1
    assert once_settled.tables == [table.table.table_id]
    assert repair(cluster, NEW).differing == 0
    assert rows_of(cluster) == [*ROWS, MORE]


class _Settled:
    """Remembers whose replicas are settled after a repair."""

    def __init__(self, proper: Callable[..., object]) -> None:
        self.proper = proper
        self.tables: list[str] = []

    def __call__(self, cluster: Cluster, view: repairing.ReplicaView, **options: object) -> object:
        self.tables.append(repairing.look_again(cluster, view).table.table_id)
        return self.proper(cluster, view, **options)


@pytest.mark.parametrize("anew", [False, True])
def test_a_compaction_goes_on_with_its_table_whatever_has_its_name(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch, anew: bool
) -> None:
    cluster = table.cluster
    for number in range(3):
        cluster.write(OLD, [{**row, "note": f"{number}"} for row in ROWS])
    files = len(table.files_on("A"))
    done = once_before(monkeypatch, compaction, "settle", lambda: by_another(cluster, anew=anew), after=True)
    report = compact(cluster, OLD)
    assert done
    assert (report.table, len(report.compacted)) == (NEW, 2)
    assert len(table.files_on("A")) < files
    assert rows_of(cluster) == [{**row, "note": "2"} for row in ROWS]
    if anew:
        assert rows_of(cluster, OLD) == [{"id": 1, "note": "of another table"}]


def test_a_pipeline_plans_as_it_did_until_the_name_that_it_is_given_is_another_tables(table: SmallCluster) -> None:
    cluster = table.cluster
    with Gate(cluster, "slow") as gate:
        planned = gate.planning.epoch
        administration.create_keyspace(cluster, "sea", {"dc1": 1})
        gate.planning.follow_names(OLD)
        assert gate.planning.epoch == planned
        by_another(cluster, anew=True)
        gate.planning.follow_names("no.table")
        assert gate.planning.table(OLD).table_id == table.table.table_id
        gate.planning.follow_names(OLD)
        assert gate.planning.table(OLD).table_id == cluster.table(OLD).table_id != table.table.table_id
        assert gate.planning.table(NEW).table_id == table.table.table_id


def test_a_pipeline_that_knew_the_old_name_is_told_the_new_one(table: SmallCluster) -> None:
    cluster = table.cluster
    with Gate(cluster, "slow") as gate:
        by_another(cluster)
        gate.planning.follow_names(OLD)
        for name, told in ((OLD, True), ("air.nothing", False)):
            with pytest.raises(Rejected) as refused:
                gate.planning.table(name)
            assert (f"use {NEW}" in refused.value.hint) is told
        assert gate.planning.table(NEW).table_id == table.table.table_id


@pytest.mark.parametrize(("anew", "told"), [(False, f"use {NEW}"), (True, f"load it into {NEW} again")])
def test_a_load_that_ended_half_way_goes_on_under_the_new_name(
    table: SmallCluster, tmp_path: Path, anew: bool, told: str
) -> None:
    cluster = table.cluster
    for number in (1, 2):
        lines = "".join(f'{{"id": {row}, "note": "loaded"}}\n' for row in range(number * 10, number * 10 + 3))
        (tmp_path / f"{number}.json").write_text(lines, encoding="utf-8")
    renamed: list[int] = []

    def progress(part: object, done: int, of: int) -> None:
        if not renamed:
            renamed.append(1)
            by_another(cluster, anew=anew)

    files = [tmp_path / "1.json", tmp_path / "2.json"]
    with pytest.raises(EpochlakeError) as refused:
        loading.load_files(cluster, OLD, files, batch="nightly", progress=progress)
    assert told in refused.value.hint
    assert [part.written.already for part in loading.load_files(cluster, NEW, files, batch="nightly")] == [True, False]
    assert [row["id"] for row in rows_of(cluster)] == [*range(8), 10, 11, 12, 20, 21, 22]


def test_an_adoption_that_ended_half_way_goes_on_under_the_new_names(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster, origin = table.cluster, str(tmp_path / "origin")
    for first in (0, 3):
        ids = [first, first + 1, first + 2]
        write_deltalake(origin, pa.table({"id": ids, "note": ["a", "b", "c"]}), mode="append")
    write, tries = adopting._write, []

    def dies(*asked: object) -> object:
        tries.append(1)
        if len(tries) == 2:
            raise KeyboardInterrupt
        return write(*asked)  # type: ignore[arg-type]

    monkeypatch.setattr(adopting, "_write", dies)
    with pytest.raises(KeyboardInterrupt):
        adopt(cluster, origin, "air.adopted", ["id"])
    rename(cluster)
    rename(cluster, "sky", "heavens")
    with pytest.raises(Rejected) as refused:
        adopt(cluster, origin, "air.adopted", ["id"])
    assert "use heavens" in refused.value.hint
    write_deltalake(origin, pa.table({"id": [9], "note": ["after its version was pinned"]}), mode="append")
    done = adopt(cluster, origin, "heavens.adopted", ["id"])
    assert (done.table, done.rows, done.parts, done.already) == ("heavens.adopted", 6, 2, 1)
    assert [row["id"] for row in rows_of(cluster, "heavens.adopted")] == [*range(6)]
    assert adopt(cluster, origin, "heavens.adopted", ["id"]).already == 2


@pytest.mark.parametrize("anew", [False, True])
def test_a_table_that_was_planned_before_is_made_in_the_keyspace_that_it_names_or_not_at_all(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch, anew: bool
) -> None:
    cluster = table.cluster
    done = once_before(monkeypatch, schema, "_create_replicas", lambda: by_another(cluster, anew=anew), after=True)
    columns = [("id", "bigint", False)]
    if anew:
        administration.create_table(cluster, "air.more", columns, ["id"], tablets=1)
        cluster.write("air.more", [{"id": 1}], consistency="ALL")
        assert rows_of(cluster, "air.more") == [{"id": 1}]
    else:
        with pytest.raises(Rejected) as refused:
            administration.create_table(cluster, "air.more", columns, ["id"], tablets=1)
        assert "use sky" in refused.value.hint
        administration.create_table(cluster, "sky.more", columns, ["id"], tablets=1)
    assert done
    assert cluster.catch_up().schema.keyspaces.keys() == ({"air", "sky"} if anew else {"sky"})
    assert rows_of(cluster) == ROWS


def test_a_table_of_the_ring_has_its_replicas_where_the_keyspace_of_that_name_has_its_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two keyspaces change their names while a table is made: the ring stays, and the name is another ring's."""
    alone(monkeypatch)
    nodes = {"A": ("dc1", "r1", (-4,)), "B": ("dc1", "r2", (4,)), "C": ("dc2", "r1", (0,))}
    ring = ringed(tmp_path, nodes, {"dc1": 1}, rows={})
    cluster = ring.cluster
    for name, replication in (("near", {"dc1": 1}), ("far", {"dc1": 1, "dc2": 1})):
        administration.create_keyspace(cluster, name, replication, placement=PlacementKind.RING)

    def swapped() -> None:
        with Cluster(cluster.configuration) as other:
            rename(other, "near", "nearer")
            rename(other, "far", "near")

    done = once_before(monkeypatch, schema, "_create_replicas", swapped, after=True)
    administration.create_table(cluster, "near.t", [("id", "bigint", False)], ["id"])
    assert len(done) == 2, "what was made for the other keyspace was not enough"
    cluster.write("near.t", [{"id": row} for row in range(20)], consistency="ALL")
    assert rows_of(cluster, "near.t", consistency="ALL") == [{"id": row} for row in range(20)]


@pytest.mark.parametrize("anew", [False, True])
def test_a_coordinator_that_planned_with_the_old_name_ends_no_other_alteration(
    table: SmallCluster, monkeypatch: pytest.MonkeyPatch, anew: bool
) -> None:
    cluster = table.cluster
    administration.change_replication(cluster, "air", {"dc1": 4})
    proper, done = Cluster.commit, []

    def commit(self: Cluster, asked: object, *more: object, **options: object) -> object:
        if isinstance(asked, FinishTabletReplication) and not done:
            done.append(1)
            by_another(cluster, anew=anew)
            if anew:
                with Cluster(cluster.configuration) as other:
                    administration.change_replication(other, "air", {"dc1": 2})
        return proper(self, asked, *more, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Cluster, "commit", commit)
    for _ in range(60):
        table.round()
    assert done
    keyspaces = cluster.catch_up().schema.keyspaces
    assert {name: (one.replication, one.before) for name, one in keyspaces.items()} == {
        "sky": ({"dc1": 4}, msgspec.UNSET),
        **({"air": ({"dc1": 2}, msgspec.UNSET)} if anew else {}),
    }
    sizes = {
        cluster.metadata.schema.tables[table_id].full_name: {len(replicas) for replicas in tablet_map}
        for table_id, tablet_map in cluster.metadata.tablets.maps.items()
    }
    assert sizes == {NEW: {4}, **({OLD: {2}} if anew else {})}
    assert rows_of(cluster, consistency="ALL") == ROWS


# --- two at once -----------------------------------------------------------------------------------------------


def at_once(cluster: Cluster, *changes: Callable[[Cluster], object]) -> list[Rejected]:
    """Each change by a process of its own, all at the same time; what was refused."""
    refused: list[Rejected] = []
    begin = threading.Barrier(len(changes))

    def carry_out(change: Callable[[Cluster], object]) -> None:
        with Cluster(cluster.configuration) as own:
            own.catch_up()
            begin.wait()
            try:
                change(own)
            except Rejected as rejected:
                refused.append(rejected)

    threads = [threading.Thread(target=carry_out, args=(change,)) for change in changes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return refused


def test_of_two_that_rename_a_keyspace_at_once_one_is_told_what_it_is_called_now(table: SmallCluster) -> None:
    cluster = table.cluster
    refused = at_once(cluster, lambda own: rename(own, "air", "sky"), lambda own: rename(own, "air", "sea"))
    now = sorted(cluster.catch_up().schema.keyspaces)
    assert now in (["sky"], ["sea"])
    assert [(one.code, f"use {now[0]}" in one.hint) for one in refused] == [(Code.UNKNOWN_KEYSPACE, True)]
    assert rows_of(cluster, f"{now[0]}.flights") == ROWS


def test_a_name_that_two_want_at_once_is_that_of_one(table: SmallCluster) -> None:
    cluster = table.cluster
    refused = at_once(cluster, rename, lambda own: administration.create_keyspace(own, "sky", {"dc1": 1}))
    assert [one.code for one in refused] == [Code.KEYSPACE_EXISTS]
    names = sorted(cluster.catch_up().schema.keyspaces)
    assert names in (["sky"], ["air", "sky"])
    assert rows_of(cluster, NEW if names == ["sky"] else OLD) == ROWS


def test_a_renaming_that_is_tried_again_by_its_request_is_done_once(table: SmallCluster) -> None:
    cluster = table.cluster
    first = administration.rename_keyspace(cluster, "air", "sky", request_id="once")
    rename(cluster, "sky", "heavens")
    again = administration.rename_keyspace(cluster, "air", "sky", request_id="once")
    assert (again.already, again.epoch) == (True, first.epoch)
    assert sorted(cluster.catch_up().schema.keyspaces) == ["heavens"]


def test_writers_that_run_through_renamings_lose_no_row_and_are_told_the_name(table: SmallCluster) -> None:
    """Each goes on with the name of the hint, as a person would; there and back again, under all of them."""
    cluster, end = table.cluster, threading.Event()
    written: list[list[int]] = [[], []]
    strange: list[BaseException] = []

    def write(number: int) -> None:
        name, key = OLD, 1000 * (number + 1)
        with Cluster(cluster.configuration) as own:
            while not end.is_set():
                try:
                    own.write(name, [{"id": key, "note": "w"}])
                except Rejected as rejected:
                    if rejected.code is not Code.UNKNOWN_TABLE or ": use " not in rejected.hint:
                        strange.append(rejected)
                        return
                    name = rejected.hint.rpartition(": use ")[2]
                except BaseException as error:
                    strange.append(error)
                    return
                else:
                    written[number].append(key)
                    key += 1

    threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    names = ["air", "sky", "heavens", "air", "sea"]
    for name, new_name in itertools.pairwise(names):
        upper = [len(one) for one in written]
        while not strange and any(len(one) < least + 3 for one, least in zip(written, upper, strict=True)):
            end.wait(0.01)
        rename(cluster, name, new_name)
    end.set()
    for thread in threads:
        thread.join()
    assert strange == []
    assert [row["id"] for row in rows_of(cluster, "sea.flights")] == [*range(8), *sorted([*written[0], *written[1]])]
