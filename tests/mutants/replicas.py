"""What replica tables and their files rest on."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

CHECKS = ("tests/unit/jobs/test_checks.py",)
GENERATED = ("tests/unit/jobs/test_generated_columns.py",)
TTL = "tests/unit/jobs/test_time_to_live.py"
STRUCTS = ("tests/unit/jobs/test_altered_structs.py",)

MUTANTS = (
    Mutant(
        "a replica is read by a checkpoint that has rotted",
        "jobs/replicas/states.py",
        "    checkpoint_seals.require_sound(storage, uri)\n",
        "",
        ("tests/unit/jobs/test_rotten_checkpoints.py",),
    ),
    Mutant(
        "the ledger is read by a checkpoint that has rotted",
        "jobs/replicas/ledger.py",
        "            checkpoint_seals.require_sound(self._storage, self.uri)\n",
        "",
        ("tests/unit/jobs/test_rotten_checkpoints.py",),
    ),
    Mutant(
        "a checkpoint is built upon one that has rotted",
        "metastore/delta_checkpoints.py",
        "        if rotten_checkpoint(storage, uri) is not None:\n"
        "            put_torn_aside(storage, uri)\n"
        "        require_sound(storage, uri)\n",
        "",
        ("tests/unit/jobs/test_rotten_checkpoints.py",),
    ),
    Mutant(
        "who seals a checkpoint seals a newer one that has rotted",
        "metastore/checkpoint_seals.py",
        "            if number == version or (number > version and digest_beside(storage, directory, name) is None):\n",
        "            if number >= version:\n",
        ("tests/unit/jobs/test_rotten_checkpoints.py",),
    ),
    Mutant(
        "a merged file that was merged on is voided",
        "jobs/replicas/ledger.py",
        "                if merge.file_id in standing and merge.file_id not in merged_on\n",
        "                if merge.file_id in standing\n",
        ("tests/unit/jobs/test_ledger.py",),
    ),
    Mutant(
        "a file lands where its columns are not declared",
        "jobs/replicas/commits.py",
        "        if isinstance(decision, FileActions) and snapshot.lacks_columns:\n",
        "        if False:\n",
        ("tests/unit/jobs/test_replica_fences.py",),
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
        "rows are not judged by checks where they are encoded",
        "jobs/replicas/encoding.py",
        "        _refuse_violations(rows, self._plan)\n",
        "",
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
        "a piece that an earlier try has brought is taken as it lies there",
        "jobs/replicas/cutting.py",
        "    if there is not None and source.uri != target.uri and not _is_intact(target.storage, there, uri):\n",
        "    if False:\n",
        ("tests/unit/jobs/test_cutting.py",),
    ),
    Mutant(
        "a commit that lies in the place of another one is read",
        "metastore/delta_commits.py",
        "        if (said := information.get(VERSION, str(version))) != str(version):\n",
        "        if (said := str(version)) != str(version):\n",
        ("tests/unit/jobs/test_misplaced_commits.py",),
    ),
    Mutant(
        "a data file of the log is read in the place of another one",
        "metastore/log/files.py",
        "one is not None and other is not None and one != other for one, other in zip(said",
        "False for _ in zip(said",
        ("tests/unit/jobs/test_misplaced_commits.py",),
    ),
    Mutant(
        "a piece is copied from one replica as another one has it",
        "jobs/replicas/streaming.py",
        "        part = msgspec.structs.replace(part, file=holders[part.file.file_id][chosen])\n",
        "",
        ("tests/unit/jobs/test_streaming.py",),
    ),
    Mutant(
        "what a batch is made of is read though its bytes have changed",
        "jobs/replicas/stamped.py",
        "    if found and _with_digest(head) != data:\n",
        "    if False:\n",
        ("tests/unit/jobs/test_formats.py",),
    ),
    Mutant(
        "changes are read from a file whose seal nobody looks at",
        "jobs/replicas/change_reading.py",
        "    seal = read_seal(storage, file, uri)\n",
        '    seal = type("Unproved", (), {"footer": storage.read_bytes(uri)})\n',
        ("tests/unit/jobs/test_change_streams_rotten.py",),
    ),
    Mutant(
        "a damaged file of a stream is healed with a damaged one",
        "jobs/upkeep/change_healing.py",
        "            require_intact(cluster.storage, file, source)\n",
        "",
        ("tests/unit/jobs/test_change_streams_rotten.py",),
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
        "a read shows deletes as rows",
        "jobs/replicas/superseding.py",
        "        dead = deleted[number]\n",
        "        dead = np.zeros_like(deleted[number])\n",
        ("tests/unit/jobs/test_superseding.py",),
    ),
    Mutant(
        "versions of a key within one long run are not compared",
        "jobs/replicas/shared_tokens.py",
        "[places[tokens[places] == near], same, same + 1]",
        "[places[tokens[places] == near], same]",
        ("tests/unit/jobs/test_shared_tokens.py",),
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
        "expired rows are dropped before their grace is over",
        "jobs/replicas/merging.py",
        "                pc.less(rows.column(WRITTEN_AT), self.merge.purge_before),\n            )\n            rows",
        "                pc.is_valid(moments),\n            )\n            rows",
        (f"{TTL}::test_a_row_that_was_written_lately_stays_for_its_grace_however_long_ago_it_has_expired",),
    ),
)
