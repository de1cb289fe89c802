"""One process that commits, and that kills or stops itself at a named point of the protocol.

It is started by `Process` with a `Task` and writes a line to a file, flushed to the disk, before and after each
request: whatever happens to it, the file tells which requests it had begun and what became of those that ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from epochlake.jobs.cluster import Cluster
from epochlake.metastore.committing.committer import Committed, Committer
from epochlake.metastore.committing.queue import Meanwhile
from epochlake.metastore.configuration import Configuration
from epochlake.metastore.coordination.client import Coordination
from epochlake.metastore.coordination.commit_queue import ZooKeeperQueue
from epochlake.metastore.errors import CommitUnknown, Rejected
from epochlake.metastore.following.follower import Follower
from epochlake.metastore.log.delta import DeltaLog
from epochlake.metastore.log.entry import Entry, Position
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import CreateKeyspace
from epochlake.metastore.metadata.model import Keyspace, PlacementKind
from epochlake.metastore.metastore import init_cluster
from epochlake.metastore.root import Root
from epochlake.metastore.storage.storage import Storage

BEFORE_LOCK, BEFORE_APPEND, AFTER_APPEND, AFTER_HEAD = "before lock", "before append", "after append", "after head"
AFTER_CLAIM = "after claim"
TAKEN = "taken"
"""A keyspace that is there already: asking for it is rejected."""

_HERE = Path(__file__).resolve()


class Task(msgspec.Struct, frozen=True):
    """What a process does: `requests` commits in each of `threads`. At `point` it sends itself `signal`, the nth time.

    Every request asks for a keyspace of its own name, but each seventh for `taken`; each fifth by a planner.
    """

    name: str
    configuration: Configuration
    report: str
    requests: int
    threads: int = 1
    point: str = ""
    nth: int = 1
    signal: int = 0
    pause_seconds: float = 0.0
    roots: tuple[str, ...] = ()


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the report: a request has begun, or (with an outcome) has ended."""

    request_id: str
    outcome: str = ""
    epoch: int = 0
    text: str = ""


class Process:
    """A committing process, ended by its id at the latest when the test leaves the `with`."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "tests.support.committing_process", msgspec.json.encode(task).decode()],
            cwd=_HERE.parents[2],
            stdin=subprocess.DEVNULL,
        )

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self._popen.poll() is None:
            self._popen.kill()
        self._popen.wait()

    def wait(self, timeout: float = 600) -> int:
        return self._popen.wait(timeout)

    def wait_stopped(self, timeout: float = 300) -> None:
        deadline = time.monotonic() + timeout
        while Path(f"/proc/{self._popen.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert self._popen.poll() is None, "it ended instead of stopping"
            assert time.monotonic() < deadline, "it does not come to the point"
            time.sleep(0.01)

    def go_on(self) -> None:
        self._popen.send_signal(signal.SIGCONT)

    def lines(self) -> list[Line]:
        path = Path(self.task.report)
        if not path.exists():
            return []
        return [msgspec.json.decode(line, type=Line) for line in path.read_bytes().splitlines()]

    def begun(self) -> list[str]:
        return [line.request_id for line in self.lines() if not line.outcome]

    def ended(self) -> dict[str, Line]:
        return {line.request_id: line for line in self.lines() if line.outcome}


class _Point:
    """Sends the process a signal when a point is passed for the nth time."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._left = task.nth

    def __call__(self, point: str) -> None:
        if point == self._task.point:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), self._task.signal)
                time.sleep(0.05)  # a stopping process goes on for an instant


class _Log(DeltaLog):
    def __init__(self, storage: Storage, uri: str, at: _Point) -> None:
        super().__init__(storage, uri, compact_every=16)
        self._at = at

    def append(self, entries: Sequence[Entry]) -> None:
        self._at(BEFORE_APPEND)
        super().append(entries)
        self._at(AFTER_APPEND)


class _Queue(ZooKeeperQueue):
    def __init__(self, connect: Callable[[float], Coordination], at: _Point) -> None:
        super().__init__(connect)
        self._at = at

    def acquire(self, timeout: float, meanwhile: Meanwhile | None = None) -> bool:
        self._at(BEFORE_LOCK)
        return super().acquire(timeout, meanwhile)

    def claim(self) -> list[bytes]:
        claimed = super().claim()
        if claimed:
            self._at(AFTER_CLAIM)
        return claimed

    def publish(self, position: Position) -> None:
        super().publish(position)
        self._at(AFTER_HEAD)


class _Report:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, line: Line) -> None:
        os.write(self._file, msgspec.json.encode(line) + b"\n")
        os.fsync(self._file)


def a_keyspace(name: str) -> CreateKeyspace:
    return CreateKeyspace(Keyspace(name, PlacementKind.TABLETS, "NetworkTopologyStrategy", {"dc1": 1}))


def _commit(task: Task, committer: Committer, report: _Report, thread: int) -> None:
    for number in range(task.requests):
        request_id = f"{task.name}-{thread}-{number}"
        event = a_keyspace(TAKEN if number % 7 == 6 else request_id)
        report.write(Line(request_id))

        def planner(_: ClusterMetadata, event: CreateKeyspace = event) -> CreateKeyspace:
            return event

        for _ in range(5):
            line = _outcome(
                request_id,
                lambda what=planner if number % 5 == 4 else event, request_id=request_id: committer.commit(
                    what, request_id=request_id, timeout=240
                ),
            )
            if line.outcome != CommitUnknown.__name__:
                break
        report.write(line)
        time.sleep(task.pause_seconds)


def _initialise(task: Task, report: _Report) -> None:
    for number, root in enumerate(task.roots):
        # All begin at the same tenth of a second, as far as the clock tells.
        time.sleep(0.3 - time.time() % 0.3)
        request_id = f"{task.name}-{number}"
        report.write(Line(request_id))
        configuration = msgspec.structs.replace(task.configuration, root=root)
        report.write(_outcome(request_id, lambda c=configuration: init_cluster(c, task.name)))


def _outcome(request_id: str, commit: Callable[[], Committed]) -> Line:
    try:
        return Line(request_id, Committed.__name__, commit().epoch)
    except Rejected as rejected:
        return Line(request_id, Rejected.__name__, 0, rejected.code)
    except Exception as error:
        return Line(request_id, type(error).__name__, 0, str(error))


def main(encoded: str) -> int:
    task = msgspec.json.decode(encoded, type=Task)
    report = _Report(task.report)
    if task.roots:
        _initialise(task, report)
        return 0
    at = _Point(task)
    with Cluster(task.configuration) as cluster:
        follower = Follower(_Log(cluster.storage, Root(task.configuration.root).log, at), cluster.snapshots)
        committer = Committer(follower, _Queue(cluster.coordination, at), author=task.name, snapshot_every=50)
        threads = [
            threading.Thread(target=_commit, args=(task, committer, report, thread)) for thread in range(task.threads)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
