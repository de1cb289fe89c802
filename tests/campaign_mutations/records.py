"""What came of mutations, kept as JSON and shown as a page."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from tests.campaign_mutations import AREAS, MUTATIONS, Mutation
from tests.mutants import REPOSITORY

CAMPAIGN = ("jobs/campaign.py", "jobs/testing")
"""What makes histories and judges them. When it changes, results are made anew."""


class Result(msgspec.Struct):
    """What came of a mutation. `state`: found, not found, does not run, or not there (its text has changed).

    `seeds`: how many were looked at of each kind of histories, `run`: how many were run (not each seed is one over
    tables), until one failed or in all. `said`: the violation, of a history of `kind`. `mutation` and `campaign`:
    digests of what was run. `steps` and `seconds`: those of the histories that it shared with others (`beside`, at
    most).
    """

    name: str
    state: str
    mutation: str
    campaign: str
    seeds: dict[str, int] = {}
    run: dict[str, int] = {}
    kind: str = ""
    said: str = ""
    beside: int = 0
    steps: int = 0
    seconds: float = 0.0

    @property
    def histories(self) -> int:
        """All that were run, or those of the kind that has found it."""
        return self.run.get(self.kind, 0) if self.kind else sum(self.run.values())


class Records:
    """The results in a JSON file; each is in it as soon as it is known."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._results: dict[str, Result] = {}
        if path.exists():
            found = msgspec.json.decode(path.read_bytes(), type=list[Result])
            self._results = {result.name: result for result in found}

    def of(self, mutation: Mutation) -> Result | None:
        """What is known of a mutation with this text, under the campaign of now."""
        found = self._results.get(mutation.name)
        if found is None or (found.mutation, found.campaign) != (digest_of(mutation), campaign_digest()):
            return None
        return found

    def keep(self, results: Iterable[Result]) -> None:
        """Add these, or put them in the place of older ones."""
        with self._lock:
            self._results.update((result.name, result) for result in results)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._path.with_suffix(".tmp")
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(self.all()), indent=1) + b"\n")
            temporary.replace(self._path)
            self.page.write_text(as_page(self.all()), encoding="utf-8")

    @property
    def page(self) -> Path:
        """The results for people."""
        return self._path.with_suffix(".md")

    def all(self) -> list[Result]:
        """The results of the mutations that there are, in their order."""
        return [self._results[mutation.name] for mutation in MUTATIONS if mutation.name in self._results]


def digest_of(mutation: Mutation) -> str:
    """Of what is run for a mutation; its name and why are words."""
    places = [[one.path, one.whole, one.broken] for one in (mutation, *mutation.beside)]
    text = json.dumps([*places, mutation.kinds])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def campaign_digest() -> str:
    """Of the code that makes histories and judges them."""
    digest = hashlib.sha256()
    for name in CAMPAIGN:
        whole = REPOSITORY / name
        for path in [whole] if whole.is_file() else sorted(whole.rglob("*.py")):
            digest.update(f"{path.relative_to(REPOSITORY)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def as_page(results: Iterable[Result]) -> str:
    """The results as a page of Markdown."""
    by_name: dict[str, Result] = {result.name: result for result in results}
    lines = ["# Mutations that the campaign must find", ""]
    found = [result for result in by_name.values() if result.state == "found"]
    lines.append(f"{len(found)} of {len(MUTATIONS)} were found, {len(by_name) - len(found)} were tried in vain.")
    for area, mutations in AREAS.items():
        lines += ["", f"## {area[0].upper()}{area[1:]}", ""]
        lines += ["| Mutation | Takes away | Found after | Violation |", "|---|---|---|---|"]
        for mutation in mutations:
            result = by_name.get(mutation.name)
            cells = [mutation.name, mutation.why, *(["not tried", ""] if result is None else _cells(result))]
            lines.append("| " + " | ".join(_in_a_cell(cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _cells(result: Result) -> list[Any]:
    if result.state == "found":
        after = f"{result.histories} of {result.kind}"
    elif result.state == "not found":
        after = f"not found in {result.histories}"
    else:
        after = result.state
    return [after, result.said]


def _in_a_cell(cell: Any) -> str:
    return str(cell).replace("|", "\\|").replace("\n", " ")
