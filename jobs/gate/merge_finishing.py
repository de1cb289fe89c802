"""Finishing merges that count: whoever has put the newest entry of a table's journal, its files come to their level.

Whatever follows from the rows of a table that merges write has to be preceded by this: the next merge, and the
beginning of a stream of changes (docs/decisions/073-merge.md, 085-change-streams-reviewed.md).
"""

from __future__ import annotations

import uuid
from contextlib import suppress

import msgspec
from epochlake.jobs.gate.batches import BatchContents
from epochlake.jobs.gate.merge_journal import MergeEntry, MergeJournal
from epochlake.jobs.gate.planning import Planning
from epochlake.jobs.gate.routing import ranges_of
from epochlake.jobs.gate.writing import Writing
from epochlake.jobs.replicas.change_index import TooEarly
from epochlake.jobs.replicas.files import directory_of
from epochlake.jobs.replicas.intervals import missing
from epochlake.jobs.replicas.sealing import DamagedBytes, require_intact
from epochlake.jobs.replicas.staging import StagedFile
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.metadata.model import Table
from epochlake.metastore.storage import failures, places
from epochlake.placement.consistency import ConsistencyLevel

TRIES = 10
"""So often others may put an entry while a number is to be taken for nothing."""


class MergeFinishing:
    """Finishes the merges into one table, as it is or as it was altered since, with the means of a run at the gate."""

    def __init__(self, planning: Planning, writing: Writing, journal: MergeJournal) -> None:
        self._planning = planning
        self._writing = writing
        self._journal = journal
        self._storage = planning.cluster.storage

    def finish_tail(self, table: Table, level: ConsistencyLevel) -> int:
        """Bring the newest merge to its level, whoever has begun it; its number. Raises ConsistencyNotReached,
        StorageUnavailable, Rejected.
        """
        tail = self._journal.tail()
        if tail and not self._journal.is_finished(tail):
            entry = self._journal.entry(tail)
            try:
                if entry is not None and entry.files:
                    self.land(table, tail, entry, level)
            except (failures.MissingFile, DamagedBytes):
                if not self._journal.is_finished(tail):  # else somebody else has, and the copies went with that
                    raise
            self._journal.finish(tail)
        return tail

    def take_for_nothing(self, table: Table, number: int) -> bool:
        """Take a number that others may want; whether it was free: whoever has wanted it finds it taken."""
        taken = self._journal.put(number, MergeEntry(str(uuid.uuid4()), table.full_name))
        if taken:
            self._journal.finish(number)
        return taken

    def let_pass(self, table: Table, level: ConsistencyLevel) -> None:
        """Finish what counts, and have all that is planned and does not count yet planned again, after this.

        Raises as `finish_tail`; StorageUnavailable where others merge all the time.
        """
        for _ in range(TRIES):
            if self.take_for_nothing(table, self.finish_tail(table, level) + 1):
                return
        raise StorageUnavailable(
            f"{table.full_name} was merged into by others during each of {TRIES} tries", hint="Try again"
        )

    def land(self, table: Table, number: int, entry: MergeEntry, level: ConsistencyLevel) -> None:
        """Land the files of an entry. What has been staged and lies nowhere any more is stored again."""
        planning, writing = self._planning, self._writing
        opened, failed = planning.open_for_write(table)
        located = writing.locate(table, BatchContents(1, entry.files), opened, failed)
        files: list[StagedFile] = []
        for staged in located.files:
            there = [piece.file for piece in located.pieces]
            if not staged.stored and missing((staged.file,), there, *staged.file.window, located.lineage):
                staged = self._stored_again(table, number, entry, staged)
            files.append(staged)
        located = msgspec.structs.replace(located, files=tuple(files))
        # What is too early for the stream of the table's changes had been finished before that began: `let_pass`.
        with suppress(TooEarly):
            writing.land(table, located.files, level, located, opened=opened, write_id=entry.attempt)

    def _stored_again(self, table: Table, number: int, entry: MergeEntry, staged: StagedFile) -> StagedFile:
        """Store the kept copy of a file on the replicas of its ranges. Raises StorageUnavailable.

        Somebody else may have done it meanwhile, and have committed it: so it takes its place as a whole.
        """
        storage, planning = self._storage, self._planning
        kept = self._journal.kept_uri(number, entry.attempt, staged.file.file_id)
        require_intact(storage, staged.file, kept)
        opened, failed = planning.open_for_write(table)
        placements = planning.metadata.placements(table.table_id)
        windows = [staged.file.extent]
        wanted = {volume for index in ranges_of(placements, windows) for volume in placements.placement(index).writes}
        stored = set()
        for volume in sorted(wanted & opened.keys()):
            replica = opened[volume].address.uri
            try:
                directory = places.join(replica, directory_of(staged.file.path.rpartition("/")[0].partition("=")[2]))
                storage.create_directory(directory)
                storage.copy_file(kept, places.join(replica, staged.file.path))
                storage.sync_data(directories=[directory, replica])
            except failures.MissingFile:
                if storage.size_of(kept) is None:
                    raise
                failed[volume] = "its directory is not there"
            except StorageUnavailable as error:
                failed[volume] = str(error)
            else:
                stored.add(volume)
        return StagedFile(staged.file, frozenset(stored), failed, staged.digest)
