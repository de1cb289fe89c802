"""How every change is made: planned on the newest metadata, prepared outside, committed, and planned again if it moved.

A plan is a pure function of the metadata, so a dry run is the plan without the commit. Side effects come
before the commit that relies on them and may be repeated, so a change that was killed half-way is just made again.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypedDict, TypeVar, Unpack

import msgspec
from epochlake.metastore.committing.committer import Committed, Planner
from epochlake.metastore.errors import Rejected
from epochlake.metastore.log.state_ids import next_state_id
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import Event
from epochlake.placement.rejections import Code

if TYPE_CHECKING:
    from epochlake.jobs.cluster import Cluster

E = TypeVar("E", bound=Event)
P = ParamSpec("P")
R = TypeVar("R")

LONGEST_WORDS = 1_000
"""Arguments longer than so many characters are kept as their beginning and their digest."""

STALE_PLAN = Code.STALE_PLAN
"""The code of rejections that only mean: plan again on the metadata of now."""


class Options(TypedDict, total=False):
    """What every change takes beside its own arguments.

    `request_id`: the idempotence key, submitting it twice commits once. `reason`: kept in the history.
    `expect_epoch`: reject unless the cluster is at exactly this epoch. `timeout`: seconds, else the configuration's.
    `asked`: the change in words, which a request id that comes again is compared by; made by `in_words`.
    """

    request_id: str | None
    reason: str
    expect_epoch: int | None
    timeout: float | None
    asked: str


def identified(options: Options) -> tuple[str, Options]:
    """The request id, made up when none was given, and the options with it."""
    request_id = options.get("request_id") or next_state_id("")
    return request_id, {**options, "request_id": request_id}


def in_words(change: Callable[P, R]) -> Callable[P, R]:
    """Give a change its `asked`: its name and what it was called with, in the same words for each try.

    Arguments that equal their defaults are left out, and so is what only says how to commit (a timeout, a reason).
    """
    signature = inspect.signature(change)

    @functools.wraps(change)
    def made(*args: P.args, **kwargs: P.kwargs) -> R:
        if "asked" not in kwargs:
            given = signature.bind(*args, **kwargs).arguments
            own = {
                name: value
                for name, value in given.items()
                if name not in ("cluster", "options") and value != signature.parameters[name].default
            }
            kwargs["asked"] = _words(change.__name__.replace("_", " "), own)
        return change(*args, **kwargs)

    return made


def _words(name: str, arguments: dict[str, object]) -> str:
    told = msgspec.json.encode(arguments, enc_hook=str, order="sorted").decode()
    if len(told) > LONGEST_WORDS:
        told = f"{told[:LONGEST_WORDS]}… (sha256 {hashlib.sha256(told.encode()).hexdigest()})"
    return f"{name} {told}" if arguments else name


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
        if cluster.follower.request_epoch(request_id) is not None:
            return cluster.commit(plan, **options), None
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
            Code.EPOCH_MOVED,
            f"epoch {expected} was expected, the cluster is at epoch {metadata.epoch}: look again",
        )
