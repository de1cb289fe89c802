"""A replica is prepared once for each transition: a coordinator that comes late takes nothing away.

The model of the stage machine found it (tests/support/stage_model.py): the fence does not tell a coordinator that was
paused before it prepared from one that prepares now, while writers of the next stage have brought rows already.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from epochlake.jobs.replicas import commits
from epochlake.jobs.replicas.commits import Once, commit_files, drop_once, drop_ranges
from epochlake.jobs.replicas.outcomes import Acknowledged, AlreadyApplied, CommitOutcome, FencedOff
from epochlake.jobs.replicas.replica import ReplicaAddress, ReplicaSnapshot, open_snapshot
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.fence import Fence
from epochlake.metastore.metadata.model import Identity
from epochlake.placement.tokens import tokens_of_label

from tests.support.replicas import make_replica, store

TABLET = "2-0"
RANGE = [tokens_of_label(TABLET)]


def prepare(address: ReplicaAddress, epoch: int, name: str, incarnation: int = 1) -> CommitOutcome:
    return drop_once(address, [Once(name, incarnation, tuple(RANGE))], epoch)


@pytest.fixture
def address(tmp_path: Path) -> ReplicaAddress:
    return make_replica(tmp_path, 1)


def test_what_an_earlier_transition_left_is_dropped_and_what_comes_after_stays(address: ReplicaAddress) -> None:
    left, written = store(address, TABLET), store(address, TABLET, ids=(4, 5), at=200)
    commit_files(address, [left], epoch=2, app_id="load", app_version=1)
    assert isinstance(prepare(address, 7, "prepare"), Acknowledged)
    assert isinstance(commit_files(address, [written], epoch=8, app_id="load", app_version=2), Acknowledged)
    assert isinstance(prepare(address, 7, "prepare"), AlreadyApplied)
    assert list(open_snapshot(address).all_files) == [written.file_id]


def test_a_replica_that_had_nothing_to_drop_is_prepared_as_well(address: ReplicaAddress) -> None:
    written = store(address, TABLET)
    assert isinstance(prepare(address, 7, "prepare"), Acknowledged)
    commit_files(address, [written], epoch=8, app_id="load", app_version=1)
    prepare(address, 7, "prepare")
    assert list(open_snapshot(address).all_files) == [written.file_id]
    assert isinstance(prepare(address, 9, "prepare for another"), Acknowledged)
    assert not open_snapshot(address).all_files


def test_what_was_prepared_in_epochs_that_were_lost_is_prepared_again_and_only_once(address: ReplicaAddress) -> None:
    prepare(address, 7, "prepare")
    of_lost_epochs, written = store(address, TABLET), store(address, TABLET, ids=(4, 5), at=200)
    commit_files(address, [of_lost_epochs], epoch=8, app_id="load", app_version=1)
    fence = Fence(7, 2)
    assert isinstance(prepare(address, fence, "prepare", 2), Acknowledged)
    commit_files(address, [written], epoch=Fence(8, 2), app_id="load", app_version=2)
    assert isinstance(prepare(address, fence, "prepare", 2), AlreadyApplied)
    assert list(open_snapshot(address).all_files) == [written.file_id]


def test_what_was_prepared_before_epochs_were_lost_and_still_goes_on_is_not_prepared_again(
    address: ReplicaAddress,
) -> None:
    for incarnation in (1, 2):
        prepare(address, Fence(7, 2), f"prepare {incarnation}", incarnation)
    for incarnation in (1, 2):
        later = prepare(address, Fence(9, 3), f"prepare {incarnation}", 1)
        assert isinstance(later, AlreadyApplied)


def test_tablets_are_prepared_together_and_each_only_once(address: ReplicaAddress) -> None:
    first, second, third = (Once(f"prepare {label}", 1, (tokens_of_label(label),)) for label in ("4-0", "4-1", "4-2"))
    assert isinstance(drop_once(address, [second], 7), Acknowledged)
    old = {label: store(address, label) for label in ("4-0", "4-1", "4-2", "4-3")}
    commit_files(address, list(old.values()), epoch=7, app_id="load", app_version=1)
    before = open_snapshot(address).version
    assert isinstance(drop_once(address, [first, second, third], 7), Acknowledged)
    found = open_snapshot(address)
    assert (found.version, {*found.all_files}) == (before + 1, {old["4-1"].file_id, old["4-3"].file_id})
    written = store(address, "4-0", at=200)
    commit_files(address, [written], epoch=8, app_id="load", app_version=2)
    assert isinstance(drop_once(address, [third, first], 8), AlreadyApplied)
    assert written.file_id in open_snapshot(address).all_files


@pytest.mark.parametrize(("epoch", "since"), [(3, 1), (10, 1), (11, 2), (30, 2)])
def test_an_epoch_after_a_loss_was_accepted_may_have_been_one_before(epoch: int, since: int) -> None:
    identity = Identity(name="x", cluster_id="c", incarnation=2, epoch=10)
    assert msgspec.structs.replace(ClusterMetadata.empty(), identity=identity).incarnation_since(epoch) == since


def test_one_that_looked_before_the_other_had_prepared_drops_nothing(
    address: ReplicaAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, written = store(address, TABLET), store(address, TABLET, ids=(4, 5), at=200)
    commit_files(address, [left], epoch=2, app_id="load", app_version=1)
    looked = open_snapshot

    def look_and_be_overtaken(where: ReplicaAddress) -> ReplicaSnapshot:
        snapshot = looked(where)
        monkeypatch.setattr(commits, "open_snapshot", looked)
        prepare(where, 7, "prepare")
        commit_files(where, [written], epoch=8, app_id="load", app_version=2)
        return snapshot

    monkeypatch.setattr(commits, "open_snapshot", look_and_be_overtaken)
    assert isinstance(prepare(address, 7, "prepare"), AlreadyApplied)
    assert list(looked(address).all_files) == [written.file_id]


def test_one_that_looked_at_an_empty_replica_before_the_other_had_prepared_drops_nothing(
    address: ReplicaAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, looked = store(address, TABLET), open_snapshot

    def look_and_be_overtaken(where: ReplicaAddress) -> ReplicaSnapshot:
        snapshot = looked(where)
        monkeypatch.setattr(commits, "open_snapshot", looked)
        prepare(where, 7, "prepare")
        commit_files(where, [written], epoch=8, app_id="load", app_version=1)
        return snapshot

    monkeypatch.setattr(commits, "open_snapshot", look_and_be_overtaken)
    prepare(address, 7, "prepare")
    assert list(looked(address).all_files) == [written.file_id]


def test_preparing_is_fenced_like_everything(address: ReplicaAddress) -> None:
    drop_ranges(address, RANGE, 9)
    assert prepare(address, 7, "prepare") == FencedOff(9)
