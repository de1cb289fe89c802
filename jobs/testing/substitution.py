"""Production code in a world: for as long as a block lasts, its modules see the world's clock, threads and chance.

Nothing of production code is written for it. A module that imports `time` finds the world's time under that name, and
another module's class that is derived from a thread's event is derived from the world's.
"""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import queue
import random
import secrets
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import epochlake.jobs
import epochlake.metastore
import epochlake.placement
from deltalake import DeltaTable
from epochlake.jobs.testing import stdlib
from epochlake.jobs.testing.scheduler import Scheduler
from epochlake.jobs.testing.zookeeper import Ensemble
from epochlake.jobs.testing.zookeeper_client import Client
from epochlake.metastore import metastore, threads
from epochlake.metastore.coordination import client
from epochlake.metastore.coordination.whereabouts import whereabouts

NOT_HERE = tuple(
    f"epochlake.jobs.{name}" for name in ("testing", "cli", "demo", "datasource", "airflow_provider", "exchange")
)
"""Packages that are not production code in the world."""

RECIPES = ("kazoo.recipe.lock", "kazoo.retry")
"""Modules of kazoo that run in the world as they are."""


@contextmanager
def substituted(scheduler: Scheduler, ensemble: Ensemble, seed: int | str, table: type) -> Iterator[None]:
    """Let production code run in the world of `scheduler`, with `table` as delta-rs. One world at a time."""
    threading_ = stdlib.Threading(scheduler)
    chance = random.Random(repr(("values", seed)))
    bound = {"_scheduler": scheduler}
    stand_ins: dict[int, Any] = {
        id(time): stdlib.Time(scheduler),
        id(threading): threading_,
        id(random): chance,
        id(uuid): stdlib.Uuid(chance),
        id(secrets): stdlib.Secrets(chance),
        id(queue.SimpleQueue): type("SimpleQueue", (stdlib.SimpleQueue,), bound),
        id(wait): stdlib.wait,
        id(DeltaTable): table,
        id(whereabouts): lambda *_: None,
        id(ThreadPoolExecutor): type("ThreadPoolExecutor", (stdlib.ThreadPoolExecutor,), bound),
    }

    def kazoo_client(hosts: str, timeout: float, **_: Any) -> Client:
        return Client(ensemble, threading_, timeout)

    opened = itertools.count(1)

    def author() -> str:
        return f"{scheduler.current.process.name}@world.{next(opened)}"

    changed: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, value: Any) -> None:
        changed.append((owner, name, owner.__dict__[name]))
        setattr(owner, name, value)

    bases: list[tuple[type, tuple[type, ...]]] = []
    for module in _production():
        for name, value in list(vars(module).items()):
            if id(value) in stand_ins:
                put(module, name, stand_ins[id(value)])
            elif isinstance(value, threading.local):
                put(module, name, threading_.local())
            elif isinstance(value, type) and value.__module__ == module.__name__:
                new = tuple(_base(one, threading_) for one in value.__bases__)
                if new != value.__bases__:
                    bases.append((value, value.__bases__))
                    value.__bases__ = new
    put(threads, "begin", stdlib.begin(scheduler))
    put(client, "KazooClient", kazoo_client)
    put(client, "_ImpatientThreads", _NoThreads)
    put(metastore, "author", author)
    # The one address of a world stays what it is, and recorded histories have no question after it.
    put(metastore, "follow_members", lambda _: None)
    try:
        yield
    finally:
        for owner, name, value in reversed(changed):
            setattr(owner, name, value)
        for kind, before in bases:
            kind.__bases__ = before


def _base(kind: type, threading_: stdlib.Threading) -> type:
    stand_ins: Mapping[type, type] = {threading.Event: threading_.Event}
    return stand_ins.get(kind, kind)


class _NoThreads:
    """In place of kazoo's threads: the world's client needs none."""

    handshakes = 0

    def __init__(self) -> None:
        self.refused_everywhere = lambda: None


_loaded: list[ModuleType] = []


def _production() -> list[ModuleType]:
    """All modules of production code, and of kazoo's recipes; imported, so that none comes in later with real time."""
    if not _loaded:
        for package in (epochlake.placement, epochlake.metastore, epochlake.jobs):
            for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
                if not found.name.startswith(NOT_HERE) and not _needs_spark(found.name):
                    importlib.import_module(found.name)
        names = [name for name in sys.modules if name.startswith("epochlake.") and not name.startswith(NOT_HERE)]
        _loaded.extend(sys.modules[name] for name in sorted(names))
        _loaded.extend(importlib.import_module(name) for name in RECIPES)
    return _loaded


def _needs_spark(name: str) -> bool:
    parts = name.split(".")
    return "dataframes" in parts or "spark" in parts[-1] or parts[-1] in ("pipeline", "conform", "__main__")
