"""Logs whose entries count when a majority of members has them: what is acknowledged outlives the root."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from epochlake.metastore.configuration import StorageSettings
from epochlake.metastore.errors import (
    ConfigurationError,
    HashMismatch,
    LogUnreadable,
    LogWentBack,
    StorageUnavailable,
)
from epochlake.metastore.log import generations, log_member, moving_members, seats
from epochlake.metastore.log.delta import DeltaLog
from epochlake.metastore.log.entry import Entry, position_of
from epochlake.metastore.log.epoch_log import AppendConflict, AppendFailed, AppendUncertain, EpochLog, PreparedLog
from epochlake.metastore.log.in_memory import InMemoryLog, SharedEntries
from epochlake.metastore.log.log_member import DeltaMemberLogs, LogMember, MemberLogs, Sealed
from epochlake.metastore.log.log_place import LogBelowRoot
from epochlake.metastore.log.majority_log import MajorityLog
from epochlake.metastore.log.moving_members import MemberMover
from epochlake.metastore.log.no_members import LogWithoutMembers
from epochlake.metastore.storage.local_disk import LocalDisk
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import EpochlakeError, InvalidRequest

from tests.support.log_contract import *  # noqa: F403
from tests.support.log_contract import Opener
from tests.support.logs import chain
from tests.support.slices import THOROUGH
from tests.support.waiting import eventually

CLUSTER = "cluster-1"


class MemoryLogs:
    """Logs of members in memory; those in `broken` directories do not answer."""

    def __init__(self) -> None:
        self.logs: dict[str, SharedEntries] = {}
        self.broken: set[str] = set()
        self.lose_next: set[str] = set()

    def is_there(self, uri: str) -> bool:
        return uri in self.logs

    def create(self, uri: str) -> None:
        self.logs.setdefault(uri, SharedEntries())

    def open(self, uri: str) -> PreparedLog:
        return _Breakable(self, uri)

    def delete(self, uri: str) -> None:
        self.logs.pop(uri, None)


class _Breakable(InMemoryLog):
    def __init__(self, logs: MemoryLogs, uri: str) -> None:
        super().__init__(logs.logs[uri])
        self._logs, self._uri = logs, uri

    def _require(self) -> None:
        if any(self._uri.startswith(f"{broken}/") for broken in self._logs.broken):
            raise StorageUnavailable(f"{self._uri} does not answer")

    def read(self, after: int, up_to: int | None = None) -> list[Entry]:
        self._require()
        return super().read(after, up_to)

    def append(self, entries: list[Entry]) -> None:  # type: ignore[override]
        self._require()
        super().append(entries)
        if self._uri in self._logs.lose_next:
            self._logs.lose_next.discard(self._uri)
            raise AppendUncertain("the answer was lost")

    def fence(self) -> None:
        self._require()
        super().fence()


class Group:
    """A root and directories for members, all of them real directories; logs in memory or in Delta."""

    def __init__(self, path: Path, count: int, *, delta: bool = False) -> None:
        path.mkdir(exist_ok=True)
        self.path = path
        self.storage = Storage(StorageSettings(durability="fsync"))
        self.memory = MemoryLogs()
        self.logs: MemberLogs = DeltaMemberLogs(self.storage, 8) if delta else self.memory
        self.members = []
        for number in range(count):
            (path / f"member-{number}").mkdir()
            self.members.append(str(path / f"member-{number}"))
        self.root = str(path / "root")
        self.begin(self.root)

    def begin(self, root: str) -> None:
        Path(root).mkdir()
        self.logs.create(f"{root}/log")

    def open(self, root: str = "", patience: float = 20.0) -> MajorityLog:
        root = root or self.root
        place = f"{root}/log"
        return MajorityLog(
            self.storage,
            f"{root}/{generations.DIRECTORY}",
            lambda: self.logs.open(place),
            self.logs,
            patience=patience,
        )

    def mover(self, root: str = "") -> MemberMover:
        root = root or self.root
        return MemberMover(self.storage, root, f"{root}/{generations.DIRECTORY}", self.logs)

    def reconfigure(self, *numbers: int) -> generations.Generation:
        chosen = [self.members[number] for number in numbers]
        return self.mover().reconfigure(CLUSTER, chosen, self.logs.open(f"{self.root}/log"))

    def generation(self, number: int, members: Sequence[str]) -> generations.Generation:
        """One that was begun: its members, those that are there, have their seats."""
        token = f"seat-{number}-{len(list(self.path.rglob('seat-*')))}"
        there = [uri for uri in members if Path(uri).exists()]
        seats = tuple(LogMember(self.storage, uri, self.logs).give_seat(token) for uri in there)
        return generations.Generation(number, CLUSTER, self.root, tuple(members), token=token, seats=seats)

    def lose_root(self) -> None:
        shutil.rmtree(self.root)
        self.memory.logs.pop(f"{self.root}/log", None)

    def recover(self, *numbers: int, root: str = "") -> int:
        self.root = root or str(self.path / f"root-{len(list(self.path.iterdir()))}")
        if not Path(self.root).exists():
            self.begin(self.root)
        chosen = [self.members[number] for number in numbers]
        return self.mover().recover(chosen, lambda: self.logs.open(f"{self.root}/log")).epoch


@pytest.fixture
def open_log(tmp_path: Path) -> Opener:
    """The contract of a log is held by one with three members as well."""
    group = Group(tmp_path, 3, delta=True)
    group.reconfigure(0, 1, 2)
    return group.open


def append(group: Group, entries: list[Entry], root: str = "", patience: float = 20.0) -> MajorityLog:
    log = group.open(root, patience)
    log.read(0)
    log.append(entries)
    return log


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
    eventually(lambda: epochs() == [1, 1, 1])
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


def wipe(group: Group, *numbers: int) -> None:
    """Blank disks come in place of members'."""
    for number in numbers:
        shutil.rmtree(group.members[number])
        Path(group.members[number]).mkdir()
        for uri in [uri for uri in group.memory.logs if uri.startswith(f"{group.members[number]}/")]:
            del group.memory.logs[uri]


