"""An ensemble that has moved is found by what the cluster has published, and nothing else is taken for it.

Server 1 is the ensemble, and servers 2 and 3 follow it without a vote. The ensemble moves to server 2; server 1 is then
restored from a copy of before, when it was the ensemble, and there is a stranger that has never heard of the cluster.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from epochlake.metastore.configuration import AUTO, Configuration, ZooKeeperSettings
from epochlake.metastore.coordination.client import Coordination
from epochlake.metastore.coordination.publication import PublishedEnsemble
from epochlake.metastore.coordination.published import WrongEnsemble, last_number, newest, publish
from epochlake.metastore.coordination.reconfiguring import EnsembleMover
from epochlake.metastore.coordination.whereabouts import Whereabouts
from epochlake.metastore.errors import CoordinationUnavailable
from epochlake.metastore.root import Root

from tests.support.storages import STORAGE
from tests.support.waiting import eventually
from tests.support.zookeeper import OPERATOR, Ensemble

pytestmark = [pytest.mark.timing, pytest.mark.timeout(1800)]

PATIENCE = 300.0
CLUSTER = "c1"


class Moved:
    """A root, an ensemble whose servers are 1 to 3, and a stranger."""

    def __init__(self, directory: Path) -> None:
        self.root = str(directory / "root")
        self.directory = Root(self.root).coordination
        (directory / "root").mkdir()
        self.servers = Ensemble(directory / "servers", size=1, changeable=True, beside=2)
        self.stranger = Ensemble(directory / "stranger", size=1, changeable=True)

    def address(self, number: int) -> str:
        return self.servers.connect_string.split(",")[number - 1]

    def guide(self, connect: str) -> Whereabouts:
        settings = ZooKeeperSettings(connect=connect)
        return Whereabouts(Configuration(root=self.root, zookeeper=settings), STORAGE, CLUSTER)

    def session(self, connect: str, timeout: float = PATIENCE, operator: str = "") -> Coordination:
        guide = self.guide(connect)
        return Coordination(
            guide.first(), "/base", session_timeout=60.0, connect_timeout=timeout, operator=operator, guide=guide
        )

    def trouble(self, connect: str) -> str:
        """Why a process that starts with this gets no session."""
        with pytest.raises(CoordinationUnavailable) as unavailable:
            self.session(connect, timeout=5.0)
        return str(unavailable.value)

    def unguided(self, connect: str) -> Coordination:
        return Coordination(connect, "/base", session_timeout=60.0, connect_timeout=PATIENCE, operator=OPERATOR)

    def move(self, number: int) -> None:
        with self.session(AUTO, operator=OPERATOR) as session:
            EnsembleMover(session, PATIENCE, PATIENCE).begin([self.servers.server(number - 1)])

    def publish(self, connect: str, *, adopt: bool = False) -> PublishedEnsemble | None:
        with self.unguided(connect) as session:
            return publish(session, STORAGE, self.directory, CLUSTER, adopt=adopt)


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moved]:
    made = Moved(tmp_path_factory.mktemp("published"))
    yield made
    made.servers.stop()
    made.stranger.stop()


def refused(session: Coordination) -> str:
    """Why it has not gone over to the server that it has met."""
    assert session.guide is not None
    return session.guide.refused


def serves(session: Coordination) -> bool:
    return session.barrier("/base", PATIENCE) is not None


def test_a_moved_ensemble_is_found_and_nothing_else_is_taken_for_it(moved: Moved, tmp_path: Path) -> None:
    first = moved.publish(moved.address(1))
    assert first is not None
    assert (first.number, first.connect) == (1, moved.address(1))
    assert moved.publish(moved.address(1)) == first, "there is nothing new"
    # As it is restored later. No process has it open while it is copied.
    moved.servers.kill(0)
    shutil.copytree(moved.servers._home(0), tmp_path / "yesterday")
    moved.servers.restart(0)

    # It lives on while the ensemble goes elsewhere, and hears of that from the root alone.
    with moved.session(moved.address(1)) as lives_on, moved.session(moved.address(1)) as cut_off:
        path = lives_on.path("lives")
        lives_on.call("create", lambda kazoo: kazoo.create_async(path, b"", ephemeral=True), PATIENCE)
        moved.move(2)
        assert moved.publish(f"{moved.address(1)},{moved.address(2)}") is not None
        second = newest(STORAGE, moved.directory)
        assert second is not None
        assert (second.number, second.connect, second.ensemble) == (2, moved.address(2), first.ensemble)
        moved.servers.kill(0)
        assert lives_on.owner(path, PATIENCE) == lives_on.session_id
        assert lives_on.connect_string.split(",")[0] == moved.address(2)

        # Who starts now, with a configuration of before, or with none.
        for connect in (moved.address(1), AUTO):
            with moved.session(connect) as later:
                assert later.owner(path, PATIENCE) == lives_on.session_id

        # The first server comes back from yesterday: by itself it is a whole ensemble of one, at its old address.
        shutil.rmtree(moved.servers._home(0))
        shutil.copytree(tmp_path / "yesterday", moved.servers._home(0))
        moved.servers.restart(0)
        with moved.unguided(moved.address(1)) as unguided:
            assert EnsembleMover(unguided).configuration().connect == moved.address(1)
            with pytest.raises(WrongEnsemble, match="it went back to a state of before"):
                publish(unguided, STORAGE, moved.directory, CLUSTER)
        moved.servers.kill(1)
        for connect, why in (
            (moved.address(1), "it went back to a state of before"),
            (moved.stranger.connect_string, "it has never been published for this cluster"),
        ):
            eventually(lambda connect=connect, why=why: why in moved.trouble(connect), PATIENCE)
        # Neither has the session that lives on gone over, with the first address among its own.
        eventually(lambda: "went back" in refused(cut_off), PATIENCE)
        assert not cut_off.connected
        with pytest.raises(CoordinationUnavailable, match="a server was not asked: it went back"):
            cut_off.call("write", lambda kazoo: kazoo.create_async("/base/astray", b""), 1.0)
        moved.servers.restart(1)
        assert serves(cut_off)
        assert serves(lives_on)
    with moved.unguided(moved.address(1)) as unguided:
        assert unguided.children("/base", PATIENCE) == []
    moved.servers.kill(0)

    # A publication that is torn, or has gone with a root of yesterday, is one of before: the rest is found from there.
    written = sorted(Path(moved.directory).iterdir())
    assert [one.name for one in written] == [f"{number:020}.json" for number in (1, 2)]
    whole = written[1].read_bytes()
    for torn in (b"", whole[: len(whole) // 2], whole.replace(moved.address(2).encode(), moved.address(3).encode())):
        written[1].write_bytes(torn)
        assert newest(STORAGE, moved.directory) == first
    written[1].unlink()
    with moved.session(moved.address(2)) as again:
        assert serves(again)
        republished = publish(again, STORAGE, moved.directory, CLUSTER)
    assert republished is not None
    assert (republished.number, republished.connect) == (2, moved.address(2))

    # Set up anew, for good: what somebody has to say once.
    anew = moved.stranger.connect_string
    with pytest.raises(WrongEnsemble, match="is not this cluster's: it has never been published"):
        moved.publish(anew)
    before = last_number(STORAGE, moved.directory)
    adopted = moved.publish(anew, adopt=True)
    assert adopted is not None
    assert (adopted.number, adopted.connect) == (3, anew)
    # Somebody has begun to adopt another one before that, and was woken an hour later.
    with (
        moved.unguided(moved.address(2)) as late,
        pytest.raises(WrongEnsemble, match=f"another ensemble meanwhile, at {anew}, and"),
    ):
        publish(late, STORAGE, moved.directory, CLUSTER, adopt=True, after=before)
    assert newest(STORAGE, moved.directory) == adopted
    with moved.session(moved.address(2)) as over:
        assert EnsembleMover(over).configuration().connect == anew
