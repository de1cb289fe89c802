"""Tablets by volume as a heat map: what each volume holds of each stretch of the tokens, now and after a plan."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from epochlake.jobs.pictures import style
from epochlake.jobs.printing import plural
from epochlake.jobs.views.balancing import BalancePlan
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import Table, TabletKey, VolumeId
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.showing import size

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from numpy.typing import NDArray

MOST_COLUMNS, MOST_ROWS = 400, 400
"""More tablets, or volumes, than that share columns and rows: a cell is the sum of what it stands for."""


class Heat(msgspec.Struct, frozen=True, eq=False):
    """Cells (rows, columns): bytes, or replicas where bytes are not known. `after` is None without a plan.

    NaN: no replica is there, while a replica of 0 bytes is 0. `unmeasured`: volumes that did not answer; their cells
    are NaN as well.
    """

    now: NDArray[np.float64]
    after: NDArray[np.float64] | None
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    volumes: int
    tablets: int
    measured: bool
    moves: int = 0
    unmeasured: tuple[str, ...] = ()


def heat_of(
    metadata: ClusterMetadata,
    sizes: Mapping[tuple[str, int, VolumeId], int] | None,
    table: str | None = None,
    plan: BalancePlan | None = None,
    unmeasured: Iterable[VolumeId] = (),
) -> Heat:
    """What each volume holds of each tablet; with `plan` also what it will. `sizes` None: replicas are counted.

    Raises Rejected for a table that there is not, InvalidRequest for one without tablets and for a plan of another
    epoch.
    """
    tables = _tables(metadata, table)
    if plan is not None and plan.epoch != metadata.epoch:
        raise InvalidRequest(
            f"the plan was made at epoch {plan.epoch}, and the metadata is of epoch {metadata.epoch}",
            hint="Make the plan again",
        )
    column_of: dict[TabletKey, int] = {}
    for one in tables:
        for tablet in range(metadata.tablets.maps[one.table_id].count):
            column_of[one.table_id, tablet] = len(column_of)
    present = [node for node in metadata.directory.nodes.values() if node.state != "left"]
    ordered = sorted(present, key=lambda node: (node.datacenter, node.rack, node.node_id))
    row_of = {v.volume_id: row for row, v in enumerate(v for node in ordered for v in node.volumes)}
    places = [f"{node.name}/{volume.name}" for node in ordered for volume in node.volumes]
    labels = [f"{node.rack} {node.name}/{volume.name}" for node in ordered for volume in node.volumes]
    unknown = frozenset() if sizes is None else frozenset(unmeasured)
    rows, columns, held = [], [], []
    for (table_id, tablet), column in column_of.items():
        for volume in metadata.tablets.maps[table_id].replicas(tablet):
            if volume in row_of and volume not in unknown:
                rows.append(row_of[volume])
                columns.append(column)
                held.append(1.0 if sizes is None else float(sizes.get((table_id, tablet, volume), 0)))
    across, down = _shared(len(column_of), MOST_COLUMNS), _shared(len(row_of), MOST_ROWS)
    shape = (max(down, default=-1) + 1, max(across, default=-1) + 1)
    amounts, replicas = np.zeros(shape), np.zeros(shape, dtype=np.int64)
    if rows:
        cells = np.array(down)[rows], np.array(across)[columns]
        np.add.at(amounts, cells, held)
        np.add.at(replicas, cells, 1)
    now = np.where(replicas > 0, amounts, np.nan)
    after = None
    moves = [] if plan is None else [move for move in plan.moves if table in (None, move.table)]
    if plan is not None:
        row_named = {place: row for row, place in enumerate(places)}
        id_of = {one.full_name: one.table_id for one in tables}
        for move in moves:
            column = across[column_of[id_of[move.table], move.tablet]]
            amount = 1.0 if sizes is None else float(move.bytes)
            for row, sign in ((down[row_named[move.source]], -1), (down[row_named[move.target]], 1)):
                amounts[row, column] += sign * amount
                replicas[row, column] += sign
        after = np.where(replicas > 0, np.maximum(amounts, 0.0), np.nan)
    alone = len(tables) == 1
    names = {key: f"{'' if alone else metadata.schema.tables[key[0]].full_name} {key[1]}".strip() for key in column_of}
    return Heat(
        now=now,
        after=after,
        rows=tuple(_pooled(labels, down)),
        columns=tuple(_pooled(list(names.values()), across)),
        volumes=len(row_of),
        tablets=len(column_of),
        measured=sizes is not None,
        moves=len(moves),
        unmeasured=tuple(metadata.describe(volume) for volume in sorted(unknown)),
    )


def draw_heat(heat: Heat, title: str) -> go.Figure:
    """The heat map, with a plan one above the other in the same colours; a cell without a replica has none."""
    go = style.plotly()
    from plotly.subplots import make_subplots

    panels = [("now", heat.now)] if heat.after is None else [("now", heat.now), ("after the plan", heat.after)]
    figure = make_subplots(
        rows=len(panels),
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.12,
        subplot_titles=[name for name, _ in panels] if len(panels) > 1 else None,
    )
    figure.update_annotations(font={"size": 13, "color": style.TEXT})
    what = "bytes" if heat.measured else "replicas"
    for number, (_, cells) in enumerate(panels, 1):
        amounts = [[_amount(cell, heat) for cell in row] for row in cells.tolist()]
        figure.add_trace(
            go.Heatmap(
                z=cells,
                x=[style.plain(name) for name in heat.columns],
                y=[style.plain(name) for name in heat.rows],
                text=amounts,
                coloraxis="coloraxis",
                hovertemplate=f"%{{y}}<br>tablet %{{x}}<br>%{{text}} {'' if heat.measured else what}<extra></extra>",
                xgap=1 if len(heat.columns) <= 64 else 0,
                ygap=1 if len(heat.rows) <= 64 else 0,
            ),
            row=number,
            col=1,
        )
    figure.update_xaxes(showticklabels=False, type="category", showgrid=False)
    told = len(heat.columns) <= 64 and all(name.isdigit() for name in heat.columns)
    figure.update_xaxes(title_text="tablets, in the order of their tokens", showticklabels=told, row=len(panels), col=1)
    figure.update_yaxes(showgrid=False)
    figure.update_yaxes(autorange="reversed", showticklabels=len(heat.rows) <= 64)
    highest = float(max(np.nan_to_num(cells).max(initial=0) for _, cells in panels)) or 1.0
    bar: dict[str, object] = {"title": {"text": what, "side": "right"}, "thickness": 12, "outlinewidth": 0}
    if heat.measured:
        bar |= _ticks(highest)
    scale = {"colorscale": style.SCALE, "cmin": 0, "cmax": highest, "colorbar": bar}
    figure.update_layout(coloraxis=scale)
    pooled = "; cells are sums of several" if heat.tablets > len(heat.columns) or heat.volumes > len(heat.rows) else ""
    moves = f", {plural(heat.moves, 'move')}" if heat.after is not None else ""
    missing = f"; {style.and_more(heat.unmeasured)} could not be measured" if heat.unmeasured else ""
    subtitle = f"{plural(heat.volumes, 'volume')}, {plural(heat.tablets, 'tablet')}{moves}{pooled}{missing}"
    each = max(260, min(600, 60 + 22 * len(heat.rows)))
    return style.styled(figure, title, subtitle, 110 + each * len(panels))


def _amount(cell: float, heat: Heat) -> str:
    if math.isnan(cell):
        return "no replica"
    return f"{size(round(cell))}" if heat.measured else f"{cell:.0f}"


def _tables(metadata: ClusterMetadata, table: str | None) -> list[Table]:
    if table is not None:
        found = metadata.table(table)
        if metadata.is_on_ring(found.table_id):
            raise InvalidRequest(f"{table} is on the ring and has no tablets", hint="Draw its ring")
        return [found]
    found_all = sorted(metadata.schema.tables.values(), key=lambda one: one.full_name)
    found_all = [one for one in found_all if not metadata.is_on_ring(one.table_id)]
    if not found_all:
        raise InvalidRequest("there is no table with tablets", hint="Create one, or draw a ring")
    return found_all


def _shared(count: int, most: int) -> list[int]:
    """The row or column of each of `count` things, of which there are at most `most`."""
    return list(range(count)) if count <= most else [number * most // count for number in range(count)]


def _pooled(names: list[str], shared: list[int]) -> list[str]:
    """The names of what is drawn: of one thing its own, of several from the first to the last."""
    first: dict[int, str] = {}
    last: dict[int, str] = {}
    for name, place in zip(names, shared, strict=True):
        first.setdefault(place, name)
        last[place] = name
    return [name if last[place] == name else f"{name} … {last[place]}" for place, name in first.items()]


def _ticks(highest: float) -> dict[str, list[object]]:
    values = [highest * part / 4 for part in range(5)]
    return {"tickvals": list(values), "ticktext": [size(round(value)) for value in values]}
