"""The model of ZooKeeper in which worlds run, beside a real server: what one was recorded doing, the other does too."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from epochlake.jobs.testing import zookeeper as model
from epochlake.jobs.testing.log_drawing import log_scenario
from epochlake.jobs.testing.log_histories import log_history
from epochlake.jobs.testing.row_drawing import row_scenario
from epochlake.jobs.testing.row_histories import row_history
from epochlake.jobs.testing.scenario import Scenario
from epochlake.jobs.testing.scheduler import Process, Scheduler, ended_afterwards
from epochlake.jobs.testing.stdlib import Threading
from epochlake.jobs.testing.zookeeper_client import Client
from epochlake.jobs.testing.zookeeper_recording import Asked, Ended, Forgot, HungUp, Step, Told, recorded
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss
from kazoo.protocol.states import EventType

from tests.support.random_zookeeper import random_steps
from tests.support.slices import some
from tests.support.zookeeper_replay import differences

LOG_HISTORIES = some(thorough=150, otherwise=4)
ROW_HISTORIES = some(thorough=30, otherwise=1)
RANDOM_HISTORIES = some(thorough=400, otherwise=8)

MOST_HISTORIES_TO_NOTICE = 20
"""Of random histories, for one rule that is broken."""


def steps_of_a_world(history: Callable[[Scenario], object], scenario: Scenario) -> list[Step]:
    """What a world asks of ZooKeeper, none of whose servers lags behind: the real one is one server."""
    faults = tuple(fault for fault in scenario.faults if fault.kind != "server lags")
    with recorded() as recorder:
        history(msgspec.structs.replace(scenario, faults=faults))
    return recorder.steps()


@pytest.mark.parametrize(
    ("history", "drawn", "count"),
    [(log_history, log_scenario, LOG_HISTORIES), (row_history, row_scenario, ROW_HISTORIES)],
    ids=["log", "rows"],
)
def test_a_real_server_does_what_the_model_did_in_worlds(
    history: Callable[[Scenario], object], drawn: Callable[[int], Scenario], count: int, seed: int, zookeeper: str
) -> None:
    asked = 0
    for one in range(seed, seed + count):
        steps = steps_of_a_world(history, drawn(one))
        assert not differences(steps, zookeeper), f"{drawn.__name__}({one}), PYTHONHASHSEED={_hash_seed()}"
        asked += len(requests(steps))
    assert asked > 10 * count


def test_a_real_server_does_what_the_model_did_at_random_requests(seed: int, zookeeper: str) -> None:
    for one in range(seed, seed + RANDOM_HISTORIES):
        assert not differences(random_steps(one), zookeeper), f"random_steps({one}), PYTHONHASHSEED={_hash_seed()}"


def _hash_seed() -> str:
    return os.environ.get("PYTHONHASHSEED", "random")


def requests(steps: Sequence[Step]) -> list[Asked]:
    return [step for step in steps if isinstance(step, Asked)]


def watches(steps: Sequence[Step]) -> list[Told]:
    return [told for step in steps if isinstance(step, Asked | Ended) for told in step.told]


def test_random_requests_come_by_every_error_every_watch_and_every_end_of_a_session() -> None:
    steps = [step for seed in range(12) for step in random_steps(seed)]
    errors = Counter(step.error for step in requests(steps))
    assert {"NoNodeError", "NodeExistsError", "NotEmptyError", "BadVersionError", "NoChildrenForEphemeralsError"} < {
        *errors
    }
    kinds = Counter((told.kind, len(told.called)) for told in watches(steps) if told.called is not None)
    events = {EventType.CREATED, EventType.CHANGED, EventType.DELETED, EventType.CHILD}
    assert {kind for kind, _ in kinds} == events
    assert max(called for _, called in kinds) > 1, "several watches at once"
    assert any(told.called is None for told in watches(steps)), "one that was lost on its way"
    assert {step.expired for step in steps if isinstance(step, Ended)} == {True, False}
    assert {Forgot, HungUp} < {type(step) for step in steps}


def _told_again(self: Any, before: Callable[..., Any], watches: Any, path: str, kind: str) -> None:
    links = dict(watches.get(path, {}))
    before(self, watches, path, kind)
    watches[path] = links


def _survives(self: Any, before: Callable[..., Any], number: int, **how: bool) -> None:
    for znode in self._tree.values():
        znode.owner = 0 if znode.owner == number else znode.owner
    before(self, number, **how)


def _number_used_again(self: Any, before: Callable[..., Any], path: str) -> None:
    before(self, path)
    self._tree[path.rpartition("/")[0] or "/"].created -= 1


def _below_ephemerals(self: Any, before: Callable[..., Any], path: str, *more: Any) -> str:
    parent = self._at(path.rpartition("/")[0] or "/")
    owner, parent.owner = parent.owner, 0
    try:
        return str(before(self, path, *more))
    finally:
        parent.owner = owner


def _watch_only_what_is_there(self: Any, before: Callable[..., Any], path: str, *more: Any, **how: Any) -> None:
    if path in self._tree:
        before(self, path, *more, **how)


def _silent_about(kind: str) -> Callable[..., None]:
    def tell(self: Any, before: Callable[..., Any], watches: Any, path: str, told: str) -> None:
        if told != kind:
            before(self, watches, path, told)

    return tell


BROKEN: dict[str, tuple[str, Callable[..., Any]]] = {
    "a watch is told again": ("_tell", _told_again),
    "a watch of a deletion is not told": ("_tell", _silent_about(EventType.DELETED)),
    "a watch of a creation is not left": ("_watch", _watch_only_what_is_there),
    "children are not watched": ("_tell", _silent_about(EventType.CHILD)),
    "watches survive the connection": ("_unwatch", lambda self, before, link: None),
    "an ephemeral znode survives its session": ("_end", _survives),
    "the number of a deleted znode is used again": ("_remove", _number_used_again),
    "an ephemeral znode has children": ("_create", _below_ephemerals),
    "a set checks no version": ("_set", lambda self, before, path, data, version: before(self, path, data, -1)),
    "a delete checks no version": ("_delete", lambda self, before, path, version: before(self, path, -1)),
}
"""Methods of the ensemble in which a rule does not hold; each is given the one that it stands for."""


@pytest.mark.parametrize("rule", BROKEN)
def test_a_model_in_which_a_rule_is_broken_is_found(
    rule: str, seed: int, zookeeper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, broken = BROKEN[rule]
    before = getattr(model.Ensemble, name)
    monkeypatch.setattr(model.Ensemble, name, lambda self, *given, **how: broken(self, before, *given, **how))
    histories = range(seed, seed + MOST_HISTORIES_TO_NOTICE)
    assert any(is_noticed(one, zookeeper) for one in histories)


def is_noticed(seed: int, zookeeper: str) -> bool:
    try:
        return bool(differences(random_steps(seed), zookeeper, most=1))
    except KeyError:
        return True  # the tree of a model without the rule has come apart


def test_who_sends_too_much_loses_the_connection_and_gets_another_one(zookeeper: str) -> None:
    too_much = b"x" * (model.LARGEST_REQUEST_BYTES + 1)

    def send(client: Any) -> list[str]:
        states: list[str] = []
        client.add_listener(states.append)
        client.start_async().wait(60.0)
        with pytest.raises(ConnectionLoss):
            client.create_async("/too-large", too_much).get(timeout=60.0)
        assert client.get_children_async("/").get(timeout=60.0) is not None
        assert client.exists_async("/too-large").get(timeout=60.0) is None
        client.stop()
        return states

    scheduler = Scheduler(1)
    with ended_afterwards(scheduler):
        threads = Threading(scheduler)
        ensemble = model.Ensemble(scheduler, 1)
        actor = scheduler.spawn(Process("p"), "main", lambda: send(Client(ensemble, threads, 10.0)))
        scheduler.run(lambda: actor.done)
    assert actor.error is None
    assert actor.result == send(KazooClient(zookeeper, timeout=30.0)) == ["CONNECTED", "SUSPENDED", "CONNECTED", "LOST"]
