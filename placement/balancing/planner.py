"""The whole plan of a cluster, from its load: what moves where, in which wave, and what stays and why.

Passes over the state until one finds nothing to do. Each is a function of the state alone and is kept
only if it makes the cluster better, so a plan never makes anything worse, and planning again after it gives an empty
plan.
"""

from __future__ import annotations

import msgspec
import numpy as np
from epochlake.placement.balancing.model import (
    BalancingPolicy,
    Bools,
    Cause,
    ClusterLoad,
    Floats,
    Hold,
    Ints,
    Obstacle,
    Plan,
    Role,
)
from epochlake.placement.balancing.placing import place
from epochlake.placement.balancing.refining import allowed, refine
from epochlake.placement.balancing.rules import parts
from epochlake.placement.balancing.scoring import better, score
from epochlake.placement.balancing.shedding import leaving
from epochlake.placement.balancing.spreading import spread_tables
from epochlake.placement.balancing.state import Shares, State, cut, shares
from epochlake.placement.balancing.volumes import exchange_leavers, settle
from epochlake.placement.balancing.waves import schedule

_MOST_PASSES = 12
_MOST_ROUNDS = 6
_MOST_STEPS = 2_000
_CLOSE = 0.002


def plan_moves(load: ClusterLoad, policy: BalancingPolicy | None = None) -> Plan:
    """The plan for `load` under `policy`. Deterministic; empty when nothing is out of balance.

    Bytes relative to capacity come first, then numbers, then tables and volumes; draining nodes before all. Racks are
    never loosened. Source: seed 000, "Load balancing".
    """
    policy = policy or BalancingPolicy()
    if load.table_nodes is None or load.table_nodes.all():
        return _assemble(load, _decided(load, policy), policy)
    return _assemble(load, _decided_by_rules(load, policy), policy)


class _Target(msgspec.Struct, frozen=True, eq=False):
    """Where replicas are to be (R,) and why; what stays, (replica or -1, node, `Obstacle`); shares (N,)."""

    final: Ints
    cause: Ints
    stays: tuple[Ints, Ints, Ints]
    share_bytes: Floats
    share_count: Floats


def _decided(load: ClusterLoad, policy: BalancingPolicy) -> _Target:
    final = load.replica_volume.astype(np.int64)
    cause = np.zeros(len(final), np.int8)
    share_bytes, share_count = np.zeros(len(load.node_rack)), np.zeros(len(load.node_rack))
    stays: list[tuple[Ints, Ints, Ints]] = []
    for datacenter in np.unique(load.node_datacenter):
        state = cut(load, datacenter)
        share = _even_datacenter(load, state, final, cause, policy)
        share_bytes[state.nodes], share_count[state.nodes] = share.bytes, share.count
        stays.append(_what_stays(load, state, share, policy))
    return _Target(final, cause, _joined(stays), share_bytes, share_count)


def _decided_by_rules(load: ClusterLoad, policy: BalancingPolicy) -> _Target:
    """Part by part. Shares are those of the last one, which knows where all the others are."""
    final = load.replica_volume.astype(np.int64)
    cause = np.zeros(len(final), np.int8)
    stays: list[tuple[Ints, Ints, Ints]] = []
    decision = None
    for part in parts(load, final):
        decision = _decided(part.load, policy)
        moved = np.flatnonzero(decision.final != part.load.replica_volume)
        by_rule = part.forbidden[load.volume_node[part.load.replica_volume[moved]]]
        final[part.rows[moved]] = decision.final[moved]
        cause[part.rows[moved]] = np.where(by_rule, Cause.RULE, decision.cause[moved])
        replica, node, why = decision.stays
        kept = (replica >= 0) & part.own[replica]
        why = np.where(part.forbidden[node] & (why == Obstacle.NO_TARGET), Obstacle.PLACEMENT_RULE, why)
        stays.append((part.rows[replica[kept]], node[kept], why[kept]))
    if decision is None:
        return _decided(msgspec.structs.replace(load, table_nodes=None), policy)
    about_nodes = decision.stays[0] < 0
    stays.append((decision.stays[0][about_nodes], decision.stays[1][about_nodes], decision.stays[2][about_nodes]))
    return _Target(final, cause, _joined(stays), decision.share_bytes, decision.share_count)


