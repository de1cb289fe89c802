"""Repair: replicas get the files that they miss, and damaged files are healed, without reading a row that is good.

A replica is a set of files, so what it misses is a set difference, known from metadata alone. What is
missing is copied from a replica that has it and committed like any other work, at the epoch that it was planned at.
That fence is what makes repair safe beside everything else:

- Ranges that are changing their replicas are left alone. One that begins to change after the plan: whoever gives rows
  away is fenced at the change's epoch before it is copied from, so a repair that was planned earlier either reached it
  before, and is part of what is copied, or is refused.
- A replica that gives a range up is fenced before it drops it, and one that gets a range is fenced before it is
  prepared: what was planned earlier can bring nothing back to either of them.
- What compaction has replaced is never brought back: a commit looks at the merged files that are live in the snapshot
  it commits against, and reads pass over what a merged file stands for (ledger.py).
- Pipelines need no care: the files of a write that reached some replicas only may be anywhere.

Damage is healed by the same file of another replica, and where there is none by its rows: they are brought as they lie
elsewhere, cut otherwise or merged or not merged yet, and the damaged copy is taken out in the same commit.

A replica table that is lost while its volume is there is reported and not made anew: an empty replica would be counted
in quorums, and rows that were acknowledged by it and one other could be missed. Replace or rebuild the node: then the
replica counts when everything has been streamed.

The job of `epochlake repair`, for `spark-submit` and schedulers: the same options, the same exit codes.
"""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from epochlake.jobs.replicas.commits import commit_files
from epochlake.jobs.replicas.copying import PartCopy
from epochlake.jobs.replicas.damage import (
    CHECKING_PARTITIONS,
    NO_GOOD_BYTES,
    Checked,
    ExpectedFile,
    check_files,
    heal,
    outvoted,
    torn_or_missing,
)
from epochlake.jobs.replicas.damage_notes import DamageNote
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.intervals import NO_LINEAGE, Lineage
from epochlake.jobs.replicas.opening import address_of, forget_all, open_all
from epochlake.jobs.replicas.outcomes import (
    Acknowledged,
    AlreadyApplied,
    FencedOff,
    PartlyApplied,
    SessionClosed,
    Unreachable,
)
from epochlake.jobs.replicas.receipts import Receipt, went_back
from epochlake.jobs.replicas.replica import ReplicaSnapshot
from epochlake.jobs.replicas.streaming import COPYING_PARTITIONS, Copier
from epochlake.jobs.upkeep.comparing import (
    IN_TRANSITION,
    Compared,
    Range,
    Skipped,
    by_rest,
    compare,
    in_chunks,
    plan_copies,
    skipped,
    superfluous,
)
from epochlake.jobs.upkeep.healing import Surroundings, give_up, heal_by_rows
from epochlake.jobs.workers.spark import SparkWorkers
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.jobs.workers.workers import Workers
from epochlake.metastore.announcing import announced
from epochlake.metastore.errors import Rejected, StorageUnavailable, WaitTimeout, WrongCluster
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import Table, VolumeId
from epochlake.placement.consistency import DatacenterOf, blocking
from epochlake.placement.rejections import Code
from epochlake.placement.showing import Shown

if TYPE_CHECKING:
    from epochlake.jobs.replicas.store import Store
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

NO_QUORUM = (
    "it went back, and so did others, so that no quorum is left that did not: what only they had acknowledged may be "
    "lost, and reads at that level stay refused. Put newer copies back, or give it up with --accept-restored"
)
GIVEN_UP = "what only replicas that went back had acknowledged is given up"

THREADS = 16
ROUNDS = 8
"""How often a repair is planned anew because the cluster has moved on under it."""

CATCH_UP_SECONDS = 30.0
CHUNK_BYTES = 1 << 30
CHUNK_FILES = 256
"""Copies that are committed together: a repair that is stopped has kept what it did before."""


class RepairedReplica(msgspec.Struct, frozen=True):
    """What one replica table was brought (with `dry_run`: what it would be): copied `files` of `size` bytes.

    `removed`: files that a merged file had replaced. `obstacle` says what is still missing there, and why.
    """

    replica: str
    files: int = 0
    size: int = 0
    removed: int = 0
    obstacle: str | None = None


