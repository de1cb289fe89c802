"""What is said when a node asks to join, and the checks of the member that is asked (seed 000, "Join procedure")."""

from __future__ import annotations

from enum import StrEnum

import msgspec
from epochlake.jobs.agent.messages import Introduction, Refusal, refusal

MOST_VOLUMES = 64


class Outcome(StrEnum):
    """`pending`: wait, and ask again under the same request id. The others are final."""

    PENDING = "pending"
    ACCEPTED = "accepted"
    REJECTED = "rejected"


class WantedVolume(msgspec.Struct, frozen=True):
    """A volume of the new node; `capacity` in bytes, None: that of its file system."""

    name: str
    uri: str
    capacity: int | None = None


class JoinRequest(msgspec.Struct, frozen=True):
    """A blank agent asks for its node. `cluster`: the name of the cluster that it means, None: any.

    `request_id` is that of the commit: however often it is asked, and whoever is asked, the node is added once.
    """

    sender: Introduction
    nonce: str
    request_id: str
    datacenter: str
    rack: str
    volumes: tuple[WantedVolume, ...]
    cluster: str | None = None


class JoinAnswer(msgspec.Struct, frozen=True):
    """`epoch` is the one in which the node asks to join, once it is accepted; `reason` says why it is not."""

    nonce: str
    outcome: Outcome
    reason: str = ""
    epoch: int | None = None


def join_refusal(
    member: Introduction, admits: bool, asked: JoinRequest, open_as: str | None, enabled: tuple[str, ...] = ()
) -> Refusal | None:
    """What a member finds wrong by itself; all else the log decides. None: nothing.

    `open_as`: the request id under which a node of this name is being let in now. `enabled`: the features that the
    cluster uses, as far as the member has followed the log.
    """
    why = refusal(member, asked.sender)
    if why is not None:
        return why
    if member.tag is None:
        return Refusal("not-a-member", f"agent {member.name!r} belongs to no cluster itself")
    if not admits:
        return Refusal("admits-nobody", f"agent {member.name!r} was not started with --admit")
    if asked.sender.tag is not None:
        return Refusal("already-a-member", f"agent {asked.sender.name!r} belongs to cluster {asked.sender.tag} already")
    if asked.cluster not in (None, member.tag.name):
        return Refusal("cluster-name", f"this is cluster {member.tag.name!r}, not {asked.cluster!r}")
    if asked.sender.product_version.partition(".")[0] != member.product_version.partition(".")[0]:
        return Refusal(
            "version",
            f"version {asked.sender.product_version} cannot join agents of version {member.product_version}",
        )
    lacking = sorted(set(enabled) - set(asked.sender.features))
    if lacking:
        return Refusal("features", features_missing(asked.sender, lacking))
    if open_as not in (None, asked.request_id):
        return Refusal("join-open", f"another request to let node {asked.sender.name!r} join has not ended yet")
    return None


def features_missing(who: Introduction, lacking: list[str] | tuple[str, ...]) -> str:
    """Why an agent that lacks enabled features is not let in, in words."""
    return (
        f"version {who.product_version} of agent {who.name!r} does not support {', '.join(lacking)}, which the cluster "
        "uses: install a newer one"
    )