def _joined(stays: list[tuple[Ints, Ints, Ints]]) -> tuple[Ints, Ints, Ints]:
    if not stays:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64)
    replica, node, why = (np.concatenate([part[k] for part in stays]).astype(np.int64) for k in range(3))
    return replica, node, why


def _even_datacenter(
    load: ClusterLoad, state: State, final: Ints, cause: np.ndarray, policy: BalancingPolicy
) -> Shares:
    """Bring one datacenter to balance, nodes and then volumes, until neither changes any more.

    `final` and `cause` (R of the whole cluster) are filled: the volume of each replica, and why it moves.
    """
    origin = state.node.copy()
    share = shares(state)
    causes = np.zeros(len(origin), np.int8)
    for _ in range(_MOST_ROUNDS):
        begin = state.node.copy()
        changed = _even_nodes(state, share, causes, policy)
        if not _even_volumes(load, state, origin, begin, final, cause, causes, policy) and not changed:
            break
        if changed and share.crowded:
            share = shares(state)
    return share


def _even_nodes(state: State, share: Shares, causes: np.ndarray, policy: BalancingPolicy) -> bool:
    """Bring `state.node` to balance, note the cause of each replica's last move; whether anything moved."""
    best = score(state, share, policy)
    changed = False
    for _ in range(_MOST_PASSES):
        before = state.node.copy()
        moved = _relieve(state, share, causes, policy)
        steps = refine(state, share, policy, _MOST_STEPS)
        if moved or steps:
            then = score(state, share, policy)
            if better(then, best):
                for row, _target, why in steps:
                    causes[row] = why
                best, changed = then, True
                continue
            back = np.flatnonzero(state.node != before)
            state.move(back, before[back])
        spread = spread_tables(state, share, policy, _MOST_STEPS)
        if not len(spread):
            break
        causes[spread] = Cause.TABLE
        best, changed = score(state, share, policy), True
    return changed


def _relieve(state: State, share: Shares, causes: np.ndarray, policy: BalancingPolicy) -> int:
    """One pass in bulk: what draining and overloaded nodes shed, where it goes. How many replicas moved."""
    bytes_now, count_now, active = state.bytes_per_node, state.count_per_node, state.active
    draining = bool((state.free & state.draining[state.node]).any()) if state.draining.any() else False
    over = _overloaded(bytes_now, share, active, draining, policy)
    crowded = active & (count_now - share.count > np.maximum(1.0, share.count * policy.counts_tolerance))
    spare = np.zeros(state.node_count)
    if over.any() or crowded.any():
        limit = np.maximum(share.count * (1 + policy.counts_tolerance / 2), np.ceil(share.count - 1e-9))
        spare = np.where(active, np.floor(np.maximum(count_now - limit, 0)), 0.0)
    relieve = over | (spare >= 1)
    if not draining and not relieve.any():
        return 0
    rows = leaving(state, share, relieve, spare)
    target = place(state, rows, share)
    rows, target = rows[target >= 0], target[target >= 0]
    source = state.node[rows]
    causes[rows] = np.where(
        state.draining[source],
        Cause.DRAIN,
        np.where(bytes_now[source] > share.bytes[source], Cause.BYTES, Cause.COUNTS),
    )
    state.move(rows, target)
    return len(rows)


def _overloaded(bytes_now: np.ndarray, share: Shares, active: Bools, draining: bool, policy: BalancingPolicy) -> Bools:
    """Nodes that shed bytes, (N,): none inside the tolerance; else those that are over, except by next to nothing."""
    off = np.where(active, bytes_now - share.bytes, 0.0)
    band = share.bytes * policy.bytes_tolerance / 2
    lacking = active & (off < -band) & (not draining)
    if not ((off > band).any() or lacking.any()):
        return np.zeros(len(active), bool)
    over = off > share.bytes * _CLOSE
    if off[over].sum() < 0.9 * -off[lacking].sum():
        over = off > 0  # a few new nodes among very many: each of the others is over by little
    return over & active