def behind(group: Group, number: int, entries: list[Entry]) -> None:
    """Append while a member is away, so that it lacks the entries."""
    group.memory.broken = {group.members[number]}
    append(group, entries)
    group.memory.broken = set()


@pytest.mark.parametrize("delta", [False, True])
def test_a_blank_disk_is_no_member_and_does_not_help_to_restore_a_log_without_what_it_had(
    tmp_path: Path, delta: bool
) -> None:
    group = Group(tmp_path, 3, delta=delta)
    group.reconfigure(0, 1, 2)
    entries = chain(4)
    append(group, entries[:2])
    away = Path(group.members[2]).rename(tmp_path / "late")
    append(group, entries[2:])
    wipe(group, 1)
    away.rename(group.members[2])
    Path(group.members[0]).rename(tmp_path / "away")
    group.lose_root()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    root = str(tmp_path / "root")
    with pytest.raises(
        StorageUnavailable, match=r"too few members.*member-1: it has lost what it was given"
    ) as refused:
        group.recover(1, 2, root=root)
    assert refused.value.hint.endswith("if they are gone for good, give --accept-loss")
    Path(root).exists() and shutil.rmtree(root)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if "root" not in path.name} == {
        path: changed for path, changed in before.items() if "root" not in path.name
    }
    (tmp_path / "away").rename(group.members[0])
    assert group.recover(0, 1, 2, root=root) == 4
    assert group.open().read(0) == entries


def test_what_only_a_wiped_member_had_is_given_up_when_somebody_says_so(tmp_path: Path) -> None:
    group = Group(tmp_path, 3)
    group.reconfigure(0, 1, 2)
    entries = chain(3)
    append(group, entries[:1])
    eventually(lambda: group.mover().state_of(group.members[2]).epoch == 1)
    behind(group, 2, entries[1:])
    wipe(group, 0, 1)
    group.lose_root()
    with pytest.raises(StorageUnavailable, match="too few members"):
        group.recover(0, 1, 2)
    shutil.rmtree(group.root)
    group.logs = group.memory
    group.begin(group.root)
    mover = MemberMover(group.storage, group.root, f"{group.root}/log-members", group.logs, accept_loss=True)
    assert mover.recover(group.members, lambda: group.logs.open(f"{group.root}/log")).epoch == 1
    more = chain(1, position_of(entries[0]), tag="on")
    append(group, more)
    assert group.open().read(0) == [*entries[:1], *more]


def test_a_member_that_never_was_reached_counts_and_one_that_has_lost_its_seat_does_not(tmp_path: Path) -> None:
    group = Group(tmp_path, 3)
    shutil.move(group.members[2], tmp_path / "away")
    named = group.reconfigure(0, 1, 2)
    shutil.move(tmp_path / "away", group.members[2])
    assert [seat.member for seat in named.seats] == group.members[:2]
    entries = chain(2)
    append(group, entries)
    shutil.move(group.members[0], tmp_path / "away")
    group.lose_root()
    # The third never held anything, and will not: so the second alone has what was acknowledged.
    assert group.recover(1, 2) == 2
    assert group.open().read(0) == entries


