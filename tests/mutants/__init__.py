"""Broken versions of the code that the tests must catch: `make mutants`, or `python -m tests.mutants NAME …`.

Each mutant takes away one thing that a promise rests on. They are in one module for each part of the code. Whoever
changes a line that is named there says how it is broken from now on.
"""

from __future__ import annotations

from tests.mutants import ensemble, gate, generated, log, members, metadata, nodes, operators, past, replicas, upkeep
from tests.mutants.mutant import PACKAGES, REPOSITORY, Mutant, mutated

__all__ = ["MUTANTS", "PACKAGES", "REPOSITORY", "Mutant", "mutated"]

MUTANTS = (
    *ensemble.MUTANTS,
    *log.MUTANTS,
    *members.MUTANTS,
    *metadata.MUTANTS,
    *nodes.MUTANTS,
    *replicas.MUTANTS,
    *gate.MUTANTS,
    *generated.MUTANTS,
    *past.MUTANTS,
    *operators.MUTANTS,
    *upkeep.MUTANTS,
)
