"""What pipelines, and reads and writes without Spark, rest on."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

CHECKS = ("tests/unit/jobs/test_checks.py",)
GENERATED = ("tests/unit/jobs/test_generated_columns.py",)
TTL = "tests/unit/jobs/test_time_to_live.py"
STRUCTS = ("tests/unit/jobs/test_altered_structs.py",)

MUTANTS = (
    Mutant(
        "values of a dropped column are lost in silence",
        "jobs/gate/commit_phase.py",
        "[one for one in now.dropped if one.column_id in written]\n",
        "[]\n",
        ("tests/unit/jobs/test_altering_races.py",),
    ),
    Mutant(
        "values of a dropped field are lost in silence",
        "jobs/gate/commit_phase.py",
        "                lost.append(field)\n",
        "                pass\n",
        STRUCTS,
    ),
    Mutant(
        "what an object store has taken and lost since counts",
        "jobs/gate/commit_phase.py",
        "                there = [one for one in brought if one.file.file_id not in absent]\n",
        "                there = brought\n",
        ("tests/unit/jobs/test_commit_phase_properties.py",),
    ),
    Mutant(
        "who meets his own mark is not told what has gone since",
        "jobs/replicas/commits.py",
        "            return AlreadyApplied(snapshot.version, frozenset(file.file_id for file in absent))\n",
        "            return AlreadyApplied(snapshot.version)\n",
        ("tests/unit/jobs/test_lost_answers_of_commits.py",),
    ),
    Mutant(
        "a read goes on with the columns of before",
        "jobs/gate/planning.py",
        "        if now.version != table.version:\n            raise TableAltered",
        "        if False:\n            raise TableAltered",
        ("tests/unit/jobs/test_altering_races.py",),
    ),
    Mutant(
        "what was staged before a check lands",
        "jobs/gate/staged_checks.py",
        "        if table is None or self._known is None:\n",
        "        if True:\n",
        CHECKS,
    ),
    Mutant(
        "a batch of an earlier try is not judged by the checks of now",
        "jobs/gate/writing.py",
        "        known = None if already else Known()\n",
        "        known = known_checks(table)\n",
        CHECKS,
    ),
    Mutant(
        "a merge keeps what a generated column was",
        "jobs/gate/merge_clauses.py",
        "        elif column.generated is not UNSET:\n",
        "        elif False:\n",
        GENERATED,
    ),
    Mutant(
        "a pipeline reads without lineage",
        "jobs/gate/verified_reading.py",
        "        lineage = cluster.ledger.lineage(table.table_id, _files(shown, everything=bool(noted or found)))\n",
        "        lineage = NO_LINEAGE\n",
        ("tests/unit/jobs/test_damaged_reads.py", "tests/spark/test_compaction_spark.py"),
    ),
    Mutant(
        "a gate that has stood does not ask for news",
        "jobs/gate/standing.py",
        "            gate.planning.catch_up(0)\n",
        "",
        ("tests/unit/jobs/test_writes_without_spark.py",),
    ),
    Mutant(
        "a lookup needs the replicas of all ranges",
        "jobs/gate/planning.py",
        "            groups = {group for _, _, group in pieces}\n",
        "            groups = set(range(len(chosen)))\n",
        ("tests/unit/jobs/test_reads_without_spark.py",),
    ),
    Mutant(
        "a merge does not look again before it counts",
        "jobs/gate/merging.py",
        "            if not planned.still_holds():\n",
        "            if False:\n",
        ("tests/unit/jobs/test_merge.py",),
    ),
    Mutant(
        "copies of what counts go before it has landed",
        "jobs/gate/merging.py",
        "            if not counts:\n                journal.forget(tail + 1, attempt)\n",
        "            journal.forget(tail + 1, attempt)\n",
        ("tests/unit/jobs/test_merge.py",),
    ),
    Mutant(
        "a number that an earlier try has wanted stays free for it",
        "jobs/gate/merging.py",
        "                        self._finishing.take_for_nothing(self._table, tail + 1)\n"
        "                        continue\n",
        "                        pass\n",
        ("tests/unit/jobs/test_merge.py",),
    ),
    Mutant(
        "a write stays with the stream that was on when it began to land",
        "jobs/gate/change_recording.py",
        "        if self._put is None or self._put.index.uri != index.uri:\n",
        "        if self._put is None:\n",
        ("tests/unit/jobs/test_change_streams_attacked.py",),
    ),
    Mutant(
        "the number of a finished merge whose entry is gone is taken again",
        "jobs/gate/merge_journal.py",
        "        if not self.is_finished(low + 1):\n            return low\n",
        "        if True:\n            return low\n",
        ("tests/unit/jobs/test_merge.py",),
    ),
    Mutant(
        "a copy is stored again as it lies",
        "jobs/gate/merge_finishing.py",
        "        require_intact(storage, staged.file, kept)\n",
        "",
        ("tests/unit/jobs/test_merge.py",),
    ),
    Mutant(
        "a read as of a time judges by the clock",
        "jobs/gate/arrow_reading.py",
        "    bounds = bounds_of(table, then)\n",
        "    bounds = bounds_of(table, None)\n",
        (f"{TTL}::test_a_read_as_of_a_time_is_judged_by_that_time",),
    ),
)