def test_a_wiped_member_takes_no_commit_on_a_handle_of_before_and_none_on_a_new_one(tmp_path: Path) -> None:
    for delta in (False, True):
        group = Group(tmp_path / str(delta), 3, delta=delta)
        group.reconfigure(0, 1, 2)
        entries = chain(3)
        log = append(group, entries[:1], patience=2.0)
        eventually(lambda: not any(copying.busy for copying in log._members.values()))  # noqa: B023
        wipe(group, 1)
        shutil.rmtree(group.members[2])
        with pytest.raises(AppendUncertain, match="1 of 3 log members"):
            log.append(entries[1:2])
        with pytest.raises(StorageUnavailable, match="1 of 3 log members"):
            group.open(patience=2.0).read(0)


@pytest.mark.parametrize("lost", ["promises", "generations", "seats"])
def test_a_member_of_which_a_part_is_gone_does_not_count(tmp_path: Path, lost: str) -> None:
    group = Group(tmp_path, 3, delta=True)
    group.reconfigure(0, 1, 2)
    entries = chain(2)
    append(group, entries)
    shutil.rmtree(tmp_path / "member-1" / lost)
    assert [bool(state.doubt) for state in group.mover().describe()[1]] == [False, True, False]
    shutil.move(group.members[0], tmp_path / "away")
    with pytest.raises(StorageUnavailable, match="too few members of generation 1"):
        group.reconfigure(1, 2)
    group.lose_root()
    with pytest.raises(StorageUnavailable, match="too few members of generation 1"):
        group.recover(1, 2)


def test_a_member_whose_files_come_from_a_copy_is_brought_on_and_does_not_count_when_the_root_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seats, "TOLERANCE_MS", 0)
    group = Group(tmp_path, 3, delta=True)
    group.reconfigure(0, 1, 2)
    entries = chain(4)
    append(group, entries[:2])
    eventually(lambda: all(state.epoch == 2 for state in group.mover().describe()[1]))
    shutil.copytree(group.members[1], tmp_path / "yesterday")
    shutil.move(group.members[2], tmp_path / "late")
    append(group, entries[2:])
    shutil.rmtree(group.members[1])
    shutil.copytree(tmp_path / "yesterday", group.members[1])
    shutil.move(tmp_path / "late", group.members[2])
    kept = tmp_path / "kept"
    shutil.move(group.members[0], kept)
    shutil.copytree(group.root, tmp_path / "root-before")
    group.lose_root()
    with pytest.raises(StorageUnavailable, match="it was restored from a copy"):
        group.recover(1, 2)
    shutil.rmtree(group.root)
    group.root = str(tmp_path / "root")
    shutil.move(tmp_path / "root-before", group.root)
    # With the root it is brought on, and a change of the members makes it one that counts.
    assert group.open().read(0) == entries
    shutil.move(kept, group.members[0])
    group.reconfigure(0, 1, 2)
    assert not any(state.doubt for state in group.mover().describe()[1])
    shutil.move(group.members[0], tmp_path / "away")
    group.lose_root()
    assert group.recover(1, 2) == 4


def test_members_of_an_earlier_release_count_by_what_they_hold(tmp_path: Path) -> None:
    group = Group(tmp_path, 3)
    old = generations.Generation(1, CLUSTER, group.root, tuple(group.members))
    for uri in group.members[:2]:
        LogMember(group.storage, uri, group.logs).seal(old)
    group.mover().carry_out(old, group.logs.open(f"{group.root}/log"))
    entries = chain(2)
    append(group, entries)
    document = Path(group.root, "log-members", f"{1:020}.json")
    written = json.loads(document.read_text())
    for uri in (f"{group.root}/log-members", *(f"{uri}/promises" for uri in group.members)):
        # As that release has written it.
        bare = {name: value for name, value in written.items() if name not in ("token", "seats")}
        Path(uri, document.name).write_text(json.dumps(bare))
    wipe(group, 1)
    assert [bool(state.doubt) for state in group.mover().describe()[1]] == [False, True, False]
    shutil.move(group.members[0], tmp_path / "away")
    group.lose_root()
    with pytest.raises(StorageUnavailable, match="it holds nothing of generation 1"):
        group.recover(1, 2)
    shutil.move(tmp_path / "away", group.members[0])
    assert group.recover(0, 2, root=group.root) == 2


