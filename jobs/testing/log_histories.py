"""Histories of commits: processes that commit, try again and die; and what they hear, see and leave behind."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from urllib.parse import unquote

import msgspec
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.testing.log_checkers import LAST, PLANNED, QUIET_SECONDS, Call, History, Read, Seen, change
from epochlake.jobs.testing.log_drawing import RESTORED, SNAPSHOT_FAULTS, log_scenario
from epochlake.jobs.testing.member_histories import Members
from epochlake.jobs.testing.nemesis import COMMITS as LOG_DAMAGE
from epochlake.jobs.testing.nemesis import TORN_END, torn
from epochlake.jobs.testing.playing import Player, Playing
from epochlake.jobs.testing.power import copied, files_below, restore
from epochlake.jobs.testing.scenario import Operation, Scenario
from epochlake.jobs.testing.world import ROOT, World, world_of
from epochlake.jobs.upkeep.log_upkeep import compact_log, heal_files
from epochlake.jobs.upkeep.lost_epochs import accept_loss
from epochlake.metastore.committing.submissions import Committed
from epochlake.metastore.coordination.head import HEAD, Head
from epochlake.metastore.coordination.root import ROOT as REGISTERED
from epochlake.metastore.errors import LOG_CONTRADICTS, CommitUnknown, Rejected
from epochlake.metastore.following.verification import verify
from epochlake.metastore.log.delta import DeltaLog
from epochlake.metastore.log.entry import Entry
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.digest import digest_of
from epochlake.metastore.metadata.fence import Fence
from epochlake.metastore.root import Root
from epochlake.placement.decoding import decodable
from epochlake.placement.errors import EpochlakeError

COMMITS = ("commit", "commit next", "reuse")
LAST_SECONDS = 120.0
_COMMIT = re.compile(r"/_delta_log/\d{20}\.json\Z")
OPERATORS = 2
"""So many accept the loss of epochs at the same time."""


def log_history(seed: int | Scenario, *, world: World | None = None) -> History:
    """Play a scenario, or that of a seed, then heal the world and let all come to their ends."""
    scenario = seed if isinstance(seed, Scenario) else log_scenario(seed)
    with world or world_of(scenario) as world:
        world.found()
        calls: list[Call] = []
        seen: list[Seen] = []
        again: dict[tuple[str, int], list[Operation]] = {}
        reads: list[Read] = []
        accepted: list[tuple[int, int]] = []
        incarnations: list[tuple[int, int]] = []
        heads = world.ensemble.kept.setdefault(HEAD, [])
        operators: list[str] = []
        kinds = {fault.kind for fault in scenario.faults}
        is_restored = RESTORED in kinds and not scenario.settings.members
        is_damaged = bool(kinds & {*LOG_DAMAGE, TORN_END})

        def play(playing: Playing, player: Player, thread: int, cluster: Cluster) -> None:
            # Who is started again tries again what its predecessor may have done, under the same request ids.
            key = (player.part.name, thread)
            for operation in again.pop(key, [])[-3:]:
                _commit(playing, cluster, operation, calls)
            tried = again.setdefault(key, [])
            for _, operation in player.left(thread):
                world.scheduler.sleep(operation.wait)
                playing.doing(player, thread, operation)
                if operation.kind in COMMITS:
                    tried.append(operation)
                    outcome = _commit(playing, cluster, operation, calls)
                    # Who is told that the log is another one has read what nobody had announced: no state of it.
                    if not isinstance(outcome, (*LOG_CONTRADICTS, CommitUnknown)) and not operation.on:
                        seen.append(_state(world, cluster.metadata))
                elif operation.kind == "accept loss":
                    _accept_loss(world, accepted, incarnations)
                elif operation.kind == "catch up":
                    _catch_up(world, cluster, seen, reads)
                elif operation.kind == "heal log":
                    _heal(world)
                else:
                    findings = _keep_up(world, cluster, operation, seen)
                    playing.unexpected += [] if is_restored else _undue(findings, scenario)
                playing.done(player, thread)
            while not playing.is_ending:
                world.scheduler.sleep(1.0)
            last = Operation("commit", name=f"{player.part.name}-{thread}{LAST}", number=PLANNED, seconds=LAST_SECONDS)
            if playing.at_peace:
                while len(operators) < len(playing.at_peace):
                    world.scheduler.sleep(1.0)
                # Who knows what is lost goes on when it has opened the log anew.
                with world.cluster(world.scheduler.current.process) as cluster:
                    _commit(playing, cluster, last, calls)
            else:
                _commit(playing, cluster, last, calls)

        def accept() -> None:
            _accept_loss(world, accepted, incarnations)
            # What was announced may get there late, by somebody who was cut off: who is told of it looks again.
            world.scheduler.sleep(30.0)
            _accept_loss(world, accepted, incarnations)
            operators.append(world.scheduler.current.process.name)

        def heal() -> None:
            if TORN_END in kinds:
                world.scheduler.sleep(QUIET_SECONDS + LAST_SECONDS)
                _tear_the_end(world)
            try:
                _heal(world)
            except EpochlakeError as error:
                world.scheduler.note(f"heal log: {error}")
                playing.unexpected.append(f"the log is not healed: {error}")
            operators.append(world.scheduler.current.process.name)

        def bring_in_order() -> None:
            members.bring_in_order()
            operators.append(world.scheduler.current.process.name)

        unexpected: list[str] = []
        members = Members(world, unexpected)
        playing = Playing(world, scenario, play, {"members": members.play})
        playing.unexpected = unexpected
        playing.at_peace += [accept] * OPERATORS * is_restored + [heal] * is_damaged
        if scenario.settings.members:
            members.watch(playing.nemesis, scenario.faults)
            playing.learned.append(members.require_durable)
            playing.at_peace.append(bring_in_order)
        playing.run()
        if members.was_given_up:
            # What was lost was given up: nothing is asked any more of what anybody was told.
            done, said = playing.nemesis.done, playing.unexpected
            return History(scenario, [], [], [], world.scheduler.steps, done, playing.coverage, said)
        entries = _at_rest(world, scenario, seen, playing.unexpected)
        announced = _lost_head(heads, entries)
        playing.unexpected += _left(world, scenario, entries)
        if scenario.settings.members and not playing.unexpected:
            playing.unexpected += _lose_the_root(world, members, entries)
        return History(
            scenario,
            calls,
            seen,
            entries,
            world.scheduler.steps,
            playing.nemesis.done,
            playing.coverage,
            playing.unexpected,
            accepting=min(accepted, default=(0, 0))[0],
            # One who was told of a failure may have accepted it.
            accepted=max((ended for _, ended in accepted), default=0),
            announced=announced,
            reads=reads,
            incarnations=incarnations,
        )


def _lost_head(heads: Iterable[bytes], entries: Sequence[Entry]) -> int:
    """The last epoch that was announced, of those that are not in the log any more; 0: there is none."""
    there = {entry.hash for entry in entries}
    found = (msgspec.json.decode(head, type=decodable(Head)) for head in heads)
    return max((head.epoch for head in found if head.hash not in there), default=0)


def _heal(world: World) -> None:
    """Put back what commits of the log have lost."""
    for mending in heal_files(world.storage(world.scheduler.current.process), Root(ROOT)):
        world.scheduler.note(f"heal log: {mending}")


def _tear_the_end(world: World) -> None:
    """The power is cut while the last commit of the log is written, by a machine whose disk says more than it does."""
    last = max(path for path, _ in files_below(world.disk, f"{ROOT}/log/_delta_log") if path.endswith(".json"))
    world.disk.write(last, torn(world.disk.read(last), random.Random(repr(("torn end", world.seed)))), new=False)


def _catch_up(world: World, cluster: Cluster, seen: list[Seen], reads: list[Read]) -> None:
    """Ask the log where the cluster is."""
    began = world.scheduler.steps
    metadata = cluster.catch_up()
    seen.append(_state(world, metadata))
    reads.append(Read(seen[-1].process, began, Fence.of(metadata.fence)))


def _accept_loss(world: World, accepted: list[tuple[int, int]], incarnations: list[tuple[int, int]]) -> None:
    """Let the cluster go on where a log ends that went back, if it did."""
    storage, began = world.storage(world.scheduler.current.process), world.scheduler.steps
    try:
        told = accept_loss(world.configuration, storage=storage)
    except Rejected as error:
        world.scheduler.note(f"accept loss: {error}")
        return
    except EpochlakeError:
        accepted.append((began, world.scheduler.steps))
        raise
    accepted.append((began, world.scheduler.steps))
    incarnations.append((world.scheduler.steps, told.incarnation))
    world.scheduler.note(f"accept loss: incarnation {told.incarnation} begins at epoch {told.epoch}")


def _commit(playing: Playing, cluster: Cluster, operation: Operation, calls: list[Call]) -> Committed | Exception:
    scheduler, request_id = playing.world.scheduler, operation.name
    process = scheduler.current.process.name
    expected = cluster.metadata.epoch if operation.kind == "commit next" else None
    asked, called = f"change {operation.number}", scheduler.now
    number = len(calls)
    calls.append(Call(request_id, process, scheduler.steps, float("inf"), None, asked, expected))
    outcome: Committed | Exception
    try:
        outcome = cluster.commit(
            change(operation.number),
            request_id=request_id,
            timeout=operation.seconds,
            asked=asked,
            expect_epoch=expected,
        )
    except EpochlakeError as error:
        outcome = error
    late = min(playing.seconds_of_peace, scheduler.now - called)
    calls[number] = calls[number]._replace(ended=scheduler.steps, outcome=outcome, late=late)
    scheduler.note(f"commit {request_id}: {told(outcome)}")
    return outcome


def told(outcome: Committed | Exception) -> str:
    """An outcome in a few words."""
    if isinstance(outcome, Committed):
        return f"epoch {outcome.epoch}{', already' if outcome.already else ''}"
    return f"{type(outcome).__name__}: {outcome}"


def _state(world: World, metadata: ClusterMetadata) -> Seen:
    return Seen(world.scheduler.current.process.name, metadata.fence, digest_of(metadata))


def _keep_up(world: World, cluster: Cluster, operation: Operation, seen: list[Seen]) -> list[str]:
    """Do something else than committing; what was found that must not be."""
    match operation.kind:
        case "compact log":
            compact_log(cluster)
            twice = cluster.log_place.delta().stored_twice()
            found = [f"the epochs {twice.ranges} are stored more than once"] if twice.ranges else []
            return found + only_in_memory(world)
        case "verify":
            # While storage fails, what cannot be read now says nothing.
            return [one for one in _findings(world, cluster) if "code='unreadable'" not in one]
        case "look back":
            newest = cluster.catch_up().epoch
            for epoch in range(1, newest + 1, max(1, newest // 5)):
                seen.append(_state(world, cluster.at(epoch)))
        case "commit elsewhere":
            return _commit_elsewhere(world)
        case unknown:
            raise ValueError(f"nobody knows the operation {unknown!r}")
    return []


def only_in_memory(world: World) -> list[str]:
    """Commits of the log that were deleted, and that no checkpoint stands for which a power cut would leave."""
    if world.folder is None:
        return []
    directory = f"{ROOT}/log/_delta_log"
    names = [name for name in world.disk.names(directory) if name[:20].isdigit()]
    first = min((int(name[:20]) for name in names if _COMMIT.search(f"/_delta_log/{name}")), default=0)
    whole = [
        int(name[:20]) for name in names if ".checkpoint" in name and world.cuttable.is_durable(f"{directory}/{name}")
    ]
    if first <= max(whole, default=-1) + 1:
        return []
    return [f"the commits of the log before {first} were deleted, and no checkpoint of them is on the disk"]


def _commit_elsewhere(world: World) -> list[str]:
    """Take a copy of the root for the cluster: while the root is where it was, nothing may be committed there."""
    if not world.ensemble.kept[HEAD]:
        return []  # nobody has come from the root yet
    try:
        with _at_a_copy(world) as cluster:
            done = cluster.commit(change(PLANNED), timeout=5.0)
    except EpochlakeError as error:
        world.scheduler.note(f"commit elsewhere: {error}")
        return []
    return [f"a copy of the root took epoch {done.epoch}"]


def _move_the_root(world: World) -> list[str]:
    """Let the cluster go on at a copy of its root, as operators do it, and commit where it was: what must not be."""
    with world.cluster(world.scheduler.current.process) as who_stays:
        who_stays.commit(change(PLANNED))
        coordination = who_stays.coordination()
        coordination.call("forget the root", lambda client: client.delete_async(coordination.path(REGISTERED)))
        with _at_a_copy(world) as cluster:
            cluster.coordination()  # it has come there, and nothing is committed yet that ZooKeeper would know
        try:
            done = who_stays.commit(change(PLANNED), timeout=5.0)
        except EpochlakeError as error:
            world.scheduler.note(f"commit where the root was: {error}")
            return []
    return [f"the root that was left took epoch {done.epoch}"]


def _at_a_copy(world: World) -> Cluster:
    """The cluster, at a copy of its root."""
    storage = world.storage(world.scheduler.current.process)
    copy = f"/copy{world.scheduler.steps}"
    world.disk.make_directory(copy)
    restore(world.disk, copy, {copy + path.removeprefix(ROOT): data for path, data in copied(world.disk, ROOT).items()})
    configuration = msgspec.structs.replace(world.configuration, root=copy)
    return Cluster(configuration, storage=storage, log=DeltaLog(storage, Root(copy).log))


def _undue(findings: list[str], scenario: Scenario) -> list[str]:
    """What was found wrong, and nobody has damaged."""
    harmed = any(fault.kind in SNAPSHOT_FAULTS for fault in scenario.faults)
    return [one for one in findings if not (harmed and "code='snapshot-" in one)]


def _findings(world: World, cluster: Cluster) -> list[str]:
    report = verify(world.log(world.scheduler.current.process), cluster.snapshots)
    return [f"verify says: {finding}" for finding in report.findings]


def _at_rest(world: World, scenario: Scenario, seen: list[Seen], unexpected: list[str]) -> list[Entry]:
    """Nothing goes wrong any more: the log is read, replayed and checked by somebody new, and can be committed to."""

    def rest() -> list[Entry]:
        process = world.scheduler.current.process
        with world.cluster(process) as cluster:
            cluster.commit(change(PLANNED))
            seen.append(_state(world, cluster.catch_up()))
            unexpected.extend(_undue(_findings(world, cluster), scenario))
        return world.log(process).read(0)

    actor = world.run(world.process("at rest"), rest)
    world.until_done(actor)
    if actor.error is not None:
        unexpected.append(f"at rest: {actor.error!r}")
        return []
    entries: list[Entry] = actor.result
    return entries


def _left(world: World, scenario: Scenario, entries: Sequence[Entry]) -> list[str]:
    """What does not hold of what is left at rest, by the entries of the log then; none: it could not be read."""
    found: list[str] = []
    if not entries:
        return found
    if scenario.settings.delta and not scenario.settings.members:
        mover = world.run(world.process("who moves the root"), lambda: _move_the_root(world))
        world.until_done(mover)
        found += _nobodys(world, scenario)
        found += mover.result if mover.error is None else [f"moving the root: {mover.error!r}"]
    found += _stored(world, entries)
    return found + [f"an hour later {node} is still there" for node in world.ephemeral_nodes_after(3600.0)]


def _lose_the_root(world: World, members: Members, entries: list[Entry]) -> list[str]:
    """What does not hold when the root is lost at rest, and restored."""
    actor = world.run(world.process("who restores the root"), lambda: members.lose_the_root(entries))
    world.until_done(actor)
    found: list[str] = actor.result if actor.error is None else [f"restoring the root: {actor.error!r}"]
    return found


def _nobodys(world: World, scenario: Scenario) -> list[str]:
    """Data files of the log that no commit has ever named, where nothing has kept anybody from deleting them but that
    machines stood still.
    """
    if any(fault.kind != "pause" for fault in scenario.faults):
        return []
    named: set[str] = set()
    there: list[str] = []
    for path, _ in files_below(world.disk, f"{ROOT}/log"):
        if _COMMIT.search(path):
            for line in world.disk.read(path).splitlines():
                action = msgspec.json.decode(line)
                named |= {action[kind]["path"] for kind in ("add", "remove") if kind in action}
        elif path.endswith(".parquet") and "/_delta_log/" not in path:
            there.append(unquote(path.removeprefix(f"{ROOT}/log/")))
    if f"{0:020}.json" not in world.disk.names(f"{ROOT}/log/_delta_log"):
        return []  # what its first commits have named nobody knows any more
    return [f"no commit of the log names {path}" for path in sorted({*there} - {unquote(path) for path in named})]


def _stored(world: World, entries: Sequence[Entry]) -> list[str]:
    """Whether the rows of the log's table, as delta-rs itself finds them, are the entries, each of them once."""
    if world.folder is None:
        return []
    epochs = [row["epoch"] for row in world.folder.rows(f"{ROOT}/log")]
    again = [epoch for epoch, count in Counter(epochs).items() if count > 1]
    missing = sorted({entry.epoch for entry in entries} - {*epochs})
    return [f"epoch {epoch} is stored more than once" for epoch in again] + [
        f"epoch {e} is not stored" for e in missing
    ]
