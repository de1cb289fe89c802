"""The list of mutants is true to the code: each is one place that is there, and names tests that are there."""

from __future__ import annotations

import ast

import pytest

from tests.mutants import MUTANTS, REPOSITORY, Mutant, mutated


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_breaks_one_place_that_is_there(mutant: Mutant) -> None:
    broken = mutated(mutant)
    assert broken is not None, f"{mutant.path} does not have this exactly once:\n{mutant.whole}"
    ast.parse(broken)
    assert [test for test in mutant.tests if not (REPOSITORY / test.partition("::")[0]).exists()] == []


def test_names_of_mutants_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
