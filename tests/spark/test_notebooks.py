"""The tours of notebooks/ are run cell by cell, in one namespace: what they claim is asserted in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

from tests.support.slices import sliced

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
TOURS = sorted(NOTEBOOKS.glob("*.py"))
DATABRICKS = "# Databricks notebook source\n"
"""The first line of a file that Databricks takes for a notebook."""
NOT_THERE_ON_CONNECT = re.compile(r"sparkContext|\brdd\b|\b_jvm\b|\b_jsparkSession\b")


class Cell(NamedTuple):
    line: int
    source: str

    @property
    def is_code(self) -> bool:
        return not self.source.startswith("# %% [markdown]")


def cells(notebook: Path) -> Iterator[Cell]:
    """The cells of a file in percent format: each begins at a `# %%`."""
    line = 1
    for source in re.split(r"^(?=# %%)", notebook.read_text(encoding="utf-8"), flags=re.MULTILINE):
        if source and source != DATABRICKS:
            yield Cell(line, source)
        line += source.count("\n")


@pytest.mark.connect
@sliced()
@pytest.mark.parametrize("notebook", TOURS, ids=lambda path: path.stem)
def test_the_tour_runs_and_its_claims_hold(
    notebook: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    namespace: dict[str, object] = {"__name__": "__main__"}
    for cell in cells(notebook):
        if cell.is_code:
            run(cell, notebook, namespace)
    assert spark.range(3).count() == 3, "the session that was there has to stay"
    assert list(home.iterdir()) == [], "nothing is left in the working directory"
    assert list(temporary.glob("epochlake-tour-*")) == [], "the tour's own directory is removed"


def run(cell: Cell, notebook: Path, namespace: dict[str, object]) -> None:
    """Execute a cell; its failure shows the cell, and tracebacks name the lines of the notebook."""
    code = compile("\n" * (cell.line - 1) + cell.source, str(notebook), "exec")
    try:
        exec(code, namespace)
    except Exception as error:
        error.add_note(f"in the cell at {notebook.name}:{cell.line}:\n\n{cell.source}")
        raise


@pytest.mark.parametrize("notebook", TOURS, ids=lambda path: path.stem)
def test_each_cell_says_why_before_it_does_something(notebook: Path) -> None:
    told = list(cells(notebook))
    assert [after.line for before, after in pairwise(told) if before.is_code and after.is_code] == []
    assert not told[0].is_code


@pytest.mark.parametrize("notebook", TOURS, ids=lambda path: path.stem)
def test_tours_use_what_spark_connect_has_too(notebook: Path) -> None:
    assert NOT_THERE_ON_CONNECT.findall(notebook.read_text(encoding="utf-8")) == []


def test_a_cell_that_fails_is_shown(tmp_path: Path) -> None:
    notebook = tmp_path / "wrong.py"
    notebook.write_text("# %% [markdown]\n# One and one.\n\n# %%\nassert 1 + 1 == 3\n")
    [cell] = [cell for cell in cells(notebook) if cell.is_code]
    with pytest.raises(AssertionError) as failure:
        run(cell, notebook, {})
    assert failure.value.__notes__ == ["in the cell at wrong.py:4:\n\n# %%\nassert 1 + 1 == 3\n"]
