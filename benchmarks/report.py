"""Results as text: a table on the terminal, and the rows between the markers in `benchmarks/README.md`.

A row belongs to its benchmark, so running one benchmark again replaces its rows and leaves the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from epochlake.placement.errors import EpochlakeError
from rich.console import Console
from rich.table import Table

from benchmarks.harness import Result

README = Path(__file__).with_name("README.md")
BEGIN = "<!-- results -->"
END = "<!-- end of results -->"
HEADINGS = ("benchmark", "what", "figure", "floor or peer", "ratio", "target", "holds")


class ReadmeUnmarked(EpochlakeError):
    """The README has no place for results."""


def cells(benchmark: str, result: Result) -> tuple[str, ...]:
    floor = f"{_number(result.floor)} {result.unit}, {result.floor_name}" if result.floor is not None else ""
    holds = {None: "", True: "yes", False: "**no**"}[result.holds]
    ratio = f"{result.ratio:.2f}" if result.ratio is not None else ""
    return (
        benchmark,
        result.name,
        f"{_number(result.value)} {result.unit}",
        floor,
        ratio,
        result.target_text(),
        holds,
    )


def show(results: Mapping[str, Iterable[Result]]) -> None:
    """Print the results as a table."""
    table = Table(*HEADINGS)
    for benchmark, found in results.items():
        for result in found:
            table.add_row(*(cell.replace("**", "") for cell in cells(benchmark, result)))
    # Wide enough for a whole row also where there is no terminal.
    Console(width=None if Console().is_terminal else 200).print(table)


def write(results: Mapping[str, Iterable[Result]], machine: str, order: list[str], readme: Path = README) -> None:
    """Replace the rows of these benchmarks in the README; rows come in the given order of all benchmarks."""
    text = readme.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    old, end, after = rest.partition(END)
    if not begin or not end:
        raise ReadmeUnmarked(f"{readme.name} has no place for results: put {BEGIN} and {END} where they are to go")
    kept = [_split(line) for line in old.splitlines() if line.startswith("| ")]
    rows = [row for row in kept if row[0] not in results and row[0] in order]
    rows += [cells(benchmark, result) for benchmark, found in results.items() for result in found]
    rows.sort(key=lambda row: order.index(row[0]))
    lines = [f"Measured on: {machine}.", "", _line(HEADINGS), "|" + "---|" * len(HEADINGS), *map(_line, rows)]
    readme.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}", encoding="utf-8")


def _line(row: Iterable[str]) -> str:
    return "| " + " | ".join(row) + " |"


def _split(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.strip().strip("|").split("|"))


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
