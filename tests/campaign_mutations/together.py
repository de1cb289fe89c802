"""Mutations of two rules of which either stands behind the other: one of them alone is broken without harm."""

from __future__ import annotations

from tests.campaign_mutations import commits, gate, log_members, moves, upkeep
from tests.campaign_mutations.mutation import Mutation

_ALL = (
    *(*commits.MUTATIONS, *log_members.MUTATIONS, *gate.WRITES, *gate.READS, *moves.MUTATIONS, *upkeep.MUTATIONS),
    moves.STREAMING_LANDS_LATE,
    upkeep.EXPIRED_OF_SOME,
)
_KNOWN = {one.name: one for one in _ALL}


def _together(name: str, *others: str) -> Mutation:
    """Those mutations at once, as the first of them is tried."""
    first = _KNOWN[name]
    return first._replace(
        name=" + ".join((name, *others)),
        why="; ".join(_KNOWN[one].why for one in (name, *others)),
        beside=tuple(_KNOWN[one] for one in others),
    )


FENCE = "a write of before the fence lands"
LAST_LOOK = "a write is judged at the epoch of its plan"
GONE = "what a replica has lost after it landed counts"

MUTATIONS = (
    _together(FENCE, LAST_LOOK),
    _together("a commit goes past a fence that was raised since it looked", LAST_LOOK),
    _together("a tablet goes on without a barrier", LAST_LOOK),
    _together("an operation on the ring goes on without a barrier", LAST_LOOK),
    _together("a tablet goes on without a barrier", FENCE),
    _together("an operation on the ring goes on without a barrier", FENCE),
    _together("acknowledgements of replicas that have given the range up count", GONE),
    _together("an acknowledgement outlives a transition that was taken back", GONE),
    _together("an acknowledgement outlives the replication that it was given under", GONE),
    _together("a read does not mind a replica that is ahead", "a read does not ask the log for news"),
    _together("a restored replica is read", "an acknowledgement leaves no receipt"),
    _together("a request that comes again is told as new", "what was found in the log is told as new"),
    _together("streaming lands after its session was closed", FENCE),
    _together(
        "a change of log members takes the number of one that was left unfinished",
        "a promise of one change stands for another one of its number",
    ),
    _together("a replica is prepared again and again", "a late coordinator drops what has come since"),
    _together(upkeep.EXPIRED_OF_SOME.name, "deletes are forgotten while not all of their range takes part"),
)
