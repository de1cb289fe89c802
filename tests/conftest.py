"""What all tests share: one lazy Spark session, seeds that can be run again, and an environment of their own.

`EPOCHLAKE_TEST_SPARK=connect` gives the same tests a Connect session; `EPOCHLAKE_TEST_SEED` repeats a random test.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from tests.support import slices
from tests.support.long_tests import LONG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TESTS = Path(__file__).parent
SEED = "EPOCHLAKE_TEST_SEED"
SPARK = "EPOCHLAKE_TEST_SPARK"

MARKERS = {"spark": "spark", "submitted": "spark", "protocol": "protocol"}

TEMPORARY = "PYTEST_DEBUG_TEMPROOT"
"""Where pytest keeps the folders of tests."""
IN_MEMORY = "/dev/shm"
"""Where they cost least: a fifth of what the tests need of a processor was spent on the file system of a disk."""
ENOUGH_BYTES = 4 << 30

YOUNG_OBJECTS = (10_000, 20, 20)
"""Thresholds of the collector of cycles."""

# Two shared cores: a slow example is no failure. A failing one prints what repeats it.
hypothesis.settings.register_profile("epochlake", deadline=None, print_blob=True)
hypothesis.settings.load_profile("epochlake")


def pytest_configure() -> None:
    """A developer's own configuration must not change what is tested."""
    for variable in [name for name in os.environ if name.startswith(("EPOCHLAKE__", "EPOCHLAKE_CONF"))]:
        del os.environ[variable]
    os.environ["SPARK_CONF_DIR"] = str(TESTS / "data" / "spark")
    if TEMPORARY not in os.environ and _has_room(IN_MEMORY):
        os.environ[TEMPORARY] = IN_MEMORY


def _has_room(directory: str) -> bool:
    try:
        return shutil.disk_usage(directory).free >= ENOUGH_BYTES
    except OSError:
        return False


def pytest_report_header() -> str:
    return "every case" if slices.THOROUGH else f"cases drawn by EPOCHLAKE_TESTS_DRAW={slices.DRAW}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Whatever lies in a folder has the marker that is its own; slices are taken."""
    for item in items:
        if item.path.is_relative_to(TESTS):
            folder = item.path.relative_to(TESTS).parts[0]
            if folder in MARKERS:
                item.add_marker(MARKERS[folder])
    if any("::" in argument for argument in config.args):
        return
    by_folder = all(Path(argument).is_dir() for argument in config.args)
    if left_out := slices.left_out(items, LONG if by_folder else None):
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """The collector of cycles need not look again and again at what stays to the end: modules and tests.

    A seventh of what the tests need of a processor was spent on that.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*YOUNG_OBJECTS)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session of all tests that need one, started by the first of them."""
    from epochlake.jobs.spark_session import session

    where = {"remote": "local[2]"} if os.environ.get(SPARK) == "connect" else {"master": "local[2]"}
    started = session("epochlake-tests", **where)
    yield started
    started.stop()


@pytest.fixture(autouse=True)
def quick_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disks are not asked to sync: that is slow, and what is synced when is the subject of tests of its own.

    Those put their recorder in the same place. Other processes sync as always.
    """

    from epochlake.metastore.storage import local_disk

    monkeypatch.setattr(local_disk, "fsync", lambda descriptor: None)


@pytest.fixture(autouse=True)
def ended_afterwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test opens and leaves open is closed at its end, and so is what it announces.

    Their threads would go on in the tests that follow, and take part in a simulated history.
    """
    from epochlake.metastore.announcing import Presence
    from epochlake.metastore.metastore import Metastore

    left: list[Callable[[], None]] = []
    open_, announce = Metastore.__init__, Presence.begin

    def opened(metastore: Metastore, *values: Any, **named: Any) -> None:
        left.append(metastore.close)
        open_(metastore, *values, **named)

    def announced(presence: Presence) -> None:
        left.append(presence.end)
        announce(presence)

    monkeypatch.setattr(Metastore, "__init__", opened)
    monkeypatch.setattr(Presence, "begin", announced)
    yield
    for end in reversed(left):
        with suppress(Exception):  # such as of one that could not be opened
            end()


@pytest.fixture
def seed() -> int:
    """A new random seed in each run, shown when the test fails; the same one again by EPOCHLAKE_TEST_SEED."""
    chosen = int(os.environ.get(SEED) or random.SystemRandom().randrange(2**32))
    print(f"run again with {SEED}={chosen}")
    return chosen
