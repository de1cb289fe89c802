"""Histories of rows: pipelines write, delete and read while nodes join, leave and die, and what they must be shown.

The checker knows calls, when they began and ended, and what they said; nothing of replicas, files or placement.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from urllib.parse import unquote

import msgspec
from epochlake.jobs import administration
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.coordinator.coordinator import Coordinator
from epochlake.jobs.gate.arrow_reading import looked_after
from epochlake.jobs.gate.errors import ConsistencyNotReached, ReadDisturbed, RowsUnreadable
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.gate.writing import Written
from epochlake.jobs.replicas.counting import count_of
from epochlake.jobs.replicas.scanning import scan
from epochlake.jobs.testing import change_histories, constraining, rolling_back
from epochlake.jobs.testing.change_histories import Change, ChangeFollowers, StreamHistory
from epochlake.jobs.testing.constraining import Constraints
from epochlake.jobs.testing.expiring import Alterations, asked_of, bound_now
from epochlake.jobs.testing.holding import Acknowledged, Holdings
from epochlake.jobs.testing.holes import Holes
from epochlake.jobs.testing.keeping import Kept
from epochlake.jobs.testing.lost_epochs import Losses, goes_back
from epochlake.jobs.testing.member_histories import Members
from epochlake.jobs.testing.misplacing import misplaced
from epochlake.jobs.testing.nemesis import DATA
from epochlake.jobs.testing.operating import operate
from epochlake.jobs.testing.past import ask_for_the_past
from epochlake.jobs.testing.playing import Player, Playing
from epochlake.jobs.testing.power import files_below
from epochlake.jobs.testing.rolling_back import Rollbacks
from epochlake.jobs.testing.row_checkers import Access, RowHistory
from epochlake.jobs.testing.row_drawing import place, row_scenario
from epochlake.jobs.testing.row_scenarios import (
    all_are_announced,
    damaged_places,
    forgets_deletes,
    goes_back_too_far,
    harmed,
    is_compacted,
    is_kept_for,
    is_one_range,
    must_stay_for,
    operations_of,
    stays_where_it_is,
)
from epochlake.jobs.testing.rows import (
    COLUMNS,
    KEYSPACE,
    MOMENT,
    TABLE,
    RowsDamaged,
    WorldRows,
    padding,
    paths_of,
    scanned,
    shares_files,
    shown,
    token_of,
)
from epochlake.jobs.testing.scenario import Operation, Scenario, Settings
from epochlake.jobs.testing.stepping import Steps
from epochlake.jobs.testing.themes import (
    ACCEPT_LOSS,
    ALTER_TTL,
    ALTERATIONS,
    BAD_ROWS,
    DESTRUCTIVE,
    EXPIRING,
    FORBIDDEN,
    KEYS,
    OTHER_ROWS,
    PIPELINES,
    ROLLBACK,
    WIDE,
)
from epochlake.jobs.testing.world import World, world_of
from epochlake.jobs.upkeep.compacting import EVERYTHING
from epochlake.jobs.upkeep.compaction import compact
from epochlake.jobs.upkeep.repair import repair
from epochlake.metastore.errors import Rejected
from epochlake.metastore.following.verification import verify
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import PlacementKind, RequestKind
from epochlake.placement.errors import EpochlakeError, InvalidRequest

MOST_DAMAGED = 50
"""Files of a history that may be damaged, at most."""

AS_SPARK, BY_KEYS = 0, 1
"""Ways of reading: what executors do, and each key by itself; else all of it, without Spark."""

ONE_BY_ONE = sorted((token_of(key), token_of(key)) for key in range(KEYS))


class _Accesses:
    """What was accessed so far, by all."""

    def __init__(
        self,
        world: World,
        holdings: Holdings,
        must_stay: Callable[[str], bool] = lambda _: False,
        *,
        stays: bool = False,
        is_behind: Callable[[], bool] = lambda: False,
        ttl: int = 0,
        alterations: Alterations | None = None,
    ) -> None:
        """`stays`: what a quorum has stays where it is. `is_behind`: whether a log went back, as yet unaccepted."""
        self._is_behind = is_behind
        self._ttl = ttl
        self._alterations = alterations or Alterations()
        self._stays = stays
        self.all: list[Access] = []
        self.wrong: list[str] = []
        """What reads needed that were planned, and nobody had a reason to delete; counts of other rows than are shown.
        """
        self._must_stay = must_stay
        self._world = world
        self._holdings = holdings
        self._batches: dict[str, int] = {}
        self._times: dict[int, list[int]] = {}
        self._tries: dict[int, list[float]] = {}
        self._ended: dict[int, float] = {}

    def change(self, gate: Gate, operation: Operation) -> None:
        """Write or delete what an operation says, once or as a batch."""
        deleted, batch = operation.kind == "delete", operation.name if operation.kind.startswith("batch") else None
        note = _note_of(operation)
        notes: dict[int, str | None] = dict.fromkeys(operation.keys, None if deleted else note)
        steps, now = self._world.scheduler.steps, self._world.scheduler.now
        number = self._batches.get(batch, len(self.all)) if batch else len(self.all)
        if number == len(self.all):
            kind = "delete" if deleted else "write"
            times = self._times[number] = []
            self.all.append(
                Access(kind, gate.name, steps, float("inf"), False, notes, level=operation.level, times=times,
                       moment=self._moment(operation))
            )  # fmt: skip
        if batch:
            self._batches[batch] = number
        self._tries.setdefault(number, []).append(steps)
        if deleted or operation.seconds < 0:
            self._holdings.deleting(notes)
        table = gate.planning.table(TABLE)
        try:
            shares, times, moment = shares_files(operation.name), self._times[number], self.all[number].moment
            rows = WorldRows(notes, shares=shares, times=times, moment=moment)
            written = gate.write(rows, table, operation.level, batch, deleted=deleted)
        except EpochlakeError:
            self._took(number, now)
            raise
        self._took(number, now)
        if wrong := self._told_otherwise(number, written, operation, steps):
            self.wrong.append(f"{gate.name} was told of {operation.name} that it has {wrong}")
        self._ended.setdefault(number, self._world.scheduler.steps)
        if not self.all[number].acknowledged:
            self.all[number] = self.all[number]._replace(ended=self._world.scheduler.steps, acknowledged=True)
        if not deleted and note is not None:
            told = gate.planning.metadata
            self._holdings.acknowledge(
                (Acknowledged(key, note, operation.level) for key in notes),
                told if told.epoch == written.epoch else None,
                incarnation=told.identity.incarnation,
            )

    def _moment(self, operation: Operation) -> int | None:
        """By which the rows of an operation expire that is about to begin."""
        if operation.kind != EXPIRING:
            return None
        return int((self._world.scheduler.now + operation.seconds - self._ttl) * 1e6)

    def _told_otherwise(self, number: int, written: Written, operation: Operation, began: float) -> str | None:
        """What a call was told of a write that is not so. `began`: when the call did. Two calls at once may each say
        that they were the first.
        """
        rows = len({*operation.keys})
        if written.rows != rows:
            return f"{written.rows} rows, and it has {rows}"
        tries = self._tries[number]
        if written.already and len(tries) == 1:
            return "been written before, and nobody else has tried it"
        ended = self._ended.get(number, began)
        if not written.already and ended < began and self._stays and operation.level == "QUORUM":
            return "not been written before, and it had been acknowledged"
        return None

    def change_otherwise(self, gate: Gate, operation: Operation) -> None:
        """Bring other rows under the name of a batch that was acknowledged: that has to be rejected."""
        number = self._batches.get(operation.name)
        if number is None or not self.all[number].acknowledged:
            return
        rows = WorldRows(dict.fromkeys(operation.keys, f"{operation.name} otherwise"))
        with suppress(Rejected):
            gate.write(rows, gate.planning.table(TABLE), operation.level, operation.name)
            self.wrong.append(f"{gate.name} was told that the batch {operation.name} has other rows than were written")

    def _has_damaged_end(self, path: str, began: float) -> bool:
        """Whether a data file is as a flipped bit has left it before, in what whoever plans a read looks at."""
        damaged = self._world.rotted_ends.get(path)
        if damaged is None or self._world.rotted[path] >= began or self._world.disk.status(path) is None:
            return False
        return self._world.disk.read(path) == damaged

    def _is_gone(self, uri: str) -> bool:
        return self._world.disk.status(_path(uri)) is None

    def _took(self, number: int, since: float) -> None:
        taken = max(self.all[number].seconds, self._world.scheduler.now - since)
        self.all[number] = self.all[number]._replace(seconds=taken)

    def read(self, gate: Gate, cluster: Cluster, level: str, hold: float = 0.0) -> None:
        """Read everything, as it was when that was planned, `hold` seconds ago: in one of the ways that there are."""
        began, now = self._world.scheduler.steps, self._world.scheduler.now
        known, was_behind = self._holdings.newest, self._is_behind()
        told_of = self._alterations.acknowledged
        table = gate.planning.table(TABLE)
        # Spark's way to filter is tried elsewhere (tests/spark).
        way = len(self.all) % 3 if not table.lifetimes else 1 + len(self.all) % 2
        asked = asked_of(table)
        expired = bound_now(table, self._world.scheduler.current.process, self._world.scheduler)
        plan = gate.plan_read(table, level, ONE_BY_ONE if way == BY_KEYS else None)
        if table.lifetimes and len(table.lifetimes) <= told_of:
            self.wrong.append(f"{gate.name} has planned a read with {len(table.lifetimes)} times to live, of {told_of}")
        told = gate.planning.metadata.fence
        if told < known and not was_behind and not self._is_behind():
            self.wrong.append(f"{gate.name} has planned a read at epoch {told}, and {known} was known before it began")
        if too_much := self._holdings.is_shown_too_much(plan, gate.planning.metadata):
            self.wrong.append(f"{gate.name} {too_much}")
        if damaged := [path for path in map(_path, paths_of(plan)) if self._has_damaged_end(path, began)]:
            self.wrong.append(f"{gate.name} has planned to read {damaged[0]}, whose end was damaged before it began")
        if hold:
            self._world.scheduler.sleep(hold)
            now += hold
        try:
            if way == AS_SPARK:
                found = shown(cluster.storage, plan)
            else:
                found = scanned(looked_after(gate, scan(plan, asked)))
                counted, there = count_of(plan, asked), sum(map(len, found.values()))
        except (EpochlakeError, RowsDamaged):
            gone = [path for path in paths_of(plan) if self._is_gone(path)]
            if gone and self._must_stay(gate.name):
                self.wrong.append(f"{gate.name} lives, and {gone[0]} of its read is gone")
            raise
        if any(self._world.rotted.get(_path(uri), -1) >= began for uri in paths_of(plan)):
            return  # what rots between the plan of a read and its end nobody looks at again
        if way != AS_SPARK and counted != there:
            self.wrong.append(f"{gate.name} is shown {there} rows, and {counted} are counted")
        notes = {key: notes[0] for key, notes in found.items()}
        ended, taken = self._world.scheduler.steps, self._world.scheduler.now - now
        self.all.append(Access("read", gate.name, began, ended, True, notes, found, level, taken, bound=expired))


def _note_of(operation: Operation) -> str | None:
    """What an operation writes."""
    match operation.kind:
        case "write null":
            return None
        case "write marked":
            return FORBIDDEN + operation.name
        case kind if kind == WIDE:
            return operation.name + padding(operation.name)
    return operation.name


def _path(uri: str) -> str:
    return unquote(uri.removeprefix("file://"))


def row_history(seed: int | Scenario, *, world: World | None = None) -> RowHistory:
    """Play a scenario, or that of a seed, then heal the world, let all come to its end, repair, and read everything."""
    scenario = seed if isinstance(seed, Scenario) else row_scenario(seed)
    with world or world_of(scenario) as world:
        world.found()
        followers = ChangeFollowers(world)
        set_up(world, scenario.settings, partial(followers.begin, names=_followers_of(scenario)))
        settings = scenario.settings
        forgets = forgets_deletes(scenario)
        # Nothing comes to rest then before somebody gives up what is lost, and a repair brings what there still is.
        too_far = goes_back_too_far(scenario)
        losses, unexpected = Losses(world), list[str]()
        members = Members(world, unexpected)
        holdings = Holdings(
            world,
            harmed(scenario),
            is_behind=lambda: not (losses.are_accepted and members.has_root),
            append_only=settings.append_only,
            forgets=forgets,
            loses_power=any(fault.kind == "power cut" for fault in scenario.faults),
        )
        steps = Steps(world, harmed(scenario), damaged_places(scenario))
        alterations = Alterations()
        accesses = _Accesses(
            world,
            holdings,
            partial(must_stay_for, scenario),
            stays=stays_where_it_is(scenario),
            is_behind=lambda: not (losses.are_accepted and members.has_root),
            ttl=settings.ttl,
            alterations=alterations,
        )
        loses = bool(harmed(scenario)) or any(fault.kind == "power cut" for fault in scenario.faults)
        followers.given = partial(_require_streamed, holdings, accesses)
        kept = Kept(world, partial(is_kept_for, scenario), loses=loses)
        constraints = Constraints(world.scheduler, holdings.rows)
        holes = Holes(world)
        rollbacks = Rollbacks(world, accesses.all, holdings.deleting)

        def play(playing: Playing, player: Player, thread: int, cluster: Cluster) -> None:
            match player.part.role:
                case "coordinator":
                    Coordinator(cluster).run(until_idle=False, should_stop=lambda: playing.is_ending)
                case "pipeline":
                    operations = waited(playing, player, thread)
                    for first in operations:
                        name = world.scheduler.current.process.name
                        with Gate(cluster, name) as gate, kept.living(name, replica_tables(cluster)):
                            for operation in itertools.chain([first], operations):
                                if operation.kind in PIPELINES:
                                    break
                                if operation.kind.startswith("read"):
                                    accesses.read(gate, cluster, operation.level, operation.seconds)
                                elif operation.kind == OTHER_ROWS:
                                    accesses.change_otherwise(gate, operation)
                                elif operation.kind in BAD_ROWS:
                                    with suppress(InvalidRequest, Rejected):
                                        accesses.change(gate, operation)
                                else:
                                    accesses.change(gate, operation)
                case "follower":
                    for operation in waited(playing, player, thread):
                        followers.follow(cluster, operation.name)
                case _:
                    for operation in waited(playing, player, thread):
                        if operation.kind in ALTERATIONS:
                            constraints.alter(cluster, operation)
                            continue
                        if operation.kind == ROLLBACK:
                            rollbacks.roll_back(cluster, operation)
                            continue
                        if operation.kind == ALTER_TTL:
                            alterations.alter(cluster, operation)
                            continue
                        if operation.kind == ACCEPT_LOSS:
                            losses.accept()
                            continue
                        before, since = holdings.acknowledged, world.scheduler.steps
                        with (
                            kept.cleaning(partial(replica_tables, cluster))
                            if operation.kind == "vacuum"
                            else nullcontext()
                        ):
                            report = operate(cluster, partial(new_volume, world), operation)
                        if report is not None and report.complete:
                            losses.repaired(since)
                        if report is not None and report.complete and not too_far:
                            holdings.everywhere(before, report.epoch)

        playing = Playing(world, scenario, play, {"members": members.play})
        playing.unexpected = unexpected
        playing.learned += [steps.learn, holdings.learn]
        playing.nemesis.before_exchange = losses.note
        if scenario.settings.members:
            members.watch(playing.nemesis, scenario.faults)
            playing.learned.append(members.require_durable)
            playing.at_peace.append(members.bring_in_order)
        elif goes_back(scenario):
            # Nobody comes to an end before somebody has accepted it.
            playing.at_peace.append(losses.settle)
        with rollbacks.watched(), holes.watched():
            playing.run()
        stream = None
        if not too_far:
            stream = _come_to_rest(world, accesses, playing, holdings, followers, losses)
        in_time = not forgets or all_are_announced(scenario)
        operated = rolling_back.violations(rollbacks.all, accesses.all, in_time=in_time)
        operated += constraining.violations(constraints.periods, scenario, accesses.all)
        return RowHistory(
            scenario,
            accesses.all,
            world.scheduler.steps,
            playing.nemesis.done,
            playing.outcomes,
            playing.coverage,
            [
                *playing.unexpected,
                *steps.wrong,
                *holdings.missing,
                *accesses.wrong,
                *kept.wrong,
                *holes.wrong,
                *operated,
            ],
            whole=is_one_range(scenario),
            append_only=scenario.settings.append_only,
            in_time=in_time,
            stream=stream,
            losses=losses.all,
        )


def _require_streamed(holdings: Holdings, accesses: _Accesses, cluster: Cluster, changes: Iterable[Change]) -> None:
    """What the stream of changes has is at its level; at ONE that is one replica of which nobody knows."""
    written = {note: one.level for one in accesses.all for note in one.notes.values() if one.kind == "write"}
    rows = [
        (Acknowledged(one.key, one.note, "QUORUM"), one.written_at)
        for one in changes
        if one.kind != "delete" and one.note is not None and written.get(one.note) in ("QUORUM", "ALL")
    ]
    holdings.streamed(rows, cluster.metadata)


def _followers_of(scenario: Scenario) -> list[str]:
    return sorted({one.name for one in operations_of(scenario) if one.kind == "follow"})


def set_up(world: World, settings: Settings, keep_changes: Callable[[Cluster, str], None] | None = None) -> None:
    def prepare() -> None:
        process = world.scheduler.current.process
        for number in range(1, len(settings.racks) + 1):
            world.storage(process).create_directory(place(number), parents=True)
        with world.cluster(process) as cluster:
            for number, rack in enumerate(settings.racks, 1):
                volume = ("d1", place(number), 10**12)
                administration.add_node(cluster, f"n{number}", "dc1", rack, [volume])
            Coordinator(cluster).run(until_idle=True)
            kind = PlacementKind.TABLETS if settings.tablets else PlacementKind.RING
            administration.create_keyspace(cluster, KEYSPACE, {"dc1": settings.replication}, placement=kind)
            administration.create_table(
                cluster,
                TABLE,
                COLUMNS + ([(MOMENT, "timestamp", True)] if settings.ttl else []),
                ["id"],
                append_only=settings.append_only,
                tablets=settings.tablets or None,
                ttl=(MOMENT, settings.ttl) if settings.ttl else None,
            )
            if settings.changes and keep_changes is not None:
                keep_changes(cluster, settings.changes)
        if settings.age:
            world.scheduler.sleep(settings.age)

    actor = world.run(world.process("founder of tables"), prepare)
    world.until_done(actor)
    if actor.error is not None:
        raise actor.error


def replica_tables(cluster: Cluster) -> list[str]:
    """Where the replicas of the table are, or may be, by what is known here."""
    table = cluster.metadata.table(TABLE)
    volumes = [volume for node in cluster.metadata.directory.members() for volume in node.volumes]
    return [f"{volume.uri}/{table.directory}/{table.table_id}" for volume in volumes]


def waited(playing: Playing, player: Player, thread: int) -> Iterator[Operation]:
    """The operations that are left, each after its wait, until the end."""
    for _, operation in player.left(thread):
        playing.world.scheduler.sleep(operation.wait)
        if playing.is_ending:
            return
        playing.doing(player, thread, operation)
        yield operation
        playing.done(player, thread)
        playing.world.scheduler.note(f"{operation.kind} {operation.name}: done")


def _come_to_rest(
    world: World,
    accesses: _Accesses,
    playing: Playing,
    holdings: Holdings,
    followers: ChangeFollowers,
    losses: Losses,
) -> StreamHistory | None:
    """Nothing goes wrong any more: everything ends, is repaired, and is read at each level. The stream of changes."""
    streams: list[StreamHistory] = []
    unexpected, scenario = playing.unexpected, playing.scenario

    def rest() -> None:
        process = world.scheduler.current.process
        if losses.all:
            losses.settle()
        with world.cluster(process) as cluster:
            if losses.all:
                playing.learn(cluster.catch_up())
            # What pipelines are shown before anybody has repaired anything, by each replica in its turn.
            for turn, level in enumerate(("ONE", "QUORUM") * 3):
                with as_many_as_there_are(cluster, scenario):
                    _over_damage(lambda gate, level=level: accesses.read(gate, cluster, level), cluster, f"rest {turn}")  # type: ignore[misc]
            last = Operation("write", name="when all was well", keys=(0,), level="QUORUM")
            with as_many_as_there_are(cluster, scenario):
                _over_damage(lambda gate: accesses.change(gate, last), cluster, "rest")
            destroyed = playing.nemesis.destroyed | _without_table(world, cluster.catch_up(), scenario)
            destroyed |= {"/".join(log.split("/")[:3]) for log, _ in Holes(world).open()}
            _let_go_on(world, cluster, destroyed, scenario.settings.racks)
            unexpected.extend(left_undone(cluster, may_be_damaged=damaged_places(scenario)))
            losses.repaired(world.scheduler.steps)
            unexpected.extend(holdings.not_owned(cluster.catch_up()))
            if world.folder is not None and is_compacted(scenario):
                unexpected.extend(_left_uncompacted(cluster, holdings))
            if scenario.settings.changes:
                # Who was killed lives for the others until its session ends, and what may be its is left alone.
                world.scheduler.sleep(2 * scenario.settings.session)
                unexpected.extend(change_histories.settled(world, cluster))
            with Gate(cluster, "at rest") as gate:
                for level in ("QUORUM", "ONE", "ONE", "ONE", "ALL"):
                    accesses.read(gate, cluster, level)
            if scenario.settings.changes:
                in_time = not forgets_deletes(scenario) or all_are_announced(scenario)
                streams.append(followers.at_rest(cluster, accesses.all[-1].rows, scenario.settings, in_time=in_time))
            in_time = all_are_announced(scenario)
            unexpected.extend(
                ask_for_the_past(world, cluster, scenario, accesses.all, playing.coverage, in_time=in_time)
            )
            unexpected.extend(misplaced(cluster.catch_up()))
            unexpected.extend(f"verify says: {one}" for one in verify(world.log(process)).findings)
        if world.folder is not None:
            world.scheduler.sleep(100_000.0)  # more than clocks went ahead
            with world.cluster(process) as cluster:
                administration.sweep(cluster, older_than_seconds=0.0)
                unexpected.extend(_of_space(world, cluster.catch_up(), playing.nemesis.destroyed))
                with Gate(cluster, "at rest") as gate:
                    accesses.read(gate, cluster, "ALL")

    actor = world.run(world.process("at rest"), rest)
    world.until_done(actor)
    if actor.error is not None:
        unexpected.append(f"at rest: {actor.error!r}")
    unexpected += [f"an hour later {node} is still there" for node in world.ephemeral_nodes_after(3600.0)]
    return streams[0] if streams else None


@contextmanager
def as_many_as_there_are(cluster: Cluster, scenario: Scenario) -> Iterator[None]:
    """Where two replicas are all that there are, no quorum does without the one that was destroyed."""
    replication = cluster.catch_up().schema.keyspaces[KEYSPACE].replication
    destructive = {fault.kind for fault in scenario.faults} & {*DATA}
    destructive |= {one.kind for one in operations_of(scenario)} & {*DESTRUCTIVE}
    try:
        yield
    except (ConsistencyNotReached, RowsUnreadable):
        if sum(replication.values()) > 2 or not destructive:
            raise


def _over_damage(do: Callable[[Gate], None], cluster: Cluster, name: str) -> None:
    """Read or write as somebody does who tries again where a file was found damaged: it is known from then on. Raises
    ReadDisturbed where it is not.
    """
    for left in reversed(range(MOST_DAMAGED)):
        try:
            with Gate(cluster, name) as gate:
                return do(gate)
        except ReadDisturbed:
            if not left:
                raise


def new_volume(world: World, number: int) -> tuple[str, list[tuple[str, str, int]]]:
    world.storage(world.scheduler.current.process).create_directory(place(number), parents=True)
    return f"n{number}", [("d1", place(number), 10**12)]


def _without_table(world: World, metadata: ClusterMetadata, scenario: Scenario) -> set[str]:
    """Places that came back as they were before there was a replica table: as good as lost, as who opens them says."""
    table = metadata.table(TABLE)
    back = {fault.place for fault in scenario.faults if fault.kind == "old storage"}
    log = f"{table.directory}/{table.table_id}/_delta_log"
    placements = metadata.placements(table.table_id)
    held = {volume for index in range(len(placements.lows)) for volume in placements.placement(index).writes}
    uris = {metadata.directory.volumes[volume].uri for volume in held}
    return {uri for uri in back & uris if world.disk.status(f"{uri}/{log}") is None}


def _left_uncompacted(cluster: Cluster, holdings: Holdings) -> list[str]:
    """Compact a table of one range; where that leaves more than one file."""
    report = compact(cluster, TABLE, policy=EVERYTHING)
    if not report.complete:
        return [f"a compaction of what is at rest is not complete: {report}"]
    files = holdings.live_files(cluster.catch_up())
    return [f"{place} has {count} files after its compaction" for place, count in files.items() if count > 1]


def left_undone(cluster: Cluster, *, may_be_damaged: Collection[str] | None = None) -> list[str]:
    """Let a coordinator and repair do all that there is to do; what they leave, and damage where there may be none:
    elsewhere than at these places, None if it may be anywhere.
    """
    found = []
    if may_be_damaged is not None:
        damaged = repair(cluster, TABLE, check_bytes=True).damaged
        volumes = cluster.metadata.directory.volumes
        found += [f"nothing has damaged {one}" for one in damaged if volumes[one.volume_id].uri not in may_be_damaged]
    report = Coordinator(cluster).run(until_idle=True)
    if not report.idle:
        # What is damaged is copied nowhere: it says that repair comes first.
        repair(cluster, TABLE, check_bytes=True)
        report = Coordinator(cluster).run(until_idle=True)
    if not report.idle and may_be_damaged:
        # A damaged file that nobody else has, in a range that moves: repair says that the operation can be cancelled.
        for request in list(cluster.catch_up().open_requests()):
            with suppress(Rejected):
                administration.cancel_request(cluster, request.request_id)
        report = Coordinator(cluster).run(until_idle=True)
    if not report.idle:
        found.append(f"the coordinator is not idle: {report}")
    repaired = repair(cluster, TABLE, check_bytes=True)
    if any(not one.is_settled for one in repaired.damaged):
        # What nobody else has was acknowledged to nobody: the rows are looked at afterwards.
        repaired = repair(cluster, TABLE, check_bytes=True, accept_loss=True)
    # A quorum of replicas that went back stays refused.
    if not msgspec.structs.replace(repaired, refused={}).complete:
        found.append(f"a repair of what is at rest is not complete: {repaired}")
    return found


def resumed(cluster: Cluster) -> ClusterMetadata:
    """Let go on what operators have held up; the metadata as they found it."""
    metadata = cluster.catch_up()
    if not metadata.switches.balancing:
        administration.resume_balancing(cluster)
    for request in list(metadata.open_requests()):
        if request.paused:
            administration.resume_request(cluster, request.request_id)
    # What leaves a node, or is to be merged, may have no other node to go to.
    for node in list(metadata.directory.members()):
        if node.maintenance:
            administration.set_maintenance(cluster, node.name, False)
    return metadata


def _let_go_on(world: World, cluster: Cluster, destroyed: set[str], racks: Sequence[str]) -> None:
    """What operators do when they are back: what was held up goes on, and what was destroyed is taken out."""
    metadata = resumed(cluster)
    numbers = itertools.count(10_001)
    removed = {request.node_id for request in metadata.open_requests() if request.kind is RequestKind.REMOVE}
    for node in list(metadata.directory.members()):
        if node.node_id not in removed and any(volume.uri in destroyed for volume in node.volumes):
            try:
                administration.replace_node(cluster, node.name, *new_volume(world, next(numbers)))
            except Rejected:
                # It has handed its ranges over already, and leaves: there is no place to take.
                administration.remove_node(cluster, node.name)
    if any(request.kind is RequestKind.LEAVE for request in metadata.open_requests()):
        # A node that leaves needs others to go to.
        for rack in sorted(set(racks)):
            name, volumes = new_volume(world, next(numbers))
            administration.add_node(cluster, name, "dc1", rack, volumes)


def _of_space(world: World, metadata: ClusterMetadata, destroyed: Collection[str]) -> list[str]:
    """After cleaning up, replica tables have the files that they need and no others, and nobody else has any."""
    assert world.folder is not None
    held = {volume.uri for node in metadata.directory.members() for volume in node.volumes}
    # What was declared lost nobody opens any more.
    lost = {volume.uri for node in metadata.directory.nodes.values() if node.lost for volume in node.volumes}
    tables = {f"{table.directory}/{table.table_id}" for table in metadata.schema.tables.values()}
    # What is kept for longer than this was to be restored, and could not be.
    kept = {f"{one.table.directory}/{one.table.table_id}" for one in metadata.dropped.tables.values()}
    found = []
    for uri in sorted({*held, *(f"/disks/{name}" for name in world.disk.names("/disks"))} - {*destroyed, *lost}):
        below = {path.removeprefix(f"{uri}/") for path, _ in files_below(world.disk, f"{uri}/{KEYSPACE}")}
        for table in sorted({*tables, *("/".join(path.split("/")[:2]) for path in below)} - kept):
            there = {path.removeprefix(f"{table}/") for path in below if path.startswith(f"{table}/")}
            if table not in tables or uri not in held:
                # Of a table that was made and never committed the empty replicas stay: vacuum has never heard of it.
                if there and (table in tables or any(not path.startswith("_delta_log/") for path in there)):
                    what = f"the {len(there)} files of {table}, say {min(there)}"
                    found.append(f"{uri} still has {what}, and nobody needs them")
                continue
            there = {path for path in there if not path.startswith("_delta_log/")}
            replica = f"{uri}/{table}"
            live = world.folder.live_files(replica) if world.disk.status(f"{replica}/_delta_log") else set()
            if there != live:
                found.append(f"{uri} has {len(there - live)} files that nobody needs, and lacks {len(live - there)}")
    return found
