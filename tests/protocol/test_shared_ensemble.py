"""Two clusters share an ensemble, each below a chroot of its own, and none follows what the other has published."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from epochlake.jobs.upkeep import coordination_members
from epochlake.metastore.configuration import load
from epochlake.metastore.coordination.published import WrongEnsemble, newest, publish
from epochlake.metastore.root import Root

from tests.support import clusters
from tests.support.command_line import CommandLine
from tests.support.storages import STORAGE
from tests.support.zookeeper import OPERATOR, Ensemble

pytestmark = [pytest.mark.timing, pytest.mark.timeout(1800)]

PATIENCE = 300.0


def test_each_of_two_clusters_on_one_ensemble_keeps_to_what_it_has_published_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
    with Ensemble(tmp_path / "servers", size=1, changeable=True) as servers:
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
