"""What a replica answers to a commit. A value, never an exception: a write goes on with the replicas that said yes."""

from __future__ import annotations

import msgspec


class Acknowledged(msgspec.Struct, frozen=True):
    """The commit is in the replica table, at this Delta version or before."""

    version: int


class AlreadyApplied(msgspec.Struct, frozen=True):
    """An earlier try has landed, or every file is there already; nothing was committed now.

    `absent`: those of the files given that are not live there: what landed was another staging of the same batch, or
    its files were compacted or dropped since.
    """

    version: int
    absent: frozenset[str] = frozenset()


class FencedOff(msgspec.Struct, frozen=True):
    """The replica has acknowledged a newer epoch than the commit was planned at: catch up to `fence` and plan again."""

    fence: int


class SessionClosed(msgspec.Struct, frozen=True):
    """The session is not open there: the stage that the work belongs to is over (seed 000, Topology guards)."""

    session: str


class PartlyApplied(msgspec.Struct, frozen=True):
    """Of the sessions that share the commit some have left their marks before, and others not: nothing was committed
    now, and each has to be done by itself.
    """

    version: int


class Unreachable(msgspec.Struct, frozen=True):
    """No acknowledgement: the storage failed, or it cannot be told whether the commit has landed.

    `on_another`: it has landed, on another copy than the one that it was decided on, which has come in its place.
    """

    reason: str
    on_another: bool = False


CommitOutcome = Acknowledged | AlreadyApplied | FencedOff | SessionClosed | PartlyApplied | Unreachable
"""What `commit_files` returns."""
