"""Playing a scenario with real parts: processes, servers behind proxies and disks, and what is done to them.

Every part is a process of its own, with ways of its own to the servers. One that was killed is followed by another one,
which tries again what may have been done, and goes on with what is left.
"""

from __future__ import annotations

import ctypes
import errno
import heapq
import itertools
import multiprocessing
import os
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import msgspec
from epochlake.jobs.testing.scenario import Fault, Part, Scenario
from epochlake.metastore.configuration import Configuration

from tests.support import participant
from tests.support.participant import READY, Line, Task, lines_of, new_journal
from tests.support.proxies import Proxies, Way
from tests.support.zookeeper import Ensemble

PATIENCE_SECONDS = 500.0
"""So long a process may take to end when nothing goes wrong any more; then its stacks are kept."""

PROCESSES = ("kill", "pause", "file too large")
"""Faults of one process. Files cannot grow beyond a size, so that some of them are torn, as on a disk that is full."""

WAYS = ("cut", "silence", "no answers", "slow")
"""Faults of the way of one process to one server, or to all of them."""

SERVERS = ("server dies", "server hangs", "no majority", "majority hangs", "all die")
"""Faults of servers; while one of them lasts no other strikes."""

ROOM = ("disk full",)
"""Faults of the disk that the root is on, or of that of all volumes, which have to be mounted: see `small_disks`."""

DISKS = ("disk away", "disk unmounted")
"""Faults of a volume: a file is in its place, or an empty folder."""

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tests.support.participant"])


class Files(NamedTuple):
    """Where a history has its files."""

    folder: Path

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def disks(self) -> Path:
        return self.folder / "disks"

    @property
    def ending(self) -> Path:
        return self.folder / "ending"

    def journal(self, name: str) -> Path:
        return self.folder / f"{name}.journal"


class Told(NamedTuple):
    """What somebody did, by journals: `who`, its part, and its lines."""

    who: str
    part: str
    lines: list[Line]


class _Player:
    def __init__(self, part: Part, ways: Sequence[Way], configuration: Configuration) -> None:
        self.part = part
        self.ways = ways
        self.configuration = configuration
        self.names: list[str] = []
        self.process: BaseProcess | None = None

    @property
    def is_at_work(self) -> bool:
        return self.process is not None and self.process.is_alive()


