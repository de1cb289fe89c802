"""What must hold of a history of commits, whatever was done to it.

The checkers know entries, calls and their outcomes, what states were seen at which epoch, and nothing of how committing
works.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from epochlake.jobs.testing.scenario import Scenario
from epochlake.metastore.committing.submissions import Committed
from epochlake.metastore.errors import CommitTimeout, LogUnreadable, Rejected, StorageUnavailable
from epochlake.metastore.log.entry import GENESIS, Entry, entry_hash
from epochlake.metastore.log.epoch_log import AppendFailed
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.digest import digest_of
from epochlake.metastore.metadata.events import (
    AcceptLoss,
    Event,
    PauseChanges,
    RelaxBarriers,
    RelaxedBarrier,
    ResumeChanges,
    SwitchBalancing,
)
from epochlake.metastore.metadata.fence import Fence

CERTAIN = {"kill", "clock jumps", "pause", "cut"}
"""Faults under which nobody is late with what a dead process has left to others."""
QUIET_SECONDS = 45.0
"""So long after the last fault everybody who still waits for a commit gets it."""
NOTHING_WRITTEN = (Rejected, CommitTimeout, AppendFailed, LogUnreadable, StorageUnavailable)
"""What a call is told that has written nothing."""
LAST = "-last"
"""What the request ids of those calls end with that are made when nothing goes wrong any more."""


def change(number: int) -> Event | Callable[[ClusterMetadata], Event]:
    """One of the changes that processes commit: events, which others may append as well, and what a planner makes of
    the newest metadata. Most of them can always be made.
    """

    def planned(metadata: ClusterMetadata) -> Event:
        paused = not metadata.switches.changes
        return ResumeChanges() if paused else SwitchBalancing(not metadata.switches.balancing, f"change {number}")

    match number:
        case 0:
            return PauseChanges("x")
        case 1:
            return ResumeChanges()
        case 2 | 3:
            return SwitchBalancing(number == 2, f"change {number}")
        case 4 | 5:
            return planned
    return RelaxBarriers((RelaxedBarrier(f"change {number}", "ALL", "QUORUM", "nothing"),))


UNHEARD = frozenset({"cut", "no majority"})
"""Faults by which what is announced may not reach ZooKeeper."""

PLANNED = 5
"""The number of a change that can always be made."""


class Call(NamedTuple):
    """One call of commit: when it began and ended, in steps of the scheduler, and its outcome. None: its process died
    before it heard. `change` says which change it asked for, `expected` after which epoch, if that matters. `late`: how
    many seconds it went on after the last fault was over.
    """

    request_id: str
    process: str
    began: float
    ended: float
    outcome: Committed | Exception | None
    change: str = ""
    expected: int | None = None
    late: float = 0.0


class Seen(NamedTuple):
    """The metadata that a process had at an epoch of an incarnation (as a fence has both), by its digest."""

    process: str
    epoch: int
    digest: str


class Read(NamedTuple):
    """Somebody who asked the log where the cluster is: since when, in steps, and what he was shown."""

    process: str
    began: float
    shown: Fence


class History(NamedTuple):
    """What a world did: calls, states that were seen, the log at the end, steps, and what was done to it.

    `accepting`: when an operator began to accept the loss of epochs, and `accepted`: when all had their answers, in the
    measure of calls; 0 when none has. `announced`: the last epoch that ZooKeeper ever had, of those that are lost.
    `incarnations`: when an operator was told that one begins, and which.
    """

    scenario: Scenario
    calls: list[Call]
    seen: list[Seen]
    entries: list[Entry]
    steps: int
    harm: Counter[str]
    coverage: Counter[str]
    unexpected: list[str]
    accepting: float = 0.0
    accepted: float = 0.0
    announced: float = float("inf")
    reads: Sequence[Read] = ()
    incarnations: Sequence[tuple[float, int]] = ()


def violations(history: History) -> list[str]:
    """What does not hold of a history; empty when all of it does."""
    lost = [call for call in history.calls if _is_lost(call, history)]
    found = _of_lost_calls(lost, history)
    gone = [*lost, *(call for call in history.calls if _is_lost_unnoticed(call, history))]
    if gone:
        history = history._replace(calls=[call for call in history.calls if call not in gone])
    found += history.unexpected
    found += _of_the_chain(history.entries)
    at = {entry.request_id: entry.epoch for entry in history.entries}
    asked = {entry.request_id: entry.asked for entry in history.entries}
    calls = history.calls
    for call in calls:
        epoch = at.get(call.request_id)
        match call.outcome:
            case Committed(epoch=told):
                if told != epoch:
                    found.append(f"{call.request_id} was told epoch {told}, and is at {epoch}")
                elif asked[call.request_id] != call.change:
                    found.append(f"{call.request_id} asked for {call.change}, and was told of {asked[call.request_id]}")
                elif call.expected is not None and not call.outcome.already and epoch != call.expected + 1:
                    found.append(f"{call.request_id} was to come after epoch {call.expected}, and is at {epoch}")
            case Rejected() | CommitTimeout() | AppendFailed() | LogUnreadable() | StorageUnavailable():
                if asked.get(call.request_id, call.change) != call.change:
                    continue  # what is in the log is another change, of another call
                # Another call of the same request may have landed, before or after.
                others = [o for o in [*calls, *gone] if o.request_id == call.request_id and o is not call]
                if history.harm.keys() <= CERTAIN:
                    others = [other for other in others if not _has_died_before(other, call)]
                if epoch is not None and not any(_may_have_landed(other) for other in others):
                    found.append(f"{call.request_id} was told {type(call.outcome).__name__}, and is at epoch {epoch}")
    if not history.harm:
        found += [
            f"{call.request_id} was told {type(call.outcome).__name__}, and nothing had gone wrong"
            for call in calls
            if not isinstance(call.outcome, Committed | Rejected | CommitTimeout)
        ]
    for call in calls:
        if call.request_id.endswith(LAST) and not isinstance(call.outcome, Committed | Rejected):
            found.append(f"{call.request_id} could not be committed when all was well: {call.outcome!r}")
        if call.late > QUIET_SECONDS and not isinstance(call.outcome, Rejected | None):
            found.append(f"{call.request_id} waited for {call.late:.0f} s after the last fault: {call.outcome!r}")
    found += _of_who_was_told(calls) + _of_real_time(calls) + _of_states(_lasting(history)) + _of_reads(history)
    return found or _of_replay(history) or _of_rejections(history)


def _is_lost(call: Call, history: History) -> bool:
    """Whether a call was told an epoch that has been lost since, as an operator has accepted."""
    if not isinstance(call.outcome, Committed) or call.ended >= history.accepted:
        return False
    began = next((entry.epoch for entry in history.entries if entry.event == AcceptLoss.kind()), None)
    # What is in the log after that was committed while the operator was still waiting for the answer.
    lost = not _is_there(call, history) or _has_come_again(call, history)
    return began is not None and call.outcome.epoch >= began and lost


def _has_come_again(call: Call, history: History) -> bool:
    """Whether a later call has brought the same request into the log anew, by chance to the same epoch."""
    return any(
        other.request_id == call.request_id
        and other.began > call.ended
        and other.ended > history.accepting
        and isinstance(other.outcome, Committed)
        and not other.outcome.already
        for other in history.calls
    )


def _is_lost_unnoticed(call: Call, history: History) -> bool:
    """Whether a call was told an epoch that went with a log that went back, and that no announcement outlived: the
    connection was lost just then. An announcement is not waited for (docs/decisions/017-a-log-that-went-back.md).
    """
    return (
        isinstance(call.outcome, Committed)
        and call.outcome.epoch > history.announced
        and bool(history.harm.keys() & UNHEARD)
        and _goes_back(history.scenario)
        and not _is_there(call, history)
    )


def _goes_back(scenario: Scenario) -> bool:
    """Whether what was acknowledged may be lost with the log. With log members it may not."""
    return not scenario.settings.members and any(fault.kind == "old storage" for fault in scenario.faults)


def _is_there(call: Call, history: History) -> bool:
    """Whether the log has a call's request where the call was told that it is."""
    assert isinstance(call.outcome, Committed)
    return (call.outcome.epoch, call.request_id) in {(entry.epoch, entry.request_id) for entry in history.entries}


