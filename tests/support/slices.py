"""Which of many cases a run of the tests takes: all with EPOCHLAKE_TESTS_THOROUGH (`make prove`), else a slice.

`@sliced("stage", at_least=4)` above a parametrised test: so many of its cases, and each value of `stage` in one of them
at least. Of the other long tests, which `tests/data/long_tests.txt` names, one of three is taken, or a third of its
cases. All are drawn anew in each run, by a number that the run shows; EPOCHLAKE_TESTS_DRAW takes the same ones again.
Who names files (`pytest tests/unit/jobs/test_merge.py`) gets their long tests, who names a function all of its cases.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.long_tests import names

THOROUGH = bool(os.environ.get("EPOCHLAKE_TESTS_THOROUGH"))
DRAW = os.environ.setdefault("EPOCHLAKE_TESTS_DRAW", str(random.SystemRandom().randrange(2**32)))
"""Set for the processes that a run of the tests starts: all of them have to draw the same cases."""

ONE_OF = 3
"""Of so many long tests one is taken."""


def sliced(*each: str, at_least: int = 1) -> pytest.MarkDecorator:
    """A mark for a parametrised test; `each` names parameters of which no value is left out."""
    return pytest.mark.sliced(*each, at_least=at_least)


def some(thorough: int, otherwise: int) -> int:
    """How often something is tried."""
    return thorough if THOROUGH else otherwise


def left_out(items: Sequence[pytest.Item], long: Path | None) -> set[pytest.Item]:
    """The tests that are not in this run's slices; none of them with EPOCHLAKE_TESTS_THOROUGH.

    `long` is the file that names long tests; None: all of those are taken.
    """
    if THOROUGH:
        return set()
    long_ones = names(long) if long is not None else frozenset()
    out: set[pytest.Item] = set()
    for test, cases in _of_tests(items).items():
        if cases[0].get_closest_marker("sliced") is not None:
            out |= {*cases} - _drawn(test, cases)
        elif test in long_ones:
            out |= {*cases} - _a_part(test, cases)
    return out


def _of_tests(items: Sequence[pytest.Item]) -> dict[str, list[pytest.Function]]:
    """The cases of each test function."""
    cases: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return cases


def _drawn(test: str, items: Sequence[pytest.Function]) -> set[pytest.Function]:
    """Cases of one test: those that bring most values that were not there yet, until there are enough."""
    mark = items[0].get_closest_marker("sliced")
    assert mark is not None
    order = random.Random(f"{DRAW} {test}").sample(items, len(items))
    values = {item: {(name, repr(item.callspec.params[name])) for name in mark.args} for item in order}
    missing = set().union(*values.values())
    drawn: list[pytest.Function] = []
    while order and (missing or len(drawn) < mark.kwargs["at_least"]):
        best = max(order, key=lambda item: len(values[item] & missing))
        order.remove(best)
        drawn.append(best)
        missing -= values[best]
    return set(drawn)


def _a_part(test: str, items: Sequence[pytest.Function]) -> set[pytest.Function]:
    """One of ONE_OF cases of a long test; what is over is a case more with that chance."""
    by_chance = random.Random(f"{DRAW} {test}")
    whole, over = divmod(len(items), ONE_OF)
    return set(by_chance.sample(items, whole + (by_chance.randrange(ONE_OF) < over)))
