"""Events of the cluster as a whole: its beginning, its switches, its snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec
from epochlake.metastore.metadata.digest import SCHEME, digest_of
from epochlake.metastore.metadata.events.base import Event, require, require_name
from epochlake.metastore.metadata.features import require_supported
from epochlake.metastore.metadata.model import Identity
from epochlake.placement.rejections import Code

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata


class Initialise(Event, frozen=True):
    """The first event of every log: the cluster tag of seed 004, a name for people and an id that is unique.

    `features` are enabled from the beginning: those of the version that begins it.
    """

    may_be_first: ClassVar[bool] = True

    name: str
    cluster_id: str
    product_version: str
    features: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if self.features is not msgspec.UNSET:
            require_supported(self.features)

    def check(self, metadata: ClusterMetadata) -> None:
        require(
            metadata.epoch == 0,
            Code.ALREADY_INITIALISED,
            f"there is already a cluster {metadata.identity.name!r} (id {metadata.identity.cluster_id}) at this root",
        )
        require_name("cluster", self.name)

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        begun = msgspec.structs.replace(metadata, identity=Identity(self.name, self.cluster_id, 1, epoch))
        if self.features is msgspec.UNSET or not self.features:
            return begun
        return msgspec.structs.replace(begun, features=metadata.features.with_enabled(self.features, epoch))

    def summary(self) -> str:
        return f"cluster {self.name} begins"


class PauseChanges(Event, frozen=True):
    """Switch off everything that modifies the metadata (seed 002, "Migration Plan"), but what switches it on again."""

    during_upgrade: ClassVar[bool] = True

    why: str

    def check(self, metadata: ClusterMetadata) -> None:
        """Always valid; that changes are not paused already is checked for every event."""

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        switches = msgspec.structs.replace(metadata.switches, changes=False, changes_reason=self.why, epoch=epoch)
        return msgspec.structs.replace(metadata, switches=switches)

    def summary(self) -> str:
        return f"changes paused: {self.why}" if self.why else "changes paused"


class ResumeChanges(Event, frozen=True):
    during_upgrade: ClassVar[bool] = True
    allowed_while_paused: ClassVar[bool] = True

    def check(self, metadata: ClusterMetadata) -> None:
        require(not metadata.switches.changes, Code.NOT_PAUSED, "changes are not paused: there is nothing to resume")

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        switches = msgspec.structs.replace(metadata.switches, changes=True, changes_reason="", epoch=epoch)
        return msgspec.structs.replace(metadata, switches=switches)

    def summary(self) -> str:
        return "changes resumed"


class SwitchBalancing(Event, frozen=True):
    """Let the coordinator balance tablets, or not. Draining and rebuilding go on either way."""

    on: bool
    why: str = ""

    def check(self, metadata: ClusterMetadata) -> None:
        word = "on" if self.on else "off"
        require(metadata.switches.balancing != self.on, Code.NOTHING_TO_DO, f"balancing is already {word}")

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        switches = msgspec.structs.replace(metadata.switches, balancing=self.on, balancing_reason=self.why, epoch=epoch)
        return msgspec.structs.replace(metadata, switches=switches)

    def summary(self) -> str:
        return f"balancing {'on' if self.on else 'off'}"


class AcceptLoss(Event, frozen=True):
    """An operator accepts that epochs are lost: a new incarnation begins (seed 003), and the log goes on from here.

    `known_epoch`, `known_hash` and `known_by` say what was known and is not in the log any more. Replicas fenced at
    epochs that are lost accept this incarnation, and nothing that was planned in the one before.
    """

    during_upgrade: ClassVar[bool] = True
    allowed_while_paused: ClassVar[bool] = True

    incarnation: int
    known_epoch: int = 0
    known_hash: str = ""
    known_by: str = ""

    def check(self, metadata: ClusterMetadata) -> None:
        present = metadata.identity.incarnation
        require(
            self.incarnation > present,
            Code.OLD_INCARNATION,
            f"incarnation {self.incarnation} cannot begin: the cluster is at incarnation {present} already",
        )

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        identity = msgspec.structs.replace(metadata.identity, incarnation=self.incarnation, epoch=epoch)
        return msgspec.structs.replace(metadata, identity=identity)

    def summary(self) -> str:
        known = f": epoch {self.known_epoch} was known to {self.known_by}" if self.known_by else ""
        return f"incarnation {self.incarnation} begins, epochs are lost{known}"


class TakeSnapshot(Event, frozen=True):
    """Every follower may write, or check, a snapshot of the metadata as of this epoch (seed 002, "Snapshotting").

    `digest` is that of the metadata (digest.py): a snapshot that does not have it is not used. Entries from before
    there were digests have none.
    """

    during_upgrade: ClassVar[bool] = True
    allowed_while_paused: ClassVar[bool] = True

    digest: str = ""

    def check(self, metadata: ClusterMetadata) -> None:
        require(
            metadata.last_snapshot_epoch != metadata.epoch,
            Code.NOTHING_TO_DO,
            f"epoch {metadata.epoch} is a snapshot already",
        )
        require(
            not self.digest.startswith(SCHEME) or self.digest == digest_of(metadata),
            Code.WRONG_DIGEST,
            f"the digest {self.digest} is not that of the metadata at epoch {metadata.epoch}",
        )

    def completed(self, metadata: ClusterMetadata) -> TakeSnapshot:
        return self if self.digest else TakeSnapshot(digest_of(metadata))

    def as_asked(self) -> TakeSnapshot:
        return TakeSnapshot()

    def proves(self, metadata: ClusterMetadata) -> bool:
        """Whether `metadata` is what a snapshot of this event has to hold, as far as the event tells."""
        return not self.digest or self.digest == digest_of(metadata)

    def apply(self, metadata: ClusterMetadata, epoch: int, state_id: str) -> ClusterMetadata:
        return msgspec.structs.replace(metadata, last_snapshot_epoch=epoch)

    def summary(self) -> str:
        return "snapshot of the metadata"