def _of_lost_calls(lost: Sequence[Call], history: History) -> list[str]:
    """As long as nobody accepts their loss, nothing is committed in their place."""
    return [
        f"{call.request_id} was committed in the place of what is lost, at {call.outcome.epoch}"
        for call in history.calls
        if isinstance(call.outcome, Committed) and not call.outcome.already and call not in lost
        for one in lost
        if isinstance(one.outcome, Committed)
        and one.ended < call.began
        and call.ended < history.accepting
        and call.outcome.epoch <= one.outcome.epoch
    ]


def _has_died_before(one: Call, call: Call) -> bool:
    """Whether a call was made by the process in whose place the other's is: what it has left was looked for."""
    mine = _part(one) == _part(call) and one.process != call.process
    return mine and one.outcome is None and one.began < call.began


def _part(call: Call) -> str:
    return call.process.partition("'")[0]


def _may_have_landed(call: Call) -> bool:
    """Whether a call may have brought its request into the log; one that is told `already` says that another has."""
    if isinstance(call.outcome, Committed):
        return not call.outcome.already
    return call.outcome is None or not isinstance(call.outcome, NOTHING_WRITTEN)


def _of_who_was_told(calls: Sequence[Call]) -> list[str]:
    """Of the calls of one request at most one is told that it is the one that has committed it, and it is no later one
    than a call that was told.
    """
    found = []
    for request_id in sorted({call.request_id for call in calls}):
        of_request = [call for call in calls if call.request_id == request_id]
        committed = [call for call in of_request if isinstance(call.outcome, Committed)]
        first = [call for call in committed if isinstance(call.outcome, Committed) and not call.outcome.already]
        if len(first) > 1:
            found.append(f"{request_id} was told {len(first)} times to be committed for the first time")
        for call in committed:
            others = [other for other in of_request if other is not call and other.began < call.ended]
            if call not in first and not any(other in first or _is_open(other) for other in others):
                found.append(f"{request_id} was told that another call has committed it, and there is none")
        for call in first:
            if any(other.ended < call.began for other in committed):
                found.append(f"{request_id} was committed before, and a later call was told that it was the first")
            elif isinstance(call.outcome, Committed) and _told_before(call, calls) >= call.outcome.epoch:
                found.append(f"{request_id} was in the log before a call that was told that it has brought it there")
    return found


