"""Histories with real parts: processes, an ensemble of three servers behind proxies, files; and the checkers of worlds.

What happens is a scenario (jobs/testing/scenario.py), drawn from a seed; when what happens is left to the machine, so a
seed does not bring the same course again. Everything that was seen is kept instead: `python -m
tests.support.real_histories --histories 20 --seed 1` says how often what struck, and keeps the histories that must not
be, with their journals.
"""

from __future__ import annotations

import argparse
import os
import pickle
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from deltalake import DeltaTable
from epochlake.jobs import administration
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.coordinator.coordinator import Coordinator
from epochlake.jobs.gate.errors import ReadDisturbed
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.testing import log_checkers, operating, row_checkers, row_histories
from epochlake.jobs.testing.log_checkers import PLANNED, Call, History, Seen, change
from epochlake.jobs.testing.log_drawing import log_scenario
from epochlake.jobs.testing.log_histories import COMMITS
from epochlake.jobs.testing.log_themes import LOG_UPKEEP
from epochlake.jobs.testing.misplacing import misplaced
from epochlake.jobs.testing.row_checkers import Access, RowHistory
from epochlake.jobs.testing.row_drawing import row_scenario
from epochlake.jobs.testing.rows import COLUMNS, TABLE
from epochlake.jobs.testing.scenario import Fault, Operation, Part, Scenario, Settings
from epochlake.metastore.configuration import (
    Configuration,
    CoordinatorSettings,
    LogSettings,
    PipelineSettings,
    StorageSettings,
    ZooKeeperSettings,
)
from epochlake.metastore.following.verification import verify
from epochlake.metastore.log.entry import Entry
from epochlake.metastore.metadata.digest import digest_of
from epochlake.metastore.metadata.model import PlacementKind, RequestKind
from epochlake.metastore.metastore import init_cluster
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from tests.support.participant import Journal, Line, access_all, asked, lines_of, new_journal, new_volume
from tests.support.proxies import Proxies
from tests.support.real_playing import DISKS, PROCESSES, ROOM, SERVERS, WAYS, Files, Playing, Told
from tests.support.zookeeper import Ensemble

SESSION_SECONDS = 1.0
LONGEST_CALL = 8.0
"""Seconds that a call of a drawn scenario may take at most: worlds wait longer, for their time costs nothing."""


# Drawing


def real_log_scenario(seed: int) -> Scenario:
    """Processes that commit, some of which compact and check the log too, for a few seconds."""
    drawn = log_scenario(seed)
    chance = random.Random(f"real log {seed}")
    seconds = round(chance.uniform(1.5, 5.0), 3)
    known = (*COMMITS, *LOG_UPKEEP)
    parts = [_for_real(part, known) for part in drawn.parts if part.role == "commits"]
    return _with_faults(chance, drawn, seconds, parts, (*PROCESSES, *WAYS, *SERVERS, *ROOM), [])


def real_row_scenario(seed: int) -> Scenario:
    """Pipelines, coordinators, operators and upkeep at one table, for a few seconds."""
    drawn = row_scenario(seed)
    chance = random.Random(f"real rows {seed}")
    seconds = round(chance.uniform(4.0, 8.0), 3)
    known = ("write", "delete", "read", "read late", "batch", *operating.KINDS)
    roles = ("pipeline", "coordinator", "operator", "upkeep")
    parts = [_for_real(part, known) for part in drawn.parts if part.role in roles]
    volumes = [f"n{number}" for number in range(1, len(drawn.settings.racks) + 1)]
    return _with_faults(chance, drawn, seconds, parts, (*PROCESSES, *WAYS, *SERVERS, *ROOM, *DISKS), volumes)


