"""How a plan of moves looks."""

from __future__ import annotations

from collections import defaultdict

from epochlake.jobs.printing import bold, filled, plural, size, state, table
from epochlake.jobs.views.balancing import BalancePlan, MovePlanned
from epochlake.jobs.views.resizing import ResizePlan
from rich.console import RenderableType
from rich.text import Text


def balance_plan(plan: BalancePlan, *, explain: bool = True, limit: int = 0) -> list[RenderableType]:
    waves = max((move.wave for move in plan.moves), default=0)
    moved = sum(move.bytes for move in plan.moves)
    head = bold(f"{plural(len(plan.moves), 'move')}")
    head.append(
        f" in {plural(waves, 'wave')}, {size(moved)}, planned at epoch {plan.epoch}"
        if plan.moves
        else f": the cluster is balanced as it is, at epoch {plan.epoch}",
        style="not bold",
    )
    parts: list[RenderableType] = [head]
    if not plan.balancing:
        parts.append(Text("balancing is paused: the coordinator begins none of this", style="yellow"))
    if plan.moves:
        rows = _each_move(plan) if explain else _moves_between_volumes(plan)
        made = (
            table("wave", "tablet", "from", "to", "size", "why", right=["wave", "size"], wide=["why"])
            if explain
            else table("from", "to", "moves", "size", "waves", right=["moves", "size"])
        )
        parts += [Text(), filled(made, rows[: limit or None])]
        if limit and len(rows) > limit:
            parts.append(Text(f"{len(rows) - limit:,} more: raise --limit", style="bright_black"))
    if plan.nodes:
        made = table(
            "node",
            "state",
            "replicas",
            "after",
            "used",
            "after",
            "capacity",
            right=["replicas", "after", "used", "capacity"],
        )
        rows_ = (
            (
                n.node,
                state(n.state),
                n.replicas_before,
                n.replicas_after,
                size(n.bytes_before),
                size(n.bytes_after),
                size(n.capacity),
            )
            for n in plan.nodes
        )
        parts += [Text(), filled(made, rows_)]
    if plan.stays:
        made = table("node", "replicas", "stays because", right=["replicas"], wide=["stays because"])
        parts += [Text(), filled(made, ((s.node, s.replicas or None, s.reason) for s in plan.stays))]
    return parts


def _each_move(plan: BalancePlan) -> list[tuple[object, ...]]:
    return [
        (move.wave, f"{move.table}/{move.tablet}", move.source, move.target, size(move.bytes), move.reason)
        for move in plan.moves
    ]


def _moves_between_volumes(plan: BalancePlan) -> list[tuple[object, ...]]:
    """Moves from one volume to another taken together, the most bytes first."""
    found: dict[tuple[str, str], list[MovePlanned]] = defaultdict(list)
    for move in plan.moves:
        found[(move.source, move.target)].append(move)
    rows: list[tuple[object, ...]] = []
    for (source, target), moves in sorted(found.items(), key=lambda pair: -sum(move.bytes for move in pair[1])):
        waves = sorted({move.wave for move in moves})
        span = str(waves[0]) if len(waves) == 1 else f"{waves[0]} to {waves[-1]}"
        rows.append((source, target, f"{len(moves):,}", size(sum(move.bytes for move in moves)), span))
    return rows


def resize_plan(plan: ResizePlan) -> list[RenderableType]:
    changing = sum(one.changes for one in plan.tables)
    head = bold(f"{plural(changing, 'table')} to be resized" if changing else "no table is to be resized")
    head.append(f", planned at epoch {plan.epoch}", style="not bold")
    parts: list[RenderableType] = [head]
    if not plan.resizing:
        parts.append(Text(f"the coordinator resizes nothing now: {plan.paused}", style="yellow"))
    if plan.unmeasured:
        parts.append(Text(f"not measured: {', '.join(plan.unmeasured)}", style="red"))
    if plan.tables:
        numbers = ["tablets", "wanted", "tablet size", "target"]
        made = table("table", *numbers, "now", "next", right=numbers)
        rows = (
            (
                one.table,
                one.tablets,
                one.wanted_tablets,
                size(one.bytes),
                size(one.target_bytes),
                one.in_force,
                Text(one.decision, style="yellow" if one.changes else ""),
            )
            for one in plan.tables
        )
        parts += [Text(), filled(made, rows), Text()]
        for one in plan.tables:
            apart = f"; {plural(one.apart, 'pair')} still apart" if one.apart else ""
            parts.append(Text(f"{one.table}: {one.reason}{apart}"))
    return parts
