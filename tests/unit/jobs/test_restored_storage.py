"""A directory that was restored from a backup: told by what it has acknowledged, and used again when it is whole."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from epochlake.jobs.coordinator.effects.replicas import commit_streamed
from epochlake.jobs.coordinator.errors import SideEffectFailed
from epochlake.jobs.coordinator.tracks import tablets as tablet_track
from epochlake.jobs.gate import commit_phase
from epochlake.jobs.gate.errors import ConsistencyNotReached
from epochlake.jobs.replicas.fences import open_session, raise_fence
from epochlake.jobs.replicas.outcomes import Acknowledged, CommitOutcome, Unreachable
from epochlake.jobs.replicas.receipts import Receipts
from epochlake.jobs.replicas.replica import ReplicaAddress, open_snapshot
from epochlake.jobs.upkeep import repair as repairing
from epochlake.jobs.upkeep.repair import repair
from epochlake.jobs.upkeep.verification import verify_replicas
from epochlake.metastore import delta_commits
from epochlake.metastore.errors import WaitTimeout
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import Table
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.ring.state import Step
from epochlake.placement.tablets.transitions import Stage

from tests.support.clusters import FOUR, SmallCluster, SmallTable, placed, without_zookeeper
from tests.support.replicas import store
from tests.support.rings import FOUR as FOUR_ON_RING
from tests.support.rings import QUICK, SPREAD, rebuild, ringed
from tests.support.storages import STORAGE

OLDER = "went back"


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(commit_phase, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(tablet_track, "AVOIDED_SECONDS", 0.0)


@pytest.fixture
def cluster(tmp_path: Path) -> SmallCluster:
    return placed(tmp_path, FOUR, "ABC", configuration=QUICK)


@contextmanager
def restored_afterwards(table: SmallTable, node: str, *parts: str) -> Iterator[None]:
    """A backup of a node's directory, or of a part of it, is taken now and restored at the end."""
    directory = table.directory.joinpath(node, *parts)
    backup = table.directory / f"backup-of-{node}"
    shutil.copytree(directory, backup)
    yield
    shutil.rmtree(directory)
    shutil.move(backup, directory)


@pytest.mark.parametrize("parts", [(), ("air",)], ids=["the whole volume", "its tables"])
def test_a_restored_directory_is_neither_read_nor_counted(cluster: SmallCluster, parts: tuple[str, ...]) -> None:
    """A has acknowledged a write with B, C was away; a quorum of A and C does not have it any more."""
    cluster.write(cluster.pipeline())
    with restored_afterwards(cluster, "A", *parts), cluster.without("C"):
        written = cluster.write(cluster.pipeline(), ids=[2])
    with cluster.without("B"):
        with pytest.raises(ConsistencyNotReached, match=OLDER):
            assert written in cluster.read(cluster.pipeline())
        with pytest.raises(ConsistencyNotReached, match=OLDER):
            cluster.write(cluster.pipeline(), ids=[3])
    assert written in cluster.read(cluster.pipeline())


class _Killed(BaseException):
    """The process ends here, and nothing that it would have done afterwards is done."""


