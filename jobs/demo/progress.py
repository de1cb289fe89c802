"""What the demo says while it runs: bars on a terminal, a line for each thing that happens anywhere else; on stderr."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from epochlake.jobs.demo.story import Read, Story, Write
from epochlake.metastore.metadata.cluster import ClusterMetadata
from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.text import Text


class DemoProgress:
    """Tells people what goes on; use it in a `with`."""

    def __init__(self, console: Console, rows: int) -> None:
        self._console = console
        self._started = time.monotonic()
        self._bars = Bars(
            SpinnerColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            BarColumn(bar_width=12),
            TextColumn(
                "{task.completed:,.0f} flights, epoch {task.fields[epoch]}, {task.fields[moving]} tablets moving"
            ),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bars.add_task("", total=rows, epoch=0, moving=0)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def say(self, what: str) -> None:
        line = Text(f"{time.monotonic() - self._started:6.1f} s  ", style="bright_black")
        line.append(what, style="default")
        self._console.print(line, soft_wrap=not self._console.is_terminal)

    def wrote(self, write: Write, story: Story) -> None:
        self._bars.update(self._task, completed=story.acknowledged)
        rounds = f", planned {write.rounds} times" if write.rounds > 1 else ""
        missing = f", without {', '.join(write.missing)}" if write.missing else ""
        self.say(f"{write.name}: {write.rows:,} flights acknowledged in {write.seconds:.1f} s{rounds}{missing}")

    def counted(self, read: Read) -> None:
        if read.rows != read.expected:
            self.say(f"COUNTED {read.rows:,} rows, {read.expected:,} were acknowledged")

    def looked(self, metadata: ClusterMetadata) -> None:
        """The cluster as it is now: what is on its way?"""
        self._bars.update(self._task, epoch=metadata.epoch, moving=len(metadata.tablets.transitions))
