"""What reads of rows as they were rest on."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

PAST = "jobs/gate/past_reading.py"
PAST_TESTS = ("tests/unit/jobs/test_past_reads.py",)

MUTANTS = (
    Mutant(
        "a read as of a time takes merged files as they are",
        PAST,
        "        return max(self.made_at(file.origin), file.max_written_at)\n",
        "        return self.made_at(file.origin)\n",
        PAST_TESTS,
    ),
    Mutant(
        "a read as of a time forgets when a merged file was made",
        PAST,
        "        return max(self.made_at(file.origin), file.max_written_at)\n",
        "        return file.max_written_at\n",
        PAST_TESTS,
    ),
    Mutant(
        "a read as of a time forgets what a merged file was made of before",
        PAST,
        "                self._made_at[waiting.pop()] = max([merge.at, *(self._made_at[one] for one in below)])\n",
        "                self._made_at[waiting.pop()] = merge.at\n",
        PAST_TESTS,
    ),
    Mutant(
        "a read as of a time looks where merged files have rows only",
        PAST,
        "msgspec.structs.replace(file, rows=0) if key in silent else file for",
        "file for",
        PAST_TESTS,
    ),
    Mutant(
        "a read as of a time does without what is gone",
        PAST,
        "                gone += lacking\n",
        "",
        PAST_TESTS,
    ),
    Mutant(
        "a read as of a time shows what came later",
        PAST,
        "        return self.says_all(file) and file.min_written_at <= self.as_of\n",
        "        return self.says_all(file)\n",
        PAST_TESTS,
    ),
    Mutant(
        "a read as of a time takes nothing back",
        PAST,
        "        return not file.is_merged or self.since(file) <= self.as_of\n",
        "        return True\n",
        PAST_TESTS,
    ),
)
