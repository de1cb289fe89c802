"""`table …`."""

from __future__ import annotations

import sys
from datetime import datetime
from enum import StrEnum
from itertools import islice
from typing import Annotated

import msgspec
import typer
from epochlake.jobs.administration.altering import ColumnChanges, table_alteration
from epochlake.jobs.administration.columns import parse_added, parse_columns
from epochlake.jobs.administration.dropped import HistoryKeeping, TableDrop, TableRestoration
from epochlake.jobs.administration.operators import OptionChanges
from epochlake.jobs.administration.schema import TableCreation
from epochlake.jobs.administration.times_to_live import TtlDrop, TtlSetting, whole_seconds
from epochlake.jobs.cli.arguments import At, Level, TableName, of, parse_duration, parse_names, parse_size, whole_list
from epochlake.jobs.cli.changing import How, carry_out, change_command
from epochlake.jobs.cli.interruption import interrupted_says
from epochlake.jobs.cli.progress import files_bar
from epochlake.jobs.cli.text.rows import adopted, exported, rolled_back, rows_table
from epochlake.jobs.cli.text.schema import checks_found, dropped_list, table_list, table_shown
from epochlake.jobs.exchange.export_formats import ExportFormat, ending
from epochlake.jobs.gate.moments import micros_of, words_of_moment
from epochlake.jobs.views.schema import dropped_rows, shown_table, table_rows
from epochlake.metastore.metadata.model import CompactionOptions, Table
from epochlake.placement.errors import InvalidRequest, InvariantViolated

USUAL = "usual"

TTL_HELP = "Rows expire so long after the moment in a column: 'seen 30d'. No read shows them then."


class Compacting(StrEnum):
    """Whether a table is compacted by the coordinator; `usual`: as the configuration says."""

    ON = "on"
    OFF = "off"
    USUAL = "usual"


app = typer.Typer(help="Tables, their columns and tablets.", no_args_is_help=True)


@change_command(app, "create")
def create(
    context: typer.Context,
    table: TableName,
    how: How,
    column: Annotated[
        list[str] | None,
        typer.Option(
            "--column",
            metavar="'NAME TYPE [NOT NULL]'",
            help="A column; several parted by commas, or repeat. Types are Spark SQL's. One that is computed: "
            "'day date generated always as (date(at))'.",
            show_default=False,
        ),
    ] = None,
    primary_key: Annotated[
        list[str] | None,
        typer.Option(
            "--primary-key", metavar="COLUMN[,COLUMN]", help="Its hash says where a row belongs.", show_default=False
        ),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            "--like", metavar="FILE", help="Columns as of this file or Delta table, and a key that its rows allow."
        ),
    ] = None,
    append_only: Annotated[
        bool, typer.Option("--append-only", help="Rows are only ever inserted: reading needs no merge.")
    ] = False,
    tablets: Annotated[
        int | None,
        typer.Option("--tablets", metavar="N", help="A power of two; else the configuration's. None on the ring."),
    ] = None,
    check: Annotated[
        list[str] | None,
        typer.Option(
            "--check",
            metavar="'NAME: PREDICATE'",
            help="No row ever makes it false: 'paid: amount >= 0'. Repeat for several.",
        ),
    ] = None,
    ttl: Annotated[str | None, typer.Option("--ttl", metavar="'COLUMN DURATION'", help=TTL_HELP)] = None,
) -> None:
    """Create a table: place its tablets, or find its ranges, make its replica tables, then commit.

    Give its columns and primary key, or a file with rows as it is to hold: then --column says what is to be otherwise.
    """
    session, keys = of(context), parse_names(primary_key or [])
    columns = parse_columns(column or [], keys)
    told: dict[str, object] = {}
    if like is not None:
        from epochlake.jobs.exchange.proposing import propose

        proposal = propose(like, keys, instead=columns)
        columns, keys = proposal.columns, list(proposal.primary_key)
        told = {"like": like, "primary_key": ", ".join(keys), "why": proposal.why}
    elif not columns or not keys:
        raise InvalidRequest(
            f"it was not said which {'columns' if not columns else 'primary key'} the table {table} has",
            hint="Give --column and --primary-key, or --like FILE for the columns of a file",
        )
    checks = _pairs(check, "check", "'NAME: PREDICATE'")
    change = TableCreation(
        table,
        columns,
        keys,
        append_only=append_only,
        tablets=tablets,
        checks=checks or msgspec.UNSET,
        ttl=msgspec.UNSET if ttl is None else _ttl(ttl),
    )
    carry_out(
        session, how, change, lambda: told | ({"no_tablets_on": change.unreachable} if change.unreachable else {})
    )


