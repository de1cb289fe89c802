"""The epochs of a demo as a timeline: for each stretch of time what was written, and what changed in the cluster.

A stretch is a write, or what lies between two writes; the log says when each epoch was committed. So an
epoch that stands beside a batch was committed while that batch was being written, and the timeline is the proof.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

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
from epochlake.placement.tablets.transitions import OUTCOME_NEW, Stage

MICROSECONDS = 1_000_000


class Stretch(msgspec.Struct, frozen=True):
    """A stretch of time, in seconds since the start; `epochs` that were committed in it, first and last.

    `batch` is the number of the one that was being written, `pipeline` what the pipeline did, for people.
    """

    since: float
    until: float
    epochs: tuple[int, int] | None
    batch: int | None
    pipeline: str
    cluster: tuple[str, ...]


class Arrivals(msgspec.Struct, frozen=True):
    """Tablets that arrived on a node by the epochs of their transitions; so many of those fell into a write."""

    arrived: int
    epochs: int
    while_writing: int


def timeline(entries: Sequence[Entry], story: Story, metadata: ClusterMetadata) -> list[Stretch]:
    """The stretches, in order; those between two writes only where something happened. `metadata` gives names."""
    made = []
    lost = {node for moment in story.moments for node in moment.lost}
    tracked = _Tracked(metadata)
    for since, until, write in _stretches(story):
        inside = [entry for entry in entries if since <= entry.committed_at / MICROSECONDS < until]
        summary = _Summary(metadata, tracked)
        for entry in inside:
            event = entry.decode()
            summary.add(event)
            tracked.follow(event)
        deeds = [deed for deed in story.deeds if since <= deed.at < until and deed.node in lost]
        reads = [read for read in story.reads if since <= read.started < until]
        if not inside and not deeds and write is None:
            continue
        made.append(
            Stretch(
                since=round(since - story.started, 3),
                until=round(until - story.started, 3),
                epochs=(inside[0].epoch, inside[-1].epoch) if inside else None,
                batch=write.batch if write is not None else None,
                pipeline=_batch(write) if write is not None else _counts(reads),
                cluster=(*(deed.what for deed in deeds), *summary.lines()),
            )
        )
    return made


def arrivals(
    entries: Sequence[Entry], writes: Sequence[tuple[float, float]], metadata: ClusterMetadata
) -> dict[str, Arrivals]:
    """What arrived on each node, by the log; `writes` went on from and until these times, in seconds since 1970."""
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
    """What a stretch of epochs has changed, in few words, in the order in which it began."""

    def __init__(self, metadata: ClusterMetadata, tracked: _Tracked) -> None:
        self._metadata = metadata
        self._tracked = tracked
        self._lines: dict[str, Callable[[], str]] = {}
        self._asked: dict[str, str] = {}
        self._joined: list[str] = []
        self._tablets: dict[str, Counter[str]] = defaultdict(Counter)
        self._steps = 0

    def add(self, event: Event) -> None:
        directory = self._metadata.directory
        match event:
            case RegisterNode(name=name, rack=rack, replaces=None):
                self._asked[name] = f"{name} ({rack})"
                self._lines["nodes"] = self._nodes
            case RegisterNode(name=name, rack=rack, replaces=int(replaced)):
                self._tell(f"{name} ({rack}) is to replace {directory.nodes[replaced].name}")
            case StartRequest(request_id=request_id):
                node = directory.nodes[self._metadata.requests[request_id].node_id]
                if node.replaces is not None:
                    self._tell(f"{directory.nodes[node.replaces].name} has left")
            case FinishRequest(request_id=request_id):
                node = directory.nodes[self._metadata.requests[request_id].node_id]
                if node.replaces is None:
                    self._joined.append(self._asked.pop(node.name, node.name))
                    self._lines["nodes"] = self._nodes
                else:
                    self._tell(f"{node.name} is rebuilt")
            case StartTransitions():
                self._count(event, lambda key: "set out")
            case AdvanceTransitions(changes=changes):
                self._steps += len(changes)
            case FinishTransitions():
                self._count(event, lambda key: "arrive" if self._tracked.succeeds(key) else "go back")
            case CreateTable(table=table, tablet_count=count):
                self._tell(f"table {table.full_name} of {count} tablets")
            case Initialise() | CreateKeyspace():
                pass
            case _:
                self._tell(event.summary())

    def lines(self) -> tuple[str, ...]:
        if not self._lines and self._steps:
            return (f"{self._steps} stages of tablets",)
        return tuple(line() for line in self._lines.values())

    def _tell(self, text: str) -> None:
        self._lines[text] = lambda: text

    def _count(self, event: Event, what: Callable[[TabletKey], str]) -> None:
        for key in self._tracked.keys_of(event):
            node = self._tracked.target_of(key, event)
            self._tablets[node][what(key)] += 1
            self._lines[f"tablets to {node}"] = lambda node=node: self._moves(node)  # type: ignore[misc]

    def _nodes(self) -> str:
        asked = list(self._asked.values())
        parts = [f"{', '.join(asked)} {'asks' if len(asked) == 1 else 'ask'} to join"] if asked else []
        if self._joined:
            parts.append(f"{', '.join(self._joined)} {'joins' if len(self._joined) == 1 else 'join'}")
        return ", ".join(parts)

    def _moves(self, node: str) -> str:
        return f"tablets to {node}: " + ", ".join(f"{count} {what}" for what, count in self._tablets[node].items())


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
    return f"{write.name}: {write.rows:,} rows, {write.seconds:.1f} s{rounds}{missing}"


def _counts(reads: Sequence[Read]) -> str:
    if not reads:
        return ""
    return f"counted{f' {len(reads)}×' if len(reads) > 1 else ''}: {reads[-1].rows:,} rows"
