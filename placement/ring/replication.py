"""Changing a keyspace's replication, a step at a time.

Each step is an operation of its own, and changes the number of replicas by one at most. While it runs the keyspace
has a placement of its own; keyspaces that shared the setting are not touched. The whole ring is locked for the
keyspace.
"""

from __future__ import annotations

import msgspec
import numpy as np
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.rejections import Code
from epochlake.placement.ring import checks
from epochlake.placement.ring.errors import PlanRejected
from epochlake.placement.ring.locks import Ranges
from epochlake.placement.ring.movement import movement
from epochlake.placement.ring.operations import checked
from epochlake.placement.ring.placements import calculated
from epochlake.placement.ring.state import Operation, OperationKind, RingState
from epochlake.placement.ring.steps import with_own_placement
from epochlake.placement.ring.strategies import SIMPLE, SIMPLE_OPTION, Replication
from epochlake.placement.ring.tokens import MIN_TOKEN

_NOBODY = -1
_WHOLE_RING = Ranges(np.array([MIN_TOKEN], dtype=np.int64), np.array([MIN_TOKEN], dtype=np.int64))


def plan_replication_change(
    state: RingState, operation_id: str, keyspace: str, replication: Replication, *, force: bool = False
) -> Operation:
    """One step of a keyspace's way to another replication: the steps of a way are those of `replication_path`.

    Raises `PlanRejected`: `replication-step` when it is more than a step, with the step to ask for;
    `below-replication` when a datacenter has too few nodes for it (not with `force`); and like every operation.
    """
    if keyspace not in state.keyspaces:
        raise PlanRejected(
            Code.UNKNOWN_KEYSPACE, f"keyspace {keyspace} is not known; known: {sorted(state.keyspaces)}."
        )
    previous = state.keyspaces[keyspace]
    if previous.changing:
        busy = next(operation for operation in state.operations.values() if operation.keyspace == keyspace)
        reason = f"the replication of keyspace {keyspace} is changing: {busy}"
        raise PlanRejected(Code.KEYSPACE_BUSY, reason, busy.operation_id, hint="Wait for it or cancel it")
    path = replication_path(previous, replication)
    if len(path) != 1:
        raise PlanRejected(
            Code.REPLICATION_STEP,
            f"keyspace {keyspace} changes its replication a step at a time"
            + ("" if path else ": it has this replication already"),
            hint=f"Ask for {dict(path[0].factors)} first" if path else "",
        )
    if not force:
        _enough_nodes(state, keyspace, replication)
    own = msgspec.structs.replace(previous, changing=keyspace)
    plan = movement(state.placements[previous].reads, calculated(state.ring(), replication))
    outline = Operation(
        operation_id,
        OperationKind.CHANGE_REPLICATION,
        _NOBODY,
        (),
        {own: plan.deltas},
        {previous: _WHOLE_RING},
        keyspace=keyspace,
        previous=previous,
        replication=replication,
    )
    checks.settings_free(state, outline)
    checks.ranges_free(state, outline)
    whole = msgspec.structs.replace(plan, locks=_WHOLE_RING)
    return checked(with_own_placement(state, outline), outline, {own: whole})


def replication_path(current: Replication, target: Replication) -> list[Replication]:
    """The settings from `current`, itself not included, to `target`: replicas are added one by one, then taken away.

    Another strategy is a step of its own, with as many replicas as before. Raises `InvalidRequest` when the target
    keeps no replica at all.
    """
    if target.total == 0:
        raise InvalidRequest(
            "a keyspace with no replicas loses its rows", hint="Keep one somewhere, or drop the keyspace"
        )
    path = []
    now = current
    while now != target:
        now = _one_step(now, target)
        path.append(now)
    return path


def _one_step(now: Replication, target: Replication) -> Replication:
    if now.strategy != target.strategy and now.strategy != SIMPLE:
        return Replication(SIMPLE, ((SIMPLE_OPTION, now.total),))
    if now.strategy != target.strategy and now.total == target.total:
        return target
    if now.strategy != target.strategy:
        return Replication(SIMPLE, ((SIMPLE_OPTION, now.total + (1 if now.total < target.total else -1)),))
    have, want = dict(now.factors), dict(target.factors)
    more = [name for name, factor in sorted(want.items()) if have.get(name, 0) < factor]
    less = [name for name, factor in sorted(have.items()) if factor > want.get(name, 0)]
    for name, change in [*((name, 1) for name in more), *((name, -1) for name in less)][:1]:
        have[name] = have.get(name, 0) + change
    # The last step also takes over how the target writes down that a datacenter has none.
    alike = {name: n for name, n in have.items() if n} == {name: n for name, n in want.items() if n}
    return target if alike else Replication(now.strategy, tuple(sorted(have.items())))


def _enough_nodes(state: RingState, keyspace: str, replication: Replication) -> None:
    owners = [node for node in state.nodes.values() if node.tokens]
    for name, factor in replication.factors:
        fellows = [node for node in owners if replication.strategy == SIMPLE or node.datacenter == name]
        if factor > len(fellows):
            where = "the cluster" if replication.strategy == SIMPLE else f"datacenter {name}"
            reason = f"keyspace {keyspace} is to keep {factor} replicas, but {where} has {len(fellows)} nodes"
            raise PlanRejected(Code.BELOW_REPLICATION, reason, hint="Add nodes first, or force it")
