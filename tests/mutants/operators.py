"""What commands of operators rest on."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

CHECKS = ("tests/unit/jobs/test_checks.py",)
GENERATED = ("tests/unit/jobs/test_generated_columns.py",)
TTL = "tests/unit/jobs/test_time_to_live.py"
PAST_TESTS = ("tests/unit/jobs/test_past_reads.py",)

MUTANTS = (
    Mutant(
        "a column gets the name in files of one that was dropped",
        "jobs/administration/altering.py",
        'column.name if column.name.lower() not in taken else f"{column.name}#{number}"',
        "column.name",
        ("tests/unit/jobs/test_altered_tables.py",),
    ),
    Mutant(
        "a merge that was planned before a check counts",
        "jobs/administration/altering.py",
        "                let_merges_end(store, table)\n",
        "                pass\n",
        CHECKS,
    ),
    Mutant(
        "a merge that was planned before a generated column counts",
        "jobs/administration/altering.py",
        "        self._adds_rules = checks or any(number not in before for number in generated)\n",
        "        self._adds_rules = checks\n",
        GENERATED,
    ),
    Mutant(
        "validating reads a quorum",
        "jobs/administration/checks.py",
        "        plan = gate.plan_read(table, ConsistencyLevel.ALL)\n",
        "        plan = gate.plan_read(table, ConsistencyLevel.ONE)\n",
        CHECKS,
    ),
    Mutant(
        "a rollback trusts rows of a write that failed",
        "jobs/administration/past_rows.py",
        "                _acknowledge(cluster, gate, target, first, consistency)\n",
        "                pass\n",
        PAST_TESTS,
    ),
    Mutant(
        "vacuum takes a dropped table before the log says that it may",
        "jobs/administration/given_up.py",
        "                shelved[gone.table_id] = times[entry.epoch]\n",
        "                dropped[gone.table_id] = shelved[gone.table_id] = times[entry.epoch]\n",
        ("tests/unit/jobs/test_dropped_tables.py",),
    ),
    Mutant(
        "files that did not change are taken for rows that did not",
        "jobs/administration/past_rows.py",
        "            if not expires and _reads_the_same(*plans):\n",
        "            if _reads_the_same(*plans):\n",
        (f"{TTL}::test_a_difference_shows_what_has_expired_in_between",),
    ),
    Mutant(
        "a time to live that is late is committed as it was planned",
        "jobs/administration/times_to_live.py",
        "        return _clock() - event.ttl.since <= SKEW_MICROS // 4\n",
        "        return True\n",
        (f"{TTL}::test_a_change_that_was_held_up_is_planned_again_and_one_that_comes_too_late_says_so",),
    ),
    Mutant(
        "a time to live begins by whatever clock there is",
        "jobs/administration/times_to_live.py",
        "    if ahead:\n",
        "    if ahead > 2**62:\n",
        (f"{TTL}::test_no_time_to_live_begins_by_a_clock_that_the_root_contradicts",),
    ),
)
