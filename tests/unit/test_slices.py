"""Slices of tests with many cases: what is drawn, and that nothing is left out for ever."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import long_tests, slices
from tests.support.slices import ONE_OF, left_out, sliced

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

    def take(
        function: Callable[..., None], draw: str = "1", thorough: bool = False, long: Path | None = None
    ) -> set[Case]:
        monkeypatch.setattr(slices, "DRAW", draw)
        monkeypatch.setattr(slices, "THOROUGH", thorough)
        parametrised = pytest.mark.parametrize("stage", STAGES)(pytest.mark.parametrize("kind", KINDS)(function))
        items = list(module._genfunctions(function.__name__, parametrised))
        del function.pytestmark[-2:]  # type: ignore[attr-defined]
        out = left_out(items, long)
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


@pytest.fixture
def long(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A list by which two of the functions above are long tests."""
    module = request.node.nodeid.partition("::")[0]
    file = tmp_path / "long.txt"
    file.write_text(f"# measured\n{module}::unmarked\n{module}::any_three\n", encoding="utf-8")
    return file


def test_of_a_long_test_a_third_of_the_cases_is_taken_and_many_draws_take_all(
    taken: Callable[..., set[Case]], long: Path
) -> None:
    draws = [taken(unmarked, str(draw), long=long) for draw in range(60)]
    assert {len(cases) for cases in draws} == {len(ALL) // ONE_OF, len(ALL) // ONE_OF + 1}
    assert set().union(*draws) == ALL
    assert taken(unmarked, "7", long=long) == taken(unmarked, "7", long=long)


def test_a_long_test_with_a_mark_has_the_slice_of_its_mark_and_a_thorough_run_everything(
    taken: Callable[..., set[Case]], long: Path
) -> None:
    assert len(taken(any_three, long=long)) == 3
    assert taken(unmarked, thorough=True, long=long) == ALL


def test_each_long_test_that_is_named_is_there_and_may_be_drawn() -> None:
    gone = [test for test in sorted(long_tests.names()) if not long_tests.may_be_drawn(test)]
    assert not gone, f"renamed, gone, or with a slice of their own: change {long_tests.LONG}"


def test_tests_of_the_log_the_protocol_and_placement_and_contracts_are_in_every_run() -> None:
    here = "tests/unit/test_slices.py::test_what_took_long_in_a_run_is_named"
    protocol = "tests/protocol/test_commits.py::test_a_commit"
    contract = "tests/unit/jobs/test_workers/TestThreads.py::test_work_is_done"
    assert not any(map(long_tests.may_be_drawn, [here, protocol, contract]))


def test_what_took_long_in_a_run_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "tests/unit/jobs/test_a.py": (
            "def test_in_parts(): ...\ndef test_short(): ...\n@sliced()\ndef test_sliced(): ..."
        ),
        "tests/spark/test_b.py": "def test_whole(): ...",
        "tests/unit/metastore/test_c.py": "def test_of_the_log(): ...",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(long_tests, "REPOSITORY", tmp_path)
    cases = "".join(
        f'<testcase classname="{where}" name="{name}" time="{seconds}"/>'
        for where, name, seconds in [
            ("tests.unit.jobs.test_a", "test_in_parts[one]", 0.4),
            ("tests.unit.jobs.test_a", "test_in_parts[two]", 0.4),
            ("tests.unit.jobs.test_a", "test_short", 0.6),
            ("tests.unit.jobs.test_a", "test_sliced", 9),
            ("tests.unit.jobs.test_a.TestAContract", "test_of_a_contract", 9),
            ("tests.spark.test_b", "test_whole", 9),
            ("tests.unit.metastore.test_c", "test_of_the_log", 9),
        ]
    )
    run = tmp_path / "run.xml"
    run.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>", encoding="utf-8")
    assert long_tests.measured([run]) == [
        "tests/spark/test_b.py::test_whole",
        "tests/unit/jobs/test_a.py::test_in_parts",
    ]
