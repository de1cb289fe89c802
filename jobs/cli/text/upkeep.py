"""How repair and compaction look."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from epochlake.jobs.printing import bold, filled, plural, seconds, size, table
from rich.console import RenderableType
from rich.text import Text

if TYPE_CHECKING:
    from epochlake.jobs.upkeep.compaction import CompactionReport, CostlyRange
    from epochlake.jobs.upkeep.repair import RepairReport

COSTLY_SHOWN = 12


def repaired(report: RepairReport) -> list[RenderableType]:
    files = sum(replica.files for replica in report.replicas)
    copied = sum(replica.size for replica in report.replicas)
    done = "would be copied" if report.dry_run else "copied"
    head = bold(report.table).append(
        f" at epoch {report.epoch}: {report.differing:,} of {plural(report.ranges, 'range')} differed, "
        f"{plural(files, 'file')} {done}, {size(copied)}",
        style="not bold",
    )
    parts: list[RenderableType] = [head]
    if report.checked_files:
        parts.append(Text(f"{plural(report.checked_files, 'file')} checked", style="bright_black"))
    shown = [one for one in report.replicas if one.files or one.removed or one.obstacle]
    if shown:
        made = table("replica", "files", "size", "removed", "", right=["files", "size", "removed"], wide=[""])
        rows = ((r.replica, r.files, size(r.size), r.removed, Text(r.obstacle or "", style="red")) for r in shown)
        parts += [Text(), filled(made, rows)]
    if report.damaged:
        made = table("replica", "damage", "", wide=["damage"])
        damaged = ((d.replica, f"{d.path}: {d.damage}", _healed(d.healed, d.obstacle)) for d in report.damaged)
        parts += [Text(), bold("Damaged files"), filled(made, damaged)]
    again = "would count again" if report.dry_run else "counts again"
    parts += [Text(f"{place}: {again}; {what}", style="yellow") for place, what in report.given_up.items()]
    refused = {place: why for place, why in report.refused.items() if place not in report.given_up}
    return parts + _left_alone(report.skipped) + _silent(report.unreachable) + _silent(refused)


def compaction(report: CompactionReport) -> list[RenderableType]:
    before = sum(one.files_before for one in report.compacted)
    after = sum(one.files_after for one in report.compacted)
    done = (
        f"{plural(before, 'file')} would be put together"
        if report.dry_run
        else f"{plural(before, 'file')} became {after:,}"
    )
    head = bold(report.table).append(
        f" at epoch {report.epoch}: {len(report.compacted):,} of {plural(report.ranges, 'range')} compacted, {done}"
        if report.compacted
        else f" at epoch {report.epoch}: none of {plural(report.ranges, 'range')} "
        + ("was compacted" if report.skipped else "is worth compacting"),
        style="not bold",
    )
    parts: list[RenderableType] = [head]
    if report.finished or report.voided:
        left = f"of earlier compactions {report.finished:,} merged files were finished, {report.voided:,} given up"
        parts.append(Text(left, style="bright_black"))
    if report.tombstones_kept:
        parts.append(Text(f"deletes are kept: {report.tombstones_kept}", style="yellow"))
    if report.compacted:
        numbers = ["files", "after", "size", "after ", "reads"]
        made = table("range", *numbers, "why", right=numbers, wide=["why"])
        rows = (
            (
                one.label,
                one.files_before,
                None if report.dry_run else one.files_after,
                size(one.bytes_before),
                None if report.dry_run else size(one.bytes_after),
                f"{one.times:.1f} ×",
                one.reason,
            )
            for one in report.compacted
        )
        parts += [Text(), filled(made, rows)]
    parts += _costly(report.costly)
    if report.left:
        left = f"{plural(report.left, 'range')} of {size(report.left_bytes)} left for the next time: the budget is used"
        parts += [Text(), Text(left, style="yellow")]
    missing = {f"{one.label} on {place}": why for one in report.compacted for place, why in one.missing.items()}
    return parts + _left_alone(report.skipped) + _silent(report.unreachable | missing)


def _costly(ranges: Sequence[CostlyRange]) -> list[RenderableType]:
    """The ranges of which reads could do least with, the worst first."""
    if not ranges:
        return []
    now = time.time()
    numbers = ["files", "size", "reads"]
    made = table("range", *numbers, "worth it", right=numbers, wide=["worth it"])
    worst = sorted(ranges, key=lambda one: (one.best.work - one.cost.work, one.unit))[:COSTLY_SHOWN]
    rows = (
        (
            one.label,
            one.cost.files,
            size(one.cost.bytes),
            f"{one.times:.1f} ×",
            "with more files" if one.due_at is None else f"in {seconds(max(0.0, one.due_at / 1e6 - now))} of rest",
        )
        for one in worst
    )
    head = bold("Left as they are: not worth it yet")
    more = len(ranges) - len(worst)
    said = [Text(f"and {plural(more, 'range')} more: see --output json", style="bright_black")] if more else []
    return [Text(), head, filled(made, rows), *said]


def _healed(healed: bool, obstacle: str | None) -> Text:
    return Text("healed", style="green") if healed else Text(obstacle or "not healed", style="red")


def _left_alone(skipped: Iterable[Any]) -> list[RenderableType]:
    return [Text(f"left alone: {plural(len(one.units), 'range')}, {one.reason}", style="yellow") for one in skipped]


def _silent(replicas: dict[str, str]) -> list[RenderableType]:
    return [Text(f"{place}: {why}", style="red") for place, why in replicas.items()]
