"""What histories have met: pairs of what went on at the same time, and where the next ones should look.

A pair is two operations, an operation and a fault that struck meanwhile, or either of them and a stage of a change of
the topology ("tablet streaming", "join MID").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

MOST = 4.0
"""How much more often than others what was met least is drawn, at most."""


def pair(one: str, other: str) -> str:
    """The name of a pair, whichever of the two comes first."""
    return " & ".join(sorted((one, other)))


def weights(met: Mapping[str, int], kinds: Collection[str]) -> dict[str, float]:
    """How often each kind of operation and fault should be drawn: more often what was met less than others."""
    times: Counter[str] = Counter(dict.fromkeys(kinds, 0))
    for name, count in met.items():
        for kind in {*name.split(" & ")} & times.keys():
            times[kind] += count
    typical = sorted(times.values())[len(times) // 2] if times else 0
    return {kind: min(MOST, max(1 / MOST, (typical + 1) / (count + 1))) for kind, count in times.items()}


def unmet(met: Mapping[str, int], kinds: Collection[str], others: Collection[str]) -> list[str]:
    """The pairs of `kinds` and `others` that no history has met."""
    return sorted({pair(one, other) for one in kinds for other in others} - met.keys())
