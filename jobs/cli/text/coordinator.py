"""How a running coordinator looks, and what it reports at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from epochlake.jobs.printing import bold, plural, size
from epochlake.jobs.views.operations import OperationStatus
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

if TYPE_CHECKING:
    from epochlake.jobs.coordinator.coordinator import CoordinatorReport
    from epochlake.jobs.coordinator.coordinator import Progress as Step

LOOK_SECONDS = 2.0
"""How often at most the replica tables are asked how far operations on the ring are."""


@contextmanager
def live(console: Console, look: Callable[[], Sequence[OperationStatus]]) -> Iterator[Callable[[Step], None] | None]:
    """Progress bars on a terminal, nothing anywhere else; yields who is to be told of progress.

    One bar is that of the tablets; each operation on the ring that `look` finds has one of its own.
    """
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[amount]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[doing]}"),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        tablets = bars.add_task("", total=None, amount="", doing="looking")
        operations: dict[str, TaskID] = {}
        looked = 0.0

        def told(step: Step) -> None:
            nonlocal looked
            done, total = step.tablets_done, step.tablets_done + step.tablets_left
            doing = ", ".join(f"{count} {stage}" for stage, count in step.stages.items())
            bars.update(
                tablets,
                description=f"epoch {step.epoch}",
                total=total or None,
                completed=done,
                amount=f"{done:,} of {plural(total, 'tablet')}, {size(step.bytes_streamed)} copied",
                doing=doing or (f"waits: {step.blocked[0]}" if step.blocked else ""),
            )
            if time.monotonic() - looked >= LOOK_SECONDS:
                _show_operations(bars, operations, look())
                looked = time.monotonic()

        yield told


def _show_operations(bars: Progress, shown: dict[str, TaskID], found: Sequence[OperationStatus]) -> None:
    """A bar for each operation that is in flight, none for those that have ended."""
    for gone in shown.keys() - {operation.operation_id for operation in found}:
        bars.remove_task(shown.pop(gone))
    for operation in found:
        if operation.operation_id not in shown:
            shown[operation.operation_id] = bars.add_task(operation.what, total=None, amount="", doing="")
        streamed = operation.streamed
        bars.update(
            shown[operation.operation_id],
            total=streamed.bytes_total or None if streamed else None,
            completed=streamed.bytes_streamed if streamed else 0,
            amount=f"{size(streamed.bytes_streamed)} of {size(streamed.bytes_total)}" if streamed else "",
            doing="is taken back" if operation.cancelling else f"{operation.step} done",
        )


def report(done: CoordinatorReport) -> list[RenderableType]:
    epochs = done.last_epoch - done.first_epoch
    head = bold("idle" if done.idle else "stopped")
    head.append(
        f" at epoch {done.last_epoch} ({plural(epochs, 'new epoch')}, {plural(done.rounds, 'round')})", style="not bold"
    )
    facts = f"{plural(done.tablets_moved, 'tablet')} moved, {size(done.bytes_streamed)} copied"
    facts += f", {plural(done.requests_finished, 'request')} finished"
    if done.tablets_reverted:
        facts += f", {plural(done.tablets_reverted, 'tablet')} went back"
    return [head, Text(facts), *(Text(f"waits: {reason}", style="yellow") for reason in done.blocked)]
