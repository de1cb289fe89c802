"""What every event is: a frozen struct of decisions, with `check` (is it valid now?) and `apply` (what changes)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import msgspec
from epochlake.metastore.errors import Rejected
from epochlake.placement.rejections import Code

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata
    from epochlake.metastore.metadata.components.upgrade import Described

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}\Z")


class Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change of the cluster metadata.

    A field that this version does not know is refused when an event is read, never passed over.

    An event carries decisions, never recipes: ids, replicas and sessions are chosen by who plans it and written down
    here, so that replaying it never depends on the version of a planning algorithm.
    """

    may_be_first: ClassVar[bool] = False
    allowed_while_paused: ClassVar[bool] = False
    during_upgrade: ClassVar[bool] = False

    @classmethod
    def kind(cls) -> str:
        """The name of this kind of event in the log. Raises TypeError for one that is not in the table of kinds."""
        try:
            return _NAMES[cls]
        except KeyError:
            raise TypeError(f"{cls.__name__} is no kind of event that the log knows: add it to EVENT_KINDS") from None

    def check(self, metadata: ClusterMetadata) -> None:
        """Raise `Rejected(code, reason)` when the event is not valid on top of `metadata`."""
        raise TypeError(f"{type(self).__name__} does not say when it is valid")

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        """The metadata with this change in it. Epoch and state id of the whole are set by the caller."""
        raise TypeError(f"{type(self).__name__} does not say what it changes")

    @classmethod
    def features_of_kind(cls) -> tuple[str, ...]:
        """The features that this kind of event belongs to; see `EventKind.feature`."""
        feature = _FEATURES.get(cls)
        return () if feature is None else (feature,)

    def features_used(self) -> tuple[str, ...]:
        """The features that have to be enabled before this very event can be in the log."""
        return self.features_of_kind()

    def builds(self, described: Described) -> bool:
        """Whether this brings a cluster that is taken over closer to what was described of it."""
        return False

    def completed(self, metadata: ClusterMetadata) -> Event:
        """The event as the committer appends it on top of `metadata`: with what only he can know, if there is any."""
        return self

    def as_asked(self) -> Event:
        """The event without what `completed` has put into it, to be compared with what was asked for."""
        return self

    def summary(self) -> str:
        """A line for people."""
        return self.kind()


_NAMES: dict[type[Event], str] = {}
_FEATURES: dict[type[Event], str] = {}


def name_kinds(names: Mapping[type[Event], str], features: Mapping[type[Event], str]) -> None:
    """Say under which name the log keeps each kind of event, and which feature it belongs to, if any; the table of them
    does, which imports every event.
    """
    _NAMES.update(names)
    _FEATURES.update(features)


def require_name(what: str, name: str) -> None:
    """Reject names that could not be a directory and a SQL identifier alike."""
    if not NAME.match(name):
        raise Rejected(
            Code.INVALID_NAME,
            f"{what} name {name!r} could not be a directory and a SQL identifier alike",
            hint="Use a letter, then letters, digits, '_' or '-', 63 at most",
        )


_USUAL_HINTS = {
    Code.ALREADY_INITIALISED: "Use it (`epochlake status`), or name another root",
    Code.KEYSPACE_EXISTS: "Use it, or take another name",
    Code.TABLE_EXISTS: "Use it, or take another name",
    Code.NODE_EXISTS: "Take another name",
    Code.NOTHING_TO_DO: "Nothing was committed, and nothing has to be",
}
"""What to do about a rejection that says nothing else about it."""


def require(condition: bool, code: Code, reason: str, *, hint: str = "") -> None:
    if not condition:
        raise Rejected(code, reason, hint=hint or _USUAL_HINTS.get(code, ""))
