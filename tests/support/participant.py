"""What a process of a history with real parts does: it plays one part of a scenario, and keeps a journal of it.

A call is in the journal before it begins, and its outcome before anything else is done, with times of the clock that
all processes of a machine share. The journal is a file in memory that is mapped: whatever has been written is there
when the process is killed, and a disk that is full for the process does not matter to it.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.coordinator.coordinator import Coordinator
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.testing.log_checkers import LAST, change
from epochlake.jobs.testing.log_histories import COMMITS
from epochlake.jobs.testing.operating import operate
from epochlake.jobs.testing.row_histories import TABLE
from epochlake.jobs.testing.rows import WorldRows, shown
from epochlake.jobs.testing.scenario import Operation, Part
from epochlake.jobs.upkeep.log_upkeep import compact_log
from epochlake.metastore.committing.submissions import Committed
from epochlake.metastore.configuration import Configuration
from epochlake.metastore.coordination.embedded.server import die_with_parent
from epochlake.metastore.following.verification import verify
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.digest import digest_of
from epochlake.placement.errors import EpochlakeError

if TYPE_CHECKING:
    from epochlake.jobs.gate.pipeline import Pipeline
    from pyspark.sql import SparkSession

JOURNAL_BYTES = 1 << 23
RETRY_SECONDS = 0.2
LAST_SECONDS = 60.0
READY = {"spark": "ended"}
"""What is in a journal when a process of a role is at work: "there", but sessions take their time to begin."""

AGAIN = 3
"""So many of the last operations of a killed process are tried again by the one in its place."""


def new_volume(disks: str, number: int) -> tuple[str, list[tuple[str, str, int]]]:
    """The name of a node and its volumes, on a new folder."""
    folder = Path(disks) / f"n{number}"
    folder.mkdir(parents=True, exist_ok=True)
    return f"n{number}", [("d1", str(folder), 10**12)]


class Task(msgspec.Struct, frozen=True):
    """What a process is to do. `begun`: how many operations of each thread others have begun in its place.

    At `ending` a file appears when nothing goes wrong any more; `disks` is the folder of all volumes.
    """

    name: str
    part: Part
    begun: tuple[int, ...]
    configuration: Configuration
    journal: str
    ending: str
    disks: str


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of a journal: what has begun or ended, or was seen, at a time. `call` tells the calls of a process apart.

    `place` is that of the operation in the list of its thread, None for what is tried again, and for the last one.
    """

    what: str
    at: float
    call: int = -1
    thread: int = 0
    place: int | None = None
    operation: Operation | None = None
    expected: int | None = None
    outcome: bytes = b""
    text: str = ""
    epoch: int = 0
    digest: str = ""
    rows: dict[int, list[str | None]] | None = None


class Journal:
    """Where a process writes what it does. Safe for use by several threads."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._bytes = mmap.mmap(file.fileno(), JOURNAL_BYTES)
        self._end = 0
        self._calls = 0
        self._lock = threading.Lock()

    def write(self, line: Line) -> None:
        """The line counts from when its end is there."""
        data = msgspec.json.encode(line)
        with self._lock:
            end = self._end + len(data)
            self._bytes[self._end : end] = data
            self._bytes[end : end + 1] = b"\n"
            self._end = end + 1

    def begin(
        self, operation: Operation, thread: int = 0, place: int | None = None, expected: int | None = None
    ) -> int:
        """Write that a call begins; its number."""
        with self._lock:
            call = self._calls
            self._calls += 1
        self.write(Line("begun", time.monotonic(), call, thread, place, operation, expected))
        return call

    def end(
        self,
        call: int,
        outcome: Committed | Exception | None = None,
        rows: dict[int, list[str | None]] | None = None,
    ) -> None:
        """Write that a call has ended now."""
        now = time.monotonic()
        self.write(Line("ended", now, call, outcome=pickle.dumps(outcome), text=repr(outcome), rows=rows))

    def note(self, what: str, text: str) -> None:
        """Write something else that somebody may want to know."""
        self.write(Line(what, time.monotonic(), text=text))

    def saw(self, metadata: ClusterMetadata) -> None:
        """Write which state this process has."""
        self.write(Line("seen", time.monotonic(), epoch=metadata.epoch, digest=digest_of(metadata)))


def new_journal(path: Path) -> None:
    """An empty journal for a process that is to be started."""
    with path.open("wb") as file:
        file.truncate(JOURNAL_BYTES)


def lines_of(path: Path) -> list[Line]:
    """The lines of a journal that are whole."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        end = data.find(b"\0")
        lines = data[: end if end >= 0 else len(data)].split(b"\n")[:-1]
    return [msgspec.json.decode(line, type=Line) for line in lines]


