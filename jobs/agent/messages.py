"""What agents say to each other, and the rule of who may talk to whom (seed 004, "Cluster Tag")."""

from __future__ import annotations

from enum import StrEnum

import msgspec

PROTOCOL = 1
"""Raised whenever what agents say changes in a way that an older one would misread."""

LARGEST = 1024 * 1024
"""Bytes of a request's body at most."""

MOST_SIGHTINGS = 16
"""So many sightings at most go with one message: what agents send grows with their number, not its square."""


class Tag(msgspec.Struct, frozen=True):
    """A cluster tag: a name for people, and an id that no two clusters share."""

    name: str
    id: str

    def __str__(self) -> str:
        return f"{self.name} ({self.id})"


class Introduction(msgspec.Struct, frozen=True):
    """Who speaks. `tag` is None for a blank agent; `epoch` is how far its copy of the log goes.

    `features`: what its version supports; empty for a version before features. `coordination_server`: the ZooKeeper
    server that it runs, as ZooKeeper writes it; empty where it runs none.
    """

    agent_id: str
    name: str
    address: str
    tag: Tag | None
    protocol: int
    product_version: str
    counter: int = 0
    epoch: int = 0
    features: tuple[str, ...] = ()
    coordination_server: str = ""


class Seen(StrEnum):
    """How an agent is seen by others; the later ones are the worse."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    UNREACHABLE = "unreachable"


class Sighting(msgspec.Struct, frozen=True):
    """What is told of a third agent. Its own `counter` says which of two sightings is the newer one."""

    agent_id: str
    name: str
    address: str
    seen: Seen
    counter: int
    epoch: int = 0


class Call(msgspec.Struct, frozen=True):
    """A message to another agent. The answer repeats the `nonce`: an answer to an earlier message is none to this one.

    `target`: the address that is to be probed for the caller.
    """

    sender: Introduction
    nonce: str
    sightings: tuple[Sighting, ...] = ()
    target: str | None = None


class Answer(msgspec.Struct, frozen=True):
    """`reached` answers a call with a target. `known` are addresses, for a handshake."""

    sender: Introduction
    nonce: str
    sightings: tuple[Sighting, ...] = ()
    reached: bool | None = None
    known: tuple[str, ...] = ()


class Refusal(msgspec.Struct, frozen=True):
    """Why a request was refused: `code` for programs, `reason` for people."""

    code: str
    reason: str


class VolumePlace(msgspec.Struct, frozen=True):
    name: str
    uri: str


class ReaderSeen(msgspec.Struct, frozen=True):
    """A named reader of a change stream: writes that it has not read, and when the oldest of them was acknowledged,
    seconds since 1970; None where it has read all. `gone`: it has to begin again.
    """

    name: str
    behind: int
    unread_since: float | None
    gone: bool


class StreamSeen(msgspec.Struct, frozen=True):
    """The change stream of a table as it was when the log was followed last: what is kept, and for whom."""

    table: str
    writes: int
    bytes: int
    open: int
    oldest_at: float | None
    readers: tuple[ReaderSeen, ...]


class LoggedNode(msgspec.Struct, frozen=True):
    """A node of the logical topology, as the log says it."""

    name: str
    host_id: str
    state: str
    datacenter: str
    rack: str
    volumes: tuple[VolumePlace, ...] = ()


def refusal(mine: Introduction, theirs: Introduction) -> Refusal | None:
    """Why two agents may not talk; None when they may. A blank one may talk to anybody, two clusters never."""
    if theirs.protocol != mine.protocol:
        return Refusal(
            "protocol",
            f"agent {theirs.name!r} speaks protocol {theirs.protocol}, agent {mine.name!r} speaks {mine.protocol}",
        )
    if theirs.agent_id == mine.agent_id and theirs.address != mine.address:
        return Refusal(
            "same-id",
            f"the agents at {theirs.address} and {mine.address} have the same id: one of their homes is a copy",
        )
    if mine.tag is not None and theirs.tag is not None and mine.tag.id != theirs.tag.id:
        return Refusal(
            "cluster-tag",
            f"agent {theirs.name!r} belongs to cluster {theirs.tag}, agent {mine.name!r} to {mine.tag}",
        )
    return None
