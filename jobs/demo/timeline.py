"""The epochs of a demo as a timeline: for each stretch of time what was written, and what changed in the cluster.

The one idea: a stretch is a write, or what lies between two writes; the log says when each epoch was committed. So an
epoch that stands beside a batch was committed while that batch was being written, and the timeline is the proof.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
from epochlake.jobs.demo.story import Read, Story, Write
from epochlake.metastore.log.entry import Entry
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import (
    AdvanceTransitions,
    CreateKeyspace,
    CreateTable,
    Event,
    FinishRequest,
    FinishTransitions,
    Initialise,
    RegisterNode,
    StartRequest,
    StartTransitions,
)
from epochlake.metastore.metadata.model import TabletKey
from epochlake.placement.transitions import OUTCOME_NEW, Stage

MICROSECONDS = 1_000_000


class Stretch(msgspec.Struct, frozen=True):
    """A stretch of time, in seconds since the start; `epochs` that were committed in it, first and last."""

    since: float
    until: float
    epochs: tuple[int, int] | None
    writing: str | None
    cluster: tuple[str, ...]


class Arrivals(msgspec.Struct, frozen=True):
    """Tablets that arrived on a node by the epochs of their transitions; so many of those fell into a write."""

    arrived: int
    epochs: int
    while_writing: int


def timeline(entries: Sequence[Entry], story: Story, metadata: ClusterMetadata) -> list[Stretch]:
    """The stretches, in order; those between two writes only where something happened. `metadata` gives names."""
    made = []
    tracked = _Tracked(metadata)
    for since, until, write in _stretches(story):
        inside = [entry for entry in entries if since <= entry.committed_at / MICROSECONDS < until]
        summary = _Summary(metadata, tracked)
        for entry in inside:
            event = entry.decode()
            summary.add(event)
            tracked.follow(event)
        deeds = [deed for deed in story.deeds if since <= deed.at < until and deed.epoch is None]
        reads = [read for read in story.reads if since <= read.started < until]
        if not inside and not deeds and write is None:
            continue
        made.append(
            Stretch(
                since=round(since - story.started, 3),
                until=round(until - story.started, 3),
                epochs=(inside[0].epoch, inside[-1].epoch) if inside else None,
                writing=_batch(write) if write is not None else _counts(reads),
                cluster=(*(deed.what for deed in deeds), *summary.lines()),
            )
        )
    return made


def arrivals(entries: Sequence[Entry], story: Story, metadata: ClusterMetadata) -> dict[str, Arrivals]:
    """What arrived on each node, by the log."""
    writes = [(write.started, write.ended) for write in story.writes]
    arrived: Counter[str] = Counter()
    epochs: dict[str, set[int]] = {}
    during: dict[str, set[int]] = {}
    tracked = _Tracked(metadata)
    for entry in entries:
        event = entry.decode()
        at = entry.committed_at / MICROSECONDS
        for key in tracked.keys_of(event):
            node = tracked.target_of(key, event)
            epochs.setdefault(node, set()).add(entry.epoch)
            if any(since <= at <= until for since, until in writes):
                during.setdefault(node, set()).add(entry.epoch)
            if isinstance(event, FinishTransitions) and tracked.succeeds(key):
                arrived[node] += 1
        tracked.follow(event)
    return {node: Arrivals(arrived[node], len(found), len(during.get(node, ()))) for node, found in epochs.items()}


class _Tracked:
    """Follows the transitions through the log: where each goes and how far it is."""

    def __init__(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata
        self._target: dict[TabletKey, str] = {}
        self._stage: dict[TabletKey, Stage] = {}

    def keys_of(self, event: Event) -> list[TabletKey]:
        match event:
            case StartTransitions(transitions=new):
                return [(one.table_id, one.tablet) for one in new]
            case AdvanceTransitions(changes=changes):
                return [(one.table_id, one.tablet) for one in changes]
            case FinishTransitions(tablets=keys):
                return list(keys)
        return []

    def follow(self, event: Event) -> None:
        match event:
            case StartTransitions(transitions=new):
                for one in new:
                    key = (one.table_id, one.tablet)
                    self._target[key] = self._metadata.directory.node_of_volume[one.pending].name
            case AdvanceTransitions(changes=changes):
                for change in changes:
                    self._stage[(change.table_id, change.tablet)] = change.to_stage

    def target_of(self, key: TabletKey, event: Event) -> str:
        if isinstance(event, StartTransitions):
            self.follow(event)
        return self._target[key]

    def succeeds(self, key: TabletKey) -> bool:
        return self._stage.get(key) in OUTCOME_NEW


class _Summary:
    """What a stretch of epochs has changed, in few words."""

    def __init__(self, metadata: ClusterMetadata, tracked: _Tracked) -> None:
        self._metadata = metadata
        self._tracked = tracked
        self._asked: dict[str, str] = {}
        self._others: list[str] = []
        self._set_out: Counter[str] = Counter()
        self._arrived: Counter[str] = Counter()
        self._reverted: Counter[str] = Counter()
        self._advanced = 0

    def add(self, event: Event) -> None:
        directory = self._metadata.directory
        match event:
            case Initialise(name=name):
                self._others.append(f"cluster {name} begins")
            case RegisterNode(name=name, rack=rack, replaces=None):
                self._asked[name] = f"{name} ({rack})"
            case RegisterNode(name=name, rack=rack, replaces=int(replaced)):
                self._others.append(f"{name} ({rack}) is to replace {directory.nodes[replaced].name}")
            case CreateKeyspace():
                pass
            case CreateTable(table=table, tablet_count=count):
                self._others.append(f"table {table.full_name} of {count} tablets")
            case StartRequest(request_id=request_id):
                node = directory.nodes[self._metadata.requests[request_id].node_id]
                if node.replaces is not None:
                    self._others.append(f"{directory.nodes[node.replaces].name} has left")
            case FinishRequest(request_id=request_id):
                node = directory.nodes[self._metadata.requests[request_id].node_id]
                named = self._asked.pop(node.name, node.name)
                self._others.append(f"{named} is rebuilt" if node.replaces is not None else f"{named} joins")
            case StartTransitions():
                for key in self._tracked.keys_of(event):
                    self._set_out[self._tracked.target_of(key, event)] += 1
            case AdvanceTransitions(changes=changes):
                self._advanced += len(changes)
            case FinishTransitions():
                for key in self._tracked.keys_of(event):
                    ended = self._arrived if self._tracked.succeeds(key) else self._reverted
                    ended[self._tracked.target_of(key, event)] += 1
            case _:
                self._others.append(event.summary())

    def lines(self) -> list[str]:
        lines = [*self._others, *(f"{asked} asks to join" for asked in self._asked.values())]
        for node in {**self._set_out, **self._arrived, **self._reverted}:
            counts = [
                f"{number} {how}"
                for number, how in (
                    (self._set_out[node], "set out"),
                    (self._arrived[node], "arrive"),
                    (self._reverted[node], "go back"),
                )
                if number
            ]
            lines.append(f"tablets to {node}: {', '.join(counts)}")
        return lines or ([f"{self._advanced} tablet stages"] if self._advanced else [])


def _stretches(story: Story) -> Iterator[tuple[float, float, Write | None]]:
    at = story.started
    for write in story.writes:
        yield at, write.started, None
        yield write.started, write.ended, write
        at = write.ended
    yield at, story.ended, None


def _batch(write: Write) -> str:
    rounds = f", planned {write.rounds}×" if write.rounds > 1 else ""
    missing = f", without {', '.join(name.partition('/')[0] for name in write.missing)}" if write.missing else ""
    return f"{write.name}: {write.rows:,} rows in {write.seconds:.1f} s{rounds}{missing}"


def _counts(reads: Sequence[Read]) -> str | None:
    if not reads:
        return None
    return f"{reads[-1].rows:,} rows{f', {len(reads)} times' if len(reads) > 1 else ''} counted"
