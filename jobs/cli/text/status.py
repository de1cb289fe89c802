"""The screen of `status`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain, repeat

from epochlake.jobs.cli.text.change_streams import in_short
from epochlake.jobs.cli.text.metadata import kept
from epochlake.jobs.cli.text.nodes import said_of
from epochlake.jobs.printing import bold, filled, plural, seconds, size, state, table
from epochlake.jobs.views.health import Health, TableHealth
from epochlake.jobs.views.open_requests import RequestStatus
from epochlake.jobs.views.operations import OperationStatus
from epochlake.jobs.views.status import BEHIND, JOINING, WHOLE, LogComparison, NodeStatus, Status, VolumeStatus
from epochlake.jobs.views.streamed import Streamed
from rich.console import RenderableType
from rich.text import Text

KEYSPACES_SHOWN = 4
"""So many keyspaces on the ring have a column each."""

TABLES_SHOWN = 8
"""So many tables that are not whole are named."""


def status(document: Status) -> list[RenderableType]:
    parts: list[RenderableType] = [_headline(document), *_circumstances(document), Text(), *_health(document.health)]
    parts += _backlog(document.health)
    present = [node for node in document.nodes if node.state != "left"]
    if present:
        parts += [_nodes(present), Text()]
    else:
        parts += [Text("no nodes yet: `epochlake node add NAME --datacenter … --rack … --volume …`"), Text()]
    unreachable = [(node, volume) for node in present for volume in node.volumes if volume.obstacle]
    if unreachable:
        parts.append(bold("Volumes that do not answer"))
        parts += [Text(f"  {node.name}/{volume.name}: {volume.obstacle}", style="red") for node, volume in unreachable]
        if document.threads_left_behind:
            hang = plural(document.threads_left_behind, "thread")
            parts.append(Text(f"  {hang} of this process left behind there, which end with it", style="yellow"))
        parts.append(Text())
    parts += _ring(present)
    if document.requests:
        shared = set.intersection(*(set(request.blocked_by) for request in document.requests))
        parts.append(bold("Requests"))
        for request in document.requests:
            operations = [one for one in document.operations if one.request_id == request.request_id]
            parts += _request(request, operations, shared)
        waits = "waits" if len(document.requests) == 1 else "all wait"
        parts += [Text(f"  {waits}: {obstacle}", style="yellow") for obstacle in sorted(shared)]
        parts.append(Text())
    if document.transitions:
        parts.append(bold("Tablets on their way"))
        made = table("kind", "stage", "tablets", "errors", right=["tablets"], wide=["errors"])
        rows = [(t.kind, t.stage, t.tablets, "; ".join(t.errors)) for t in document.transitions]
        parts += [filled(made, rows), *_streamed(document.streamed), Text()]
    if document.resizes:
        parts.append(bold("Tables whose tablets change"))
        parts += [
            Text(f"  {one.resize} of the {plural(one.tablets, 'tablet')} of {one.table}, decided by epoch {one.epoch}")
            for one in document.resizes
        ]
        parts.append(Text())
    if document.change_streams:
        parts += [bold("Changes that are kept"), *in_short(document.change_streams), Text()]
    if not (document.requests or document.transitions or document.resizes) and present:
        parts.append(Text("Nothing is under way." if document.now else "Nothing was under way.", style="green"))
    return [*parts[:-1], parts[-1]] if str(parts[-1]) else parts[:-1]


def _headline(document: Status) -> Text:
    line = Text()
    line.append(document.cluster, style="bold")
    line.append(" at epoch ")
    line.append(str(document.epoch), style="bold green" if document.now else "bold yellow")
    line.append("" if document.now else " (the past)")
    line.append(
        f"   {plural(document.keyspaces, 'keyspace')}, {plural(document.tables, 'table')}, "
        f"{plural(document.tablets, 'tablet')}"
    )
    return line


def _circumstances(document: Status) -> list[RenderableType]:
    lines: list[RenderableType] = [Text(f"root         {document.root}", style="bright_black")]
    coordinator = document.coordinator
    if coordinator.zookeeper != "not-asked":
        who = coordinator.leader or "nobody"
        said = {"answers": "", "stopped": " (ZooKeeper is not running)", "away": " known (ZooKeeper is away)"}
        style = "" if coordinator.leader else "yellow" if coordinator.zookeeper == "away" else "bright_black"
        if document.health is not None:
            lines.append(_verdict(document.health))
        lines += _log(document.log)
        lines.append(Text(f"coordinator  {who}{said[coordinator.zookeeper]}", style=style))
        if document.health is not None and document.health.zookeeper is not None:
            lines.append(Text(f"zookeeper    {document.health.zookeeper}", style="bright_black"))
        if coordinator.ensemble is not None:
            lines.append(Text(f"ensemble     {kept(coordinator.ensemble)}", style="bright_black"))
    switches = document.switches
    if not switches.changes:
        why = switches.changes_reason or "no reason given"
        lines.append(Text(f"changes      paused: {why}", style="bold yellow"))
    for one in document.replications:
        wanted = ", ".join(f"{name}={factor}" for name, factor in one.replication.items())
        left = plural(one.tablets_left, "tablet")
        lines.append(Text(f"replication  {one.keyspace} is to have {wanted}: {left} left", style="yellow"))
    if document.pinned_tablets:
        lines.append(Text(f"pinned       {plural(document.pinned_tablets, 'tablet')}"))
    if not switches.balancing:
        why = switches.balancing_reason or "no reason given"
        lines.append(Text(f"balancing    paused: {why}", style="yellow"))
    return lines


def _log(log: LogComparison | None) -> list[RenderableType]:
    """Said only when something is to be said."""
    if log is None or log.state == WHOLE:
        return []
    if log.state == BEHIND:
        return [Text(f"log          {log.detail}", style="bold red")]
    return [Text("log          not compared with ZooKeeper, which knows its newest epoch", style="bright_black")]


def _verdict(health: Health) -> Text:
    """The health in one line."""
    if not health.tables:
        return Text("health       no tables yet", style="bright_black")
    if not health.available:
        few = plural(len(health.unavailable), "table")
        return Text(f"health       {few} cannot be had at {health.consistency}", style="bold red")
    lacking = sum(bool(_troubles(found)) for found in health.tables)
    if lacking:
        said = f"every table can be had at {health.consistency}, {plural(lacking, 'table')} with replicas in trouble"
        return Text(f"health       {said}", style="yellow")
    return Text(f"health       every table can be read and written at {health.consistency}", style="green")


def _health(health: Health | None) -> list[RenderableType]:
    """The tables that are not whole, those that cannot be had at the configured level first."""
    if health is None:
        return []
    tables = [found for found in health.tables if found.table in health.unavailable or _troubles(found)]
    if not tables:
        return []
    tables.sort(key=lambda found: (found.table not in health.unavailable, found.table))
    parts: list[RenderableType] = [bold("Tables that are not whole")]
    for found in tables[:TABLES_SHOWN]:
        style = "red" if found.table in health.unavailable else "yellow"
        parts.append(Text(f"  {found.table}", style=f"bold {style}"))
        parts.append(Text(f"    reads   {_levels(found.reads, found.local_reads)}"))
        parts.append(Text(f"    writes  {_levels(found.writes, found.local_writes)}"))
        parts += [Text(f"    {trouble}", style=style) for trouble in _troubles(found)]
    if len(tables) > TABLES_SHOWN:
        parts.append(Text(f"  and {len(tables) - TABLES_SHOWN:,} more: see --output json", style="bright_black"))
    return [*parts, Text()]


def _backlog(health: Health | None) -> list[RenderableType]:
    """The tables of which readers pay for what is not compacted, the worst first."""
    tables = [(found.table, found.backlog) for found in (health.tables if health else ()) if found.backlog is not None]
    if not tables:
        return []
    tables.sort(key=lambda one: (-one[1].times, one[0]))
    parts: list[RenderableType] = [bold("To be compacted")]
    for name, found in tables[:TABLES_SHOWN]:
        due = f"{plural(found.due, 'range')} of {size(found.due_bytes)} now" if found.due else ""
        due += f" ({found.expired:,} for expired rows)" if found.expired else ""
        waiting = f"{plural(found.waiting, 'range')} when nothing is written to them" if found.waiting else ""
        said = ", ".join(filter(None, (due, waiting)))
        parts.append(Text(f"  {name}: reads take {found.times:.1f} times as long as afterwards; {said}"))
    if len(tables) > TABLES_SHOWN:
        parts.append(Text(f"  and {len(tables) - TABLES_SHOWN:,} more: see --output json", style="bright_black"))
    return [*parts, Text()]


def _levels(levels: Sequence[str], local: Sequence[str]) -> str:
    """The levels that can be had; LOCAL_QUORUM with its datacenters where it cannot be had in all of them."""
    named = list(levels)
    if "LOCAL_QUORUM" not in named and local:
        named.append(f"LOCAL_QUORUM in {', '.join(local)}")
    return ", ".join(named) or "at no level"


def _troubles(found: TableHealth) -> list[str]:
    said = [f"{replica.place} cannot be used" for replica in found.obstacles]
    if found.damaged:
        copies = f"{found.damaged:,} damaged {'copy' if found.damaged == 1 else 'copies'} of files"
        said.append(f"{copies}: `epochlake repair {found.table}`")
    if found.lacks is None:
        return [*said, "its replicas were not compared: the ledger of compactions cannot be read"]
    return said + [
        f"{lack.place} lacks {plural(lack.files, 'file')} in {plural(lack.ranges, 'range')}: "
        f"`epochlake repair {found.table}`"
        for lack in found.lacks
    ]


def _nodes(nodes: Sequence[NodeStatus]) -> RenderableType:
    made = table(
        "node",
        "state",
        "place",
        "volume",
        "tablets",
        "used",
        "capacity",
        "",
        right=["tablets", "used", "capacity"],
        wide=[""],
    )
    rows = [
        (
            node.name if first else "",
            state(node.state) if first else "",
            f"{node.datacenter}/{node.rack}" if first else "",
            volume.name,
            f"{volume.tablets:,}",
            size(volume.bytes),
            size(volume.capacity),
            _remark(node, volume) if first or volume.obstacle else "",
        )
        for node in nodes
        for first, volume in zip(chain([True], repeat(False)), node.volumes, strict=False)
    ]
    return filled(made, rows)


def _remark(node: NodeStatus, volume: VolumeStatus) -> Text:
    if volume.obstacle:
        return Text("unreachable", style="bold red")
    if node.state == JOINING:
        asks = f"asks to replace {node.replaces}" if node.replaces else "asks to join"
        return Text(asks, style="cyan")
    return Text(said_of(node), style="yellow" if node.maintenance else "bright_black")


def _ring(nodes: Sequence[NodeStatus]) -> list[RenderableType]:
    """Who owns how much of the keyspaces on the ring; nothing where there is none."""
    keyspaces = sorted({name for node in nodes for name in node.owns})
    if not keyspaces:
        return []
    shown = keyspaces[:KEYSPACES_SHOWN]
    made = table("node", "tokens", *shown, right=["tokens", *shown])
    rows = [(node.name, node.tokens, *(f"{node.owns.get(name, 0):.1%}" for name in shown)) for node in nodes]
    parts: list[RenderableType] = [bold("The ring"), filled(made, rows)]
    if len(keyspaces) > len(shown):
        parts.append(Text(f"and {len(keyspaces) - len(shown):,} more keyspaces: see --output json", "bright_black"))
    return [*parts, Text()]


def _request(
    request: RequestStatus, operations: Sequence[OperationStatus], told: Collection[str]
) -> list[RenderableType]:
    line = Text("  ")
    about = f"replication of {request.keyspace}" if request.keyspace else f"{request.kind} {request.node}"
    line.append(about, style="bold")
    line.append(f"  {request.state} since epoch {request.started_epoch or request.requested_epoch}")
    if request.paused:
        line.append(", paused", style="yellow")
    if request.tablets_left is not None and request.tablets_total:
        done = request.tablets_total - request.tablets_left
        line.append(f", {done:,} of {plural(request.tablets_total, 'tablet')} moved")
    elif request.tablets_left is not None:
        line.append(f", {plural(request.tablets_left, 'tablet')} to move")
    if request.seconds_left is not None:
        line.append(f", about {seconds(request.seconds_left)} left")
    lines: list[RenderableType] = [line]
    for operation in operations:
        lines += _operation(operation)
    if request.reason:
        lines.append(Text(f"    reason  {request.reason}", style="bright_black"))
    lines.append(Text(f"    request {request.request_id}", style="bright_black"))
    own = [obstacle for obstacle in request.blocked_by if obstacle not in told]
    return lines + [Text(f"    waits: {obstacle}", style="yellow") for obstacle in own]


def _operation(operation: OperationStatus) -> list[RenderableType]:
    onward = "is being taken back" if operation.cancelling else f"{operation.next_step} comes next"
    done = (
        f"{operation.step} done at epoch {operation.epoch}" if operation.step else f"begun by epoch {operation.epoch}"
    )
    where = ", ".join(operation.keyspaces) or "no keyspace"
    locks = f"{plural(operation.locked_ranges, 'range')} of {where} locked"
    streamed = _streamed(operation.streamed) if operation.step == "START" else []
    return [Text(f"    ring    {done}, {onward}; {locks}"), *streamed]


def _streamed(found: Streamed | None) -> list[RenderableType]:
    """How far streaming is, where there is anything to stream."""
    if found is None or not found.bytes_total:
        return []
    line = f"    streamed {size(found.bytes_streamed)} of {size(found.bytes_total)} ({found.percent:.0f} %), "
    line += f"{found.rows_streamed:,} of {plural(found.rows_total, 'row')}"
    if found.seconds_left:
        line += f", about {seconds(found.seconds_left)} left"
    away = [Text(f"    not looked at: {', '.join(found.unreachable)}", style="red")] if found.unreachable else []
    return [Text(line), *away]
