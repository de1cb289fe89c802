"""What the world does to a cluster: processes die and stand still, networks break, disks fail, lie, fill up and forget.

Each fault of a scenario is done at its time. Those that come to an end by themselves are mended then, and all of them
when the world is healed; what was destroyed stays so.
"""

from __future__ import annotations

import errno
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from epochlake.jobs.replicas.volumes import MARKER_FILE
from epochlake.jobs.testing.power import files_below
from epochlake.jobs.testing.scenario import Fault
from epochlake.jobs.testing.scheduler import Process, Waiter
from epochlake.jobs.testing.world import World
from epochlake.metastore.errors import UnknownFormat
from epochlake.metastore.following.snapshot_format import decode_snapshot, encode_snapshot

PROCESSES = ("kill", "pause", "cut", "clock jumps", "access fails", "server lags")
"""Faults of one process."""

LATE = ("requests late",)
"""Faults of what a process has asked for: it goes on, and whatever it asks for at the moment of the fault gets there
late, from whichever of its threads.
"""
LOST_ANSWER = "answer lost"
"""What a process does next is done, and it is told after a while that it has failed. `number`: for so many seconds
it does not reach the directory of it then.
"""

MOUNTS = ("unreachable",)
"""Faults of one process and a place: its machine does not reach it, while others do."""

EVERYBODY = ("no majority", "zookeeper forgets", "power cut")
"""Faults of all that is there."""

PLACES = ("disk away", "disk hangs", "disk full", "disk errors")
"""Faults of a place, which end."""

DATA = ("flipped bit", "lost storage", "old storage", "lost replica commit")
"""Faults of a place that destroy something: a cluster withstands them at one place."""

SNAPSHOTS = ("other snapshot",)
"""Faults of the snapshots of a log, which proves them."""

COMMITS = ("torn commit", "flipped commit", "lost commit")
"""Faults of the commits of a log, which operators heal: of such that others were built on."""

TORN_END = "torn end"
"""The last commit of a log is torn, when nobody works there any more (see log_histories.py)."""

_ZOOKEEPER = tuple(
    f"zookeeper {asked}" for asked in ("create", "delete", "setdata", "getdata", "getchildren", "exists")
)
_LOG_IN_MEMORY = ("log append", "log fence", "log read")
_LOG_ON_DISK = (
    *(f"log {asked}" for asked in ("read", "write", "link", "list", "delete", "sync")),
    *(f"log delta-rs: {asked}" for asked in ("open", "update", "checkpoint", "clean the log of")),
)
_FILES = tuple(f"shared {asked}" for asked in ("write", "link", "rename to", "delete", "read", "list"))
_VOLUMES = tuple(
    f"volume {asked}" for asked in ("write", "link", "rename to", "delete", "sync", "read", "look at", "list")
)
_TABLES = tuple(f"volume delta-rs: {asked}" for asked in ("open", "update", "checkpoint"))


def moments(*, rows: bool, delta: bool) -> tuple[str, ...]:
    """What processes do outside, before and after its effect: where a fault can lie in wait, by the kind of history."""
    accesses = [*_ZOOKEEPER, *(_LOG_ON_DISK if delta else _LOG_IN_MEMORY)]
    accesses += [*_FILES] if rows or delta else []
    accesses += [*_VOLUMES, *(_TABLES if delta else ())] if rows else []
    return tuple(f"{access}{done}" for access in accesses for done in ("", ", done"))


FOLLOWING = "follower given"
"""A follower of changes has been given a batch of them, and has kept what it has dealt with."""

EXACTLY = tuple(
    f"{part} {asked}{done}"
    for part in ("commit", *(f"n{number} commit" for number in range(1, 7)), "ledger", "journal entry")
    for asked in ("read", "write", "link")
    for done in ("", ", done")
)
"""What processes do with a commit of a replica table, of any node or of one, with the ledger of compactions, and with
what says that a merge counts.
"""

MOMENTS = tuple(dict.fromkeys((*moments(rows=True, delta=False), *moments(rows=True, delta=True), FOLLOWING, *EXACTLY)))
"""All of them."""

_OUTAGE_SECONDS = 3.0

_SEALED = (".parquet", ".snapshot")