def _match_leaving_to_entering(state: State, start: Ints) -> None:
    """Where a tablet has several moves, pair its ends so that they are valid in any order.

    Replicas of a tablet are alike: an end that both leaves and enters stays, and ends in the same rack go together.
    """
    moved = np.flatnonzero(state.node != start)
    if len(moved) < 2:
        return
    # Rows are sorted by tablet, so replicas of the same one are neighbours.
    tablet = state.tablet[moved]
    same = tablet[1:] == tablet[:-1]
    several = np.append(same, False) | np.append(False, same)
    groups: dict[int, list[int]] = {}
    for row in moved[several].tolist():
        groups.setdefault(int(state.tablet[row]), []).append(row)
    dealt = {row: node for rows in groups.values() for row, node in zip(rows, _paired(rows, state, start), strict=True)}
    changed = [(row, node) for row, node in dealt.items() if node != state.node[row]]
    if changed:
        rows, nodes = np.array(changed).T
        state.move(rows, nodes)


def _paired(rows: list[int], state: State, start: Ints) -> list[int]:
    """The nodes that the replicas in `rows`, all of one tablet, go to: the same nodes as now, dealt out anew."""
    entering = state.node[rows].tolist()
    found: dict[int, int] = {}
    for row in rows:
        if int(start[row]) in entering:
            found[row] = int(start[row])
            entering.remove(found[row])
    for row in rows:
        near = [n for n in entering if state.rack[n] == state.rack[start[row]]]
        if row not in found and near:
            found[row] = near[0]
            entering.remove(near[0])
    return [found[row] if row in found else entering.pop(0) for row in rows]


def _even_volumes(
    load: ClusterLoad,
    state: State,
    origin: Ints,
    begin: Ints,
    final: Ints,
    cause: np.ndarray,
    causes: np.ndarray,
    policy: BalancingPolicy,
) -> bool:
    """Choose the volumes of what moved since `begin` (R,) and even out those of each node; whether any changed."""
    order = np.argsort(load.volume_node, kind="stable")
    start = np.searchsorted(load.volume_node[order], state.nodes)
    number = np.searchsorted(load.volume_node[order], state.nodes, side="right") - start
    several = np.flatnonzero(state.active & (number > 1)).tolist()
    for n in several:
        _keep_volumes_even(load, state, begin, n, order[start[n] : start[n] + number[n]], final, causes)
    if (state.node != begin).any():
        _match_leaving_to_entering(state, origin)
    moved = np.flatnonzero(state.node != begin)
    rows, returned = state.rows[moved], state.node[moved] == origin[moved]
    cause[rows] = causes[moved]
    here = order[np.minimum(start[state.node[moved]], len(order) - 1)]
    final[rows] = np.where(returned, load.replica_volume[rows], np.where(number[state.node[moved]] == 1, here, -1))
    changed = False
    for n in several:
        mine = order[start[n] : start[n] + number[n]]
        local = np.full(len(load.volume_node) + 1, -1, np.int64)
        local[mine] = np.arange(len(mine))
        inside = np.flatnonzero(state.node == n)
        now = local[final[state.rows[inside]]]
        settled = settle(state.size[inside], now, load.volume_capacity[mine], state.free[inside], policy)
        final[state.rows[inside]] = mine[settled]
        shifted = (now >= 0) & (settled != now)
        cause[state.rows[inside[shifted & (origin[inside] == n)]]] = Cause.VOLUMES
        changed |= bool(shifted.any())
    return changed