class Playing:
    """A scenario that is played: processes that are started again when they were killed, and faults at their times."""

    def __init__(
        self, scenario: Scenario, ensemble: Ensemble, proxies: Proxies, files: Files, configuration: Configuration
    ) -> None:
        self.harm: Counter[str] = Counter()
        self.unexpected: list[str] = []
        self._scenario = scenario
        self._ensemble = ensemble
        self._proxies = proxies
        self._files = files
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._down: set[int] = set()
        self._away: set[str] = set()
        self._players: dict[str, _Player] = {}
        for part in scenario.parts:
            ways = proxies.ways(ensemble.ports)
            connect = ",".join(f"127.0.0.1:{way.port}" for way in ways)
            zookeeper = msgspec.structs.replace(configuration.zookeeper, connect=connect)
            own = msgspec.structs.replace(configuration, zookeeper=zookeeper)
            self._players[part.name] = _Player(part, ways, own)

    def run(self) -> list[Told]:
        """From the beginning until everybody has ended; what everybody has written."""
        try:
            for player in self._players.values():
                self._start(player)
            self._wait_until_there()
            began = time.monotonic()
            for fault in self._scenario.faults:
                self._later(began + fault.at, lambda fault=fault: self._strike(fault))  # type: ignore[misc]
            self._go_on_until(began + self._scenario.seconds)
            self._heal()
            self._files.ending.touch()
            self._await_all()
        finally:
            for player in self._players.values():
                if player.process is not None and player.is_at_work:
                    player.process.kill()
                    player.process.join()
            self._heal()
        return [
            Told(name, player.part.name, lines_of(self._files.journal(name)))
            for player in self._players.values()
            for name in player.names
        ]

    def play_alone(self, part: Part, configuration: Configuration) -> None:
        """Let a process play a part when all others have ended; it writes to the journal of the part's name."""
        journal, files = self._files.journal(part.name), self._files
        paths = str(journal), str(files.ending), str(files.disks)
        task = Task(part.name, part, (0,), configuration, *paths)
        process = _SERVER.Process(target=participant.main, args=(task,), name=part.name)
        process.start()
        process.join(PATIENCE_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
        if process.exitcode != 0:
            raise RuntimeError(f"{part.name} has ended with {process.exitcode}")

    def _start(self, player: _Player) -> None:
        begun = [0] * len(player.part.threads)
        for before in player.names:
            for line in lines_of(self._files.journal(before)):
                if line.what == "begun" and line.place is not None:
                    begun[line.thread] = max(begun[line.thread], line.place + 1)
        name = f"{player.part.name}{chr(39)}{len(player.names)}" if player.names else player.part.name
        player.names.append(name)
        journal = self._files.journal(name)
        new_journal(journal)
        task = Task(
            name,
            player.part,
            tuple(begun),
            player.configuration,
            str(journal),
            str(self._files.ending),
            str(self._files.disks),
        )
        player.process = _SERVER.Process(target=participant.main, args=(task,), name=name)
        player.process.start()

    def _wait_until_there(self) -> None:
        """Faults strike who works: the first process takes seconds to be there, on a machine that is busy."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            if all(self._is_ready(player) for player in self._players.values()):
                return
            time.sleep(0.01)

    def _is_ready(self, player: _Player) -> bool:
        wanted = READY.get(player.part.role, "there")
        return any(line.what in (wanted, "error") for line in lines_of(self._files.journal(player.names[-1])))

    def _later(self, at: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._due, (at, next(self._numbers), do))

    def _go_on_until(self, end: float) -> None:
        while (now := time.monotonic()) < end:
            if self._due and self._due[0][0] <= now:
                heapq.heappop(self._due)[2]()
            else:
                time.sleep(max(0.0, min(end - now, self._due[0][0] - now if self._due else 1.0, 0.05)))

    def _await_all(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        for player in self._players.values():
            process = player.process
            assert process is not None
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                assert process.pid is not None
                os.kill(process.pid, signal.SIGUSR1)
                time.sleep(0.5)
                stacks = Path(f"{self._files.journal(player.names[-1])}.stacks").read_text()
                self.unexpected.append(f"{process.name} has not ended:\n{stacks}")
            elif process.exitcode != 0:
                self.unexpected.append(f"{process.name} has ended with {process.exitcode}")

    # Faults

    def _strike(self, fault: Fault) -> None:
        if fault.kind in PROCESSES:
            struck = self._strike_process(self._players[fault.victim], fault)
        elif fault.kind in WAYS:
            struck = self._strike_ways(self._players[fault.victim], fault)
        elif fault.kind in SERVERS:
            struck = self._strike_servers(fault)
        elif fault.kind in ROOM:
            struck = self._fill(fault)
        elif fault.kind in DISKS:
            struck = self._strike_disk(fault)
        else:
            raise ValueError(f"nobody knows the fault {fault.kind!r}")
        self.harm[fault.kind] += struck

    def _strike_process(self, player: _Player, fault: Fault) -> bool:
        process = player.process
        if process is None or not process.is_alive() or _is_done(self._files.journal(player.names[-1])):
            return False
        assert process.pid is not None
        pid = process.pid
        match fault.kind:
            case "kill":
                process.kill()
                process.join()
                self._start(player)
            case "pause":
                os.kill(pid, signal.SIGSTOP)
                self._after(fault, lambda: self._let_go_on(process))
            case "file too large":
                _limit(pid, int(fault.number))
                self._after(fault, lambda: self._let_go_on(process))
        return True

    def _let_go_on(self, process: BaseProcess) -> None:
        if process.is_alive() and process.pid is not None:
            with suppress(ProcessLookupError):
                _limit(process.pid, resource.RLIM_INFINITY)
                os.kill(process.pid, signal.SIGCONT)

    def _strike_ways(self, player: _Player, fault: Fault) -> bool:
        ways = [player.ways[int(fault.place)]] if fault.place else player.ways
        match fault.kind:
            case "cut":
                self._proxies.cut(ways)
            case "silence":
                self._proxies.hush(ways, answers_only=False)
            case "no answers":
                self._proxies.hush(ways, answers_only=True)
            case "slow":
                self._proxies.slow(ways, fault.number)
        self._after(fault, lambda: self._proxies.mend(ways))
        return player.is_at_work

    def _strike_servers(self, fault: Fault) -> bool:
        if self._down:
            return False
        first, size = int(fault.number) % 3, {"no majority": 2, "majority hangs": 2, "all die": 3}.get(fault.kind, 1)
        self._down = {(first + other) % 3 for other in range(size)}
        for index in self._down:
            if fault.kind in ("server hangs", "majority hangs"):
                self._ensemble.pause(index)
            else:
                self._ensemble.kill(index)
        self._after(fault, self._heal_servers)
        return True

    def _heal_servers(self) -> None:
        self._down = set()
        self._ensemble.heal()

    def _fill(self, fault: Fault) -> bool:
        disk = self._files.folder / fault.place
        if not os.path.ismount(disk):
            return False
        space = os.statvfs(disk)
        size = (space.f_bavail - int(fault.number)) * space.f_frsize
        if size <= 0:
            return False
        with self._filling(fault.place).open("wb") as file, suppress(OSError):  # others write meanwhile
            os.posix_fallocate(file.fileno(), 0, size)
        self._after(fault, lambda: self._make_room(fault.place))
        return True

    def _make_room(self, place: str) -> None:
        self._filling(place).unlink(missing_ok=True)

    def _filling(self, place: str) -> Path:
        return self._files.folder / place / "filling"

    def _strike_disk(self, fault: Fault) -> bool:
        path = self._files.disks / fault.place
        if fault.place in self._away:
            return False
        self._away.add(fault.place)
        aside = path.with_name(f"{path.name}-away")
        if fault.kind == "disk away":
            aside.touch()
        else:
            aside.mkdir()
        exchange(path, aside)
        self._after(fault, lambda: self._bring_back(fault.place))
        return True

    def _bring_back(self, place: str) -> None:
        """What was written where a disk is not mounted is hidden by it."""
        if place in self._away:
            self._away.remove(place)
            path = self._files.disks / place
            aside = path.with_name(f"{path.name}-away")
            exchange(path, aside)
            hidden = self._files.disks / f"hidden-{next(self._numbers)}"
            aside.rename(hidden)

    def _after(self, fault: Fault, do: Callable[[], None]) -> None:
        self._later(time.monotonic() + fault.seconds, do)

    def _heal(self) -> None:
        self._due.clear()
        for player in self._players.values():
            self._proxies.mend(player.ways)
            if player.process is not None:
                self._let_go_on(player.process)
        for place in list(self._away):
            self._bring_back(place)
        for place in ("root", "disks"):
            self._make_room(place)
        if self._down:
            self._heal_servers()


def _is_done(journal: Path) -> bool:
    return any(line.what == "done" for line in lines_of(journal))


def _limit(pid: int, size: int) -> None:
    """No file of a process grows beyond a size: writing more fails, as on a disk that is full."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


_C = ctypes.CDLL(None, use_errno=True)
_AT_CWD, _EXCHANGE = -100, 2


def exchange(one: Path, other: Path) -> None:
    """Each gets the other's name, at one moment."""
    if _C.renameat2(_AT_CWD, os.fsencode(one), _AT_CWD, os.fsencode(other), _EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, errno.errorcode.get(number, ""), str(one))
