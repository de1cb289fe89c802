"""What sensors wait for, as values: a worker and a triggerer look for the same thing, and Airflow keeps it in between.

Kinds, fields and their meaning stay: a task that waits while Airflow is upgraded is woken by a newer version.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from epochlake.placement.decoding import decodable

if TYPE_CHECKING:
    from epochlake.jobs.replicas.store import Store
    from epochlake.jobs.views.awaited import Awaited


class Condition(msgspec.Struct, frozen=True, tag_field="kind", omit_defaults=True):
    """Something that a cluster can be asked."""

    def look(self, cluster: Store) -> Awaited:
        """Whether it is so now."""
        raise TypeError(f"{type(self).__name__} does not say what it looks for")


class EpochCommitted(Condition, tag="epoch", frozen=True):
    """The log has reached an epoch."""

    epoch: int

    def look(self, cluster: Store) -> Awaited:
        from epochlake.jobs.views.awaited import epoch_committed

        return epoch_committed(cluster, self.epoch)


class RequestEnded(Condition, tag="request", frozen=True):
    """What was asked under a request id is carried out."""

    request_id: str

    def look(self, cluster: Store) -> Awaited:
        from epochlake.jobs.views.awaited import request_ended

        return request_ended(cluster, self.request_id)


class ClusterSettled(Condition, tag="settled", frozen=True):
    """Nothing is open and nothing moves."""

    def look(self, cluster: Store) -> Awaited:
        from epochlake.jobs.views.awaited import cluster_settled

        return cluster_settled(cluster)


class TableWritten(Condition, tag="written", frozen=True):
    """A table has rows that were written at `since` or later, on enough replicas for the level."""

    table: str
    since: datetime
    consistency: str | None = None
    datacenter: str | None = None

    def look(self, cluster: Store) -> Awaited:
        from epochlake.jobs.views.awaited import table_written

        return table_written(cluster, self.table, self.since, self.consistency, self.datacenter)


class BatchLanded(Condition, tag="batch", frozen=True):
    """All rows of a named batch are on enough replicas for the level."""

    table: str
    batch: str
    consistency: str | None = None
    datacenter: str | None = None

    def look(self, cluster: Store) -> Awaited:
        from epochlake.jobs.views.awaited import batch_landed

        return batch_landed(cluster, self.table, self.batch, self.consistency, self.datacenter)


ANY = EpochCommitted | RequestEnded | ClusterSettled | TableWritten | BatchLanded


def stored(condition: Condition) -> dict[str, Any]:
    """A condition as Airflow keeps it."""
    return msgspec.to_builtins(condition)


def restored(kept: dict[str, Any]) -> Condition:
    """A condition that was kept. Raises msgspec.ValidationError for what is none."""
    return msgspec.convert(kept, decodable(ANY))  # type: ignore[arg-type]
