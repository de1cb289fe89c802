"""How a write of a table with a change stream gets into the stream: before it lands, and when it has landed.

Before anything of it is committed, the write is put among those that may land (change_intents.py). When its level is
reached, it is appended to the index, and only then is it told that it has succeeded. A write that dies between the two
is found by `change_settling`, and so is one that reached too few replicas and is shown by reads all the same.

A table without a stream pays one look into the metadata. One that gets its stream while a write lands is treated like
one that has had it: the metadata is looked at before each round of the landing, and after the last.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from epochlake.jobs.replicas.change_index import ChangeIndex, TooEarly, forget_ready
from epochlake.jobs.replicas.change_intents import Intents, PutIntent, new_intent
from epochlake.jobs.replicas.staging import StagedFile
from epochlake.metastore import threads
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import Table
from epochlake.metastore.storage import failures
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.consistency import ConsistencyLevel
from epochlake.placement.errors import EpochlakeError

if TYPE_CHECKING:
    from epochlake.jobs.replicas.store import Store

logger = logging.getLogger(__name__)


class Recording:
    """The recording of one write. `write_id`: of its batch; `put`: what was put before, by a try that died.

    `already`: the level had been reached before this try.
    """

    def __init__(
        self,
        cluster: Store,
        table: Table,
        files: Sequence[StagedFile],
        level: ConsistencyLevel,
        by: str,
        pipeline_id: str,
        write_id: str | None = None,
        put: PutIntent | None = None,
        already: bool = False,
    ) -> None:
        self._cluster = cluster
        self._table = table
        self._files = files
        self._level = level
        self._by = by
        self._pipeline_id = pipeline_id
        self._write_id = write_id
        self._put = put
        self._already = already
        self._now: PutIntent | None = None
        self._ready = None if put is None else put.ready

    def has_work_beside(self, metadata: ClusterMetadata) -> bool:
        """Whether there is a stream to record the write in, as far as is known before it lands, and its entry was not
        made ready while it was staged.
        """
        return self._ready is None and metadata.change_streams.get(self._table.table_id) is not None

    def beside_landing(self, metadata: ClusterMetadata) -> None:
        """Make the entry ready while replicas commit: then nothing but its name is waited for. Never raises.

        Whether it is used is decided when the write has landed.
        """
        put = self._now
        if put is None or self._already:
            return
        files, intent = [staged.file for staged in self._files], put.intent
        with suppress(EpochlakeError):
            self._ready = put.index.make_ready(
                intent.write_id, files, epoch=metadata.epoch, level=intent.level, by=intent.by
            )

    def before_round(self, metadata: ClusterMetadata) -> None:
        """Put the write among those that may land, once. Raises StorageUnavailable, before anything is committed.

        A stream that has ended meanwhile is not written to any more. Where another one has begun, the write is put
        among those of that one: nobody reads the ended one again.
        """
        stream = metadata.change_streams.get(self._table.table_id)
        if stream is None:
            self._now = None
            return
        index = self._cluster.change_indexes.of(stream)
        if self._put is None or self._put.index.uri != index.uri:
            self._put = self._put_anew(metadata, index)
        elif self._now is None and not self._put.is_whole:
            # It was put before: while its rows were staged, or by a try that died.
            Intents(self._cluster.storage, index).complete(metadata, self._table, self._put.intent)
        self._now = self._put

    def landed(self, metadata: ClusterMetadata, epoch: int) -> None:
        """Append the write, which has reached its level, to the index. Raises ChangeNotKept.

        Raises TooEarly where the stream began while it was written: then its rows have to be written again, at a later
        time. Tables that are append-only have no older and newer rows of a key.
        """
        try:
            self.before_round(metadata)
            if self._now is None:
                self._forget_ready()
                return
            try:
                self._append(self._now, epoch)
            except failures.MissingFile:
                # Its copies went while this process was paused: it was taken for one that lands no more.
                Intents(self._cluster.storage, self._now.index).put(metadata, self._table, self._now.intent)
                self._append(self._now, epoch)
        except TooEarly:
            if not self._already:
                raise  # its intent stays open: what has landed is settled if its rows are not written again
        except EpochlakeError as error:
            raise ChangeNotKept(self._table.full_name, error) from error
        self._take_away()

    def failed(self) -> None:
        """Say that nobody goes on with it: what has landed of it may be settled at once."""
        self._forget_ready()
        if self._now is None:
            if self._put is not None and self._put.intent.pipeline_id == self._pipeline_id:
                forget_ahead(self._cluster.storage, self._put)
        else:
            try:
                Intents(self._cluster.storage, self._now.index).end(self._now.intent)
            except StorageUnavailable as error:
                logger.info("a write to %s stays open until its lease ends: %s", self._table.full_name, error)

    def staged_again(self) -> bool:
        """Say nothing yet, as its rows are staged again; whether it is among those that may land meanwhile.

        While its process lives nobody settles it: what is staged in its place must not land beside it.
        """
        if self._now is None:
            self.failed()
            return False
        self._forget_ready()
        return True

    def goes_on_with(self, file_ids: Collection[str]) -> None:
        """Only these of its files may land from now on: nothing of the others is live, and they are staged anew.

        Raises StorageUnavailable, before anything is staged in their place.
        """
        if self._now is not None:
            intents, intent = Intents(self._cluster.storage, self._now.index), self._now.intent
            left = tuple(staged for staged in intent.files if staged.file.file_id in file_ids)
            self._now = PutIntent(self._now.index, intents.narrow(intent, left))

    def replaced(self) -> None:
        """Forget it: its rows are in the stream as they were staged afterwards. Where the root does not take that, it
        is settled as one that has lost its writer: its changes are late then, or in the stream already.
        """
        if self._now is not None:
            forget_ahead(self._cluster.storage, self._now)

    def _put_anew(self, metadata: ClusterMetadata, index: ChangeIndex) -> PutIntent:
        intent = new_intent(self._write_id, self._files, self._level.value, self._by, self._pipeline_id)
        try:
            Intents(self._cluster.storage, index).put(metadata, self._table, intent)
        except EpochlakeError:
            forget_ahead(self._cluster.storage, PutIntent(index, intent))
            raise
        return PutIntent(index, intent)

    def _append(self, put: PutIntent, epoch: int) -> None:
        ready, self._ready = self._ready, None
        files = [staged.file for staged in self._files]
        intent, in_time = put.intent, not self._table.append_only
        put.index.append(
            intent.write_id, files, epoch=epoch, level=intent.level, by=intent.by, in_time=in_time, ready=ready
        )

    def _forget_ready(self) -> None:
        ready, self._ready = self._ready, None
        if ready is not None:
            forget_ready(self._cluster.storage, ready)

    def _take_away(self) -> None:
        """Nobody waits for it. It is in the index, where whoever settles it finds it."""
        assert self._now is not None
        storage, put, name = self._cluster.storage, self._now, self._table.full_name

        def take_away() -> None:
            try:
                Intents(storage, put.index).take_away(put.intent)
            except StorageUnavailable as error:
                logger.info("a write to %s is in the stream of changes, and stays open: %s", name, error)

        in_background(take_away)


def in_background(task: Callable[[], None]) -> None:
    """Run what nobody waits for; it must not raise."""
    threads.begin(task)


def forget_ahead(storage: Storage, put: PutIntent) -> None:
    """Take away the intent of a write of which nothing has been committed, or nothing is missed. Never raises: else it
    stays until the lease of its process ends.
    """
    if put.ready is not None:
        forget_ready(storage, put.ready)
    with suppress(StorageUnavailable):
        Intents(storage, put.index).take_away(put.intent)


class ChangeNotKept(StorageUnavailable):
    """The rows have landed, and reads show them; whether their readers are shown the change is not known yet.

    Nothing is lost: the coordinator brings it into the stream. The same batch may be tried again.
    """

    def __init__(self, table: str, cause: EpochlakeError) -> None:
        super().__init__(
            f"the write to {table} has reached its level, and it cannot be told whether it is in the stream of the "
            f"table's changes: {cause}",
            hint="Try the same batch again; a write without a name is there, and is brought into the stream by the "
            "coordinator",
        )
