"""Changes in words: what the log keeps of each, by which a request id that comes again is compared.

The literals are what the log has. With other words a request that was done already would be rejected as another change
when it comes again: no literal here may be corrected.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

import pytest
from epochlake.jobs import administration
from epochlake.jobs.administration.checks import ChecksValidated
from epochlake.jobs.administration.nodes import VolumeSpec
from epochlake.jobs.administration.operators import OptionChanges
from epochlake.jobs.cluster import Cluster
from epochlake.metastore.committing.changes import Change
from epochlake.metastore.committing.committer import Committed
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.components.upgrade import Described, DescribedNode, UpgradeState
from epochlake.metastore.metadata.events import SwitchBalancing
from epochlake.metastore.metadata.model import Column, PlacementKind

from tests.support.clusters import begin, without_zookeeper

MANY = [(f"flight_{number:03d}", "bigint", True) for number in range(60)]
"""Columns whose words are longer than the log keeps."""

LONG = (
    'create table {"columns":['
    + "".join(f'["flight_{number:03d}","bigint",true],' for number in range(34))
    + '["… (sha256 63af41445666a74a29ec72fac151b6013ef225f5b4c386144089965c15278935)'
)

WORDS: list[tuple[Callable[[Any], object], str]] = [
    (lambda cluster: administration.unregister_nodes(cluster, "n1", "n2"), 'unregister nodes {"names":["n1","n2"]}'),
    (
        lambda cluster: administration.unregister_nodes(cluster, "n1", force=True),
        'unregister nodes {"force":true,"names":["n1"]}',
    ),
    (
        lambda cluster: administration.add_node(cluster, "n1", "dc1", "r1", [("d1", "/data/d1", None)]),
        'add node {"datacenter":"dc1","name":"n1","rack":"r1","volumes":[["d1","/data/d1",null]]}',
    ),
    (
        lambda cluster: administration.add_node(
            cluster,
            "n1",
            "dc1",
            "r1",
            [VolumeSpec("d1", "/data/d1", 1 << 30)],
            tokens=(5, -7),
            replaces="n0",
            force=True,
            reuse=True,
        ),
        'add node {"datacenter":"dc1","force":true,"name":"n1","rack":"r1","replaces":"n0","reuse":true,'
        '"tokens":[5,-7],"volumes":[["d1","/data/d1",1073741824]]}',
    ),
    (
        lambda cluster: administration.add_node(
            cluster, "n1", "dc1", "r1", (("d1", "s3://lake/d1", 5),), tokens=[], count=16, replaces=None, force=False
        ),
        'add node {"count":16,"datacenter":"dc1","name":"n1","rack":"r1","tokens":[],"volumes":[["d1",'
        '"s3://lake/d1",5]]}',
    ),
    (
        lambda cluster: administration.add_node(
            cluster,
            "n1",
            "dc1",
            rack="r1",
            volumes=[("d1", PurePosixPath("/data"), 1)],
            reason="more space",
            timeout=3.0,
            request_id="r",
        ),
        'add node {"datacenter":"dc1","name":"n1","rack":"r1","volumes":[["d1","/data",1]]}',
    ),
    (
        lambda cluster: administration.replace_node(cluster, "n1", "n2", [("d1", "/data/d2", None)]),
        'replace node {"lost":"n1","name":"n2","volumes":[["d1","/data/d2",null]]}',
    ),
    (
        lambda cluster: administration.replace_node(
            cluster, "n1", "n2", [VolumeSpec("d1", "/data/d2", 7)], tokens=(), count=8, force=True, expect_epoch=7
        ),
        'replace node {"count":8,"force":true,"lost":"n1","name":"n2","volumes":[["d1","/data/d2",7]]}',
    ),
    (lambda cluster: administration.decommission(cluster, "n1"), 'decommission {"name":"n1"}'),
    (
        lambda cluster: administration.decommission(cluster, "n1", force=True, reason="old disks"),
        'decommission {"force":true,"name":"n1"}',
    ),
    (lambda cluster: administration.remove_node(cluster, "n1", force=False), 'remove node {"name":"n1"}'),
    (lambda cluster: administration.remove_node(cluster, "n1", force=True), 'remove node {"force":true,"name":"n1"}'),
    (administration.check_and_repair_cdc_streams, "check and repair cdc streams"),
    (lambda cluster: administration.rebuild_node(cluster, "n1"), 'rebuild node {"name":"n1"}'),
    (
        lambda cluster: administration.rebuild_node(cluster, "n1", datacenter="dc2"),
        'rebuild node {"datacenter":"dc2","name":"n1"}',
    ),
    (
        lambda cluster: administration.move_node(cluster, "n1", tokens=(-7, 5)),
        'move node {"name":"n1","tokens":[-7,5]}',
    ),
    (
        lambda cluster: administration.move_node(cluster, "n1", tokens=[9], count=None),
        'move node {"name":"n1","tokens":[9]}',
    ),
    (lambda cluster: administration.move_node(cluster, "n1", count=16), 'move node {"count":16,"name":"n1"}'),
    (
        lambda cluster: administration.change_replication(cluster, "air", {"dc2": 2, "dc1": 3}),
        'change replication {"keyspace":"air","replication":{"dc1":3,"dc2":2}}',
    ),
    (
        lambda cluster: administration.change_replication(
            cluster, "air", {"replication_factor": 3}, strategy="SimpleStrategy", force=True
        ),
        'change replication {"force":true,"keyspace":"air","replication":{"replication_factor":3},'
        '"strategy":"SimpleStrategy"}',
    ),
    (lambda cluster: administration.cancel_request(cluster, "n1", reason="not now"), 'cancel request {"request":"n1"}'),
    (lambda cluster: administration.pause_request(cluster, "n1"), 'pause request {"request":"n1"}'),
    (lambda cluster: administration.resume_request(cluster, request="r-1"), 'resume request {"request":"r-1"}'),
    (
        lambda cluster: administration.create_keyspace(cluster, "air", {"dc2": 2, "dc1": 3}),
        'create keyspace {"name":"air","replication":{"dc1":3,"dc2":2}}',
    ),
    (
        lambda cluster: administration.create_keyspace(
            cluster, "air", {"replication_factor": 3}, placement=PlacementKind.RING, strategy="SimpleStrategy"
        ),
        'create keyspace {"name":"air","placement":"ring","replication":{"replication_factor":3},'
        '"strategy":"SimpleStrategy"}',
    ),
    (
        lambda cluster: administration.create_keyspace(
            cluster, "air", {}, placement=PlacementKind.TABLETS, strategy=None
        ),
        'create keyspace {"name":"air","replication":{}}',
    ),
    (
        lambda cluster: administration.create_table(
            cluster, "air.flights", [("id", "bigint", False)], ["id"], checks={"known": "id >= 0"}
        ),
        'create table {"checks":{"known":"id >= 0"},"columns":[["id","bigint",false]],"full_name":"air.flights",'
        '"primary_key":["id"]}',
    ),
    (
        lambda cluster: administration.create_table(
            cluster, "air.flights", [("id", "bigint", False)], ["id"], ttl=("seen", 60.0)
        ),
        'create table {"columns":[["id","bigint",false]],"full_name":"air.flights","primary_key":["id"],'
        '"ttl":["seen",60]}',
    ),
    (
        lambda cluster: administration.set_ttl(cluster, "air.flights", "seen", timedelta(days=1)),
        'set ttl {"column":"seen","full_name":"air.flights","seconds":86400}',
    ),
    (lambda cluster: administration.drop_ttl(cluster, "air.flights"), 'drop ttl {"full_name":"air.flights"}'),
    (lambda cluster: administration.drop_keyspace(cluster, "air"), 'drop keyspace {"name":"air"}'),
    (
        lambda cluster: administration.rename_keyspace(cluster, "air", "sky"),
        'rename keyspace {"name":"air","new_name":"sky"}',
    ),
    (
        lambda cluster: administration.create_table(
            cluster, "air.flights", [("id", "bigint", False), ("note", "string", True)], ["id"]
        ),
        'create table {"columns":[["id","bigint",false],["note","string",true]],'
        '"full_name":"air.flights","primary_key":["id"]}',
    ),
    (
        lambda cluster: administration.create_table(
            cluster,
            "air.flights",
            (Column("id", "bigint", False), Column("größe", "int")),
            ("id",),
            append_only=True,
            tablets=4,
        ),
        'create table {"append_only":true,"columns":[{"name":"id","nullable":false,"type":"bigint"},'
        '{"name":"größe","nullable":true,"type":"int"}],"full_name":"air.flights","primary_key":["id"],'
        '"tablets":4}',
    ),
    (lambda cluster: administration.create_table(cluster, "air.flights", MANY, ["flight_000"], tablets=None), LONG),
    (lambda cluster: administration.drop_table(cluster, "air.flights"), 'drop table {"full_name":"air.flights"}'),
    (
        lambda cluster: administration.drop_table(cluster, "air.flights", keep_seconds=60.0),
        'drop table {"full_name":"air.flights","keep_seconds":60.0}',
    ),
    (lambda cluster: administration.keep_changes(cluster, "air.flights"), 'keep changes {"full_name":"air.flights"}'),
    (lambda cluster: administration.drop_changes(cluster, "air.flights"), 'drop changes {"full_name":"air.flights"}'),
    (
        lambda cluster: administration.restore_table(cluster, "air.flights"),
        'restore table {"full_name":"air.flights"}',
    ),
    (
        lambda cluster: administration.restore_table(cluster, "air.flights", table_id="t-1", new_name="old"),
        'restore table {"full_name":"air.flights","new_name":"old","table_id":"t-1"}',
    ),
    (
        lambda cluster: administration.keep_history(cluster, "air.flights", 60.0),
        'keep history {"full_name":"air.flights","seconds":60.0}',
    ),
    (
        lambda cluster: administration.set_maintenance(cluster, "n1", True, reason="new disks"),
        'set maintenance {"name":"n1","on":true}',
    ),
    (lambda cluster: administration.set_maintenance(cluster, "n1", False), 'set maintenance {"name":"n1","on":false}'),
    (lambda cluster: administration.alter_node(cluster, "n1"), 'alter node {"name":"n1"}'),
    (
        lambda cluster: administration.alter_node(cluster, "n1", weight=0.5, tags=["ssd", "new"]),
        'alter node {"name":"n1","tags":["ssd","new"],"weight":0.5}',
    ),
    (lambda cluster: administration.alter_node(cluster, "n1", tags=()), 'alter node {"name":"n1","tags":[]}'),
    (
        lambda cluster: administration.alter_table(cluster, "air.flights", OptionChanges()),
        'alter table {"changes":{"apart_from":null,"max_count":null,"min_count":null,"tags":null,'
        '"target_bytes":null},"full_name":"air.flights"}',
    ),
    (
        lambda cluster: administration.alter_table(
            cluster, "air.flights", OptionChanges(1 << 30, 2, 8, ("ssd",), ["air.crews"])
        ),
        'alter table {"changes":{"apart_from":["air.crews"],"max_count":8,"min_count":2,"tags":["ssd"],'
        '"target_bytes":1073741824},"full_name":"air.flights"}',
    ),
    (
        lambda cluster: administration.alter_table(cluster, "air.flights", add=[("c", "int", True)], drop=["note"]),
        'alter columns {"changes":{"add":[{"name":"c","nullable":true,"type":"int"}],"comment":{},"drop":["note"],'
        '"nullable":[],"order":[],"rename":{},"widen":{}},"full_name":"air.flights"}',
    ),
    (
        lambda cluster: administration.alter_table(
            cluster, "air.flights", rename={"a": "b"}, widen={"n": "bigint"}, comment={"n": "x"}, order=["n"]
        ),
        'alter columns {"changes":{"add":[],"comment":{"n":"x"},"drop":[],"nullable":[],"order":["n"],'
        '"rename":{"a":"b"},"widen":{"n":"bigint"}},"full_name":"air.flights"}',
    ),
    (
        lambda cluster: administration.alter_table(
            cluster, "air.flights", add_checks={"paid": "n >= 0"}, drop_checks=["old"]
        ),
        'alter columns {"changes":{"add":[],"add_checks":{"paid":"n >= 0"},"comment":{},"drop":[],'
        '"drop_checks":["old"],"nullable":[],"order":[],"rename":{},"widen":{}},"full_name":"air.flights"}',
    ),
    (
        lambda cluster: cluster.commit(ChecksValidated("air.flights", "v-1", ("paid",))),
        'validate checks {"full_name":"air.flights","names":["paid"],"version":"v-1"}',
    ),
    (lambda cluster: administration.pause_changes(cluster, reason="upgrade"), "pause changes"),
    (lambda cluster: administration.resume_changes(cluster), "resume changes"),
    (lambda cluster: administration.pause_balancing(cluster, reason="load"), "pause balancing"),
    (lambda cluster: administration.resume_balancing(cluster), "resume balancing"),
    (
        lambda cluster: administration.move_tablets(cluster, "air.flights", (3, 1), "n1", "n2/d1", reason="hot"),
        'move tablets {"source":"n1","table":"air.flights","tablets":[3,1],"target":"n2/d1"}',
    ),
    (lambda cluster: administration.take_snapshot(cluster), "take snapshot"),
    (lambda cluster: administration.enable_features(cluster), "enable features"),
    (
        lambda cluster: administration.enable_features(cluster, "tablet-pins", reason="upgraded"),
        'enable features {"names":["tablet-pins"]}',
    ),
    (
        lambda cluster: administration.add_replicas(cluster, "air.flights", (3,), "n4"),
        'add replicas {"node":"n4","table":"air.flights","tablets":[3]}',
    ),
    (
        lambda cluster: administration.drop_replicas(cluster, "air.flights", (3,), "n4/d1", reason="cold"),
        'drop replicas {"node":"n4/d1","table":"air.flights","tablets":[3]}',
    ),
    (
        lambda cluster: administration.pin_tablets(cluster, "air.flights", (0, 3), reason="hot"),
        'pin tablets {"table":"air.flights","tablets":[0,3]}',
    ),
    (
        lambda cluster: administration.unpin_tablets(cluster, "air.flights", (3,)),
        'unpin tablets {"table":"air.flights","tablets":[3]}',
    ),
    (
        lambda cluster: administration.describe_cluster(
            cluster, Described((DescribedNode("n1", "dc1", "r1", {"d1": "/d1"}),))
        ),
        'describe cluster {"described":{"keyspaces":[],"nodes":[{"datacenter":"dc1","name":"n1","rack":"r1",'
        '"tokens":[],"volumes":{"d1":"/d1"}}],"tables":[]}}',
    ),
    (
        lambda cluster: administration.advance_upgrade(cluster, UpgradeState.DONE, given_up=True, reason="no"),
        'advance upgrade {"given_up":true,"state":"done"}',
    ),
]


class Told(Exception):
    """The words of a change that was about to be committed."""


class Recorder:
    """A cluster that tells the words in place of a commit."""

    def commit(self, change: Change[Any], **options: object) -> NoReturn:
        assert set(options) <= {"request_id", "reason", "timeout", "expect_epoch"}
        raise Told(change.words())


@pytest.mark.parametrize(("call", "words"), WORDS, ids=[words[:60] for _, words in WORDS])
def test_a_change_has_the_words_that_it_always_had(call: Callable[[Any], object], words: str) -> None:
    with pytest.raises(Told) as told:
        call(Recorder())
    assert str(told.value) == words


def test_every_change_of_the_administration_is_among_the_words() -> None:
    verbs = {name.replace("_", " ") for name in administration.__all__} - {"sweep"}
    told = {words.partition(" {")[0] for _, words in WORDS}
    verbs.add("alter columns")  # which `alter_table` does as well
    assert told == verbs
    assert verbs == {change.verb for change in changes()}


def changes(base: type[Change[Any]] = Change) -> list[type[Change[Any]]]:
    """The classes of changes that have a verb, `base` and those below it; not those that tests make."""
    below = [found for one in base.__subclasses__() for found in changes(one)]
    return [base, *below] if "verb" in vars(base) and base.__module__.startswith("epochlake.") else below


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    without_zookeeper(monkeypatch)
    return begin(tmp_path)


def test_a_request_that_an_earlier_version_has_committed_is_done_already(cluster: Cluster) -> None:
    before = cluster.commit(SwitchBalancing(False, "load"), request_id="mine", asked="pause balancing")
    again = administration.pause_balancing(cluster, request_id="mine", reason="tried again")
    assert again == Committed(before.epoch, "mine", already=True)
    with pytest.raises(Rejected, match="request-id-used"):
        administration.create_keyspace(cluster, "air", {"dc1": 1}, request_id="mine")


def test_the_words_of_a_change_are_in_its_entry_of_the_log(cluster: Cluster) -> None:
    paused = administration.pause_balancing(cluster, reason="load")
    [entry] = cluster.log().read(paused.epoch - 1, paused.epoch)
    assert (entry.asked, entry.decode()) == ("pause balancing", SwitchBalancing(False, "load"))
