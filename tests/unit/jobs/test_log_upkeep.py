"""The log's upkeep from the command line."""

from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable
from epochlake.jobs.cluster import Cluster

from tests.support.command_line import CommandLine


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
