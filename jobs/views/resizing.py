"""What would be split and merged now, and why; the coordinator decides for itself."""

from __future__ import annotations

import msgspec
from epochlake.jobs.coordinator.loads import measure_loads
from epochlake.metastore.configuration import TabletSettings
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import Table
from epochlake.metastore.planning.balancing import Loads
from epochlake.metastore.planning.resizing import planned_resizes
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.showing import Shown


class TableResize(msgspec.Struct, frozen=True):
    """A table with tablets: how many it has and should have, and what is decided about it.

    `bytes`: mean size of one replica of a tablet, None when none could be measured; `target_bytes` what is aimed at.
    `in_force`: the decision of now (`none`, `split`, `merge`) with its number `resize_seq_number`; `decision`: what it
    should be from now on, and `changes` whether that is another one. `apart`: pairs of tablets that are not on the same
    volumes yet, which is what a merge waits for.
    """

    table: str
    tablets: int
    wanted_tablets: int
    bytes: int | None
    target_bytes: int
    min_count: int
    max_count: int | None
    in_force: str
    resize_seq_number: int
    decision: str
    changes: bool
    apart: int
    reason: str


class ResizePlan(Shown, msgspec.Struct, frozen=True):
    """The decisions for all tables, by name. `resizing`: whether the coordinator carries any out now, else `paused`
    says why not. `unmeasured`: volumes that do not answer.
    """

    epoch: int
    resizing: bool
    paused: str
    tables: tuple[TableResize, ...]
    unmeasured: tuple[str, ...]


def plan_resize(
    storage: Storage, metadata: ClusterMetadata, settings: TabletSettings, loads: Loads | None = None
) -> ResizePlan:
    """Measure all replica tables, unless `loads` are given, and decide for every table."""
    loads = measure_loads(storage, metadata) if loads is None else loads
    found = []
    for planned in planned_resizes(metadata, loads, settings):
        table, tablet_map = metadata.schema.tables[planned.table_id], metadata.tablets.maps[planned.table_id]
        found.append(
            TableResize(
                table=table.full_name,
                tablets=planned.count,
                wanted_tablets=planned.decision.wanted,
                bytes=None if planned.bytes is None else round(planned.bytes),
                target_bytes=_target(table, settings),
                min_count=table.options.min_count,
                max_count=table.options.max_count,
                in_force=str(planned.in_force),
                resize_seq_number=tablet_map.resize_seq_number,
                decision=str(planned.decision.resize),
                changes=planned.decision.changes,
                apart=len(tablet_map.siblings_apart()) if tablet_map.resize_type == "merge" else 0,
                reason=planned.decision.why,
            )
        )
    paused = _paused(metadata)
    return ResizePlan(
        epoch=metadata.epoch,
        resizing=not paused,
        paused=paused,
        tables=tuple(sorted(found, key=lambda one: one.table)),
        unmeasured=tuple(metadata.describe(volume) for volume in sorted(loads.unmeasured)),
    )


def _target(table: Table, settings: TabletSettings) -> int:
    return table.options.target_bytes or settings.target_bytes


def _paused(metadata: ClusterMetadata) -> str:
    """Why nothing is split or merged now; empty when it is."""
    if not metadata.switches.balancing:
        return f"balancing is off{f' ({why})' if (why := metadata.switches.balancing_reason) else ''}"
    waiting = list(metadata.open_requests())
    return f"{len(waiting)} topology request(s) come first" if waiting else ""
