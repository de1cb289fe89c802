"""Doing tasks near the disks: `python -m epochlake.jobs.agent.task_process`, which an agent starts when it is asked to.

It is told what to do in lines, and says what became of it in lines. It knows nothing of the log: where a file lies, and
who may be asked for it, the agent has found out. All that it stores are data files that nobody has committed. So what
it does late, or twice, or beside a coordinator that has given it up, is a file that is there already, or that nothing
names and vacuum takes. It ends when its agent does.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO

import msgspec
from epochlake.jobs.agent.merging import Merging
from epochlake.jobs.agent.remote_files import Asker, RemoteStorage, StagingStorage, fetch
from epochlake.jobs.agent.running import tls_of, token_of
from epochlake.jobs.agent.task_messages import NO_RESULT, FromProcess, ResolvedPlace, TaskKind, ToProcess, Work
from epochlake.jobs.replicas.copying import PartCopy, copy_data_file
from epochlake.jobs.replicas.cutting import cut
from epochlake.jobs.replicas.damage import ExpectedFile, check_bytes
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.intervals import FilePart
from epochlake.jobs.replicas.replica import ReplicaAddress, require_replica
from epochlake.jobs.replicas.streaming import CopyOutcome
from epochlake.jobs.workers.pace import Pace
from epochlake.metastore import configuration as configurations
from epochlake.metastore.storage import places
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.decoding import decodable
from epochlake.placement.errors import EpochlakeError

logger = logging.getLogger(__name__)

THREADS = 4
"""Tasks that are done at the same time."""

MOST_PACES = 64
ALIVE_SECONDS = 1.0


class Abandoned(Exception):
    """Nobody waits for this any more."""


class Tasks:
    """The tasks of one process, in threads that storage may keep for as long as it allows (metastore/deadlines.py)."""

    def __init__(self, storage: Storage, asker: Asker, says: BinaryIO) -> None:
        self._storage = storage
        self._staging = StagingStorage(storage.settings)
        self._merging = Merging(storage.settings)
        self._asker = asker
        self._says = says
        self._lock = threading.Lock()
        self._waiting: SimpleQueue[Work] = SimpleQueue()
        self._stopped: set[int] = set()
        self._paces: dict[tuple[str, float], Pace] = {}
        self._pacing = 0
        self._signs = 0
        self._received = 0

    def serve(self, asked: BinaryIO) -> None:
        """Do what is asked line by line, until there is no line any more."""
        for _ in range(THREADS):
            threading.Thread(target=self._work, name="task", daemon=True).start()
        threading.Thread(target=self._live, name="alive", daemon=True).start()
        for line in asked:
            message = msgspec.json.decode(line, type=decodable(ToProcess))
            with self._lock:
                self._stopped.update(message.stop)
            if message.work is not None:
                self._waiting.put(message.work)

    def _work(self) -> None:
        while True:
            work = self._waiting.get()
            result, why = NO_RESULT, ""
            try:
                result = msgspec.Raw(msgspec.json.encode(self.done(work)))
            except Abandoned:
                why = "nobody waits for it any more"
            except EpochlakeError as error:
                why = str(error) or type(error).__name__
            except Exception as error:
                logger.exception("a task failed")
                why = f"{type(error).__name__}: {error}"
            with self._lock:
                self._stopped.discard(work.key)
            self._say(work.key, result, why)

    def done(self, work: Work) -> object:
        """Do a task; its result. Raises EpochlakeError, Abandoned."""

        def moved(size: int) -> None:
            with self._lock:
                self._signs += 1
                self._received += size
                if work.key in self._stopped:
                    raise Abandoned

        moved(0)
        if work.merge is not None:
            target = self._address(work.target, self._storage)
            require_replica(target)
            return self._merging.done(work, work.merge, target, partial(moved, 0))
        file = msgspec.json.decode(work.file, type=decodable(DataFile))
        part = FilePart(file, work.low, work.high)
        target = self._address(work.target, self._storage)
        require_replica(target)
        if work.kind is TaskKind.CHECK:
            return check_bytes(ExpectedFile(file, target))
        assert work.source is not None
        there = self._address(work.source, self._staging)
        copy = PartCopy(part, there, target)
        pace = self._pace(work)
        with self._lock:
            self._pacing += 1
        pace.take(copy.size)
        with self._lock:
            self._pacing -= 1
        moved(0)
        if not work.source.address:
            require_replica(there)
            stored = copy_data_file(copy)
        else:
            remote = RemoteStorage(self._asker, work.source, moved, self._storage.settings, target)
            source = self._address(work.source, remote)
            if part.whole:
                fetch(file, source, target, moved)
            stored = file if part.whole else cut(source, part, target)
        # The commit comes from another machine: what it names is on this disk by then, with its name.
        directory = places.join(target.uri, stored.path).rpartition("/")[0]
        target.storage.sync_data(directories=[directory, target.uri])
        return CopyOutcome(stored)

    def _address(self, place: ResolvedPlace, storage: Storage) -> ReplicaAddress:
        return ReplicaAddress(
            storage, place.cluster_id, place.volume_id, place.volume_uri, place.directory, place.table_id
        )

    def _pace(self, work: Work) -> Pace:
        """The pace that the work shares with others of its coordinator."""
        key = (work.pace, work.bytes_per_second)
        with self._lock:
            if key not in self._paces:
                while len(self._paces) >= MOST_PACES:
                    del self._paces[next(iter(self._paces))]
                self._paces[key] = Pace(work.bytes_per_second)
            return self._paces[key]

    def _live(self) -> None:
        pause = threading.Event()
        while not pause.wait(ALIVE_SECONDS):
            with self._lock:
                # Who waits because of a limit does not hang.
                self._signs += self._pacing > 0
            self._say()

    def _say(self, key: int | None = None, result: msgspec.Raw = NO_RESULT, why: str = "") -> None:
        with self._lock:
            self._signs += key is not None
            line = msgspec.json.encode(FromProcess(self._signs, self._received, key, result, why[:2000]))
            try:
                self._says.write(line + b"\n")
                self._says.flush()
            except BrokenPipeError:
                os._exit(0)  # its agent is gone


def main(arguments: list[str] | None = None) -> int:
    """Do tasks until the agent has no more."""
    parser = argparse.ArgumentParser(prog="task_process")
    for option in ("--conf", "--root", "--token-file", "--tls-certificate", "--tls-key", "--tls-authority"):
        parser.add_argument(option)
    given = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    try:
        settings = configurations.load(Path(given.conf) if given.conf else None, root=given.root)
        _, tls = tls_of(given.tls_certificate, given.tls_key, given.tls_authority)
        asker = Asker(token_of(given.token_file), tls)
    except EpochlakeError as error:
        logger.error("%s", error)
        return error.exit_code
    Tasks(Storage(settings.storage), asker, sys.stdout.buffer).serve(sys.stdin.buffer)
    # Threads may hang in storage: nothing waits for them.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