@app.command("adopt")
def adopt(
    context: typer.Context,
    origin: Annotated[str, typer.Argument(metavar="DELTA_TABLE", help="The directory or URI of a Delta table.")],
    table: TableName,
    primary_key: Annotated[
        list[str] | None,
        typer.Option("--primary-key", metavar="COLUMN[,COLUMN]", help="Else one that its rows allow."),
    ] = None,
    tablets: Annotated[
        int | None,
        typer.Option("--tablets", metavar="N", help="A power of two; else the configuration's. None on the ring."),
    ] = None,
    consistency: Level = None,
) -> None:
    """Make a replicated table of a Delta table, which stays as it is: create it, load it, compare the rows of both.

    The version is pinned at the beginning and told in the log. Run it again where it ended half-way: it goes on.
    """
    from epochlake.jobs.administration.adopting import adopt as adopt_table

    session = of(context)
    with interrupted_says("run it again: it goes on where it was, and lands nothing twice"), files_bar(session) as bar:
        done = adopt_table(
            session.cluster,
            origin,
            table,
            parse_names(primary_key or []),
            consistency=consistency,
            tablets=tablets,
            progress=bar,
        )
    session.show(done, adopted)


@app.command("export")
def export(
    context: typer.Context,
    table: TableName,
    destination: Annotated[
        str, typer.Argument(metavar="DESTINATION", help="A file, or the directory of a Delta table.")
    ],
    format_: Annotated[
        ExportFormat | None,
        typer.Option("--format", case_sensitive=False, help="Else as the name ends; without an ending delta."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Take the place of what is there, once all rows are written.")
    ] = False,
    consistency: Level = None,
) -> None:
    """Write all rows of a table, as of now, to a file or a Delta table: whole or not at all. Starts no Spark."""
    from epochlake.jobs.exchange.exporting import Exported, require_no_place_of
    from epochlake.jobs.exchange.exporting import export as export_rows
    from epochlake.jobs.exchange.row_files import path_of

    session = of(context)
    place = path_of(destination)
    chosen = format_ or ending(place)
    require_no_place_of(session.cluster, place)
    with interrupted_says(f"nothing was written to {destination}"):
        epoch = session.cluster.catch_up().epoch
        rows = session.cluster.scan(table, consistency=consistency)
        written = export_rows(rows, place, chosen, overwrite=overwrite)
    session.show(Exported(table, str(place), chosen.value, written, epoch), exported)


@change_command(app, "alter")
def alter(
    context: typer.Context,
    table: TableName,
    how: How,
    target_size: Annotated[
        str | None,
        typer.Option("--target-size", metavar="SIZE", help="Size of a tablet that is aimed at (1GiB); 0: the usual."),
    ] = None,
    min_tablets: Annotated[
        int | None, typer.Option("--min-tablets", metavar="N", help="Never fewer; a power of two.", min=1)
    ] = None,
    max_tablets: Annotated[
        int | None, typer.Option("--max-tablets", metavar="N", help="Never more; a power of two, 0: no limit.", min=0)
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="TAG[,TAG]", help="Its replicas go only to nodes with all of these tags."),
    ] = None,
    no_tags: Annotated[bool, typer.Option("--no-tags", help="Its replicas may go to any node.")] = False,
    apart_from: Annotated[
        list[str] | None,
        typer.Option("--apart-from", metavar="TABLE[,TABLE]", help="Tables that it should share no node with."),
    ] = None,
    no_apart_from: Annotated[bool, typer.Option("--no-apart-from", help="It may share nodes with any table.")] = False,
    compaction: Annotated[
        Compacting | None,
        typer.Option("--compaction", help="Whether the coordinator compacts it by itself.", show_default=False),
    ] = None,
    compaction_hours: Annotated[
        str | None,
        typer.Option("--compaction-hours", metavar="HOURS", help="When it does: 22:00-06:00, always, or usual."),
    ] = None,
    tombstone_grace: Annotated[
        str | None,
        typer.Option("--tombstone-grace", metavar="DURATION", help="Remember deletes for so long (10d), or usual."),
    ] = None,
    add: Annotated[
        list[str] | None,
        typer.Option(
            "--add",
            metavar="'NAME TYPE [NOT NULL] [DEFAULT VALUE]'",
            help="A column that it gets, or a field of a struct ('address.zip string'); rows that are there have the "
            "default, or null. Or one that is computed: 'day date generated always as (date(at))'. Or several, parted "
            "by commas.",
            show_default=False,
        ),
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(
            "--drop",
            metavar="COLUMN[,COLUMN]",
            help="Columns or fields that it has no more.",
            show_default=False,
        ),
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option(
            "--rename",
            metavar="OLD:NEW",
            help="Call a column or a field otherwise (address.street:road); repeat.",
            show_default=False,
        ),
    ] = None,
    widen: Annotated[
        list[str] | None,
        typer.Option("--widen", metavar="COLUMN:TYPE", help="A type that holds every value of the one before; repeat."),
    ] = None,
    comment: Annotated[
        list[str] | None,
        typer.Option("--comment", metavar="COLUMN:TEXT", help="What a column is; empty for nothing. Repeat."),
    ] = None,
    nullable: Annotated[
        list[str] | None,
        typer.Option("--nullable", metavar="COLUMN[,COLUMN]", help="Columns that may be null from now on."),
    ] = None,
    order: Annotated[
        list[str] | None,
        typer.Option(
            "--order",
            metavar="COLUMN[,COLUMN]",
            help="The columns or fields that come first, by their new names.",
        ),
    ] = None,
    add_check: Annotated[
        list[str] | None,
        typer.Option(
            "--add-check",
            metavar="'NAME: PREDICATE'",
            help="No row that is written from now on makes it false: 'paid: amount >= 0'. Repeat for several.",
        ),
    ] = None,
    drop_check: Annotated[
        list[str] | None, typer.Option("--drop-check", metavar="NAME[,NAME]", help="Checks that end.")
    ] = None,
    ttl: Annotated[str | None, typer.Option("--ttl", metavar="'COLUMN DURATION'", help=TTL_HELP)] = None,
    no_ttl: Annotated[
        bool, typer.Option("--no-ttl", help="No further row expires; those that have expired stay so.")
    ] = False,
) -> None:
    """Change a table: its columns and checks, when its rows expire, how its tablets are sized and where they may go,
    and how it is compacted.

    A field of a struct is named with dots: address.street; in an array visits.element.page, in a map prices.value.net.

    No row is touched. All that is said of columns becomes one epoch; a name that is used again never shows old values.
    """
    session = of(context)
    columns = ColumnChanges(
        add=parse_added(add or []),
        drop=tuple(parse_names(drop or [])),
        rename=_pairs(rename, "rename", "OLD:NEW"),
        widen=_pairs(widen, "widen", "COLUMN:TYPE"),
        comment=_pairs(comment, "comment", "COLUMN:TEXT"),
        nullable=tuple(parse_names(nullable or [])),
        order=tuple(parse_names(order or [])),
        add_checks=_pairs(add_check, "add-check", "'NAME: PREDICATE'") or msgspec.UNSET,
        drop_checks=tuple(parse_names(drop_check or [])) or msgspec.UNSET,
    )
    said = _compaction(session.cluster.catch_up().table(table), compaction, compaction_hours, tombstone_grace)
    wanted = OptionChanges(
        target_bytes=None if target_size is None else parse_size(target_size),
        min_count=min_tablets,
        max_count=max_tablets,
        tags=whole_list(tag, none=no_tags, option="tag"),
        apart_from=whole_list(apart_from, none=no_apart_from, option="apart-from"),
        compaction=msgspec.UNSET if said is None else said,
    )
    if ttl is not None or no_ttl:
        if wanted != OptionChanges() or columns != ColumnChanges() or (ttl is not None and no_ttl):
            raise InvalidRequest(
                f"when rows of {table} expire, and what else is said of it, cannot be changed at once",
                hint="Change one after the other",
            )
        carry_out(session, how, TtlDrop(table) if ttl is None else TtlSetting(table, *_ttl(ttl)))
        return
    if wanted == OptionChanges() and columns == ColumnChanges():
        raise InvalidRequest(
            f"nothing is to be different about {table}",
            hint="Say what changes of its columns, checks and TTL, the size or number of its tablets, its tags, what "
            "it keeps apart from, or how it is compacted",
        )
    carry_out(session, how, table_alteration(table, wanted, columns))


