"""`load` and `query`: rows, without Spark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import pyarrow as pa
import typer
from epochlake.jobs.cli.arguments import AsOf, Level, TableName, of, parse_key, parse_names
from epochlake.jobs.cli.documents import Loaded, LoadedOf
from epochlake.jobs.cli.interruption import interrupted_says
from epochlake.jobs.cli.progress import load_bar
from epochlake.jobs.cli.text.rows import loaded, rows_table
from epochlake.jobs.exchange.loading import LoadedPart, load_files
from epochlake.jobs.exchange.row_files import Format, format_of, path_of, write_rows
from epochlake.jobs.printing import plural
from epochlake.placement.errors import InvalidRequest

SHOWN = 100
"""So many rows are printed unless another number is asked for."""

FileFormat = Annotated[
    Format | None, typer.Option("--format", case_sensitive=False, help="What the file is; else as its name says.")
]


def register(app: typer.Typer) -> None:
    app.command("load")(load)
    app.command("query")(query)


def load(
    context: typer.Context,
    table: TableName,
    file: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE", help="Parquet, CSV, JSON by the line, or Arrow; directories and patterns of them."
        ),
    ],
    batch: Annotated[
        str | None,
        typer.Option("--batch", metavar="NAME", help="The load's name: however often it is tried, it lands once."),
    ] = None,
    consistency: Level = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the rows with the files' keys; other columns do not count.")
    ] = False,
    format_: FileFormat = None,
) -> None:
    """Write the rows of files to a table: insert them, or replace those with the same key. Starts no Spark.

    Columns that a file lacks have their default, or are null. What is stored otherwise than the table declares is cast
    where that loses nothing; a file with a row that would lose something is refused, with the row, before any of it
    lands. Each 500,000 rows are one write, which is held in memory. With --batch each write has a name, so a load that
    ended half-way is run again and goes on. A cell of CSV that is empty or says NA or null is null, but in a column of
    texts.
    """
    session = of(context)
    target = session.cluster.catch_up().table(table)
    advice = "the same --batch" if batch else "the same rows: nothing is written twice, as they have the same keys"
    if target.append_only and not batch:
        advice = "care: rows of an append-only table may come twice without a --batch"
    with (
        interrupted_says(f"the rows may have landed, whole or in part: run it again, with {advice}"),
        load_bar(session) as bar,
    ):
        done = load_files(
            session.cluster,
            table,
            file,
            batch=batch,
            consistency=consistency,
            delete=delete,
            format_=format_,
            progress=bar,
        )
    level = session.configuration.pipeline.consistency if consistency is None else consistency.upper()
    session.show(_loaded(table, done, str(level), deleted=delete), loaded)


def _loaded(table: str, parts: list[LoadedPart], level: str, *, deleted: bool) -> Loaded:
    written = [part.written for part in parts]
    return Loaded(
        table=table,
        rows=sum(one.rows for one in written),
        files=sum(one.files for one in written),
        bytes=sum(one.bytes for one in written),
        epoch=max(one.epoch for one in written),
        consistency=level,
        deleted=deleted,
        already=all(one.already for one in written),
        missing={place: why for one in written for place, why in one.missing.items()},
        warnings=tuple(dict.fromkeys(warning for one in written for warning in one.warnings)),
        casts={name: cast for part in parts for name, cast in part.casts.items()},
        filled=tuple(dict.fromkeys(name for part in parts for name in part.filled)),
        parts=tuple(
            LoadedOf(part.file, part.batch, part.written.rows, part.written.epoch, part.written.already)
            for part in parts
        ),
        defaults={name: text for part in parts for name, text in part.defaults.items()},
    )


def query(
    context: typer.Context,
    table: Annotated[str, typer.Argument(metavar="KEYSPACE.TABLE|SELECT", help="A table, or one SELECT over tables.")],
    column: Annotated[
        list[str] | None, typer.Option("--column", metavar="COLUMN[,COLUMN]", help="Only these; else all.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="FILTER", help="As 'delay > 30' or 'tail is null'. Repeat: all have to hold."),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="COLUMN=VALUE", help="The row with this key; once for each key column."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", help=f"At most so many rows; 0: all. Else {SHOWN}.", min=0)
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="FILE", help="Write all rows there: Parquet, CSV or Arrow.")
    ] = None,
    format_: FileFormat = None,
    consistency: Level = None,
    as_of: AsOf = None,
) -> None:
    """Show rows of a table, as a pipeline at this moment would read them, or as they were. Starts no Spark.

    Or ask a SELECT: "SELECT origin, count(*) FROM air.flights GROUP BY ALL". DuckDB answers it (the extra `sql`), joins
    tables with one another and with files (FROM 'weather.csv'), and reads only the columns that are needed.

    With --output json a list with an object for each row, where NaN and the infinities are texts; with --to only a
    message on stderr, with their number.
    """
    from epochlake.jobs.exchange.filters import parse_filters, parse_values
    from epochlake.jobs.replicas.row_values import shown_rows

    session = of(context)
    place = None if to is None else path_of(to)
    if place is not None:
        from epochlake.jobs.exchange.exporting import require_no_place_of

        require_no_place_of(session.cluster, place)
    if len(table.split()) > 1:
        if column or where or key:
            raise InvalidRequest(
                "--column, --where and --key are for the rows of one table", hint="Say it in the SELECT"
            )
        if as_of is not None:
            raise InvalidRequest(
                "--as-of is for the rows of one table", hint="Export it as of then, and ask the file: --to rows.parquet"
            )
        what = "the query's result"
        rows = session.cluster.sql(table, consistency=consistency)
    else:
        what = table
        target = session.cluster.catch_up().table(table)
        names = parse_names(column or [])
        rows = session.cluster.scan(
            table,
            columns=names or None,
            where=parse_filters(where or [], target),
            keys=[parse_values(parse_key(key), target)] if key else None,
            consistency=consistency,
            as_of=as_of,
        )
    if place is not None:
        written = write_rows(_first(rows, limit), place, format_of(place, format_))
        session.warn(f"{plural(written, 'row')} of {what} {'is' if written == 1 else 'are'} in {to}")
        return
    most = SHOWN if limit is None else limit
    every = (row for batch in rows for row in shown_rows(batch))
    shown = list(islice(every, min(most, sys.maxsize) or None))
    more = most > 0 and next(every, None) is not None
    session.show(shown, lambda found: rows_table(rows.schema.names, found))
    if more:
        session.warn(f"there are more rows than these {most:,}: --limit 0 shows all, --to FILE keeps them")


def _first(rows: pa.RecordBatchReader, limit: int | None) -> pa.RecordBatchReader:
    """At most so many of the rows; None or 0: all of them."""

    def batches() -> Iterator[pa.RecordBatch]:
        left = limit or 0
        for batch in rows:
            yield batch.slice(0, left)
            left -= batch.num_rows
            if left <= 0:
                return

    return pa.RecordBatchReader.from_batches(rows.schema, batches()) if limit else rows