def _keep_volumes_even(
    load: ClusterLoad, state: State, begin: Ints, node: int, volumes: Ints, final: Ints, causes: np.ndarray
) -> None:
    """Let other replicas leave `node` where that keeps its volumes even; nodes that also get some settle with those."""
    was = np.flatnonzero(begin == node)
    gone = state.node[was] != node
    if not gone.any() or (state.node == node).sum() > (~gone).sum():
        return
    local = np.full(len(load.volume_node), -1, np.int64)
    local[volumes] = np.arange(len(volumes))
    usable = state.free[was] | gone

    def may(i: int, j: int) -> bool:
        leaver, stayer = was[i], was[j]
        back = allowed(state, np.array([leaver]), np.array([node]))[0, 0]
        out = allowed(state, np.array([stayer]), state.node[[leaver]])[0, 0]
        if not (usable[i] and usable[j] and back and out):
            return False
        state.move(np.array([stayer, leaver]), np.array([state.node[leaver], node]))
        causes[stayer] = causes[leaver]
        return True

    exchange_leavers(
        gone,
        state.table[state.tablet[was]],
        state.size[was],
        local[final[state.rows[was]]],
        load.volume_capacity[volumes],
        may,
    )


def _what_stays(load: ClusterLoad, state: State, share: Shares, policy: BalancingPolicy) -> tuple[Ints, Ints, Ints]:
    """Rows about what does not move: (replica or -1, node, `Obstacle`)."""
    hold = load.tablet_hold[load.replica_tablet[state.rows]]
    why_held = np.select(
        [hold == Hold.IN_TRANSITION, hold == Hold.PINNED],
        [int(Obstacle.IN_TRANSITION), int(Obstacle.PINNED)],
        int(Obstacle.PENDING_REQUEST),
    )
    stuck = np.flatnonzero(state.draining[state.node])
    off = np.where(state.active, state.bytes_per_node - share.bytes, 0.0)
    one = float(state.size.mean()) if len(state.size) else 0.0
    over = np.flatnonzero(off > np.maximum(share.bytes * policy.bytes_tolerance / 2, one))
    blocked = np.flatnonzero((hold != Hold.FREE) & np.isin(state.node, over)) if len(over) else over
    role = load.node_role[state.nodes]
    obstacle = {
        int(Role.EXCLUDED): Obstacle.NODE_EXCLUDED,
        int(Role.MAINTENANCE): Obstacle.NODE_MAINTENANCE,
        int(Role.NO_STATISTICS): Obstacle.NODE_NO_STATISTICS,
    }
    barred = np.flatnonzero(np.isin(role, list(obstacle)))
    parts = [
        (state.rows[stuck], state.node[stuck], np.where(hold[stuck] != 0, why_held[stuck], Obstacle.NO_TARGET)),
        (state.rows[blocked], state.node[blocked], why_held[blocked]),
        (np.full(len(over), -1), over, np.full(len(over), Obstacle.NOTHING_FITS)),
        (np.full(len(barred), -1), barred, np.array([obstacle[int(r)] for r in role[barred]], np.int64)),
    ]
    replica, node, why = (np.concatenate([part[k] for part in parts]).astype(np.int64) for k in range(3))
    return replica, state.nodes[node], why


def _assemble(load: ClusterLoad, decision: _Target, policy: BalancingPolicy) -> Plan:
    final, cause = decision.final, decision.cause
    moved = np.flatnonzero(final != load.replica_volume)
    # What leaves draining nodes first, also where balancing has chosen another place for it since: whoever drains takes
    # nothing else from the plan. Then by a fixed shuffle, so that waves use many volumes from the start.
    drains = load.node_role[load.volume_node[load.replica_volume[moved]]] == Role.DRAINING
    mixed = (moved.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
    moved = moved[np.lexsort((mixed, ~drains))]
    source = load.replica_volume[moved].astype(np.int64)
    wave = schedule(load, moved, final[moved], policy)
    order = np.argsort(wave, kind="stable")
    moved, source, wave = moved[order], source[order], wave[order]
    stay_replica, stay_node, stay_why = decision.stays
    return Plan(
        replica=moved,
        source=source,
        target=final[moved],
        wave=wave,
        cause=cause[moved],
        stay_replica=stay_replica,
        stay_node=stay_node,
        stay_why=stay_why.astype(np.int8),
        share_bytes=decision.share_bytes,
        share_count=decision.share_count,
    )
