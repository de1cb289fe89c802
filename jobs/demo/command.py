"""`epochlake demo` from its options to its exit code.

The demo has three parts that know nothing of each other: what happens (`choreography`), what must hold
after it (`checks`), and how that is told (`text`). Here they follow one another.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec
from epochlake import EpochlakeError, InvalidRequest
from epochlake.jobs.demo import flights
from epochlake.jobs.demo.agents import require_installed, states_or_error
from epochlake.jobs.demo.checks import Check, Evidence, examine, processes
from epochlake.jobs.demo.choreography import SHORTEST, perform
from epochlake.jobs.demo.directory import claimed
from epochlake.jobs.demo.page import require_room_for, write_page
from epochlake.jobs.demo.progress import DemoProgress
from epochlake.jobs.demo.report import DemoReport, Failure, Throughput
from epochlake.jobs.demo.stage import RunningDemo, raised
from epochlake.jobs.demo.story import ReadBack, Story
from epochlake.jobs.demo.text import report as as_text
from epochlake.jobs.demo.timeline import timeline
from epochlake.jobs.printing import without_trailing_blanks
from epochlake.jobs.spark_session import delta_jars
from epochlake.metastore.following import history
from epochlake.metastore.preflight import require_java
from epochlake.placement.errors import InvariantViolated
from rich.console import Console
from rich.text import Text

INTERRUPTED = 130
LEVELS = ("QUORUM", "ALL")

DESCRIPTION = """\
The main job on real data. Three nodes in three racks; all flights that left New York in 2013 (336,776 rows) are written
at QUORUM, month by month, by one process. In others a fourth and a fifth node join and tablets migrate to them; then a
node's storage disappears for good, writing and reading go on, the node is replaced and rebuilt. At the end everything
is read back at QUORUM and at ALL and compared with the source, and the stored files and the epoch log are verified.
"""


class DemoOptions(msgspec.Struct, frozen=True):
    root: Path
    rows: int | None
    months: int
    keep: bool
    output: str
    page: Path | None = None
    agents: bool = False


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidRequest(f"{message}", hint=f"See `{self.prog} --help`")


def run(argv: Sequence[str] | None = None, *, before_checks: Callable[[RunningDemo], None] = lambda stage: None) -> int:
    """Run the demo with these arguments (default: those of the process); its exit code.

    0: all checks hold; 4: one does not; 2: usage; 130: interrupted; else what kept it from its end. `before_checks` is
    called when everything has happened and nothing has been checked.
    """
    try:
        options = parsed(sys.argv[1:] if argv is None else argv)
    except SystemExit as done:  # --help
        return int(done.code or 0)
    except EpochlakeError as error:
        print(f"epochlake demo: {error}", file=sys.stderr)
        return error.exit_code
    errors = Console(stderr=True, highlight=False)
    with _interruptible():
        try:
            document = _run(options, errors, before_checks)
        except KeyboardInterrupt:
            _tell_failure(options, errors, "interrupted; every process of the demo has ended")
            return INTERRUPTED
        except EpochlakeError as error:
            _tell_failure(options, errors, str(error))
            return error.exit_code
    show(document, options)
    return outcome(document.checks)


def outcome(checks: Sequence[Check]) -> int:
    """The exit code: 0 only if every check holds."""
    return 0 if all(check.holds for check in checks) else InvariantViolated.exit_code


def parsed(argv: Sequence[str]) -> DemoOptions:
    """The options. Raises InvalidRequest."""
    parser = _Parser(prog="epochlake demo", description=DESCRIPTION)
    parser.add_argument(
        "--root",
        type=Path,
        default=Path(".epochlake") / "demo",
        metavar="DIR",
        help="where all of it is kept; an earlier demo there is replaced, anything else is refused (%(default)s)",
    )
    parser.add_argument("--rows", type=int, metavar="N", help="so many flights, spread over the months (all)")
    parser.add_argument(
        "--months",
        type=int,
        default=flights.MONTHS,
        metavar="N",
        help=f"the first months of the year, {SHORTEST} to {flights.MONTHS} (%(default)s)",
    )
    parser.add_argument("--keep", action="store_true", help="leave the cluster where it is, to look around in it")
    parser.add_argument(
        "--agents",
        action="store_true",
        help="with an agent on each node: nodes join by themselves, and files go from agent to agent",
    )
    parser.add_argument("--page", type=Path, metavar="FILE", help="also write pictures of it to a file of one page")
    parser.add_argument("--output", "-o", choices=("text", "json"), default="text", help="for people or for programs")
    given = parser.parse_args(list(argv))
    if not SHORTEST <= given.months <= flights.MONTHS:
        raise InvalidRequest(
            f"--months {given.months}: it takes {SHORTEST} batches for everything to happen, and a year has "
            f"{flights.MONTHS} months",
            hint=f"Give a number from {SHORTEST} to {flights.MONTHS}",
        )
    if given.rows is not None and given.rows < given.months:
        raise InvalidRequest(f"--rows {given.rows}: every one of {given.months} batches needs a row", hint="Give more")
    if given.page is not None:
        require_room_for(given.page)
    if given.agents:
        require_installed()
    return DemoOptions(given.root, given.rows, given.months, given.keep, given.output, given.page, given.agents)


def _run(options: DemoOptions, errors: Console, before_checks: Callable[[RunningDemo], None]) -> DemoReport:
    require_java()
    source = flights.source(options.months, options.rows)
    delta_jars()  # downloads what is missing, before the clock starts
    began = time.monotonic()
    with claimed(options.root) as place:
        with DemoProgress(errors, len(source)) as progress:
            progress.say(f"{len(source):,} flights to write; what others say goes to {place.messages}")
            with raised(place, source, options.months, progress, with_agents=options.agents) as stage:
                perform(stage)
                before_checks(stage)
                evidence = gathered(stage)
                progress.say("checking what is stored")
                checks = examine(evidence)
                if options.page is not None:
                    write_page(options.page, stage.cluster, stage.story)
                stage.dismiss()
            checks.append(processes(stage.story))
            document = _report(stage, evidence.read_back, checks, time.monotonic() - began, options)
        if not document.kept:
            place.remove()
    return document


def gathered(stage: RunningDemo) -> Evidence:
    """What the checks look at: everything is read back, once at each level."""
    read_back = [stage.read_back(level) for level in LEVELS]
    stage.story.ended = time.time()
    agents = None if stage.agents is None else states_or_error(stage.agents)
    return Evidence(stage.story, stage.place, stage.cluster, read_back, agents)


def _report(
    stage: RunningDemo, read_back: Sequence[ReadBack], checks: Sequence[Check], seconds: float, options: DemoOptions
) -> DemoReport:
    story = stage.story
    entries = history.entries(stage.cluster.log())
    ok = outcome(checks) == 0
    return DemoReport(
        ok=ok,
        seconds=round(seconds, 1),
        root=str(stage.place.directory),
        kept=options.keep or not ok,
        source=story.source,
        checks=tuple(checks),
        timeline=tuple(timeline(entries, story, stage.cluster.metadata)),
        nodes=tuple(story.moments),
        throughput=_throughput(story, read_back[0], len(entries)),
        writes=tuple(story.writes),
        reads=tuple(story.reads),
        read_back=tuple(read_back),
        processes=tuple(story.processes),
    )


def _throughput(story: Story, read_back: ReadBack, epochs: int) -> Throughput:
    writing = sum(write.seconds for write in story.writes)
    rows_read = read_back.checksum.rows if read_back.checksum is not None else 0
    return Throughput(
        rows_written=story.acknowledged,
        write_seconds=round(writing, 3),
        rows_written_per_second=round(story.acknowledged / writing),
        stored_bytes=sum(holding.bytes for holding in story.moments[-1].holdings),
        rows_read=rows_read,
        read_seconds=round(read_back.seconds, 3),
        rows_read_per_second=round(rows_read / read_back.seconds),
        epochs=epochs,
        streamed=story.streamed,
    )


def show(document: DemoReport, options: DemoOptions) -> None:
    """Print a report: as JSON, or for people."""
    if options.output == "json":
        print(msgspec.json.format(msgspec.json.encode(document), indent=2).decode(), flush=True)
        return
    console = Console(highlight=False)
    for part in as_text(document):
        if isinstance(part, Text) and part.no_wrap is True:
            console.print(part, soft_wrap=True)
        else:
            console.print(without_trailing_blanks(console, part), end="")


def _tell_failure(options: DemoOptions, errors: Console, message: str) -> None:
    root = str(options.root.absolute())
    errors.print(f"epochlake demo: {message}", markup=False, soft_wrap=True)
    if options.output == "json":
        print(msgspec.json.format(msgspec.json.encode(Failure(message, root)), indent=2).decode(), flush=True)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM interrupts like Ctrl-C; while the processes are being ended, neither does so again."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, found in previous.items():
            signal.signal(number, found)
