"""The first look of README.md, as a reader types it: real commands, the embedded ZooKeeper, a real coordinator."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from epochlake.jobs.cli.main import main

README = Path(__file__).parents[2] / "README.md"


def tour() -> list[list[str]]:
    """The commands between the two marks of the README, without the program's name."""
    text = README.read_text(encoding="utf-8").partition("<!-- tour:")[2].partition("<!-- end of the tour -->")[0]
    commands = [shlex.split(line) for line in text.splitlines() if line.startswith("    epochlake ")]
    return [words[1:] for words in commands]


def test_the_first_look_of_the_readme_works_as_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EPOCHLAKE__COORDINATOR__BACKOFF_SECONDS", "0.05")
    commands = tour()
    assert len(commands) > 8
    for words in commands:
        assert main(words) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert main(["status", "-o", "json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert {node["name"]: node["tablets"] for node in status["nodes"]} == {"n1": 8, "n2": 16, "n3": 16, "n4": 8}
    assert status["coordinator"]["zookeeper"] == "answers"
    assert [(r["kind"], r["node"], r["tablets_left"]) for r in status["requests"]] == [("leave", "n1", 8)]

    assert main(["coordinator", "run", "--until-idle", "-o", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["idle"], report["tablets_moved"], report["requests_finished"]) == (True, 8, 1)
    assert main(["vacuum", "--dry-run"]) == main(["pipeline", "list"]) == main(["log", "verify", "--tablets"]) == 0


def test_a_coordinator_that_cannot_go_on_says_what_it_waits_for_and_is_worth_retrying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EPOCHLAKE__COORDINATOR__BACKOFF_SECONDS", "0.05")
    for words in [*tour()[:2], ["changes", "pause", "--reason", "upgrade"]]:
        assert main(words) == 0
    capsys.readouterr()
    assert main(["coordinator", "run", "--until-idle"]) == 75
    printed = capsys.readouterr()
    assert "upgrade" in printed.err
    assert "upgrade" in printed.out
