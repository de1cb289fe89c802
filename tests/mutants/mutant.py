"""What a mutant is."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("placement", "metastore", "jobs")


class Mutant(NamedTuple):
    """`whole` is one place in the file at `path`, `broken` what is there instead; `tests` as pytest takes them."""

    name: str
    path: str
    whole: str
    broken: str
    tests: tuple[str, ...]


def mutated(mutant: Mutant) -> str | None:
    """The broken file; None when what is to be broken is not there exactly once."""
    text = (REPOSITORY / mutant.path).read_text(encoding="utf-8")
    return text.replace(mutant.whole, mutant.broken) if text.count(mutant.whole) == 1 else None
