"""How every change is made: planned on the newest metadata, prepared outside, committed, and planned again if it moved.

The one idea: a plan is a pure function of the metadata, so a dry run is the plan without the commit. Side effects come
before the commit that relies on them and may be repeated, so a change that was killed half-way is just made again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypedDict, TypeVar, Unpack

from epochlake.metastore.commit import Committed, Planner
from epochlake.metastore.errors import Rejected
from epochlake.metastore.log.state_ids import next_state_id
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import Event

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster

E = TypeVar("E", bound=Event)

STALE_PLAN = "stale-plan"
"""The code of rejections that only mean: plan again on the metadata of now."""


class Options(TypedDict, total=False):
    """What every change takes beside its own arguments.

    `request_id`: the idempotence key, submitting it twice commits once. `reason`: kept in the history.
    `expect_epoch`: reject unless the cluster is at exactly this epoch. `timeout`: seconds, else the configuration's.
    """

    request_id: str | None
    reason: str
    expect_epoch: int | None
    timeout: float | None


def identified(options: Options) -> tuple[str, Options]:
    """The request id, made up when none was given, and the options with it."""
    request_id = options.get("request_id") or next_state_id("")
    return request_id, {**options, "request_id": request_id}


def preview(metadata: ClusterMetadata, event: Event) -> ClusterMetadata:
    """The metadata that `event` would make; nothing is committed. Raises Rejected as the commit would."""
    metadata.check(event)
    return metadata.apply(event, next_state_id(metadata.state_id))


def commit_prepared(
    cluster: Cluster,
    plan: Callable[[ClusterMetadata], E],
    prepare: Callable[[E, ClusterMetadata], None],
    still_prepared: Callable[[E, ClusterMetadata, ClusterMetadata], bool] = lambda event, then, now: True,
    **options: Unpack[Options],
) -> tuple[Committed, E | None]:
    """Plan, check, prepare (side effects that the event relies on), then commit exactly what was prepared.

    When the metadata has moved so that the plan is stale, or that what was prepared is not enough any more (which
    `still_prepared` tells from the metadata then and now), all of it is done again. Also returns the event, None when
    an earlier try with this request id had landed. Raises as `Cluster.commit` and whatever `prepare` raises.
    """
    request_id, options = identified(options)
    seconds = options.get("timeout")
    deadline = time.monotonic() + (cluster.configuration.log.commit_timeout_seconds if seconds is None else seconds)
    while True:
        metadata = cluster.catch_up()
        done = cluster.follower.request_epoch(request_id)
        if done is not None:
            return Committed(done, request_id, already=True), None
        require_epoch(metadata, options.get("expect_epoch"))
        event = plan(metadata)
        metadata.check(event)
        prepare(event, metadata)
        remaining: Options = {**options, "timeout": max(0.0, deadline - time.monotonic())}
        try:
            return cluster.commit(_if(event, metadata, still_prepared), **remaining), event
        except Rejected as rejected:
            if rejected.code != STALE_PLAN or time.monotonic() > deadline:
                raise


def _if(
    event: E, then: ClusterMetadata, still_prepared: Callable[[E, ClusterMetadata, ClusterMetadata], bool]
) -> Planner:
    """A planner of `event` as long as what was prepared for it on the metadata `then` is enough."""

    def planned(now: ClusterMetadata) -> Event:
        if not still_prepared(event, then, now):
            raise Rejected(STALE_PLAN, "the cluster has changed while this was being prepared")
        return event

    return planned


def require_epoch(metadata: ClusterMetadata, expected: int | None) -> None:
    """Reject before any side effect what the commit would reject after it."""
    if expected is not None and metadata.epoch != expected:
        raise Rejected(
            "epoch-moved",
            f"epoch {expected} was expected, the cluster is at epoch {metadata.epoch}: look again",
        )
