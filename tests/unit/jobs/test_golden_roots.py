"""Whole clusters that earlier generations of the product have left are opened, altered, written, and put together."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from epochlake.jobs import administration
from epochlake.jobs.administration import features
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.replicas.merging_here import merge_here
from epochlake.jobs.upkeep.compacting import EVERYTHING
from epochlake.jobs.upkeep.compaction import compact
from epochlake.jobs.upkeep.repair import repair
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.features import KEYSPACE_NAMES
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.rejections import Code

from tests.support import golden_root
from tests.support.clusters import without_zookeeper
from tests.support.golden_root import TABLE


@pytest.fixture(params=golden_root.generations())
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A copy of the cluster that a generation has left, open."""
    without_zookeeper(monkeypatch)
    directory = Path(shutil.copytree(golden_root.ROOTS / str(request.param), tmp_path / "lake"))
    monkeypatch.chdir(directory)
    with golden_root.opened(directory) as cluster:
        yield cluster


def rows(cluster: Cluster, **asked: Any) -> list[dict[str, Any]]:
    return sorted(cluster.scan(TABLE, **asked).read_all().to_pylist(), key=lambda row: row["id"])


def test_its_rows_are_those_that_it_has_shown(left: Cluster) -> None:
    expected = json.loads(Path("expected.json").read_text(encoding="utf-8"))
    for level in ("ONE", "QUORUM", "ALL"):
        assert rows(left, consistency=level) == expected


def test_it_is_altered_from_end_to_end(left: Cluster) -> None:
    before = rows(left)
    administration.alter_table(
        left,
        TABLE,
        drop=["note"],
        rename={"bytes": "size"},
        widen={"bytes": "bigint"},
        add=["city string default 'Rome'"],
    )
    administration.alter_table(
        left, TABLE, add=["note string"], add_checks={"small": "size < 1000", "set": "size > -5"}
    )
    expected = [{"id": row["id"], "size": row["bytes"], "city": "Rome", "note": None} for row in before]
    assert rows(left) == expected, "no value of a dropped column, of neither of the two before it"
    found = {one.name: one.violated for one in administration.validate_checks(left, TABLE).checks}
    assert found == {"small": 0, "set": 1}
    with pytest.raises(InvalidRequest, match="'small'"):
        left.write(TABLE, [{"id": 8, "size": 2**40, "city": "Oslo", "note": "x"}])
    left.write(TABLE, [{"id": 8, "size": 8, "city": "Oslo", "note": "x"}], deletes=[{"id": 7}])
    expected = [*(row for row in expected if row["id"] != 7), {"id": 8, "size": 8, "city": "Oslo", "note": "x"}]
    assert repair(left, TABLE).differing == 0
    assert compact(left, TABLE, None, policy=EVERYTHING, merger=merge_here).complete
    assert rows(left, consistency="ALL") == expected
    assert administration.validate_checks(left, TABLE).holds
    with Cluster(left.configuration) as other:
        assert other.catch_up() == left.metadata
        assert rows(other) == expected


def test_its_keyspace_gets_another_name_once_the_cluster_uses_that_names_change(
    left: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "live_leases", lambda cluster: [])
    keyspace, _, name = TABLE.partition(".")
    before, moved = rows(left), f"another.{name}"
    with pytest.raises(Rejected) as refused:
        administration.rename_keyspace(left, keyspace, "another")
    assert refused.value.code is Code.FEATURE_NOT_ENABLED
    administration.enable_features(left, KEYSPACE_NAMES)
    administration.rename_keyspace(left, keyspace, "another")
    with Cluster(left.configuration) as other:
        assert other.catch_up() == left.metadata
        assert other.scan(moved).read_all().sort_by("id").to_pylist() == before
        other.write(moved, [], deletes=[{"id": before[0]["id"]}])
        assert repair(other, moved).differing == 0
        assert compact(other, moved, None, policy=EVERYTHING, merger=merge_here).complete
        assert other.scan(moved, consistency="ALL").read_all().sort_by("id").to_pylist() == before[1:]
    with pytest.raises(Rejected) as refused:
        left.scan(TABLE)
    assert refused.value.hint.endswith(f"use {moved}")
