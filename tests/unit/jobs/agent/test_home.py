"""An agent's home: what is written is there as a whole or not at all, and nobody else writes it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from epochlake.jobs.agent.home import TAG, Home, HomeDamaged, HomeInUse, HomeUnwritable
from epochlake.jobs.agent.messages import Tag
from epochlake.placement.errors import InvalidRequest

TAG_1, TAG_2 = Tag("lake", "1"), Tag("lake", "2")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home")
    made.write(TAG, TAG_1)
    return made


def test_a_document_is_read_as_it_was_written(home: Home) -> None:
    assert home.read(TAG, Tag) == TAG_1
    assert home.read("other", Tag) is None


@pytest.mark.parametrize("kept", [0, 1, 10, 40, 60, 80])
def test_a_torn_document_is_named_and_never_half_used(home: Home, kept: int) -> None:
    path = home.directory / "tag.json"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(HomeDamaged, match=r"tag\.json"):
        home.read(TAG, Tag)


def test_a_rotten_byte_is_noticed(home: Home) -> None:
    path = home.directory / "tag.json"
    path.write_bytes(path.read_bytes().replace(b'"1"', b'"2"'))
    with pytest.raises(HomeDamaged):
        home.read(TAG, Tag)


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_leaves_the_document_of_before_and_no_other_file(
    home: Home, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, step, full)
    with pytest.raises(HomeUnwritable, match="No space left"):
        home.write(TAG, TAG_2)
    monkeypatch.undo()
    assert home.read(TAG, Tag) == TAG_1
    assert [path.name for path in home.directory.iterdir()] == ["tag.json"]


@pytest.mark.parametrize(
    ("number", "hint"), [(errno.ENOSPC, "Make room"), (errno.EROFS, "Mount"), (errno.EACCES, "own it"), (5, "disk")]
)
def test_who_cannot_write_is_told_what_to_do_about_it(home: Home, number: int, hint: str) -> None:
    assert hint in home.unwritable(OSError(number, os.strerror(number))).hint


def test_a_kill_between_writing_and_renaming_leaves_the_document_of_before(home: Home) -> None:
    program = f"""
import os
from epochlake.jobs.agent.home import Home
from epochlake.jobs.agent.messages import Tag
os.replace = lambda *_: os._exit(9)
Home({str(home.directory)!r}).write("tag", Tag("lake", "2"))
"""
    assert subprocess.run([sys.executable, "-P", "-c", program]).returncode == 9
    assert home.read(TAG, Tag) == TAG_1
    home.write(TAG, TAG_2)
    assert home.read(TAG, Tag) == TAG_2


def test_an_agent_keeps_its_id_and_its_name(tmp_path: Path) -> None:
    first = Home(tmp_path).identity("n1")
    assert Home(tmp_path).identity(None) == Home(tmp_path).identity("n1") == first
    with pytest.raises(InvalidRequest, match="node 'n1', not of 'n2'"):
        Home(tmp_path).identity("n2")
    assert Home(tmp_path / "other").identity("n1").agent_id != first.agent_id


def test_the_first_start_needs_a_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="name of its node"):
        Home(tmp_path).identity(None)


def test_a_home_that_has_lost_its_identity_gets_no_other_one(home: Home) -> None:
    with pytest.raises(HomeDamaged, match="lost its identity"):
        home.identity("n1")


def test_two_agents_never_run_in_one_home(home: Home) -> None:
    home.lock()
    other = Home(home.directory)
    with pytest.raises(HomeInUse):
        other.lock()
    home.release()
    other.lock()


def test_threads_that_write_a_document_at_once_each_write_it_whole(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end = threading.Event(), threading.Event()
    synced = os.fsync

    def slow(handle: int) -> None:
        if threading.current_thread() is not threading.main_thread() and not begun.is_set():
            begun.set()
            assert may_end.wait(60)
        synced(handle)

    monkeypatch.setattr(os, "fsync", slow)
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(home.write, TAG, TAG_1)
        assert begun.wait(60)
        home.write(TAG, TAG_2)
        assert home.read(TAG, Tag) == TAG_2
        may_end.set()
        late.result(60)
    assert home.read(TAG, Tag) == TAG_1
    assert [path.name for path in home.directory.iterdir()] == ["tag.json"]
