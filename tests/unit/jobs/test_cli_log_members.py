"""`metadata reconfigure`: log members that are chosen, seen on their way, gone on with and taken back."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from epochlake.jobs import administration
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.upkeep import log_members
from epochlake.jobs.upkeep.log_member_track import RETRY_SECONDS, LogMemberTrack, end_unfinished, kept_automatically
from epochlake.metastore.configuration import Configuration, LogSettings
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.log import majority_log
from epochlake.metastore.log.asked_members import AskedMembers
from epochlake.metastore.log.majority_log import ACKNOWLEDGE_SECONDS
from epochlake.metastore.log.moving_members import MemberMover
from epochlake.metastore.storage.storage import Storage

from tests.support import clusters
from tests.support.clusters import finish
from tests.support.command_line import CommandLine

DIRECTORY = "epochlake-log"


@pytest.fixture
def lake(grown: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Three nodes in three racks, n1 to n3; commits count on a majority of log members, of which there are none yet."""
    monkeypatch.setenv("EPOCHLAKE__LOG__ACKNOWLEDGE", "majority")
    return grown


def places_of(path: Path, *nodes: str) -> list[str]:
    return [str(path / "volumes" / node / DIRECTORY) for node in nodes]


def names(document: dict[str, list[dict[str, str]]]) -> list[str]:
    return [row["member"] for row in document["members"]]


def test_members_are_chosen_by_the_size_of_the_cluster_and_stay(lake: CommandLine, tmp_path: Path) -> None:
    assert lake.json("balance", "pause").code != 0
    planned = lake.done("metadata", "reconfigure", "--auto", "--dry-run")
    three = places_of(tmp_path, "n1", "n2", "n3")
    assert (planned["nodes"], planned["members"], planned["joining"]) == (3, three, three)
    assert not any(Path(one).exists() for one in three)
    done = lake.done("metadata", "reconfigure", "--auto")
    assert (done["generation"], names(done)) == (1, three)
    assert lake.done("balance", "pause")["epoch"]
    again = lake.done("metadata", "reconfigure", "--auto")
    assert (again["generation"], {row["epoch"] for row in again["members"]}) == (1, {lake.log()[-1][0]})
    shown = lake.text("metadata", "reconfigure", "--auto", "--dry-run").out
    assert "these are the log members already" in shown


def test_what_has_changed_in_the_cluster_changes_as_few_members_as_possible(lake: CommandLine, tmp_path: Path) -> None:
    lake.done("metadata", "reconfigure", "--auto")
    with Cluster(Configuration(root=str(lake.root), log=LogSettings(acknowledge="majority"))) as cluster:
        for node, rack in (("n4", "r1"), ("n5", "r2"), ("n6", "r4"), ("n7", "r3")):
            clusters.join(cluster, tmp_path / "volumes", node, rack)
        administration.set_maintenance(cluster, "n7", on=True)
    planned = lake.done("metadata", "reconfigure", "--auto", "--dry-run")
    assert planned["members"] == places_of(tmp_path, "n1", "n2", "n3", "n4", "n6")
    assert planned["joining"] == places_of(tmp_path, "n4", "n6")
    assert planned["leaving"] == []
    assert planned["unavailable"] == {"n7": "it is in maintenance"}
    (tmp_path / "volumes" / "n2").rename(tmp_path / "away")
    planned = lake.done("metadata", "reconfigure", "--auto", "--dry-run")
    assert planned["leaving"] == places_of(tmp_path, "n2")
    assert planned["joining"] == places_of(tmp_path, "n4", "n5", "n6")
    assert "its marker epochlake-volume.json is missing" in planned["unavailable"]["n2"]
    done = lake.done("metadata", "reconfigure", "--auto")
    assert (done["generation"], names(done)) == (2, places_of(tmp_path, "n1", "n3", "n4", "n5", "n6"))
    assert lake.done("balance", "pause")["epoch"]