def test_of_two_changes_under_one_number_the_one_that_was_adopted_is_asked_for_its_majority(tmp_path: Path) -> None:
    group = Group(tmp_path, 5)
    group.reconfigure(0, 1, 2)
    entries = chain(3)
    append(group, entries[:1])
    # Somebody was killed after he came to a member of neither set with the number that the next change gets.
    LogMember(group.storage, group.members[3], group.logs).seal(group.generation(2, group.members[3:]))
    wanted = group.generation(2, group.members[:3])
    group.mover().carry_out(wanted, group.logs.open(f"{group.root}/log"))
    behind(group, 2, entries[1:])
    for number in (0, 1):
        shutil.move(group.members[number], tmp_path / f"away-{number}")
    group.lose_root()
    with pytest.raises(StorageUnavailable, match="too few members of generation 2"):
        group.recover(2, 3, 4)


def test_a_process_that_reported_without_members_is_refused_once_the_first_are_named(tmp_path: Path) -> None:
    group = Group(tmp_path, 3, delta=True)
    below = LogBelowRoot(group.storage, f"{group.root}/log", register=f"{group.root}/{generations.DIRECTORY}")
    idle, late = below.open(), below.open()
    entries = chain(4)
    for log in (idle, late):
        log.read(0)
    idle.append(entries[:1])
    late.read(0)
    whole = late.append

    # Named between the look for members and the append of somebody who is late.
    def named_first(given: Sequence[Entry]) -> None:
        late.root.append = appended  # type: ignore[attr-defined]
        group.reconfigure(0, 1, 2)
        appended(given)

    appended = late.root.append  # type: ignore[attr-defined]
    late.root.append = named_first  # type: ignore[attr-defined]
    with pytest.raises(AppendConflict):
        whole(entries[1:2])
    for refused in (lambda: late.read(0), lambda: idle.append(entries[1:2])):
        with pytest.raises(ConfigurationError, match="names log members"):
            refused()
    append(group, entries[1:])
    assert group.open().read(0) == entries


def test_what_was_appended_without_members_as_the_first_were_named_is_brought_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = Group(tmp_path, 3)
    entries = chain(3)
    append(group, entries[:1])
    named = MemberMover._name

    def named_after_another(mover: MemberMover, generation: generations.Generation) -> None:
        root = group.logs.open(f"{group.root}/log")
        root.read(0)
        root.append(entries[1:])
        named(mover, generation)

    monkeypatch.setattr(MemberMover, "_name", named_after_another)
    group.reconfigure(0, 1, 2)
    assert [state.epoch for state in group.mover().describe()[1]] == [3, 3, 3]


def test_generations_that_are_over_go_from_members_that_have_a_whole_copy_of_a_later_one(tmp_path: Path) -> None:
    group = Group(tmp_path, 4, delta=True)
    entries = chain(6)
    for number, members in enumerate([(0, 1, 2), (1, 2, 3), (1, 2, 3)]):
        group.reconfigure(*members)
        append(group, entries[2 * number : 2 * number + 2])

    def kept(number: int, what: str) -> list[int]:
        found = Path(group.members[number], what).iterdir()
        return sorted(int(path.stem) for path in found if path.stem.isdecimal())

    assert [kept(number, "generations") for number in range(4)] == [[1], [3], [3], [3]]
    # Who has left says who came after him.
    assert [kept(number, "promises") for number in range(4)] == [[1, 2], [3], [3], [3]]
    assert [len(list(Path(group.members[number], "seats").iterdir())) for number in range(4)] == [2, 2, 2, 2]
    shutil.move(group.members[3], tmp_path / "away")
    group.lose_root()
    assert group.recover(0, 1, 2) == 6


def test_a_member_that_was_away_as_a_generation_began_keeps_its_copy_of_before(tmp_path: Path) -> None:
    group = Group(tmp_path, 3, delta=True)
    group.reconfigure(0, 1, 2)
    append(group, chain(2))
    shutil.move(group.members[2], tmp_path / "away")
    group.reconfigure(0, 1, 2)
    shutil.move(tmp_path / "away", group.members[2])
    for number, newest in ((0, 2), (1, 2), (2, 1)):
        assert [int(path.name) for path in Path(group.members[number], "generations").iterdir()] == [newest]


