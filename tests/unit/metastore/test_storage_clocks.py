"""The clock of a root's storage: it counts where that of this machine is ahead, if the root says its time."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.storage.clocks import MARGIN_MICROS, NAME, ahead_of, behind
from epochlake.metastore.storage.storage import Storage, StorageSettings

DAY_NS = 86_400 * 10**9


def test_clocks_that_agree_are_no_difference_and_one_that_is_ahead_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    storage, real = Storage(StorageSettings()), time.time_ns
    assert behind(storage, str(tmp_path)) is None, "the file is made"
    os.utime(tmp_path / NAME, ns=(0, 0))
    assert behind(storage, str(tmp_path)) is None, "and touched from then on"
    monkeypatch.setattr(time, "time_ns", lambda: real() + 8 * DAY_NS)
    there = behind(storage, str(tmp_path))
    assert there is not None
    assert abs(real() // 1000 - there) < MARGIN_MICROS
    assert "seconds ahead" in caplog.text
    monkeypatch.setattr(time, "time_ns", lambda: real() - 8 * DAY_NS)
    assert behind(storage, str(tmp_path)) is None, "a clock that is behind deletes less by itself"


def test_a_root_that_does_not_say_its_time_is_no_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(storage: Storage, uri: str, data: bytes) -> None:
        raise StorageUnavailable(f"cannot write {uri}: no space left")

    monkeypatch.setattr(Storage, "write_bytes", full)
    assert behind(Storage(StorageSettings()), str(tmp_path)) is None
    assert ahead_of(Storage(StorageSettings()), str(tmp_path)) is None


def certainly_ahead(storage: Storage, root: Path) -> int:
    """`ahead_of` of a root that says its time."""
    ahead = ahead_of(storage, str(root))
    assert ahead is not None
    return ahead


def test_clocks_are_apart_by_what_lies_before_and_after_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, real, told = Storage(StorageSettings()), time.time_ns, Storage.modified_ms
    minute, day = 60 * 10**6, DAY_NS // 1000
    assert abs(certainly_ahead(storage, tmp_path)) < minute
    for days in (8, -8):
        monkeypatch.setattr(time, "time_ns", lambda days=days: real() + days * DAY_NS)
        assert abs(certainly_ahead(storage, tmp_path) - days * day) < minute

    def stood_still(*given: str) -> int | None:
        answer = told(storage, *given)
        monkeypatch.setattr(time, "time_ns", lambda: real() + DAY_NS)
        return answer

    monkeypatch.setattr(time, "time_ns", real)
    monkeypatch.setattr(storage, "modified_ms", stood_still)
    assert abs(certainly_ahead(storage, tmp_path)) < minute, "a process that stood still for a day has the right clock"
