"""Scanning: slices that are read side by side give what they give one after the other, and no more are held at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from epochlake.jobs.replicas import scanning
from epochlake.jobs.replicas.replica import ReplicaAddress
from epochlake.jobs.replicas.scanning import SIDE_BY_SIDE, Asked, scan_slices
from epochlake.jobs.replicas.sections import Run, Slice
from epochlake.metastore.errors import StorageUnavailable

from tests.support.files import stored_versions
from tests.support.replicas import make_replica

KEYS = Asked(pa.schema([("id", pa.int64())]), ("id",))


@pytest.fixture
def replica(tmp_path: Path) -> ReplicaAddress:
    return make_replica(tmp_path, 1)


def apart(replica: ReplicaAddress, count: int) -> list[Run]:
    """Files that share no token."""
    return [stored_versions(replica, [(10 * n, n, 1, False), (10 * n + 1, -n - 1, 1, False)]) for n in range(count)]


def keys_of(runs: Sequence[Run]) -> list[int]:
    return [
        key for batch in scan_slices([Slice(*run.extent, (run,)) for run in runs], KEYS) for key in batch[0].to_pylist()
    ]


def test_small_slices_are_read_side_by_side_and_shown_in_their_order(
    replica: ReplicaAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No one is read before all that are read together have been begun."""
    runs = apart(replica, 2 * SIDE_BY_SIDE)
    all_begun = threading.Barrier(SIDE_BY_SIDE)
    read = scanning.rows_of_run

    def waits(*asked: Any) -> Iterator[Any]:
        all_begun.wait(60)
        yield from read(*asked)

    monkeypatch.setattr(scanning, "rows_of_run", waits)
    assert keys_of(runs) == [key for n in range(len(runs)) for key in (n, -n - 1)]


def test_slices_that_are_large_together_are_read_one_after_the_other(
    replica: ReplicaAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = apart(replica, 5)
    monkeypatch.setattr(scanning, "ONCE_BYTES", max(run.copy.file.size for run in runs) * 1.5)
    read, begun = scanning.rows_of_run, []

    def noted(run: Run, *asked: Any) -> Iterator[Any]:
        begun.append(run.name)
        yield from read(run, *asked)

    monkeypatch.setattr(scanning, "rows_of_run", noted)
    batches = scan_slices([Slice(*run.extent, (run,)) for run in runs], KEYS)
    for number, _ in enumerate(batches, 1):
        assert begun == [run.name for run in runs[:number]]
    assert number == len(runs)


def test_a_torn_file_among_others_is_named(replica: ReplicaAddress) -> None:
    runs = apart(replica, SIDE_BY_SIDE)
    torn = Path(runs[2].copy.uri)
    torn.write_bytes(torn.read_bytes()[:-9])
    with pytest.raises(StorageUnavailable, match=runs[2].name):
        keys_of(runs)
