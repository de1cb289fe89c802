"""What a mutation is; those that unit tests catch too are taken from their list."""

from __future__ import annotations

from typing import NamedTuple

from tests.mutants import MUTANTS, Mutant

LOG = ("log",)
LOG_TABLES = ("log tables",)
ROWS = ("rows",)
ROWS_TABLES = ("rows tables",)
BOTH = ("log", "rows")
TABLES = (*LOG_TABLES, *ROWS_TABLES)


class Mutation(NamedTuple):
    """`whole` is one place in the file at `path`, `broken` what is there instead. `why`: the decision, rule or mend
    that it takes away. `kinds`: the kinds of histories that should notice it; with "tables", those over Delta tables.
    """

    name: str
    why: str
    path: str
    whole: str
    broken: str
    kinds: tuple[str, ...]

    @property
    def mutant(self) -> Mutant:
        """As `tests.mutants` takes it, without tests."""
        return Mutant(self.name, self.path, self.whole, self.broken, ())


def also(name: str, why: str, kinds: tuple[str, ...]) -> Mutation:
    """A mutant of `tests.mutants`, which histories should notice as well."""
    [found] = (mutant for mutant in MUTANTS if mutant.name == name)
    return Mutation(name, why, found.path, found.whole, found.broken, kinds)
