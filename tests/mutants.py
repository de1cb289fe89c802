"""Broken versions of the code that the tests must catch: `make mutants`, or `python -m tests.mutants NAME …`.

Each mutant takes away one thing that a promise rests on. It is made in a copy of the repository, and the tests that are
named beside it are run there: one of them has to fail. Exit code 1 when all of them pass for some mutant, or when its
text is not found any more. Whoever changes a line that is named here says how it is broken from now on.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.generated_mutants import GENERATED_RACE_MUTANTS
from tests.member_mutants import MEMBER_MUTANTS
from tests.node_mutants import NODE_MUTANTS

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGES = ("placement", "metastore", "jobs")
FOLDERS = ("epochlake", *PACKAGES, "tests", "benchmarks", "docs", "conf", "notebooks")
FILES = ("pyproject.toml", "setup.cfg", "README.md", "Makefile")
LONGEST_SECONDS = 900


class Mutant(NamedTuple):
    """`whole` is one place in the file at `path`, `broken` what is there instead; `tests` as pytest takes them."""

    name: str
    path: str
    whole: str
    broken: str
    tests: tuple[str, ...]


COMMITTER = ("tests/unit/metastore/test_committer_truth.py", "tests/unit/metastore/test_committer_interleavings.py")
PAST = "jobs/gate/past_reading.py"
LOG_MEMBERS = ("tests/unit/metastore/test_member_seats.py",)
CHECKS = ("tests/unit/jobs/test_checks.py",)
GENERATED = ("tests/unit/jobs/test_generated_columns.py",)
GENERATED_RACES = ("tests/unit/jobs/test_generated_races.py",)
TTL = "tests/unit/jobs/test_time_to_live.py"
STRUCTS = ("tests/unit/jobs/test_altered_structs.py",)
PAST_TESTS = ("tests/unit/jobs/test_past_reads.py",)

MUTANTS = (
    *(Mutant(*one, LOG_MEMBERS) for one in MEMBER_MUTANTS),
    *(Mutant(*one, GENERATED_RACES) for one in GENERATED_RACE_MUTANTS),
    *(Mutant(*one) for one in NODE_MUTANTS),
    Mutant(
        "rows of a replica that goes are handed to one of those that stay",
        "metastore/metadata/model.py",
        "        return (self.pending,) if self.comes else tuple(dict.fromkeys((self.pending, *self.new_replicas)))\n",
        "        return (self.pending,)\n",
        ("tests/unit/jobs/test_tablet_replication.py",),
    ),
    Mutant(
        "a replica is given up though one that stays has not got its rows",
        "jobs/coordinator/effects/tablets.py",
        "    return [v for v in transition.receiving if v == transition.pending or not is_gone(metadata, v)]\n",
        "    return [transition.pending]\n",
        ("tests/unit/jobs/test_tablet_replication.py",),
    ),
    Mutant(
        "what a change of replication has left that was cancelled between two steps stays",
        "jobs/coordinator/tracks/request_scheduling.py",
        "        self._clean_up_cancelled(metadata)\n",
        "",
        ("tests/unit/jobs/test_coordinator_ring_failures.py",),
    ),
    Mutant(
        "a merged file that was merged on is voided",
        "jobs/replicas/ledger.py",
        "                if merge.file_id in standing and merge.file_id not in merged_on\n",
        "                if merge.file_id in standing\n",
        ("tests/unit/jobs/test_ledger.py",),
    ),
    Mutant(
        "a datacenter goes while those that stay lack replicas",
        "metastore/planning/tablet_replication.py",
        "            if not lacks or (comes and not replication.get(name)):\n",
        "            if not lacks:\n",
        ("tests/unit/metastore/test_tablet_replication_planning.py", "tests/unit/jobs/test_tablet_datacenters.py"),
    ),
    Mutant(
        "log members take what the root does not have yet",
        "metastore/log/asked_members.py",
        "            while self._begun is None:\n                self._changed.wait()\n",
        "            if self._begun is None:\n                return True\n",
        ("tests/unit/metastore/test_log_members.py",),
    ),
    Mutant(
        "an append that was prepared for other entries is made",
        "metastore/log/delta.py",
        "        if self._prepared is not None and self._prepared.entries != tuple(entries):\n",
        "        if False:\n",
        ("tests/unit/metastore/test_delta_log.py",),
    ),
    Mutant(
        "a file lands where its columns are not declared",
        "jobs/replicas/commits.py",
        "        if isinstance(decision, FileActions) and snapshot.lacks_columns:\n",
        "        if False:\n",
        ("tests/unit/jobs/test_replica_fences.py",),
    ),
    Mutant(
        "a column gets the name in files of one that was dropped",
        "jobs/administration/altering.py",
        'column.name if column.name.lower() not in taken else f"{column.name}#{number}"',
        "column.name",
        ("tests/unit/jobs/test_altered_tables.py",),
    ),
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
        "a field gets the name in files of another one that was dropped",
        "metastore/metadata/events/table_fields.py",
        "    taken = {name.lower() for name in known} | within.dropped(stored)\n",
        "    taken = {name.lower() for name in known}\n",
        ("tests/unit/metastore/test_events.py",),
    ),
    Mutant(
        "fields of files are found by the names of now",
        "jobs/replicas/struct_columns.py",
        "    name = member.stored_as if stored else member.name\n",
        "    name = member.name\n",
        STRUCTS,
    ),
    Mutant(
        "a struct that is null is one of nulls",
        "jobs/replicas/struct_columns.py",
        "    return pa.StructArray.from_arrays(parts, fields=list(type_), mask=values.is_null())\n\n\ndef _place",
        "    return pa.StructArray.from_arrays(parts, fields=list(type_))\n\n\ndef _place",
        STRUCTS,
    ),
    Mutant(
        "a read goes on with the columns of before",
        "jobs/gate/planning.py",
        "        if now.version != table.version:\n            raise TableAltered",
        "        if False:\n            raise TableAltered",
        ("tests/unit/jobs/test_altering_races.py",),
    ),
    Mutant(
        "rows are not judged by checks where they are encoded",
        "jobs/replicas/encoding.py",
        "        _refuse_violations(rows, self._plan)\n",
        "",
        CHECKS,
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
        "a merge that was planned before a check counts",
        "jobs/administration/altering.py",
        "                let_merges_end(store, table)\n",
        "                pass\n",
        CHECKS,
    ),
    Mutant(
        "generated columns that are given are not compared",
        "jobs/replicas/encoding.py",
        "rows, compared=True, deleted=plan.deleted)",
        "rows, compared=False, deleted=plan.deleted)",
        GENERATED,
    ),
    Mutant(
        "a program of before writes no generated column that came since",
        "jobs/replicas/generated_rows.py",
        "    for one in known.values():\n",
        "    for one in ():\n",
        GENERATED,
    ),
    Mutant(
        "a merge keeps what a generated column was",
        "jobs/gate/merge_clauses.py",
        "        elif column.generated is not UNSET:\n",
        "        elif False:\n",
        GENERATED,
    ),
    Mutant(
        "a merge that was planned before a generated column counts",
        "jobs/administration/altering.py",
        "        self._adds_rules = checks or any(number not in before for number in generated)\n",
        "        self._adds_rules = checks\n",
        GENERATED,
    ),
    Mutant(
        "what a generated column reads is renamed",
        "metastore/metadata/events/table_generated.py",
        "(before.name, before.type) == (now.name, now.type))",
        "before.type == now.type)",
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
        "claims before the log is read",
        "metastore/committing/committer.py",
        "        self._follower.catch_up()\n        if not self._has_heard:\n",
        "        early = self._offers.claim()\n        self._offers.claim = lambda: early\n"
        "        self._follower.catch_up()\n        if not self._has_heard:\n",
        COMMITTER,
    ),
    Mutant(
        "claimed proposals tried again after a conflict",
        "metastore/committing/committer.py",
        "        claims = self._offers.claim() if looked else []\n",
        "        self._held = [*getattr(self, '_held', []), *(self._offers.claim() if looked else [])]\n"
        "        claims = self._held\n",
        ("tests/unit/metastore/test_committer_offers.py",),
    ),
    Mutant(
        "every storage error is a failed append",
        "metastore/log/delta.py",
        "            if places.local_path(self.uri) is None or self._version_exists(read_at + 1):\n",
        "            if False:\n",
        ("tests/unit/metastore/test_delta_log.py",),
    ),
    Mutant(
        "a failure is told of what somebody may still append",
        "metastore/committing/outcomes.py",
        "                    self._follower.log.fence()\n                    self._follower.catch_up()\n",
        "                    self._follower.catch_up()\n",
        COMMITTER,
    ),
    Mutant(
        "a rejection is told while its grounds are not committed",
        "metastore/committing/committer.py",
        "        elif prepared.fails_what_others_may_append():\n",
        "        elif False:\n",
        COMMITTER,
    ),
    Mutant(
        "a log behind what was announced is appended to",
        "metastore/committing/committer.py",
        "        self._follower.require_reached(self._announced)\n",
        "",
        ("tests/unit/metastore/test_log_went_back.py",),
    ),
    Mutant(
        "a log of which only the number is known again is followed",
        "metastore/following/follower.py",
        "            if not found or position_of(found[0]) != known:\n",
        "            if not found or found[0].epoch != known.epoch:\n",
        ("tests/unit/metastore/test_follower.py", "tests/unit/metastore/test_log_went_back.py"),
    ),
    Mutant(
        "a snapshot is believed on its own word",
        "metastore/following/snapshots.py",
        "    return isinstance(event, TakeSnapshot) and event.proves(metadata)\n",
        "    return isinstance(event, TakeSnapshot)\n",
        ("tests/unit/metastore/test_snapshots.py",),
    ),
    Mutant(
        "a request id is done already, whatever it is for",
        "metastore/committing/outcomes.py",
        "    if submission.named and submission.is_for_another_change(entry):\n",
        "    if False:\n",
        COMMITTER,
    ),
    Mutant(
        "a commit of the log is not synced",
        "metastore/delta_commits.py",
        "            sync([temporary, *named], [os.path.dirname(one) for one in named])\n",
        "",
        ("tests/unit/jobs/test_power.py",),
    ),
    Mutant(
        "the name of a commit is not synced",
        "metastore/delta_commits.py",
        "    sync(directories=[directory])\n    return True\n",
        "    return True\n",
        ("tests/unit/jobs/test_power.py",),
    ),
    Mutant(
        "a write of before the fence lands",
        "jobs/replicas/commits.py",
        "            return AlreadyApplied(snapshot.version, frozenset(file.file_id for file in absent))\n"
        "        if snapshot.fence > epoch:\n",
        "            return AlreadyApplied(snapshot.version, frozenset(file.file_id for file in absent))\n"
        "        if False:\n",
        ("tests/unit/jobs/test_replica_fences.py",),
    ),
    Mutant(
        "streaming lands after its session was closed",
        "jobs/replicas/commits.py",
        "        if closed:\n",
        "        if False:\n",
        ("tests/unit/jobs/test_replica_fences.py",),
    ),
    Mutant(
        "a replica is prepared again and again",
        "jobs/replicas/commits.py",
        "        left = [mark for mark in marks if not mark.seen_in(snapshot)]\n",
        "        left = list(marks)\n",
        ("tests/unit/jobs/test_preparing.py",),
    ),
    Mutant(
        "what was prepared in epochs that were lost counts",
        "jobs/replicas/commits.py",
        "    marks = {_Applied(one.name, one.incarnation): one.ranges for one in drops}\n",
        "    marks = {_Applied(one.name, 1): one.ranges for one in drops}\n",
        ("tests/unit/jobs/test_preparing.py",),
    ),
    Mutant(
        "a majority is a half",
        "placement/consistency.py",
        "    return count // 2 + 1\n",
        "    return (count + 1) // 2\n",
        ("tests/unit/placement/test_consistency.py", "tests/unit/metastore/test_quorums.py"),
    ),
    Mutant(
        "a restored replica is read",
        "jobs/replicas/commits.py",
        "        if older_copy:\n",
        "        if False:\n",
        ("tests/unit/jobs/test_restored_storage.py",),
    ),
    Mutant(
        "a file is cut without a look at its digest",
        "jobs/replicas/cutting.py",
        "    if require_sealed(storage, file, source_uri) is not None:\n"
        "        require_intact(storage, file, source_uri)\n",
        "",
        ("tests/unit/jobs/test_sealing.py",),
    ),
    Mutant(
        "a row group is copied without a look at its digest",
        "jobs/replicas/sealing.py",
        "    if found.hexdigest()[:DIGITS] != group.digest:\n",
        "    if False:\n",
        ("tests/unit/jobs/test_row_group_copies.py",),
    ),
    Mutant(
        "a row group that crosses the end of a piece is copied whole",
        "jobs/replicas/cutting.py",
        "low <= span[0] and span[1] <= high for span",
        "low <= span[0] and span[0] <= high for span",
        ("tests/unit/jobs/test_row_group_copies.py",),
    ),
    Mutant(
        "storage that was declared lost is opened",
        "jobs/replicas/opening.py",
        "        lost=metadata.directory.why_lost(volume),\n",
        '        lost="",\n',
        ("tests/unit/jobs/test_lost_storage.py",),
    ),
    Mutant(
        "a pipeline reads without lineage",
        "jobs/gate/verified_reading.py",
        "        lineage = cluster.ledger.lineage(table.table_id, _files(shown, everything=bool(noted or found)))\n",
        "        lineage = NO_LINEAGE\n",
        ("tests/unit/jobs/test_damaged_reads.py", "tests/spark/test_compaction_spark.py"),
    ),
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
    Mutant(
        "vacuum takes the history that a table keeps",
        "jobs/upkeep/vacuum.py",
        "    return frozenset(one.origin for merge in young for one in merge.replaced)\n",
        "    return frozenset()\n",
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
        "a read shows deletes as rows",
        "jobs/replicas/superseding.py",
        "    dead = deleted | has_newer(",
        "    dead = has_newer(",
        ("tests/unit/jobs/test_superseding.py",),
    ),
    Mutant(
        "a filter leaves out newer versions before it is known which rows count",
        "jobs/replicas/scanning.py",
        "    keys_only = _can_match(asked, [name for name in asked.needed if name in asked.primary_key])\n",
        "    keys_only = any_column\n",
        ("tests/unit/jobs/test_reads_without_spark.py",),
    ),
    Mutant(
        "a part of a file that others meet is read by itself",
        "jobs/replicas/sections.py",
        "        if depth < 2:\n",
        "        if depth < 3:\n",
        ("tests/unit/jobs/test_sections.py", "tests/unit/jobs/test_reads_without_spark.py"),
    ),
    Mutant(
        "versions that are not all there yet are merged",
        "jobs/replicas/merging_here.py",
        ".below(min(reached) if reached else None)",
        ".below(max(reached) if reached else None)",
        ("tests/unit/jobs/test_merging_here.py",),
    ),
    Mutant(
        "a flipped bit in a page is read",
        "jobs/replicas/run_files.py",
        "page_checksum_verification=True",
        "page_checksum_verification=False",
        ("tests/unit/jobs/test_run_files.py",),
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
        "a delete does not win against a write of the same instant",
        "jobs/replicas/superseding.py",
        " & ~(tombstones[:, None] | tombstones[None, :])\n",
        "\n",
        ("tests/unit/jobs/test_superseding.py",),
    ),
    Mutant(
        "rows with one token are taken for versions of one key",
        "jobs/replicas/superseding.py",
        "    apart = same[~_are_equal(keys, order[same], order[same + 1])]\n",
        "    apart = same[:0]\n",
        ("tests/unit/jobs/test_superseding.py",),
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
        "a stream of changes begins beside merges",
        "jobs/upkeep/change_streams.py",
        "    _let_merges_pass(cluster, table)\n",
        "",
        ("tests/unit/jobs/test_change_streams_attacked.py",),
    ),
    Mutant(
        "a write stays with the stream that was on when it began to land",
        "jobs/gate/change_recording.py",
        "        if self._put is None or self._put.index.uri != index.uri:\n",
        "        if self._put is None:\n",
        ("tests/unit/jobs/test_change_streams_attacked.py",),
    ),
    Mutant(
        "what a killed coordinator has not deleted is not looked for",
        "jobs/replicas/change_index.py",
        "        deleted, floor = self._deleted_up_to(), max(floor, self.floor())\n",
        "        deleted, floor = self.floor(), max(floor, self.floor())\n",
        ("tests/unit/jobs/test_change_streams_attacked.py",),
    ),
    Mutant(
        "a digest at the end of a small file is not looked at",
        "jobs/replicas/stamped.py",
        "    if found and _with_digest(head) != data:\n",
        "    if False:\n",
        ("tests/unit/jobs/test_change_streams_attacked.py", "tests/unit/jobs/test_merge.py"),
    ),
    Mutant(
        "a copy is stored again as it lies",
        "jobs/gate/merge_finishing.py",
        "        require_intact(storage, staged.file, kept)\n",
        "",
        ("tests/unit/jobs/test_merge.py",),
    ),
    Mutant(
        "vacuum takes copies that an intent names",
        "jobs/upkeep/change_sweeping.py",
        "    named = {staged.file.file_id for intent in Intents(storage, index).all() for staged in intent.files}\n",
        "    named: set[str] = set()\n",
        ("tests/unit/jobs/test_change_streams_left.py",),
    ),
    Mutant(
        "only the last time to live says what has expired",
        "metastore/metadata/time_to_live.py",
        "        if one.since <= at and one.seconds is not None:\n",
        "        if one is table.lifetimes[-1] and one.seconds is not None:\n",
        (f"{TTL}::test_rows_that_have_expired_stay_so_with_a_longer_ttl_and_with_none",),
    ),
    Mutant(
        "expired rows are dropped before their grace is over",
        "jobs/replicas/merging.py",
        "                pc.less(rows.column(WRITTEN_AT), self.merge.purge_before),\n            )\n            rows",
        "                pc.is_valid(moments),\n            )\n            rows",
        (f"{TTL}::test_a_row_that_was_written_lately_stays_for_its_grace_however_long_ago_it_has_expired",),
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
    Mutant(
        "a read as of a time judges by the clock",
        "jobs/gate/arrow_reading.py",
        "    bounds = bounds_of(table, then)\n",
        "    bounds = bounds_of(table, None)\n",
        (f"{TTL}::test_a_read_as_of_a_time_is_judged_by_that_time",),
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
)


def main(names: Sequence[str]) -> int:
    """Try the mutants of these names, or all. The exit code."""
    known = {mutant.name for mutant in MUTANTS}
    if unknown := set(names) - known:
        print(f"there is no mutant {', '.join(sorted(unknown))}. There are:", *sorted(known), sep="\n  ")
        return 2
    survivors = []
    for mutant in MUTANTS:
        if not names or mutant.name in names:
            started = time.monotonic()
            verdict = _try(mutant)
            print(f"{verdict:12} {time.monotonic() - started:5.0f} s  {mutant.name}", flush=True)
            if verdict != "caught":
                survivors.append(mutant.name)
    print(f"{len(survivors)} not caught" if survivors else "all are caught")
    return 1 if survivors else 0


def _try(mutant: Mutant) -> str:
    """caught, SURVIVES, or NOT FOUND where its text is not, or its tests are not, what is written here."""
    if mutated(mutant) is None or any(not (REPOSITORY / test.partition("::")[0]).exists() for test in mutant.tests):
        return "NOT FOUND"
    with tempfile.TemporaryDirectory(prefix="mutant-") as directory:
        copy = Path(directory) / "repository"
        _copy_to(copy)
        (copy / mutant.path).write_text(mutated(mutant) or "", encoding="utf-8")
        # Found before what is installed, also by the processes that tests start.
        # Every case: a slice may happen to leave out the one that catches it.
        environment = {
            **os.environ,
            "PYTHONPATH": str(copy),
            "PYTHONDONTWRITEBYTECODE": "1",
            "EPOCHLAKE_TESTS_THOROUGH": "1",
        }
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.tests]
        try:
            code = subprocess.run(
                command, cwd=copy, env=environment, capture_output=True, timeout=LONGEST_SECONDS
            ).returncode
        except subprocess.TimeoutExpired:
            return "caught"  # something waits for ever that does not otherwise
    # 1 is "tests have failed"; anything else, "no tests" for one, catches nothing.
    return {0: "SURVIVES", 1: "caught"}.get(code, f"pytest: {code}")


def mutated(mutant: Mutant) -> str | None:
    """The broken file; None when what is to be broken is not there exactly once."""
    text = (REPOSITORY / mutant.path).read_text(encoding="utf-8")
    return text.replace(mutant.whole, mutant.broken) if text.count(mutant.whole) == 1 else None


def _copy_to(copy: Path) -> None:
    copy.mkdir()
    for folder in FOLDERS:
        shutil.copytree(REPOSITORY / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in FILES:
        shutil.copy2(REPOSITORY / file, copy / file)
    # pytest finds the folder `epochlake` in the copy first, so that folder has to lead to the others.
    for package in PACKAGES:
        (copy / "epochlake" / package).symlink_to(copy / package)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