class DamagedFile(msgspec.Struct, frozen=True):
    """A live file whose stored bytes are torn, missing or wrong. `obstacle`: why it was not healed.

    `given_up`: it is not live any more, and the rows that only it had are lost.
    """

    replica: str
    volume_id: VolumeId
    path: str
    damage: str
    healed: bool
    obstacle: str | None = None
    given_up: bool = False

    @property
    def is_settled(self) -> bool:
        """Whether nobody meets its damage any more."""
        return self.healed or self.given_up


class RepairReport(Shown, msgspec.Struct, frozen=True):
    """What `repair` found and did in one table at an epoch.

    `ranges` were compared, in `differing` of them replicas lacked something of each other. `unreachable`: what replicas
    said that should be there and were not compared. `refused`: the replicas that went back behind what they have
    acknowledged and are still not read, each with what keeps it so. `given_up`: those that count again although it may
    be lost (with `dry_run`: that would), because whoever asked accepts that.
    """

    table: str
    epoch: int
    dry_run: bool
    ranges: int
    differing: int
    checked_files: int
    replicas: tuple[RepairedReplica, ...]
    damaged: tuple[DamagedFile, ...]
    skipped: tuple[Skipped, ...]
    unreachable: dict[str, str]
    refused: dict[str, str] = {}
    given_up: dict[str, str] = {}

    @property
    def complete(self) -> bool:
        """Whether every replica counts, and has every row of its ranges, undamaged as far as was looked at."""
        done = not self.dry_run or self.differing == 0
        whole = all(replica.obstacle is None for replica in self.replicas)
        settled = all(file.is_settled for file in self.damaged)
        return done and whole and settled and not self.skipped and not self.unreachable and not self.refused

    def require_complete(self) -> None:
        """Raise WaitTimeout, which is worth a retry, where something is left to repair."""
        if self.complete:
            return
        damaged = sum(not file.is_settled for file in self.damaged)
        raise WaitTimeout(
            f"not all of {self.table} could be repaired: {len(self.skipped)} group(s) of ranges were left alone, "
            f"{len(self.unreachable)} replica(s) do not answer, {damaged} file(s) stay damaged, {len(self.refused)} "
            "replica(s) that went back are still refused",
            hint="Run it again when what stands in the way is gone",
        )


class ReplicaView(msgspec.Struct, frozen=True):
    """The replicas of one table as they are at an epoch, none of them fenced above it.

    `snapshots` and `failed` are those of the `ranges` at rest. `passing` are the other replicas that answered, of the
    ranges in `transition`.
    """

    metadata: ClusterMetadata
    table: Table
    ranges: tuple[Range, ...]
    transition: tuple[Range, ...]
    snapshots: dict[VolumeId, ReplicaSnapshot]
    passing: dict[VolumeId, ReplicaSnapshot]
    failed: dict[VolumeId, str]
    lineage: Lineage

    @property
    def moving(self) -> tuple[int, ...]:
        """The units of the ranges in transition."""
        return tuple(sorted({range_.unit for range_ in self.transition}))

    @property
    def all_snapshots(self) -> dict[VolumeId, ReplicaSnapshot]:
        """Of all replicas that answered."""
        return {**self.passing, **self.snapshots}

    def place(self, volume: VolumeId) -> str:
        return self.metadata.describe(volume)

    @property
    def unreachable(self) -> dict[str, str]:
        return {self.place(volume): reason for volume, reason in sorted(self.failed.items())}