@app.command("validate")
def validate(
    context: typer.Context,
    table: TableName,
    check: Annotated[
        list[str] | None, typer.Option("--check", metavar="NAME[,NAME]", help="These only; else all of its checks.")
    ] = None,
) -> None:
    """Look whether the rows that a table has satisfy its checks, and record it. Exit code 4: some do not."""
    from epochlake.jobs.administration.checks import validate_checks

    session = of(context)
    with interrupted_says("nothing was recorded; run it again"):
        found = validate_checks(session.cluster, table, parse_names(check or []))
    session.show(found, checks_found)
    if not found.holds:
        raise typer.Exit(InvariantViolated.exit_code)


@app.command("list")
def list_(
    context: typer.Context,
    at: At = None,
    dropped: Annotated[bool, typer.Option("--dropped", help="Those that were dropped and can be restored.")] = False,
) -> None:
    """List the tables.

    With --dropped and --output json a list of objects with name, table_id, columns, tablets, keep_seconds and epoch.
    """
    session = of(context)
    if dropped:
        session.show(dropped_rows(session.cluster.at(at)), dropped_list)
        return
    session.show(table_rows(session.cluster.at(at)), table_list)


@app.command("show")
def show(context: typer.Context, table: TableName, at: At = None) -> None:
    """Show a table's columns and how its tablets or ranges are spread."""
    session = of(context)
    session.show(shown_table(session.cluster.at(at), table), table_shown)


