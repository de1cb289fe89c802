"""What coordination promises, against real servers: bounded waiting, one winner, nothing left behind."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random
from typing import Any

import pytest
from epochlake.metastore.coordination.client import Coordination
from epochlake.metastore.coordination.election import Candidacy
from epochlake.metastore.coordination.head import Head, correct_head, publish_head, read_head, watch_head
from epochlake.metastore.coordination.leases import LEASES, Lease, announce, live_leases
from epochlake.metastore.coordination.lock import CommitLock
from epochlake.metastore.coordination.proposals import LARGEST_BATCH_BYTES, PROPOSALS, Proposals, PublishedBatch
from epochlake.metastore.errors import ConfigurationError, CoordinationUnavailable, UnknownFormat

from tests.support.waiting import are_contending, eventually
from tests.support.zookeeper import Ensemble, expire_session

pytestmark = pytest.mark.timing

Opener = Callable[..., Coordination]

LEASE = Lease("nightly", "p-1", 7, ("air.flights",), 1_700_000_000_000, "here", 4711)


def head(epoch: int) -> Head:
    return Head(epoch, f"state-{epoch}", f"hash-{epoch}")


class OtherProcess:
    """A process that runs `script` with a session `c`, says `ready`, and then hangs until it is killed."""

    def __init__(self, coordination: Coordination, script: str) -> None:
        program = (
            "import sys, time\n"
            "from epochlake.metastore.coordination.client import Coordination\n"
            f"c = Coordination({coordination.connect_string!r}, {coordination.base!r}, session_timeout=1.0)\n"
            f"{script}\nprint('ready', flush=True)\ntime.sleep(600)\n"
        )
        self.process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


# The session


def test_opening_without_a_server_fails_within_its_timeout() -> None:
    started = time.monotonic()
    with pytest.raises(CoordinationUnavailable, match=r"127\.0\.0\.1:1"):
        Coordination("127.0.0.1:1", "/x", connect_timeout=0.5)
    assert time.monotonic() - started < 30


def test_a_connect_string_that_cannot_be_read_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="no connect string"):
        Coordination("localhost:port", "/x")


def test_a_chroot_in_the_connect_string_comes_before_the_base_path(zookeeper: str) -> None:
    with Coordination(f"{zookeeper}/some/where", "/epochlake/c1") as coordination:
        publish_head(coordination, head(1))
        assert coordination.base == "/some/where/epochlake/c1"
    with Coordination(zookeeper, "/some/where/epochlake/c1") as coordination:
        assert read_head(coordination) == head(1)


CALLS_THAT_NEED_AN_ANSWER: dict[str, Callable[[Coordination], Any]] = {
    "barrier": lambda c: c.barrier(c.path("head"), 0.2),
    "read_head": lambda c: read_head(c, 0.2),
    "publish_head": lambda c: publish_head(c, head(9), 0.2),
    "acquire the lock": lambda c: CommitLock(c).acquire(0.2),
    "pending": lambda c: Proposals(c).pending(0.2),
    "announce": lambda c: announce(c, LEASE, 0.2),
    "live_leases": lambda c: live_leases(c, 0.2),
    "stand for election": lambda c: Candidacy(c, "me").acquire(0.2),
    "who leads": lambda c: Candidacy(c, "me").current(0.2),
}


@pytest.mark.parametrize("outage", ["killed", "hanging"])
def test_everything_is_unavailable_in_bounded_time_without_a_server(
    server: Ensemble, connect: Opener, outage: str
) -> None:
    coordination = connect(server.connect_string)
    publish_head(coordination, head(1))
    server.kill() if outage == "killed" else server.pause()
    for name, call in CALLS_THAT_NEED_AN_ANSWER.items():
        started = time.monotonic()
        with pytest.raises(CoordinationUnavailable):
            print(name, call(coordination))
        assert time.monotonic() - started < 30, name
    server.heal()


def test_a_session_goes_on_after_its_server_came_back(server: Ensemble, connect: Opener) -> None:
    coordination = connect(server.connect_string)
    publish_head(coordination, head(1))
    session = coordination.session_id
    server.kill()
    eventually(lambda: not coordination.connected)
    server.restart()
    assert read_head(coordination, 10) == head(1)
    assert coordination.session_id == session


def test_a_new_session_goes_on_where_an_expired_one_ended(connect: Opener) -> None:
    coordination = connect()
    publish_head(coordination, head(1))
    before = coordination.session_id
    expire_session(coordination)
    eventually(lambda: coordination.session_id not in (before, None))
    assert read_head(coordination) == head(1)


def test_closing_never_takes_long(server: Ensemble) -> None:
    coordination = Coordination(server.connect_string, "/x")
    server.pause()
    started = time.monotonic()
    coordination.close()
    assert time.monotonic() - started < 30


# The lock


def test_the_lock_is_given_in_the_order_in_which_it_was_asked_for(connect: Opener) -> None:
    holder = connect()
    first = CommitLock(holder)
    assert first.acquire(60)
    order: list[int] = []

    def wait_and_tell(number: int, lock: CommitLock) -> None:
        assert lock.acquire(120)
        order.append(number)
        lock.release()

    with ThreadPoolExecutor(6) as pool:
        for number in range(6):
            lock = CommitLock(connect())
            pool.submit(wait_and_tell, number, lock)
            eventually(partial(are_contending, holder, number + 2))
        first.release()
    assert order == list(range(6))


def test_a_lock_excludes_and_can_be_used_again_and_again(connect: Opener) -> None:
    counter = {"inside": 0, "most": 0, "total": 0}

    def work(coordination: Coordination) -> None:
        lock = CommitLock(coordination)
        for _ in range(20):
            assert lock.acquire(120)
            counter["inside"] += 1
            counter["most"] = max(counter["most"], counter["inside"])
            counter["total"] += 1
            counter["inside"] -= 1
            lock.release()

    with ThreadPoolExecutor(5) as pool:
        for future in [pool.submit(work, connect()) for _ in range(5)]:
            future.result()
    assert counter == {"inside": 0, "most": 1, "total": 100}


def test_who_waited_in_vain_leaves_no_contender_and_did_not_wait_longer(connect: Opener) -> None:
    holder, waiting = CommitLock(connect()), connect()
    assert holder.acquire(60)
    for timeout in (0, 0.3):
        started = time.monotonic()
        assert CommitLock(waiting).acquire(timeout) is False
        assert time.monotonic() - started < timeout + 20
        assert len(waiting.children(waiting.path("lock"))) == 1


def test_the_time_to_wait_does_not_start_anew_when_the_one_before_goes(connect: Opener) -> None:
    holder = CommitLock(connect())
    assert holder.acquire(60)
    impatient = [(CommitLock(connect()), 0.3 * (number + 1)) for number in range(3)]
    with ThreadPoolExecutor(4) as pool:
        leaving = [pool.submit(lock.acquire, timeout) for lock, timeout in impatient]
        time.sleep(0.1)
        started = time.monotonic()
        assert CommitLock(connect()).acquire(1.0) is False
        assert time.monotonic() - started < 20
        assert [future.result() for future in leaving] == [False, False, False]


def test_a_session_that_expires_frees_the_lock_and_its_late_release_takes_nothing_away(connect: Opener) -> None:
    paused, next_one, third = connect(), CommitLock(connect()), CommitLock(connect())
    lock = CommitLock(paused)
    assert lock.acquire(60)
    expire_session(paused)
    assert next_one.acquire(60)
    lock.release()
    assert third.acquire(0.2) is False
    next_one.release()
    assert third.acquire(60)


def test_a_killed_holder_frees_the_lock_when_its_session_ends(connect: Opener) -> None:
    coordination = connect()
    holder = OtherProcess(
        coordination, "from epochlake.metastore.coordination.lock import CommitLock\nassert CommitLock(c).acquire(60)"
    )
    assert CommitLock(coordination).acquire(0.1) is False
    holder.kill()
    assert CommitLock(coordination).acquire(60)


def test_waiting_for_the_lock_outlasts_a_restart_of_the_server(server: Ensemble, connect: Opener) -> None:
    holder, waiting = CommitLock(connect(server.connect_string)), CommitLock(connect(server.connect_string))
    assert holder.acquire(60)
    with ThreadPoolExecutor(1) as pool:
        acquired = pool.submit(waiting.acquire, 120)
        time.sleep(0.2)
        server.kill()
        holder.release()
        server.restart()
        assert acquired.result()


def test_a_contender_that_gave_up_during_an_outage_is_gone_afterwards(server: Ensemble, connect: Opener) -> None:
    holder, waiting = connect(server.connect_string), connect(server.connect_string)
    assert CommitLock(holder).acquire(60)
    with ThreadPoolExecutor(2) as pool:
        in_the_queue = pool.submit(CommitLock(waiting).acquire, 0.6)
        eventually(lambda: len(holder.children(holder.path("lock"))) == 2)
        server.pause()
        not_even_there = pool.submit(CommitLock(waiting).acquire, 0.1)
        for future in (in_the_queue, not_even_there):
            with pytest.raises(CoordinationUnavailable):
                future.result()
    server.resume()
    eventually(lambda: len(holder.children(holder.path("lock"))) == 1)
    time.sleep(0.2)
    assert len(holder.children(holder.path("lock"))) == 1


def test_committing_goes_on_when_the_leader_of_an_ensemble_is_killed(ensemble: Ensemble, connect: Opener) -> None:
    one, two = connect(ensemble.connect_string), connect(ensemble.connect_string)
    for epoch in range(1, 31):
        if epoch == 10:
            ensemble.kill(ensemble.leader_index())
        session = (one, two)[epoch % 2]
        lock = CommitLock(session)
        eventually(partial(_acquired, lock, 20))
        eventually(partial(_published, session, epoch))
        lock.release()
    assert read_head(one) == read_head(two) == head(30)


def _acquired(lock: CommitLock, timeout: float) -> bool:
    try:
        return lock.acquire(timeout)
    except CoordinationUnavailable:
        return False


def _published(coordination: Coordination, epoch: int) -> bool:
    try:
        publish_head(coordination, head(epoch), 10)
    except CoordinationUnavailable:
        return False
    return read_head(coordination, 10) == head(epoch)


# The head


def test_there_is_no_head_before_the_first_is_published(connect: Opener) -> None:
    coordination = connect()
    assert read_head(coordination) is None
    assert publish_head(coordination, head(3)) is True
    assert publish_head(coordination, head(3)) is False
    assert publish_head(coordination, head(2)) is False
    assert read_head(connect()) == head(3)


def test_the_head_never_goes_down_with_racing_publishers(connect: Opener) -> None:
    seed = time.time_ns()
    print("seed", seed)
    seen: list[int] = []
    watch_head(connect(), lambda found: seen.append(found.epoch))
    at_once = threading.Barrier(8)

    def race(number: int, coordination: Coordination) -> None:
        for turn in range(40):
            epochs = list(range(8 * turn + 1, 8 * turn + 9))
            Random(seed + turn).shuffle(epochs)
            at_once.wait(30)
            publish_head(coordination, head(epochs[number]))
            at_once.wait(30)
            assert read_head(coordination) == head(8 * turn + 8)

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(race, number, connect()) for number in range(8)]:
            future.result()
    eventually(lambda: seen and seen[-1] == 320)
    assert seen == sorted(set(seen))


@pytest.mark.parametrize("there", [b"", b"{", b'{"epoch": "x"}'])
def test_a_head_that_cannot_be_read_is_no_head_and_is_written_over(connect: Opener, there: bytes) -> None:
    coordination = connect()
    coordination.client.create(coordination.path("head"), there)
    assert read_head(coordination) is None
    assert publish_head(coordination, head(1))
    assert read_head(coordination) == head(1)


def test_a_head_that_the_log_contradicts_can_be_corrected_downwards(connect: Opener) -> None:
    coordination = connect()
    publish_head(coordination, head(100))
    assert correct_head(coordination, head(90)) is True
    assert correct_head(coordination, head(90)) is False
    assert read_head(coordination) == head(90)


def test_a_watch_on_the_head_survives_an_expired_session_and_a_restart(server: Ensemble, connect: Opener) -> None:
    watching, publishing = connect(server.connect_string), connect(server.connect_string)
    seen: list[int] = []
    stop = watch_head(watching, lambda found: seen.append(found.epoch))
    publish_head(publishing, head(1))
    eventually(lambda: seen == [1])
    expire_session(watching)
    publish_head(publishing, head(2))
    eventually(lambda: seen == [1, 2])
    server.kill()
    server.restart()
    publish_head(publishing, head(3), 10)
    eventually(lambda: seen == [1, 2, 3])
    stop()
    publish_head(publishing, head(4))
    publish_head(publishing, head(5))
    assert seen == [1, 2, 3]


# The proposals


def publish(proposals: Proposals, data: bytes = b"events") -> PublishedBatch:
    batch = proposals.publish(data)
    assert batch is not None
    return batch


def test_published_batches_are_seen_by_the_others_in_their_order(connect: Opener) -> None:
    one, two = Proposals(connect()), Proposals(connect())
    published = [publish(one, f"batch {number}".encode()) for number in range(5)]
    assert two.pending() == published
    assert one.pending() == []
    assert two.claim(published[1:3]) == published[1:3]
    assert [one.is_published(batch) for batch in published] == [True, False, False, True, True]
    assert [one.withdraw(batch) for batch in published] == [True, False, False, True, True]
    assert two.pending() == []


def test_a_batch_too_large_for_a_znode_is_not_published(connect: Opener) -> None:
    coordination = connect()
    proposals = Proposals(coordination)
    assert proposals.publish(b"x" * (LARGEST_BATCH_BYTES + 1)) is None
    assert coordination.children(coordination.path(PROPOSALS)) == []
    assert proposals.publish(b"x" * LARGEST_BATCH_BYTES) is not None


def test_of_all_claims_and_the_withdrawal_of_a_batch_exactly_one_wins(connect: Opener) -> None:
    seed = time.time_ns()
    print("seed", seed)
    owner, claimers = Proposals(connect()), [Proposals(connect()) for _ in range(4)]
    batches = [publish(owner) for _ in range(150)]
    everybody = threading.Barrier(5)

    def claim(number: int, claimer: Proposals) -> list[str]:
        mine = list(batches)
        Random(seed + number).shuffle(mine)
        everybody.wait()
        return [batch.path for start in range(0, 150, 10) for batch in claimer.claim(mine[start : start + 10])]

    def withdraw() -> list[str]:
        everybody.wait()
        return [batch.path for batch in batches if owner.withdraw(batch)]

    with ThreadPoolExecutor(5) as pool:
        winners = [pool.submit(claim, number, claimer) for number, claimer in enumerate(claimers)]
        winners.append(pool.submit(withdraw))
        taken = [path for future in winners for path in future.result()]
    assert sorted(taken) == sorted(batch.path for batch in batches)


def test_a_batch_of_a_dead_owner_vanishes_and_is_nobodys(connect: Opener) -> None:
    coordination = connect()
    owner = OtherProcess(
        coordination,
        "from epochlake.metastore.coordination.proposals import Proposals\nassert Proposals(c).publish(b'events')",
    )
    proposals = Proposals(coordination)
    [batch] = proposals.pending()
    owner.kill()
    eventually(lambda: proposals.pending() == [])
    assert proposals.claim([batch]) == []


@pytest.mark.parametrize("decision", ["claim", "withdraw"])
def test_a_decision_without_an_answer_is_nobodys(server: Ensemble, connect: Opener, decision: str) -> None:
    owner, claimer = Proposals(connect(server.connect_string)), Proposals(connect(server.connect_string))
    batch = publish(owner)
    server.pause()
    started = time.monotonic()
    if decision == "claim":
        assert claimer.claim([batch], 0.3) == []
    else:
        with pytest.raises(CoordinationUnavailable):
            owner.withdraw(batch, 0.3)
    assert time.monotonic() - started < 30
    server.resume()
    # It was carried out all the same, later: so the other one does not get it either.
    eventually(lambda: claimer.pending() == [])
    assert owner.withdraw(batch) is False
    assert claimer.claim([batch]) == []


def test_publishing_without_an_answer_can_still_be_withdrawn(server: Ensemble, connect: Opener) -> None:
    owner = Proposals(connect(server.connect_string))
    assert owner.withdraw(publish(owner))
    server.pause()
    batch = owner.publish(b"events", 0.3)
    server.resume()
    assert batch is not None
    assert owner.withdraw(batch) is True


def test_nothing_is_published_without_a_connection(server: Ensemble, connect: Opener) -> None:
    coordination = connect(server.connect_string)
    server.kill()
    eventually(lambda: not coordination.connected)
    assert Proposals(coordination).publish(b"events") is None


# The leases


def test_a_lease_shows_a_pipeline_until_it_is_released(connect: Opener) -> None:
    pipeline, onlooker = connect(), connect()
    announcement = announce(pipeline, LEASE)
    assert live_leases(onlooker) == [LEASE]
    announcement.update(9, ("air.flights",))
    [lease] = live_leases(onlooker)
    assert (lease.epoch, lease.name, lease.tables) == (9, "nightly", ("air.flights",))
    announcement.release()
    announcement.release()
    eventually(lambda: live_leases(onlooker) == [])


def test_a_lease_vanishes_with_its_killed_process(connect: Opener) -> None:
    coordination = connect()
    process = OtherProcess(
        coordination,
        "from epochlake.metastore.coordination.leases import Lease, announce\n"
        "announce(c, Lease('load', 'p-2', 3, (), 1, 'h', 1))",
    )
    assert [lease.name for lease in live_leases(coordination)] == ["load"]
    process.kill()
    eventually(lambda: live_leases(coordination) == [])


def test_a_lease_returns_after_its_session_expired_with_what_it_last_said(connect: Opener) -> None:
    pipeline, onlooker = connect(), connect()
    announcement = announce(pipeline, LEASE)
    announcement.update(8, ())
    expire_session(pipeline)
    eventually(lambda: [lease.epoch for lease in live_leases(onlooker)] == [8])
    announcement.release()
    eventually(lambda: live_leases(onlooker) == [])
    expire_session(pipeline)
    eventually(lambda: pipeline.connected)
    time.sleep(0.2)
    assert live_leases(onlooker) == []


def test_an_update_during_an_outage_is_announced_after_it(server: Ensemble, connect: Opener) -> None:
    coordination = connect(server.connect_string)
    announcement = announce(coordination, LEASE)
    server.kill()
    with pytest.raises(CoordinationUnavailable):
        announcement.update(12, (), 0.2)
    server.restart()
    eventually(lambda: [lease.epoch for lease in live_leases(coordination, 10)] == [12])


def test_a_lease_that_cannot_be_read_is_not_overlooked(connect: Opener) -> None:
    coordination = connect()
    coordination.client.create(f"{coordination.ensure(LEASES)}/newer", b'{"format": 2}')
    with pytest.raises(UnknownFormat, match="leases/newer"):
        live_leases(coordination)


# The election


def test_another_candidate_leads_after_the_leader_was_killed(connect: Opener) -> None:
    coordination = connect()
    leader = OtherProcess(
        coordination,
        "from epochlake.metastore.coordination.election import Candidacy\n"
        "candidacy = Candidacy(c, 'first')\nassert candidacy.acquire(60) and candidacy.leader",
    )
    candidacy = Candidacy(coordination, "second")
    assert candidacy.acquire(0.2) is False
    assert (candidacy.leader, candidacy.current()) == (False, "first")
    leader.kill()
    assert candidacy.acquire(60) is True
    assert (candidacy.leader, candidacy.current()) == (True, "second")
    candidacy.release()
    assert candidacy.leader is False
    eventually(lambda: candidacy.current() is None)


def test_a_leader_is_none_from_the_loss_of_its_connection_until_it_is_confirmed(
    server: Ensemble, connect: Opener
) -> None:
    candidacy = Candidacy(connect(server.connect_string), "me")
    assert candidacy.acquire(60)
    other = connect(server.connect_string)
    server.kill()
    eventually(lambda: not candidacy.leader)
    server.restart()
    eventually(lambda: other.connected)
    assert candidacy.leader is False
    # The session survived, and with it the place in the queue.
    assert candidacy.acquire(60) is True
    assert candidacy.leader is True
    assert Candidacy(other, "other").acquire(0.2) is False


def test_a_leader_whose_session_expired_queues_up_behind_the_others(connect: Opener) -> None:
    expiring = connect()
    leader, other = Candidacy(expiring, "leader"), Candidacy(connect(), "other")
    assert leader.acquire(60)
    expire_session(expiring)
    assert other.acquire(60)
    eventually(lambda: expiring.connected)
    assert leader.leader is False
    assert leader.acquire(0.2) is False
    assert leader.current() == "other"
    other.release()
    assert leader.acquire(60)
