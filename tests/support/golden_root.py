"""A whole cluster as a generation of the product left it: its root, and three volumes beside it.

Places in it are relative, so that a test opens a copy from within its folder: `python -m tests.support.golden_root`
makes the one of the generation that is checked out, unless it is there.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from epochlake.jobs import administration
from epochlake.jobs.administration import nodes
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.replicas.merging_here import merge_here
from epochlake.jobs.upkeep.compacting import EVERYTHING
from epochlake.jobs.upkeep.compaction import compact
from epochlake.metastore import metastore
from epochlake.metastore.configuration import Configuration, LogSettings
from epochlake.metastore.metadata.events import GENERATION

from tests.support.clusters import finish, without_zookeeper

ROOTS = Path(__file__).parents[1] / "data" / "formats" / "roots"
TABLE = "air.flights"


def generations() -> list[int]:
    """Those of which there is a root, ascending."""
    return sorted(int(one.name) for one in ROOTS.iterdir())


@contextmanager
def opened(directory: Path) -> Iterator[Cluster]:
    """The cluster in a folder, in which the process has to be."""
    assert Path.cwd() == directory
    with Cluster(Configuration(root="root", log=LogSettings(compact_every=10_000))) as cluster:
        yield cluster


def make(directory: Path, patch: pytest.MonkeyPatch) -> None:
    """A cluster with a table that has been written, altered, compacted and written again."""
    without_zookeeper(patch)
    patch.setattr("socket.gethostname", lambda: "host-1")
    patch.chdir(directory)
    metastore.init_cluster(Configuration(root="root", log=LogSettings(compact_every=10_000)))
    with opened(directory) as cluster:
        with patch.context() as relative:
            path = SimpleNamespace(abspath=lambda place: os.path.relpath(place, directory))
            relative.setattr(nodes, "os", SimpleNamespace(path=path))
            for node in ("n1", "n2", "n3"):
                added = administration.add_node(cluster, node, "dc1", node, [("d1", f"./{node}", 1 << 30)])
                finish(cluster, added.request_id)
        administration.create_keyspace(cluster, "air", {"dc1": 3})
        columns = [("id", "bigint", False), ("note", "string", True), ("size", "int", True)]
        administration.create_table(cluster, TABLE, columns, ["id"], tablets=2)
        cluster.write(TABLE, [{"id": row, "note": f"n{row}", "size": row} for row in range(6)], batch="first")
        cluster.delete(TABLE, [{"id": 5}])
        compact(cluster, TABLE, None, policy=EVERYTHING, merger=merge_here)
        administration.alter_table(cluster, TABLE, drop=["note"], rename={"size": "bytes"})
        administration.alter_table(cluster, TABLE, add=["note string default 'none'"])
        cluster.write(TABLE, [{"id": 1, "bytes": 10, "note": "again"}, {"id": 7, "bytes": -7, "note": None}])
        rows = sorted(cluster.scan(TABLE).read_all().to_pylist(), key=lambda row: row["id"])
    Path("expected.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree("root/leases", ignore_errors=True)
    for commit in directory.rglob("_delta_log/*.json"):  # where a table was made, which nothing reads
        commit.write_text(commit.read_text().replace(str(directory), f"/data/roots/{directory.name}"))


if __name__ == "__main__":
    here = ROOTS / str(GENERATION)
    if not here.exists():
        here.mkdir(parents=True)
        with pytest.MonkeyPatch.context() as patched:
            make(here, patched)
        print(f"written: {here.relative_to(ROOTS.parents[2])}")