@change_command(app, "drop")
def drop(
    context: typer.Context,
    table: TableName,
    how: How,
    keep: Annotated[
        str, typer.Option("--keep", metavar="DURATION", help="Vacuum leaves it alone for so long at least (7d).")
    ] = "0",
) -> None:
    """Drop a table. `table restore` brings it back until vacuum deletes its files."""
    carry_out(of(context), how, TableDrop(table, parse_duration(keep)))


@change_command(app, "restore")
def restore(
    context: typer.Context,
    table: TableName,
    how: How,
    id_: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Of several that had this name; else the last one.")
    ] = None,
    as_: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Under another name, within its keyspace.")
    ] = None,
) -> None:
    """Bring back a table that was dropped, with all of its rows."""
    carry_out(of(context), how, TableRestoration(table, id_, as_))


@change_command(app, "history")
def history(
    context: typer.Context,
    table: TableName,
    how: How,
    keep: Annotated[str, typer.Option("--keep", metavar="DURATION", help="For so long (7d); 0: until vacuum comes.")],
) -> None:
    """Say for how long vacuum keeps what reads of a table as of an earlier time need."""
    carry_out(of(context), how, HistoryKeeping(table, parse_duration(keep)))


@app.command("diff")
def diff(
    context: typer.Context,
    table: TableName,
    since: Annotated[str, typer.Option("--from", metavar="TIME", help="The earlier time: 2013-01-01T10:00:00Z.")],
    until: Annotated[str | None, typer.Option("--to", metavar="TIME", help="The later one; else now.")] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="At most so many rows; 0: all.", min=0)] = 50,
    consistency: Level = None,
) -> None:
    """Show which rows of a table were added, removed or changed between two times. Starts no Spark.

    With --output json a list with an object for each row: its columns, _change, and _before, the row as it was.
    """
    from epochlake.jobs.replicas.row_values import shown_rows

    session = of(context)
    rows = session.cluster.changed_rows(table, since, until, consistency=consistency)
    every = (row for batch in rows for row in shown_rows(batch))
    shown = list(islice(every, min(limit, sys.maxsize) or None))
    more = limit > 0 and next(every, None) is not None
    session.show(shown, lambda found: rows_table(rows.schema.names, found))
    if more:
        session.warn(f"there are more rows than these {limit:,}: --limit 0 shows all")