def _is_open(call: Call) -> bool:
    """Whether nobody knows what came of a call: its process has died, or could not tell."""
    return not isinstance(call.outcome, (Committed, *NOTHING_WRITTEN))


def _told_before(call: Call, calls: Sequence[Call]) -> int:
    """The last epoch that anybody knew of before a call began."""
    told = [o.outcome.epoch for o in calls if o.ended < call.began and isinstance(o.outcome, Committed)]
    return max(told, default=0)


def _of_replay(history: History) -> list[str]:
    """Everybody has the state that the entries make."""
    seen = _lasting(history)
    made = _made(history.entries, seen)
    return [
        f"at epoch {Fence.of(one.epoch)} {one.process} has another state than the log"
        for one in seen
        if made.get(one.epoch, one.digest) != one.digest
    ]


def _made(entries: Sequence[Entry], seen: Sequence[Seen]) -> dict[int, str]:
    """The digests of the states that entries make, at the epochs that were seen."""
    wanted, made = {one.epoch for one in seen}, dict[int, str]()
    metadata = ClusterMetadata.empty()
    for entry in entries:
        metadata = metadata.apply(entry.decode(), entry.state_id)
        if metadata.fence in wanted:
            made[metadata.fence] = digest_of(metadata)
    return made


def _lasting(history: History) -> Sequence[Seen]:
    """What was seen, without what was only read of a log that went back and that nobody had announced: who reads
    announces nothing. What anybody was told is announced first, and has to be there.
    """
    if not _goes_back(history.scenario) or not any(one.epoch > history.announced for one in history.seen):
        return history.seen
    made = _made(history.entries, history.seen)
    return [
        one for one in history.seen if one.epoch <= history.announced or made.get(one.epoch, one.digest) == one.digest
    ]


def _of_rejections(history: History) -> list[str]:
    """Who was rejected could not be committed in some state of the log that there was during the call."""
    if history.accepted:
        return []  # the states of before are gone
    states = [ClusterMetadata.empty()]
    for entry in history.entries:
        states.append(states[-1].apply(entry.decode(), entry.state_id))
    found, calls = [], history.calls
    for call in calls:
        if not isinstance(call.outcome, Rejected):
            continue
        later = [
            other.outcome.epoch - 1
            for other in calls
            if other.began > call.ended and isinstance(other.outcome, Committed) and not other.outcome.already
        ]
        known = range(max(1, _told_before(call, calls)), min(later, default=len(history.entries)) + 1)
        taken = {entry.request_id: entry for entry in history.entries[: known.stop]}
        other = taken.get(call.request_id)
        if (other is None or other.asked == call.change) and not any(_is_refused(call, states[at]) for at in known):
            found.append(f"{call.request_id} was rejected without grounds: {call.outcome}")
    return found


def _is_refused(call: Call, metadata: ClusterMetadata) -> bool:
    """Whether a call's change cannot be made in a state."""
    if call.expected is not None and metadata.epoch != call.expected:
        return True
    event = change(int(call.change.removeprefix("change ")))
    try:
        metadata.check(event(metadata) if callable(event) else event)
    except Rejected:
        return True
    return False


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


def _of_real_time(calls: Sequence[Call]) -> list[str]:
    """Who began after somebody was told an epoch is committed later."""
    told = [call for call in calls if isinstance(call.outcome, Committed) and not call.outcome.already]
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


def _of_reads(history: History) -> list[str]:
    """Who asks the log is shown no less than what was committed, or begun as an incarnation, before he has asked."""
    begun = 0.0
    if _goes_back(history.scenario):
        begun = min((at for at, _ in history.incarnations), default=float("inf"))
    at = {entry.epoch: entry for entry in history.entries}
    told = [
        (call.ended, Fence(call.outcome.epoch, at[call.outcome.epoch].incarnation), call.request_id)
        for call in history.calls
        if isinstance(call.outcome, Committed) and call.began >= begun and _is_there(call, history)
    ]
    told += [(ended, Fence(0, incarnation), "an operator") for ended, incarnation in history.incarnations]
    return [
        f"{read.process} was shown epoch {read.shown} after {who} was told {fence}"
        for read in history.reads
        for ended, fence, who in told
        if ended < read.began and read.shown < fence
    ]


def _of_states(seen: Sequence[Seen]) -> list[str]:
    """At one epoch everybody has the same state."""
    first: dict[int, Seen] = {}
    found = []
    for one in seen:
        other = first.setdefault(one.epoch, one)
        if other.digest != one.digest:
            found.append(f"at epoch {one.epoch} {one.process} has another state than {other.process}")
    return found