def test_a_batch_that_is_found_there_by_a_retry_has_a_receipt_too(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process died between the commit and the receipt; who comes after it finds the rows, and counts on them."""
    cluster.write(cluster.pipeline())

    def die(*_: object, **__: object) -> None:
        raise _Killed

    with restored_afterwards(cluster, "A"), cluster.without("C"):
        staged = cluster.staged(cluster.pipeline(), {5: 5})
        with monkeypatch.context() as patched:
            patched.setattr(Receipts, "add", die)
            with pytest.raises(_Killed):
                cluster.land(cluster.pipeline(), staged)
        cluster.land(cluster.pipeline(), staged)
    with cluster.without("B"), pytest.raises(ConsistencyNotReached, match=OLDER):
        cluster.read(cluster.pipeline())


def test_what_is_committed_to_a_restored_table_afterwards_does_not_hide_it(cluster: SmallCluster) -> None:
    """Fences make its version grow beyond the one that it had."""
    cluster.write(cluster.pipeline())
    with restored_afterwards(cluster, "A"), cluster.without("C"):
        cluster.write(cluster.pipeline(), ids=[2])
    report = verify_replicas(STORAGE, cluster.metadata, cluster.cluster.ledger, cluster.cluster.receipts)
    assert [(finding.kind, finding.place) for finding in report.unreachable] == [("went-back", "A/d1")]
    for session in ("x", "y", "z"):
        raise_fence(cluster.address("A"), cluster.metadata.epoch, open_sessions=[session])
    with cluster.without("B"), pytest.raises(ConsistencyNotReached, match=OLDER):
        cluster.read(cluster.pipeline())


def test_what_lands_late_on_a_restored_table_does_not_stand_for_what_that_lacks(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has written before stands still between his look at the table and his commit. Its mark has the name of the
    one that the table lacks, and a higher number.
    """
    writer, put = cluster.pipeline(), delta_commits.put_replicated_commit
    cluster.write(writer)
    directory, backup = cluster.directory / "A", cluster.directory / "backup"
    shutil.copytree(directory, backup)
    with cluster.without("C"):
        written = cluster.write(writer, ids=[2])

    def put_late(storage: Storage, commit: delta_commits.CommitName, *rest: Any) -> bool:
        if commit.table == cluster.address("A").uri and backup.exists():
            shutil.rmtree(directory)
            shutil.move(backup, directory)
            # So that it has as many commits as the one that was looked at.
            assert open_session(cluster.address("A"), cluster.metadata.epoch, "x") == cluster.metadata.epoch
        return put(storage, commit, *rest)

    monkeypatch.setattr(delta_commits, "put_replicated_commit", put_late)
    late = cluster.write(writer, ids=[3])
    assert not backup.exists()
    with cluster.without("B"), pytest.raises(ConsistencyNotReached, match=OLDER):
        assert written in cluster.read(cluster.pipeline())
    repair(cluster.cluster, "air.flights")
    with cluster.without("B"):
        assert {written, late} <= {*cluster.read(cluster.pipeline())}


def test_what_a_replica_has_acknowledged_to_a_write_that_goes_on_does_not_count_once_it_went_back_and_was_repaired(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A has acknowledged, and its writer stands still before B does. Meanwhile A comes back as it was, is repaired, and
    counts again, as nobody else has the write.
    """
    cluster.write(cluster.pipeline())
    directory, backup = cluster.directory / "A", cluster.directory / "backup"
    shutil.copytree(directory, backup)
    commit = commit_phase.commit_files

    def stand_still_before_b(target: ReplicaAddress, *given: Any, **how: Any) -> CommitOutcome:
        if target == cluster.address("C"):
            return Unreachable("C is not seen from here")
        if target == cluster.address("B") and backup.exists():
            shutil.rmtree(directory)
            shutil.move(backup, directory)
            assert repair(cluster.cluster, "air.flights").complete
        return commit(target, *given, **how)

    monkeypatch.setattr(commit_phase, "THREADS", 1)
    monkeypatch.setattr(commit_phase, "SURE_SECONDS", 0.0)
    monkeypatch.setattr(commit_phase, "commit_files", stand_still_before_b)
    written = cluster.write(cluster.pipeline(), ids=[2])
    assert not backup.exists()
    with cluster.without("B"):
        assert written in cluster.read(cluster.pipeline())


def test_a_repair_that_stands_still_does_not_go_by_what_the_others_had_before_a_replica_went_back(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A has acknowledged a write. A repair looks at B and C; B acknowledges it as well, and A comes back as it was;
    then the repair looks at A.
    """
    cluster.write(cluster.pipeline())
    directory, backup = cluster.directory / "A", cluster.directory / "backup"
    shutil.copytree(directory, backup)
    a, b, c = (next(iter(cluster.volumes(name))) for name in "ABC")
    commit, look = commit_phase.commit_files, repairing.open_all
    looked: list[bool] = []
    going_on: list[Callable[[], CommitOutcome]] = []
    outcomes: list[CommitOutcome] = []

    def repair_meanwhile(target: ReplicaAddress, *given: Any, **how: Any) -> CommitOutcome:
        if target.volume_id == c:
            return Unreachable("C is not seen from here")
        if target.volume_id == b:
            going_on.append(partial(commit, target, *given, **how))
            # What a repair does last, after it has brought what there was before.
            assert repairing.settle_restored(cluster.cluster, repairing.look(cluster.cluster, "air.flights")).refused
            return outcomes[0]
        return commit(target, *given, **how)

    def look_slowly(storage: Storage, metadata: ClusterMetadata, table: Table, volumes: Sequence[int]) -> Any:
        if not backup.exists() or not looked:
            looked.append(True)
            return look(storage, metadata, table, volumes)
        opened, failed = look(storage, metadata, table, [b, c])
        assert len({len(one.all_files) for one in opened.values()}) == 1
        outcomes.append(going_on[0]())
        shutil.rmtree(directory)
        shutil.move(backup, directory)
        late, missing = look(storage, metadata, table, [a])
        return {**opened, **late}, {**failed, **missing}

    monkeypatch.setattr(commit_phase, "THREADS", 1)
    monkeypatch.setattr(commit_phase, "SURE_SECONDS", math.inf)  # A was whole when the writer looked
    monkeypatch.setattr(commit_phase, "commit_files", repair_meanwhile)
    monkeypatch.setattr(repairing, "open_all", look_slowly)
    written = cluster.write(cluster.pipeline(), ids=[2])
    assert isinstance(outcomes[0], Acknowledged)
    with cluster.without("B"), pytest.raises(ConsistencyNotReached, match=OLDER):
        assert written in cluster.read(cluster.pipeline())


def test_what_is_streamed_late_to_a_restored_table_does_not_stand_for_what_was_streamed_before(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for a coordinator: its commits to a pending replica have one name, and their numbers grow."""
    address, whole, put = cluster.address("A"), cluster.cluster, delta_commits.put_replicated_commit
    directory, backup = cluster.directory / "A", cluster.directory / "backup"
    assert open_session(address, cluster.metadata.epoch, "s") == cluster.metadata.epoch
    shutil.copytree(directory, backup)

    def stream(version: int) -> bool:
        stored = store(address, ids=[version])
        place = (cluster.metadata, cluster.table.table_id, *cluster.volumes("A"))
        return commit_streamed(whole.storage, whole.ledger, *place, [stored], ["s"], version, whole.receipts)

    assert stream(1)

    def put_late(*commit: Any) -> bool:
        shutil.rmtree(directory)
        shutil.move(backup, directory)
        assert raise_fence(address, cluster.metadata.epoch + 1) == cluster.metadata.epoch + 1
        return put(*commit)

    monkeypatch.setattr(delta_commits, "put_replicated_commit", put_late)
    with pytest.raises(SideEffectFailed, match="exchanged"):
        stream(2)
    there = open_snapshot(address)
    assert there.applied("s") == 2
    [*known] = whole.receipts.of(cluster.table.table_id)[address.volume_id]
    assert not all(receipt.seen_in(there) for receipt in known)


def test_a_restored_replica_gives_nobody_its_rows(cluster: SmallCluster) -> None:
    """X would get what A has, and a quorum of X and C would miss the write."""
    cluster.write(cluster.pipeline())
    with restored_afterwards(cluster, "A"), cluster.without("C"):
        written = cluster.write(cluster.pipeline(), ids=[2])
    cluster.start("A", "X")
    for _ in range(8):
        cluster.round()
    for away in "ABC":
        with cluster.without(away):
            try:
                assert written in cluster.read(cluster.pipeline())
            except ConsistencyNotReached:
                assert away in "BC"


def test_repair_makes_a_restored_replica_whole_when_all_others_answer(cluster: SmallCluster) -> None:
    cluster.write(cluster.pipeline())
    with restored_afterwards(cluster, "A"), cluster.without("C"):
        written = cluster.write(cluster.pipeline(), ids=[2])
    with cluster.without("C"):
        half = repair(cluster.cluster, "air.flights")
    assert (half.complete, [*half.refused]) == (False, ["A/d1"])
    assert "others do not answer" in half.refused["A/d1"]
    with cluster.without("B"), pytest.raises(ConsistencyNotReached, match=OLDER):
        cluster.read(cluster.pipeline())
    planned = repair(cluster.cluster, "air.flights", dry_run=True)
    assert (planned.complete, [*planned.refused]) == (False, ["A/d1"])
    with cluster.without("B"), pytest.raises(ConsistencyNotReached, match=OLDER):
        cluster.read(cluster.pipeline())
    done = repair(cluster.cluster, "air.flights")
    assert (done.complete, done.refused) == (True, {})
    with cluster.without("B"):
        assert written in cluster.read(cluster.pipeline())
        cluster.write(cluster.pipeline(), ids=[3])


def test_repair_says_so_when_a_quorum_of_replicas_went_back(cluster: SmallCluster) -> None:
    """What only they had acknowledged may be lost: reads stay refused, and nobody is to take that for done."""
    cluster.write(cluster.pipeline())
    with restored_afterwards(cluster, "A"), restored_afterwards(cluster, "B"), cluster.without("C"):
        cluster.write(cluster.pipeline(), ids=[2])
    report = repair(cluster.cluster, "air.flights")
    assert (report.complete, [*report.refused]) == (False, ["A/d1", "B/d1"])
    assert all("no quorum is left" in why for why in report.refused.values())
    with pytest.raises(WaitTimeout, match=r"2 replica\(s\) that went back are still refused"):
        report.require_complete()


def test_an_operator_can_give_up_what_a_quorum_of_replicas_that_went_back_had(cluster: SmallCluster) -> None:
    kept = cluster.write(cluster.pipeline())
    with restored_afterwards(cluster, "A"), restored_afterwards(cluster, "B"):
        with cluster.without("C"):
            lost = cluster.write(cluster.pipeline(), ids=[2])
        with cluster.without("A"):
            found = cluster.write(cluster.pipeline(), ids=[3])
    with cluster.without("C"):
        silent = repair(cluster.cluster, "air.flights", accept_restored=True)
    assert (silent.complete, silent.given_up, [*silent.refused]) == (False, {}, ["A/d1", "B/d1"])
    planned = repair(cluster.cluster, "air.flights", accept_restored=True, dry_run=True)
    assert (planned.complete, [*planned.given_up]) == (False, ["A/d1", "B/d1"])
    with pytest.raises(ConsistencyNotReached, match=OLDER):
        cluster.read(cluster.pipeline())
    done = repair(cluster.cluster, "air.flights", accept_restored=True)
    assert (done.complete, [*done.given_up], done.refused) == (True, ["A/d1", "B/d1"], {})
    for away in "ABC":
        with cluster.without(away):
            read = {*cluster.read(cluster.pipeline())}
        assert {kept, found} <= read
        assert lost not in read
    again = repair(cluster.cluster, "air.flights")
    assert (again.complete, again.given_up, again.refused) == (True, {}, {})


def test_giving_up_what_went_back_changes_nothing_where_a_quorum_did_not(cluster: SmallCluster) -> None:
    cluster.write(cluster.pipeline())
    with restored_afterwards(cluster, "A"), cluster.without("C"):
        written = cluster.write(cluster.pipeline(), ids=[2])
    done = repair(cluster.cluster, "air.flights", accept_restored=True)
    assert (done.complete, done.given_up, done.refused) == (True, {}, {})
    with cluster.without("B"):
        assert written in cluster.read(cluster.pipeline())


def test_a_replica_that_goes_back_while_a_repair_looks_at_another_one_that_did_is_seen(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A and B have acknowledged a write that C missed; B goes back as well when the repair has seen that A did."""
    cluster.write(cluster.pipeline())
    directory, backup = cluster.directory / "B", cluster.directory / "backup"
    shutil.copytree(directory, backup)
    with restored_afterwards(cluster, "A"), cluster.without("C"):
        cluster.write(cluster.pipeline(), ids=[2])
    look, looks = repairing.look_again, 0

    def then_goes_back(*given: Any) -> Any:
        nonlocal looks
        looks += 1
        seen = look(*given)
        if looks == 1:
            shutil.rmtree(directory)
            shutil.move(backup, directory)
        return seen

    view = repairing.look(cluster.cluster, "air.flights")
    monkeypatch.setattr(repairing, "look_again", then_goes_back)
    settled = repairing.settle_restored(cluster.cluster, view)
    assert [*settled.refused] == ["A/d1", "B/d1"]
    assert all("no quorum is left" in why for why in settled.refused.values())
    with pytest.raises(ConsistencyNotReached, match=OLDER):
        cluster.read(cluster.pipeline())


def test_repair_says_so_when_rows_came_to_the_others_before_a_replica_could_count_again(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.write(cluster.pipeline())
    with restored_afterwards(cluster, "A"), cluster.without("C"):
        cluster.write(cluster.pipeline(), ids=[2])
    settle = repairing.settle_restored

    def written_before(*arguments: Any, **options: Any) -> dict[str, str]:
        cluster.write(cluster.pipeline(), ids=[3])
        return settle(*arguments, **options)

    monkeypatch.setattr(repairing, "settle_restored", written_before)
    report = repair(cluster.cluster, "air.flights")
    assert (report.complete, [*report.refused]) == (False, ["A/d1"])
    assert "repair again" in report.refused["A/d1"]
    monkeypatch.undo()
    assert repair(cluster.cluster, "air.flights").complete


def test_a_pending_replica_that_goes_back_after_it_was_streamed_to_is_told(cluster: SmallCluster) -> None:
    written = cluster.write(cluster.pipeline())
    cluster.start("A", "X")
    cluster.until(Stage.STREAMING)
    with restored_afterwards(cluster, "X"):
        cluster.until(Stage.USE_NEW)
    with cluster.without("B"), pytest.raises(ConsistencyNotReached, match=OLDER):
        assert written in cluster.read(cluster.pipeline())


def test_rebuilding_a_node_makes_its_restored_tables_whole(tmp_path: Path) -> None:
    ring = ringed(tmp_path, FOUR_ON_RING, {"dc1": 3}, configuration=QUICK)
    ring.write_rows(ring.pipeline(), {100: 0})
    with restored_afterwards(ring, "D"):
        written = ring.write_rows(ring.pipeline(), {row + 200: token for row, token in SPREAD.items()})
    with ring.without("C"), pytest.raises(ConsistencyNotReached, match=OLDER):
        ring.read_rows(ring.pipeline())
    rebuild(ring)
    ring.until(Step.MID)
    ring.settle()
    with ring.without("C"):
        assert written <= set(ring.read_rows(ring.pipeline()))


def test_one_receipt_is_kept_for_each_replica(cluster: SmallCluster) -> None:
    for row in range(4):
        cluster.write(cluster.pipeline(), ids=[row])
    known = cluster.cluster.receipts.of(cluster.table.table_id)
    assert {volume: len(receipts) for volume, receipts in known.items()} == dict.fromkeys(cluster.volumes("ABC"), 1)
