"""ZooKeeper servers for the tests of protocols."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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


@pytest.fixture(scope="module")
def _server_of_the_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    with Ensemble(tmp_path_factory.mktemp("server"), size=1) as single:
        yield single


@pytest.fixture
def server(_server_of_the_module: Ensemble) -> Iterator[Ensemble]:
    """A standalone server to be killed and paused: whole again for the next test."""
    yield _server_of_the_module
    _server_of_the_module.heal()


@pytest.fixture(scope="module")
def _ensemble_of_the_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    with Ensemble(tmp_path_factory.mktemp("ensemble"), size=3) as members:
        yield members


@pytest.fixture
def ensemble(_ensemble_of_the_module: Ensemble) -> Iterator[Ensemble]:
    """Three servers, any of which can be killed and paused: all there again for the next test."""
    yield _ensemble_of_the_module
    _ensemble_of_the_module.heal()


@pytest.fixture
def connect(request: pytest.FixtureRequest) -> Iterator[Opener]:
    """Open sessions that all have the same fresh base path; they are closed at the end of the test.

    To the shared server, or to the one that `to` names. Unless a test says otherwise they outlast a machine on which
    every process waits for seconds.
    """
    opened: list[Coordination] = []
    base = f"/test/{uuid4().hex}"

    def open_session(to: str | None = None, **options: float) -> Coordination:
        string = request.getfixturevalue("zookeeper") if to is None else to
        coordination = Coordination(string, base, **{"session_timeout": 30.0, "connect_timeout": 120.0} | options)
        opened.append(coordination)
        return coordination

    yield open_session
    for coordination in opened:
        coordination.close()
