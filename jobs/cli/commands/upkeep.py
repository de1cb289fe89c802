"""`repair` and `compact`: jobs that keep the replica tables of a table whole and small."""

from __future__ import annotations

from typing import Annotated

import typer
from epochlake.jobs.cli.arguments import Agents, Streaming, TableName, of, parse_duration, parse_size
from epochlake.jobs.cli.interruption import interrupted_says
from epochlake.jobs.cli.text.upkeep import compaction, repaired


def register(app: typer.Typer) -> None:
    app.command("repair")(repair)
    app.command("compact")(compact)


def repair(
    context: typer.Context,
    table: TableName,
    check_bytes: Annotated[
        bool, typer.Option("--check-bytes", help="Read every byte: finds damage that sizes do not show.")
    ] = False,
    streaming: Annotated[
        Streaming | None,
        typer.Option(
            "--streaming",
            case_sensitive=False,
            help="Who copies and reads: threads here, executors, or agents; else the configuration's.",
        ),
    ] = None,
    agent: Agents = None,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss", help="Give up damaged files whose rows no replica has; every replica has to answer."
        ),
    ] = False,
    accept_restored: Annotated[
        bool,
        typer.Option(
            "--accept-restored",
            help="Let replicas that went back count again where too many did; gives up what only they had.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what is missing and damaged; change nothing.")
    ] = False,
) -> None:
    """Bring every replica of a table the files that it lacks, and heal what is damaged.

    Safe beside pipelines, operations and compaction; run it again where it could not finish (exit code 75).
    """
    from epochlake.jobs.upkeep.repair import repair as run

    session = of(context)
    where = streaming or Streaming(session.configuration.coordinator.streaming)
    spark = None
    if where is Streaming.SPARK:
        from epochlake.jobs.spark_session import session as spark_session

        spark = spark_session("epochlake-repair")
    workers = None
    if where is Streaming.AGENTS:
        from epochlake.jobs.cli.asking_agents import agent_workers

        workers = agent_workers(session, agent)
    with interrupted_says(f"what was repaired of {table} until then stays: run it again for the rest"):
        done = run(
            session.cluster,
            table,
            dry_run=dry_run,
            check_bytes=check_bytes,
            accept_loss=accept_loss,
            accept_restored=accept_restored,
            spark=spark,
            workers=workers,
        )
    session.show(done, repaired)
    if not dry_run:
        done.require_complete()


def compact(
    context: typer.Context,
    table: TableName,
    everything: Annotated[
        bool, typer.Option("--all", help="Every range in which reads would find less to do, not only those worth it.")
    ] = False,
    tombstone_grace: Annotated[
        str | None,
        typer.Option(
            "--tombstone-grace",
            metavar="DURATION",
            help="Forget deletes older than this (3d); else as the table says, or 10d.",
        ),
    ] = None,
    target_size: Annotated[
        str | None, typer.Option("--target-size", metavar="SIZE", help="Size of merged files; else 134 MB.")
    ] = None,
    with_spark: Annotated[
        bool, typer.Option("--spark", help="Merge in a Spark job; else this process does, in bounded memory.")
    ] = False,
    streaming: Annotated[
        Streaming | None,
        typer.Option(
            "--streaming",
            case_sensitive=False,
            help="Who merges: threads here, executors (as --spark), or agents; else agents where the configuration has "
            "these stream.",
        ),
    ] = None,
    agent: Agents = None,
    duration: Annotated[
        str | None,
        typer.Option("--for", metavar="DURATION", help="Begin nothing after so long (1h); what is begun is ended."),
    ] = None,
    at_most: Annotated[
        str | None,
        typer.Option("--at-most", metavar="SIZE", help="Read so much to merge it, or one range where that is more."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be compacted; change nothing.")] = False,
) -> None:
    """Put the files of a table's tablets or ranges together, once for all their replicas.

    Superseded versions of rows go, old deletes when all replicas agree past them. Safe beside pipelines, operations and
    repair; run it again where a replica did not answer (exit code 75). With --for or --at-most, for schedules: what
    readers pay most for comes first, and a budget that is used up is a success; the next run goes on.
    """
    from epochlake.jobs.upkeep.compacting import EVERYTHING, TARGET_FILE_BYTES
    from epochlake.jobs.upkeep.compaction import Budget
    from epochlake.jobs.upkeep.compaction import compact as run

    session = of(context)
    grace = None if tombstone_grace is None else parse_duration(tombstone_grace)
    target = TARGET_FILE_BYTES if target_size is None else parse_size(target_size)
    budget = Budget(
        None if at_most is None else parse_size(at_most), None if duration is None else parse_duration(duration)
    )
    session.cluster.catch_up().table(table)  # before Spark is started for nothing
    where = streaming or Streaming(session.configuration.coordinator.streaming)
    spark = workers = None
    if (with_spark or streaming is Streaming.SPARK) and not dry_run:
        from epochlake.jobs.spark_session import session as spark_session

        spark = spark_session("epochlake-compaction")
    elif where is Streaming.AGENTS and not with_spark and not dry_run:
        from epochlake.jobs.cli.asking_agents import agent_workers

        workers = agent_workers(session, agent)
    with interrupted_says(f"what was compacted of {table} until then stays: run it again for the rest"):
        done = run(
            session.cluster,
            table,
            spark,
            dry_run=dry_run,
            policy=EVERYTHING if everything else None,
            tombstone_grace_seconds=grace,
            target_file_bytes=target,
            budget=budget,
            workers=workers,
        )
    session.show(done, compaction)
    if not dry_run:
        done.require_complete()
