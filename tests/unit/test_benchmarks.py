"""Benchmarks report what was measured: targets are judged rightly, and the README keeps the rows of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.__main__ import known
from benchmarks.harness import Result, at_least, at_most, interleaved, machine, ratio_at_least, ratio_at_most
from benchmarks.report import BEGIN, END, ReadmeUnmarked, write


@pytest.mark.parametrize(
    ("result", "holds"),
    [
        (Result("a", 4.0, "s", target=at_most(5)), True),
        (Result("a", 6.0, "s", target=at_most(5)), False),
        (Result("a", 600.0, "1/s", target=at_least(500)), True),
        (Result("a", 400.0, "1/s", target=at_least(500)), False),
        (Result("a", 3.0, "s", 2.0, "b", ratio_at_most(1.5)), True),
        (Result("a", 3.1, "s", 2.0, "b", ratio_at_most(1.5)), False),
        (Result("a", 0.7, "s", 1.0, "b", ratio_at_least(0.8)), False),
        (Result("a", 3.0, "s", 2.0, "b", at_most(5)), True),
        (Result("a", 3.0, "s", target=ratio_at_most(5)), False),
        (Result("a", 3.0, "s"), None),
    ],
)
def test_a_target_is_about_the_figure_or_about_the_ratio(result: Result, holds: bool | None) -> None:
    assert result.holds is holds


def test_what_is_compared_runs_in_turns() -> None:
    order: list[str] = []
    taken = interleaved(2, {"a": lambda: order.append("a"), "b": lambda: order.append("b")})
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert {name: len(times) for name, times in taken.items()} == {"a": 2, "b": 2}


def test_running_one_benchmark_again_keeps_the_rows_of_the_others(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    first, second = Result("figure", 1.0, "s"), Result("figure", 2.0, "s", target=at_most(1))
    write({"m.b": [first], "m.a": [first], "m.gone": [first]}, "here", ["m.a", "m.b", "m.gone"], readme)
    write({"m.a": [second]}, "there", ["m.a", "m.b"], readme)
    text = readme.read_text()
    assert [line for line in text.splitlines() if line.startswith("| m.")] == [
        "| m.a | figure | 2 s |  |  | ≤ 1 s | **no** |",
        "| m.b | figure | 1 s |  |  |  |  |",
    ]
    assert text.startswith(f"before\n{BEGIN}\nMeasured on: there.\n")
    assert text.endswith(f"{END}\nafter\n")


def test_a_readme_without_a_place_for_results_is_left_alone(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("only text")
    with pytest.raises(ReadmeUnmarked, match="has no place"):
        write({}, "here", [], readme)
    assert readme.read_text() == "only text"


def test_every_benchmark_is_found_by_its_module_and_name() -> None:
    assert {"commits.latency", "commits.flatness", "commits.throughput", "metadata.catching_up"} <= set(known())


def test_the_machine_is_described_without_saying_whose_it_is() -> None:
    import getpass
    import socket

    said = machine()
    assert "cores" in said
    assert socket.gethostname() not in said
    assert getpass.getuser() not in said.split()
