"""`changes keep|drop|read|streams|keep-up|forget`: the changes of tables, for readers."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from epochlake.jobs.administration.change_streams import RETENTION_SECONDS, ChangesDropped, ChangesKept, limit_for
from epochlake.jobs.administration.topology_changes import StreamCheck
from epochlake.jobs.cli.arguments import TableName, of, parse_duration, parse_names
from epochlake.jobs.cli.changing import How, carry_out, change_command
from epochlake.jobs.cli.commands.switches import changes
from epochlake.jobs.cli.session import as_json_line
from epochlake.jobs.cli.text.change_streams import generations, kept_up, streams
from epochlake.jobs.cli.text.rows import rows_table
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.events import CommitGenerations
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.rejections import Code

SHOWN = 100

Reader = Annotated[str | None, typer.Option("--reader", metavar="NAME", help="Go on from where this reader has come.")]


@change_command(changes, "keep")
def keep(
    context: typer.Context,
    table: TableName,
    how: How,
    retention: Annotated[
        str | None, typer.Option("--for", metavar="DURATION", help="How long changes are kept, as 12h or 7d; else 7d.")
    ] = None,
    limit: Annotated[
        str | None,
        typer.Option("--limit", metavar="DURATION", help="And for named readers that are slow; else 4 times as long."),
    ] = None,
) -> None:
    """Keep the changes of a table for readers, from now on."""
    from epochlake.jobs.upkeep.change_streams import begin

    session = of(context)
    seconds = RETENTION_SECONDS if retention is None else parse_duration(retention)
    most = limit_for(seconds) if limit is None else parse_duration(limit)

    def begun() -> dict[str, Any]:
        if how.dry_run:
            return {}
        metadata = session.cluster.catch_up()
        stream = metadata.change_streams.by_table[metadata.table(table).table_id]
        return {"stream": stream.stream_id, "position": begin(session.cluster, stream).position}

    carry_out(session, how, ChangesKept(table, seconds, most), begun)


@change_command(changes, "drop")
def drop(context: typer.Context, table: TableName, how: How) -> None:
    """Keep the changes of a table no longer; its stream ends."""
    carry_out(of(context), how, ChangesDropped(table))


@changes.command("read")
def read(
    context: typer.Context,
    table: TableName,
    after: Annotated[
        int | None, typer.Option("--from", metavar="POSITION", help="The changes after it; else the oldest.", min=0)
    ] = None,
    up_to: Annotated[
        int | None, typer.Option("--to", metavar="POSITION", help="Up to this one; else the newest.", min=0)
    ] = None,
    reader: Reader = None,
    column: Annotated[
        list[str] | None, typer.Option("--column", metavar="COLUMN[,COLUMN]", help="Only these; else all.")
    ] = None,
    late: Annotated[
        bool, typer.Option("--late/--no-late", help="Also changes of which a newer one of the key came before.")
    ] = True,
    before: Annotated[bool, typer.Option("--before", help="Also the row that was there before each change.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more, until Ctrl-C; a line of JSON each.")] = False,
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="At most so many; 0: all.", min=0)] = SHOWN,
    generation: Annotated[
        int | None, typer.Option("--generation", metavar="N", help="Only of this generation, with --stream.", min=1)
    ] = None,
    number: Annotated[
        int | None, typer.Option("--stream", metavar="N", help="Only of this stream of the generation.", min=0)
    ] = None,
) -> None:
    """Show the changes of a table in their order, after a position. With --reader the next call goes on after them.

    Each has the row, `_change` (upsert or delete), `_written_at`, `_position`, and `_late`: a newer change of its key
    came before. Whoever applies those that are not late has what a read shows.
    With --generation and --stream only those of one range of tokens, until the generation ends.
    """
    from epochlake.jobs.replicas.row_values import shown_rows

    session = of(context)
    columns = parse_names(column or []) or None
    stream = session.cluster.changes(
        table,
        after=after,
        up_to=up_to,
        reader=reader,
        columns=columns,
        late=late,
        follow=follow,
        before=before,
        generation=generation,
        stream=number,
    )
    if follow:
        try:
            for batch in stream:
                for row in shown_rows(batch):
                    sys.stdout.write(as_json_line(row) + "\n")
                sys.stdout.flush()
                if reader is not None:
                    stream.commit()
        except KeyboardInterrupt:
            return
        return
    if reader is not None and limit:
        # What is shown in part was not read.
        limit = 0
    shown: list[dict[str, Any]] = []
    more = False
    for batch in stream:
        shown += shown_rows(batch)
        if limit and len(shown) > limit:
            del shown[limit:]
            more = True
            break
    session.show(shown, lambda found: rows_table(stream.schema.names, found))
    if reader is not None:
        stream.commit()
    if more:
        session.warn(f"there are more changes than these {limit:,}: --limit 0 shows all")


@changes.command("streams")
def show_streams(context: typer.Context) -> None:
    """The tables whose changes are kept: from where to where, how much that is, and how far readers are behind."""
    from epochlake.jobs.views.change_streams import stream_statuses

    session = of(context)
    session.show(list(stream_statuses(session.cluster, session.cluster.catch_up())), streams)


@changes.command("generations")
def show_generations(
    context: typer.Context,
    table: TableName,
    ranges: Annotated[bool, typer.Option("--ranges", help="Also the range of tokens of each stream.")] = False,
) -> None:
    """The generations of streams that the changes of a table are divided into, and where each begins and ends."""
    session = of(context)
    found = list(session.cluster.change_generations(table))
    enabled = session.cluster.metadata.may_use(CommitGenerations)
    session.show(found, lambda shown: generations(shown, ranges, enabled))


@change_command(changes, "check-and-repair")
def check_and_repair(context: typer.Context, how: How) -> None:
    """Ask that the streams of all tables are divided as their ranges are, and published; a coordinator does it."""
    carry_out(of(context), how, StreamCheck())


@changes.command("keep-up")
def keep_up(
    context: typer.Context,
    table: TableName,
    check_bytes: Annotated[
        bool,
        typer.Option(
            "--check-bytes", help="Read every byte that is kept, and copy anew from replicas what is damaged."
        ),
    ] = False,
) -> None:
    """Bring into a stream what has landed while its writer died, and drop what is over: what a coordinator does."""
    from epochlake.jobs.upkeep.change_streams import keep_up as run

    session = of(context)
    metadata = session.cluster.catch_up()
    stream = metadata.change_streams.get(metadata.table(table).table_id)
    if stream is None:
        raise Rejected(Code.NO_CHANGES, f"the changes of {table} are not kept")
    report = run(session.cluster, stream, check_bytes=check_bytes)
    session.show(report, kept_up)
    report.require_whole()


@changes.command("forget")
def forget(
    context: typer.Context,
    table: TableName,
    reader: Annotated[str, typer.Argument(metavar="READER", help="The name of a reader that comes no more.")],
) -> None:
    """Keep nothing any more for a reader that comes no more."""
    from epochlake.jobs.gate.change_streaming import open_stream
    from epochlake.jobs.replicas.change_readers import Readers

    session = of(context)
    stream = open_stream(session.cluster, session.cluster.catch_up(), table)
    if not Readers(session.cluster.storage, stream.index).forget(reader):
        raise InvalidRequest(f"{table} has no reader {reader!r}", hint="See `epochlake changes streams`")
    session.warn(f"nothing is kept for {reader} any more")
