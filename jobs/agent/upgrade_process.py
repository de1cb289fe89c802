"""Taking over what was described: `python -m epochlake.jobs.agent.upgrade_process`. It prints an `UpgradeSaid`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec
from epochlake.jobs.administration.take_over import take_over
from epochlake.jobs.agent.processes import tell_agent
from epochlake.jobs.agent.upgrading import UpgradeSaid
from epochlake.jobs.cluster import open_cluster
from epochlake.metastore import configuration as configurations
from epochlake.placement.errors import EpochlakeError


def main(arguments: list[str] | None = None) -> int:
    """Go on with the upgrade to its end, or say why not."""
    parser = argparse.ArgumentParser(prog="upgrade_process")
    for option in ("--conf", "--root"):
        parser.add_argument(option)
    given = parser.parse_args(arguments)
    state, reason = None, ""
    try:
        settings = configurations.load(Path(given.conf) if given.conf else None, root=given.root)
        with open_cluster(settings) as cluster:
            try:
                take_over(cluster)
            except EpochlakeError as error:
                reason = str(error)
            state = cluster.catch_up().upgrade.state.value
    except EpochlakeError as error:
        reason = reason or str(error)
    tell_agent(msgspec.json.encode(UpgradeSaid(state, False, reason)).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