def real_spark_scenario(seed: int) -> Scenario:
    """Two Spark writers beside coordinators and operators: longer, since a write by Spark takes a second."""
    drawn = row_scenario(seed)
    chance = random.Random(f"real spark {seed}")
    seconds = round(chance.uniform(10.0, 16.0), 3)
    pipelines = [part for part in drawn.parts if part.role == "pipeline"]
    writers = [Part(f"spark{number}", "spark", chance.choice(pipelines).threads) for number in range(2)]
    writers = [msgspec.structs.replace(one, threads=_named_anew(one)) for one in writers]
    others = [part for part in drawn.parts if part.role in ("coordinator", "operator")]
    known = ("write", "delete", "read", "read late", "batch", *operating.KINDS)
    parts = [_for_real(part, known) for part in (*writers, *others)]
    volumes = [f"n{number}" for number in range(1, len(drawn.settings.racks) + 1)]
    return _with_faults(chance, drawn, seconds, parts, (*PROCESSES, *WAYS, *SERVERS, *ROOM, *DISKS), volumes)


def _named_anew(part: Part) -> tuple[tuple[Operation, ...], ...]:
    """Operations whose notes nobody else writes."""
    return tuple(
        tuple(msgspec.structs.replace(one, name=f"{part.name} {one.name}") for one in thread) for thread in part.threads
    )


def _for_real(part: Part, known: Sequence[str]) -> Part:
    """The part without what is not known here, and with times of people who wait for it."""
    threads = tuple(
        tuple(
            msgspec.structs.replace(one, wait=min(one.wait / 2, 1.0), seconds=min(one.seconds, LONGEST_CALL))
            for one in thread
            if one.kind in known
        )
        for thread in part.threads
    )
    return msgspec.structs.replace(part, threads=threads, skew=0.0)


def _with_faults(
    chance: random.Random,
    drawn: Scenario,
    seconds: float,
    parts: Sequence[Part],
    kinds: Sequence[str],
    volumes: Sequence[str],
) -> Scenario:
    # Who is killed is what all of it is about; the servers take seconds to be there again when all of them have died.
    kinds = ["kill", *chance.sample([kind for kind in kinds if kind != "all die"], chance.randint(1, 6))]
    kinds += ["all die"] if chance.random() < 0.1 else []
    mean, at = chance.choice([seconds / 3, seconds / 8, 0.3]), 0.0
    # A session takes half a minute to begin on a machine that is busy: who has one is not killed.
    quick = [part.name for part in parts if part.role != "spark"]
    names, harmed = [part.name for part in parts], chance.choice(volumes) if volumes else ""
    faults = []
    while (at := at + chance.expovariate(1 / mean)) < seconds:
        kind = chance.choice(kinds)
        victim = chance.choice(names if kind != "kill" else quick) if kind in (*PROCESSES, *WAYS) else ""
        place = harmed if kind in DISKS else chance.choice(["", "", "0", "1", "2"]) if kind in WAYS else ""
        place = chance.choice(["root", "disks"] if volumes else ["root"]) if kind in ROOM else place
        number = {
            "slow": round(chance.choice([0.005, 0.05, 0.4]), 3),
            "file too large": float(chance.choice([0, 0, 300, 1000, 3000])),
            "disk full": float(chance.choice([0, 1, 2, 5])),
        }.get(kind, float(chance.randrange(3)))
        lasts = round(chance.choice([0.1, SESSION_SECONDS * 0.8, SESSION_SECONDS * 2, 3.0]) * chance.random(), 3)
        faults.append(Fault(kind, round(at, 3), victim, place, 0.0 if kind == "kill" else lasts, number))
    settings = msgspec.structs.replace(drawn.settings, delta=True)
    kind = "spark" if any(part.role == "spark" for part in parts) else drawn.kind
    return Scenario(kind, drawn.seed, seconds, settings, tuple(parts), tuple(faults))


# Histories


@contextmanager
def real_parts(directory: Path) -> Iterator[tuple[Ensemble, Proxies]]:
    """An ensemble of three, and proxies in front of it, for any number of histories."""
    with Ensemble(directory / "ensemble", size=3) as ensemble, Proxies() as proxies:
        yield ensemble, proxies


