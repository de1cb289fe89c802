"""Mutations of upkeep: repair and compaction of replicas, healing, vacuum, leases, space that comes back."""

from __future__ import annotations

from tests.campaign_mutations.mutation import ROWS, ROWS_TABLES, Mutation, also

REPAIR = "jobs/upkeep/repair.py"
COMPACTION = "jobs/upkeep/compaction.py"
VACUUM = "jobs/upkeep/vacuum.py"
NEIGHBOURS = "jobs/upkeep/neighbours.py"
SWEEP = "jobs/administration/unused_files.py"

MUTATIONS = (
    also("rows are dropped as soon as they have expired", "114: no clock of a reader is further behind", ROWS_TABLES),
    Mutation(
        "a repair is not refused by a fence",
        "012: what a repair brings is committed at the epoch of its plan",
        REPAIR,
        "                epoch=view.metadata.fence,\n",
        "                epoch=view.metadata.fence + 1_000_000,\n",
        ROWS,
    ),
    Mutation(
        "a repair brings what it has copied, and calls that complete",
        "a repair says what is still missing",
        REPAIR,
        "            if copied.failed:\n",
        "            if False:\n",
        ROWS,
    ),
    Mutation(
        "a replica that went back counts whoever answers",
        "027: it is whole again when the others meet every quorum and it has all that they have",
        REPAIR,
        "    refused |= dict.fromkeys(lost - given_up, NO_QUORUM)\n",
        "    refused |= {}\n",
        ROWS,
    ),
    Mutation(
        "a file is copied without a look at its bytes",
        "022: whoever copies a file reads every byte first",
        "jobs/replicas/copying.py",
        "    require_intact(copy.source.storage, copy.file, source)\n",
        "",
        ROWS,
    ),
    Mutation(
        "a damaged copy is taken out whose rows are nowhere else",
        "023: a copy is taken out when it is known that nothing goes with it",
        "jobs/upkeep/healing.py",
        "        if not rows_are_in(good.values(), file, range_.low, range_.high, among.lineage, among.replaced):\n",
        "        if False:\n",
        ROWS,
    ),
    Mutation(
        "damaged copies are merged",
        "023: a compaction verifies every byte of what it merges, or it spreads damage",
        COMPACTION,
        "        asked = self._sound(wave)\n",
        "        asked = list(wave)\n",
        ROWS,
    ),
    Mutation(
        "deletes are forgotten while not all of their range takes part",
        "012: a tombstone goes only when all files of its range take part",
        "jobs/upkeep/compacting.py",
        "                    purge_before=purge_before if one.whole else MIN_TOKEN,\n",
        "                    purge_before=purge_before,\n",
        ROWS,
    ),
    Mutation(
        "deletes are forgotten under a pipeline that lives",
        "012: a tombstone stays while a pipeline lives that is older",
        COMPACTION,
        "    return max(MIN_TOKEN, min(now - int(grace_seconds * 1_000_000), oldest)), None\n",
        "    return max(MIN_TOKEN, now - int(grace_seconds * 1_000_000)), None\n",
        ROWS,
    ),
    Mutation(
        "what is merged by two compactions counts for both",
        "012: of two compactions that overlap the ledger refuses one",
        "jobs/replicas/ledger.py",
        "            meet((one.low, one.high), other) for merge in group for one in merge.replaced ",
        "            False for merge in group for one in merge.replaced ",
        ROWS,
    ),
    Mutation(
        "a merged file is voided while somebody may commit it",
        "012: a merged file is taken back when every replica is fenced",
        "jobs/upkeep/settling.py",
        "            if raise_fence(address, view.metadata.fence) != view.metadata.fence:\n",
        "            if not open_snapshot(address):\n",
        ROWS,
    ),
    Mutation(
        "neighbouring ranges share a file on the replicas of the first one",
        "158, 163: only ranges on the same volumes share what their small files become",
        NEIGHBOURS,
        "    alike = set(one.range.replicas) == set(following.range.replicas)\n",
        "    alike = True\n",
        ROWS_TABLES,
    ),
    Mutation(
        "what neighbouring ranges share counts as all that they have",
        "012, 158: beside what is shared each range has other files, so no delete is forgotten",
        NEIGHBOURS,
        "    return Chosen(range_, parts, empty, whole=False, reason=first.reason)\n",
        "    return Chosen(range_, parts, empty, whole=True, reason=first.reason)\n",
        ROWS_TABLES,
    ),
    also(
        "a merged file that was merged on is voided",
        "012: an entry that another one replaces is never voided",
        ROWS_TABLES,
    ),
    Mutation(
        "merged files do not replace anything on a replica",
        "012: each replica gives up what a merged file replaces: space comes back",
        "jobs/replicas/commits.py",
        "            gone |= {file.file_id for file in superseded([*staying, *absent], lineage)}\n",
        "            pass\n",
        ROWS,
    ),
    Mutation(
        "vacuum does not ask who lives",
        "vacuum deletes nothing that a live pipeline may read",
        SWEEP,
        "    keep = max(0, min([now - int(older_than_seconds * 1000), *(lease.needs_from for lease in leases)]))\n",
        "    keep = max(0, now - int(older_than_seconds * 1000))\n",
        ROWS,
    ),
    Mutation(
        "vacuum does not ask when a file was taken out",
        "a file that was taken out a moment ago may be read still, however old it is",
        VACUUM,
        "    old = [entry for entry in unused if max(entry.modified_ms, removed_at.get(entry.name, 0)) < cutoff]\n",
        "    old = [entry for entry in unused if entry.modified_ms < cutoff]\n",
        ROWS,
    ),
    Mutation(
        "vacuum does not fail commits that looked before it",
        "021: of a vacuum and a late commit one gives way",
        VACUUM,
        "    if aside and not _fail_those_who_looked(address, aside):\n",
        "    if False:\n",
        ROWS,
    ),
    Mutation(
        "what a killed vacuum has set aside is not put back",
        "021: what turns out to be live is put back by the next vacuum",
        VACUUM,
        "    _put_back_what_is_live(address)\n    found = ",
        "    found = ",
        ROWS,
    ),
    Mutation(
        "vacuum leaves what dropped tables and drained nodes held",
        "029: space of tables and nodes that are gone comes back",
        SWEEP,
        "    old = [one for one in given_up(cluster, metadata) if one.since_ms <= keep]\n",
        "    old = [one for one in given_up(cluster, metadata) if one.since_ms < 0]\n",
        ROWS,
    ),
    Mutation(
        "who is cut off from ZooKeeper is announced nowhere",
        "031: while ZooKeeper has no lease of a pipeline, a file at the root is its lease",
        "metastore/announcing.py",
        "            if not self._stored or time.monotonic() >= self._renew_at:\n                self._store()\n",
        "            pass\n",
        ROWS,
    ),
)

EXPIRED_OF_SOME = Mutation(
    "expired rows are dropped where not all of their range is merged",
    "114: compaction drops an expired row where it would drop a tombstone, and all files of the range take part",
    "jobs/upkeep/compacting.py",
    "                    expired_before=dict(expired_before) if one.whole else {},\n",
    "                    expired_before=dict(expired_before),\n",
    ROWS_TABLES,
)
"""Alone it changes nothing: where not all of a range is merged no row is old enough to be dropped either."""