_COMMIT = re.compile(r"/\d{20}\.json\Z")

_VANISHING = 6
"""Among so many commits of a replica table, before its last one, is the one that vanishes."""

_MAGIC = 4
"""So many bytes of a data file come before its first page."""

_QUIET_TRIES = 80
"""So many bits are tried until one is found that changes rows without an error: one of fifty does."""

_TRIES_IN_PAGES = 150
"""The same of bits before the footer: one of ninety does."""


class Nemesis:
    """Does the faults of a scenario. `done` counts those that struck somebody at work, by name.

    `victim` gives the process that plays a part now, None when it has ended; `replace` begins another one in its place;
    `struck` is told of each fault that struck; `stages` says how far operations are known to be.
    """

    def __init__(
        self,
        world: World,
        faults: Sequence[Fault],
        *,
        victim: Callable[[str], Process | None],
        replace: Callable[[Process], None],
        struck: Callable[[Fault], None] = lambda _: None,
        stages: Callable[[], Collection[str]] = lambda: (),
    ) -> None:
        self.done: Counter[str] = Counter()
        self.destroyed: set[str] = set()
        """Places whose storage was lost."""
        self.exchanged: Counter[str] = Counter()
        """By places: how often what was in it has been replaced by nothing, or by what had been there before."""
        self.is_stopped = False
        self._world = world
        self._faults = sorted(faults, key=lambda fault: fault.at)
        self._victim = victim
        self._replace = replace
        self._struck = struck
        self._stages = stages
        self._random = random.Random(repr(("nemesis", world.seed)))
        self._waiting: dict[str, list[_Waiting]] = {}
        """By moments: the faults that wait for them."""
        self._late: dict[tuple[Process, str], float] = {}
        """Until when requests are under way, by who has made them and at which moment."""
        self._under_way: list[Waiter] = []
        self._lies: dict[str, tuple[bytes, bytes]] = {}
        """What is in files that read otherwise for a while, and what they read."""
        self.before_exchange: Callable[[str], None] = lambda _: None
        """Is told of a place right before what is in it is replaced."""

    def begin(self) -> None:
        """Do harm from now on."""
        self._world.scheduler.lookout = self._meet
        self._world.scheduler.spawn(self._world.keeper, "main", self._rage)

    def stop(self) -> None:
        """Do no more harm, and mend what can be mended."""
        self.is_stopped = True
        self._world.scheduler.lookout = None
        self._tell_the_truth()
        for waiter in self._under_way:
            self._world.scheduler.wake(waiter)
        self._world.heal()

    def _rage(self) -> None:
        scheduler = self._world.scheduler
        began = scheduler.now
        for fault in self._faults:
            scheduler.sleep(began + fault.at - scheduler.now)
            if self.is_stopped:
                return
            if fault.when:
                self._waiting.setdefault(fault.when, []).append(_Waiting(fault))
            elif self._world.is_busy:
                self._do(fault)

    def _meet(self, process: Process, moment: str) -> None:
        """A process has come to a moment that faults may wait for."""
        for waiting in list(self._waiting.get(moment, ())):
            who = waiting.fault.by or waiting.fault.victim
            if who and self._victim(who) is not process:
                continue
            if waiting.fault.during and waiting.fault.during not in self._stages():
                continue
            waiting.left -= 1
            if waiting.left == 0 and not self.is_stopped:  # it may just have come back from a pause
                self._waiting[moment].remove(waiting)
                self._do(waiting.fault, process)
        left = self._late.get((process, moment), 0.0) - self._world.scheduler.now
        if left > 0 and not self.is_stopped:
            waiter = Waiter()
            self._under_way.append(waiter)
            self._world.scheduler.wait(waiter, left)

    def _do(self, fault: Fault, process: Process | None = None) -> None:
        scheduler = self._world.scheduler
        struck = process if process is not None and not fault.victim else self._victim(fault.victim)
        current = scheduler.current.process
        if not self._strike(fault, struck):
            return
        scheduler.note(str(fault))
        self.done[fault.kind] += 1
        self._struck(fault)
        # Last: who is killed here does nothing more, and who is paused goes on later.
        if not current.alive:
            scheduler.kill(current)
        if current.paused_until > scheduler.now:
            scheduler.point("paused")

    def _strike(self, fault: Fault, victim: Process | None) -> bool:
        """Do it; whether it struck."""
        if fault.kind in LATE:
            if victim is None or not victim.alive:
                return False
            self._late[victim, fault.when] = self._world.scheduler.now + fault.seconds
            return True
        if fault.kind in (*PROCESSES, LOST_ANSWER):
            return victim is not None and self._strike_process(fault, victim)
        if fault.kind in MOUNTS:
            return victim is not None and self._unmount(fault, victim)
        if fault.kind in PLACES:
            return self._strike_place(fault)
        if fault.kind in DATA:
            return self._destroy(fault)
        match fault.kind:
            case "no majority":
                self._world.ensemble.lose_majority(fault.seconds)
            case "zookeeper forgets":
                self._world.ensemble.forget()
            case "power cut":
                self._cut_power()
            case "other snapshot":
                return self._exchange_snapshot(fault.place)
            case "torn commit" | "flipped commit" | "lost commit":
                return self._damage_commit(fault)
            case "torn end":
                return False
            case unknown:
                raise ValueError(f"nobody knows the fault {unknown!r}")
        return True

    def _strike_process(self, fault: Fault, victim: Process) -> bool:
        scheduler = self._world.scheduler
        if not victim.alive or not victim.actors:
            return False
        match fault.kind:
            case "kill":
                self._kill([victim])
                self._replace(victim)
            case "pause":
                scheduler.pause(victim, fault.seconds)
            case "cut":
                self._world.ensemble.cut(victim, fault.seconds)
            case "server lags":
                return self._world.ensemble.lag(victim, fault.seconds, fault.number)
            case "clock jumps":
                victim.skew += fault.number
            case "access fails":
                self._world.troubles.doomed.add(victim)
            case kind if kind == LOST_ANSWER:
                self._world.troubles.lost_answers[victim] = (fault.seconds, fault.number)
        return True

    def _kill(self, victims: Sequence[Process]) -> None:
        """End processes; the one that runs now when this is over, as nothing more is done in it."""
        for victim in victims:
            if victim is self._world.scheduler.current.process:
                victim.alive = False
            else:
                self._world.scheduler.kill(victim)

    def _strike_place(self, fault: Fault) -> bool:
        troubles, place = self._world.troubles, fault.place
        if place in {*troubles.failing, *troubles.hanging, *troubles.full, *troubles.chances}:
            return False
        match fault.kind:
            case "disk away":
                troubles.failing[place] = int(fault.number)
            case "disk hangs":
                troubles.hang(place)
            case "disk full":
                troubles.full.add(place)
            case "disk errors":
                troubles.chances[place] = fault.number
        self._later(fault.seconds, lambda: troubles.mend(place))
        return True

    def _unmount(self, fault: Fault, victim: Process) -> bool:
        unreachable = self._world.troubles.unreachable.setdefault(victim, set())
        if fault.place in unreachable or not victim.alive:
            return False
        unreachable.add(fault.place)
        self._later(fault.seconds, lambda: unreachable.discard(fault.place))
        return True

    def _cut_power(self) -> None:
        """Of all machines at once: who worked begins anew, and disks have what was synced."""
        world = self._world
        struck = [process for process in world.processes if process.alive and process.actors]
        self._kill(struck)
        world.cuttable.cut("/", self._random)
        world.ensemble.lose_majority(_OUTAGE_SECONDS)
        for process in struck:
            self._replace(process)

    def _destroy(self, fault: Fault) -> bool:
        place = fault.place
        match fault.kind:
            case "flipped bit" if fault.number > 1:
                return self._lie_for_a_while(place, fault.seconds, in_footers=fault.number > 2)
            case "flipped bit" if fault.number:
                return self._flip_quietly(place)
            case "flipped bit":
                return self._flip(place)
            case "lost storage":
                self.destroyed.add(place)
                # With its marker it is mounted all the same, and its node can be rebuilt where it is.
                keeping = (MARKER_FILE,) if fault.number else ()
                self._exchange(place, lambda: self._world.empty(place, keeping))
            case "old storage":
                before = self._world.copy(place)
                self._later(fault.seconds, lambda: self._exchange(place, before))
            case "lost replica commit":
                return self._lose_replica_commit(place)
        return True

    def _exchange(self, place: str, exchange: Callable[[], None]) -> None:
        """A disk goes, and comes back with other contents."""
        self.before_exchange(place)
        self.exchanged[place] += 1
        troubles = self._world.troubles
        troubles.failing[place] = errno.EIO
        exchange()
        self._world.cuttable.forget(place)
        self._later(_OUTAGE_SECONDS, lambda: troubles.mend(place))

    def _flip(self, place: str) -> bool:
        """Change one bit of one file of rows, or of one snapshot, that has some."""
        disk = self._world.disk
        data = [path for path, status in files_below(disk, place) if path.endswith(_SEALED) and status.size]
        data = [path for path in data if "/_delta_log/" not in path]
        if not data:
            return False
        path = self._random.choice(data)
        content = disk.read(path)
        quietly = self._random.random() < 0.5 and path.endswith(_SEALED[0]) and not self._world.seen.is_in_use(path)
        flipped = (_flipped_quietly(content, self._random) if quietly else None) or _flipped(content, self._random)
        self._put_flipped(path, content, flipped)
        return True

    def _flip_quietly(self, place: str) -> bool:
        """Change one bit of each file of rows, so that its rows are others and no checksum of a page says so."""
        disk, found = self._world.disk, False
        files = [path for path, _ in files_below(disk, place) if path.endswith(_SEALED[0])]
        for path in [path for path in files if "/_delta_log/" not in path]:
            flipped = None if self._world.seen.is_in_use(path) else _flipped_quietly(disk.read(path), self._random)
            if flipped is not None:
                self._put_flipped(path, disk.read(path), flipped)
                found = True
        return found

    def _lie_for_a_while(self, place: str, seconds: float, *, in_footers: bool) -> bool:
        """Have each file of rows read as with a bit flipped, so that its rows are others and no checksum of a page says
        so: in the footer, or before it, as in the header of a page. The disk gives what was written again when the time
        is over.
        """
        disk = self._world.disk
        files = [path for path, _ in files_below(disk, place) if path.endswith(_SEALED[0]) and path not in self._lies]
        for path in [path for path in files if "/_delta_log/" not in path and not self._world.seen.is_in_use(path)]:
            content = disk.read(path)
            if in_footers:
                flipped = _flipped_quietly(content, self._random)
            else:
                flipped = _flipped_unnoticed(content, self._random, _in_pages, _TRIES_IN_PAGES, _rows_in_batches)
            if flipped is not None:
                self._put_flipped(path, content, flipped)
                self._lies[path] = (content, flipped)
        self._later(seconds, self._tell_the_truth)
        return bool(self._lies)

    def _tell_the_truth(self) -> None:
        for path, (content, flipped) in self._lies.items():
            if self._world.disk.status(path) is not None and self._world.disk.read(path) == flipped:
                self._world.disk.write(path, content, new=False)
        self._lies.clear()

    def _put_flipped(self, path: str, content: bytes, flipped: bytes) -> None:
        self._world.disk.write(path, flipped, new=False)
        self._world.rotted[path] = self._world.scheduler.steps
        if path.endswith(_SEALED[0]) and flipped[: _footer(content)] == content[: _footer(content)]:
            self._world.rotted_ends[path] = flipped

    def _lose_replica_commit(self, place: str) -> bool:
        """Let one of the last commits of a replica table vanish, after which others were made."""
        disk = self._world.disk
        by_table: dict[str, list[str]] = {}
        for path, _ in files_below(disk, place):
            if _COMMIT.search(path):
                by_table.setdefault(path.rpartition("/")[0], []).append(path)
        built_on = [sorted(paths)[1:-1][-_VANISHING:] for _, paths in sorted(by_table.items())]
        choices = [paths for paths in built_on if paths]
        if not choices:
            return False
        path = self._random.choice(self._random.choice(choices))
        disk.delete(path)
        self._world.holes[path] = self._world.scheduler.steps
        return True

    def _exchange_snapshot(self, place: str) -> bool:
        """Put one with sound checksums in place of the newest snapshot, as software with a defect would write it."""
        disk = self._world.disk
        found = [path for path, _ in files_below(disk, place) if path.endswith(".snapshot")]
        if not found:
            return False
        try:
            metadata, position = decode_snapshot(disk.read(found[-1]))
        except UnknownFormat:
            return False  # it is damaged already
        switches = msgspec.structs.replace(metadata.switches, balancing=not metadata.switches.balancing)
        metadata = msgspec.structs.replace(metadata, switches=switches)
        disk.write(found[-1], encode_snapshot(metadata, position), new=False)
        return True

    def _damage_commit(self, fault: Fault) -> bool:
        """Damage one of the last commits of a table with rows in one after it, which proves what it held."""
        disk, chance = self._world.disk, self._random
        commits = [path for path, _ in files_below(disk, f"{fault.place}/_delta_log") if _COMMIT.search(path)]
        last = max((path for path in commits if b'{"add":' in disk.read(path)), default="")
        built_on = [path for path in commits[1:] if path < last and disk.read(path)][-4:]
        if not built_on:
            return False
        path = chance.choice(built_on)
        if fault.kind == "lost commit":
            disk.delete(path)
        else:
            damage = _flipped if fault.kind == "flipped commit" else torn
            disk.write(path, damage(disk.read(path), chance), new=False)
        return True

    def _later(self, seconds: float, do: Callable[[], object]) -> None:
        def unless_stopped() -> None:
            if not self.is_stopped:
                do()

        self._world.scheduler.after(seconds, unless_stopped, self._world.keeper)


