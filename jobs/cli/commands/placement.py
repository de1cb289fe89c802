"""`placement …`: where tablets and rows are, why, and what-if on any description of a ring."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from epochlake.jobs.cli.arguments import At, Limit, TableName, of, parse_key, parse_size
from epochlake.jobs.cli.documents import PlacementShown, TabletRow
from epochlake.jobs.cli.text import placement as text
from epochlake.jobs.cli.text.simulation import simulation
from epochlake.jobs.views.explanation import explain
from epochlake.jobs.views.operations import change_at, last_step
from epochlake.jobs.views.what_if import parse_keyspaces, with_keyspaces, with_operations
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import PlacementKind, Table
from epochlake.metastore.metadata.placements import highs
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.rejections import Code
from epochlake.placement.tokens import MIN_TOKEN, tablet_label, tablet_range
from epochlake.placement.what_if.nodetool import from_describering, from_ring

app = typer.Typer(help="Where data is, and why.", no_args_is_help=True)


@app.command("show")
def show(context: typer.Context, table: TableName, at: At = None, limit: Limit = 0) -> None:
    """Show the replicas of every tablet of a table, on the ring of every range, for reads and for writes."""
    session = of(context)
    metadata = session.cluster.at(at)
    found = metadata.table(table)
    on_ring = metadata.is_on_ring(found.table_id)
    count, rows = (_ranges if on_ring else _tablets)(metadata, found, limit)
    kind = PlacementKind.RING if on_ring else PlacementKind.TABLETS
    session.show(PlacementShown(table, metadata.epoch, kind.value, count, tuple(rows)), text.placement)


@app.command("explain")
def explain_(
    context: typer.Context,
    table: TableName,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="COLUMN=VALUE", help="A column of the row's primary key. Repeat for each."),
    ] = None,
    token: Annotated[int | None, typer.Option("--token", metavar="N", help="A token.")] = None,
    tablet: Annotated[
        int | None,
        typer.Option("--tablet", "--range", metavar="I", help="The number of a tablet, or of a range on the ring."),
    ] = None,
    at: At = None,
) -> None:
    """Explain where a row is read and written: its token, its tablet or range, each replica, what is under way."""
    session = of(context)
    metadata = session.cluster.at(at)
    found = explain(metadata, table, key=parse_key(key) if key else None, token=token, tablet=tablet)
    session.show(found, text.explanation)


@app.command("simulate")
def simulate_(
    context: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE.json]", help="A cluster, and operations on it. `-`: standard input."),
    ] = None,
    nodetool_ring: Annotated[
        Path | None,
        typer.Option(
            "--nodetool-ring", metavar="FILE", help="What `nodetool ring` printed, in the place of FILE.json."
        ),
    ] = None,
    nodetool_describering: Annotated[
        Path | None,
        typer.Option("--nodetool-describering", metavar="FILE", help="What `nodetool describering KEYSPACE` printed."),
    ] = None,
    replication: Annotated[
        list[str] | None,
        typer.Option(
            "--replication",
            metavar="KEYSPACE:DC=N",
            help="A keyspace and its replicas; KEYSPACE:N is SimpleStrategy. Repeat for several.",
        ),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option("--bytes", metavar="KEYSPACE=SIZE", help="How big a keyspace is, each row counted once (2TiB)."),
    ] = None,
    operation: Annotated[
        list[str] | None,
        typer.Option(
            "--op",
            metavar="'OPERATION'",
            help="join NAME DC/RACK [tokens=N or T,T,…], leave NODE [force], move NODE tokens=…, replace NODE NAME, "
            "remove NODE [force], rebuild NODE [from=DC], replication KEYSPACE:DC=N. Repeat: one after another.",
        ),
    ] = None,
    limit: Annotated[
        int,
        typer.Option("--limit", metavar="N", help="At most so many ranges in each table of the text; 0: all.", min=0),
    ] = 20,
) -> None:
    """What would happen on a ring: its placements, and operations step by step with what is read and written then.

    A cluster is described by a file, or by the output of Cassandra's tools. With `--output json` the answer is the
    same document with the answers filled in; it can be kept, changed, and asked again. Exit code 3 when an operation
    is refused.
    """
    from epochlake.placement.what_if.simulate import simulate

    session = of(context)
    given = [path for path in (file, nodetool_ring, nodetool_describering) if path is not None]
    if len(given) != 1:
        raise InvalidRequest(
            "it is not clear which cluster is meant",
            hint="Give FILE.json, --nodetool-ring FILE or --nodetool-describering FILE, and only one of them",
        )
    keyspaces = parse_keyspaces(replication or ())
    if file is not None:
        document = _document(file)
    elif not keyspaces:
        raise InvalidRequest(
            "nodetool does not print how keyspaces are replicated", hint="Give --replication KEYSPACE:DC=N,…"
        )
    else:
        read = from_ring if nodetool_ring is not None else from_describering
        document = _read_by(read, given[0], keyspaces)
    if keyspaces or size:
        document = with_keyspaces(document, keyspaces, _sizes(size or ()))
    answered = simulate(with_operations(document, operation or ()))
    session.show(answered, partial(simulation, limit=limit))
    refused = list(_refusals(answered))
    if refused:
        raise Rejected(Code.OPERATION_REFUSED, "; ".join(refused))


def _refusals(answered: dict[str, Any]) -> Iterator[str]:
    """Why each operation that was refused, was: for its first step that was."""
    cases = answered.get("cases", [answered])
    for number, case in enumerate(cases, 1):
        seen: set[int] = set()
        for step in case.get("steps", ()):
            if step["result"] != "success" and step["op"] not in seen:
                seen.add(step["op"])
                where = f"case {case.get('name', number)}, " if len(cases) > 1 else ""
                yield f"{where}operation {step['op']}: {step['reason']}"


def _read_by(read: Callable[[str, Any], dict[str, Any]], file: Path, keyspaces: dict[str, Any]) -> dict[str, Any]:
    try:
        return read(_bytes(file).decode(), keyspaces)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{file} is no text", hint="Give the output of nodetool as it was printed") from error
    except InvalidRequest as error:
        raise InvalidRequest(f"{file}: {error.reason}", hint=error.hint) from error


def _sizes(texts: Iterable[str]) -> dict[str, int]:
    sizes = {}
    for given in texts:
        name, equals, size = given.partition("=")
        if not name or not equals:
            raise InvalidRequest(f"the size {given!r} cannot be read", hint="Write KEYSPACE=SIZE, as in ks=2TiB")
        sizes[name] = parse_size(size)
    return sizes


def _document(file: Path) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(_bytes(file))
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"{file} is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidRequest(f"{file} holds no JSON object: it should describe a cluster")
    return document


def _bytes(file: Path) -> bytes:
    if str(file) == "-":
        return sys.stdin.buffer.read()
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{file} cannot be read: {error.strerror}") from error


def _tablets(metadata: ClusterMetadata, table: Table, limit: int) -> tuple[int, list[TabletRow]]:
    count = metadata.tablets.maps[table.table_id].count
    return count, [_tablet(metadata, table, tablet, count) for tablet in range(min(count, limit or count))]


def _tablet(metadata: ClusterMetadata, table: Table, tablet: int, count: int) -> TabletRow:
    placement = metadata.placement(table.table_id, tablet)
    transition = metadata.tablets.transitions.get((table.table_id, tablet))
    start, end = tablet_range(tablet, count)
    return TabletRow(
        tablet=tablet,
        label=tablet_label(tablet, count),
        token_start=start,
        token_end=end,
        reads=tuple(metadata.describe(volume) for volume in placement.reads),
        writes=tuple(metadata.describe(volume) for volume in placement.writes),
        stage=transition.stage.value if transition is not None else None,
    )


def _ranges(metadata: ClusterMetadata, table: Table, limit: int) -> tuple[int, list[TabletRow]]:
    placements = metadata.ring_placements(table.keyspace)
    count, ends = len(placements.lows), highs(placements.lows)
    rows = []
    for index in range(min(count, limit or count)):
        placement, low = placements.placement(index), int(placements.lows[index])
        change = change_at(metadata, table.keyspace, low)
        step = None if change is None else last_step(change.operation)
        rows.append(
            TabletRow(
                tablet=index,
                label=placements.label(index),
                token_start=low if low == MIN_TOKEN else low - 1,
                token_end=int(ends[index]),
                reads=tuple(metadata.describe(volume) for volume in placement.reads),
                writes=tuple(metadata.describe(volume) for volume in placement.writes),
                stage=None if step is None else step.value,
                operation=None if change is None else change.operation.operation_id,
            )
        )
    return count, rows
