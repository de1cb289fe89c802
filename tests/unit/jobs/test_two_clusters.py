"""Two clusters in one process, each with storage of its own: neither changes what the other one's options say."""

from __future__ import annotations

import pickle
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.replica import ReplicaAddress, open_snapshot
from epochlake.jobs.replicas.states import KeptStates
from epochlake.jobs.replicas.volumes import MARKER_FILE
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore.configuration import Configuration, StorageSettings
from epochlake.metastore.storage import local_disk
from epochlake.metastore.storage.failures import StorageLate
from epochlake.metastore.storage.storage import Storage

from tests.support.clusters import FOUR, SmallCluster, placed, without_zookeeper
from tests.support.hanging import hanging

PATIENT = StorageSettings({"aws_region": "eu-west-1"}, deadline_seconds=120.0)
HASTY = StorageSettings({"aws_region": "us-east-1"}, deadline_seconds=0.2, durability="replicas")


@pytest.fixture(params=["the patient first", "the hasty first"])
def both(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[SmallCluster, ...]:
    """The patient one and the hasty one, opened in either order."""
    without_zookeeper(monkeypatch)
    named = {"patient": PATIENT, "hasty": HASTY}
    order = sorted(named, reverse=request.param == "the patient first")
    opened = {
        name: placed(tmp_path / name, FOUR, "ABC", configuration=Configuration(storage=named[name])) for name in order
    }
    return opened["patient"], opened["hasty"]


def address(cluster: SmallCluster, node: str = "A") -> ReplicaAddress:
    """Where a replica is, with the storage of its own cluster."""
    return address_of(cluster.cluster.storage, cluster.metadata, cluster.table, cluster.volume(node))


def test_each_has_the_options_of_its_configuration(both: tuple[SmallCluster, ...]) -> None:
    for cluster, settings in zip(both, (PATIENT, HASTY), strict=True):
        storage = cluster.cluster.storage
        assert storage.delta_options("s3://bucket/x") == settings.options
        assert (storage.deadlines.seconds, storage.syncing.durability) == (
            settings.deadline_seconds,
            settings.durability,
        )
        assert cluster.cluster.ledger._storage is storage
        assert cluster.cluster.snapshots._storage is storage


def syncs_of(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> int:
    """How often a disk was asked to sync meanwhile."""
    asked: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(local_disk, "fsync", asked.append)
        work()
    return len(asked)


def test_each_syncs_as_its_durability_says(both: tuple[SmallCluster, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    patient, hasty = both

    def committed(cluster: SmallCluster) -> int:
        pipeline = cluster.pipeline()
        staged = cluster.staged(pipeline, {1: 1})
        return syncs_of(monkeypatch, lambda: cluster.land(pipeline, staged, "ALL"))

    of_hasty, of_patient, of_hasty_again = committed(hasty), committed(patient), committed(hasty)
    assert of_patient >= of_hasty + 3 * 2, "each replica syncs its commit and its directory"
    assert of_hasty_again <= of_hasty


def test_a_volume_that_hangs_is_late_by_the_deadline_of_its_cluster(
    both: tuple[SmallCluster, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    patient, hasty = both
    with monkeypatch.context() as patch, hanging(patch, hasty.directory / "A", MARKER_FILE):
        patch.undo()  # each waits for as long as its own configuration says
        hangs = address(hasty)
        begun = time.monotonic()
        with pytest.raises(StorageLate, match=r"has not answered for 0\.2 seconds"):
            open_snapshot(hangs)
        assert time.monotonic() - begun < PATIENT.deadline_seconds / 2
        assert [late.place for late in hangs.storage.deadlines.late_places()] == [hangs.volume_uri]
        assert patient.cluster.storage.deadlines.late_places() == []
        assert open_snapshot(address(patient)).fence


def test_threads_that_use_both_keep_them_apart_and_closing_one_leaves_the_other(both: tuple[SmallCluster, ...]) -> None:
    patient, hasty = both
    rows: dict[str, set[int]] = {"patient": set(), "hasty": set()}
    named = {"patient": patient, "hasty": hasty}

    def write(turn: int) -> None:
        name = ("patient", "hasty")[turn % 2]
        cluster = named[name]
        rows[name] |= cluster.write_rows(cluster.pipeline(f"{name}-{turn}"), {turn: turn * 1000})
        assert cluster.cluster.storage.settings == (PATIENT, HASTY)[turn % 2]

    ThreadWorkers(4).run(write, range(8))
    hasty.cluster.close()
    assert rows["patient"] <= set(patient.read_rows(patient.pipeline()))
    assert patient.cluster.storage.settings == PATIENT
    with Cluster(hasty.cluster.configuration) as again:
        assert again.storage == hasty.cluster.storage
        assert again.storage is not hasty.cluster.storage
        assert rows["hasty"] <= set(hasty.read_rows(hasty.pipeline()))


def test_what_is_kept_of_replicas_is_kept_by_each_for_itself(both: tuple[SmallCluster, ...]) -> None:
    uris = {name: address(cluster).uri for name, cluster in zip(("patient", "hasty"), both, strict=True)}
    for cluster in both:
        open_snapshot(address(cluster))
    for cluster, own, others in ((both[0], "patient", "hasty"), (both[1], "hasty", "patient")):
        kept = cluster.cluster.storage.kept(KeptStates)
        assert kept.of(uris[own]) is not None
        assert kept.of(uris[others]) is None


def test_a_pickled_storage_is_the_one_of_its_settings_where_it_arrives() -> None:
    one, other = Storage(PATIENT), Storage(HASTY)
    arrived = [pickle.loads(pickle.dumps(storage)) for storage in (one, other, one)]
    assert [storage.settings for storage in arrived] == [PATIENT, HASTY, PATIENT]
    assert arrived[0] is arrived[2], "what it keeps lives on between tasks"
    assert arrived[0] == one
    assert arrived[0] is not one
    assert hash(arrived[0]) == hash(one)
    assert one != other


def test_what_one_keeps_is_made_once_however_many_threads_ask() -> None:
    storage, found = Storage(PATIENT), []
    start = threading.Barrier(8)

    def ask() -> None:
        start.wait()
        found.append(storage.kept(KeptStates))

    asking = [threading.Thread(target=ask) for _ in range(8)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert len({id(kept) for kept in found}) == 1


def test_each_shows_which_one_it_is(both: tuple[SmallCluster, ...]) -> None:
    for small in both:
        shown = repr(small.cluster)
        assert re.fullmatch(rf"<cluster \w+ at epoch {small.cluster.metadata.epoch}, root \S+>", shown), shown
        assert small.cluster.root.uri in shown
    both[0].cluster.close()
    assert [repr(small.cluster).endswith(", closed>") for small in both] == [True, False]
