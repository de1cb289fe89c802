"""The contract of an epoch log, held by the one in Delta and the one in memory alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from epochlake.metastore.log.delta import DeltaLog, create_log_table
from epochlake.metastore.log.in_memory import InMemoryLog, SharedEntries

from tests.support.log_contract import *  # noqa: F403
from tests.support.log_contract import Opener
from tests.support.storages import STORAGE


@pytest.fixture(params=["delta", "memory"])
def open_log(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    if request.param == "memory":
        shared = SharedEntries()
        return lambda: InMemoryLog(shared)
    uri = str(tmp_path / "log")
    create_log_table(STORAGE, uri)
    return lambda: DeltaLog(STORAGE, uri, compact_every=8)
