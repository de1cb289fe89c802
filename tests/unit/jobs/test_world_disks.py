"""Disks of worlds: what a power cut leaves, what fails before and after its effect, and real tables in a folder."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from epochlake.jobs.testing import folder_disk
from epochlake.jobs.testing.disk import Troubles, WorldDisk
from epochlake.jobs.testing.folder_disk import FolderDisk
from epochlake.jobs.testing.power import CuttableDisk, copied, restore
from epochlake.jobs.testing.scheduler import Process, Scheduler, ended_afterwards
from epochlake.metastore.storage.disk import LockNotHad
from epochlake.metastore.storage.memory_disk import MemoryDisk


class Always(random.Random):
    """Chance that loses everything that may be lost."""

    def choice(self, seq):  # type: ignore[no-untyped-def]
        return seq[0]

    def random(self) -> float:
        return 0.0


@pytest.fixture
def disk() -> CuttableDisk:
    made = CuttableDisk(MemoryDisk())
    made.make_directory("/d")
    made.sync([], ["/"])
    return made


def test_a_power_cut_leaves_what_was_synced(disk: CuttableDisk) -> None:
    disk.write("/d/synced", b"data", new=True)
    disk.sync(["/d/synced"], ["/d"])
    disk.write("/d/named", b"data", new=True)
    disk.sync([], ["/d"])
    disk.write("/d/new", b"data", new=True)
    disk.sync(["/d/new"], [])
    assert disk.cut("/d", Always()) == 2
    assert disk.names("/d") == ["synced", "named"]
    assert disk.read("/d/synced") == b"data"
    assert disk.read("/d/named") == b"", "its name was synced, its bytes were not"


def test_a_power_cut_brings_back_what_was_replaced_and_deleted(disk: CuttableDisk) -> None:
    for name in ("replaced", "deleted", "moved", "overwritten"):
        disk.write(f"/d/{name}", b"old", new=True)
    disk.sync([f"/d/{name}" for name in disk.names("/d")], ["/d"])
    disk.write("/d/temporary", b"new", new=True)
    disk.rename("/d/temporary", "/d/replaced")
    disk.delete("/d/deleted")
    disk.rename("/d/moved", "/d/there")
    disk.write("/d/overwritten", b"new", new=False)
    disk.link("/d/overwritten", "/d/linked")
    disk.cut("/d", Always())
    assert copied(disk, "/d") == {f"/d/{name}": b"old" for name in ("replaced", "deleted", "moved", "overwritten")}


def test_a_power_cut_is_of_one_place(disk: CuttableDisk) -> None:
    disk.make_directory("/e")
    for place in ("/d", "/e"):
        disk.write(f"{place}/x", b"data", new=True)
    disk.cut("/d", Always())
    assert disk.names("/d") == []
    assert disk.read("/e/x") == b"data"
    disk.cut("/e", Always())
    assert disk.names("/e") == []


def test_a_copy_of_a_place_is_what_it_was(disk: CuttableDisk) -> None:
    disk.make_directory("/d/sub")
    disk.write("/d/sub/x", b"old", new=True)
    before = copied(disk, "/d")
    disk.write("/d/sub/x", b"new", new=False)
    disk.write("/d/y", b"more", new=True)
    restore(disk, "/d", before)
    assert copied(disk, "/d") == before
    restore(disk, "/d", {})
    assert disk.names("/d") == []


def in_world(do: Callable[[WorldDisk, Troubles, Scheduler], None]) -> None:
    scheduler = Scheduler(1)
    troubles = Troubles(scheduler, 1)
    world = WorldDisk(scheduler, CuttableDisk(MemoryDisk()), troubles)
    actor = scheduler.spawn(Process("p"), "main", lambda: do(world, troubles, scheduler))
    actor.awaited = True
    with ended_afterwards(scheduler):
        scheduler.run(lambda: actor.done)
    if actor.error is not None:
        raise actor.error


def test_a_step_that_fails_has_had_its_effect_or_half_of_it_or_none() -> None:
    def do(disk: WorldDisk, troubles: Troubles, scheduler: Scheduler) -> None:
        disk.make_directory("/d")
        troubles.chances["/d"] = 1.0
        lengths = set()
        for number in range(60):
            with pytest.raises(OSError, match="Input/output error"):
                disk.write(f"/d/{number}", b"data", new=True)
        troubles.mend("/d")
        names = disk.names("/d")
        lengths = {len(disk.read(f"/d/{name}")) for name in names}
        assert 0 < len(names) < 60
        assert lengths == {2, 4}

    in_world(do)


def test_a_lock_is_one_processs_until_it_gives_it_back_or_is_killed() -> None:
    def do(disk: WorldDisk, troubles: Troubles, scheduler: Scheduler) -> None:
        disk.make_directory("/d")
        holder = Process("holder")

        def hold() -> None:
            with disk.locked("/d/lock"):
                scheduler.sleep(100.0)

        scheduler.spawn(holder, "main", hold)
        scheduler.sleep(1.0)
        for _ in range(2):
            with pytest.raises(LockNotHad), disk.locked("/d/lock"):
                pass
        scheduler.kill(holder)
        for _ in range(2):
            with disk.locked("/d/lock"), pytest.raises(LockNotHad), disk.locked("/d/lock"):
                pass
        troubles.chances["/d"] = 1.0
        for _ in range(20):  # also where the access fails after its effect
            with pytest.raises(OSError, match="Input/output error"), disk.locked("/d/lock"):
                pass
        troubles.mend("/d")
        with disk.locked("/d/lock"):
            pass

    in_world(do)


def test_a_place_that_is_away_full_or_hangs_is_so_for_all_that_is_below_it() -> None:
    def do(disk: WorldDisk, troubles: Troubles, scheduler: Scheduler) -> None:
        for name in ("/d", "/e"):
            disk.make_directory(name)
        troubles.failing["/d"] = errno.ENOENT
        with pytest.raises(FileNotFoundError):
            disk.names("/d")
        assert disk.names("/e") == []
        troubles.mend("/d")
        troubles.full.add("/d")
        with pytest.raises(OSError, match="No space left"):
            disk.write("/d/x", b"", new=True)
        troubles.heal()
        troubles.hang("/d")
        scheduler.after(100.0, lambda: troubles.mend("/d"), Process("later"))
        began = scheduler.now
        disk.write("/d/x", b"", new=True)
        assert scheduler.now - began >= 100.0

    in_world(do)


def test_folders_of_processes_that_were_killed_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_disk, "_directory", lambda: str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        dead.wait()
    (tmp_path / f"epochlake-world-{dead.pid}-x" / "lake").mkdir(parents=True)
    (tmp_path / "epochlake-world-of-others").mkdir()
    mine = FolderDisk(time.time_ns)
    folder_disk.forget_the_dead()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [os.path.basename(mine.base), "epochlake-world-of-others"]
    )
    mine.close()


def test_times_of_files_in_a_folder_are_the_worlds() -> None:
    now = [5_000_000_000]
    disk = FolderDisk(lambda: now[0])
    try:
        disk.make_directory("/d")
        disk.write("/d/x", b"data", new=True)
        with disk.open_output("/d/y") as stream:
            stream.write(b"data")
        now[0] = 9_000_000_000
        found = {name: status.modified_ns for name, status in disk.entries("/d")}
        assert found == {"x": 5_000_000_000, "y": 9_000_000_000}
        now[0] = 11_000_000_000
        status = disk.status("/d/y")
        assert status is not None
        assert status.modified_ns == 9_000_000_000
        assert disk.arrow.open_input_file("/d/x").read() == b"data"
    finally:
        disk.close()
