"""What others wait for: whether it is so by now, and how it stands. Looking starts nothing and changes nothing.

Each function asks the log for its end first. Nothing is said on a guess: what too few replicas have is not so yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
from epochlake.jobs.gate.batches import Live, batch_id, decided
from epochlake.jobs.gate.planning import Planning
from epochlake.jobs.gate.writing import is_acknowledged
from epochlake.jobs.replicas.files import DataFile
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import RequestState, Table, VolumeId
from epochlake.placement.consistency import ConsistencyLevel
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.tablets.resizing import Resize

if TYPE_CHECKING:
    from epochlake.jobs.replicas.store import Store


class Awaited(msgspec.Struct, frozen=True):
    """`met`: it is so, as of `epoch`. `impossible`: it cannot become so any more. `detail` is for people."""

    met: bool
    epoch: int
    detail: str
    impossible: bool = False


def epoch_committed(cluster: Store, epoch: int) -> Awaited:
    """Whether `epoch` is in the log."""
    newest = cluster.catch_up().epoch
    return Awaited(newest >= epoch, newest, f"the log is at epoch {newest}")


def request_ended(cluster: Store, request_id: str) -> Awaited:
    """Whether what was asked under a request id is carried out. Impossible: it was cancelled, or has failed.

    A change without a coordinator's work (a new table) has ended when it is in the log. So has a request that is not in
    the metadata any more: only what is done is forgotten. What was not asked yet is waited for.
    """
    metadata = cluster.catch_up()
    request = metadata.requests.get(request_id)
    if request is None:
        epoch = cluster.follower.request_epoch(request_id)
        if epoch is None:
            return Awaited(False, metadata.epoch, f"nothing was asked under the request id {request_id!r} yet")
        return Awaited(True, metadata.epoch, f"request {request_id} was committed as epoch {epoch}")
    why = f" ({request.detail})" if request.detail else ""
    state = f"{request.state.value}, paused" if request.paused else request.state.value
    return Awaited(
        met=request.state is RequestState.DONE,
        epoch=metadata.epoch,
        detail=f"request {request_id} is {state}{why} since epoch {request.epoch}",
        impossible=request.state in (RequestState.CANCELLED, RequestState.FAILED),
    )


def cluster_settled(cluster: Store) -> Awaited:
    """Whether nothing is open and nothing moves: a coordinator would be idle."""
    metadata = cluster.catch_up()
    moving = list(_moving(metadata))
    return Awaited(not moving, metadata.epoch, f"there are {', '.join(moving)}" if moving else "nothing is in motion")


def _moving(metadata: ClusterMetadata) -> Iterator[str]:
    """What a coordinator has still to do, as its tracks see it."""
    requests = sum(1 for _ in metadata.open_requests())
    decisions = (
        sum(tablet_map.resize_type != Resize.NONE for tablet_map in metadata.tablets.maps.values())
        # As long as nothing is balanced, nobody carries them out.
        if metadata.switches.balancing
        else 0
    )
    for count, what in (
        (requests, "open request(s)"),
        (len(metadata.rings.operations), "operation(s) on the ring"),
        (len(metadata.tablets.transitions), "tablet(s) in transition"),
        (decisions, "table(s) to be split or merged"),
    ):
        if count:
            yield f"{count} {what}"


def table_written(
    cluster: Store, table: str, since: datetime, consistency: str | None = None, datacenter: str | None = None
) -> Awaited:
    """Whether rows that were written to a table at `since` or later are on enough replicas for the level.

    This is about the newest write, not about all of a load: `batch_landed` tells of one. Times are those of the
    writer's clock. Raises Rejected for an unknown table, InvalidRequest for a level or a time that cannot be meant,
    StorageUnavailable.
    """
    if since.tzinfo is None:
        raise InvalidRequest(f"{since.isoformat()} says no time zone", hint="Give a time with one")
    planning = Planning(cluster, datacenter, _nobody)
    target, level = planning.table(table), planning.level(consistency)
    planning.refuse_senseless_levels(target, level)
    opened, _ = planning.open_for_write(target)
    files = {file.file_id: file for snapshot in opened.values() for file in snapshot.all_files.values() if file.rows}
    newest_first = sorted(files.values(), key=lambda file: -file.max_written_at)
    live = Live(opened, cluster.ledger.lineage(target.table_id, newest_first))
    written = _newest_acknowledged(planning, target, level, newest_first, live)
    if written is None:
        return Awaited(False, planning.epoch, f"no rows of {target.full_name} are at {level.value}")
    at = datetime.fromtimestamp(written / 1e6, UTC)
    detail = f"the newest rows of {target.full_name} at {level.value} were written at {at.isoformat()}"
    return Awaited(at >= since, planning.epoch, detail)


def _newest_acknowledged(
    planning: Planning, table: Table, level: ConsistencyLevel, newest_first: Iterable[DataFile], live: Live
) -> int | None:
    acknowledged = (file for file in newest_first if is_acknowledged(planning, table, level, [file], live))
    found = next(acknowledged, None)
    return None if found is None else found.max_written_at


def batch_landed(
    cluster: Store, table: str, batch: str, consistency: str | None = None, datacenter: str | None = None
) -> Awaited:
    """Whether all rows of a named batch are on enough replicas for the level, by the placement of the newest epoch.

    Raises as `table_written`, and LogUnreadable where what the batch is made of cannot be read.
    """
    planning = Planning(cluster, datacenter, _nobody)
    target, level = planning.table(table), planning.level(consistency)
    planning.refuse_senseless_levels(target, level)
    asked = f"batch {batch!r} of {target.full_name}"
    decision = decided(cluster.storage, cluster.root.batches, batch_id(target.table_id, "write", batch))
    if not decision.generations:
        return Awaited(False, planning.epoch, f"{asked} has not been written yet")
    opened, failed = planning.open_for_write(target)
    files = [staged.file for staged in decision.files]
    all_live = [file for snapshot in opened.values() for file in snapshot.all_files.values()]
    live = Live(opened, cluster.ledger.lineage(target.table_id, [*all_live, *files]))
    if is_acknowledged(planning, target, level, files, live):
        return Awaited(True, planning.epoch, f"{asked} has landed at {level.value}")
    return Awaited(False, planning.epoch, f"{asked} has not landed at {level.value} yet{_silent(planning, failed)}")


def _silent(planning: Planning, failed: dict[VolumeId, str]) -> str:
    if not failed:
        return ""
    return f"; {', '.join(planning.metadata.describe(volume) for volume in sorted(failed))} does not answer"


def _nobody(_: int) -> None:
    """Who only looks is not announced."""
