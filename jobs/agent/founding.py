"""Founding a cluster at a root: `python -m epochlake.jobs.agent.founding`, a process of its own as following is.

The request id comes from the agent that founds, so that it may be killed at any point and founds again: the log has one
beginning. Where somebody else has begun one at this root in the meantime, that is the cluster.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec
from epochlake.jobs.agent.messages import Tag
from epochlake.jobs.cluster import init_cluster, open_cluster
from epochlake.metastore import configuration as configurations
from epochlake.metastore.errors import Rejected
from epochlake.placement.errors import EpochlakeError
from epochlake.placement.rejections import Code


class Founded(msgspec.Struct, frozen=True):
    """What came of it: the tag of the cluster that is at the root now, or why there is none."""

    tag: Tag | None = None
    reason: str = ""


def found(conf: str | None, root: str | None, agent_id: str) -> Founded:
    """Begin a cluster at the root unless there is one."""
    settings = configurations.load(Path(conf) if conf else None, root=root)
    try:
        init_cluster(settings, reason="founded by the agent with the lowest id", request_id=f"found-{agent_id}")
    except Rejected as rejected:
        if rejected.code != Code.ALREADY_INITIALISED:
            raise
    with open_cluster(settings) as cluster:
        identity = cluster.metadata.identity
        return Founded(Tag(identity.name, identity.cluster_id))


def main(arguments: list[str] | None = None) -> int:
    """Found, and print a `Founded` as JSON."""
    parser = argparse.ArgumentParser(prog="founding")
    parser.add_argument("--agent-id", required=True)
    for option in ("--conf", "--root"):
        parser.add_argument(option)
    given = parser.parse_args(arguments)
    try:
        founded = found(given.conf, given.root, given.agent_id)
    except EpochlakeError as error:
        founded = Founded(None, str(error))
    print(msgspec.json.encode(founded).decode(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