def repair(
    cluster: Store,
    table: str,
    *,
    dry_run: bool = False,
    check_bytes: bool = False,
    accept_loss: bool = False,
    accept_restored: bool = False,
    spark: SparkSession | None = None,
    workers: Workers | None = None,
) -> RepairReport:
    """Bring every replica of a table what it lacks of the others' files, and heal what is damaged.

    Files that are missing or torn in storage are found by listing; with `check_bytes` every byte is read as well. With
    `accept_loss` damaged files are given up of which no replica has the rows, and every replica was asked. With
    `spark` its executors copy and check, with `workers` these do. `dry_run` changes nothing. Safe beside pipelines,
    operations and compaction; can be stopped and run again at any time. A replica that went back behind what it has
    acknowledged counts again when the others have brought it all that they together have acknowledged; where no quorum
    is left that did not go back, only with `accept_restored`, which gives up what only they had. Raises Rejected for
    an unknown table, StorageUnavailable for a ledger that cannot be read.
    """
    with announced(cluster, "repair", table):
        view = look_anew(cluster, table)
        notes = cluster.damage.of(view.table.table_id)
        noted = {note.key for note in notes}
        checkers = workers if spark is None else SparkWorkers(spark, CHECKING_PARTITIONS)
        looked = _heal(view, check_bytes, dry_run, checkers, noted)
        damaged = looked.damaged
        copier = Copier(workers if spark is None else SparkWorkers(spark, COPYING_PARTITIONS))
        if not dry_run and any(not file.healed for file in damaged):
            damaged = _healed_by_rows(cluster, view, damaged, copier)
            if accept_loss:
                damaged = _given_up(cluster, view, damaged, looked.unlisted, looked.unread)
            view = look_again(cluster, view)
        run = _Run(cluster, copier, dry_run, {(file.volume_id, file.path) for file in damaged if not file.is_settled})
        report = run.repair(view)
        report = msgspec.structs.replace(
            report,
            damaged=tuple(damaged),
            checked_files=looked.checked,
            unreachable={**looked.unlisted, **report.unreachable},
        )
        if not dry_run:
            _remember(cluster, view, notes, damaged)
        stays = dry_run or not all(file.healed for file in damaged)
        restored = settle_restored(cluster, view, dry_run=stays, accept_loss=accept_restored)
        return msgspec.structs.replace(report, refused=restored.refused, given_up=restored.given_up)


class Restored(NamedTuple):
    """Replicas that went back and are still `refused`, with why; those that count again with something `given_up`."""

    refused: dict[str, str]
    given_up: dict[str, str]


def settle_restored(cluster: Store, view: ReplicaView, *, dry_run: bool = False, accept_loss: bool = False) -> Restored:
    """Let replicas that went back count again where they have all rows by now.

    Every other replica must answer, and so many of those that did not go back that they meet every QUORUM, and every
    LOCAL_QUORUM: what these have together is all that such a level has acknowledged. With `accept_loss` all that all
    have together has to do. With `dry_run` none counts again.
    """
    table = view.table.full_name
    acknowledged = cluster.receipts.of(view.table.table_id)
    view = look_again(cluster, view)
    restored = _went_back(view, acknowledged)
    if restored:
        # The others may have been looked at long before these went back: what these had is there by now, unless they
        # have gone back since then as well.
        view = look_again(cluster, view)
        restored |= _went_back(view, acknowledged)
    lost = _without_a_quorum(view, restored)
    given_up = lost if accept_loss else set()
    refused = dict.fromkeys(restored, "it went back, and is not yet let count again" if dry_run else "")
    if view.failed or view.moving:
        why = "others do not answer" if view.failed else "ranges change their replicas"
        refused = dict.fromkeys(restored, f"it went back, and {why} that may have what it lacks: repair again then")
        given_up = set()
    if not any(refused.values()):
        refused = _kept_back(view, restored)
    refused |= dict.fromkeys(lost - given_up, NO_QUORUM)
    for volume in sorted(restored - {*refused}):
        try:
            cluster.receipts.settle(
                address_of(cluster.storage, view.metadata, view.table, volume), acknowledged[volume]
            )
        except (StorageUnavailable, WrongCluster) as error:
            logger.warning("the replica of %s on %s stays refused: %s", table, view.place(volume), error)
            refused[volume] = str(error)
            continue
        said = "counts again, without what may be lost" if volume in given_up else "is whole again"
        logger.warning("the replica of %s on %s went back, and %s", table, view.place(volume), said)
    told = given_up if dry_run else given_up - {*refused}
    return Restored(
        {view.place(volume): why for volume, why in sorted(refused.items())},
        {view.place(volume): GIVEN_UP for volume in sorted(told)},
    )


def _went_back(view: ReplicaView, acknowledged: Mapping[VolumeId, Collection[Receipt]]) -> set[VolumeId]:
    return {v for v, snapshot in view.snapshots.items() if went_back(snapshot, acknowledged.get(v, ()))}


