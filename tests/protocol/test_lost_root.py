"""A root that is lost after commits were acknowledged by a majority: processes, ZooKeeper and disks are real."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.slices import THOROUGH

COMMITTING = """
import itertools, sys
import epochlake
from epochlake.metastore.metadata.events import SwitchBalancing
with epochlake.open_cluster(sys.argv[1]) as cluster:
    for number in itertools.count():
        committed = cluster.commit(lambda metadata: SwitchBalancing(on=not metadata.switches.balancing))
        print(committed.epoch, flush=True)
"""


def _epochlake(conf: Path, *words: str) -> dict[str, object]:
    command = [sys.executable, "-m", "epochlake.jobs.cli.entry", "--conf", str(conf), "--output", "json", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(not THOROUGH, reason="starts seven commands; with EPOCHLAKE_TESTS_THOROUGH")
def test_a_root_that_is_lost_while_a_process_commits_loses_nothing_that_it_was_told(tmp_path: Path) -> None:
    conf, root = tmp_path / "lake.toml", tmp_path / "root"
    conf.write_text(f'root = "{root}"\n[log]\nacknowledge = "majority"\n')
    members = [tmp_path / f"disk-{number}" for number in range(3)]
    for member in members:
        member.mkdir()
    _epochlake(conf, "init")
    named = _epochlake(conf, "metadata", "reconfigure", *map(str, members))
    assert named["generation"] == 1
    committing = subprocess.Popen(
        [sys.executable, "-c", COMMITTING, str(conf)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert committing.stdout is not None
        told = [int(committing.stdout.readline()) for _ in range(12)]
        os.kill(committing.pid, signal.SIGKILL)
        told += [int(line) for line in committing.stdout.read().split()]
    finally:
        committing.kill()
        committing.wait()
    time.sleep(0.1)
    shutil.rmtree(root)
    shutil.rmtree(members[1])
    restored = _epochlake(conf, "metadata", "recover", *map(str, members))
    assert restored["epoch"] in (told[-1], told[-1] + 1)
    assert _epochlake(conf, "log", "verify")["findings"] == []
    shown = _epochlake(conf, "metadata", "describe")
    assert shown["unfinished"] is None
    assert [row["epoch"] for row in shown["members"]].count(restored["epoch"]) == 2  # type: ignore[index, attr-defined]
    assert _epochlake(conf, "balance", "pause")["epoch"] == int(str(restored["epoch"])) + 1
