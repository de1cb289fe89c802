"""`coordinator run`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Annotated, Any

import typer
from epochlake.jobs.cli.arguments import Agents, Streaming, of
from epochlake.jobs.cli.interruption import interrupted_says
from epochlake.jobs.cli.text.coordinator import live, report
from epochlake.jobs.views.status import operations_in_flight

app = typer.Typer(help="The process that moves requests and tablets forward.", no_args_is_help=True)


@app.command("run")
def run(
    context: typer.Context,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End when nothing is left to do, or nothing can go on (exit code 75).")
    ] = False,
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds",
            metavar="N",
            min=1,
            help="End after so many rounds, whatever is left to do; what goes on beside the last one is waited for, "
            "for a minute.",
        ),
    ] = None,
    streaming: Annotated[
        Streaming | None,
        typer.Option(
            "--streaming",
            case_sensitive=False,
            help="Who copies and cuts files: threads here, executors, or agents, which merge, too; else the "
            "configuration's.",
        ),
    ] = None,
    agent: Agents = None,
) -> None:
    """Coordinate: carry out requests, move tablets, and compact what readers pay for while nothing moves.

    Compaction is a service's: not with --until-idle or --rounds. Stops cleanly on Ctrl-C and SIGTERM.
    """
    # Here, not at the top: only this command needs streaming, and perhaps Spark.
    from epochlake.jobs.coordinator.coordinator import Coordinator
    from epochlake.jobs.upkeep import coordination_member_track
    from epochlake.jobs.upkeep.log_member_track import LogMemberTrack, end_unfinished, kept_automatically

    session = of(context)
    keeps_members = kept_automatically(session.configuration)
    if keeps_members:
        # Before the cluster is opened, which cannot be while one is unfinished.
        end_unfinished(session.configuration, session.storage)
    offers = None
    if coordination_member_track.kept_automatically(session.configuration):
        from epochlake.jobs.cli.asking_agents import coordination_offers

        coordination_member_track.require_keepable(session.configuration)
        offers = coordination_offers(session)
    where = streaming or Streaming(session.configuration.coordinator.streaming)
    spread: dict[str, Any] = {}
    mergers = None
    if where is Streaming.SPARK:
        from epochlake.jobs.coordinator.effects.pre_split import PreSplitter
        from epochlake.jobs.coordinator.loads import MEASURING_PARTITIONS, measure_loads
        from epochlake.jobs.replicas.streaming import COPYING_PARTITIONS, Copier
        from epochlake.jobs.spark_session import session as spark_session
        from epochlake.jobs.workers.spark import SparkWorkers

        rate, spark = session.configuration.coordinator.bytes_per_second, spark_session("epochlake-coordinator")
        spread = {
            "copier": Copier(SparkWorkers(spark, COPYING_PARTITIONS), bytes_per_second=rate),
            "pre_splitter": PreSplitter(SparkWorkers(spark), rate),
            "measure": partial(
                measure_loads, session.cluster.storage, workers=SparkWorkers(spark, MEASURING_PARTITIONS)
            ),
        }
    if where is Streaming.AGENTS:
        from epochlake.jobs.cli.asking_agents import agent_workers
        from epochlake.jobs.coordinator.effects.pre_split import PreSplitter
        from epochlake.jobs.replicas.streaming import Copier

        rate = session.configuration.coordinator.bytes_per_second
        workers = mergers = agent_workers(session, agent)
        # The limit of splitting is kept by who commits: each file counts once.
        spread = {
            "copier": Copier(workers, bytes_per_second=rate),
            "pre_splitter": PreSplitter(bytes_per_second=rate, cutter=Copier(workers)),
        }
    from epochlake.jobs.upkeep.change_track import ChangeTrack

    woken = threading.Event()
    spread |= {"beside": [ChangeTrack(session.cluster, woken=woken)], "woken": woken}
    if not until_idle and rounds is None:
        from epochlake.jobs.upkeep.compaction_track import CompactionTrack

        track = CompactionTrack(session.cluster, workers=mergers)
        spread |= {"beside": [track, ChangeTrack(session.cluster, woken=track.woken)], "woken": track.woken}
    if keeps_members:
        keeping = LogMemberTrack(session.cluster)
        spread |= {"beside": [*spread["beside"], keeping], "on_trouble": keeping.out_of_reach}
    if offers is not None:
        track_of_servers = coordination_member_track.CoordinationMemberTrack(
            session.cluster, offers, woken=spread["woken"]
        )
        spread |= {"beside": [*spread["beside"], track_of_servers]}
    if coordination_member_track.is_published(session.configuration):
        publishing = coordination_member_track.PublishingTrack(session.cluster, woken=spread["woken"])
        spread |= {"beside": [*spread["beside"], publishing]}
    look = partial(operations_in_flight, session.cluster)
    with (
        interrupted_says("what was committed until then stays, and the next coordinator goes on from there"),
        _asked_to_stop() as asked,
        live(session.errors, look) as on_progress,
    ):
        coordinator = Coordinator(session.cluster, on_progress=on_progress, **spread)
        done = coordinator.run(until_idle, most_rounds=rounds, should_stop=asked.is_set)
    session.show(done, report)
    if until_idle and not asked.is_set():
        done.require_idle()


@contextmanager
def _asked_to_stop() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set for the duration of the block; the second one interrupts."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def note(signum: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
