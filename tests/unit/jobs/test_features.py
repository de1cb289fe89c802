"""Enabling features: refused while anybody who lives or has announced a version lacks one, then true for ever."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import epochlake
import msgspec
import pytest
from epochlake.jobs import administration
from epochlake.jobs.administration.features import announce_version
from epochlake.jobs.agent.admission import admit
from epochlake.jobs.agent.documents import nodes_seen
from epochlake.jobs.agent.join_messages import JoinRequest, Outcome, WantedVolume, join_refusal
from epochlake.jobs.agent.membership import Membership
from epochlake.jobs.agent.messages import PROTOCOL, Introduction, Seen, Sighting, Tag
from epochlake.jobs.cli.commands.features import require_support
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.views.features import feature_rows
from epochlake.metastore import announcing, metastore
from epochlake.metastore.announcing import announced, live_leases
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.features import (
    ANNOUNCEMENTS,
    GENERATED_COLUMNS,
    INITIAL_CHECKS,
    KEYSPACE_NAMES,
    STRUCT_FIELDS,
    SUPPORTED,
    TIME_TO_LIVE,
)
from epochlake.placement.rejections import Code
from epochlake.testing import LocalCluster, local_cluster

from tests.support.command_line import CommandLine

BLANK = Introduction("b", "n4", "127.0.0.1:4", None, PROTOCOL, "0.1.0", features=SUPPORTED)


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """A cluster that a version before features has begun."""
    with monkeypatch.context() as patch:
        patch.setattr(metastore, "SUPPORTED", ())
        with local_cluster(tmp_path, nodes=2, replication=1) as made:
            patch.undo()
            assert not made.cluster.metadata.features.enabled
            yield made


def enabled(cluster: Cluster) -> set[str]:
    return set(cluster.catch_up().features.enabled)


def test_features_are_enabled_once_and_stay(old: LocalCluster) -> None:
    cluster = old.cluster
    assert announce_version(cluster, "n1", "a") is None, "members of an older version could not read it"
    administration.enable_features(cluster, request_id="enable", reason="all upgraded")
    assert administration.enable_features(cluster, request_id="enable").already
    assert enabled(cluster) == set(SUPPORTED)
    with pytest.raises(Rejected) as refused:
        administration.enable_features(cluster, ANNOUNCEMENTS)
    assert refused.value.code == Code.NOTHING_TO_DO
    with pytest.raises(Rejected) as refused:
        administration.enable_features(cluster, "anouncements")
    assert refused.value.code == Code.UNKNOWN_FEATURE
    assert announce_version(cluster, "n1", "a") is not None
    assert announce_version(cluster, "n1", "a") is None, "it is said already"
    assert announce_version(cluster, "nobody", "a") is None


def test_a_pipeline_of_an_older_version_keeps_features_away_while_it_lives(
    old: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with epochlake.open_cluster(old.configuration) as job, monkeypatch.context() as patch:
        # Nobody is at the address of a local cluster's ZooKeeper: this process need not wait to find that out.
        monkeypatch.setattr(job, "coordination", partial(job.coordination, 0.1))
        patch.setattr(announcing, "SUPPORTED", None)
        with announced(job, "nightly-load", "test.events"):
            patch.undo()
            with pytest.raises(Rejected, match=r"'nightly-load' .process .* does not support announcements") as refused:
                administration.enable_features(old.cluster, ANNOUNCEMENTS)
            assert refused.value.code == Code.FEATURE_LACKING
            [row, *_] = feature_rows(old.cluster.catch_up(), live_leases(old.cluster))
            assert [one.split()[0] for one in row.lacking] == ["nightly-load"]
            assert row.unannounced == ("n1", "n2")
        with announced(job, "today's-load", "test.events"):
            administration.enable_features(old.cluster, ANNOUNCEMENTS)
    assert ANNOUNCEMENTS in enabled(old.cluster)


def test_the_commands_list_and_enable(old: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    line = CommandLine(Path(str(old.cluster.root.uri)), capsys)
    assert [(row["name"], row["enabled_epoch"]) for row in line.done("feature", "list")] == [
        (name, None) for name in SUPPORTED
    ]
    assert "no agent has announced its version: n1, n2" in line.text("feature", "list").out
    unnamed = line.json("feature", "enable")
    assert (unnamed.code, unnamed.error["hint"]) == (2, "Run `epochlake feature list` to see them")
    assert line.json("feature", "enable", "--all", ANNOUNCEMENTS).code == 2
    assert line.json("feature", "enable", "nothing-such").code == 3
    assert line.done("feature", "enable", "--all", "--dry-run")["event"] == "EnableFeatures"
    assert not enabled(old.cluster)
    line.done("feature", "enable", "--all")
    epoch = old.cluster.catch_up().epoch
    assert {row["enabled_epoch"] for row in line.done("feature", "list")} == {epoch}
    assert {row["enabled_epoch"] for row in line.done("feature", "list", "--at", str(epoch - 1))} == {None}


def test_an_agent_that_answers_and_is_older_is_seen_by_another_one() -> None:
    now = 100.0
    membership = Membership("a", random.Random(1))
    older = msgspec.structs.replace(BLANK, agent_id="c", name="n2", address="h:2", features=())
    for who in (older, msgspec.structs.replace(BLANK, agent_id="d", name="n3", address="h:3")):
        membership.heard(who, now)
    seen = nodes_seen(None, BLANK, tuple(membership.peers.values()), now)
    with pytest.raises(Rejected, match=r"the agent of node 'n2' at h:2 does not support"):
        require_support(seen, SUPPORTED)
    require_support([node for node in seen if node.name != "n2"], SUPPORTED)
    membership.merge([Sighting("e", "n5", "h:5", Seen.ALIVE, 1)], now)
    told = nodes_seen(None, BLANK, tuple(membership.peers.values()), now)
    with pytest.raises(Rejected, match=r"'n5' at h:5 has not been heard yet"):
        require_support([node for node in told if node.name != "n2"], SUPPORTED)
    gone = [msgspec.structs.replace(node, seen=Seen.UNREACHABLE) for node in seen]
    require_support(gone, SUPPORTED)


def test_an_agent_that_lacks_an_enabled_feature_is_not_let_in(tmp_path: Path) -> None:
    with local_cluster(tmp_path, nodes=1, replication=1) as lake:
        volumes = (WantedVolume("d1", str(tmp_path / "d4")),)
        older = msgspec.structs.replace(BLANK, features=(), product_version="0.0.9")
        asked = JoinRequest(older, "nonce", "join-b", "dc1", "r4", volumes)
        answer = admit(lake.cluster, asked)
        assert answer.outcome is Outcome.REJECTED
        assert "version 0.0.9 of agent 'n4' does not support announcements" in answer.reason
        assert lake.epoch == lake.cluster.catch_up().epoch
        member = msgspec.structs.replace(BLANK, agent_id="a", name="n1", tag=Tag("c", "id"))
        why = join_refusal(member, True, asked, None, enabled=SUPPORTED)
        assert why is not None
        assert (why.code, why.reason) == ("features", answer.reason)
        assert join_refusal(member, True, asked, None, enabled=()) is None
        proper = msgspec.structs.replace(asked, sender=BLANK)
        assert join_refusal(member, True, proper, None, enabled=SUPPORTED) is None
        assert admit(lake.cluster, proper).outcome is Outcome.ACCEPTED


def test_a_keyspace_is_renamed_once_every_member_knows_that_names_change(
    old: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    line, epoch = CommandLine(Path(str(old.cluster.root.uri)), capsys), old.cluster.catch_up().epoch
    refused = line.json("keyspace", "rename", "test", "new")
    assert (refused.code, refused.error["code"]) == (3, "feature-not-enabled")
    assert "epochlake feature enable keyspace-names" in refused.error["hint"]
    assert old.cluster.catch_up().epoch == epoch
    administration.enable_features(old.cluster, KEYSPACE_NAMES)
    line.done("keyspace", "rename", "test", "new")
    assert [row["name"] for row in line.done("keyspace", "list")] == ["new"]


def test_a_table_is_created_with_checks_once_every_member_says_since_when_they_hold(old: LocalCluster) -> None:
    columns = [("id", "bigint", False), ("amount", "int", True)]
    with pytest.raises(Rejected, match="initial-checks") as refused:
        epochlake.create_table(old.cluster, "test.paid", columns, ["id"], checks={"paid": "amount >= 0"})
    assert refused.value.code is Code.FEATURE_NOT_ENABLED
    epochlake.create_table(old.cluster, "test.events", columns, ["id"])
    administration.enable_features(old.cluster, INITIAL_CHECKS)
    epochlake.create_table(old.cluster, "test.paid", columns, ["id"], checks={"paid": "amount >= 0"})
    assert [check.name for check in old.cluster.table("test.paid").checks] == ["paid"]


def test_fields_of_structs_change_once_every_member_knows_that_they_do(old: LocalCluster) -> None:
    columns = [("id", "bigint", False), ("home", "struct<street:string>", True)]
    epochlake.create_table(old.cluster, "test.people", columns, ["id"])
    old.cluster.write("test.people", [{"id": 1, "home": {"street": "s"}}])
    with pytest.raises(Rejected, match="struct-fields") as refused:
        epochlake.alter_table(old.cluster, "test.people", add=["home.zip int"])
    assert refused.value.code is Code.FEATURE_NOT_ENABLED
    # What needs no feature is done without it.
    epochlake.alter_table(old.cluster, "test.people", rename={"home": "place"})
    administration.enable_features(old.cluster, STRUCT_FIELDS)
    epochlake.alter_table(old.cluster, "test.people", add=["place.zip int"])
    assert old.cluster.get("test.people", 1) == {"id": 1, "place": {"street": "s", "zip": None}}


def test_columns_are_generated_once_every_member_computes_them(old: LocalCluster) -> None:
    columns = ["id bigint", "n int", "twice bigint generated always as (n * 2)"]
    epochlake.create_table(old.cluster, "test.events", columns[:2], ["id"])
    for ask in (
        lambda: epochlake.create_table(old.cluster, "test.other", columns, ["id"]),
        lambda: epochlake.alter_table(old.cluster, "test.events", add=columns[2:]),
    ):
        with pytest.raises(Rejected, match="generated-columns") as refused:
            ask()
        assert refused.value.code is Code.FEATURE_NOT_ENABLED
    administration.enable_features(old.cluster, GENERATED_COLUMNS)
    epochlake.alter_table(old.cluster, "test.events", add=columns[2:])
    old.cluster.write("test.events", [{"id": 1, "n": 2}])
    assert old.cluster.get("test.events", 1) == {"id": 1, "n": 2, "twice": 4}


def test_rows_expire_once_every_member_knows_which(old: LocalCluster) -> None:
    columns = [("id", "bigint", False), ("seen", "timestamp", True)]
    epochlake.create_table(old.cluster, "test.visits", columns, ["id"])
    for ask in (
        lambda: epochlake.create_table(old.cluster, "test.other", columns, ["id"], ttl=("seen", 60)),
        lambda: epochlake.set_ttl(old.cluster, "test.visits", "seen", 60),
    ):
        with pytest.raises(Rejected, match="time-to-live") as refused:
            ask()
        assert refused.value.code is Code.FEATURE_NOT_ENABLED
    administration.enable_features(old.cluster, TIME_TO_LIVE)
    epochlake.set_ttl(old.cluster, "test.visits", "seen", 60)
    assert old.cluster.table("test.visits").ttl.seconds == 60
