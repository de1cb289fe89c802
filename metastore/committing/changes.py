"""A change that somebody asks for: one object, which is planned, and then committed or only shown.

A plan looks and changes nothing, so a dry run is the plan without the commit. Side effects come before the commit that
relies on them and may be repeated, so a change that was killed half-way is just made again.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypedDict, TypeVar

import msgspec
from epochlake.metastore.committing.submissions import Committed, Planner, require_epoch
from epochlake.metastore.configuration import Configuration
from epochlake.metastore.errors import Rejected
from epochlake.metastore.log.state_ids import next_state_id
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import Event
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.rejections import Code

if TYPE_CHECKING:
    from epochlake.metastore.metastore import Metastore

E = TypeVar("E", bound=Event)

Submit = Callable[[Event | Planner, float], Committed]
"""Give an event or a planner to the committer, for so many seconds, under the request id of the change."""

LONGEST_WORDS = 1_000
"""Arguments longer than so many characters are kept as their beginning and their digest."""


class Options(TypedDict, total=False):
    """What every change takes beside its own arguments.

    `request_id`: the idempotence key, submitting it twice commits once. `reason`: kept in the history.
    `expect_epoch`: reject unless the cluster is at exactly this epoch. `timeout`: seconds, else the configuration's.
    """

    request_id: str | None
    reason: str
    expect_epoch: int | None
    timeout: float | None


class Call(msgspec.Struct, frozen=True):
    """One call for a change: what a plan needs to know of it, and of the metastore that it is made on.

    `storage`: what a plan may ask. `preview`: the event is only shown. `root`: the URI of the cluster's root.
    """

    request_id: str
    storage: Storage
    reason: str = ""
    preview: bool = False
    configuration: Configuration = Configuration()
    root: str = ""


class Preparation(Generic[E]):
    """What one commit of a change does outside the metadata: entered before the first try, left after the last.

    What must be undone or put right, also after a failure, belongs in `__exit__`.
    """

    def prepare(self, event: E, metadata: ClusterMetadata) -> None:
        """Do what `event`, planned on `metadata`, relies on. Called again for each new plan of the same commit."""

    def still_prepared(self, event: E, then: ClusterMetadata, now: ClusterMetadata) -> bool:
        """Whether what was prepared on the metadata `then` is enough on the metadata `now`."""
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return


class Change(msgspec.Struct, Generic[E], frozen=True):
    """A change with its arguments, which `Metastore.commit` commits and `Metastore.preview` shows.

    `verb`, and the fields that differ from their defaults, are its words in the log. A request id that comes again is
    compared by them, also by later versions: no verb, field or default may be changed.
    """

    verb: ClassVar[str]

    def plan(self, metadata: ClusterMetadata, call: Call) -> E:
        """The event, made for this metadata. It may ask storage, and changes nothing.

        Raises Rejected, InvalidRequest, and what asking storage raises.
        """
        raise TypeError(f"{type(self).__name__} does not say what it plans")

    def preparation(self, metastore: Metastore) -> Preparation[E] | None:
        """What has to be done outside the metadata before a commit; None: nothing."""
        return None

    def words(self) -> str:
        """The verb and the arguments, the same for each try, however the call was written."""
        names = self.__struct_fields__
        required = len(names) - len(self.__struct_defaults__)
        given: dict[str, Any] = {name: getattr(self, name) for name in names}
        for name, default in zip(names[required:], self.__struct_defaults__, strict=True):
            if given[name] == default:
                del given[name]
        if not given:
            return self.verb
        told = msgspec.json.encode(given, enc_hook=str, order="sorted").decode()
        if len(told) > LONGEST_WORDS:
            told = f"{told[:LONGEST_WORDS]}… (sha256 {hashlib.sha256(told.encode()).hexdigest()})"
        return f"{self.verb} {told}"


class FixedChange(Change[E], frozen=True):
    """A change whose event does not depend on the metadata, so that another process may append it for this one."""

    def event(self, call: Call) -> E:
        raise TypeError(f"{type(self).__name__} does not say what its event is")

    def plan(self, metadata: ClusterMetadata, call: Call) -> E:
        return self.event(call)


class Preview(msgspec.Struct, frozen=True):
    """What a dry run shows: the metadata that a change was planned on, its event, and the metadata `after` it.

    `already`: the epoch that the request was committed as before, so that nothing would be; None: it was not.
    """

    metadata: ClusterMetadata
    event: Event
    after: ClusterMetadata
    already: int | None = None

    @classmethod
    def of(cls, metadata: ClusterMetadata, event: Event) -> Self:
        """`event` on top of `metadata`; nothing is committed. Raises Rejected as the commit would."""
        metadata.check(event)
        return cls(metadata, event, metadata.apply(event, next_state_id(metadata.state_id)))


def commit_change(
    change: Change[E],
    call: Call,
    metastore: Metastore,
    submit: Submit,
    *,
    timeout: float,
    expect_epoch: int | None = None,
) -> Committed:
    """Plan a change, check it, prepare what it relies on, then commit exactly what was prepared.

    When the metadata has moved so that the plan is stale, or that what was prepared is not enough any more, all of it
    is done again. What needs no preparation is planned by the committer, on the metadata of the commit. Raises what
    `submit` raises, and whatever planning and preparing raise.
    """

    def planner(metadata: ClusterMetadata) -> Event:
        return change.plan(metadata, call)

    deadline = time.monotonic() + timeout
    preparation = change.preparation(metastore)
    if preparation is None:
        return submit(change.event(call) if isinstance(change, FixedChange) else planner, timeout)
    with preparation:
        while True:
            metadata = metastore.catch_up()
            if metastore.follower.request_epoch(call.request_id) is not None:
                # An earlier try has landed: nothing is prepared for it again.
                return submit(planner, timeout)
            # Before any side effect, what the commit would reject after it.
            require_epoch(metadata, expect_epoch)
            event = change.plan(metadata, call)
            metadata.check(event)
            preparation.prepare(event, metadata)
            try:
                return submit(_if_prepared(preparation, event, metadata), max(0.0, deadline - time.monotonic()))
            except Rejected as rejected:
                if rejected.code != Code.STALE_PLAN or time.monotonic() > deadline:
                    raise


def _if_prepared(preparation: Preparation[E], event: E, then: ClusterMetadata) -> Planner:
    """A planner of `event` as long as what was prepared for it on the metadata `then` is enough."""

    def planned(now: ClusterMetadata) -> Event:
        if not preparation.still_prepared(event, then, now):
            raise Rejected(Code.STALE_PLAN, "the cluster has changed while this was being prepared")
        return event

    return planned
