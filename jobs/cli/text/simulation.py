"""How simulated rings look: who owns how much before and after, and each step with what it changes.

A ring of a thousand ranges is not read, so what changes comes first and the rest is counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from epochlake.jobs.printing import bold, filled, plural, size, table
from epochlake.placement.ring.state import Step
from rich.console import RenderableType
from rich.text import Text

Range = Sequence[Any]
Placed = Mapping[tuple[int, int], tuple[list[int], list[int]]]

_TURN = 2**64


def simulation(document: dict[str, Any], limit: int = 0) -> list[RenderableType]:
    """The cases of a simulated document, each with its placements, or with its steps; `limit` rows in a table."""
    cases = document.get("cases", [document])
    parts: list[RenderableType] = []
    for number, case in enumerate(cases, 1):
        name = case.get("name", f"case {number}" if len(cases) > 1 else "the ring")
        parts += [bold(str(name)), *(_story(case, limit) if "steps" in case else _ring(case, limit)), Text()]
    return parts[:-1]


def _ring(case: dict[str, Any], limit: int) -> list[RenderableType]:
    held = {keyspace["name"]: keyspace["ranges"] for keyspace in case["keyspaces"]}
    parts: list[RenderableType] = [_nodes(case, [held]), Text()]
    for keyspace in case["keyspaces"]:
        placed = {(start, end): (nodes, nodes) for start, end, nodes in keyspace["ranges"]}
        parts += [_title(keyspace), *_ranges(placed, {}, limit)]
    return parts


def _story(case: dict[str, Any], limit: int) -> list[RenderableType]:
    placements = case["start"]["placements"]
    first = {name: placed["reads"] for name, placed in placements.items()}
    done = [step for step in case["steps"] if step["result"] == "success"]
    last = {name: placed["reads"] for name, placed in (done[-1]["placements"] if done else placements).items()}
    parts: list[RenderableType] = [_nodes(case, [first, last]), Text()]
    before: Mapping[str, Placed] = {name: _placed(placed) for name, placed in placements.items()}
    rejected: set[int] = set()
    for step in case["steps"]:
        if step["op"] in rejected:
            continue  # that its other steps are rejected as well says nothing new
        if step["result"] != "success" and step["step"].startswith(Step.PREPARE):
            rejected.add(step["op"])
        lines, before = _step(case, step, before, limit)
        parts += [*lines, Text()]
    settled = "everything is done" if case.get("settled") else "operations are still under way"
    return [
        *parts,
        Text(f"afterwards {settled}" + (f"; {plural(len(rejected), 'operation')} rejected" if rejected else "")),
    ]


def _step(
    case: dict[str, Any], step: dict[str, Any], before: Mapping[str, Placed], limit: int
) -> tuple[list[RenderableType], Mapping[str, Placed]]:
    line = Text().append(f"{step['step']}", style="bold")
    line.append(f" of operation {step['op']} ({_operation(case, case['ops'][step['op']])})")
    if step["result"] != "success":
        return [line.append(f": rejected, {step['reason']}", style="red")], before
    line.append(f", epoch {step['epoch']}")
    for keyspace, count in step.get("bytes", {}).items():
        line.append(f", {size(count)} of {keyspace} would move")
    lines: list[RenderableType] = [line]
    for keyspace, ranges in step.get("locks", {}).items():
        shown = " ".join(f"({start}, {end}]" for start, end in ranges[: limit or None])
        more = f" and {len(ranges) - limit:,} more" if limit and len(ranges) > limit else ""
        lines.append(Text(f"locks {plural(len(ranges), 'range')} of {keyspace}: {shown}{more}", style="bright_black"))
    after = {name: _placed(placed) for name, placed in step["placements"].items()}
    for keyspace, placed in after.items():
        lines += [Text(keyspace), *_ranges(placed, before.get(keyspace, {}), limit)]
    return lines, after


def _operation(case: dict[str, Any], op: dict[str, Any]) -> str:
    if op["op"] == "change_replication":
        return f"{op['keyspace']} to {', '.join(f'{name}={count}' for name, count in op['replication'].items())}"
    if op["op"] == "replace":
        return f"replace of {_name(case, op['replaced'])} by {_name(case, op['replacement'])}"
    return f"{op['op']} of {_name(case, op['node'])}"


def _name(case: dict[str, Any], node_id: int) -> str:
    found: dict[str, Any] = next((node for node in case["nodes"] if node["id"] == node_id), {})
    called = found.get("address") or found.get("name")
    return f"node {node_id}" + (f", {called}" if called else "")


def _title(keyspace: dict[str, Any]) -> Text:
    replication = ", ".join(f"{name}={count}" for name, count in keyspace["replication"].items())
    return Text(f"{keyspace['name']}  {keyspace['strategy']}, {replication}")


def _nodes(case: dict[str, Any], moments: Sequence[Mapping[str, Sequence[Range]]]) -> RenderableType:
    """Every node with its share of each keyspace, first and last."""
    keyspaces = list(moments[0])
    named = any(node.get("address") or node.get("name") for node in case["nodes"])
    heads = [f"{name}{'' if moment is moments[0] else ' after'}" for name in keyspaces for moment in moments]
    words = ["node", *(["name"] if named else []), "place", "tokens"]
    made = table(*words, *heads, right=["node", "tokens", *heads])
    shares = [_shares(moment[name]) for name in keyspaces for moment in moments]
    rows = []
    for node in case["nodes"]:
        called = [node.get("address") or node.get("name") or ""] if named else []
        owned = [f"{share.get(node['id'], 0):.1%}" for share in shares]
        rows.append([node["id"], *called, f"{node['dc']}/{node['rack']}", len(node.get("tokens", [])) or "-", *owned])
    return filled(made, rows)


def _shares(ranges: Sequence[Range]) -> dict[int, float]:
    """How much of the ring each node holds."""
    shares: dict[int, float] = {}
    for start, end, nodes in ranges:
        for node in nodes:
            shares[node] = shares.get(node, 0.0) + ((end - start) % _TURN or _TURN) / _TURN
    return shares


def _placed(placed: dict[str, Any]) -> Placed:
    reads = {(start, end): nodes for start, end, nodes in placed["reads"]}
    writes = reads if placed["writes"] == "same" else {(start, end): nodes for start, end, nodes in placed["writes"]}
    return {span: (reads.get(span, []), writes.get(span, [])) for span in sorted({*reads, *writes})}


def _ranges(placed: Placed, before: Placed, limit: int) -> list[RenderableType]:
    """Ranges with what is read and written; of more than `limit` those that changed come first."""
    changed = {span for span, both in placed.items() if before and before.get(span) != both}
    spans = list(placed)
    if limit and len(spans) > limit:
        spans = sorted(sorted(spans, key=lambda span: span not in changed)[:limit])
    numbers = ["tokens after", "up to"]
    made = table(*numbers, "reads", "writes", "", right=numbers, wide=["reads", "writes"])
    rows = []
    for span in spans:
        reads, writes = placed[span]
        same = set(reads) == set(writes)
        written = Text("the same", style="bright_black") if same else Text(_listed(writes), style="yellow")
        rows.append((*span, _listed(reads), written, Text("changed", style="yellow") if span in changed else ""))
    parts: list[RenderableType] = [filled(made, rows)]
    if len(spans) < len(placed):
        hidden = len(changed - set(spans))
        more = f"{len(placed) - len(spans):,} more ranges" + (f", {hidden:,} of them changed" if before else "")
        parts.append(Text(f"{more}: raise --limit", style="bright_black"))
    return parts


def _listed(nodes: Sequence[int]) -> str:
    return " ".join(str(node) for node in nodes) or "nobody"
