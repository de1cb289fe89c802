"""What happens while a write is under way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from epochlake.jobs.gate import commit_phase
from epochlake.jobs.gate.commit_phase import CommitPhase
from epochlake.jobs.replicas.commits import commit_files
from epochlake.jobs.replicas.replica import ReplicaAddress

from tests.support.clusters import SmallCluster


def before_landing(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Make a change once between the staging of the next write and its commits."""
    land, once = CommitPhase.land, [change]

    def landed(phase: CommitPhase) -> object:
        if once:
            once.pop()()
        return land(phase)

    monkeypatch.setattr(CommitPhase, "land", landed)


def between_commits(
    monkeypatch: pytest.MonkeyPatch, table: SmallCluster, first: str, change: Callable[[], object]
) -> None:
    """Make a change once behind the first commits of a write to replicas on a node, and before those to the others."""
    volume, once, one_by_one, done = table.volume(first), [change], threading.Lock(), threading.Event()

    def committed(address: ReplicaAddress, *args: Any, **rest: Any) -> object:
        if address.volume_id == volume:
            try:
                return commit_files(address, *args, **rest)
            finally:
                done.set()
        assert done.wait(60)
        with one_by_one:
            if once:
                once.pop()()
        return commit_files(address, *args, **rest)

    monkeypatch.setattr(commit_phase, "commit_files", committed)
