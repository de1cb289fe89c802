"""How a running coordinator looks, and what it reports at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from epochlake.jobs.cli.text.parts import bold, plural, size
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

if TYPE_CHECKING:
    from epochlake.jobs.coordinator.coordinator import CoordinatorReport
    from epochlake.jobs.coordinator.coordinator import Progress as Step


@contextmanager
def live(console: Console) -> Iterator[Callable[[Step], None] | None]:
    """A progress bar on a terminal, nothing anywhere else; yields who is to be told of progress."""
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("epoch {task.fields[epoch]}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("tablets"),
        TextColumn("{task.fields[streamed]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[doing]}"),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task("", total=None, epoch="-", streamed="", doing="looking")

        def told(step: Step) -> None:
            doing = ", ".join(f"{count} {stage}" for stage, count in step.stages.items())
            bars.update(
                task,
                total=step.tablets_done + step.tablets_left or None,
                completed=step.tablets_done,
                epoch=step.epoch,
                streamed=size(step.bytes_streamed),
                doing=doing or (f"waits: {step.blocked[0]}" if step.blocked else "idle"),
            )

        yield told


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
