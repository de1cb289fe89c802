"""A pipeline's lease while its ZooKeeper dies and comes back: at every moment it is in one place or the other."""

from __future__ import annotations

from pathlib import Path

import pytest
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.gate.pipeline import Pipeline
from epochlake.metastore import announcing
from epochlake.metastore.announcing import live_leases, stored_leases
from epochlake.metastore.configuration import Configuration, ZooKeeperSettings
from epochlake.metastore.errors import CoordinationUnavailable
from epochlake.metastore.metastore import init_cluster

from tests.support.storages import STORAGE
from tests.support.waiting import eventually
from tests.support.zookeeper import Ensemble

pytestmark = pytest.mark.timing


def test_a_lease_goes_to_the_root_while_zookeeper_is_away_and_back(
    server: Ensemble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcing, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(announcing, "_RETRY_SECONDS", 0.05)
    configuration = Configuration(
        root=str(tmp_path / "root"), zookeeper=ZooKeeperSettings(connect=server.connect_string, path="/announcing")
    )
    init_cluster(configuration)

    def is_at_the_root() -> bool:
        return [lease.name for lease in stored_leases(STORAGE, cluster.root.leases)] == ["load"]

    with Cluster(configuration) as cluster, Cluster(configuration) as vacuum:
        with Pipeline(cluster, "load", None):  # type: ignore[arg-type]
            assert [lease.name for lease in live_leases(vacuum)] == ["load"]
            assert not is_at_the_root()
            server.kill()
            eventually(is_at_the_root)
            with pytest.raises(CoordinationUnavailable):
                live_leases(vacuum)
            server.restart()
            eventually(lambda: not is_at_the_root())
            assert [lease.name for lease in live_leases(vacuum)] == ["load"]
        eventually(lambda: live_leases(vacuum) == [])  # it does not wait for the answer
        server.kill()
        cluster.close()
        with Cluster(configuration) as later:
            monkeypatch.setattr(later, "coordination", lambda *_: Cluster.coordination(later, 0.2))
            with Pipeline(later, "load", None):  # type: ignore[arg-type]
                assert is_at_the_root()
                server.restart()
                eventually(lambda: not is_at_the_root())
                assert [lease.name for lease in live_leases(vacuum)] == ["load"]
