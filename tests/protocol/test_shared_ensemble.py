"""Two clusters share an ensemble, each below a chroot of its own, and none follows what the other has published."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from epochlake.jobs.upkeep import coordination_members
from epochlake.metastore.configuration import load
from epochlake.metastore.coordination.client import Coordination, NotAllowed
from epochlake.metastore.coordination.published import IDENTITY, WrongEnsemble, newest, publish
from epochlake.metastore.root import Root
from kazoo.security import OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from tests.support import clusters
from tests.support.command_line import CommandLine
from tests.support.storages import STORAGE
from tests.support.zookeeper import OPERATOR, Ensemble

pytestmark = [pytest.mark.timing, pytest.mark.timeout(1800)]

PATIENCE = 300.0


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    with Ensemble(tmp_path_factory.mktemp("shared"), size=1, changeable=True) as started:
        yield started


def test_each_of_two_clusters_on_one_ensemble_keeps_to_what_it_has_published_itself(
    servers: Ensemble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = {}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        with pytest.MonkeyPatch.context() as patched:
            clusters.without_zookeeper(patched)
            clusters.grow_at_once(tmp_path / name).close()
        lines[name] = CommandLine(tmp_path / name / "root", capsys)
    directories = {name: Path(Root(str(line.root)).coordination) for name, line in lines.items()}
    monkeypatch.setattr(coordination_members, "STEP_SECONDS", PATIENCE)
    monkeypatch.setattr(coordination_members, "LOOK_SECONDS", PATIENCE)
    monkeypatch.setenv("EPOCHLAKE__ZOOKEEPER__SESSION_TIMEOUT_SECONDS", "30")
    monkeypatch.setenv("EPOCHLAKE__ZOOKEEPER__OPERATOR", OPERATOR)
    described = ("metadata", "describe", "--coordination")
    published = {}
    for name, line in lines.items():
        monkeypatch.setenv("EPOCHLAKE__ZOOKEEPER__CONNECT", f"{servers.connect_string}/{name}")
        line.done("coordinator", "run", "--until-idle")
        published[name] = newest(STORAGE, str(directories[name]))
    a, b = published["a"], published["b"]
    assert a is not None
    assert b is not None
    assert (a.connect, b.connect) == tuple(f"{servers.connect_string}/{name}" for name in "ab")
    assert (a.ensemble, a.cluster_id != b.cluster_id, a.seal != b.seal) == (b.ensemble, True, True)

    # What a has published comes to the root of b, as when a directory is restored to the wrong place.
    theirs = coordination_members.publish
    with coordination_members.Ensemble(load(root=str(lines["a"].root)), a.cluster_id, adopt=True) as configured:
        newer = theirs(configured._session, STORAGE, str(directories["a"]), a.cluster_id, adopt=True)
    assert newer is not None
    assert newer.number == 2
    shutil.copy(directories["a"] / f"{2:020}.json", directories["b"])
    for connect in (f"{servers.connect_string}/b", "auto"):
        monkeypatch.setenv("EPOCHLAKE__ZOOKEEPER__CONNECT", connect)
        assert lines["b"].done(*described)["published"] == b.connect
        configuration = load(root=str(lines["b"].root))
        with coordination_members.Ensemble(configuration, b.cluster_id) as ensemble:
            assert (ensemble._session.connect_string, ensemble._session.base[:3]) == (b.connect, "/b/")
            # Whoever names another chroot, its paths are where they were.
            ensemble._session.moved_to(f"{servers.connect_string}/a")
            assert ensemble._session.connect_string == b.connect
    # A process that was started below another chroot does not take the rest of the cluster there.
    monkeypatch.setenv("EPOCHLAKE__ZOOKEEPER__CONNECT", f"{servers.connect_string}/elsewhere")
    elsewhere = load(root=str(lines["b"].root))
    with (
        coordination_members.Ensemble(elsewhere, b.cluster_id, adopt=True) as astray,
        pytest.raises(WrongEnsemble, match="below /elsewhere"),
    ):
        publish(astray._session, STORAGE, str(directories["b"]), b.cluster_id)
    assert newest(STORAGE, str(directories["b"]), b.cluster_id) == b
    assert lines["b"].done(*described)["published"] == b.connect


def test_what_an_access_list_forbids_is_said_and_an_operator_can_let_clusters_publish(
    servers: Ensemble, tmp_path: Path
) -> None:
    """At the top of ZooKeeper only the operator makes znodes: he makes an empty one, which clusters may write."""
    directory = Root(str(tmp_path)).coordination
    with (
        Coordination(servers.connect_string, "/closed", operator=OPERATOR, connect_timeout=PATIENCE) as operator,
        Coordination(servers.connect_string, "/closed", connect_timeout=PATIENCE) as session,
    ):
        if operator.barrier(IDENTITY, PATIENCE) is not None:  # of the other test
            operator.call("delete", lambda client: client.delete_async(IDENTITY), PATIENCE)
        operator.call("close", lambda client: client.set_acls_async("/", READ_ACL_UNSAFE), PATIENCE)
        try:
            with pytest.raises(NotAllowed, match=f"does not let this process write {IDENTITY}"):
                publish(session, STORAGE, directory, "c1")
            with pytest.raises(NotAllowed, match="create the base path"):
                Coordination(servers.connect_string, "/refused", connect_timeout=PATIENCE)
            assert newest(STORAGE, directory, "c1") is None
            operator.call("make", lambda client: client.create_async(IDENTITY, b"", OPEN_ACL_UNSAFE), PATIENCE)
            made = publish(session, STORAGE, directory, "c1")
            assert made is not None
            assert made == newest(STORAGE, directory, "c1") == publish(session, STORAGE, directory, "c1")
        finally:
            operator.call("open", lambda client: client.set_acls_async("/", OPEN_ACL_UNSAFE), PATIENCE)
