"""Letting a node join: `python -m epochlake.jobs.agent.admission`, a process that commits what a member was asked for.

It reads a `JoinRequest` and prints a `JoinAnswer`. The log decides: its checks are those of `node add`. Killed
anywhere, it may be done again, by any member: the request id is the agent's.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec
from epochlake.jobs.administration import add_node
from epochlake.jobs.agent.join_messages import JoinAnswer, JoinRequest, Outcome, features_missing
from epochlake.jobs.agent.processes import tell_agent
from epochlake.jobs.cluster import Cluster, open_cluster
from epochlake.metastore import configuration as configurations
from epochlake.metastore.errors import Rejected
from epochlake.metastore.following.history import entries
from epochlake.metastore.metadata.events import RegisterNode
from epochlake.metastore.metadata.features import lacks
from epochlake.metastore.metadata.model import NodeState
from epochlake.placement.decoding import decodable
from epochlake.placement.errors import EpochlakeError, InvalidRequest
from epochlake.placement.rejections import Code


def admit(cluster: Cluster, asked: JoinRequest) -> JoinAnswer:
    """Add the node of a request. `pending` where the outcome is not known, or another try may do better."""
    lacking = lacks(cluster.metadata.features.enabled, asked.sender.features)
    if lacking:
        return JoinAnswer(asked.nonce, Outcome.REJECTED, features_missing(asked.sender, lacking))
    volumes = [(volume.name, volume.uri, volume.capacity) for volume in asked.volumes]
    try:
        committed = add_node(
            cluster,
            asked.sender.name,
            asked.datacenter,
            asked.rack,
            volumes,
            request_id=asked.request_id,
            reason=f"asked by its agent at {asked.sender.address}",
        )
        if committed.already:
            _require_not_gone(cluster, asked, committed.epoch)
    except (Rejected, InvalidRequest) as error:
        return JoinAnswer(asked.nonce, Outcome.REJECTED, str(error))
    except EpochlakeError as error:
        return JoinAnswer(asked.nonce, Outcome.PENDING, str(error))
    return JoinAnswer(asked.nonce, Outcome.ACCEPTED, "", committed.epoch)


def _require_not_gone(cluster: Cluster, asked: JoinRequest, epoch: int) -> None:
    """Raise Rejected when the node that was added under this request has left since: its agent comes back from an old
    copy of its home. The log knows the request for ever, also when the node was unregistered.
    """
    event = entries(cluster.log(), epoch, epoch)[0].decode()
    assert isinstance(event, RegisterNode)
    node = cluster.catch_up().directory.nodes.get(event.node_id)
    if node is None or node.state is NodeState.LEFT:
        raise Rejected(
            Code.WRONG_STATE,
            f"node {asked.sender.name!r} was added in epoch {epoch} under this request, and was removed since",
        )


def main(arguments: list[str] | None = None) -> int:
    """Admit what stdin says."""
    parser = argparse.ArgumentParser(prog="admission")
    for option in ("--conf", "--root"):
        parser.add_argument(option)
    given = parser.parse_args(arguments)
    try:
        asked = msgspec.json.decode(sys.stdin.buffer.read(), type=decodable(JoinRequest))
    except msgspec.DecodeError:
        return 1  # the agent was killed while it asked
    try:
        settings = configurations.load(Path(given.conf) if given.conf else None, root=given.root)
        with open_cluster(settings) as cluster:
            answer = admit(cluster, asked)
    except EpochlakeError as error:
        answer = JoinAnswer(asked.nonce, Outcome.PENDING, str(error))
    tell_agent(msgspec.json.encode(answer).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
