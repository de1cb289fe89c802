"""The copy of the log in an agent's home: it follows its root, survives tears, and never follows another log."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import epochlake
import msgspec
import pytest
from epochlake.jobs.agent import log_copy
from epochlake.jobs.agent.following import Followed, Outcome, follow_once, verify_copy
from epochlake.jobs.agent.home import TAG, VIEW, Home, HomeDamaged, View
from epochlake.jobs.agent.log_copy import LogCopy
from epochlake.jobs.agent.messages import Tag
from epochlake.metastore.metadata.events import TakeSnapshot
from epochlake.testing import LocalCluster, local_cluster


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path / "lake", nodes=1, replication=1) as made:
        yield made


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home")
    made.identity("n1")
    return made


def follow(home: Home, lake: LocalCluster, name: str = "n1") -> Followed:
    with epochlake.open_cluster(lake.configuration) as cluster:
        return follow_once(home, cluster, name, home.read(TAG, Tag))


def commit(lake: LocalCluster, count: int = 1) -> None:
    for _ in range(count):
        epochlake.pause_balancing(lake.cluster, reason="test")
        epochlake.resume_balancing(lake.cluster)


def copied(home: Home) -> list[int]:
    return [epoch for epoch, _ in LogCopy(home).lines()]


def as_in_the_log(home: Home, lake: LocalCluster) -> bool:
    entries = [msgspec.json.encode(entry) + b"\n" for entry in lake.cluster.log().read(0)]
    return [line for _, line in LogCopy(home).lines()] == entries


def test_an_agent_whose_node_is_in_the_log_takes_its_tag_and_copies_the_log(home: Home, lake: LocalCluster) -> None:
    followed = follow(home, lake)
    assert followed.outcome is Outcome.FOLLOWED
    assert home.read(TAG, Tag) == followed.tag
    assert as_in_the_log(home, lake)
    view = home.read(VIEW, View)
    assert view is not None
    assert (view.epoch, [node.name for node in view.nodes]) == (lake.epoch, ["n1"])
    commit(lake)
    assert follow(home, lake).epoch == lake.epoch
    assert as_in_the_log(home, lake)


def test_a_blank_agent_whose_node_nobody_has_added_stays_blank(home: Home, lake: LocalCluster) -> None:
    assert follow(home, lake, "n7").outcome is Outcome.NOT_A_MEMBER
    assert home.read(TAG, Tag) is None
    assert not home.log.exists()


def test_an_agent_of_one_cluster_copies_nothing_of_another(home: Home, lake: LocalCluster, tmp_path: Path) -> None:
    follow(home, lake)
    before = copied(home)
    with local_cluster(tmp_path / "other", nodes=1, replication=1) as other:
        followed = follow(home, other)
    assert followed.outcome is Outcome.ANOTHER_CLUSTER
    assert "this agent belongs to" in followed.reason
    assert copied(home) == before


def test_a_root_that_was_restored_from_an_older_copy_is_not_followed_and_the_copy_stays(
    home: Home, lake: LocalCluster, tmp_path: Path
) -> None:
    log = Path(lake.configuration.root) / "log"
    shutil.copytree(log, tmp_path / "older")
    commit(lake)
    follow(home, lake)
    before = copied(home)
    shutil.rmtree(log)
    shutil.copytree(tmp_path / "older", log)
    followed = follow(home, lake)
    assert followed.outcome is Outcome.WENT_BACK
    assert copied(home) == before


@pytest.mark.parametrize("cut", [1, 7, 60, 400])
def test_a_torn_last_line_is_cut_off_and_read_again(home: Home, lake: LocalCluster, cut: int) -> None:
    follow(home, lake)
    [segment] = LogCopy(home).segments()
    held = segment.read_bytes()
    segment.write_bytes(held[:-cut])
    assert copied(home) == list(range(1, copied(home)[-1] + 1))
    assert follow(home, lake).outcome is Outcome.FOLLOWED
    assert segment.read_bytes() == held


def test_a_copy_that_is_rotten_in_the_middle_is_put_aside_and_read_again(home: Home, lake: LocalCluster) -> None:
    follow(home, lake)
    [segment] = LogCopy(home).segments()
    held = segment.read_bytes()
    assert b"RegisterNode" in held
    segment.write_bytes(held.replace(b"RegisterNode", b"RegisterNodf", 1))
    damaged = verify_copy(home)
    assert damaged is not None
    assert "goes on from there" in damaged
    assert list(home.log.glob("damaged-*"))
    assert follow(home, lake).outcome is Outcome.FOLLOWED
    assert as_in_the_log(home, lake)
    assert verify_copy(home) is None


def test_a_line_that_is_no_entry_is_named(home: Home, lake: LocalCluster) -> None:
    follow(home, lake)
    [segment] = LogCopy(home).segments()
    segment.write_bytes(segment.read_bytes() + b"rubbish\n")
    with pytest.raises(HomeDamaged, match="no entry"):
        follow(home, lake)
    assert verify_copy(home) is not None
    assert follow(home, lake).outcome is Outcome.FOLLOWED


def test_a_copy_in_many_files_is_one_copy(home: Home, lake: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_copy, "SEGMENT_BYTES", 2_000)
    follow(home, lake)
    commit(lake, 3)
    follow(home, lake)
    copy = LogCopy(home)
    assert len(copy.segments()) > 2
    assert as_in_the_log(home, lake)
    assert verify_copy(home) is None
    assert [epoch for epoch, _ in copy.lines(5)] == list(range(6, lake.epoch + 1))
    served = b""
    while part := copy.read(served.count(b"\n"), 3_000):
        served += part
    assert served == b"".join(line for _, line in copy.lines())


def test_the_newest_snapshot_is_copied_and_older_ones_go(home: Home, lake: LocalCluster) -> None:
    for _ in range(3):
        commit(lake)
        epoch = lake.cluster.commit(TakeSnapshot()).epoch
        follow(home, lake)
        path = home.snapshots / f"{epoch:020}.snapshot"
        assert path.read_bytes() == Path(lake.cluster.snapshots.path(epoch)).read_bytes()
    assert len(list(home.snapshots.iterdir())) == 2


def test_a_follower_killed_while_it_copies_leaves_a_copy_that_the_next_one_goes_on_from(
    home: Home, lake: LocalCluster
) -> None:
    commit(lake, 20)
    given = ["--home", str(home.directory), "--name", "n1", "--once", "--root", lake.configuration.root]
    command = [sys.executable, "-P", "-m", "epochlake.jobs.agent.following", *given]
    slow = "import time; from epochlake.jobs.agent import following; following.BATCH = 1; " + (
        "append = following.LogCopy.append\n"
        "def slowly(self, lines):\n    append(self, lines); time.sleep(0.05)\n"
        f"following.LogCopy.append = slowly\nfollowing.main({given!r})"
    )
    running = subprocess.Popen([sys.executable, "-P", "-c", slow], stdout=subprocess.PIPE)
    deadline = time.monotonic() + 300
    while len(copied(home)) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    running.kill()
    running.communicate()
    assert 5 <= len(copied(home)) < lake.epoch
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert msgspec.json.decode(ended.stdout.splitlines()[0], type=Followed).epoch == lake.epoch
    assert as_in_the_log(home, lake)
    assert verify_copy(home) is None
