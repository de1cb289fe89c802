"""Healing a damaged copy by its rows, where no replica has a whole copy of the same file.

A file is a set of rows, and the same rows may lie elsewhere in other files: cut otherwise, merged, or not
merged yet. So damaged copies are looked at as if they were not there. What their replica lacks then is brought from the
others, and one commit adds that and takes the damaged copies out, once it is known that nothing goes with them.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
from epochlake.jobs.replicas.commits import commit_files
from epochlake.jobs.replicas.copying import PartCopy
from epochlake.jobs.replicas.damage import NO_GOOD_BYTES
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.intervals import FilePart, Lineage, meet, overlap, rows_are_in
from epochlake.jobs.replicas.ledger import Ledger
from epochlake.jobs.replicas.outcomes import Acknowledged, AlreadyApplied, Unreachable
from epochlake.jobs.replicas.replica import ReplicaSnapshot
from epochlake.jobs.replicas.streaming import Copier
from epochlake.jobs.upkeep.comparing import Range, compare, plan_copies
from epochlake.metastore.metadata.model import VolumeId

Key = tuple[VolumeId, str]
"""A copy of a file: on which volume, and its path in the replica table."""


class Surroundings(msgspec.Struct, frozen=True):
    """What is known of the replicas of a table: ranges at rest and in `transition`, snapshots, and what merged files
    stand for.

    `epoch`: the fence of the plan. `replaced`: what each merged file was made of.
    """

    epoch: int
    ranges: tuple[Range, ...]
    transition: tuple[Range, ...]
    snapshots: Mapping[VolumeId, ReplicaSnapshot]
    lineage: Lineage
    replaced: Lineage


def heal_by_rows(
    damaged: Collection[Key], among: Surroundings, copier: Copier, ledger: Ledger
) -> dict[Key, str | None]:
    """Bring the rows of damaged copies from other replicas, and take the copies out; for each why not, None: healed.

    Safe beside everything else, as repair is: the commit is fenced at the epoch of `among`. Safe to repeat.
    """
    compared = [compare(range_, among.snapshots, among.lineage, damaged) for range_ in among.ranges]
    copies = plan_copies(compared, among.snapshots, damaged)
    answers: dict[Key, str | None] = {}
    for volume in sorted({volume for volume, _ in damaged} & among.snapshots.keys()):
        files = [file for file in among.snapshots[volume].all_files.values() if (volume, file.path) in damaged]
        obstacles = {file.file_id: _obstacle(volume, file, damaged, among) for file in files}
        answers |= {(volume, file.path): obstacles[file.file_id] for file in files}
        curable = [file for file in files if obstacles[file.file_id] is None]
        if curable:
            reason = _replace(among, volume, curable, copies.get(volume, ()), copier, ledger)
            answers |= {(volume, file.path): reason for file in curable}
    return answers


def give_up(lost: Collection[Key], among: Surroundings, ledger: Ledger) -> dict[Key, str | None]:
    """Take copies out of their replicas whose rows nobody has; for each why not, None: it is out.

    Their files stay where they are until vacuum deletes them.
    """
    answers: dict[Key, str | None] = {}
    for volume in sorted({volume for volume, _ in lost} & among.snapshots.keys()):
        files = [file for file in among.snapshots[volume].all_files.values() if (volume, file.path) in lost]
        answers |= dict.fromkeys(
            ((volume, file.path) for file in files), _replace(among, volume, files, (), None, ledger)
        )
    return answers


def _obstacle(volume: VolumeId, file: DataFile, damaged: Collection[Key], among: Surroundings) -> str | None:
    """Why a damaged copy cannot be done without."""
    # What its replica does not own needs no other copy: it is what clean-up would cut out of the file.
    moving = [range_ for range_ in among.transition if volume in range_.replicas]
    if file.rows and any(meet((range_.low, range_.high), file.extent) for range_ in moving):
        return (
            "a part of its range is moving now: repair again when that has settled, or cancel what moves it "
            "if it waits for this"
        )
    for range_ in among.ranges:
        if volume not in range_.replicas or not meet((range_.low, range_.high), file.window):
            continue
        good: dict[str, DataFile] = {}
        for other in range_.replicas:
            if other in among.snapshots:
                found = among.snapshots[other].within(range_.low, range_.high)
                good |= {one.file_id: one for one in found if (other, one.path) not in damaged}
        if not rows_are_in(good.values(), file, range_.low, range_.high, among.lineage, among.replaced):
            return NO_GOOD_BYTES
    return None


def _replace(
    among: Surroundings,
    volume: VolumeId,
    files: Sequence[DataFile],
    copies: Iterable[PartCopy],
    copier: Copier | None,
    ledger: Ledger,
) -> str | None:
    """Copy what is lacking without `files`, and commit it in their place; why not, when that fails."""
    taken = {file.file_id for file in files}
    wanted = [piece for copy in copies for piece in _under_other_names(copy, taken)]
    if any(copy.key in taken for copy in wanted):
        return "its rows have a single token, so they cannot be stored under another name: restore it from a backup"
    copied = copier.copy(wanted) if copier is not None else None
    if copied is not None and copied.failed:
        return next(iter(copied.failed.values()))
    outcome = commit_files(
        among.snapshots[volume].address,
        copied.arrived if copied is not None else (),
        removes=files,
        epoch=among.epoch,
        app_id=f"repair-{uuid.uuid4()}",
        app_version=1,
        ledger=ledger,
    )
    if isinstance(outcome, Acknowledged | AlreadyApplied):
        return None
    return outcome.reason if isinstance(outcome, Unreachable) else "the cluster keeps moving: repair again"


def _under_other_names(copy: PartCopy, taken: Collection[str]) -> list[PartCopy]:
    """The copy, in two halves where it would lie under the name of a file that is taken out: a name is used once."""
    part = copy.part
    first, last = overlap((part.low, part.high), part.file.extent)
    if copy.key not in taken or first >= last:
        return [copy]
    middle = (first + last) // 2
    halves = FilePart(part.file, part.low, middle), FilePart(part.file, middle + 1, part.high)
    return [PartCopy(half, copy.source, copy.target) for half in halves]
