"""Deadlines of storage, on places that hang for real: a named pipe that nobody writes to blocks whoever opens it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from epochlake.metastore.configuration import StorageSettings
from epochlake.metastore.storage import deadlines
from epochlake.metastore.storage.failures import StorageLate
from epochlake.metastore.storage.storage import Storage

SHORT = 0.2


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A watched place whose file `pipe` hangs."""
    place = tmp_path / "volume"
    place.mkdir()
    os.mkfifo(place / "pipe")
    yield place
    release(place)


@pytest.fixture
def storage(place: Path) -> Storage:
    """A storage that watches it."""
    storage = Storage(StorageSettings(deadline_seconds=SHORT))
    storage.watch(str(place))
    return storage


def release(place: Path) -> None:
    """Let everybody go on who waits for the pipe."""
    ends = time.monotonic() + 300
    while deadlines.left_behind():
        assert time.monotonic() < ends
        with suppress(OSError):  # nobody waits at this instant
            os.close(os.open(place / "pipe", os.O_WRONLY | os.O_NONBLOCK))
        time.sleep(0.01)


def read_pipe(storage: Storage, place: Path) -> bytes:
    return storage.read_bytes(str(place / "pipe"))


def test_an_access_that_hangs_ends_at_the_deadline_and_its_thread_is_counted(storage: Storage, place: Path) -> None:
    with pytest.raises(StorageLate, match=r"has not answered for 0\.2 seconds"):
        read_pipe(storage, place)
    assert deadlines.left_behind() == 1
    assert [(late.place, late.hanging) for late in storage.deadlines.late_places()] == [(str(place), 1)]


def test_a_late_place_is_refused_at_once_and_other_places_are_not(
    storage: Storage, place: Path, tmp_path: Path
) -> None:
    with pytest.raises(StorageLate):
        read_pipe(storage, place)
    (place / "file").write_bytes(b"x")
    (tmp_path / "other").write_bytes(b"y")
    storage.deadlines.seconds = 3600
    with pytest.raises(StorageLate, match="It is asked again in"):
        storage.read_bytes(str(place / "file"))
    assert storage.read_bytes(str(tmp_path / "other")) == b"y"


def test_a_late_place_is_asked_by_one_access_after_a_while(storage: Storage, place: Path) -> None:
    with pytest.raises(StorageLate):
        read_pipe(storage, place)
    (place / "file").write_bytes(b"x")
    ends = time.monotonic() + 300
    while True:
        try:
            assert storage.read_bytes(str(place / "file")) == b"x"
            break
        except StorageLate:
            assert time.monotonic() < ends
            time.sleep(0.05)
    assert storage.deadlines.late_places() == []
    assert deadlines.left_behind() == 1


def test_what_goes_on_hanging_costs_the_deadline_less_and_less_often(storage: Storage, place: Path) -> None:
    waited = []
    started = time.monotonic()
    while time.monotonic() - started < 6 * SHORT:
        begun = time.monotonic()
        with pytest.raises(StorageLate):
            read_pipe(storage, place)
        waited.append(time.monotonic() - begun >= SHORT)
        time.sleep(0.01)
    assert 1 <= sum(waited) <= 3
    assert deadlines.left_behind() == sum(waited)


def test_a_place_answers_again_as_soon_as_a_thread_comes_back(storage: Storage, place: Path) -> None:
    with pytest.raises(StorageLate):
        read_pipe(storage, place)
    storage.deadlines.seconds = 60
    release(place)
    (place / "file").write_bytes(b"x")
    assert storage.read_bytes(str(place / "file")) == b"x"
    assert deadlines.left_behind() == 0


def test_so_many_threads_are_left_behind_and_not_more(
    storage: Storage, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "MOST_LEFT_BEHIND", 2)
    monkeypatch.setattr(deadlines, "LONGEST_PAUSE_SECONDS", 0.01)
    for _ in range(10):
        with pytest.raises(StorageLate):
            read_pipe(storage, place)
        time.sleep(0.02)
    assert deadlines.left_behind() == 2


def test_an_access_that_makes_progress_may_take_longer_than_the_deadline(
    storage: Storage, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sign in each slice of half the deadline, however busy the machine: who waits lets the access take its step."""
    left, step, taken = [None] * 6, threading.Semaphore(0), threading.Semaphore(0)

    def slow() -> str:
        while step.acquire(timeout=60) and left:
            deadlines.progress()
            left.pop()
            taken.release()
        return "done"

    def patience(_: str) -> float:
        goes_on = bool(left)
        step.release()
        assert not goes_on or taken.acquire(timeout=60)
        return SHORT if goes_on else 60

    monkeypatch.setattr(deadlines, "SLICE_SECONDS", SHORT / 2)
    monkeypatch.setattr(storage.deadlines, "patience", patience)
    begun = time.monotonic()
    assert storage.deadlines.within(str(place), "copy", slow) == "done"
    assert time.monotonic() - begun > 2 * SHORT


def test_who_is_left_behind_stops_at_its_next_step(storage: Storage, place: Path) -> None:
    go_on, told = threading.Event(), threading.Event()

    def late() -> None:
        go_on.wait(60)
        try:
            deadlines.progress()
        except StorageLate:
            told.set()
            raise

    with pytest.raises(StorageLate):
        storage.deadlines.within(str(place), "copy", late)
    go_on.set()
    assert told.wait(60)


def test_a_copy_whose_source_hangs_makes_the_source_late(storage: Storage, place: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    storage.watch(str(target))
    with pytest.raises(StorageLate):
        storage.copy_file(str(place / "pipe"), str(target / "file"))
    assert [late.place for late in storage.deadlines.late_places()] == [str(place)]
    storage.create_directory(str(target / "directory"))


def test_a_process_ends_though_threads_hang_in_storage(storage: Storage, place: Path) -> None:
    program = (
        "import sys; from epochlake.metastore.configuration import StorageSettings\n"
        "from epochlake.metastore.errors import StorageUnavailable\n"
        "from epochlake.metastore.storage.deadlines import left_behind\n"
        "from epochlake.metastore.storage.storage import Storage\n"
        "from epochlake.jobs.workers.threads import ThreadWorkers\n"
        "storage = Storage(StorageSettings(deadline_seconds=0.2)); storage.watch(sys.argv[1])\n"
        "def read(_):\n"
        "    try: return storage.read_bytes(sys.argv[1] + '/pipe')\n"
        "    except StorageUnavailable as error: return 'late'\n"
        "print(ThreadWorkers(4).run(read, range(4)), left_behind())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(place)], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == f"{['late'] * 4} 4"
