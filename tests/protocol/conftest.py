"""ZooKeeper servers for the tests of protocols."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from epochlake.metastore.coordination.client import Coordination

from tests.support.zookeeper import Ensemble

Opener = Callable[..., Coordination]


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Connect string of one server for all tests: use a base path of your own, and leave the server alone."""
    with Ensemble(tmp_path_factory.mktemp("zookeeper"), size=1) as server:
        yield server.connect_string


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Ensemble]:
    """A standalone server of this test alone, to be killed and paused."""
    with Ensemble(tmp_path, size=1) as single:
        yield single


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """Three servers for the tests of a module: restart what you kill."""
    with Ensemble(tmp_path_factory.mktemp("ensemble"), size=3) as members:
        yield members


@pytest.fixture
def connect(request: pytest.FixtureRequest) -> Iterator[Opener]:
    """Open sessions that all have the same fresh base path; they are closed at the end of the test.

    To the shared server, or to the one that `to` names.
    """
    opened: list[Coordination] = []
    base = f"/test/{uuid4().hex}"

    def open_session(to: str | None = None, **options: float) -> Coordination:
        string = request.getfixturevalue("zookeeper") if to is None else to
        coordination = Coordination(string, base, **options)
        opened.append(coordination)
        return coordination

    yield open_session
    for coordination in opened:
        coordination.close()
