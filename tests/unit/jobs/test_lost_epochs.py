"""Epochs that were lost: told, accepted by an operator, and never mixed with what comes after them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from epochlake.jobs import administration
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.coordinator import coordinator
from epochlake.jobs.coordinator.tracks import tablets as tablet_track
from epochlake.jobs.gate import planning
from epochlake.jobs.replicas.commits import commit_files, drop_ranges
from epochlake.jobs.replicas.fences import raise_fence
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.outcomes import Acknowledged, AlreadyApplied, FencedOff
from epochlake.jobs.replicas.replica import ReplicaAddress, open_snapshot
from epochlake.jobs.upkeep import lost_epochs
from epochlake.jobs.upkeep.repair import repair
from epochlake.jobs.views import status
from epochlake.metastore.configuration import Configuration, CoordinatorSettings
from epochlake.metastore.coordination.head import Head
from epochlake.metastore.errors import HashMismatch, LogWentBack
from epochlake.metastore.following import follower
from epochlake.metastore.log import cutting
from epochlake.metastore.metadata.events import AcceptLoss
from epochlake.metastore.metadata.fence import Fence
from epochlake.placement.tablets.transitions import Stage

from tests.support.clusters import COLUMNS, FOUR, assert_at_rest, placed, without_zookeeper
from tests.support.command_line import CommandLine
from tests.support.compactions import without_leases
from tests.support.slices import sliced
from tests.support.storages import STORAGE, forget
from tests.support.versions import compact_here, read_versions, write_versions

QUICK = Configuration(coordinator=CoordinatorSettings(backoff_seconds=0.0, streams_per_volume=4))


@pytest.fixture
def went_back(grown: CommandLine, cluster: Cluster, tmp_path: Path) -> CommandLine:
    """A cluster with a table whose root was put back, after replicas were fenced at the epochs that are lost."""
    administration.create_table(cluster, "air.flights", COLUMNS, ["id"], tablets=1)
    shutil.copytree(tmp_path / "root", tmp_path / "backup")
    for on in (False, True, False):
        (administration.resume_balancing if on else administration.pause_balancing)(cluster, reason="x")
    administration.take_snapshot(cluster)
    for address in addresses(cluster):
        assert raise_fence(address, cluster.metadata.epoch) == cluster.metadata.epoch
    shutil.rmtree(tmp_path / "root" / "log")
    shutil.copytree(tmp_path / "backup" / "log", tmp_path / "root" / "log")
    return grown


def addresses(cluster: Cluster) -> list[ReplicaAddress]:
    metadata = cluster.metadata
    table = metadata.table("air.flights")
    return [address_of(STORAGE, metadata, table, v) for v in metadata.tablets.maps[table.table_id].replicas(0)]


def test_who_survives_and_who_comes_anew_are_told_both_positions(went_back: CommandLine, cluster: Cluster) -> None:
    known = cluster.metadata.epoch
    for _ in range(2):
        with pytest.raises(LogWentBack) as caught:
            administration.resume_balancing(cluster)
        assert (caught.value.log_epoch, caught.value.known_epoch) == (known - 4, known)
    result = went_back.json("balance", "pause")
    assert (result.code, result.error["type"]) == (4, "LogWentBack")
    assert f"ends at epoch {known - 4}, but epoch {known} was known to a snapshot" in result.error["message"]


def test_an_operator_accepts_the_loss_and_the_cluster_goes_on_in_a_new_incarnation(
    went_back: CommandLine, cluster: Cluster
) -> None:
    known = cluster.metadata.epoch
    would = went_back.done("log", "accept-loss", "--dry-run")
    assert (would["dry_run"], would["log_epoch"], would["incarnation"]) == (True, known - 4, 2)
    assert {one["epoch"] for one in would["known"]} == {known}
    assert "incarnation 2 begins" in went_back.text("log", "accept-loss", "--reason", "the disk is gone").out
    opened = Cluster(cluster.configuration)
    assert (opened.metadata.epoch, opened.metadata.identity.incarnation) == (known - 3, 2)
    assert opened.metadata.fence == Fence(known - 3, 2)
    assert opened.metadata.fence > Fence(known)
    assert [open_snapshot(address).fence for address in addresses(opened)] == [opened.metadata.fence] * 3
    assert administration.pause_balancing(opened).epoch == known - 2
    report = went_back.done("log", "verify", "--tablets", "--quorums")
    assert report["holds"]
    again = went_back.json("log", "accept-loss")
    assert (again.code, again.error["type"]) == (3, "Rejected")
    assert went_back.done("log", "show", str(known - 3))["payload"]["known_epoch"] == known
    # Who knows the lost epochs never goes on with the new ones.
    with pytest.raises(LogWentBack):
        cluster.catch_up()


def test_rows_that_were_written_under_a_name_that_was_lost_are_there_under_the_one_before(
    grown: CommandLine, cluster: Cluster, tmp_path: Path
) -> None:
    administration.create_table(cluster, "air.flights", COLUMNS, ["id"], tablets=1)
    shutil.copytree(tmp_path / "root" / "log", tmp_path / "backup")
    administration.rename_keyspace(cluster, "air", "sky")
    rows = [{"id": 1, "note": "under the new name"}]
    cluster.write("sky.flights", rows, consistency="ALL")
    administration.take_snapshot(cluster)
    shutil.rmtree(tmp_path / "root" / "log")
    shutil.copytree(tmp_path / "backup", tmp_path / "root" / "log")
    grown.done("log", "accept-loss", "--reason", "the disk is gone")
    with Cluster(cluster.configuration) as opened:
        for name in ("air.flights", "again.flights"):
            assert opened.scan(name, consistency="ALL").read_all().to_pylist() == rows
            rows.append({"id": len(rows) + 1, "note": name})
            opened.write(name, rows[-1:], consistency="ALL")
            if name == "air.flights":
                administration.rename_keyspace(opened, "air", "again")
        assert opened.count("again.flights") == 3


def test_nothing_that_was_planned_in_the_lost_epochs_lands_once_the_loss_is_accepted(
    went_back: CommandLine, cluster: Cluster
) -> None:
    lost = cluster.metadata
    went_back.done("log", "accept-loss")
    for address in addresses(cluster):
        late = commit_files(address, [], epoch=lost.fence, app_id="late", app_version=1)
        assert isinstance(late, FencedOff)
        assert isinstance(drop_ranges(address, [(0, 9)], lost.fence), FencedOff)
        assert raise_fence(address, lost.fence) == Fence(lost.epoch - 3, 2)


def test_a_replica_that_was_away_when_the_loss_was_accepted_is_fenced_by_the_first_who_commits_to_it(
    went_back: CommandLine, cluster: Cluster
) -> None:
    lost, [away, *_] = cluster.metadata, addresses(cluster)
    table = Path(away.uri)
    table.rename(table.with_name("away"))
    assert went_back.done("log", "accept-loss")["fenced"] == 2
    table.with_name("away").rename(table)
    opened = Cluster(cluster.configuration)
    assert open_snapshot(away).fence == lost.epoch
    outcome = commit_files(away, [], epoch=opened.metadata.fence, app_id="new", app_version=1)
    assert isinstance(outcome, Acknowledged | AlreadyApplied)
    assert open_snapshot(away).fence == opened.metadata.fence
    assert isinstance(commit_files(away, [], epoch=lost.fence, app_id="late", app_version=1), FencedOff)


def test_a_run_that_was_killed_after_its_commit_is_finished_by_the_next(
    went_back: CommandLine, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(lost_epochs, "_tell_zookeeper", lambda _: 1 / 0)
        killed.setattr(lost_epochs.Metastore, "close", lambda _: None)
        killed.setattr("epochlake.metastore.following.snapshots.Snapshots.put_aside", lambda *_: 1 / 0)
        assert went_back.json("log", "accept-loss").code == 1
    assert went_back.json("log", "accept-loss").code == 3  # no second incarnation
    opened = Cluster(cluster.configuration)
    assert opened.metadata.identity.incarnation == 2
    assert [open_snapshot(address).fence for address in addresses(opened)] == [opened.metadata.fence] * 3


def test_verifying_says_who_knows_more_than_the_log_and_who_was_not_asked(
    grown: CommandLine, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notices = grown.done("log", "verify")["notices"]
    assert [(one["code"], "ZooKeeper is away" in one["message"]) for one in notices] == [("not-compared", True)]
    administration.create_table(cluster, "air.flights", COLUMNS, ["id"], tablets=1)
    last = cluster.metadata.epoch
    for address in addresses(cluster):
        raise_fence(address, last)
    max((tmp_path / "root" / "log" / "_delta_log").glob("*.json")).unlink()
    assert grown.json("log", "verify").code == 0  # nobody was asked who knows
    monkeypatch.setattr(lost_epochs, "read_head", lambda _: Head(last, "s", "h"))
    monkeypatch.setattr(Cluster, "coordination", lambda *_: None)
    found = grown.json("log", "verify")
    assert found.code == 4
    assert [(one["code"], one["where"]) for one in found.json["findings"]] == [("behind", f"epoch {last}")]
    assert "known to ZooKeeper" in grown.text("log", "verify").out


def test_status_says_whether_the_log_was_compared_and_its_check_ends_with_4_when_it_is_behind(
    grown: CommandLine, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    administration.pause_balancing(cluster)
    last = cluster.metadata.epoch
    max((tmp_path / "root" / "log" / "_delta_log").glob("*.json")).unlink()
    assert grown.done("status")["log"]["state"] == "not-compared"
    assert "not compared with ZooKeeper" in grown.text("status").out
    monkeypatch.setattr(follower, "BEHIND_SECONDS", 0.0)
    monkeypatch.setattr(status, "coordinator_status", lambda _: status.CoordinatorStatus("answers"))
    monkeypatch.setattr(status, "read_head", lambda *_: Head(last, "s", "h"))
    monkeypatch.setattr(Cluster, "coordination", lambda *_: None)
    told = grown.done("status")["log"]
    assert told["state"] == "behind"
    assert f"ends at epoch {last - 1}, but epoch {last} was known" in told["detail"]
    found = grown.json("status", "--check")
    assert (found.code, "log accept-loss" in found.err) == (4, True)


@pytest.mark.parametrize("version", [-1, -4])
def test_verifying_a_torn_log_says_up_to_where_it_is_whole_and_what_to_do(
    grown: CommandLine, cluster: Cluster, tmp_path: Path, version: int
) -> None:
    administration.pause_balancing(cluster)
    administration.resume_balancing(cluster)
    administration.pause_balancing(cluster)
    administration.take_snapshot(cluster)
    administration.resume_balancing(cluster)
    whole = cluster.metadata.epoch + version
    sorted((tmp_path / "root" / "log" / "_delta_log").glob("*.json"))[version].write_bytes(b"")
    forget()
    found = grown.json("log", "verify")
    assert found.code == 4
    assert (found.json["last_epoch"], found.json["entries"], found.json["events"]) == (whole, whole, whole)
    [finding] = found.json["findings"]
    assert (finding["code"], finding["where"]) == ("unreadable", f"epoch {whole + 1}")
    assert f"torn after epoch {whole}, where epoch {whole + 1} would be" in finding["message"]
    assert "Run `epochlake log heal`" in finding["message"]


def test_verifying_a_torn_log_names_what_does_not_hold_before(
    grown: CommandLine, cluster: Cluster, tmp_path: Path
) -> None:
    for _ in range(2):
        administration.pause_balancing(cluster)
        administration.resume_balancing(cluster)
    log, last = tmp_path / "root" / "log", cluster.metadata.epoch
    commits = sorted((log / "_delta_log").glob("*.json"))
    [path] = [json.loads(line)["add"]["path"] for line in commits[-3].read_text().splitlines() if '"add"' in line]
    (log / path).unlink()
    commits[-1].unlink()
    (log / "_delta_log" / f"{len(commits):020}.json").write_bytes(commits[-2].read_bytes())
    findings = grown.json("log", "verify").json["findings"]
    assert {one["code"] for one in findings} == {"unreadable"}
    assert [one["where"] for one in findings] == [f"epoch {last - 2}", f"epoch {last}"]


Hole = Callable[[], None]


@pytest.fixture
def dig(grown: CommandLine, cluster: Cluster, tmp_path: Path) -> Hole:
    """Eight more epochs, the fourth of which is then lost: its commit and its data file."""
    for on in (False, True) * 4:
        (administration.resume_balancing if on else administration.pause_balancing)(cluster)
    commit = sorted((tmp_path / "root" / "log" / "_delta_log").glob("*.json"))[-5]

    def lose() -> None:
        [add] = [json.loads(line)["add"] for line in commit.read_text().splitlines() if '"add"' in line]
        (tmp_path / "root" / "log" / add["path"]).unlink()
        commit.unlink()
        forget()

    return lose


def test_a_hole_that_nothing_fills_is_cut_there_on_request_and_what_came_after_it_is_put_aside(
    grown: CommandLine, cluster: Cluster, tmp_path: Path, dig: Hole
) -> None:
    last, directory = cluster.metadata.epoch, tmp_path / "root" / "log" / "_delta_log"
    dig()
    lost = f"epochs {last - 4} to {last}"
    assert f"{lost} are lost for good, run `epochlake log accept-loss`" in grown.text("log", "heal").err
    before = {path.name: path.read_bytes() for path in directory.iterdir() if path.suffix == ".json"}
    would = grown.done("log", "accept-loss", "--dry-run")
    assert (would["log_epoch"], would["lost"], would["incarnation"]) == (last - 5, [last - 4, last], 2)
    assert [name[:20] for name in would["put_aside"]] == sorted(name[:20] for name in before)[-4:]
    assert {path.name: path.read_bytes() for path in directory.iterdir() if path.suffix == ".json"} == before
    told = grown.text("log", "accept-loss").out
    assert f"{lost} count as lost" in " ".join(told.split())
    aside = sorted(path for path in directory.iterdir() if ".lost-" in path.name)
    assert [path.read_bytes() for path in aside] == [before[name] for name in sorted(before)[-4:]]
    assert grown.done("log", "verify")["holds"]
    opened = Cluster(cluster.configuration)
    assert (opened.metadata.epoch, opened.metadata.identity.incarnation) == (last - 4, 2)
    assert administration.resume_balancing(opened).epoch == last - 3
    with pytest.raises(LogWentBack):
        administration.pause_balancing(cluster)
    assert grown.json("log", "accept-loss").error["type"] == "Rejected"
    assert grown.done("log", "show", str(last - 4))["payload"]["known_epoch"] == last


def test_a_hole_that_can_be_filled_is_no_loss(grown: CommandLine, dig: Hole, tmp_path: Path) -> None:
    sorted((tmp_path / "root" / "log" / "_delta_log").glob("*.json"))[-3].unlink()
    forget()
    refused = grown.json("log", "accept-loss")
    assert (refused.code, "log heal" in refused.error["message"]) == (3, True)
    assert "found whole beside it" in grown.text("log", "heal").out
    assert grown.done("log", "verify")["holds"]


@sliced()
@pytest.mark.parametrize("step", ["_put_aside", "write_entries", "put_whole"])
def test_a_cut_that_was_ended_half_way_never_looks_like_a_shorter_log_and_is_finished_by_the_next(
    grown: CommandLine, cluster: Cluster, dig: Hole, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    last = cluster.metadata.epoch
    dig()
    with monkeypatch.context() as killed:
        killed.setattr(cutting, step, lambda *_: 1 / 0)
        killed.setattr(lost_epochs.Metastore, "close", lambda _: None)
        assert grown.json("log", "accept-loss").code != 0
    for command in (["balance", "pause"], ["log", "heal"], ["log", "list"]):
        assert (grown.json(*command).error["type"]) in ("LogTorn", "Unfillable")
    assert "log accept-loss" in grown.json("log", "heal").error["message"]
    done = grown.done("log", "accept-loss")
    assert (done["lost"], done["incarnation"], done["epoch"]) == ([last - 4, last], 2, last - 4)
    assert grown.done("log", "verify")["holds"]


@pytest.fixture
def tear(grown: CommandLine, cluster: Cluster, tmp_path: Path) -> Callable[[int], str]:
    """Eight more epochs; the data file of one of them, as counted from the end, is torn."""
    for on in (False, True) * 4:
        (administration.resume_balancing if on else administration.pause_balancing)(cluster)
    log = tmp_path / "root" / "log"

    def torn(back: int) -> str:
        commit = sorted((log / "_delta_log").glob("*.json"))[-1 - back]
        [add] = [json.loads(line)["add"] for line in commit.read_text().splitlines() if '"add"' in line]
        (log / add["path"]).write_bytes((log / add["path"]).read_bytes()[:-100])
        return str(add["path"])

    return torn


@pytest.mark.parametrize("back", [0, 3])
def test_a_data_file_that_is_damaged_and_was_compacted_before_is_healed(
    grown: CommandLine, cluster: Cluster, tear: Callable[[int], str], back: int
) -> None:
    before = grown.log()
    grown.done("log", "compact")
    for on in (False, True, False)[:back]:
        (administration.resume_balancing if on else administration.pause_balancing)(cluster)
    before += grown.log()[len(before) :]
    path = tear(back)
    for command in (["status"], ["balance", "pause"], ["log", "list"]):
        refused = grown.text(*command)
        assert refused.code == 1
        assert "log heal" in refused.err
    assert path in grown.text("log", "heal", "--dry-run").out
    assert "proved by their hashes" in " ".join(grown.text("log", "heal").out.split())
    assert grown.log() == before
    assert grown.done("log", "verify")["holds"]
    assert grown.json("log", "accept-loss").error["code"] == "nothing-lost"


@sliced()
@pytest.mark.parametrize("back", [0, 3])
def test_a_data_file_that_is_lost_for_good_is_given_up_with_what_came_after_it(
    grown: CommandLine, cluster: Cluster, tear: Callable[[int], str], back: int
) -> None:
    last = cluster.metadata.epoch
    before, path = grown.log(), tear(back)
    lost = f"epochs {last - back} to {last} are" if back else f"epoch {last} is"
    assert f"if {lost} lost for good, run `epochlake log accept-loss`" in grown.text("log", "heal").err
    would = grown.done("log", "accept-loss", "--dry-run")
    assert (would["log_epoch"], would["lost"], would["incarnation"]) == (last - back - 1, [last - back, last], 2)
    assert path in would["put_aside"]
    assert len(would["put_aside"]) == back + 1
    grown.done("log", "accept-loss")
    assert grown.done("log", "verify")["holds"]
    assert grown.log()[: last - back - 1] == before[: last - back - 1]
    opened = Cluster(cluster.configuration)
    assert (opened.metadata.epoch, opened.metadata.identity.incarnation) == (last - back, 2)
    assert administration.take_snapshot(opened).epoch == last - back + 1
    with pytest.raises(HashMismatch):
        administration.pause_balancing(cluster)
    assert grown.json("log", "accept-loss").error["code"] == "nothing-lost"


def test_a_log_that_has_gone_is_no_place_for_another_cluster(
    grown: CommandLine, cluster: Cluster, tmp_path: Path
) -> None:
    administration.take_snapshot(cluster)
    shutil.rmtree(tmp_path / "root" / "log")
    for command in (["log", "verify"], ["log", "list"], ["log", "show", "1"], ["log", "diff", "1"], ["status"]):
        refused = grown.text(*command)
        assert refused.code == 1, command
        assert "do not begin another cluster here" in refused.error_text
        assert "epochlake init" not in refused.err


def test_zookeeper_that_is_away_keeps_nobody_from_accepting(went_back: CommandLine) -> None:
    done = went_back.done("log", "accept-loss")
    assert any("ZooKeeper is away" in one for one in done["unasked"])


@pytest.mark.parametrize("stage", [Stage.WRITE_BOTH_READ_OLD, Stage.STREAMING, Stage.USE_NEW])
def test_a_move_goes_on_in_a_new_incarnation_whatever_the_replicas_were_fenced_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: Stage
) -> None:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(tablet_track, "AVOIDED_SECONDS", 0.0)
    cluster = placed(tmp_path, FOUR, "ABC", configuration=QUICK)
    acknowledged = [cluster.write(cluster.pipeline())]
    cluster.start("A", "X")
    cluster.until(stage)
    late = cluster.pipeline()
    for node in "ABCX":
        raise_fence(cluster.address(node), 1_000)
    cluster.cluster.commit(AcceptLoss(2, 1_000, "", "a test"))
    acknowledged += [cluster.write(late), cluster.write(cluster.pipeline())]
    cluster.settle()
    acknowledged.append(cluster.write(cluster.pipeline()))
    assert_at_rest(cluster, acknowledged)
    assert {open_snapshot(cluster.address(node)).fence.incarnation for node in "BCX"} == {2}


def test_coordinator_writers_and_readers_that_meet_a_fence_beyond_the_log_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_zookeeper(monkeypatch)
    for module in (planning, coordinator):
        monkeypatch.setattr(module, "CATCH_UP_SECONDS", 0.05)
    cluster = placed(tmp_path, FOUR, "ABC", configuration=QUICK)
    cluster.write(cluster.pipeline())
    cluster.start("A", "X")
    before = cluster.metadata
    raise_fence(cluster.address("B"), before.epoch + 10)
    said = f"epoch {before.epoch + 10} was known to a replica table"
    with pytest.raises(LogWentBack, match=said):
        cluster.round()
    with pytest.raises(LogWentBack, match=said):
        cluster.write(cluster.pipeline())
    with pytest.raises(LogWentBack, match=said):
        cluster.read(cluster.pipeline(), "ALL")
    assert cluster.metadata is before


def test_repair_and_compaction_work_in_a_new_incarnation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_zookeeper(monkeypatch)
    without_leases(monkeypatch)
    cluster = placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"})
    cluster.cluster.commit(AcceptLoss(2))
    for part in range(3):
        with cluster.without("ABC"[part]):
            write_versions(cluster, {row: "note" for row in range(30) if row % 3 == part})
    assert repair(cluster.cluster, "air.flights").complete
    assert compact_here(cluster).complete
    assert sorted(read_versions(cluster, "ALL")) == [(row, "note") for row in range(30)]
