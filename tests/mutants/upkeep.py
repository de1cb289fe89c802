"""What repair, compaction and vacuum rest on."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

TTL = "tests/unit/jobs/test_time_to_live.py"
PAST_TESTS = ("tests/unit/jobs/test_past_reads.py",)

REPAIR = ("tests/unit/jobs/test_repair.py",)
ROTTEN = ("tests/unit/jobs/test_rotten_checkpoints.py",)

MUTANTS = (
    Mutant(
        "a repair goes by what the others had before a replica went back",
        "jobs/upkeep/repair.py",
        "    if restored:\n        # The others may have been",
        "    if False:\n        # The others may have been",
        ("tests/unit/jobs/test_restored_storage.py",),
    ),
    Mutant(
        "a repair believes what its process has kept of the replicas",
        "jobs/upkeep/repair.py",
        "    forget_all(cluster.storage, metadata, found, volumes)\n",
        "",
        REPAIR,
    ),
    Mutant(
        "a repair believes what its process has read of the ledger",
        "jobs/upkeep/repair.py",
        "        cluster.ledger.merges(found.table_id)  # entries that were read",
        "        pass  # entries that were read",
        REPAIR,
    ),
    Mutant(
        "a state that was forgotten is kept again by who has carried it on",
        "jobs/replicas/states.py",
        "            if self._forgotten.get(uri, 0) != times_forgotten:\n",
        "            if False:\n",
        ("tests/unit/jobs/test_replica_states.py",),
    ),
    Mutant(
        "the log of a replica is cleaned over a checkpoint that has rotted",
        "jobs/upkeep/vacuum.py",
        "        checkpoint_seals.require_sound(address.storage, address.uri)\n",
        "",
        ROTTEN,
    ),
    Mutant(
        "vacuum takes the history that a table keeps",
        "jobs/upkeep/vacuum.py",
        "    return frozenset(one.origin for merge in young for one in merge.replaced)\n",
        "    return frozenset()\n",
        PAST_TESTS,
    ),
    Mutant(
        "a stream of changes begins beside merges",
        "jobs/upkeep/change_streams.py",
        "    _let_merges_pass(cluster, table)\n",
        "",
        ("tests/unit/jobs/test_change_streams_attacked.py",),
    ),
    Mutant(
        "what a later try has staged anew is settled as it was staged first",
        "jobs/upkeep/change_settling.py",
        "    if not decision.generations:\n",
        "    if decision:\n",
        ("tests/unit/jobs/test_change_streams_generated.py",),
    ),
    Mutant(
        "two that make a generation give it two beginnings",
        "jobs/replicas/change_index.py",
        "            found = self.generation_mark(number, after, tail)\n",
        "            found = self.generation_mark(number, max(after, tail - 1), tail)\n",
        ("tests/unit/jobs/test_change_generations.py",),
    ),
    Mutant(
        "readers of a generation do not end where the next one is marked and not published",
        "jobs/gate/change_parts.py",
        "                return index.generation_mark(later.number, later.after, up_to)\n",
        "                return None\n",
        ("tests/unit/jobs/test_change_generations.py",),
    ),
    Mutant(
        "vacuum takes copies that an intent names",
        "jobs/upkeep/change_sweeping.py",
        "    named = {staged.file.file_id for intent in Intents(storage, index).all() for staged in intent.files}\n",
        "    named: set[str] = set()\n",
        ("tests/unit/jobs/test_change_streams_left.py",),
    ),
    Mutant(
        "rows are dropped as soon as they have expired",
        "jobs/upkeep/compaction.py",
        "min(purge_before, time.time_ns() // 1000 - SKEW_MICROS)",
        "min(purge_before, time.time_ns() // 1000)",
        (f"{TTL}::test_compaction_drops_what_had_expired_an_hour_ago_and_is_old_enough_to_forget",),
    ),
    Mutant(
        "what has expired is judged after the metadata were looked at",
        "jobs/upkeep/compaction.py",
        "        expiry = Expiry.of(view.table, droppable_before)\n",
        "        expiry = Expiry.of(view.table, droppable_before)\n"
        "        expiry = Expiry.of(view.table, time.time_ns() // 1000 - SKEW_MICROS)\n",
        (f"{TTL}::test_a_compaction_that_knows_only_the_shorter_ttl_drops_no_row_that_the_longer_one_shows",),
    ),
)