def _without_a_quorum(view: ReplicaView, restored: Collection[VolumeId]) -> set[VolumeId]:
    """Those of the replicas that went back of which nobody knows what else they had: too many others did."""
    datacenter_of = view.metadata.directory.datacenter_of
    found: set[VolumeId] = set()
    for range_ in view.ranges:
        groups = [range_.replicas, *_by_datacenter(range_.replicas, datacenter_of)]
        if any(sum(v not in restored for v in group) < blocking(len(group)) for group in groups):
            found |= {*range_.replicas} & {*restored}
    return found


def _kept_back(view: ReplicaView, restored: Collection[VolumeId]) -> dict[VolumeId, str]:
    """Those of the replicas that went back which lack something of what there is, and why."""
    differing = [one for one in view.ranges if not compare(one, view.snapshots, view.lineage).agrees]
    lacking = {volume for range_ in differing for volume in range_.replicas} & {*restored}
    return dict.fromkeys(lacking, "it went back, and rows came to the others meanwhile: repair again")


def _by_datacenter(replicas: Sequence[VolumeId], datacenter_of: DatacenterOf) -> list[list[VolumeId]]:
    return [[v for v in replicas if datacenter_of(v) == name] for name in sorted(set(map(datacenter_of, replicas)))]


def look(cluster: Store, table: str) -> ReplicaView:
    """The replicas of a table now. Raises Rejected, StorageUnavailable for the ledger or a log that stays behind."""
    metadata = cluster.catch_up()
    return _view(cluster, metadata, metadata.table(table))


def look_anew(cluster: Store, table: str) -> ReplicaView:
    """As `look`, by what lies on the disks and at the root: what this process has read may have rotted since."""
    metadata = cluster.catch_up()
    found = metadata.table(table)
    resting, moving = by_rest(metadata.placements(found.table_id))
    volumes = sorted({volume for range_ in (*resting, *moving) for volume in range_.replicas})
    forget_all(cluster.storage, metadata, found, volumes)
    view = _view(cluster, metadata, found)
    if any(file.is_merged for snapshot in view.snapshots.values() for file in snapshot.all_files.values()):
        cluster.ledger.merges(found.table_id)  # entries that were read before are not read again otherwise
    return view


def look_again(cluster: Store, view: ReplicaView, least_epoch: int = 0) -> ReplicaView:
    """The replicas of the table of a view now, whatever it is called by now. Raises as `look`."""
    metadata = cluster.follower.wait_for_fence(least_epoch, CATCH_UP_SECONDS) if least_epoch else cluster.catch_up()
    return _view(cluster, metadata, view.table)


def _view(cluster: Store, metadata: ClusterMetadata, table: Table) -> ReplicaView:
    while True:
        found = metadata.schema.tables.get(table.table_id)
        if found is None:
            raise Rejected(Code.UNKNOWN_TABLE, f"table {table.full_name} was dropped by epoch {metadata.epoch}")
        ranges, transition = by_rest(metadata.placements(found.table_id))
        volumes = sorted({volume for range_ in ranges for volume in range_.replicas})
        others = {volume for range_ in transition for volume in range_.replicas} - {*volumes}
        snapshots, failed = open_all(cluster.storage, metadata, found, volumes)
        passing, _ = open_all(cluster.storage, metadata, found, sorted(others)) if others else ({}, {})
        ahead = max((snapshot.fence for snapshot in snapshots.values()), default=0)
        if ahead > metadata.fence:
            metadata = cluster.follower.wait_for_fence(ahead, CATCH_UP_SECONDS)
            continue
        files = [file for snapshot in snapshots.values() for file in snapshot.all_files.values()]
        lineage = cluster.ledger.lineage(found.table_id, files) if files else NO_LINEAGE
        return ReplicaView(metadata, found, tuple(ranges), tuple(transition), snapshots, passing, failed, lineage)


def bring_merged(cluster: Store, view: ReplicaView, most_bytes: int | None = None) -> int:
    """Bring merged files that only some replicas have to the rest, and nothing else; the bytes that were copied.

    At most so many bytes, or one copy, on each replica. What does not answer, or has moved on, is left for later.
    """
    compared = []
    for range_ in view.ranges:
        one = compare(range_, view.snapshots, view.lineage)
        merged = {v: tuple(part for part in parts if part.file.is_merged) for v, parts in one.missing.items()}
        compared.append(Compared(range_, {volume: parts for volume, parts in merged.items() if parts}))
    damaged = {note.key for note in cluster.damage.of(view.table.table_id)}
    copies = plan_copies(compared, view.snapshots, damaged)
    if most_bytes is not None:
        copies = {volume: next(iter(in_chunks(found, most_bytes, CHUNK_FILES))) for volume, found in copies.items()}
    return _Run(cluster, Copier(None), dry_run=False, damaged=damaged).bring(view, copies)