def main(task: Task) -> None:
    """Play a part to its end."""
    die_with_parent()
    with open(f"{task.journal}.stacks", "w") as stacks:
        faulthandler.register(signal.SIGUSR1, file=stacks)
        journal = Journal(task.journal)
        journal.note("there", str(os.getpid()))
        play = _commit_all if task.part.role == "commits" else _play_rows
        threads = [
            threading.Thread(target=_until_done, args=(task, journal, thread, play), name=f"part {thread}")
            for thread in range(len(task.part.threads))
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        journal.note("done", "")


def _until_done(task: Task, journal: Journal, thread: int, play: object) -> None:
    """Open the cluster anew after each error that Epochlake says; other errors are defects."""
    operations = _Operations(task, thread)
    while True:
        try:
            with Cluster(task.configuration) as cluster:
                return play(task, journal, operations, cluster)  # type: ignore[operator]
        except EpochlakeError as error:
            journal.note("error", f"{type(error).__name__}: {error}")
            time.sleep(RETRY_SECONDS)
        except BaseException as error:
            journal.note("unexpected", f"{task.name}: {error!r}")
            raise


class _Operations:
    """The operations of one thread that are left."""

    def __init__(self, task: Task, thread: int) -> None:
        self.thread = thread
        self._task = task
        self._next = task.begun[thread]
        self._again = list(task.part.threads[thread][: self._next])[-AGAIN:]

    def again(self) -> Iterator[Operation]:
        """What the process before has begun last, once."""
        while self._again:
            yield self._again.pop(0)

    def left(self) -> Iterator[tuple[int, Operation]]:
        operations = self._task.part.threads[self.thread]
        while self._next < len(operations):
            place = self._next
            time.sleep(operations[place].wait)
            self._next += 1
            yield place, operations[place]


def is_ending(task: Task) -> bool:
    """Whether nothing goes wrong any more, and all come to their ends."""
    return os.path.exists(task.ending)


# Commits


def _commit_all(task: Task, journal: Journal, operations: _Operations, cluster: Cluster) -> None:
    thread = operations.thread
    for operation in operations.again():
        if operation.kind in COMMITS:
            _commit(journal, cluster, operation, thread)
    for place, operation in operations.left():
        if operation.kind in COMMITS:
            _commit(journal, cluster, operation, thread, place)
            journal.saw(cluster.metadata)
        else:
            call = journal.begin(operation, thread, place)
            _keep_up(task, journal, cluster, operation)
            journal.end(call)
    while not is_ending(task):
        time.sleep(0.05)
    last = Operation("commit", name=f"{task.part.name}-{thread}{LAST}", number=1, seconds=LAST_SECONDS)
    _commit(journal, cluster, last, thread)


def _commit(journal: Journal, cluster: Cluster, operation: Operation, thread: int, place: int | None = None) -> None:
    expected = cluster.metadata.epoch if operation.kind == "commit next" else None
    call = journal.begin(operation, thread, place, expected)
    try:
        outcome: Committed | Exception = cluster.commit(
            change(operation.number),
            request_id=operation.name,
            timeout=operation.seconds,
            asked=asked(operation),
            expect_epoch=expected,
        )
    except EpochlakeError as error:
        outcome = error
    journal.end(call, outcome)


def asked(operation: Operation) -> str:
    """The words for what a commit asks for."""
    return f"change {operation.number}"


def _keep_up(task: Task, journal: Journal, cluster: Cluster, operation: Operation) -> None:
    match operation.kind:
        case "compact log":
            compact_log(cluster)
        case "verify":
            # While storage fails, what cannot be read now says nothing.
            found = [repr(finding) for finding in verify(cluster.log(), cluster.snapshots).findings]
            for finding in found:
                if "code='unreadable'" not in finding:
                    journal.note("unexpected", f"verify says: {finding}")
        case "look back":
            newest = cluster.catch_up().epoch
            for epoch in range(1, newest + 1, max(1, newest // 5)):
                journal.saw(cluster.at(epoch))


# Rows


def _play_rows(task: Task, journal: Journal, operations: _Operations, cluster: Cluster) -> None:
    match task.part.role:
        case "coordinator":
            Coordinator(cluster).run(until_idle=False, should_stop=lambda: is_ending(task))
        case "pipeline":
            with Gate(cluster, task.name) as gate:
                batches = [(None, again) for again in operations.again() if again.kind.startswith("batch")]
                access_all(journal, gate, cluster, _before_the_end(task, batches))
                access_all(journal, gate, cluster, _before_the_end(task, operations.left()))
        case "spark" | "spark at rest":
            from epochlake.jobs.spark_session import session  # only here: the others need no JVM

            spark = session(task.name, master="local[1]", extra={"spark.driver.memory": "512m"})
            with cluster.pipeline(task.name, spark) as pipeline:
                left = operations.left()
                access_by_spark(
                    journal, pipeline, spark, left if task.part.role != "spark" else _before_the_end(task, left)
                )
        case _:
            for place, operation in _before_the_end(task, operations.left()):
                call = journal.begin(operation, operations.thread, place)
                operate(cluster, partial(new_volume, task.disks), operation)
                journal.end(call)


def access_by_spark(
    journal: Journal, pipeline: Pipeline, spark: SparkSession, operations: Iterable[tuple[int | None, Operation]]
) -> None:
    """`access_all` by Spark. Its tokens are others than those of `WorldRows`: a table has either."""
    for place, operation in operations:
        call = journal.begin(operation, place=place)
        if operation.kind.startswith("read"):
            rows: dict[int, list[str | None]] = {}
            frame = pipeline.read(TABLE, consistency=operation.level)
            time.sleep(operation.seconds)
            for row in frame.collect():
                rows.setdefault(row.id, []).append(row.note)
            journal.end(call, rows=rows)
            continue
        keys = [(key, None if operation.kind == "delete" else operation.name) for key in operation.keys]
        frame = spark.createDataFrame(keys, "id bigint, note string")
        if operation.kind == "delete":
            pipeline.delete(frame, TABLE, consistency=operation.level)
        else:
            batch = operation.name if operation.kind.startswith("batch") else None
            pipeline.write(frame, TABLE, consistency=operation.level, batch=batch)
        journal.end(call)


def _before_the_end(
    task: Task, operations: Iterable[tuple[int | None, Operation]]
) -> Iterator[tuple[int | None, Operation]]:
    for one in operations:
        if is_ending(task):
            return
        yield one


def access_all(
    journal: Journal, gate: Gate, cluster: Cluster, operations: Iterable[tuple[int | None, Operation]]
) -> None:
    """Write, delete and read rows through a gate."""
    for place, operation in operations:
        table = gate.planning.table(TABLE)
        call = journal.begin(operation, place=place)
        if operation.kind.startswith("read"):
            plan = gate.plan_read(table, operation.level)
            time.sleep(operation.seconds)
            found = shown(cluster.storage, plan)
            journal.end(call, rows=found)
            continue
        deleted, batch = operation.kind == "delete", operation.name if operation.kind.startswith("batch") else None
        notes = dict.fromkeys(operation.keys, None if deleted else operation.name)
        gate.write(WorldRows(notes), table, operation.level, batch, deleted=deleted)
        journal.end(call)