def torn(content: bytes, chance: random.Random) -> bytes:
    """What a power cut may leave of a file: its beginning, whole lines of it, or zeros after it."""
    lines = content.splitlines(keepends=True)
    some = b"".join(lines[: chance.randrange(len(lines))])
    cut = content[: chance.randrange(len(content))]
    return chance.choice([b"", some, cut, cut + bytes(len(content) - len(cut))])


def _flipped(content: bytes, chance: random.Random, start: int = 0, end: int | None = None) -> bytes:
    changed = bytearray(content)
    changed[chance.randrange(start, end or len(content))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _flipped_quietly(content: bytes, chance: random.Random) -> bytes | None:
    """With a bit of the footer flipped so that the rows read otherwise, and no checksum of a page says so."""

    def in_footer(content: bytes) -> tuple[int, int]:
        return _footer(content), len(content)

    return None if _footer(content) <= 0 else _flipped_unnoticed(content, chance, in_footer, _QUIET_TRIES, _rows)


def _in_pages(content: bytes) -> tuple[int, int]:
    return _MAGIC, max(_MAGIC + 1, _footer(content))


def _flipped_unnoticed(
    content: bytes,
    chance: random.Random,
    where: Callable[[bytes], tuple[int, int]],
    tries: int,
    rows: Callable[[bytes], list[dict[str, object]] | None],
) -> bytes | None:
    """With a bit flipped, from one byte on and before another, so that who reads the rows is given others without an
    error.
    """
    before = rows(content)
    if before is None:
        return None
    for _ in range(tries):
        flipped = _flipped(content, chance, *where(content))
        after = rows(flipped)
        if after is not None and after != before:
            return flipped
    return None


def _footer(content: bytes) -> int:
    """Where the footer of a data file begins."""
    return len(content) - 8 - int.from_bytes(content[-8:-4], "little")


def _rows(content: bytes) -> list[dict[str, object]] | None:
    """What a reader makes of a data file that believes its footer; None when it is an error."""
    try:
        return pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True).read().to_pylist()
    except (OSError, pa.ArrowException, ValueError, OverflowError, MemoryError):
        return None


def _rows_in_batches(content: bytes) -> list[dict[str, object]] | None:
    """The same of who reads it in batches: where a page says that it has fewer values, those are all that there are."""
    try:
        file = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
        return [row for batch in file.iter_batches(use_threads=False) for row in batch.to_pylist()]
    except (OSError, pa.ArrowException, ValueError, OverflowError, MemoryError):
        return None


class _Waiting:
    """A fault that waits for a moment."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.left = fault.nth