class _Run:
    """One repair: what it did so far, over the rounds in which it is planned."""

    def __init__(
        self, cluster: Store, copier: Copier, dry_run: bool, damaged: Collection[tuple[VolumeId, str]]
    ) -> None:
        self._damaged = damaged
        self._cluster = cluster
        self._copier = copier
        self._dry_run = dry_run
        self._app_id = f"repair-{uuid.uuid4()}"
        self._version = 0
        self._done: dict[VolumeId, RepairedReplica] = {}

    def repair(self, view: ReplicaView) -> RepairReport:
        differing: set[int] = set()
        for _ in range(ROUNDS):
            compared = [compare(range_, view.snapshots, view.lineage) for range_ in view.ranges]
            differing |= {one.range.unit for one in compared if not one.agrees}
            copies = plan_copies(compared, view.snapshots, self._damaged)
            extra = superfluous(view.snapshots, view.lineage)
            fence = self._round(view, copies, extra)
            if fence <= view.metadata.fence:
                break
            logger.info("a replica is fenced at epoch %s: planning the repair of %s again", fence, view.table.full_name)
            view = look_again(self._cluster, view, fence)
        return RepairReport(
            table=view.table.full_name,
            epoch=view.metadata.epoch,
            dry_run=self._dry_run,
            ranges=len(view.ranges),
            differing=len(differing),
            checked_files=0,
            replicas=tuple(self._done[volume] for volume in sorted(self._done)),
            damaged=(),
            skipped=skipped({IN_TRANSITION: view.moving} if view.moving else {}),
            unreachable=view.unreachable,
        )

    def bring(self, view: ReplicaView, copies: Mapping[VolumeId, Sequence[PartCopy]]) -> int:
        """Bring these copies only, once; the bytes that have arrived."""
        self._round(view, copies, {})
        return sum(done.size for done in self._done.values())

    def _round(
        self,
        view: ReplicaView,
        copies: Mapping[VolumeId, Sequence[PartCopy]],
        extra: Mapping[VolumeId, Sequence[DataFile]],
    ) -> int:
        """Do what is planned on every replica; the highest fence that refused it, or 0."""
        volumes = sorted({*copies, *extra})
        fences = [0]
        base = self._version
        self._version += 1 + max((len(copies.get(volume, ())) for volume in volumes), default=0)
        results = ThreadWorkers(THREADS).run(
            lambda volume: self._bring(view, volume, copies.get(volume, ()), len(extra.get(volume, ())), base),
            volumes,
        )
        for volume, (added, fence) in zip(volumes, results, strict=True):
            before = self._done.get(volume, RepairedReplica(view.place(volume)))
            self._done[volume] = RepairedReplica(
                before.replica,
                before.files + added.files,
                before.size + added.size,
                before.removed + added.removed,
                added.obstacle,
            )
            fences.append(fence)
        return max(fences)

    def _bring(
        self, view: ReplicaView, volume: VolumeId, copies: Sequence[PartCopy], extra: int, version: int
    ) -> tuple[RepairedReplica, int]:
        """Copy and commit what one replica lacks; what was done, and the fence that refused it or 0."""
        place, target = view.place(volume), address_of(self._cluster.storage, view.metadata, view.table, volume)
        if self._dry_run:
            return RepairedReplica(place, len(copies), sum(copy.size for copy in copies), extra), 0
        done = RepairedReplica(place, removed=extra)
        for chunk in list(in_chunks(copies, CHUNK_BYTES, CHUNK_FILES)) or [[]]:
            copied = self._copier.copy(chunk)
            version += 1
            outcome = commit_files(
                target,
                copied.arrived,
                epoch=view.metadata.fence,
                app_id=self._app_id,
                app_version=version,
                ledger=self._cluster.ledger,
            )
            match outcome:
                case Acknowledged() | AlreadyApplied():
                    size = sum(file.size for file in copied.arrived)
                    done = msgspec.structs.replace(done, files=done.files + len(copied.arrived), size=done.size + size)
                case FencedOff(fence=fence):
                    reason = f"the replica is fenced at epoch {fence}: the cluster keeps moving, repair again"
                    return msgspec.structs.replace(done, obstacle=reason), fence
                case SessionClosed() | PartlyApplied() | Unreachable():
                    reason = outcome.reason if isinstance(outcome, Unreachable) else str(outcome)
                    return msgspec.structs.replace(done, obstacle=reason), 0
            if copied.failed:
                done = msgspec.structs.replace(
                    done, obstacle=f"{len(copied.failed)} files, for one: {next(iter(copied.failed.values()))}"
                )
        return done, 0


