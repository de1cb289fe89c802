"""Mutations of the gate. Writing: fences, quorums, clocks, receipts, staging, named batches. Reading: who is asked, and
what is made of it.
"""

from __future__ import annotations

from tests.campaign_mutations.mutation import ROWS, Mutation, also

COMMITS = "jobs/replicas/commits.py"
PHASE = "jobs/gate/commit_phase.py"
WRITING = "jobs/gate/writing.py"
PLANNING = "jobs/gate/planning.py"
READING = "jobs/replicas/reading.py"
SECTIONS = "jobs/replicas/sections.py"
OPENING = "jobs/replicas/opening.py"
BATCHES = "jobs/gate/batches.py"

WRITES = (
    also("a write of before the fence lands", "a replica refuses what was planned below its fence", ROWS),
    also("a restored replica is read", "027: what went back behind its receipts acknowledges nothing", ROWS),
    Mutation(
        "a commit goes past a fence that was raised since it looked",
        "a fence is a change of the table that fails every commit which looked before it",
        COMMITS,
        "            return app_id in applied\n        case _:\n            return True\n",
        "            return app_id in applied\n        case _:\n            return False\n",
        ROWS,
    ),
    Mutation(
        "a commit whose answer was lost has landed",
        "after a failure the table itself says whether it has landed",
        COMMITS,
        "            if all(mark.seen_in(snapshot) for mark in marks):\n"
        "                return Acknowledged(snapshot.version) if before.is_still_there() else "
        "_on_another(before.address)\n",
        "            return Acknowledged(snapshot.version)\n",
        ROWS,
    ),
    Mutation(
        "a commit counts on a table that was exchanged under it",
        "032: a commit counts only if the one that it was decided on lies there still",
        COMMITS,
        "                if not snapshot.is_still_there():\n",
        "                if False:\n",
        ROWS,
    ),
    Mutation(
        "files are committed without a look at them",
        "021: every commit looks for the files that it adds, after it has opened the table",
        COMMITS,
        "require_stored([file for file in decision.adds if file.file_id not in snapshot.all_files], address)\n",
        "pass\n",
        ROWS,
    ),
    Mutation(
        "a write counts in the new replicas only",
        "a write reaches its level in the old and in the new replicas",
        PHASE,
        "            if not is_satisfied(level, placement.write_sets, have, ",
        "            if not is_satisfied(level, placement.write_sets[-1:], have, ",
        ROWS,
    ),
    Mutation(
        "a write counts in the old replicas only",
        "a write reaches its level in the old and in the new replicas",
        PHASE,
        "            if not is_satisfied(level, placement.write_sets, have, ",
        "            if not is_satisfied(level, placement.write_sets[:1], have, ",
        ROWS,
    ),
    Mutation(
        "a write is judged at the epoch of its plan",
        "the last word is a look at the newest metadata after the last commit",
        PHASE,
        "            unsatisfied = self._unsatisfied(newest)\n",
        "            unsatisfied = self._unsatisfied(planned)\n",
        ROWS,
    ),
    Mutation(
        "lost storage acknowledges",
        "026: storage that is declared lost acknowledges nothing, whenever it has",
        PHASE,
        "                volume for volume in placement.writes if volume not in lost and self._has(",
        "                volume for volume in placement.writes if self._has(",
        ROWS,
    ),
    Mutation(
        "acknowledgements of replicas that have given the range up count",
        "what may be gone is asked for again",
        PHASE,
        "            self._forget_what_may_be_gone(newest)\n",
        "",
        ROWS,
    ),
    Mutation(
        "an acknowledgement outlives a transition that was taken back",
        "an acknowledgement stands within one change, or where the replica was named all the time",
        PHASE,
        "    return then.started_epoch == now.started_epoch or volume in then.replicas\n",
        "    return True\n",
        ROWS,
    ),
    Mutation(
        "an acknowledgement outlives the replication that it was given under",
        "acknowledgements do not outlive the replication that they were given under",
        PHASE,
        "        return msgspec.structs.replace(since, placed_epoch=max(since.placed_epoch, keyspace.epoch))\n",
        "        return since\n",
        ROWS,
    ),
    Mutation(
        "what a replica has lost after it landed counts",
        "145: an acknowledgement of some time ago counts where its replica still has the rows",
        PHASE,
        "            is_set_back = self._forget_what_is_gone()\n",
        "            is_set_back = False\n",
        ROWS,
    ),
    Mutation(
        "an acknowledgement leaves no receipt",
        "027: an acknowledgement is counted after its receipt is at the root",
        PHASE,
        "            case Acknowledged():\n                return self._receipted(receipt, known) or brought\n",
        "            case Acknowledged():\n                return brought\n",
        ROWS,
    ),
    Mutation(
        "the time of a write is the clock's",
        "a write is later than every write that was acknowledged before it, whatever clocks say",
        PLANNING,
        "        self._last = max(time.time_ns() // 1000, self._last + 1)\n",
        "        self._last = time.time_ns() // 1000\n",
        ROWS,
    ),
    Mutation(
        "the time of a write is taken from whoever answers",
        "times are taken from enough replicas for the level, or the write is refused",
        WRITING,
        "        if table.append_only or not planning.too_few(table, level, windows, opened):\n",
        "        if True:\n",
        ROWS,
    ),
    Mutation(
        "staged files are not synced",
        "020: data files are on the disk before the commit that names them",
        "jobs/replicas/encoding.py",
        "self._background.submit(self._storage.sync_data, [uri])",
        "self._background.submit(self._storage.sync_data, [])",
        ROWS,
    ),
    Mutation(
        "a batch is decided again by whoever comes last",
        "006: a named batch is decided once",
        BATCHES,
        "    storage.put_if_absent(uri, stamped(generation))\n",
        "    storage.replace_bytes(uri, stamped(generation))\n",
        ROWS,
    ),
    Mutation(
        "parts of a batch are staged again while somebody may have them",
        "006: who could have them has answered, or the write fails and names who",
        WRITING,
        "            self.require_answers(table, level, located)\n",
        "",
        ROWS,
    ),
    Mutation(
        "a batch comes again with other rows",
        "019: a batch that is tried again brings the same rows",
        WRITING,
        "            batches.require_same(table, name, before, given, decision.columns)\n",
        "",
        ROWS,
    ),
    Mutation(
        "what a compaction has replaced is not known of a batch",
        "012: a compaction answers for the batches that it has merged",
        BATCHES,
        "    lineage = ledger.lineage(table.table_id, [*all_live, *(staged.file for staged in files)])\n",
        "    lineage = NO_LINEAGE\n",
        ROWS,
    ),
)

