"""Mutations of merging: the journal, what is finished before a merge reads, and names."""

from __future__ import annotations

from tests.campaign_mutations.mutation import MERGES, Mutation

MERGING = "jobs/gate/merging.py"
FINISHING = "jobs/gate/merge_finishing.py"
JOURNAL = "jobs/gate/merge_journal.py"

MUTATIONS = (
    Mutation(
        "a merge lands because it believes in its lease",
        "073: of two merges that have read the same rows one finds its number taken, and lands nothing",
        MERGING,
        "            counts = journal.put(tail + 1, entry)\n",
        "            journal.put(tail + 1, entry)\n",
        MERGES,
    ),
    Mutation(
        "a merge reads before the one before it has landed",
        "073: a merge is finished, by whoever comes, before the next one reads",
        FINISHING,
        "                if entry is not None and entry.files:\n",
        "                if entry is not None and not entry.files:\n",
        MERGES,
    ),
    Mutation(
        "a named merge that is tried again counts again",
        "073: what an earlier try has become is found by its intent",
        MERGING,
        "                    if entry is not None and entry.attempt == intents[-1].attempt:\n",
        "                    if entry is not None and entry.attempt == intents[-1].attempt and already:\n",
        MERGES,
    ),
    Mutation(
        "a named merge says nothing of the number that it wants",
        "073: the intent is on the disk before the entry",
        MERGING,
        "            if call.name and not journal.intend(call.name, before, intent):\n",
        "            if False:\n",
        MERGES,
    ),
    Mutation(
        "a merge reads before it looks which one was the last",
        "073: the number that is put is the one after the merge that was finished before the read",
        MERGING,
        "            counts = journal.put(tail + 1, entry)\n",
        "            counts = journal.put(journal.tail() + 1, entry)\n",
        MERGES,
    ),
    Mutation(
        "an entry that is there already counts as put",
        "073: an entry is put once, and by nobody twice",
        JOURNAL,
        "        return there.attempt == entry.attempt\n",
        "        return True\n",
        MERGES,
    ),
    Mutation(
        "copies of a merge go when nobody knows whether it counts",
        "073: where it cannot be told whether an entry counts, the copies of its files stay",
        MERGING,
        "            counts = True  # or may: where it cannot be told, the copies stay\n",
        "",
        MERGES,
    ),
    Mutation(
        "merges at QUORUM are read at ONE",
        "073: what a merge reads meets what the one before it has landed",
        "jobs/gate/merge.py",
        "        plan = gate.planned_read(of.table, level, of.windows)\n        batches = list(",
        "        plan = gate.planned_read(of.table, ConsistencyLevel.ONE, of.windows)\n        batches = list(",
        MERGES,
    ),
)
