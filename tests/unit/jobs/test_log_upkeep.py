"""The log's upkeep from the command line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from deltalake import DeltaTable
from epochlake.jobs import administration
from epochlake.jobs.cluster import Cluster

from tests.support.command_line import CommandLine


def test_a_bit_that_flipped_in_a_checkpoint_of_the_log_is_told_and_the_checkpoint_put_aside(
    grown: CommandLine, cluster: Cluster, tmp_path: Path
) -> None:
    for _ in range(25):
        administration.pause_balancing(cluster)
        administration.resume_balancing(cluster)
    [checkpoint, *_] = (tmp_path / "root" / "log" / "_delta_log").glob("*.checkpoint.parquet")
    data = bytearray(checkpoint.read_bytes())
    data[len(data) // 2] ^= 1
    checkpoint.unlink()
    checkpoint.write_bytes(data)
    found = grown.json("log", "verify")
    # By where the bit is the log cannot be read as well.
    [said] = [one["message"] for one in found.json["findings"] if one["code"] == "checkpoint-damaged"]
    assert (found.code, checkpoint.name in said, "run `epochlake log heal`" in said) == (4, True, True)
    assert "put aside" in grown.done("log", "heal")["mended"][0]
    assert grown.done("log", "verify")["last_epoch"] == cluster.metadata.epoch


def test_no_line_ends_with_blanks_and_no_message_of_a_library_ends_a_sentence_twice(
    grown: CommandLine, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [*_, newest] = sorted((tmp_path / "root" / "log").glob("*.parquet"), key=lambda path: path.stat().st_mtime)
    data = bytearray(newest.read_bytes())
    data[4:24] = bytes(20)
    newest.unlink()
    newest.write_bytes(data)
    for width in ("80", "10000"):
        monkeypatch.setenv("COLUMNS", width)
        for words in (["log", "verify"], ["status", "--at", "3"], ["log", "heal", "--dry-run"]):
            told = grown.text(*words)
            assert not [line for line in (told.out + told.err).splitlines() if line != line.rstrip()], words
            assert not re.search(r"[.:] ?\.(\s|$)", f"{told.out} {told.err}"), told
    assert "restore the file" in grown.json("log", "verify").json["findings"][0]["message"]


def test_a_log_that_is_stored_twice_is_told_healed_on_request_and_works_all_the_time(
    grown: CommandLine, cluster: Cluster, tmp_path: Path
) -> None:
    handles = [DeltaTable(str(tmp_path / "root" / "log")) for _ in range(2)]
    for handle in handles:
        handle.optimize.compact()
    last = cluster.catch_up().epoch
    found = grown.json("log", "verify")
    assert found.code == 4
    assert f"epochs 1 to {last} are stored more than once" in found.json["findings"][0]["message"]
    grown.done("balance", "pause")
    would = grown.done("log", "heal", "--dry-run")
    assert (would["dry_run"], would["copies"], would["epochs"]) == (True, last, [[1, last]])
    assert f"{last} superfluous copies of epochs 1 to {last} taken out" in grown.text("log", "heal").out
    assert grown.done("log", "heal")["copies"] == 0
    assert grown.done("log", "verify")["holds"]
    assert grown.done("log", "compact")["files_removed"] > 0
    assert grown.done("balance", "resume")["epoch"] == last + 2
