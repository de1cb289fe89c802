"""`coordinator run` with the embedded ZooKeeper: when it ends, and what it says then."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from epochlake.jobs.cli.main import main


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EPOCHLAKE__COORDINATOR__BACKOFF_SECONDS", "0.05")
    for words in (["init"], ["node", "add", "n1", "--datacenter", "dc1", "--rack", "r1", "--volume", "disks/n1"]):
        assert main(words) == 0


def test_a_coordinator_that_cannot_go_on_says_what_it_waits_for_and_is_worth_retrying(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["changes", "pause", "--reason", "upgrade"]) == 0
    capsys.readouterr()
    assert main(["coordinator", "run", "--until-idle"]) == 75
    printed = capsys.readouterr()
    assert "upgrade" in printed.err
    assert "upgrade" in printed.out


def test_a_coordinator_ends_after_the_rounds_that_it_was_given(capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    idle = []
    while not (idle and idle[-1]):
        assert main(["coordinator", "run", "--rounds", "1", "-o", "json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["rounds"] == 1
        idle.append(report["idle"])
    assert len(idle) > 2
    assert main(["coordinator", "run", "--rounds", "0"]) == 2
