"""Log members that lose what they held, recoveries that are cut off, and what is left of generations that are over."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from epochlake.metastore.configuration import StorageSettings
from epochlake.metastore.errors import (
    ConfigurationError,
    LogUnreadable,
    LogWentBack,
    StorageUnavailable,
)
from epochlake.metastore.log import generations, log_member, moving_members, seats
from epochlake.metastore.log.entry import Entry, position_of
from epochlake.metastore.log.epoch_log import AppendConflict, AppendUncertain, EpochLog, PreparedLog
from epochlake.metastore.log.log_member import LogMember
from epochlake.metastore.log.log_place import LogBelowRoot
from epochlake.metastore.log.moving_members import MemberMover
from epochlake.metastore.log.no_members import LogWithoutMembers
from epochlake.metastore.storage.local_disk import LocalDisk
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import InvalidRequest

from tests.support.logs import chain
from tests.support.member_groups import CLUSTER, Group, MemoryLogs, append, behind, wipe
from tests.support.slices import THOROUGH
from tests.support.waiting import eventually


def brought_on(group: Group, epoch: int) -> None:
    """Wait until all members have the log: one that was still at work is asked again by who reads."""

    def all_have_it() -> bool:
        group.open().read(0)
        return all(state.epoch == epoch for state in group.mover().describe()[1])

    eventually(all_have_it)


@pytest.mark.parametrize("delta", [False, True])
def test_a_blank_disk_is_no_member_and_does_not_help_to_restore_a_log_without_what_it_had(
    tmp_path: Path, delta: bool
) -> None:
    group = Group(tmp_path, 3, delta=delta)
    group.reconfigure(0, 1, 2)
    entries = chain(4)
    append(group, entries[:2])
    away = Path(group.members[2]).rename(tmp_path / "late")
    log = append(group, entries[2:])
    # Who is late with the append would write into what is looked at below.
    eventually(lambda: not any(copying.busy for copying in log._members.values()))
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
    brought_on(group, 1)
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
    brought_on(group, 2)
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
    brought_on(group, 3)
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


def lost_while_one_member_alone_was_ahead(group: Group) -> list[Entry]:
    """Two entries that a majority has, which are returned. Two more came to the last of three members alone before the
    root was lost; it was away when the others restored the root, and is back.
    """
    group.reconfigure(0, 1, 2)
    entries = chain(4)
    log = append(group, entries[:2])
    eventually(lambda: not any(copying.busy for copying in log._members.values()))
    group.memory.broken = set(group.members[:2])
    with pytest.raises(AppendUncertain, match="1 of 3 log members"):
        log.append(entries[2:])
    eventually(lambda: not any(copying.busy for copying in log._members.values()))
    group.memory.broken = set()
    away = Path(group.members[2]).rename(group.path / "away")
    group.lose_root()
    assert group.recover(0, 1) == 2
    away.rename(group.members[2])
    assert group.mover().state_of(group.members[2]).epoch == 4
    return entries[:2]


@pytest.mark.parametrize("way", ["reconfigure", "resume", "accept loss"])
@pytest.mark.parametrize("since", [0, 1, 2])
def test_what_one_member_alone_had_when_the_root_was_lost_is_given_up_when_it_is_a_member_again(
    tmp_path: Path, way: str, since: int
) -> None:
    group = Group(tmp_path, 3)
    there = lost_while_one_member_alone_was_ahead(group)
    if since:
        other = chain(since, position_of(there[-1]), tag="other")
        append(group, other)
        there += other
    if way == "resume":
        # Somebody was killed when the members had promised the change.
        unfinished = group.generation(3, group.members)
        for uri in group.members:
            LogMember(group.storage, uri, group.logs).seal(unfinished)
        assert group.mover().resume(group.logs.open(f"{group.root}/log")) == unfinished
    elif way == "accept loss":
        wipe(group, 0)
        root = group.logs.open(f"{group.root}/log")
        MemberMover(group.storage, group.root, f"{group.root}/log-members", group.logs, accept_loss=True).reconfigure(
            CLUSTER, group.members, root
        )
    else:
        group.reconfigure(0, 1, 2)
    assert group.mover().unfinished() is None
    more = chain(1, position_of(there[-1]), tag="more")
    append(group, more)
    brought_on(group, len(there) + 1)
    group.lose_root()
    group.recover(0, 2)
    assert group.open().read(0) == [*there, *more]


@pytest.mark.parametrize("accept_loss", [False, True])
def test_a_restored_root_that_goes_back_is_refused_by_the_members_of_now(tmp_path: Path, accept_loss: bool) -> None:
    group = Group(tmp_path, 3)
    there = lost_while_one_member_alone_was_ahead(group)
    append(group, chain(2, position_of(there[-1]), tag="other"))
    del group.memory.logs[f"{group.root}/log"].entries[2:]
    mover = MemberMover(group.storage, group.root, f"{group.root}/log-members", group.logs, accept_loss=accept_loss)
    for members in (group.members, group.members[:2], group.members[2:]):
        with pytest.raises(LogWentBack, match=r"known to the log member .*member-[01] "):
            mover.reconfigure(CLUSTER, members, group.logs.open(f"{group.root}/log"))


def test_where_all_members_of_now_are_given_up_copies_of_those_before_show_that_the_root_went_back(
    tmp_path: Path,
) -> None:
    group = Group(tmp_path, 4)
    group.reconfigure(0, 1, 2)
    entries = chain(3)
    append(group, entries)
    brought_on(group, 3)
    group.reconfigure(3)
    shutil.rmtree(group.members[3])
    del group.memory.logs[f"{group.root}/log"].entries[1:]
    mover = MemberMover(group.storage, group.root, f"{group.root}/log-members", group.logs, accept_loss=True)
    with pytest.raises(LogWentBack, match=r"epoch 3 was known to the log member .*member-0 "):
        mover.reconfigure(CLUSTER, group.members[:3], group.logs.open(f"{group.root}/log"))


def test_a_log_that_is_not_the_beginning_of_what_its_members_have_is_moved_away_for_a_recovery(tmp_path: Path) -> None:
    group = Group(tmp_path, 3)
    there = lost_while_one_member_alone_was_ahead(group)
    root = group.logs.open(f"{group.root}/log")
    root.read(0)
    root.append(chain(1, position_of(there[-1]), tag="by somebody who was killed then"))
    with pytest.raises(InvalidRequest, match="is not the beginning of what its members have") as refused:
        group.recover(0, 1, 2, root=group.root)
    assert "move it away and try again" in refused.value.hint
    del group.memory.logs[f"{group.root}/log"]
    group.logs.create(f"{group.root}/log")
    assert group.recover(0, 1, 2, root=group.root) == 2
    assert group.open().read(0) == there


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