def test_too_few_nodes_that_answer_are_no_reason_to_keep_fewer_copies(lake: CommandLine, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "volumes" / "n3")
    refused = lake.json("metadata", "reconfigure", "--auto")
    assert refused.code == 2
    assert "3 normal nodes is to have 3 log members, and fewer nodes can be one (n3: " in refused.error["message"]
    assert not any(Path(one).exists() for one in places_of(tmp_path, "n1", "n2", "n3"))


def test_members_of_before_the_first_node_are_named(empty: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPOCHLAKE__LOG__ACKNOWLEDGE", "majority")
    empty.done("init")
    refused = empty.json("metadata", "reconfigure", "--auto")
    assert (refused.code, refused.error["hint"][:22]) == (2, "Name directories of th")


def left_half_done(
    lake: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str = "_adopt"
) -> list[str]:
    """A change that was cut off in a step, as a rule when the members of before had promised to take nothing more; the
    members that it leads to.
    """
    others = [tmp_path / f"disk-{number}" for number in range(3)]
    for other in others:
        other.mkdir()

    def cut_off(*_: object) -> None:
        raise StorageUnavailable("the power goes")

    with monkeypatch.context() as patched:
        patched.setattr(MemberMover, step, cut_off)
        assert lake.json("metadata", "reconfigure", *others).code == 75
    return list(map(str, others))


@pytest.mark.parametrize("step", ["_seal", "_adopt", "_name"])
@pytest.mark.parametrize("way", ["--resume", "--cancel"])
def test_a_change_that_was_cut_off_is_seen_and_ended_or_taken_back(
    lake: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, way: str
) -> None:
    lake.done("metadata", "reconfigure", "--auto")
    others = left_half_done(lake, tmp_path, monkeypatch, step)
    status = lake.done("metadata", "reconfigure", "--status")
    assert names(status) == places_of(tmp_path, "n1", "n2", "n3")
    if step == "_seal":
        assert (status["unfinished"], status["change"]) == (None, None)
        refused = lake.json("metadata", "reconfigure", way)
        assert (refused.code, refused.error["message"]) == (2, "no change of the log members is unfinished")
        assert lake.done("balance", "pause")["epoch"]
        return
    assert status["change"]["generation"] == status["unfinished"] == 2
    assert [row["member"] for row in status["change"]["members"]] == others
    printed = lake.text("metadata", "reconfigure", "--status").out
    assert "the change to generation 2 is unfinished:" in printed
    assert ("no whole copy of it" in printed) is (step == "_adopt")
    done = lake.done("metadata", "reconfigure", way)
    assert (done["unfinished"], done["generation"]) == (None, 2 if way == "--resume" else 3)
    assert names(done) == (others if way == "--resume" else places_of(tmp_path, "n1", "n2", "n3"))
    assert lake.done("balance", "pause")["epoch"]
    assert {row["epoch"] for row in lake.done("metadata", "describe")["members"]} == {lake.log()[-1][0]}


@pytest.mark.parametrize(
    "words",
    [[], ["--auto", "--resume"], ["/disk", "--auto"], ["--status", "--cancel"], ["--resume", "--dry-run"]],
    ids=json.dumps,
)
def test_one_thing_is_asked_for_at_a_time(lake: CommandLine, words: list[str]) -> None:
    refused = lake.json("metadata", "reconfigure", *words)
    assert refused.code == 2
    assert refused.error["hint"].startswith("Name all members, or give one of --auto,")


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_the_coordinator_follows_nodes_that_join_and_waits_for_those_that_do_not_answer(
    lake: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    configuration = Configuration(root=str(lake.root), log=LogSettings(acknowledge="majority", members="auto"))
    with Cluster(configuration) as cluster:
        assert kept_automatically(configuration)
        track = LogMemberTrack(cluster, clock)

        def members() -> list[str]:
            track.advance(cluster.catch_up())
            clock.now += RETRY_SECONDS
            return names(lake.done("metadata", "describe"))

        assert members() == places_of(tmp_path, "n1", "n2", "n3")
        for node, rack in (("n4", "r4"), ("n5", "r1"), ("n6", "r2")):
            clusters.join(cluster, tmp_path / "volumes", node, rack)
        (tmp_path / "volumes" / "n6").rename(tmp_path / "away")
        assert members() == places_of(tmp_path, "n1", "n2", "n3")
        assert track.blocked == ["log members: n6 would be passed over, which may come back"]
        (tmp_path / "away").rename(tmp_path / "volumes" / "n6")
        five = places_of(tmp_path, "n1", "n2", "n3", "n4", "n5")
        assert members() == five
        asked = clock.now
        with monkeypatch.context() as patched:
            patched.setattr(log_members, "unfinished", lambda *_: pytest.fail("nothing has changed"))
            track.advance(cluster.catch_up())
        assert clock.now == asked
        finish(cluster, administration.remove_node(cluster, "n6").request_id)
        assert members() == places_of(tmp_path, "n1", "n2", "n3")


def test_while_a_change_is_unfinished_nobody_is_chosen_and_others_can_be_named(
    lake: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.done("metadata", "reconfigure", "--auto")
    others = left_half_done(lake, tmp_path, monkeypatch)
    refused = lake.json("metadata", "reconfigure", "--auto")
    assert (refused.code, refused.error["hint"][:18]) == (2, "End it by --resume")
    assert lake.done("metadata", "reconfigure", "--dry-run", *others[:1])["joining"] == others[:1]
    assert names(lake.done("metadata", "reconfigure", *others[:1])) == others[:1]
    assert lake.done("balance", "pause")["epoch"]


def test_what_cannot_be_read_says_which_members_wait_for_the_end_of_a_change(
    lake: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.done("metadata", "reconfigure", "--auto")
    left_half_done(lake, tmp_path, monkeypatch)
    # The time is over when all members were asked once, however long they take to answer.
    clock, waiting = Clock(), AskedMembers.wait_for

    def over(_: float) -> None:
        clock.now += ACKNOWLEDGE_SECONDS

    monkeypatch.setattr(majority_log, "time", SimpleNamespace(monotonic=clock, sleep=over))
    monkeypatch.setattr(
        AskedMembers, "wait_for", lambda asked, enough, _: waiting(asked, enough, time.monotonic() + 300.0)
    )
    refused = lake.json("balance", "pause")
    assert (refused.code, refused.error["message"].count("has promised generation 2")) == (75, 3)


def test_a_coordinator_that_runs_and_one_that_starts_end_what_was_left_half_done(
    lake: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.done("metadata", "reconfigure", "--auto")
    configuration = Configuration(root=str(lake.root), log=LogSettings(acknowledge="majority", members="auto"))
    with Cluster(configuration) as cluster:
        clock = Clock()
        track, others = LogMemberTrack(cluster, clock), left_half_done(lake, tmp_path, monkeypatch)
        for unfinished in (2, 2, None):
            assert lake.done("metadata", "describe")["unfinished"] == unfinished
            track.out_of_reach()
            track.out_of_reach()
            clock.now += RETRY_SECONDS
        assert names(lake.done("metadata", "describe")) == others
        end_unfinished(configuration, cluster.storage)
        track.advance(cluster.catch_up())
    three = places_of(tmp_path, "n1", "n2", "n3")
    assert names(lake.done("metadata", "describe")) == three
    for other in others:
        shutil.rmtree(other)
    left_half_done(lake, tmp_path, monkeypatch)
    end_unfinished(configuration, Storage(configuration.storage))
    assert names(lake.done("metadata", "describe")) == others
    assert lake.done("balance", "pause")["epoch"]


@pytest.mark.parametrize("lost", ["flipped", "gone"])
def test_what_the_log_has_lost_is_put_back_from_its_members_and_never_accepted_as_lost(
    lake: CommandLine, lost: str
) -> None:
    lake.done("metadata", "reconfigure", "--auto")
    epoch = lake.done("balance", "pause")["epoch"]
    newest = max((lake.root / "log").glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    if lost == "gone":
        newest.unlink()
    else:
        data = newest.read_bytes()
        newest.write_bytes(data[:300] + bytes([data[300] ^ 1]) + data[301:])
    assert lake.json("status").code != 0
    for refused in (lake.json("log", "accept-loss", "--dry-run"), lake.json("log", "accept-loss")):
        assert (refused.code, refused.error["code"]) == (3, "can-be-healed")
        assert refused.error["hint"] == "Run `epochlake log heal`"
    for how in (["--dry-run"], []):
        [said] = lake.done("log", "heal", *how)["mended"]
        assert f"epochs {epoch} put back" in said
    assert lake.done("log", "verify")["last_epoch"] == epoch
    assert lake.done("balance", "resume")["epoch"] == epoch + 1


def test_a_log_with_a_hole_that_nothing_beside_it_fills_is_restored_from_its_members(
    lake: CommandLine, tmp_path: Path
) -> None:
    lake.done("metadata", "reconfigure", "--auto")
    for switch in ("pause", "resume", "pause", "resume"):
        epoch = lake.done("balance", switch)["epoch"]
    commits = sorted((lake.root / "log" / "_delta_log").glob("*.json"))
    [named] = [json.loads(line)["add"]["path"] for line in commits[-3].read_text().splitlines() if '"add"' in line]
    (lake.root / "log" / named).unlink()
    commits[-3].unlink()
    refused, never = lake.json("log", "heal"), lake.json("log", "accept-loss")
    assert (never.code, never.error["code"]) == (3, "can-be-healed")
    three = places_of(tmp_path, "n1", "n2", "n3")
    command = f"`epochlake metadata recover {' '.join(three)}`"
    assert refused.code != 0
    assert refused.error["hint"].endswith(f"move {lake.root}/log away, and run {command}")
    (lake.root / "log").rename(tmp_path / "torn")
    assert command in lake.json("status").error["hint"]
    assert lake.done("metadata", "recover", *three)["epoch"] == epoch
    assert lake.done("log", "verify")["last_epoch"] == epoch
    assert lake.done("balance", "pause")["epoch"] == epoch + 1


def test_most_members_are_gone_for_good_and_the_root_is_there(lake: CommandLine, tmp_path: Path) -> None:
    lake.done("metadata", "reconfigure", "--auto")
    epoch = lake.done("balance", "pause")["epoch"]
    for node in ("n1", "n2"):
        shutil.rmtree(tmp_path / "volumes" / node / DIRECTORY)
    others = [tmp_path / f"disk-{number}" for number in range(3)]
    for other in others:
        other.mkdir()
    refused = lake.json("metadata", "reconfigure", *others)
    assert refused.code == 75
    assert refused.error["hint"].endswith("if they are gone for good, give --accept-loss")
    for wrong in (["--auto"], ["--resume"], ["--cancel"], ["--status"]):
        assert lake.json("metadata", "reconfigure", *wrong, "--accept-loss").code == 2
    done = lake.done("metadata", "reconfigure", *others, "--accept-loss")
    assert (names(done), {row["epoch"] for row in done["members"]}) == (list(map(str, others)), {epoch})
    assert lake.done("balance", "resume")["epoch"] == epoch + 1


def test_a_disk_that_was_emptied_is_told_and_restores_nothing(lake: CommandLine, tmp_path: Path) -> None:
    lake.done("metadata", "reconfigure", "--auto")
    epoch = lake.done("balance", "pause")["epoch"]
    first, second, third = (Path(place) for place in places_of(tmp_path, "n1", "n2", "n3"))
    shutil.rmtree(second)
    second.mkdir()
    [doubt] = [row["doubt"] for row in lake.done("metadata", "describe")["members"] if row["doubt"]]
    assert doubt.startswith("it has lost what it was given for generation 1: its disk was exchanged or emptied")
    printed = lake.text("metadata", "describe").out.replace("\n", " ")
    assert "no whole copy (it has lost" in printed
    assert "metadata reconfigure with all members makes those in doubt whole" in printed
    first.rename(tmp_path / "away")
    (lake.root / "log").rename(tmp_path / "lost")
    refused = lake.json("metadata", "recover", second, third)
    assert refused.code == 75
    assert refused.error["hint"].endswith("if they are gone for good, give --accept-loss")
    assert not (lake.root / "log").exists()
    (tmp_path / "away").rename(first)
    assert lake.done("metadata", "recover", first, second, third)["epoch"] == epoch
    assert not [row for row in lake.done("metadata", "describe")["members"] if row["doubt"]]
    assert lake.done("balance", "resume")["epoch"] == epoch + 1


def test_a_node_that_has_left_goes_when_no_log_member_is_on_it(lake: CommandLine, tmp_path: Path) -> None:
    lake.done("metadata", "reconfigure", "--auto")
    with Cluster(Configuration(root=str(lake.root), log=LogSettings(acknowledge="majority"))) as cluster:
        clusters.join(cluster, tmp_path / "volumes", "n4", "r1")
        three = places_of(tmp_path, "n1", "n2", "n4")
        Path(three[-1]).mkdir()
        lake.done("metadata", "reconfigure", *three)
        finish(cluster, administration.decommission(cluster, "n4").request_id)
    refused = lake.json("metadata", "unregister", "n4", "--force")
    assert (refused.code, refused.error["code"]) == (3, "is-log-member")
    lake.done("metadata", "reconfigure", "--auto")
    planned = lake.done("metadata", "unregister", "n4", "--dry-run")
    assert (planned["event"], planned["payload"]) == ("UnregisterNodes", {"node_ids": [4]})
    assert ["n4" in node["name"] for node in lake.done("node", "list", "--all")] == [False, False, False, True]
    done = lake.done("metadata", "unregister", "n4")
    assert done["what"] == "node n4 unregistered"
    assert [node["name"] for node in lake.done("node", "list", "--all")] == ["n1", "n2", "n3"]
    at_first = lake.done("node", "list", "--all", "--at", str(done["epoch"] - 1))
    assert [node["name"] for node in at_first] == ["n1", "n2", "n3", "n4"]
    assert lake.done("log", "verify")["holds"]


def test_the_root_and_most_members_are_gone_for_good(lake: CommandLine, tmp_path: Path) -> None:
    lake.done("metadata", "reconfigure", "--auto")
    epoch = lake.done("balance", "pause")["epoch"]
    [left] = places_of(tmp_path, "n3")
    before = tmp_path / "before"
    shutil.copytree(left, before)
    assert lake.done("log", "snapshot")["epoch"] == epoch + 1
    shutil.rmtree(left)
    before.rename(left)
    shutil.rmtree(lake.root / "log")
    for node in ("n1", "n2"):
        shutil.rmtree(tmp_path / "volumes" / node / DIRECTORY)
    refused = lake.json("metadata", "recover", left)
    assert (refused.code, "give --accept-loss" in refused.error["hint"]) == (75, True)
    assert lake.done("metadata", "recover", left, "--accept-loss")["epoch"] == epoch
    assert lake.json("log", "verify").code == 4  # the snapshot knows of an epoch that is gone
    accepted = lake.done("log", "accept-loss")
    assert (accepted["log_epoch"], accepted["incarnation"]) == (epoch, 2)
    assert lake.done("balance", "resume")["epoch"] == accepted["epoch"] + 1
    assert lake.done("log", "verify")["last_epoch"] == accepted["epoch"] + 1
