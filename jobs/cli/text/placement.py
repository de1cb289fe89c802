"""How placements look: of tablets, of one row, and of simulated rings."""

from __future__ import annotations

from typing import Any

from epochlake.jobs.administration.explanation import Explanation
from epochlake.jobs.cli.documents import PlacementShown
from epochlake.jobs.cli.text.parts import bold, filled, plural, state, table
from rich.console import RenderableType
from rich.text import Text


def placement(document: PlacementShown) -> list[RenderableType]:
    head = bold(document.table).append(
        f" at epoch {document.epoch}: {plural(document.tablets, 'tablet')}", style="not bold"
    )
    made = table(
        "tablet", "tokens after", "up to", "reads", "writes", "stage", right=["tablet", "tokens after", "up to"]
    )
    for row in document.rows:
        same = row.reads == row.writes
        made.add_row(
            str(row.tablet),
            str(row.token_start),
            str(row.token_end),
            Text(" ".join(row.reads)),
            Text("the same", style="bright_black") if same else Text(" ".join(row.writes), style="yellow"),
            row.stage or "",
        )
    parts: list[RenderableType] = [head, made]
    if len(document.rows) < document.tablets:
        parts.append(Text(f"{document.tablets - len(document.rows):,} more: raise --limit", style="bright_black"))
    return parts


def explanation(found: Explanation) -> list[RenderableType]:
    line = Text()
    if found.token is not None:
        line.append("token ").append(str(found.token), style="bold").append(" is in ")
    line.append(f"tablet {found.tablet}", style="bold")
    line.append(f" of {found.tablets:,} of {found.table}, at epoch {found.epoch}")
    span = Text(f"tokens after {found.token_start} up to {found.token_end}", style="bright_black")
    made = table("replica", "node is", "place", "reads", "writes", "role")
    rows = [
        (
            replica.place,
            state(replica.node_state),
            f"{replica.datacenter}/{replica.rack}",
            "yes" if replica.reads else "no",
            "yes" if replica.writes else "no",
            "" if replica.role == "replica" else replica.role,
        )
        for replica in found.replicas
    ]
    return [line, span, Text(), filled(made, rows), Text(), *_why(found)]


def _why(found: Explanation) -> list[RenderableType]:
    moving = found.transition
    if moving is None:
        return [Text("The tablet is settled: reads and writes go to the same replicas.")]
    lines: list[RenderableType] = [
        Text(
            f"A {moving.kind} is in stage {moving.stage} since epoch {moving.stage_epoch}, begun by epoch "
            f"{moving.started_epoch}: {moving.reason or 'no reason given'}."
        ),
        Text(
            f"In this stage reads go to the {moving.reads_from} replicas, writes to "
            f"{'both the old and the new ones' if moving.writes_to == 'both' else f'the {moving.writes_to} ones'}."
        ),
    ]
    if moving.error:
        lines.append(Text(f"It goes back because {moving.error}.", style="yellow"))
    return lines


def simulation(document: dict[str, Any]) -> list[RenderableType]:
    """The cases of a simulated document, each with its placements, or with its steps."""
    cases = document.get("cases", [document])
    parts: list[RenderableType] = []
    for number, case in enumerate(cases, 1):
        parts.append(bold(str(case.get("name", f"case {number}"))))
        parts += _steps(case) if "steps" in case else _rings(case)
        parts.append(Text())
    return parts[:-1]


def _rings(case: dict[str, Any]) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for keyspace in case["keyspaces"]:
        parts += [Text(f"keyspace {keyspace['name']} ({keyspace['strategy']})"), _ranges(keyspace["ranges"])]
    return parts


def _steps(case: dict[str, Any]) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for step in case["steps"]:
        operation = case["ops"][step["op"]]
        line = (
            Text("  ").append(f"{step['step']}", style="bold").append(f" of operation {step['op']} ({operation['op']})")
        )
        if step["result"] != "success":
            parts.append(line.append(f": rejected, {step['reason']}", style="red"))
            continue
        line.append(f", epoch {step['epoch']}")
        for keyspace, count in step.get("bytes", {}).items():
            line.append(f", {count:,} bytes of {keyspace} would move")
        parts.append(line)
        for keyspace, ranges in step.get("locks", {}).items():
            locked = " ".join(f"({start}, {end}]" for start, end in ranges)
            parts.append(Text(f"    locks in {keyspace}: {locked}", style="bright_black"))
        for keyspace, placed in step["placements"].items():
            parts += [Text(f"    {keyspace}"), _ranges(placed["reads"], placed["writes"])]
    settled = "everything is done" if case.get("settled") else "operations are still under way"
    return [*parts, Text(f"  afterwards {settled}")]


def _ranges(reads: list[Any], writes: list[Any] | str | None = None) -> RenderableType:
    numbers = ["tokens after", "up to"]
    if writes is None or isinstance(writes, str):
        made = table(*numbers, "nodes", right=numbers)
        return filled(made, ((start, end, _nodes(nodes)) for start, end, nodes in reads))
    made = table(*numbers, "reads", "writes", right=numbers)
    written = {(start, end): nodes for start, end, nodes in writes}
    read = {(start, end): nodes for start, end, nodes in reads}
    spans = sorted({*read, *written}, key=lambda span: span[0])
    return filled(
        made,
        (
            (
                start,
                end,
                _nodes(read.get((start, end), [])),
                Text(_nodes(written.get((start, end), [])), style="yellow"),
            )
            for start, end in spans
        ),
    )


def _nodes(nodes: list[int]) -> str:
    return " ".join(str(node) for node in nodes) or "nobody"
