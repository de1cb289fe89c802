"""What the checker of merges says of calls, what they were told, and what is read."""

from __future__ import annotations

from collections import Counter

import pytest
from epochlake.jobs.testing.merge_checkers import MergeAccess, MergeHistory, Told, violations
from epochlake.jobs.testing.merge_drawing import OVER, OVERWRITE
from epochlake.jobs.testing.scenario import Fault, Scenario

NEVER = float("inf")
SCENARIO = Scenario("merges", 1, 1.0, faults=(Fault("pause", 0.0),))


def call(name: str, began: float, ended: float, kind: str = "merge", keys: tuple[int, ...] = (0,)) -> MergeAccess:
    """A merge of a name, or what is called otherwise; `ended` infinity: it was never told that it has succeeded."""
    return MergeAccess(kind, "who", name, keys, began, ended, ended < NEVER, tries=(began,))


def told(name: str, *said: Told) -> MergeAccess:
    """A merge into key 0 that began at each of these."""
    ended = min(one.ended for one in said)
    first = min(one.began for one in said)
    return MergeAccess("merge", "who", name, (0,), first, ended, True, {}, said, tuple(one.began for one in said))


def read(began: float, *names: str) -> MergeAccess:
    """A read of key 0."""
    return MergeAccess("read", "who", "", (0, 1, 2), began, began + 1, True, {0: names} if names else {})


def of(*accesses: MergeAccess) -> list[str]:
    return violations(MergeHistory(SCENARIO, list(accesses), 1, Counter(), Counter(), []))


@pytest.mark.parametrize(
    "accesses",
    [
        (call("m1", 0, 1), call("m2", 2, 3), read(4, "m1", "m2")),
        (call("m1", 0, 1), call("m2", 2, NEVER), read(4, "m1")),
        # An overwrite comes before a merge or after it when both run at once.
        (call("m1", 0, 5), call("o", 1, 4, OVERWRITE), read(6, "o")),
        (call("m1", 0, 5), call("o", 1, 4, OVERWRITE), read(6, "o", "m1")),
        (call("m1", 0, 5), call("o", 1, 4, OVERWRITE, (1,)), read(6)._replace(names={1: ("o",)})),
        (call("m1", 0, 1), call("o", 2, NEVER, OVERWRITE, (1,)), read(6)),
        # Who writes without reading takes the place of what is there, or a merge that runs meanwhile comes over it.
        (call("m1", 0, 1), call("w", 2, 3, OVER), read(4, "w")),
        (call("m1", 0, 5), call("w", 2, 3, OVER), read(6, "m1")),
        (call("m0", 0, 1), call("m1", 2, 5), call("w", 3, 4, OVER), read(6, "m0", "m1")),
        (told("m1", Told(0, 1, False, (1, 0, 0)), Told(2, 3, True, (1, 0, 0))), read(4, "m1")),
        (told("m1", Told(0, 3, True, (1, 0, 0)), Told(1, 2, False, (1, 0, 0))), read(4, "m1")),
    ],
)
def test_what_may_be_is_no_violation(accesses: tuple[MergeAccess, ...]) -> None:
    assert of(*accesses) == []


@pytest.mark.parametrize(
    ("accesses", "said"),
    [
        ((call("m1", 0, 1), read(4)), "without m1"),
        ((call("m1", 0, 1), read(4, "m1", "m1")), "the merge m1 2 times"),
        ((call("m1", 0, 1), call("m2", 2, 3), read(4, "m2", "m1")), "m2 before m1"),
        ((call("m1", 0, 1), call("o", 2, 3, OVERWRITE), read(4, "o", "m1")), "o before m1"),
        ((call("m1", 0, 1), call("o", 2, 3, OVERWRITE, (1,)), read(4, "m1")), "o has left nothing of m1"),
        ((call("o", 0, 1, OVERWRITE), call("m1", 2, 3), read(4, "m1")), "without o"),
        ((call("o", 0, 1, OVERWRITE), call("m1", 2, 3), read(4, "m1", "o")), "o is not the first"),
        ((call("w", 0, 1, OVER), call("m1", 2, 3), read(4, "m1")), "without w"),
        ((call("m1", 0, 1), call("w", 2, 3, OVER), read(4, "m1")), "w has left nothing of m1"),
        ((call("m1", 0, 1), read(2, "m1"), read(4, "m1", "m2")), "m2, which nobody has merged"),
        ((told("m1", Told(0, 1, True, (1, 0, 0))), read(4, "m1")), "nobody else has tried it"),
        (
            (told("m1", Told(0, 1, False, (1, 0, 0)), Told(2, 3, False, (1, 0, 0))), read(4, "m1")),
            "told again that it had not been finished",
        ),
        ((told("m1", Told(0, 1, False, (0, 1, 0))), read(4, "m1")), "told of 0 rows that it has inserted"),
        ((told("m1", Told(0, 1, False, (1, 1, 0))), read(4, "m1")), "has 1 rows, and was told"),
        (
            (told("m1", Told(0, 1, False, (1, 0, 0)), Told(2, 3, True, (0, 1, 0))), read(4, "m1")),
            "calls of m1 were told of it",
        ),
    ],
)
def test_what_may_not_be_is_told(accesses: tuple[MergeAccess, ...], said: str) -> None:
    assert any(said in one for one in of(*accesses)), of(*accesses)