READS = (
    also("only the last time to live says what has expired", "114: what has expired stays so", ROWS),
    Mutation(
        "a read judges by its clock alone, whatever was altered since",
        "114: now is never before the last alteration",
        "metastore/metadata/time_to_live.py",
        "    return max([clock, *(one.since for one in table.lifetimes if one.since <= clock + SKEW_MICROS)])\n",
        "    return clock\n",
        ROWS,
    ),
    also("a pipeline reads without lineage", "012: reads pass over what a merged file stands for", ROWS),
    Mutation(
        "a read asks one replica too few",
        "a level asks for so many replicas",
        "jobs/gate/routing.py",
        "            taken += here[:need]\n",
        "            taken += here[: max(1, need - 1)]\n",
        ROWS,
    ),
    Mutation(
        "of the replicas that are asked one is read",
        "a read is the union of the file sets of the replicas that it asks",
        READING,
        "        for snapshot in snapshots:\n            # A file without",
        "        for snapshot in snapshots[:1]:\n            # A file without",
        ROWS,
    ),
    Mutation(
        "pieces of a file are read beside the whole one",
        "reading: files of one origin are one set of rows, however differently replicas have cut it",
        "jobs/replicas/intervals.py",
        "    return [part for part in missing(files, (), low, high, lineage) if part.file.rows]\n",
        "    return [part for one in files for part in missing([one], (), low, high, lineage) if part.file.rows]\n",
        ROWS,
    ),
    Mutation(
        "a read does not mind a replica that is ahead",
        "a replica that is fenced ahead says that there is news: it is planned again",
        PLANNING,
        "            if ahead > metadata.fence:\n",
        "            if False:\n",
        ROWS,
    ),
    Mutation(
        "a read does not ask the log for news",
        "026: of storage that was declared lost and is back only the log tells",
        PLANNING,
        "        self.catch_up_before(table)\n",
        "",
        ROWS,
    ),
    Mutation(
        "a replica that went back is believed",
        "027: a replica that lacks what it has a receipt for is neither read nor written",
        OPENING,
        "            return volume, went_back(snapshot, acknowledged.get(volume, ())) or snapshot\n",
        "            return volume, snapshot\n",
        ROWS,
    ),
    Mutation(
        "a replica that is being rebuilt is read",
        "028: a table that a rebuild makes anew says that it has not its rows yet",
        OPENING,
        "    not_yet = {volume: unfilled(snapshot) for volume, snapshot in opened.items() if snapshot.unfilled}\n",
        "    not_yet: dict[VolumeId, str] = {}\n",
        ROWS,
    ),
    Mutation(
        "a read does not go round damage",
        "023: a copy that is missing or damaged is left out, and the read planned again",
        "jobs/gate/verified_reading.py",
        "            damaged = _damaged(fresh)\n",
        "            damaged: list[tuple[ExpectedFile, str]] = []\n",
        ROWS,
    ),
    Mutation(
        "files that touch in one token are not merged",
        "reading: only files whose tokens are apart cannot hold the same key",
        SECTIONS,
        "        if found and first <= reach:\n",
        "        if found and first < reach:\n",
        ROWS,
    ),
    Mutation(
        "a tombstone that lies alone is a row",
        "reading: files with tombstones are filtered, also where nothing is merged",
        READING,
        "    return _scans(run for run in runs if not run.copy.file.has_tombstones), _scans(deletes)\n",
        "    return _scans(runs), _scans(deletes[:0])\n",
        ROWS,
    ),
)