@app.command("rollback")
def rollback(
    context: typer.Context,
    table: TableName,
    to: Annotated[str, typer.Option("--to", metavar="TIME", help="As the rows were then: 2013-01-01T10:00:00Z.")],
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="Undo what came until then; else now. To try again what failed."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many rows would change.")] = False,
    consistency: Level = None,
) -> None:
    """Write the rows of a table as they were at an earlier time, and delete those that came since."""
    from epochlake.jobs.administration.past_rows import rollback as roll_back
    from epochlake.jobs.administration.past_rows import time_of_newest

    session = of(context)
    # Known before it begins: who breaks it off has to say the same again.
    upper = until or _later_of(to, time_of_newest(session.cluster, table, consistency=consistency))
    with interrupted_says(f"run it again with --until {upper}: nothing lands twice"):
        done = roll_back(session.cluster, table, to, until=upper, consistency=consistency, dry_run=dry_run)
    session.show(done, rolled_back)


def _later_of(to: str, newest: datetime) -> str:
    return words_of_moment(max(micros_of(to), micros_of(newest)))


def _pairs(texts: list[str] | None, option: str, form: str) -> dict[str, str]:
    """Names with what follows the first colon. Raises InvalidRequest for a text without one, and for a name twice."""
    pairs: dict[str, str] = {}
    for text in texts or []:
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise InvalidRequest(f"--{option} {text!r} cannot be read", hint=f"Write {form}")
        if name.strip() in pairs:
            raise InvalidRequest(f"--{option} names {name.strip()} twice", hint="Give it once")
        pairs[name.strip()] = value.strip()
    return pairs


def _ttl(text: str) -> tuple[str, int]:
    """The column and the seconds of `seen 30d`. Raises InvalidRequest."""
    column, _, duration = text.strip().rpartition(" ")
    if not column.strip():
        raise InvalidRequest(f"--ttl {text!r} cannot be read", hint="Write 'COLUMN DURATION', as in 'seen 30d'")
    return column.strip(), whole_seconds(parse_duration(duration))


def _compaction(
    table: Table, by_itself: Compacting | None, hours: str | None, grace: str | None
) -> CompactionOptions | None:
    """What is said of a table's compaction from now on; None where nothing of it changes."""
    if by_itself is None and hours is None and grace is None:
        return None
    said = table.compacting
    if by_itself is not None:
        said = msgspec.structs.replace(said, by_itself=None if by_itself is Compacting.USUAL else by_itself == "on")
    if hours is not None:
        said = msgspec.structs.replace(said, hours=None if hours == USUAL else "" if hours == "always" else hours)
    if grace is not None:
        kept = None if grace == USUAL else parse_duration(grace)
        said = msgspec.structs.replace(said, tombstone_grace_seconds=kept)
    return said
