"""What a mutation is; those that unit tests catch too are taken from their list."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tests.mutants import MUTANTS, REPOSITORY

LOG = ("log",)
LOG_TABLES = ("log tables",)
ROWS = ("rows",)
ROWS_TABLES = ("rows tables",)
MERGES = ("merges",)
BOTH = ("log", "rows")
TABLES = (*LOG_TABLES, *ROWS_TABLES)


class Mutation(NamedTuple):
    """`whole` is one place in the file at `path`, `broken` what is there instead. `why`: the decision, rule or mend
    that it takes away. `kinds`: the kinds of histories that should notice it; with "tables", those over Delta tables.
    `beside`: other mutations that are made with it: rules that stand behind each other are broken together.
    """

    name: str
    why: str
    path: str
    whole: str
    broken: str
    kinds: tuple[str, ...]
    beside: tuple[Mutation, ...] = ()

    @property
    def broken_files(self) -> dict[str, str] | None:
        """The files that it breaks, as they are then; None when what is to be broken is not there exactly once."""
        return broken_files([self])


def broken_files(mutations: Iterable[Mutation]) -> dict[str, str] | None:
    """The files that these break together; None when one of them has nothing to break beside those before it."""
    files: dict[str, str] = {}
    for one in (part for mutation in mutations for part in (mutation, *mutation.beside)):
        text = files.get(one.path) or (REPOSITORY / one.path).read_text(encoding="utf-8")
        if text.count(one.whole) != 1:
            return None
        files[one.path] = text.replace(one.whole, one.broken)
    return files


def also(name: str, why: str, kinds: tuple[str, ...]) -> Mutation:
    """A mutant of `tests.mutants`, which histories should notice as well."""
    [found] = (mutant for mutant in MUTANTS if mutant.name == name)
    return Mutation(name, why, found.path, found.whole, found.broken, kinds)
