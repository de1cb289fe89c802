"""What happens while a write is under way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from epochlake.jobs.gate.commit_phase import CommitPhase


def before_landing(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Make a change once between the staging of the next write and its commits."""
    land, once = CommitPhase.land, [change]

    def landed(phase: CommitPhase) -> object:
        if once:
            once.pop()()
        return land(phase)

    monkeypatch.setattr(CommitPhase, "land", landed)
