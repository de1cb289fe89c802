"""A demo as pictures: what the pipeline wrote beside what changed in the cluster, the bytes that moved, the tablets."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

import msgspec
from epochlake import Cluster, InvalidRequest, pictures
from epochlake.jobs.demo.story import Story
from epochlake.jobs.pictures import style
from epochlake.jobs.pictures.timeline import Bar, Timeline, draw_timeline, timeline_of
from epochlake.metastore.following.history import entries
from epochlake.metastore.log.entry import Entry

WRITES = "batches are written"
MICROSECONDS = 1_000_000


def require_room_for(path: Path) -> None:
    """That a page can be drawn and written there, before anything is begun for it. Raises InvalidRequest."""
    style.plotly()
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise InvalidRequest(f"a page cannot be written to {path}", hint="Name a file in a directory that is there")


def write_page(path: Path, cluster: Cluster, story: Story) -> None:
    """Raises InvalidRequest where it cannot be written."""
    log = entries(cluster.log())
    drawn = draw_timeline(
        with_writes(timeline_of(log, cluster.catch_up()), log, story),
        "Flights are written while nodes join, and one is lost",
        colours={WRITES: style.COLOURS[1]},
    )
    pictures.save(path, drawn, pictures.moved_bytes(cluster), pictures.tablets(cluster), title="The demo of Epochlake")


def with_writes(timeline: Timeline, log: Sequence[Entry], story: Story) -> Timeline:
    """The timeline with a bar for each batch, in a lane of its own on top."""
    times = [entry.committed_at for entry in log]

    def epoch_at(micros: int) -> int:
        return log[max(0, bisect_right(times, micros) - 1)].epoch

    bars = []
    for write in story.writes:
        since, until = round(write.started * MICROSECONDS), round(write.ended * MICROSECONDS)
        told = f"{write.name}: {write.rows:,} rows in {write.seconds:.1f} s"
        bars.append(Bar("pipeline", WRITES, epoch_at(since), epoch_at(until), since, until, told))
    return msgspec.structs.replace(timeline, bars=(*bars, *timeline.bars))
