"""Verifying a whole log: its chain, each event on the metadata before it, and every snapshot against a replay.

A finding is noted and the walk goes on, so that one run tells all that is wrong. The chain can always be
walked further. The metadata is lost where entries are missing or cannot be applied; it is taken up again at the next
snapshot that the log vouches for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import msgspec
from epochlake.metastore.errors import HashMismatch, LogTorn, LogUnreadable, Rejected, StorageUnavailable, UnknownFormat
from epochlake.metastore.following.snapshots import Snapshots, is_proved
from epochlake.metastore.log.entry import Entry, Position, position_of, verify_next
from epochlake.metastore.log.epoch_log import EpochLog
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.differences import diff
from epochlake.metastore.metadata.events import Event, StartTransitions
from epochlake.metastore.metadata.model import TabletKey, Transition
from epochlake.metastore.metadata.ring_state import ring_state, settles
from epochlake.metastore.storage.failures import MissingFile, StorageDamaged
from epochlake.placement.errors import words_of
from epochlake.placement.rejections import Code
from epochlake.placement.showing import Shown

UNREADABLE = "unreadable"
GAP = "gap"
DUPLICATE = "duplicate-epoch"
FORMAT = "unknown-format"
CHAIN = "broken-chain"
STATE_ID = "duplicate-state-id"
REQUEST_ID = "duplicate-request-id"
INCARNATION = "wrong-incarnation"
REJECTED = "not-valid"
NOT_APPLICABLE = "not-applicable"
INV_TABL_2 = "INV-TABL-2"
RING_ASTRAY = "ring-astray"
SNAPSHOT_DAMAGED = "snapshot-damaged"
SNAPSHOT_DIFFERS = "snapshot-differs"
SNAPSHOT_ASTRAY = "snapshot-astray"
CHECKPOINT_DAMAGED = "checkpoint-damaged"
BEHIND = "behind"
"""The log does not hold an epoch that somebody knows."""
NOT_COMPARED = "not-compared"
"""Somebody who may know more than the log could not be asked."""

SHOWN = 3
"""How many differences of a snapshot its finding spells out."""


class Finding(msgspec.Struct, frozen=True):
    """Something that does not hold at `epoch`. `code` is one of the constants above, `message` is for people."""

    epoch: int
    code: str
    message: str


class VerificationReport(Shown, msgspec.Struct, frozen=True):
    """What `verify` has looked at, up to `last_epoch`, and what it has found.

    `entries` were chained, `events` of them checked and applied, `snapshots` compared with the replay.
    """

    last_epoch: int
    entries: int
    events: int
    snapshots: int
    findings: tuple[Finding, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


def verify(log: EpochLog, snapshots: Snapshots | None = None) -> VerificationReport:
    """Check the whole log, and the snapshots if given; changes nothing.

    Every entry continues the one before it, has an own request id and state id, and holds an event that was valid on
    the metadata before it; no tablet is in two transitions (INV-TABL-2); the ranges of the ring are on their way to
    where the strategies want them; every snapshot is byte for byte the one that a replay gives. A torn log is looked at
    up to where it is torn. Raises NotInitialised or StorageUnavailable when there is nothing to look at.
    """
    return _Walk(log, snapshots).report()


class _Walk:
    """One walk along a log. `metadata` is None where it is not known."""

    def __init__(self, log: EpochLog, snapshots: Snapshots | None) -> None:
        self._read: Callable[[int, int | None], list[Entry]] = log.read
        self._torn = False
        self._snapshots = snapshots
        self._stored = set(snapshots.epochs()) if snapshots is not None else set()
        self._position = Position()
        self._metadata: ClusterMetadata | None = ClusterMetadata.empty()
        self._unreadable: set[int] = set()
        self._request_ids: dict[str, int] = {}
        self._state_ids: dict[str, int] = {}
        self._findings: list[Finding] = []
        self._entries = self._events = self._compared = 0

    def report(self) -> VerificationReport:
        for entry in self._readable(0, None):
            self._entries += 1
            self._chain(entry)
            self._apply(entry)
            if entry.epoch in self._stored:
                self._stored.remove(entry.epoch)
                self._compare_snapshot(entry)
        for epoch in sorted(epoch for epoch in self._stored if epoch > self._position.epoch and not self._torn):
            self._found(epoch, SNAPSHOT_ASTRAY, f"the log has no epoch {epoch}: it ends at {self._position.epoch}")
        findings = tuple(sorted(dict.fromkeys(self._findings), key=lambda finding: finding.epoch))
        return VerificationReport(self._position.epoch, self._entries, self._events, self._compared, findings)

    def _found(self, epoch: int, code: str, message: str) -> None:
        self._findings.append(Finding(epoch, code, message))

    def _readable(self, after: int, up_to: int | None) -> Iterator[Entry]:
        """The entries after `after` up to `up_to`, around the parts of the log that cannot be read."""
        try:
            entries = self._read(after, up_to)
        except LogTorn as torn:
            # It fails every part of the log, also those that it is not in.
            self._torn = True
            first, _ = torn.epochs or (after + 1, None)
            self._found(first, UNREADABLE, f"{words_of(torn)}. What comes after it, snapshots too, was not looked at")
            if torn.read_whole is not None:
                self._read = torn.read_whole
                yield from self._readable(after, up_to)
        except LogUnreadable as error:
            first, last = error.epochs or (after + 1, None)
            self._found(first, UNREADABLE, str(error))
            if last is None:
                return
            self._unreadable.update(range(first, last + 1))
            if after < first - 1 and (up_to is None or first - 1 < up_to):
                yield from self._readable(after, first - 1)
            if after < last and (up_to is None or last < up_to):
                yield from self._readable(last, up_to)
        else:
            yield from entries

    def _chain(self, entry: Entry) -> None:
        """Check that `entry` continues the log, then go on from it whatever it says."""
        position = self._position
        if entry.epoch > position.epoch + 1:
            self._note_gap(position.epoch + 1, entry.epoch - 1)
            position = Position(entry.epoch - 1, entry.previous_state_id, entry.previous_hash)
            self._metadata = None
        if entry.epoch <= position.epoch:
            self._found(entry.epoch, DUPLICATE, f"epoch {entry.epoch} is in the log more than once")
            return
        try:
            verify_next(position, entry)
        except HashMismatch as error:
            self._found(entry.epoch, CHAIN, str(error))
        except UnknownFormat as error:
            self._found(entry.epoch, FORMAT, str(error))
            self._metadata = None
        self._position = position_of(entry)
        for ids, own, code in (
            (self._request_ids, entry.request_id, REQUEST_ID),
            (self._state_ids, entry.state_id, STATE_ID),
        ):
            earlier = ids.setdefault(own, entry.epoch)
            if earlier != entry.epoch:
                self._found(entry.epoch, code, f"{own} is the id of epoch {earlier} already")

    def _note_gap(self, first: int, last: int) -> None:
        if not self._unreadable.issuperset(range(first, last + 1)):
            missing = f"epoch {first} is" if first == last else f"epochs {first} to {last} are"
            self._found(first, GAP, f"{missing} missing")

    def _apply(self, entry: Entry) -> None:
        """Check the event on the metadata before it, and apply it as every follower has."""
        before = self._metadata
        if before is None or before.epoch + 1 != entry.epoch:
            return
        try:
            event = entry.decode()
        except UnknownFormat as error:
            self._found(entry.epoch, FORMAT, str(error))
            self._metadata = None
            return
        try:
            self._check(before, event, entry.epoch)
            after = before.apply(event, entry.state_id)
        except Exception as error:  # an event that was never valid may fail in any way
            self._found(
                entry.epoch, NOT_APPLICABLE, f"{entry.event} cannot be applied: {type(error).__name__}: {error}"
            )
            self._metadata = None
            return
        self._metadata = after
        self._events += 1
        if entry.incarnation != after.identity.incarnation:
            self._found(
                entry.epoch,
                INCARNATION,
                f"the entry is of incarnation {entry.incarnation}, the cluster of {after.identity.incarnation}",
            )
        if after.rings is not before.rings and not settles(ring_state(after)):
            self._found(
                entry.epoch, RING_ASTRAY, "the ranges of the ring will not be where the strategies of the keyspaces say"
            )
        if after.tablets is not before.tablets:
            for key, transition in after.tablets.transitions.items():
                if transition.epoch == entry.epoch:
                    self._check_transition(after, key, transition)

    def _check(self, before: ClusterMetadata, event: Event, epoch: int) -> None:
        try:
            before.check(event)
        except Rejected as rejected:
            doubled = isinstance(event, StartTransitions) and rejected.code == Code.TRANSITION_IN_THE_WAY
            self._found(epoch, INV_TABL_2 if doubled else REJECTED, f"{event.kind()} was not valid: {rejected.reason}")

    def _check_transition(self, metadata: ClusterMetadata, key: TabletKey, transition: Transition) -> None:
        tablet_map = metadata.tablets.maps.get(key[0])
        name = f"the transition of tablet {key[1]} of table {key[0]}"
        if transition.key != key:
            self._found(metadata.epoch, INV_TABL_2, f"{name} is one of tablet {transition.tablet}")
        elif tablet_map is None or not 0 <= key[1] < tablet_map.count:
            self._found(metadata.epoch, INV_TABL_2, f"{name} is one of a tablet that is not there")
        elif transition.replicas != tablet_map.replicas(key[1]):
            self._found(
                metadata.epoch,
                INV_TABL_2,
                f"{name} starts from replicas {transition.replicas}, the map has {tablet_map.replicas(key[1])}",
            )

    def _compare_snapshot(self, entry: Entry) -> None:
        assert self._snapshots is not None
        epoch = entry.epoch
        try:
            stored, position = self._snapshots.read(epoch)
        except (UnknownFormat, StorageUnavailable) as error:
            says_nothing = isinstance(error, StorageUnavailable) and not isinstance(error, MissingFile | StorageDamaged)
            code = UNREADABLE if says_nothing else SNAPSHOT_DAMAGED
            self._found(epoch, code, f"{self._snapshots.path(epoch)}: {words_of(error)}")
            return
        if self._metadata is None or self._metadata.epoch != epoch:
            if is_proved(entry, stored, position):
                self._metadata = stored
            return
        self._compared += 1
        if self._snapshots.matches(self._metadata, self._position):
            return
        if position != self._position:
            what = "it is one of another log"
        else:
            changes = diff(self._metadata, stored)
            shown = [f"{c.component} {c.name} {c.field}".rstrip() for c in islice(changes, SHOWN)]
            what = f"{len(changes)} difference(s): {', '.join(shown)}" if shown else "the same by content, not by bytes"
        self._found(epoch, SNAPSHOT_DIFFERS, f"{self._snapshots.path(epoch)} is not what the log gives: {what}")
