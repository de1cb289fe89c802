"""Slices of tests with many cases: what is drawn, and that nothing is left out for ever."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support import slices
from tests.support.slices import left_out, sliced

STAGES, KINDS = ("one", "two", "three", "four"), ("migration", "rebuild")
Case = tuple[str, str]
ALL = {(stage, kind) for stage in STAGES for kind in KINDS}


@sliced("stage", "kind")
def each_stage_and_kind(stage: str, kind: str) -> None: ...


@sliced(at_least=3)
def any_three(stage: str, kind: str) -> None: ...


@sliced("stage", at_least=6)
def each_stage_and_six(stage: str, kind: str) -> None: ...


def unmarked(stage: str, kind: str) -> None: ...


@pytest.fixture
def taken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., set[Case]]:
    """The cases of a function that a run with this draw takes."""
    module = request.node.getparent(pytest.Module)

    def take(function: Callable[..., None], draw: str = "1", thorough: bool = False) -> set[Case]:
        monkeypatch.setattr(slices, "DRAW", draw)
        monkeypatch.setattr(slices, "THOROUGH", thorough)
        parametrised = pytest.mark.parametrize("stage", STAGES)(pytest.mark.parametrize("kind", KINDS)(function))
        items = list(module._genfunctions(function.__name__, parametrised))
        del function.pytestmark[-2:]  # type: ignore[attr-defined]
        out = left_out(items)
        return {(item.callspec.params["stage"], item.callspec.params["kind"]) for item in items if item not in out}

    return take


def test_each_value_of_a_named_parameter_is_taken_and_no_more_cases_than_that_needs(
    taken: Callable[..., set[Case]],
) -> None:
    for draw in range(20):
        cases = taken(each_stage_and_kind, str(draw))
        assert {stage for stage, _ in cases} == {*STAGES}
        assert {kind for _, kind in cases} == {*KINDS}
        assert len(cases) == len(STAGES)


def test_so_many_cases_are_taken_as_are_asked_for(taken: Callable[..., set[Case]]) -> None:
    assert len(taken(any_three)) == 3
    cases = taken(each_stage_and_six)
    assert (len(cases), {stage for stage, _ in cases}) == (6, {*STAGES})


def test_a_draw_always_takes_the_same_cases_and_many_draws_take_all(taken: Callable[..., set[Case]]) -> None:
    assert taken(any_three, "7") == taken(any_three, "7")
    assert set().union(*(taken(any_three, str(draw)) for draw in range(40))) == ALL
    assert set().union(*(taken(each_stage_and_kind, str(draw)) for draw in range(40))) == ALL


def test_a_thorough_run_and_an_unmarked_test_have_every_case(taken: Callable[..., set[Case]]) -> None:
    assert taken(any_three, thorough=True) == taken(unmarked) == ALL
