"""Compactions that stop half-way."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.replicas.commits import commit_files
from epochlake.jobs.replicas.outcomes import CommitOutcome, Unreachable
from epochlake.jobs.replicas.replica import ReplicaAddress
from epochlake.jobs.upkeep import compaction
from epochlake.metastore import announcing
from epochlake.metastore.metadata.model import VolumeId


class Released:
    """The announcement of a lease where there is no ZooKeeper."""

    held = True

    def release(self) -> None: ...

    def update(
        self, epoch: int, tables: tuple[str, ...], timeout: float | None = None, reads_from: int | None = None
    ) -> None: ...


def without_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on nobody announces what is read, and compaction asks no ZooKeeper who does."""
    monkeypatch.setattr(Cluster, "coordination", lambda *_: None)
    monkeypatch.setattr(compaction, "live_leases", lambda cluster: [])
    monkeypatch.setattr(announcing, "announce", lambda coordination, lease: Released())


def reaching(volumes: Collection[VolumeId]) -> Callable[..., CommitOutcome]:
    """`commit_files` in a process that dies when it has committed to these volumes."""

    def commit(address: ReplicaAddress, *arguments: object, **options: object) -> CommitOutcome:
        if address.volume_id in volumes:
            return commit_files(address, *arguments, **options)  # type: ignore[arg-type]
        return Unreachable("killed before this commit")

    return commit