@contextmanager
def files_in_memory() -> Iterator[Path]:
    """A folder in memory where there is such a place, else one for temporary files."""
    memory = Path("/dev/shm")
    where = str(memory) if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="epochlake-real-", dir=where) as folder:
        yield Path(folder)


UNSHARE = ("unshare", "--user", "--map-root-user", "--mount", "--propagation", "private")
DISK_BYTES = 32 << 20


def may_mount() -> bool:
    """Whether this machine lets us have mounts of our own; a disk that is full is one that is small."""
    if shutil.which(UNSHARE[0]) is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        tried = subprocess.run([*UNSHARE, "mount", "-t", "tmpfs", "none", folder], capture_output=True)
    return tried.returncode == 0


@contextmanager
def small_disks(files: Files) -> Iterator[None]:
    """The root and the volumes of a history are on disks in memory that can be filled."""
    places = [files.root, files.disks]
    for place in places:
        place.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(place)], check=True)
    try:
        yield
    finally:
        for place in places:
            subprocess.run(["umount", "--lazy", str(place)], check=True)


def configured(files: Files, connect: str, settings: Settings) -> Configuration:
    """The configuration of those who have no proxies."""
    return Configuration(
        root=str(files.root),
        zookeeper=ZooKeeperSettings(connect=connect, session_timeout_seconds=SESSION_SECONDS),
        log=LogSettings(
            commit_timeout_seconds=20.0, snapshot_every=settings.snapshot_every, compact_every=settings.compact_every
        ),
        storage=StorageSettings(deadline_seconds=10.0),
        coordinator=CoordinatorSettings(backoff_seconds=0.1),
        pipeline=PipelineSettings(attempts=3, shared_file_bytes=0),
    )


def play_log(scenario: Scenario, ensemble: Ensemble, proxies: Proxies, folder: Path) -> History:
    """Play a history of commits, and look at the log when all is well again."""
    files = Files(folder)
    files.root.mkdir(parents=True, exist_ok=True)
    configuration = configured(files, ensemble.connect_string, scenario.settings)
    init_cluster(configuration)
    playing = Playing(scenario, ensemble, proxies, files, configuration)
    told = playing.run()
    unexpected = playing.unexpected + _unexpected(told)
    seen = [Seen(one.who, line.epoch, line.digest) for one in told for line in one.lines if line.what == "seen"]
    with Cluster(configuration) as cluster:
        cluster.commit(change(PLANNED))
        metadata = cluster.catch_up()
        seen.append(Seen("at rest", metadata.epoch, digest_of(metadata)))
        unexpected += [f"verify says: {finding}" for finding in verify(cluster.log(), cluster.snapshots).findings]
        entries = cluster.log().read(0)
        unexpected += _stored(files.root / "log", entries)
        cluster_id = metadata.identity.cluster_id
    unexpected += _left_in(ensemble, f"{configuration.zookeeper.path}/{cluster_id}")
    calls = [call for one in told for call in calls_of(one)]
    return History(scenario, calls, seen, entries, len(calls), playing.harm, Counter(), unexpected)


def calls_of(told: Told) -> list[Call]:
    """The commits that a process has called, with their outcomes; times in place of steps."""
    ends = {line.call: line for line in told.lines if line.what == "ended"}
    calls = []
    for line in told.lines:
        if line.what != "begun" or line.operation is None or line.operation.kind not in COMMITS:
            continue
        end = ends.get(line.call)
        calls.append(
            Call(
                line.operation.name,
                told.who,
                line.at,
                float("inf") if end is None else end.at,
                None if end is None else pickle.loads(end.outcome),
                asked(line.operation),
                line.expected,
            )
        )
    return calls


def _unexpected(told: Sequence[Told]) -> list[str]:
    return [line.text for one in told for line in one.lines if line.what == "unexpected"]


def _stored(log: Path, entries: Sequence[Entry]) -> list[str]:
    """Whether the rows of the log's table, as delta-rs finds them, are the entries, each of them once."""
    epochs = DeltaTable(str(log)).to_pyarrow_table(columns=["epoch"]).column("epoch").to_pylist()
    again = [epoch for epoch, count in Counter(epochs).items() if count > 1]
    missing = sorted({entry.epoch for entry in entries} - {*epochs})
    return [f"epoch {one} is stored more than once" for one in again] + [
        f"epoch {one} is not stored" for one in missing
    ]


