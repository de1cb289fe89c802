"""`load` and `query`: rows, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer
from epochlake.jobs.cli.arguments import TableName, of, parse_key, parse_names
from epochlake.jobs.cli.documents import Loaded
from epochlake.jobs.cli.interruption import interrupted_says
from epochlake.jobs.cli.row_files import Format, format_of, read_rows, write_rows
from epochlake.jobs.cli.text.rows import loaded, rows_table
from epochlake.jobs.printing import plural

SHOWN = 100
"""So many rows are printed unless another number is asked for."""

Level = Annotated[
    str | None, typer.Option("--consistency", metavar="LEVEL", help="ONE, QUORUM, ALL, …; else the configuration's.")
]
FileFormat = Annotated[
    Format | None, typer.Option("--format", case_sensitive=False, help="What the file is; else as its name says.")
]


def register(app: typer.Typer) -> None:
    app.command("load")(load)
    app.command("query")(query)


def load(
    context: typer.Context,
    table: TableName,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Parquet, CSV, JSON by the line, or Arrow.")],
    batch: Annotated[
        str | None,
        typer.Option("--batch", metavar="NAME", help="The write's name: however often it is tried, it lands once."),
    ] = None,
    consistency: Level = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the rows with the file's keys; its other columns do not count.")
    ] = False,
    format_: FileFormat = None,
) -> None:
    """Write a file's rows to a table: insert them, or replace those with the same key. Starts no Spark.

    The file has exactly the table's columns, and is held in memory. An empty cell of CSV is null, but in a column of
    texts. Give a --batch where it may be run again.
    """
    session = of(context)
    target = session.cluster.catch_up().table(table)
    rows = read_rows(file, format_of(file, format_), target.columns)
    change = session.cluster.delete if delete else session.cluster.write
    advice = "the same --batch" if batch else "the same rows: nothing is written twice, as they have the same keys"
    if target.append_only and not batch:
        advice = "care: rows of an append-only table may come twice without a --batch"
    with interrupted_says(f"the rows may have landed, whole or in part: run it again, with {advice}"):
        done = change(table, rows, consistency=consistency, batch=batch)
    level = session.configuration.pipeline.consistency if consistency is None else consistency.upper()
    document = Loaded(
        table=done.table,
        rows=done.rows,
        files=done.files,
        bytes=done.bytes,
        epoch=done.epoch,
        consistency=str(level),
        deleted=delete,
        already=done.already,
        missing=done.missing,
        warnings=done.warnings,
    )
    session.show(document, loaded)


def query(
    context: typer.Context,
    table: TableName,
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
        Path | None, typer.Option("--to", metavar="FILE", help="Write all rows there: Parquet, CSV or Arrow.")
    ] = None,
    format_: FileFormat = None,
    consistency: Level = None,
) -> None:
    """Show rows of a table, as a pipeline at this moment would read them. Starts no Spark.

    With --output json a list with an object for each row; with --to only a message on stderr, with their number.
    """
    from epochlake.jobs.cli.filters import parse_filters, parse_values

    session = of(context)
    target = session.cluster.catch_up().table(table)
    names = parse_names(column or [])
    rows = session.cluster.scan(
        table,
        columns=names or None,
        where=parse_filters(where or [], target),
        keys=[parse_values(parse_key(key), target)] if key else None,
        consistency=consistency,
    )
    if to is not None:
        written = write_rows(_first(rows, limit), to, format_of(to, format_))
        session.warn(f"{plural(written, 'row')} of {table} {'is' if written == 1 else 'are'} in {to}")
        return
    most = SHOWN if limit is None else limit
    every = (row for batch in rows for row in batch.to_pylist())
    shown = list(islice(every, most or None))
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
