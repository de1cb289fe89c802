"""What writes rest on that a generated column comes across."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

TESTS = ("tests/unit/jobs/test_generated_races.py",)

MUTANTS = (
    Mutant(
        "what was staged before a generated column lands without it",
        "jobs/gate/staged_generated.py",
        "        if not asked:\n",
        "        if True:\n",
        TESTS,
    ),
    Mutant(
        "a batch of an earlier try lands without what is generated since",
        "jobs/gate/writing.py",
        "            computed=None if already else _but_in(_live_windows(located, opened), located.files),\n",
        "            computed=None,\n",
        TESTS,
    ),
    Mutant(
        "what a replica has already of an append-only table is staged again, and shown twice",
        "jobs/gate/writing.py",
        "    windows = {one.file.window for one in located.files} - _live_windows(located, opened)\n",
        "    windows = {one.file.window for one in located.files}\n",
        TESTS,
    ),
    Mutant(
        "rows are staged again that a replica which does not answer may have",
        "jobs/gate/writing.py",
        "unanswered=dict(failed) if windows else {})\n",
        "unanswered={})\n",
        TESTS,
    ),
    Mutant(
        "rows that landed beside a change which they do not know of stay without what it generates",
        "jobs/gate/commit_phase.py",
        "                and not self._is_overtaken(newest)\n",
        "",
        TESTS,
    ),
    Mutant(
        "a merge that was planned before a generated column counts where nobody let it end",
        "jobs/gate/merging.py",
        "            if staged and not writing.knows_rules_of(self._table):\n",
        "            if False:\n",
        TESTS,
    ),
)