def _healed_by_rows(
    cluster: Store, view: ReplicaView, damaged: Sequence[DamagedFile], copier: Copier
) -> list[DamagedFile]:
    """What becomes of the damaged copies for which no replica has the same file whole."""
    among = _surroundings(cluster, view)
    left = {(file.volume_id, file.path) for file in damaged if not file.healed}
    answers = heal_by_rows(left, among, copier, cluster.ledger)
    return [
        msgspec.structs.replace(
            file,
            healed=file.healed or answers.get((file.volume_id, file.path), file.obstacle) is None,
            obstacle=None if file.healed else answers.get((file.volume_id, file.path), file.obstacle),
        )
        for file in damaged
    ]


def _given_up(
    cluster: Store,
    view: ReplicaView,
    damaged: Sequence[DamagedFile],
    unlisted: Collection[str],
    unread: Collection[tuple[VolumeId, str]],
) -> list[DamagedFile]:
    """What becomes of the damaged copies whose rows nobody has, when that loss is accepted.

    Nothing is given up while a copy could not be read: it may be the whole one.
    """
    closed = [file for file in damaged if not file.healed and (file.volume_id, file.path) in unread]
    if view.failed or unlisted or closed:
        silent = (
            f"{', '.join([*view.unreachable, *unlisted])} may have its rows and does not answer: bring it back first"
        )
        if closed:
            silent = (
                f"{closed[0].path} on {closed[0].replica} could not be read and may be whole: make it readable, or "
                "delete that file where it never will be"
            )
        return [
            msgspec.structs.replace(file, obstacle=silent) if file.obstacle == NO_GOOD_BYTES else file
            for file in damaged
        ]
    lost = {(file.volume_id, file.path) for file in damaged if file.obstacle == NO_GOOD_BYTES}
    answers = give_up(lost, _surroundings(cluster, view), cluster.ledger)
    return [
        msgspec.structs.replace(
            file,
            given_up=(obstacle := answers[file.volume_id, file.path]) is None,
            obstacle="its rows are lost" if obstacle is None else obstacle,
        )
        if (file.volume_id, file.path) in answers
        else file
        for file in damaged
    ]


def _surroundings(cluster: Store, view: ReplicaView) -> Surroundings:
    merges = cluster.ledger.merges(view.table.table_id)
    replaced = {name: [(one.origin, one.low, one.high) for one in merge.replaced] for name, merge in merges.items()}
    return Surroundings(view.metadata.fence, view.ranges, view.transition, view.snapshots, view.lineage, replaced)


def _remember(cluster: Store, view: ReplicaView, notes: Sequence[DamageNote], damaged: Sequence[DamagedFile]) -> None:
    """Take away the notes of copies that are whole now, or that their replica has no more; note what stays damaged."""
    table_id = view.table.table_id
    bad = {(file.volume_id, file.path): file.damage for file in damaged if not file.is_settled}
    snapshots = view.all_snapshots
    live = {
        (volume, file.path): ExpectedFile(file, snapshot.address)
        for volume, snapshot in snapshots.items()
        for file in snapshot.all_files.values()
    }
    looked_at = {(file.volume_id, file.path) for file in damaged} | {
        _key(ExpectedFile(file, snapshots[volume].address)) for volume in snapshots for file in _of_ranges(view, volume)
    }
    gone = {note.key for note in notes if note.volume_id in snapshots and note.key not in live}
    cluster.damage.clear(
        [note for note in notes if note.key in gone or (note.key in looked_at and note.key not in bad)]
    )
    cluster.damage.add(table_id, [(live[key], damage) for key, damage in bad.items() if key in live])


