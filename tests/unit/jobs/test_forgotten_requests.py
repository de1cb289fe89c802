"""Requests that are done leave the metadata when there are many; what became of them is known as before."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from epochlake.jobs import administration
from epochlake.jobs.coordinator.tracks import forgetting
from epochlake.jobs.views.awaited import request_ended
from epochlake.jobs.views.requests import request_rows
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import ForgetRequests, RequestTopology
from epochlake.metastore.metadata.events.forgetting import forgettable
from epochlake.metastore.metadata.model import RequestKind, RequestState
from epochlake.testing import local_cluster

from tests.support.histories import applied, small_cluster


def test_the_coordinator_lets_old_ones_go_and_the_log_still_answers_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forgetting, "KEPT_REQUESTS", 1)
    monkeypatch.setattr(forgetting, "AT_ONCE", 2)
    with local_cluster(tmp_path, nodes=2, replication=1) as lake:
        cluster = lake.cluster
        administration.rebuild_node(cluster, "n1", request_id="first")
        lake.coordinate()
        administration.rebuild_node(cluster, "n1", request_id="cancelled")
        administration.cancel_request(cluster, "cancelled")
        for name in ("second", "third"):
            administration.rebuild_node(cluster, "n1", request_id=name)
            lake.coordinate()
        metadata = cluster.catch_up()
        assert "first" not in metadata.requests
        assert {"cancelled", "third"} <= metadata.requests.keys(), "only what is done goes, and not the last of a node"
        assert {row.request_id for row in request_rows(metadata, everything=True)} == metadata.requests.keys()
        ended = request_ended(cluster, "first")
        assert (ended.met, ended.impossible) == (True, False)
        assert request_ended(cluster, "cancelled").impossible
        assert administration.rebuild_node(cluster, "n1", request_id="first").already, "its id is used for ever"
        gone = next(entry for entry in cluster.log().read(0) if entry.event == "ForgetRequests")
        before = cluster.at(gone.epoch - 1).requests["first"]
        assert before.state is RequestState.DONE, "the epoch before has it with all that was asked"
        with pytest.raises(Rejected):
            administration.cancel_request(cluster, "first")


def test_requests_do_not_pile_up_however_many_there_were() -> None:
    metadata = small_cluster()
    template = metadata.requests["join-n1"]
    many = {
        f"r{number}": msgspec.structs.replace(template, request_id=f"r{number}", requested_epoch=number)
        for number in range(1_000)
    }
    metadata = msgspec.structs.replace(metadata, requests={**metadata.requests, **many})
    may_go = forgettable(metadata)
    assert len(may_go) == 1_000, "the newest of the node stays"
    event = ForgetRequests(tuple(request.request_id for request in may_go))
    event.check(metadata)
    assert event.apply(metadata, 99, "s").requests.keys() == {"r999", *(f"join-n{n}" for n in (2, 3, 4))}


def test_what_is_open_is_never_forgotten() -> None:
    metadata: ClusterMetadata = applied([RequestTopology("leave-n4", RequestKind.LEAVE, 4)], small_cluster())
    assert [request.request_id for request in forgettable(metadata)] == ["join-n4"]
