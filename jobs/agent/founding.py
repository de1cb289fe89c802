"""Founding a cluster at a root: `python -m epochlake.jobs.agent.founding`, a process of its own as following is.

The request id is that of the agent that founds, or of what a user has asked for, so that it may be killed at any point
and done again: the log has one beginning.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec
from epochlake.jobs.agent.initialising import Began
from epochlake.jobs.agent.messages import Tag
from epochlake.jobs.agent.processes import tell_agent
from epochlake.jobs.cluster import init_cluster, open_cluster
from epochlake.metastore import configuration as configurations
from epochlake.metastore.errors import CommitTimeout, ConfigurationError, Rejected
from epochlake.placement.errors import EpochlakeError, InvalidRequest
from epochlake.placement.rejections import Code


def found(conf: str | None, root: str | None, request_id: str, name: str | None, reason: str, *, alone: bool) -> Began:
    """Begin a cluster at the root. `alone`: one that somebody else has begun there is none of ours."""
    try:
        settings = configurations.load(Path(conf) if conf else None, root=root)
        try:
            init_cluster(settings, name, reason=reason, request_id=request_id)
        except Rejected as rejected:
            if alone or rejected.code != Code.ALREADY_INITIALISED:
                raise
        with open_cluster(settings) as cluster:
            identity = cluster.metadata.identity
            return Began(Tag(identity.name, identity.cluster_id))
    except (Rejected, ConfigurationError, InvalidRequest, CommitTimeout) as error:
        return Began(None, str(error))
    except EpochlakeError as error:
        return Began(None, str(error), known=False)


def main(arguments: list[str] | None = None) -> int:
    """Found, and print a `Began` as JSON."""
    parser = argparse.ArgumentParser(prog="founding")
    parser.add_argument("--request-id", required=True)
    for option in ("--conf", "--root", "--name", "--reason"):
        parser.add_argument(option)
    parser.add_argument("--alone", action="store_true")
    given = parser.parse_args(arguments)
    began = found(given.conf, given.root, given.request_id, given.name, given.reason or "", alone=given.alone)
    tell_agent(msgspec.json.encode(began).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
