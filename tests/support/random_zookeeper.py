"""Random requests of several sessions to the model of ZooKeeper, while processes die and networks break."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from epochlake.jobs.testing.scheduler import Process, Scheduler, ended_afterwards
from epochlake.jobs.testing.stdlib import Threading
from epochlake.jobs.testing.zookeeper import Ensemble
from epochlake.jobs.testing.zookeeper_client import Client
from epochlake.jobs.testing.zookeeper_recording import Step, recorded
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

PATHS = ("/a", "/b", "/a/x", "/a/y", "/a/x/z", "/b/e")
"""Few, so that sessions get in each other's way."""

SESSION_SECONDS = 10.0


def random_steps(seed: int) -> list[Step]:
    """What the model did in the history of a seed."""
    chance = random.Random(repr(("random zookeeper", seed)))
    scheduler = Scheduler(seed)
    with recorded() as recorder, ended_afterwards(scheduler):
        ensemble = Ensemble(scheduler, seed)
        processes = [Process(f"p{number}") for number in range(chance.randint(2, 4))]
        actors = [
            scheduler.spawn(one, "main", partial(_work, ensemble, random.Random(chance.random()))) for one in processes
        ]
        harm = Process("harm") if chance.random() < 0.7 else None
        if harm is not None:
            scheduler.spawn(harm, "main", partial(_harm, ensemble, processes, random.Random(chance.random())))
        scheduler.run(lambda: all(actor.done for actor in actors))
        if harm is not None:
            scheduler.kill(harm)
        # What belonged to dead processes goes as well.
        waits = scheduler.spawn(Process("end"), "main", partial(_let_sessions_end, ensemble))
        scheduler.run(lambda: waits.done)
        errors = [actor.error for actor in (*actors, *scheduler.failed) if actor.error is not None]
    if errors:
        raise errors[0]
    return recorder.steps()


def _let_sessions_end(ensemble: Ensemble) -> None:
    ensemble.heal()
    ensemble.scheduler.sleep(4 * SESSION_SECONDS)


def _work(ensemble: Ensemble, chance: random.Random) -> None:
    """Some sessions of one process, one after the other, sometimes two at a time."""
    scheduler = ensemble.scheduler
    for _ in range(chance.randint(1, 3)):
        clients = [Client(ensemble, Threading(scheduler), SESSION_SECONDS) for _ in range(chance.choice([1, 1, 2]))]
        for client in clients:
            client.start_async().wait(30.0)
        usual = [_Watch() for _ in range(2)]
        for _ in range(chance.randint(5, 50)):
            client = chance.choice(clients)
            # Some are sent without waiting, and may all be lost or carried out when the connection breaks.
            asked = [_ask(client, chance, usual) for _ in range(chance.choice([1, 1, 1, 4]))]
            for result in asked if chance.random() < 0.9 else ():
                with suppress(KazooException, KazooTimeoutError):
                    result.get(timeout=30.0)
            scheduler.sleep(chance.choice([0.0, 0.0, 0.01, 0.2, 1.0]))
        for client in clients:
            with suppress(KazooException):  # it waits for ten seconds, which may pass while its process stands still
                client.stop()
            with suppress(KazooException):
                client.close()


class _Watch:
    def __call__(self, event: object) -> None:
        """The recorder knows that it was called."""


def _ask(client: Client, chance: random.Random, usual: list[_Watch]) -> Any:
    path, data = chance.choice(PATHS), chance.randbytes(chance.choice([0, 3, 30]))
    version = chance.choice([-1, -1, 0, 0, 1, 2])
    # The same watch is left again and again, as a watch that looks again does; another one is new each time.
    watch = chance.choice([None, *usual, _Watch()])
    ways: list[tuple[int, Callable[[], Any]]] = [
        (8, lambda: client.create_async(path, data, ephemeral=chance.random() < 0.4)),
        (5, lambda: client.create_async(f"{path}/s-", data, sequence=True, ephemeral=chance.random() < 0.5)),
        (2, lambda: client.create_async(path, data, makepath=True)),
        (2, lambda: client.ensure_path_async(path)),
        (6, lambda: client.get_async(path, watch)),
        (6, lambda: client.exists_async(path, watch)),
        (6, lambda: client.get_children_async(path, watch)),
        (2, lambda: client.get_children_async(path, watch, include_data=True)),
        (6, lambda: client.set_async(path, data, version)),
        (6, lambda: client.delete_async(path, version)),
        (4, lambda: _delete_a_child(client, path, chance)),
        (1, lambda: client.sync_async(path)),
    ]
    [way] = chance.choices([way for _, way in ways], [weight for weight, _ in ways])
    return way()


def _delete_a_child(client: Client, path: str, chance: random.Random) -> Any:
    """Delete one with a number, so that the next number is not that of the last one plus one."""
    result = client.get_children_async(path)
    with suppress(KazooException, KazooTimeoutError):
        numbered = sorted(name for name in result.get(timeout=30.0) if name.startswith("s-"))
        if numbered:
            return client.delete_async(f"{path}/{chance.choice(numbered)}")
    return result


def _harm(ensemble: Ensemble, processes: list[Process], chance: random.Random) -> None:
    scheduler = ensemble.scheduler
    while True:
        scheduler.sleep(chance.expovariate(0.5))
        victim = chance.choice(processes)
        match chance.choices(["pause", "cut", "majority", "kill", "forget"], [5, 6, 3, 3, 1])[0]:
            case "pause":
                scheduler.pause(victim, chance.choice([0.5, 40.0]))
            case "cut":
                ensemble.cut(victim, chance.choice([0.05, 2.0, 40.0]))
            case "majority":
                ensemble.lose_majority(chance.choice([0.5, 20.0]))
            case "kill":
                scheduler.kill(victim)
            case "forget":
                ensemble.forget()