def _left_in(ensemble: Ensemble, base: str) -> list[str]:
    """What is in ZooKeeper on behalf of sessions when all have ended, or should have: nobody should wait there."""
    client = KazooClient(ensemble.connect_string)
    client.start(timeout=60)
    try:
        deadline = time.monotonic() + 30.0
        while (left := _ephemeral(client, base)) and time.monotonic() < deadline:
            time.sleep(0.2)
        return [f"when all have ended {node} is still there" for node in left]
    finally:
        client.stop()
        client.close()


def _ephemeral(client: KazooClient, path: str) -> list[str]:
    try:
        names = client.get_children(path)
        found = [path] if (stat := client.exists(path)) is not None and stat.ephemeralOwner else []
    except NoNodeError:
        return []
    return found + [one for name in names for one in _ephemeral(client, f"{path}/{name}")]


# Rows


def play_rows(scenario: Scenario, ensemble: Ensemble, proxies: Proxies, folder: Path) -> RowHistory:
    """Play a history of rows; then let everything end, repair it, and read it at each level."""
    files = Files(folder)
    for place in (files.root, files.disks):
        place.mkdir(parents=True, exist_ok=True)
    configuration = configured(files, ensemble.connect_string, scenario.settings)
    _set_up(configuration, scenario.settings, files)
    playing = Playing(scenario, ensemble, proxies, files, configuration)
    told = playing.run()
    unexpected = playing.unexpected + _unexpected(told)
    rest: Rest = SparkRest(playing, files) if scenario.kind == "spark" else Rest(files)
    try:
        unexpected += _come_to_rest(scenario, configuration, files, rest)
    except Exception as error:
        unexpected.append(f"at rest: {error!r}")
    told += rest.told()
    outcomes: Counter[str] = Counter(
        f"{one.part}: {line.text.partition(':')[0]}" for one in told for line in one.lines if line.what == "error"
    )
    operations = {one.kind for part in scenario.parts for thread in part.threads for one in thread}
    accesses = accesses_of(told)
    return RowHistory(
        scenario,
        accesses,
        len(accesses),
        playing.harm,
        outcomes,
        Counter(),
        unexpected,
        whole=scenario.settings.tablets == 1 and "resize" not in operations,
        append_only=scenario.settings.append_only,
    )


def _set_up(configuration: Configuration, settings: Settings, files: Files) -> None:
    init_cluster(configuration)
    with Cluster(configuration) as cluster:
        for number, rack in enumerate(settings.racks, 1):
            name, volumes = new_volume(str(files.disks), number)
            administration.add_node(cluster, name, "dc1", rack, volumes)
        Coordinator(cluster).run(until_idle=True)
        kind = PlacementKind.TABLETS if settings.tablets else PlacementKind.RING
        administration.create_keyspace(cluster, "air", {"dc1": settings.replication}, placement=kind)
        administration.create_table(
            cluster, TABLE, COLUMNS, ["id"], append_only=settings.append_only, tablets=settings.tablets or None
        )


def accesses_of(told: Sequence[Told]) -> list[Access]:
    """Reads that were shown something, and all that was written: tries of one batch are one access."""
    accesses: list[Access] = []
    batches: dict[str, int] = {}
    for began, one, end in sorted(_tries(told), key=lambda found: found[0].at):
        operation = began.operation
        assert operation is not None
        ended = float("inf") if end is None else end.at
        seconds = 0.0 if end is None else end.at - began.at
        if operation.kind.startswith("read"):
            if end is not None:
                rows = end.rows or {}
                notes = {key: found[0] for key, found in rows.items()}
                accesses.append(Access("read", one, began.at, ended, True, notes, rows, operation.level, seconds))
            continue
        deleted, is_batch = operation.kind == "delete", operation.kind.startswith("batch")
        notes = dict.fromkeys(operation.keys, None if deleted else operation.name)
        kind = "delete" if deleted else "write"
        access = Access(kind, one, began.at, ended, end is not None, notes, {}, operation.level, seconds)
        if not is_batch or operation.name not in batches:
            batches[operation.name] = len(accesses)
            accesses.append(access)
        elif end is not None:
            place = batches[operation.name]
            first = accesses[place]
            accesses[place] = first._replace(ended=min(first.ended, ended), acknowledged=True)
    return accesses


