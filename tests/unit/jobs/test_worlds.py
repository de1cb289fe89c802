"""The world in which histories run: one seed, one course."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from epochlake.jobs import campaign
from epochlake.jobs.testing import log_checkers, row_checkers
from epochlake.jobs.testing.log_checkers import Call, History, change
from epochlake.jobs.testing.log_histories import log_history
from epochlake.jobs.testing.row_checkers import Access, RowHistory
from epochlake.jobs.testing.scenario import Fault, Operation, Part, Scenario, Settings
from epochlake.jobs.testing.scheduler import Process, Scheduler, StepsUsedUp, Stuck, Waiter, ended_afterwards
from epochlake.jobs.testing.stdlib import Threading, Time
from epochlake.jobs.testing.world import World
from epochlake.metastore.committing.submissions import Committed
from epochlake.metastore.coordination import client, lock
from epochlake.metastore.errors import (
    CommitTimeout,
    CoordinationUnavailable,
    LogUnreadable,
    Rejected,
    StorageUnavailable,
)
from epochlake.metastore.log.entry import Entry
from epochlake.metastore.log.epoch_log import AppendFailed
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import AcceptLoss, SwitchBalancing
from epochlake.placement.rejections import Code


def course(seed: int) -> list[tuple[str, int]]:
    """Who had a lock how often, in order."""
    scheduler, log = Scheduler(seed), []
    threads, clock = Threading(scheduler), Time(scheduler)
    shared = threads.Lock()

    def work(name: str) -> None:
        for count in range(5):
            with shared:
                scheduler.point("has it")
                log.append((name, count))
            clock.sleep(scheduler.random.random())

    actors = [scheduler.spawn(Process("p"), name, lambda name=name: work(name)) for name in "abc"]  # type: ignore[misc]
    with ended_afterwards(scheduler):
        scheduler.run(lambda: all(actor.done for actor in actors))
    return log


def test_one_seed_has_one_course_and_others_have_others() -> None:
    assert course(1) == course(1)
    assert len({tuple(course(seed)) for seed in range(20)}) > 10


def test_time_passes_only_when_nobody_can_go_on() -> None:
    scheduler = Scheduler(1)
    clock, seen = Time(scheduler), []

    def sleep(seconds: float) -> None:
        began = time.monotonic()
        clock.sleep(seconds)
        seen.append((round(clock.monotonic() - 1_700_000_000, 3), time.monotonic() - began < 5))

    actors = [scheduler.spawn(Process("p"), "a", lambda s=s: sleep(s)) for s in (3600.0, 60.0)]  # type: ignore[misc]
    scheduler.run(lambda: all(actor.done for actor in actors))
    assert seen == [(60.0, True), (3600.0, True)]


def test_a_process_that_is_killed_does_nothing_any_more_not_even_clean_up() -> None:
    scheduler, done = Scheduler(1), []

    def work() -> None:
        try:
            scheduler.sleep(1.0)
            done.append("went on")
        finally:
            scheduler.point("clean up")
            done.append("cleaned up")

    victim, other = Process("victim"), Process("other")
    scheduler.spawn(victim, "a", work)

    def kill() -> None:
        scheduler.sleep(0.5)
        scheduler.kill(victim)

    actor = scheduler.spawn(other, "b", kill)
    with ended_afterwards(scheduler):
        scheduler.run(lambda: actor.done)
        scheduler.spawn(other, "c", lambda: scheduler.sleep(10.0))
        with pytest.raises(Stuck):
            scheduler.run(lambda: False)
    assert done == []


def test_a_process_that_is_paused_goes_on_later_and_others_meanwhile() -> None:
    scheduler, seen = Scheduler(1), []
    paused, other = Process("paused"), Process("other")

    def tick(process: Process) -> None:
        for _ in range(3):
            scheduler.sleep(1.0)
            seen.append((process.name, round(scheduler.now - 1_700_000_000)))

    actors = [scheduler.spawn(process, "a", lambda process=process: tick(process)) for process in (paused, other)]  # type: ignore[misc]
    scheduler.pause(paused, 10.0)
    scheduler.run(lambda: all(actor.done for actor in actors))
    assert [at for name, at in seen if name == "other"] == [1, 2, 3]
    assert [at for name, at in seen if name == "paused"] == [11, 12, 13]


def test_a_world_that_never_ends_or_cannot_go_on_says_so() -> None:
    scheduler = Scheduler(1, most_steps=100)

    def spin() -> None:
        while True:
            scheduler.point("again")

    scheduler.spawn(Process("p"), "a", spin)
    with ended_afterwards(scheduler), pytest.raises(StepsUsedUp):
        scheduler.run(lambda: False)
    scheduler = Scheduler(1)
    scheduler.spawn(Process("p"), "a", lambda: scheduler.wait(Waiter()))
    with ended_afterwards(scheduler), pytest.raises(Stuck):
        scheduler.run(lambda: False)


def in_world(seed: int, do: Callable[[World], Any]) -> Any:
    with World(seed) as world:
        world.found()
        return do(world)


def test_real_time_is_back_when_a_world_has_ended() -> None:
    before = time.time()
    in_world(1, lambda world: None)
    assert client.time is time
    assert abs(client.time.time() - before) < 60


def test_the_lock_of_the_committers_excludes_and_survives_a_lost_session() -> None:
    def do(world: World) -> list[tuple[str, str]]:
        seen: list[tuple[str, str]] = []

        def work(process: Process) -> None:
            coordination = client.Coordination("world:2181", "/x", session_timeout=10.0)
            taken = lock.CommitLock(coordination)
            for _ in range(3):
                while True:
                    try:
                        if taken.acquire(60.0):
                            break
                    except CoordinationUnavailable:
                        continue
                seen.append((process.name, "in"))
                world.scheduler.sleep(0.01)
                seen.append((process.name, "out"))
                taken.release()

        for name in "abc":
            process = world.process(name)
            world.run(process, lambda process=process: work(process))  # type: ignore[misc]
        world.scheduler.after(0.02, lambda: world.ensemble.lose_majority(3.0), world.processes[0])
        world.until_done()
        return seen

    seen = in_world(3, do)
    assert len(seen) == 18
    assert all((seen[i][0], "out") == seen[i + 1] for i in range(0, 18, 2)), "one at a time"


def test_changes_of_several_processes_are_one_log_and_the_same_each_time() -> None:
    def switched(metadata: ClusterMetadata) -> SwitchBalancing:
        return SwitchBalancing(not metadata.switches.balancing, "")

    def run() -> tuple[object, ...]:
        def do(world: World) -> tuple[object, ...]:
            def work(process: Process) -> list[int]:
                with world.cluster(process) as cluster:
                    return [cluster.commit(switched, reason=process.name).epoch for _ in range(3)]

            actors = [
                world.run(process, lambda process=process: work(process))  # type: ignore[misc]
                for process in (world.process(name) for name in "abc")
            ]
            world.until_done()
            assert [actor.error for actor in actors] == [None] * 3
            told = [actor.result for actor in actors]
            assert sorted(epoch for epochs in told for epoch in epochs) == list(range(2, 11))
            return told, [entry.reason for entry in world.entries()], world.scheduler.steps

        found: tuple[object, ...] = in_world(5, do)
        return found

    assert run() == run()


# --- the checkers notice --------------------------------------------------------------------------------------------


def test_the_checker_of_the_log_notices_each_kind_of_lie() -> None:
    history = next(one for one in map(log_history, range(20)) if _told(one.calls, Committed))
    assert log_checkers.violations(history) == []
    [call, *_] = [one for one in history.calls if isinstance(one.outcome, Committed)]
    assert isinstance(call.outcome, Committed)
    others = [one for one in history.calls if one.request_id != call.request_id]
    asked = call._replace(change="another change")
    assert log_checkers.violations(history._replace(calls=[*others, asked])), "another change"
    again = call._replace(began=call.ended + 1, ended=call.ended + 2)
    assert log_checkers.violations(history._replace(calls=[*history.calls, again])), "the first one twice"
    late = call._replace(expected=call.outcome.epoch + 5)
    assert log_checkers.violations(history._replace(calls=[*others, late])), "not after the epoch that was asked for"
    seen = log_checkers.Seen("somebody", history.seen[0].epoch, "another state")
    assert log_checkers.violations(history._replace(seen=[*history.seen, seen])), "two states at one epoch"
    wrong = call._replace(outcome=Committed(call.outcome.epoch + 1, call.request_id, already=False))
    assert log_checkers.violations(history._replace(calls=[*others, wrong])), "another epoch"
    denied = call._replace(outcome=CommitTimeout("not in time"))
    assert log_checkers.violations(history._replace(calls=[*others, denied])), "a failure that landed"
    assert log_checkers.violations(history._replace(entries=history.entries[: call.outcome.epoch - 1]))
    twice = [*history.entries, history.entries[-1]]
    assert any("2 times" in one for one in log_checkers.violations(history._replace(entries=twice)))
    waited = Call("in peace", "somebody", 1, 2, CommitTimeout("not in time"), late=log_checkers.QUIET_SECONDS + 1)
    assert log_checkers.violations(history._replace(calls=[*history.calls, waited])), "a wait without a reason"
    for outcome in (StorageUnavailable("away"), LogUnreadable("torn")):
        lied = call._replace(outcome=outcome)
        assert log_checkers.violations(history._replace(calls=[*others, lied])), "nothing was written, it says"
    by_whom = call._replace(outcome=Committed(call.outcome.epoch, call.request_id, already=True))
    found = log_checkers.violations(history._replace(calls=[*others, by_whom]))
    assert any("there is none" in one for one in found), "nobody else has asked for it"
    slow = call._replace(late=log_checkers.QUIET_SECONDS + 1)
    assert log_checkers.violations(history._replace(calls=[*others, slow])), "a success that comes too late"
    known = call._replace(request_id="somebody else's", began=0, ended=0)
    found = log_checkers.violations(history._replace(calls=[*history.calls, known]))
    assert any("was in the log before" in one for one in found)


def test_the_checker_of_the_log_asks_for_the_grounds_of_a_rejection() -> None:
    entries: list[Entry] = []
    with World(1) as world:
        world.found()
        process = world.process("p1")

        def commit() -> None:
            with world.cluster(process) as cluster:
                cluster.commit(change(0), request_id="paused", asked="change 0")
                cluster.commit(change(1), request_id="resumed", asked="change 1")

        actor = world.run(process, commit)
        world.until_done()
        assert actor.error is None
        entries += world.entries()
    paused = Call("paused", "p1", 1, 2, Committed(2, "paused", already=False), "change 0")
    resumed = Call("resumed", "p1", 5, 6, Committed(3, "resumed", already=False), "change 1")

    def told(call: Call) -> list[str]:
        calls = [paused, resumed, call]
        return log_checkers.violations(
            History(Scenario("log", 1, 1.0), calls, [], entries, 7, Counter(), Counter(), [])
        )

    refused = Call("x", "p2", 3, 4, Rejected(Code.CHANGES_PAUSED, "paused"), "change 7")
    assert told(refused) == []
    assert told(refused._replace(began=0, ended=7)) == []
    assert "without grounds" in told(refused._replace(began=7, ended=8))[0], "it was resumed before"
    assert "without grounds" in told(refused._replace(began=0, ended=0))[0], "it was paused later"
    assert told(refused._replace(change="change 1", began=7, ended=8)) == [], "nothing is paused"
    assert told(refused._replace(request_id="resumed", began=7, ended=8)) == [], "an id of another change"
    assert told(refused._replace(expected=1, began=7, ended=8)) == [], "another epoch was expected"


def _told(calls: list[Call], kind: type) -> bool:
    return any(isinstance(call.outcome, kind) for call in calls)


def rows(*accesses: Access) -> list[str]:
    scenario = Scenario("rows", 0, 1.0)
    none: Counter[str] = Counter()
    return row_checkers.violations(RowHistory(scenario, list(accesses), 0, none, none, none, []))


def test_the_checker_of_rows_notices_what_is_lost_stale_doubled_and_resurrected() -> None:
    first = Access("write", "p", 1, 2, True, {1: "first"})
    second = Access("write", "p", 3, 4, True, {1: "second"})
    gone = Access("delete", "p", 5, 6, True, {1: None})
    failed = Access("write", "p", 7, float("inf"), False, {1: "failed"})

    def read(notes: dict[int, str | None], began: int, rows: dict[int, list[str | None]] | None = None) -> Access:
        return Access("read", "r", began, began + 1, True, notes, rows or {})

    assert rows(first, read({1: "first"}, 3)) == []
    assert rows(first, second, read({1: "second"}, 5)) == []
    assert rows(first, second, gone, read({}, 8)) == []
    assert rows(first, second, gone, failed, read({1: "failed"}, 9), read({}, 11)) == []
    assert rows(first, read({}, 3)), "lost"
    assert rows(first, second, read({1: "first"}, 5)), "stale"
    assert rows(first, read({1: "first"}, 3, {1: ["first", "first"]})), "doubled"
    assert rows(first, second, gone, read({1: "second"}, 8)), "resurrected"
    assert rows(first, read({1: "nobody's"}, 3)), "never written"
    one = Access("read", "r", 5, 6, True, {1: "first"}, level="ONE")
    assert rows(first, second, one) == [], "ONE shows what ALL has acknowledged"
    assert rows(first, second._replace(level="ALL"), one)
    assert rows(first._replace(seconds=5000.0)), "who is not paused ends"


def test_the_checker_of_rows_asks_all_replicas_for_what_one_of_them_has_acknowledged() -> None:
    first = Access("write", "p", 1, 2, True, {1: "first"}, level="ONE")
    second = Access("write", "q", 3, 4, True, {1: "second"}, level="ONE")
    everybody = Access("read", "r", 5, 6, True, {}, level="ALL")
    assert rows(first, everybody), "lost"
    assert rows(first, everybody._replace(level="QUORUM")) == []
    assert rows(first, second, everybody._replace(notes={1: "first"})) == [], "who wrote second need not have heard"
    assert rows(first, second._replace(level="ALL"), everybody._replace(notes={1: "first"})), "stale"


def test_the_checker_of_rows_asks_why_anything_failed_where_nothing_went_wrong() -> None:
    none: Counter[str] = Counter()

    def said(told: str, *faults: Fault) -> list[str]:
        scenario = Scenario("rows", 1, 1.0, Settings(), faults=faults)
        return row_checkers.violations(RowHistory(scenario, [], 0, none, Counter([told]), none, []))

    assert said("upkeep: StorageUnavailable")
    assert said("pipeline: ConsistencyNotReached", Fault("kill", 1.0, "p"))
    assert said("upkeep: StorageUnavailable", Fault("disk away", 1.0, place="/disks/n1")) == []
    assert said("operator: Rejected") == []


def test_the_checker_of_rows_that_are_never_replaced_notices_what_is_lost_doubled_and_nobodys() -> None:
    first = Access("write", "p", 1, 2, True, {1: "first"})
    second = Access("write", "p", 3, float("inf"), False, {1: "second"})

    def wrong(*shown: str) -> list[str]:
        read = Access("read", "r", 5, 6, True, {}, {1: list(shown)})
        none: Counter[str] = Counter()
        accesses = [first, second, read]
        history = RowHistory(Scenario("rows", 0, 1.0), accesses, 0, none, none, none, [], append_only=True)
        return row_checkers.violations(history)

    assert wrong("first") == []
    assert wrong("first", "second") == []
    assert wrong("second"), "lost"
    assert wrong("first", "first"), "doubled"
    assert wrong("first", "other"), "nobody's"


def test_the_checker_of_ranges_notices_a_write_that_is_half_there() -> None:
    write = Access("write", "p", 1, float("inf"), False, {1: "w", 2: "w"})
    none: Counter[str] = Counter()

    def wrong(notes: dict[int, str | None]) -> list[str]:
        read = Access("read", "at rest", 5, 6, True, notes)
        history = RowHistory(Scenario("rows", 0, 1.0), [write, read], 0, none, none, none, [], whole=True)
        return row_checkers.violations(history)

    assert wrong({1: "w", 2: "w"}) == wrong({}) == []
    assert wrong({1: "w"})


# --- real tables ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["log", "rows"])
def test_a_history_on_delta_tables_is_the_same_each_time(kind: str) -> None:
    scenario = next(one for one in (campaign.drawn(campaign.Task(kind, seed)) for seed in range(300)) if small(one))
    first, second = (campaign.run(scenario, accesses=True) for _ in range(2))
    assert first.violations == second.violations == []
    assert first.steps == second.steps > 100
    assert any("delta-rs" in step.what for step in first.said)
    names = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")
    assert [names.sub("", str(step)) for step in first.said] == [names.sub("", str(step)) for step in second.said]


def small(scenario: Scenario) -> bool:
    return scenario.settings.delta and scenario.size < 45 and len(scenario.faults) > 2


# --- faults that lie in wait ----------------------------------------------------------------------------------------


def commits_of_one(names: str, *faults: Fault) -> Scenario:
    commits = tuple(Operation("commit", name=name, number=7, seconds=60.0) for name in names)
    return Scenario("log", 3, 5.0, Settings(), (Part("p0", "commits", (commits,)),), faults)


@pytest.mark.parametrize(("when", "has_landed"), [("log append", False), ("log append, done", True)])
def test_a_fault_that_lies_in_wait_strikes_right_before_or_right_after_the_effect(when: str, has_landed: bool) -> None:
    history = log_history(commits_of_one("a", Fault("kill", 0.0, when=when)))
    first, second = [call for call in history.calls if call.request_id == "a"]
    assert history.harm == Counter(kill=1)
    assert (first.process, first.outcome) == ("p0", None)
    assert second.process == "p0'1"
    assert isinstance(second.outcome, Committed)
    assert second.outcome.already == has_landed
    assert log_checkers.violations(history) == []


def test_a_fault_waits_for_its_victim_to_come_as_often_as_it_says() -> None:
    mine = Fault("kill", 0.0, "p0", when="log append", nth=2)
    others = Fault("kill", 0.0, "somebody else", when="log append")
    history = log_history(commits_of_one("abc", mine, others))
    assert history.harm == Counter(kill=1)
    assert [call.outcome is None for call in history.calls if call.process == "p0"] == [False, True]
    assert log_checkers.violations(history) == []


def test_a_fault_may_wait_for_somebody_else_than_its_victim() -> None:
    of_another = Fault("kill", 0.0, "p1", when="log append, done", by="p0")
    of_nobody = Fault("kill", 0.0, "p1", when="log append, done", by="somebody else")
    scenario = commits_of_one("a", of_another, of_nobody)
    asked = tuple(Operation("commit", wait, name, number=7, seconds=60.0) for name, wait in (("b", 4.0), ("c", 0.0)))
    waits = Part("p1", "commits", (asked,))
    history = log_history(msgspec.structs.replace(scenario, parts=(*scenario.parts, waits)))
    assert history.harm == Counter(kill=1)
    assert {call.process for call in history.calls if call.request_id in ("a", "c")} == {"p0", "p1'1"}
    assert log_checkers.violations(history) == []


def test_of_an_access_that_fails_the_effect_may_be_there() -> None:
    told = []
    for seed in range(12):
        scenario = msgspec.structs.replace(
            commits_of_one("a", Fault("access fails", 0.0, when="log append")), seed=seed
        )
        history = log_history(scenario)
        assert history.harm == Counter({"access fails": 1})
        assert log_checkers.violations(history) == []
        told += [type(call.outcome) for call in history.calls if call.request_id == "a"]
    assert {Committed, AppendFailed} <= {*told}


@pytest.mark.parametrize("moment", ["zookeeper create", "zookeeper create, done"])
def test_a_connection_breaks_with_the_request_or_with_its_answer(moment: str) -> None:
    history = log_history(commits_of_one("a", Fault("cut", 0.0, "p0", seconds=0.02, when=moment)))
    assert history.harm == Counter(cut=1)
    assert log_checkers.violations(history) == []


def test_a_log_that_goes_back_is_followed_when_its_loss_is_accepted() -> None:
    commits = tuple(Operation("commit", 1.0, f"a{number}", number=7 + number, seconds=60.0) for number in range(4))
    scenario = Scenario(
        "log",
        5,
        20.0,
        Settings(delta=True),
        (Part("p0", "commits", (commits,)), Part("p1", "commits", ((Operation("commit", 12.0, "b", number=19),),))),
        (Fault("old storage", 2.5, place="/lake/log", seconds=4.0),),
    )
    history = log_history(scenario)
    assert log_checkers.violations(history) == []
    assert [entry.event for entry in history.entries].count(AcceptLoss.kind()) == 1
    at = {entry.request_id: entry.epoch for entry in history.entries}
    told = [call for call in history.calls if isinstance(call.outcome, Committed)]
    assert [call for call in told if call.request_id not in at], "what was lost"
    assert all(f"{name}-last" in str(at) for name in ("p0-0", "p1-0"))
    # An operator may hear late that it is done: what was committed meanwhile is not lost.
    assert log_checkers.violations(history._replace(accepted=float("inf"))) == []
    unaccepted = log_checkers.violations(history._replace(accepted=0.0))
    assert any("was told epoch" in one for one in unaccepted)
    # What was not announced, as the connection broke just then, is lost without anybody's noticing.
    assert history.announced > 1
    cut = history._replace(accepted=0.0, announced=0, harm=Counter(cut=1))
    assert not any("was told epoch" in one for one in log_checkers.violations(cut))
