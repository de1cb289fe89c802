"""How bad a placement is, as one order: what has to leave first, then bytes, then numbers."""

from __future__ import annotations

import numpy as np
from epochlake.placement.balancing.model import BalancingPolicy
from epochlake.placement.balancing.refining import STARVED
from epochlake.placement.balancing.state import Shares, State

Score = tuple[float, float, float]


def score(state: State, share: Shares, policy: BalancingPolicy) -> Score:
    """How bad it is, most important first: replicas to drain, bytes out of tolerance, numbers out of tolerance."""
    active = state.active
    waiting = float((state.free & state.draining[state.node]).sum()) if state.draining.any() else 0.0
    if not active.any():
        return waiting, 0.0, 0.0
    off = np.abs(state.bytes_per_node - share.bytes)[active] - share.bytes[active] * policy.bytes_tolerance / 2
    many = state.count_per_node[active] - share.count[active]
    rate = share.count[active] * policy.counts_tolerance
    crowd = np.maximum(many - np.maximum(rate, 1), -many - np.maximum(STARVED * rate, 1))
    wide = state.capacity[active] / state.capacity[active].mean()
    return waiting, float((np.maximum(off, 0) ** 2 / wide).sum()), float((np.maximum(crowd, 0) ** 2 / wide).sum())


def better(new: Score, old: Score) -> bool:
    """Whether one is better by more than what floating-point numbers make of the same."""
    for now, was in zip(new, old, strict=True):
        if now < was * (1 - 1e-6):
            return True
        if now > was * (1 + 1e-6):
            return False
    return False
