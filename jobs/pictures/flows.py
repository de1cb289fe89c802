"""A plan as flows between nodes: from the left, who gives, to the right, who gets; as wide as the bytes are many."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from epochlake.jobs.pictures import style
from epochlake.jobs.pictures.arcs import Arcs
from epochlake.jobs.printing import plural
from epochlake.jobs.views.balancing import BalancePlan
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.showing import size

if TYPE_CHECKING:
    import plotly.graph_objects as go

MOST_FLOWS = 80
"""Of more the greatest are drawn by their nodes, and the others between `other nodes`."""

OTHERS = "other nodes"
TABLET, RANGE = "tablet", "range"


class Flow(msgspec.Struct, frozen=True):
    """From a node to another: `bytes`, of so many `pieces` (tablets, or ranges). `measured`: whether bytes are known.

    Where they are not, `bytes` are the share of all tokens in millionths.
    """

    source: str
    target: str
    bytes: int
    pieces: int


class Flows(msgspec.Struct, frozen=True):
    """All flows of a plan, the greatest first. `what`: what a piece is; `nodes`: all nodes in their order."""

    flows: tuple[Flow, ...]
    what: str
    measured: bool
    nodes: tuple[str, ...] = ()


def flows_of_plan(plan: BalancePlan) -> Flows:
    """What balancing would move from node to node."""
    held: Counter[tuple[str, str]] = Counter()
    pieces: Counter[tuple[str, str]] = Counter()
    for move in plan.moves:
        key = (move.source.partition("/")[0], move.target.partition("/")[0])
        held[key] += move.bytes
        pieces[key] += 1
    found = _sorted(held, pieces, TABLET, measured=any(held.values()))
    return msgspec.structs.replace(found, nodes=tuple(node.node for node in plan.nodes))


def flows_between(before: Arcs, after: Arcs, size_of_all: int | None = None) -> Flows:
    """What has to go where so that a ring becomes another one: each range from who gives it up to who gets it.

    A range that nobody gives up comes from its first replica. `size_of_all`: bytes of all rows, each counted once; with
    None shares of tokens are drawn. Nodes are told by their names.
    """
    lows = np.union1d(before.lows, after.lows)
    old, new = (one.reads[np.searchsorted(one.lows, lows, side="right") - 1] for one in (before, after))
    shares = msgspec.structs.replace(after, lows=lows, reads=new, writes=new).lengths
    held: Counter[tuple[str, str]] = Counter()
    pieces: Counter[tuple[str, str]] = Counter()
    for row, share in enumerate(shares.tolist()):
        was = [before.nodes[node] for node in old[row].tolist() if node >= 0]
        comes = [after.nodes[node] for node in new[row].tolist() if node >= 0 and after.nodes[node] not in was]
        if not comes:
            continue
        stays = {after.nodes[node] for node in new[row].tolist() if node >= 0}
        goes = [node for node in was if node not in stays]
        for number, node in enumerate(comes):
            giver = goes[number] if number < len(goes) else (was[0] if was else "nobody")
            held[giver, node] += round(share * (1e6 if size_of_all is None else size_of_all))
            pieces[giver, node] += 1
    found = _sorted(held, pieces, RANGE, measured=size_of_all is not None)
    return msgspec.structs.replace(found, nodes=after.nodes)


def draw_flows(flows: Flows, title: str) -> go.Figure:
    """The flows of a plan."""
    go = style.plotly()
    if not flows.flows:
        return style.styled(go.Figure(), title, "nothing moves", 160)
    shown = _pooled(flows)
    sources = list(dict.fromkeys(flow.source for flow in shown))
    targets = list(dict.fromkeys(flow.target for flow in shown))
    colours = style.colours_of([*flows.nodes, *sources, *targets])
    left = {name: number for number, name in enumerate(sources)}
    right = {name: len(sources) + number for number, name in enumerate(targets)}
    amounts = [flow.bytes if flows.measured else max(flow.bytes, 1) for flow in shown]
    figure = go.Figure(
        go.Sankey(
            arrangement="snap",
            node={
                "label": [style.plain(name) for name in (*sources, *targets)],
                "color": [colours[name] for name in (*sources, *targets)],
                "pad": 12,
                "thickness": 14,
                "line": {"width": 0},
                "hovertemplate": "%{label}<extra></extra>",
            },
            link={
                "source": [left[flow.source] for flow in shown],
                "target": [right[flow.target] for flow in shown],
                "value": [max(amount, 1) for amount in amounts],
                "color": [_faint(colours[flow.source]) for flow in shown],
                "customdata": [_told(flow, flows) for flow in shown],
                "hovertemplate": "%{customdata}<extra></extra>",
            },
            textfont={"color": style.TEXT, "size": 12, "shadow": "none"},
        )
    )
    pieces = plural(sum(flow.pieces for flow in flows.flows), flows.what)
    pairs = f"{len(flows.flows):,} {'pair' if len(flows.flows) == 1 else 'pairs'} of nodes"
    pooled = f"; {len(flows.flows) - len(shown) + 1:,} small flows are one" if len(shown) < len(flows.flows) else ""
    subtitle = f"{_amount(flows)}{pieces}, between {pairs}{pooled}"
    return style.styled(figure, title, subtitle, 160 + 24 * max(len(sources), len(targets)))


def _amount(flows: Flows) -> str:
    """How much it is; nothing of tablets that hold nothing, or that nobody has measured."""
    total = sum(flow.bytes for flow in flows.flows)
    if flows.measured:
        return f"{size(total)} in "
    return "" if flows.what == TABLET else f"{total / 1e4:.3g} % of a copy of all tokens in "


def require_plan(plan: object) -> BalancePlan:
    """Raises InvalidRequest for what is no plan of balancing."""
    if not isinstance(plan, BalancePlan):
        raise InvalidRequest(
            f"a {type(plan).__name__} is no plan", hint="Hand over what `cluster.plan_balance()` gives"
        )
    return plan


def _sorted(held: Counter[tuple[str, str]], pieces: Counter[tuple[str, str]], what: str, *, measured: bool) -> Flows:
    found = [Flow(*key, held[key], count) for key, count in pieces.items()]
    if not measured and what == TABLET:  # nobody has measured them, or they are empty: tablets are drawn
        found = [msgspec.structs.replace(flow, bytes=flow.pieces) for flow in found]
    return Flows(tuple(sorted(found, key=lambda flow: (-flow.bytes, flow.source, flow.target))), what, measured)


def _pooled(flows: Flows) -> list[Flow]:
    if len(flows.flows) <= MOST_FLOWS:
        return list(flows.flows)
    rest = flows.flows[MOST_FLOWS - 1 :]
    pooled = Flow(OTHERS, OTHERS, sum(flow.bytes for flow in rest), sum(flow.pieces for flow in rest))
    return [*flows.flows[: MOST_FLOWS - 1], pooled]


def _told(flow: Flow, flows: Flows) -> str:
    amount = f"{size(flow.bytes)} in " if flows.measured else ""
    return f"{style.plain(flow.source)} → {style.plain(flow.target)}<br>{amount}{plural(flow.pieces, flows.what)}"


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.35)"
