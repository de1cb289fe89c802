"""Waiting for what other processes and threads do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from epochlake.metastore.coordination.client import Coordination


def eventually(what: Callable[[], Any], seconds: float = 300.0) -> Any:
    """Wait until `what` is true and return it; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not become true"
        time.sleep(0.01)
    return found


def are_contending(coordination: Coordination, number: int) -> bool:
    """Whether so many wait for the commit lock, with who has it."""
    return len(coordination.children(coordination.path("lock"))) == number
