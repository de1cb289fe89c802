"""Logs whose entries count when a majority of members has them: what is acknowledged outlives the root."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
from epochlake.metastore.errors import (
    ConfigurationError,
    HashMismatch,
    LogWentBack,
    StorageUnavailable,
)
from epochlake.metastore.log import generations
from epochlake.metastore.log.delta import DeltaLog
from epochlake.metastore.log.entry import Entry, position_of
from epochlake.metastore.log.epoch_log import AppendConflict, AppendFailed, AppendUncertain, EpochLog
from epochlake.metastore.log.log_member import LogMember, Sealed
from epochlake.metastore.log.log_place import LogBelowRoot
from epochlake.placement.errors import EpochlakeError, InvalidRequest

from tests.support.log_contract import *  # noqa: F403
from tests.support.log_contract import Opener
from tests.support.logs import chain
from tests.support.member_groups import CLUSTER, Group, append
from tests.support.slices import THOROUGH
from tests.support.waiting import eventually


@pytest.fixture
def open_log(tmp_path: Path) -> Opener:
    """The contract of a log is held by one with three members as well."""
    group = Group(tmp_path, 3, delta=True)
    group.reconfigure(0, 1, 2)
    return group.open


@pytest.mark.parametrize("delta", [False, True])
def test_the_loss_of_the_root_loses_nothing_that_was_acknowledged(tmp_path: Path, delta: bool) -> None:
    group = Group(tmp_path, 3, delta=delta)
    group.reconfigure(0, 1, 2)
    entries = chain(7)
    log = append(group, entries[:3])
    log.append(entries[3:])
    group.lose_root()
    assert group.recover(0, 2) == 7
    assert group.open().read(0) == entries
    more = chain(2, position_of(entries[-1]))
    append(group, more)
    assert group.open().read(0) == [*entries, *more]


def test_without_members_nothing_but_the_first_epoch_is_appended(tmp_path: Path) -> None:
    group = Group(tmp_path, 1)
    entries = chain(2)
    log = append(group, entries[:1])
    with pytest.raises(AppendFailed, match="no log members"):
        log.append(entries[1:])
    assert group.logs.open(f"{group.root}/log").read(0) == entries[:1]
    group.reconfigure(0)
    log.read(1)
    log.append(entries[1:])


def test_an_append_that_no_majority_has_is_not_reported_and_not_read(tmp_path: Path) -> None:
    group = Group(tmp_path, 3)
    group.reconfigure(0, 1, 2)
    entries = chain(3)
    log = append(group, entries[:1])
    group.memory.broken = set(group.members[:2])
    with pytest.raises(AppendUncertain, match="not known to be on a majority"):
        log.append(entries[1:2])
    with pytest.raises(StorageUnavailable, match="1 of 3 log members"):
        group.open().read(0)
    with pytest.raises(AppendConflict):
        log.append(entries[2:])
    group.memory.broken = set()
    assert group.open().read(0) == entries[:2]
    assert [state.epoch for state in map(group.mover().state_of, group.members)].count(2) >= 2


def test_a_minority_that_is_away_stops_nobody_and_is_brought_on_later(tmp_path: Path) -> None:
    group = Group(tmp_path, 3)
    group.reconfigure(0, 1, 2)
    entries = chain(5)
    group.memory.broken = {group.members[1]}
    append(group, entries)
    group.memory.broken = {group.members[0]}
    assert group.open().read(0) == entries
    group.lose_root()
    group.memory.broken = {group.members[2]}
    assert group.recover(0, 1, 2) == 5


@pytest.mark.parametrize("refused", [None, AppendFailed, AppendConflict])
def test_members_have_an_append_on_their_disks_before_the_root_and_take_it_after_it(
    tmp_path: Path, refused: type[EpochlakeError] | None
) -> None:
    group = Group(tmp_path, 3, delta=True)
    group.reconfigure(0, 1, 2)
    entries = chain(2)

    def epochs() -> list[int]:
        return [group.mover().state_of(uri).epoch for uri in group.members]

    def files() -> int:
        return sum(path.is_file() for uri in group.members for path in Path(uri).rglob("*"))

    log = append(group, entries[:1])
    # One that was still at work when it was appended is asked again by who reads.
    eventually(lambda: not log.read(1) and epochs() == [1, 1, 1])
    eventually(lambda: not any(copying.busy for copying in log._members.values()))  # they clear up behind themselves
    before, whole, seen = files(), log.root.append, []

    def appended(given: Sequence[Entry]) -> None:
        eventually(lambda: files() == before + 6)  # of each member a data file and a commit without a name
        seen.extend(epochs())
        if refused is not None:
            raise refused("told by the root")
        whole(given)

    log.root.append = appended  # type: ignore[method-assign]
    with nullcontext() if refused is None else pytest.raises(refused):
        log.append(entries[1:])
    assert seen == [1, 1, 1]
    eventually(lambda: files() == before + (6 if refused is None else 0))
    assert group.open().read(0) == (entries if refused is None else entries[:1])
    assert epochs() == ([2, 2, 2] if refused is None else [1, 1, 1])


def test_a_root_that_is_restored_from_an_older_copy_is_refused(tmp_path: Path) -> None:
    group = Group(tmp_path, 3)
    group.reconfigure(0, 1, 2)
    entries = chain(4)
    append(group, entries)
    del group.memory.logs[f"{group.root}/log"].entries[2:]
    with pytest.raises(LogWentBack):
        group.open().read(0)
    with pytest.raises(LogWentBack):
        group.reconfigure(0, 1)


def test_a_root_that_comes_back_after_its_recovery_acknowledges_nothing(tmp_path: Path) -> None:
    group = Group(tmp_path, 3)
    group.reconfigure(0, 1, 2)
    entries = chain(3)
    before = append(group, entries[:2], patience=0.5)
    old = group.root
    group.recover(1, 2)
    with pytest.raises(AppendUncertain):
        before.append(entries[2:])
    with pytest.raises(StorageUnavailable):
        group.open(old, 0.2).read(0)
    with pytest.raises(InvalidRequest, match="was given up"):
        group.mover(old).reconfigure(CLUSTER, group.members, group.logs.open(f"{old}/log"))
    other = chain(1, position_of(entries[1]), tag="other")
    append(group, other)
    assert group.open().read(0) == [*entries[:2], *other]


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("committed", [False, True])
def test_of_two_recoveries_at_once_one_restores_the_root_and_the_other_is_told(
    tmp_path: Path, delta: bool, committed: bool
) -> None:
    """The first one stands still where it opens the root, until the second one has ended, and perhaps commits came."""
    group = Group(tmp_path, 3, delta=delta)
    group.reconfigure(0, 1, 2)
    entries = chain(4)
    append(group, entries[:3])
    group.lose_root()
    group.begin(group.root)

    def overtaken() -> EpochLog:
        opened = group.logs.open(f"{group.root}/log")
        group.mover().recover(group.members, lambda: group.logs.open(f"{group.root}/log"))
        if committed:
            append(group, entries[3:])
        return opened

    with pytest.raises(EpochlakeError) as told:
        group.mover().recover(group.members, overtaken)
    assert "--resume" not in told.value.hint
    if not committed:
        assert isinstance(told.value, StorageUnavailable)
        assert "metadata describe" in told.value.hint
        append(group, entries[3:])
    assert group.open().read(0) == entries
    group.lose_root()
    assert group.recover(0, 1, 2) == 4


def test_a_copy_whose_making_was_cut_off_stands_in_nobodys_way(tmp_path: Path) -> None:
    group = Group(tmp_path, 6, delta=True)
    group.reconfigure(0, 1, 2)
    entries = chain(3)
    append(group, entries[:2])
    (tmp_path / "member-4" / "generations" / f"{2:020}" / "log" / "_delta_log").mkdir(parents=True)
    group.reconfigure(0, 3, 5)
    assert group.reconfigure(0, 1, 4).number == 3
    append(group, entries[2:])
    group.lose_root()
    assert group.recover(*range(6)) == 3


@pytest.mark.parametrize("moment", ["append", "read"])
def test_what_a_root_has_lost_is_not_brought_to_the_members_of_the_one_that_was_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    group = Group(tmp_path, 3)
    group.reconfigure(0, 1, 2)
    entries = chain(4)
    log = append(group, entries[:2])
    asked, appended = log._ask_until_durable, log.root.append

    def lose_it() -> None:
        monkeypatch.undo()
        group.lose_root()
        group.recover(0, 1, 2, root=group.root)

    def lose_it_before(*arguments: object) -> None:
        lose_it()
        asked(*arguments)  # type: ignore[arg-type]

    def lose_it_after(given: Sequence[Entry]) -> None:
        appended(given)
        lose_it()

    if moment == "read":
        # Somebody else has appended it, and was killed before the members had it.
        root = group.logs.open(f"{group.root}/log")
        root.read(0)
        root.append(entries[2:3])
        monkeypatch.setattr(log, "_ask_until_durable", lose_it_before)
    else:
        monkeypatch.setattr(log.root, "append", lose_it_after)
    with pytest.raises(AppendUncertain if moment == "append" else LogWentBack):
        log.append(entries[2:3]) if moment == "append" else log.read(0)
    assert group.open().read(0) == entries[:2]
    other = chain(1, position_of(entries[1]), tag="other")
    append(group, other)
    assert group.open().read(0) == [*entries[:2], *other]


def test_members_are_replaced_one_set_by_another_while_handles_stay_open(tmp_path: Path) -> None:
    group = Group(tmp_path, 6)
    group.reconfigure(0, 1, 2)
    entries = chain(6)
    log = append(group, entries[:2])
    group.reconfigure(3, 4, 5)
    log.append(entries[2:4])
    for member in group.members[:3]:
        shutil.rmtree(member)
    assert group.open().read(0) == entries[:4]
    group.lose_root()
    assert group.recover(3, 5) == 4


def test_a_change_of_members_that_was_killed_is_gone_on_with(tmp_path: Path) -> None:
    group = Group(tmp_path, 4)
    group.reconfigure(0, 1, 2)
    entries = chain(3)
    log = append(group, entries[:2], patience=0.5)
    wanted = group.generation(2, group.members[1:])
    for member in group.members[:2]:
        LogMember(group.storage, member, group.logs).seal(wanted)
    with pytest.raises(AppendUncertain):
        log.append(entries[2:])
    assert group.mover().unfinished() == wanted
    group.mover().carry_out(wanted, group.logs.open(f"{group.root}/log"))
    assert group.mover().unfinished() is None
    assert group.open().read(0) == entries


@pytest.mark.parametrize("way", ["resume", "reconfigure"])
def test_a_number_that_somebody_has_left_with_a_member_of_neither_set_is_passed_over(tmp_path: Path, way: str) -> None:
    group = Group(tmp_path, 9)
    old, new, others = (tuple(group.members[at : at + 3]) for at in (0, 3, 6))
    group.reconfigure(0, 1, 2)
    group.reconfigure(3, 4, 5)
    # A change to others was begun once, which leads to the old members; of the next ones one was killed before he came
    # to a member of now, and another one, who got the same number, after that.
    LogMember(group.storage, others[0], group.logs).seal(group.generation(1, old))
    LogMember(group.storage, old[0], group.logs).seal(group.generation(3, old))
    unfinished = group.generation(3, others)
    for uri in new:
        LogMember(group.storage, uri, group.logs).seal(unfinished)
    mover, root = group.mover(), group.logs.open(f"{group.root}/log")
    assert mover.unfinished() == unfinished
    done = mover.resume(root) if way == "resume" else mover.reconfigure(CLUSTER, [*others, old[0]], root)
    assert done is not None
    assert done.number == 4
    assert set(done.members) >= set(others)
    assert mover.unfinished() is None
    assert mover.resume(root) is None


def test_too_few_members_restore_nothing(tmp_path: Path) -> None:
    group = Group(tmp_path, 3)
    group.reconfigure(0, 1, 2)
    append(group, chain(3))
    group.memory.broken = {group.members[2]}
    shutil.rmtree(group.members[1])
    group.lose_root()
    with pytest.raises(StorageUnavailable, match="too few members"):
        group.recover(0)
    with pytest.raises(StorageUnavailable, match="none of"):
        group.recover(1)


def test_a_set_that_has_gone_on_to_others_does_not_restore_without_them(tmp_path: Path) -> None:
    group = Group(tmp_path, 6)
    group.reconfigure(0, 1, 2)
    append(group, chain(2))
    group.reconfigure(3, 4, 5)
    log = group.open()
    log.read(0)
    log.append(chain(1, position_of(log.read(0)[-1])))
    for member in group.members[3:]:
        shutil.move(member, f"{member}-away")
    group.lose_root()
    with pytest.raises(StorageUnavailable, match="too few members of generation 2"):
        group.recover(0, 1, 2)


def test_a_member_of_another_cluster_is_refused(tmp_path: Path) -> None:
    group = Group(tmp_path, 2)
    group.reconfigure(0)
    with pytest.raises(HashMismatch, match="another cluster"):
        group.mover().reconfigure("cluster-2", group.members, group.logs.open(f"{group.root}/log"))


def test_a_promise_is_kept_by_an_append_that_was_read_for_before_it(tmp_path: Path) -> None:
    group = Group(tmp_path, 1, delta=True)
    group.reconfigure(0)
    entries = chain(2)
    append(group, entries[:1])
    copy = DeltaLog(group.storage, f"{group.members[0]}/generations/{1:020}/log")
    copy.read(0)
    LogMember(group.storage, group.members[0], group.logs).seal(
        generations.Generation(2, CLUSTER, group.root, (group.members[0],))
    )
    with pytest.raises(AppendConflict):
        copy.append(entries[1:])


def test_a_process_that_is_to_report_without_members_is_refused_where_there_are_some(tmp_path: Path) -> None:
    group = Group(tmp_path, 3, delta=True)
    below = LogBelowRoot(group.storage, f"{group.root}/log", register=f"{group.root}/{generations.DIRECTORY}")
    below.open()
    group.reconfigure(0, 1, 2)
    with pytest.raises(ConfigurationError, match="names log members") as refused:
        below.open()
    assert 'acknowledge = "majority"' in refused.value.hint


@pytest.mark.parametrize("uris", [[], [""], ["s3://bucket/copy"], ["/a", "/a/"]])
def test_members_that_cannot_be_are_refused(uris: list[str]) -> None:
    with pytest.raises(InvalidRequest):
        generations.members_of(uris)


@pytest.mark.parametrize("seed", range(200 if THOROUGH else 12))
def test_whatever_was_acknowledged_is_in_what_is_read_ever_after(tmp_path: Path, seed: int) -> None:
    """Commits, members that come and go, changes of the set that die half-way, roots that are lost: at random."""
    draw = random.Random(seed)
    group = Group(tmp_path, 5)
    group.reconfigure(0, 1, 2)
    acknowledged = chain(1)
    append(group, acknowledged)
    handles = [group.open(patience=0.1)]
    for step in range(30):
        group.memory.broken = set(draw.sample(group.members, draw.choice([0, 0, 1, 1, 2])))
        what = draw.choice(["append"] * 6 + ["open", "reconfigure", "recover", "half", "late"])
        try:
            if what == "append":
                log = draw.choice(handles)
                there = log.read(0)
                # Whoever is given a root's log by its members is given all that any of them has acknowledged.
                assert there[: len(acknowledged)] == acknowledged
                more = chain(draw.choice([1, 2]), position_of(there[-1]), tag=f"{step}")
                log.append(more)
                acknowledged = [*there, *more]
            elif what == "open":
                handles.append(group.open(patience=0.1))
            elif what == "reconfigure":
                group.reconfigure(*draw.sample(range(5), draw.choice([1, 3])))
            elif what == "half":
                promise = [p for m in group.members for p in LogMember(group.storage, m, group.logs).promises()]
                number = max((p.number for p in promise), default=0) + 1
                members = generations.members_of(draw.sample(group.members, 3))
                wanted = group.generation(number, members)
                for uri in draw.sample(group.members, 2):
                    LogMember(group.storage, uri, group.logs).seal(wanted)
            elif what == "late":
                wanted_now = group.mover().unfinished()
                if wanted_now is not None:
                    group.mover().carry_out(wanted_now, group.logs.open(f"{group.root}/log"))
            else:
                before = group.root
                try:
                    group.recover(*range(5))
                    handles = [*handles[-1:], group.open(patience=0.1)]
                except EpochlakeError:
                    group.root = before
        except (EpochlakeError, Sealed):
            continue
    group.memory.broken = set()
    for _ in range(3):
        try:
            group.recover(*range(5))
            break
        except InvalidRequest:
            continue
    assert group.open().read(0)[: len(acknowledged)] == acknowledged
