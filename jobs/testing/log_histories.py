"""Histories of commits: processes that commit, try again and die, and what must hold of the log and of what they heard.

The checker knows entries, calls and their outcomes, and nothing of how committing works.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from epochlake.jobs.cluster import Cluster
from epochlake.jobs.testing.nemesis import Nemesis
from epochlake.jobs.testing.scheduler import Process
from epochlake.jobs.testing.world import World
from epochlake.metastore.committing.submissions import Committed
from epochlake.metastore.errors import CommitTimeout, CommitUnknown, Rejected
from epochlake.metastore.log.entry import GENESIS, Entry, entry_hash
from epochlake.metastore.log.epoch_log import AppendFailed
from epochlake.metastore.metadata.events import PauseChanges, ResumeChanges, SwitchBalancing
from epochlake.placement.errors import EpochlakeError

EVENTS = (SwitchBalancing(True, "on"), SwitchBalancing(False, "off"), PauseChanges("x"), ResumeChanges())
WAITS = (0.0, 0.05, 1.0, 20.0, 60.0)
"""Seconds that a call may wait."""


class Call(NamedTuple):
    """One call of commit: when it began and ended, in steps of the scheduler, and its outcome. None: its process died
    before it heard.
    """

    request_id: str
    process: str
    began: float
    ended: float
    outcome: Committed | Exception | None


class History(NamedTuple):
    """What a world did: calls, the log at the end, steps of the scheduler, and what was done to it."""

    seed: int
    calls: list[Call]
    entries: list[Entry]
    steps: int
    harm: Counter[str]
    unexpected: list[str]


def log_history(seed: int, *, processes: int = 4, requests: int = 8) -> History:
    """Let processes commit while a nemesis is at work, then heal the world and let all come to their ends."""
    chance = random.Random(repr(("log history", seed)))
    processes, requests = chance.randint(2, processes), chance.randint(2, requests)
    with World(seed) as world:
        world.found()
        calls: list[Call] = []
        unexpected: list[str] = []
        live: list[Process] = []

        def commit_all(process: Process, planned: Sequence[str]) -> None:
            with world.cluster(process) as cluster:
                for request_id in planned:
                    _commit(world, cluster, process, request_id, calls, unexpected)

        def start(name: str, planned: Sequence[str]) -> None:
            process = world.process(name, skew=chance.choice([0.0, 0.0, -30.0, 30.0]))
            live.append(process)
            for thread in range(chance.choice([1, 1, 3])):
                mine = planned[thread::3] if thread else planned
                world.run(process, partial(_until_open, world, partial(commit_all, process, mine)), f"commits {thread}")

        def replace(dead: Process) -> None:
            # Who is started again tries again what its predecessor may have done, under the same request ids.
            known = [call.request_id for call in calls if call.process == dead.name and call.outcome is None]
            others = [call.request_id for call in calls if call.process == dead.name]
            start(f"{dead.name}'", [*known, *others[-2:], f"{dead.name}'-new"])

        for number in range(processes):
            start(f"p{number}", [f"p{number}-{index}" for index in range(requests)])
        nemesis = Nemesis(world, lambda: live, replace=replace, mean_seconds=chance.choice([0.05, 0.3, 1.0, 5.0]))
        nemesis.begin()
        world.scheduler.after(chance.uniform(0.5, 30.0), nemesis.stop, world.processes[0])
        world.scheduler.run(lambda: nemesis.is_stopped and all(actor.done for actor in world.actors))
        unexpected += [f"{a.name}: {a.error!r}" for a in world.actors if a.error is not None]
        unexpected += [f"{a.name}: {a.error!r}" for a in world.scheduler.failed]
        return History(seed, calls, list(world.entries.entries), world.scheduler.steps, nemesis.done, unexpected)


def _until_open(world: World, what: object) -> None:
    """Who cannot open the cluster now tries again; what it does with it, it does once."""
    while True:
        try:
            return what()  # type: ignore[operator]
        except EpochlakeError:
            world.scheduler.sleep(1.0)


def _commit(
    world: World, cluster: Cluster, process: Process, request_id: str, calls: list[Call], unexpected: list[str]
) -> None:
    scheduler, number = world.scheduler, len(calls)
    chance = random.Random(repr((world.seed, request_id)))
    began = scheduler.steps
    calls.append(Call(request_id, process.name, began, float("inf"), None))
    event = chance.choice(
        [SwitchBalancing(True, "on"), SwitchBalancing(False, "off"), PauseChanges("x"), ResumeChanges()]
    )
    outcome: Committed | Exception
    try:
        outcome = cluster.commit(event, request_id=request_id, timeout=chance.choice(WAITS))
    except EpochlakeError as error:
        outcome = error
    except Exception as error:
        unexpected.append(f"{process.name}: {error!r}")
        outcome = error
    calls[number] = Call(request_id, process.name, began, scheduler.steps, outcome)


def violations(history: History) -> list[str]:
    """What does not hold of a history; empty when all of it does."""
    found = list(history.unexpected)
    found += _of_the_chain(history.entries)
    at = {entry.request_id: entry.epoch for entry in history.entries}
    calls = history.calls
    for call in calls:
        epoch = at.get(call.request_id)
        match call.outcome:
            case Committed(epoch=told):
                if told != epoch:
                    found.append(f"{call.request_id} was told epoch {told}, and is at {epoch}")
            case Rejected() | CommitTimeout() | AppendFailed():
                # Another call of the same request may have landed, before or after.
                others = [o for o in calls if o.request_id == call.request_id and o is not call]
                if epoch is not None and not any(_may_have_landed(other) for other in others):
                    found.append(f"{call.request_id} was told {type(call.outcome).__name__}, and is at epoch {epoch}")
    found += _of_real_time(history)
    return found


def _may_have_landed(call: Call) -> bool:
    return (
        call.outcome is None
        or isinstance(call.outcome, Committed | CommitUnknown)
        or not isinstance(call.outcome, Rejected | CommitTimeout | AppendFailed)
    )


def _of_the_chain(entries: Sequence[Entry]) -> list[str]:
    found, before = [], GENESIS
    for number, entry in enumerate(entries, 1):
        if entry.epoch != number:
            found.append(f"entry {number} has epoch {entry.epoch}")
        if entry.previous_hash != before or entry.hash != entry_hash(entry):
            found.append(f"epoch {entry.epoch} does not continue the one before it")
        before = entry.hash
    ids = Counter(entry.request_id for entry in entries)
    return found + [f"request {one} is in the log {count} times" for one, count in ids.items() if count > 1]


def _of_real_time(history: History) -> list[str]:
    """Who began after somebody was told an epoch is committed later."""
    told = [call for call in history.calls if isinstance(call.outcome, Committed) and not call.outcome.already]
    found = []
    for early in told:
        for late in told:
            assert isinstance(early.outcome, Committed)
            assert isinstance(late.outcome, Committed)
            if (
                early.ended < late.began
                and early.outcome.epoch > late.outcome.epoch
                and early.request_id != late.request_id
            ):
                found.append(f"{late.request_id} began after {early.request_id} was committed, and is before it")
    return found
