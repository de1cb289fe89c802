"""What of a plan begins now, so that who plans again before it is carried out never goes to and fro.

A plan makes the cluster better when all of it is carried out. A coordinator begins a wave, and plans again. Where a
wave by itself makes the cluster worse, the next plan begins at another place, and its first wave may lead
back: tablets would move for ever. So what begins makes the cluster better by itself, or nothing begins.
"""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
from epochlake.placement.balancing.model import BalancingPolicy, ClusterLoad, Ints, Plan
from epochlake.placement.balancing.rules import parts
from epochlake.placement.balancing.scoring import Score, better, score
from epochlake.placement.balancing.state import Shares, State, cut, shares
from epochlake.placement.balancing.waves import schedule

_FEW = 32
"""So many moves of a plan are looked at one by one, and two by two, where its first wave is none to begin with."""


def begun_first(load: ClusterLoad, plan: Plan, policy: BalancingPolicy) -> Ints:
    """The moves (rows of the plan) that begin now: its first wave where that makes no datacenter worse; else the one
    move, or the exchange of two, that makes it best; else none. Under placement rules each part of the cluster is
    looked at by itself, as it is planned.
    """
    every = np.arange(len(load.replica_volume))
    whole, worse = np.zeros(len(plan), np.bool_), []
    if load.table_nodes is None or load.table_nodes.all():
        found = [(load, every, np.ones(len(every), np.bool_))]
    else:
        found = [(part.load, part.rows, part.own) for part in parts(load, load.replica_volume)]
    for part, rows, own in found:
        here = np.full(len(every), -1, np.int64)
        here[rows[own]] = np.flatnonzero(own)
        of_part = here[plan.replica] >= 0
        datacenter = load.node_datacenter[load.volume_node[plan.source]]
        for name in np.unique(datacenter[of_part]):
            one = _Datacenter(part, here, plan, load, policy, name)
            moves = np.flatnonzero(of_part & (datacenter == name))
            wave = moves[plan.wave[moves] == 1]
            if one.is_worse_after(wave):
                worse.append((one, moves[:_FEW]))
            else:
                whole[wave] = True
    for one, moves in worse:
        whole[one.best_of(moves, np.flatnonzero(whole))] = True
    return np.flatnonzero(whole)


class _Datacenter:
    """One datacenter of a part: `here` says which of its replicas each one of the `whole` cluster is."""

    def __init__(
        self, load: ClusterLoad, here: Ints, plan: Plan, whole: ClusterLoad, policy: BalancingPolicy, name: object
    ) -> None:
        self._load = load
        self._here = here
        self._whole = whole
        self._plan = plan
        self._policy = policy
        self._state: State = cut(load, name)
        self._share: Shares = shares(self._state)
        self._row = np.full(len(load.replica_volume), -1, np.int64)
        self._row[self._state.rows] = np.arange(len(self._state.rows))
        self._node = np.full(len(load.node_rack), -1, np.int64)
        self._node[self._state.nodes] = np.arange(len(self._state.nodes))
        self._now: Score = score(self._state, self._share, policy)

    def is_worse_after(self, moves: Ints) -> bool:
        """Whether these moves by themselves make it worse."""
        return better(self._now, self._after(moves))

    def best_of(self, moves: Ints, beside: Ints) -> Ints:
        """The one of the moves, or the two, that make it best by themselves; none where none makes it better. They have
        room `beside` other moves.
        """
        best, found = self._now, moves[:0]
        single = ([move] for move in moves.tolist())
        two = (list(pair) for pair in combinations(moves.tolist(), 2))
        for few in map(np.array, chain(single, two)):
            then = self._after(few)
            if better(then, best) and self._have_room(np.append(beside, few)):
                best, found = then, few
        return found

    def _have_room(self, moves: Ints) -> bool:
        plan = self._plan
        waves = schedule(self._whole, plan.replica[moves], plan.target[moves], self._policy)
        return bool((waves == 1).all())

    def _after(self, moves: Ints) -> Score:
        """The score when only these moves are carried out."""
        rows = self._row[self._here[self._plan.replica[moves]]]
        before = self._state.node[rows].copy()
        self._state.move(rows, self._node[self._load.volume_node[self._plan.target[moves]]])
        found = score(self._state, self._share, self._policy)
        self._state.move(rows, before)
        return found
