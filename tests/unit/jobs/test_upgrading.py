"""A cluster that was described outside is taken over: states, what is refused meanwhile, and going on after a kill."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from epochlake.jobs import administration
from epochlake.jobs.administration import take_over as taking
from epochlake.jobs.administration.take_over import describe, described_by_nodetool, read_description, take_over
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.components.upgrade import Described, UpgradeState
from epochlake.metastore.tables.metadata import PARTS
from epochlake.placement.errors import InvalidRequest
from epochlake.testing import LocalCluster, local_cluster

from tests.support.command_line import CommandLine

RING = (Path(__file__).parents[2] / "data" / "nodetool_ring.txt").read_text(encoding="utf-8")
ROWS = pa.table({"id": pa.array(range(60), pa.int64()), "note": [f"row {number}" for number in range(60)]})


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path / "lake", nodes=0, keyspace=None) as made:
        yield made


@pytest.fixture
def document(tmp_path: Path) -> str:
    """Two nodes with tokens, a keyspace on tablets and one on the ring, a table of Delta and one of Parquet."""
    write_deltalake(str(tmp_path / "old" / "flights"), ROWS)
    (tmp_path / "old" / "crews").mkdir()
    pq.write_table(ROWS, tmp_path / "old" / "crews" / "part-0.parquet")
    nodes = [
        {
            "name": f"n{number}",
            "datacenter": "dc1",
            "rack": f"r{number}",
            "volumes": {"d1": str(tmp_path / f"disk{number}")},
            "tokens": [number * 1000, -number * 1000],
        }
        for number in (1, 2)
    ]
    keyspaces = [
        {"name": "air", "replication": {"dc1": 2}},
        {"name": "sea", "replication": {"dc1": 1}, "placement": "ring"},
    ]
    tables = [
        {"name": "air.flights", "origin": str(tmp_path / "old" / "flights"), "primary_key": ["id"]},
        {"name": "sea.crews", "origin": str(tmp_path / "old" / "crews"), "primary_key": ["id"]},
    ]
    return json.dumps({"nodes": nodes, "keyspaces": keyspaces, "tables": tables})


def require_taken_over(lake: LocalCluster) -> None:
    metadata = lake.cluster.catch_up()
    assert metadata.upgrade.state is UpgradeState.DONE
    assert {name: node.tokens for name, node in metadata.directory.by_name.items()} == {
        "n1": (-1000, 1000),
        "n2": (-2000, 2000),
    }
    for table in ("air.flights", "sea.crews"):
        assert sorted(lake.cluster.scan(table, consistency="ALL").read_all()["id"].to_pylist()) == [*range(60)]


def test_a_described_cluster_is_taken_over_and_nothing_else_is_changed_meanwhile(
    lake: LocalCluster, document: str
) -> None:
    cluster = lake.cluster
    assert PARTS["upgrade"](cluster.metadata)["upgrade_state"].to_pylist() == ["done"]
    described = read_description(document)
    describe(cluster, described)
    describe(cluster, described)
    assert cluster.catch_up().upgrade.state is UpgradeState.NOT_UPGRADED
    with pytest.raises(Rejected) as refused:
        administration.create_keyspace(cluster, "other", {"dc1": 1})
    assert refused.value.code == "upgrading"
    assert take_over(cluster) is UpgradeState.DONE
    require_taken_over(lake)
    assert take_over(cluster) is UpgradeState.DONE, "it is done already"
    administration.create_keyspace(cluster, "other", {"dc1": 1})
    states = [
        json.loads(entry.payload).get("state") for entry in cluster.log().read(0) if entry.event == "AdvanceUpgrade"
    ]
    assert states == ["build_coordinator_state", "done"]


@pytest.mark.parametrize(
    "step", ["add_node", "Coordinator", "create_keyspace", "adopt", "load_files", "advance_upgrade"]
)
def test_an_upgrade_that_was_killed_goes_on_where_it_was(
    lake: LocalCluster, document: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    done = getattr(taking, step)

    def dies(*arguments: object, **options: object) -> object:
        done(*arguments, **options)
        raise Killed  # what was committed stands, and nobody has heard of it

    describe(lake.cluster, read_description(document))
    with monkeypatch.context() as patch:
        patch.setattr(taking, step, dies)
        with pytest.raises(Killed):
            take_over(lake.cluster)
    assert lake.cluster.catch_up().upgrade.going_on
    with pytest.raises(Rejected):
        administration.pin_tablets(lake.cluster, "air.flights", (0,))
    take_over(lake.cluster)
    require_taken_over(lake)


def test_what_was_not_described_is_refused_also_while_the_state_is_built(lake: LocalCluster, document: str) -> None:
    cluster = lake.cluster
    describe(cluster, read_description(document))
    administration.advance_upgrade(cluster, UpgradeState.BUILD_COORDINATOR_STATE)
    volumes = [("d1", str(Path(str(cluster.root.uri)).parent / "d9"), None)]
    for place in (("n9", "dc1", "r1"), ("n1", "dc1", "r9")):
        with pytest.raises(Rejected) as refused:
            administration.add_node(cluster, *place, volumes)
        assert refused.value.code == "upgrading"
    with pytest.raises(Rejected) as refused:
        administration.advance_upgrade(cluster, UpgradeState.DONE)
    assert refused.value.code == "upgrade-refused"
    administration.advance_upgrade(cluster, UpgradeState.DONE, given_up=True, reason="another way")
    administration.add_node(cluster, "n9", "dc1", "r1", volumes)
    with pytest.raises(InvalidRequest, match="described otherwise"):
        describe(cluster, Described(()))


def test_a_cluster_of_its_own_takes_nothing_over(tmp_path: Path, document: str) -> None:
    with local_cluster(tmp_path / "lake", nodes=1, replication=1) as lake:
        with pytest.raises(Rejected) as refused:
            describe(lake.cluster, read_description(document))
        assert refused.value.code == "upgrade-refused"
        with pytest.raises(InvalidRequest, match="nothing is described"):
            take_over(lake.cluster)


@pytest.mark.parametrize("bad", ["{", "[]", '{"nodes": [{"name": 1}]}', '{"nodes": [], "racks": []}', "[" * 10_000])
def test_what_describes_no_cluster_is_refused(bad: str) -> None:
    with pytest.raises(InvalidRequest, match="this describes no cluster"):
        read_description(bad)


def test_nodes_are_taken_from_nodetool(tmp_path: Path) -> None:
    rest = Described((), ())
    found = described_by_nodetool(RING, f"{tmp_path}/{{address}}", rest)
    assert len(found.nodes) > 1
    assert all(node.tokens for node in found.nodes)
    places = [node.volumes["d1"] for node in found.nodes]
    assert len(set(places)) == len(places)
    with pytest.raises(InvalidRequest, match="the same for all nodes"):
        described_by_nodetool(RING, "/data", rest)


def test_the_commands_describe_start_and_show(
    lake: LocalCluster, document: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = CommandLine(Path(str(lake.cluster.root.uri)), capsys)
    file = tmp_path / "old.json"
    file.write_text(document)
    assert line.json("upgrade", "describe", tmp_path / "nothing.json").code == 2
    assert line.json("upgrade", "describe", file, "--volume", "/x/{node}").code == 2
    assert line.json("upgrade", "start").code == 2
    assert line.done("upgrade", "status")["upgrade_state"] == "done"
