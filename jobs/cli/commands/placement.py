"""`placement …`: where tablets and rows are, why, and what-if on any description of a ring."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from epochlake.jobs.administration.explanation import explain
from epochlake.jobs.administration.past import cluster_at
from epochlake.jobs.cli.arguments import At, Limit, TableName, of, parse_key
from epochlake.jobs.cli.documents import PlacementShown, TabletRow
from epochlake.jobs.cli.text import placement as text
from epochlake.jobs.pipeline.replicas import describe
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import Table
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.tokens import tablet_label, tablet_range

app = typer.Typer(help="Where data is, and why.", no_args_is_help=True)


@app.command("show")
def show(context: typer.Context, table: TableName, at: At = None, limit: Limit = 0) -> None:
    """Show the replicas of every tablet of a table, for reads and for writes."""
    session = of(context)
    metadata = cluster_at(session.cluster, at)
    found = metadata.table(table)
    count = metadata.tablets.maps[found.table_id].count
    rows = tuple(_tablet(metadata, found, tablet, count) for tablet in range(min(count, limit or count)))
    session.show(PlacementShown(table, metadata.epoch, count, rows), text.placement)


@app.command("explain")
def explain_(
    context: typer.Context,
    table: TableName,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="COLUMN=VALUE", help="A column of the row's primary key. Repeat for each."),
    ] = None,
    token: Annotated[int | None, typer.Option("--token", metavar="N", help="A token.")] = None,
    tablet: Annotated[int | None, typer.Option("--tablet", metavar="I", help="The number of a tablet.")] = None,
    at: At = None,
) -> None:
    """Explain where a row is read and written: its token, its tablet, each replica, and what is under way."""
    session = of(context)
    metadata = cluster_at(session.cluster, at)
    found = explain(metadata, table, key=parse_key(key) if key else None, token=token, tablet=tablet)
    session.show(found, text.explanation)


@app.command("simulate")
def simulate_(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE.json", help="A cluster, and operations on it.")],
) -> None:
    """What would happen on a ring: its placements, and operations step by step with what is read and written then.

    With `--output json` the answer is the same document with the answers filled in.
    """
    from epochlake.placement.ring.simulate import simulate

    session = of(context)
    session.show(simulate(_document(file)), text.simulation)


def _document(file: Path) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(file.read_bytes())
    except OSError as error:
        raise InvalidRequest(f"{file} cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"{file} is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidRequest(f"{file} holds no JSON object: it should describe a cluster")
    return document


def _tablet(metadata: ClusterMetadata, table: Table, tablet: int, count: int) -> TabletRow:
    placement = metadata.placement(table.table_id, tablet)
    transition = metadata.tablets.transitions.get((table.table_id, tablet))
    start, end = tablet_range(tablet, count)
    return TabletRow(
        tablet=tablet,
        label=tablet_label(tablet, count),
        token_start=start,
        token_end=end,
        reads=tuple(describe(metadata, volume) for volume in placement.reads),
        writes=tuple(describe(metadata, volume) for volume in placement.writes),
        stage=transition.stage.value if transition is not None else None,
    )