class _Looked(NamedTuple):
    """What was found where damage was looked for, and what has become of it.

    `checked`: how many files were read for it. `unlisted`: the replicas that could not be listed, with what their
    storage said. `unread`: the copies that could not be read, so may be whole.
    """

    damaged: list[DamagedFile]
    checked: int
    unlisted: dict[str, str]
    unread: set[tuple[VolumeId, str]]


def _heal(
    view: ReplicaView,
    check_bytes: bool,
    dry_run: bool,
    checkers: Workers | None,
    noted: Collection[tuple[VolumeId, str]],
) -> _Looked:
    """Find damaged files, and heal them by the same file.

    Also those of ranges in transition: nothing is streamed from a damaged file, so an operation may be waiting for it.
    Copies that were `noted` are read in any case.
    """
    stored = {
        volume: [ExpectedFile(file, snapshot.address) for file in _of_ranges(view, volume)]
        for volume, snapshot in view.all_snapshots.items()
    }
    found, unlisted = _listed(view, stored)
    bad = {key for key, (_, damage) in found.items() if damage}
    unread: set[tuple[VolumeId, str]] = set()
    checked = 0
    everything = [
        one
        for files in stored.values()
        for one in files
        if _key(one) not in bad and (check_bytes or _key(one) in noted)
    ]
    if everything:
        results = check_files(everything, checkers)
        checked = len(results)
        by_name: dict[tuple[str, int], list[tuple[ExpectedFile, Checked]]] = defaultdict(list)
        for one, result in zip(everything, results, strict=True):
            by_name[one.file.file_id, one.file.size].append((one, result))
            if result.damage:
                found[_key(one)] = (one, result.damage)
            if result.unread:
                unread.add(_key(one))
        for copies in by_name.values():
            found |= {_key(copies[number][0]): (copies[number][0], why) for number, why in outvoted(copies).items()}
    damaged = []
    for one, damage in sorted(found.values(), key=lambda item: _key(item[0])):
        place = view.place(one.address.volume_id)
        if dry_run:
            damaged.append(DamagedFile(place, one.address.volume_id, one.file.path, damage, False))
            continue
        holders = [
            other.address
            for other in (candidate for files in stored.values() for candidate in files)
            if (other.file.file_id, other.file.size) == (one.file.file_id, one.file.size) and _key(other) not in found
        ]
        obstacle = heal(one, holders)
        damaged.append(DamagedFile(place, one.address.volume_id, one.file.path, damage, obstacle is None, obstacle))
    return _Looked(damaged, checked, unlisted, unread)


def _listed(
    view: ReplicaView, stored: Mapping[VolumeId, Sequence[ExpectedFile]]
) -> tuple[dict[tuple[VolumeId, str], _Damage], dict[str, str]]:
    """Live files that a listing of their replica does not show whole; and the replicas that could not be listed."""
    unlisted: dict[str, str] = {}

    def attempt(volume: VolumeId) -> dict[str, str]:
        try:
            return torn_or_missing(view.all_snapshots[volume].address, [one.file for one in stored[volume]])
        except StorageUnavailable as error:
            logger.warning("the files of %s could not be listed: %s", view.place(volume), error)
            unlisted[view.place(volume)] = f"its files could not be listed: {error}"
            return {}

    volumes = sorted(stored)
    damage = dict(zip(volumes, ThreadWorkers(THREADS).run(attempt, volumes), strict=True))
    found = {
        _key(one): (one, damage[volume][one.file.path])
        for volume, files in stored.items()
        for one in files
        if one.file.path in damage[volume]
    }
    return found, unlisted


_Damage = tuple[ExpectedFile, str]


def _key(stored: ExpectedFile) -> tuple[VolumeId, str]:
    return stored.address.volume_id, stored.file.path


def _of_ranges(view: ReplicaView, volume: VolumeId) -> list[DataFile]:
    """The live files of a replica that have to do with the ranges that it has, or is getting or giving away."""
    files: dict[str, DataFile] = {}
    for range_ in (*view.ranges, *view.transition):
        if volume in range_.replicas:
            files |= {file.file_id: file for file in view.all_snapshots[volume].within(range_.low, range_.high)}
    return list(files.values())
