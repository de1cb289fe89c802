"""Who may leave is decided before anything changes: a rack that replication needs keeps a node."""

from __future__ import annotations

import pytest
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import CreateKeyspace, RequestTopology
from epochlake.metastore.metadata.model import RequestKind

from tests.support.histories import INITIALISE, applied, joined, keyspace


def cluster(racks: list[str], replicas: int) -> ClusterMetadata:
    metadata = applied([INITIALISE])
    for number, rack in enumerate(racks):
        metadata = joined(metadata, f"n{number}", rack=rack)
    return applied([CreateKeyspace(keyspace("air", dc1=replicas))], metadata)


@pytest.mark.parametrize(
    ("racks", "replicas", "leaving", "code"),
    [
        (["r1", "r2", "r3", "r1"], 3, "n0", None),
        (["r1", "r2", "r3", "r1"], 3, "n1", "rack-needed"),
        (["r1", "r2", "r3"], 2, "n1", None),
        (["r1", "r1", "r1", "r1"], 3, "n1", None),
        (["r1", "r1", "r1", "r2"], 3, "n3", "rack-needed"),
        (["r1", "r2", "r3"], 3, "n1", "too-few-nodes"),
    ],
)
@pytest.mark.parametrize("kind", [RequestKind.LEAVE, RequestKind.REMOVE])
def test_a_node_may_go_unless_replicas_would_have_to_share_a_rack(racks, replicas, leaving, code, kind):
    metadata = cluster(racks, replicas)
    event = RequestTopology("going", kind, metadata.node(leaving).node_id)
    if code is None:
        metadata.check(event)
        return
    with pytest.raises(Rejected) as rejected:
        metadata.check(event)
    assert rejected.value.code == code