def test_a_deletion_of_what_is_over_that_was_killed_stands_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = Group(tmp_path, 3, delta=True)
    group.reconfigure(0, 1, 2)
    entries = chain(3)
    append(group, entries[:2])
    with monkeypatch.context() as patched:

        def killed(storage: Storage, uri: str) -> None:
            if uri.startswith(group.members[1]) and uri.endswith(".over"):
                first = min(path for path in Path(uri).rglob("*.json") if path.is_file())
                first.unlink()
                raise StorageUnavailable("the process was killed")

        patched.setattr(Storage, "delete_directory", killed)
        group.reconfigure(0, 1, 2)
    assert group.reconfigure(0, 1, 2).number == 3
    append(group, entries[2:])
    shutil.move(group.members[0], tmp_path / "away")
    group.lose_root()
    assert group.recover(1, 2) == 3
    assert [path.name for path in Path(group.members[1], "generations").iterdir()] == [f"{4:020}"]


def test_a_copy_that_cannot_be_fenced_is_that_of_a_member_that_does_not_answer(tmp_path: Path) -> None:
    group = Group(tmp_path, 4, delta=True)
    group.reconfigure(0, 1, 2)
    entries = chain(3)
    for entry in entries:
        append(group, [entry])
    eventually(lambda: all(state.epoch == 3 for state in group.mover().describe()[1]))
    for path in Path(group.members[1], "generations").rglob(f"{2:020}.json"):
        path.unlink()
    shutil.move(group.members[2], tmp_path / "away")
    with pytest.raises(StorageUnavailable, match=r"too few members of generation 1 .*its copy .* cannot be fenced"):
        group.reconfigure(0, 1, 3)
    shutil.move(tmp_path / "away", group.members[2])
    assert group.reconfigure(0, 2, 3).number == 3
    assert group.open().read(0) == entries


class Killed(BaseException):
    """The process ends here."""


class Life:
    """Of a process: it ends before the step after so many."""

    def __init__(self, left: int) -> None:
        self.left = left

    def step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed


class DyingDisk(LocalDisk):
    """Files that a process changes step by step."""

    def __init__(self, life: Life) -> None:
        super().__init__()
        self._life = life

    def write(self, path: str, data: Any, *, new: bool) -> None:
        self._life.step()
        super().write(path, data, new=new)

    def link(self, path: str, name: str) -> None:
        self._life.step()
        super().link(path, name)

    def make_directory(self, path: str) -> None:
        self._life.step()
        super().make_directory(path)

    def delete(self, path: str) -> None:
        self._life.step()
        super().delete(path)


class DyingLogs(MemoryLogs):
    """Logs that a process makes and appends to step by step."""

    def __init__(self, logs: MemoryLogs, life: Life) -> None:
        super().__init__()
        self.logs, self._life = logs.logs, life

    def create(self, uri: str) -> None:
        self._life.step()
        super().create(uri)

    def delete(self, uri: str) -> None:
        self._life.step()
        super().delete(uri)

    def open(self, uri: str) -> PreparedLog:
        log = super().open(uri)
        whole = log.append

        def append_or_die(entries: Sequence[Entry]) -> None:
            self._life.step()
            whole(entries)

        log.append = append_or_die  # type: ignore[method-assign]
        return log


def test_a_recovery_that_is_killed_anywhere_is_run_again_and_nobody_uses_the_root_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving_members, "PART", 2)
    monkeypatch.setattr(log_member, "PART", 2)
    group = Group(tmp_path, 3)
    group.reconfigure(0, 1, 2)
    entries = chain(5)
    append(group, entries)
    group.lose_root()
    root, register, place = group.root, f"{group.root}/{generations.DIRECTORY}", f"{group.root}/log"

    def recover(life: Life) -> None:
        storage = Storage(StorageSettings(durability="fsync"), disk=DyingDisk(life))
        logs = DyingLogs(group.memory, life)
        storage.create_directory(root, parents=True)

        def create_root() -> EpochLog:
            logs.create(place)
            return logs.open(place)

        MemberMover(storage, root, register, logs).recover(group.members, create_root)

    unfinished = 0
    for steps in range(1, 1_000, 1 if THOROUGH else 6):
        try:
            recover(Life(steps))
            break
        except Killed:
            pass
        named = bool(generations.numbers(group.storage, register))
        if named:
            assert group.open().read(0) == entries
        elif group.logs.is_there(place):
            unfinished += 1
            alone = LogWithoutMembers(group.storage, register, group.logs.open(place))
            for use in (lambda: group.open().read(0), lambda: alone.read(0), lambda: group.reconfigure(0, 1, 2)):  # noqa: B023
                with pytest.raises(LogUnreadable, match="is being restored") as refused:
                    use()
                assert refused.value.hint.startswith("Run `epochlake metadata recover ")
    assert unfinished > (10 if THOROUGH else 2)
    assert group.open().read(0) == entries
    append(group, chain(1, position_of(entries[-1])))
    assert not Path(register, "restoring").exists()


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