def _tries(told: Sequence[Told]) -> Iterator[tuple[Line, str, Line | None]]:
    for one in told:
        ends = {line.call: line for line in one.lines if line.what == "ended"}
        for line in one.lines:
            kind = line.operation.kind if line.what == "begun" and line.operation is not None else ""
            if kind in ("read", "write", "delete") or kind.startswith("batch"):
                yield line, one.who, ends.get(line.call)


class Rest:
    """Who reads and writes when nothing goes wrong any more."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._names: list[str] = []

    def access(self, cluster: Cluster, who: str, *operations: Operation) -> None:
        """Do all of it, one after the other."""
        journal = self._journal(who)
        # A file that was found damaged is known from then on.
        for _ in range(10):
            with suppress(ReadDisturbed), Gate(cluster, who) as gate:
                access_all(journal, gate, cluster, [(None, one) for one in operations])
                return

    def told(self) -> list[Told]:
        """What they were told."""
        return [Told(who, "at rest", lines_of(self._files.journal(who))) for who in self._names]

    def _journal(self, who: str) -> Journal:
        self._names.append(who)
        new_journal(self._files.journal(who))
        return Journal(str(self._files.journal(who)))


class SparkRest(Rest):
    """The same by Spark, in a process of its own: it is asked once, for its sessions take long to begin."""

    def __init__(self, playing: Playing, files: Files) -> None:
        super().__init__(files)
        self._playing = playing

    def access(self, cluster: Cluster, who: str, *operations: Operation) -> None:
        if who == AT_REST:
            self._journal(who)
            self._playing.play_alone(Part(who, "spark at rest", ((LAST_WRITE, *operations),)), cluster.configuration)


AT_REST = "at rest"
"""What the checker calls those who come last."""

LAST_WRITE = Operation("write", name="when all was well", keys=(0,), level="QUORUM")


def _come_to_rest(scenario: Scenario, configuration: Configuration, files: Files, rest: Rest) -> list[str]:
    """What does not hold when nothing goes wrong any more; reads and the last write are in journals."""
    found: list[str] = []
    with Cluster(configuration) as cluster:
        for turn, level in enumerate(("ONE", "QUORUM") * 3):
            with row_histories.as_many_as_there_are(cluster, scenario):
                rest.access(cluster, f"rest {turn}", Operation("read", level=level))
        with row_histories.as_many_as_there_are(cluster, scenario):
            rest.access(cluster, "rest", LAST_WRITE)
        _let_go_on(cluster, str(files.disks), scenario.settings.racks)
        found += row_histories.left_undone(cluster)
        levels = ("QUORUM", "ONE", "ONE", "ONE", "ALL")
        rest.access(cluster, AT_REST, *(Operation("read", level=level) for level in levels))
        found += misplaced(cluster.catch_up())
        found += [f"verify says: {one}" for one in verify(cluster.log(), cluster.snapshots).findings]
    return found


def _let_go_on(cluster: Cluster, disks: str, racks: Sequence[str]) -> None:
    """What operators do when they are back: what was held up goes on, and there is room for who leaves."""
    metadata = row_histories.resumed(cluster)
    if any(request.kind is RequestKind.LEAVE for request in metadata.open_requests()):
        for number, rack in enumerate(sorted(set(racks)), 20_000):
            name, volumes = new_volume(disks, number)
            administration.add_node(cluster, name, "dc1", rack, volumes)


# Many of them


class Played(NamedTuple):
    """What came of one history."""

    history: History | RowHistory
    violations: list[str]
    seconds: float


def play(kind: str, seed: int, ensemble: Ensemble, proxies: Proxies, folder: Path) -> Played:
    """Draw a history of a kind from a seed, play it below `folder`, and check it."""
    began = time.monotonic()
    history: History | RowHistory
    if kind == "log":
        history = play_log(real_log_scenario(seed), ensemble, proxies, folder)
        found = log_checkers.violations(history)
    else:
        scenario = real_row_scenario(seed) if kind == "rows" else real_spark_scenario(seed)
        history = play_rows(scenario, ensemble, proxies, folder)
        found = row_checkers.violations(history)
    return Played(history, found, time.monotonic() - began)


def keep(played: Played, folder: Path, where: Path) -> Path:
    """Keep a history and the files that it has left, for whoever wants to know; the folder that they are in."""
    scenario = played.history.scenario
    kept = where / f"{scenario.kind}-{scenario.seed}-{os.getpid()}"
    shutil.copytree(folder, kept, dirs_exist_ok=True)
    for journal in kept.glob("*.journal"):
        journal.with_suffix(".jsonl").write_bytes(
            b"".join(msgspec.json.encode(one) + b"\n" for one in lines_of(journal))
        )
        journal.unlink()
    (kept / "history.pickle").write_bytes(pickle.dumps(played.history))
    (kept / "violations.txt").write_text("".join(f"{one}\n" for one in played.violations))
    return kept


def summary(played: Played) -> str:
    """A history in one line."""
    history = played.history
    calls = history.calls if isinstance(history, History) else history.accesses
    harm = ", ".join(f"{kind} {times}" for kind, times in sorted(history.harm.items()) if times)
    scenario = history.scenario
    return f"{scenario.kind} {scenario.seed}: {len(calls)} calls, {played.seconds:.1f} s, {harm or 'no harm'}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 where something does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.real_histories", description=__doc__)
    parser.add_argument("--histories", type=int, default=10, help="so many of each kind")
    parser.add_argument("--seed", type=int, default=1, help="of the first ones; the next ones have the next seeds")
    parser.add_argument("--kinds", default="log,rows", help="of log, rows and spark")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no history after so long")
    parser.add_argument("--keep", type=Path, default=Path("build/real-histories"), help="for what must not be")
    parser.add_argument("--small-disks", action="store_true", help="in a namespace in which disks can be mounted")
    options = parser.parse_args(arguments)
    if not options.small_disks and may_mount():
        # The mounts are nobody else's, and go with the last process.
        again = [sys.executable, "-m", "tests.support.real_histories", "--small-disks"]
        os.execvp(UNSHARE[0], [*UNSHARE, *again, *(sys.argv[1:] if arguments is None else arguments)])
    harm: Counter[str] = Counter()
    wrong = calls = count = 0
    began = time.monotonic()
    with files_in_memory() as memory, real_parts(memory) as parts:
        for seed in range(options.seed, options.seed + options.histories):
            for kind in options.kinds.split(","):
                if time.monotonic() - began > options.minutes * 60:
                    break
                folder = memory / f"{kind}-{seed}"
                with small_disks(Files(folder)) if options.small_disks else nullcontext():
                    played = play(kind, seed, *parts, folder)
                    if played.violations:
                        kept = keep(played, folder, options.keep)
                print(summary(played), flush=True)
                if played.violations:
                    wrong += 1
                    print("\n".join(f"  {one}" for one in played.violations))
                    print(f"  kept in {kept}", flush=True)
                history: Any = played.history
                harm.update(history.harm)
                calls += len(history.calls if kind == "log" else history.accesses)
                count += 1
                shutil.rmtree(folder)
    struck = ", ".join(f"{kind} {times}" for kind, times in sorted(harm.items()))
    print(f"{count} histories, {calls} calls, {time.monotonic() - began:.0f} s; struck: {struck or 'nothing'}")
    print(f"{wrong} with violations")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
