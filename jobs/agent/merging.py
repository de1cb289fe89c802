"""Merges near a disk: files of one replica become files beside them, by the code of every other compaction.

Nothing names what is stored here: whoever asked commits it, or nobody does. A merge that fails or is given up takes
away what it has stored; its files have names of their own, which nobody has been told. What is told and then forgotten,
as when whoever asked is gone, vacuum takes.

Memory is bounded. What a merge takes is estimated from the footers of its files: a row group of each, and the file that
grows. Merges wait for room, and one that would take more than there is at all is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from epochlake.jobs.agent.task_messages import MergeWork, Work
from epochlake.jobs.replicas.merging import MergePlan, RangeMerge, Source, encode
from epochlake.jobs.replicas.merging_here import merged_rows
from epochlake.jobs.replicas.merging_near import RangeMerged
from epochlake.jobs.replicas.replica import ReplicaAddress
from epochlake.metastore.configuration import StorageSettings
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.metadata.model import Table
from epochlake.metastore.storage import places
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.decoding import decodable
from epochlake.placement.errors import EpochlakeError

MOST_BYTES = 96 << 20
"""What merges may take of memory together, by estimate."""

WAIT_SECONDS = 1.0


class MergeRefused(EpochlakeError):
    """A merge that is not done here: whoever asked does it."""


class _Noting(Storage):
    """Storage that knows what was written with it."""

    def __init__(self, settings: StorageSettings) -> None:
        super().__init__(settings)
        self.written: list[str] = []

    def write_bytes(self, uri: str, data: bytes | pa.Buffer) -> None:
        self.written.append(uri)
        super().write_bytes(uri, data)


class Merging:
    """The merges of one process. `most_bytes`: see `MOST_BYTES`."""

    def __init__(self, settings: StorageSettings, most_bytes: int = MOST_BYTES) -> None:
        self._settings = settings
        self._most = most_bytes
        self._taken = 0
        self._freed = threading.Condition()

    def done(self, work: Work, merge: MergeWork, target: ReplicaAddress, sign: Callable[[], None]) -> RangeMerged:
        """Merge, and store the result on the target alone. `sign` is called as it goes on, and raises to end it.

        Raises MergeRefused, StorageUnavailable; what was stored until then is gone.
        """
        storage = _Noting(self._settings)
        here = msgspec.structs.replace(target, storage=storage)
        uris = [places.join(here.uri, source.path) for source in merge.sources]
        table = msgspec.json.decode(merge.table, type=decodable(Table))
        one = RangeMerge(
            number=0,
            chosen=0,
            label=merge.label,
            low=work.low,
            high=work.high,
            sources=tuple(Source(uri, s.low, s.high, s.whole) for uri, s in zip(uris, merge.sources, strict=True)),
            like=uris[0],
            targets=(here,),
            purge_before=merge.purge_before,
            expired_before=merge.expired_before,
        )
        plan = MergePlan(table, (one,), merge.target_file_bytes, storage, merge.derived_tokens)
        with self._room(memory_of(storage, uris, merge.target_file_bytes, sign), sign):
            try:
                files = tuple(encode(plan, self._watched(merged_rows(plan, plan.merges), sign)))
                for file in files:
                    for why in file.failed.values():
                        raise StorageUnavailable(why)
                sign()  # what nobody waits for any more goes as well
            except BaseException:
                for uri in storage.written:
                    with suppress(StorageUnavailable):
                        storage.delete_file(uri)
                raise
        return RangeMerged(files, (target.volume_id,))

    @contextmanager
    def _room(self, size: int, sign: Callable[[], None]) -> Iterator[None]:
        """Take so much of the memory, once it is there. Raises MergeRefused for more than there is."""
        if size > self._most:
            raise MergeRefused(
                f"a merge would take about {size >> 20} MiB of memory here, and may take {self._most >> 20} MiB"
            )
        with self._freed:
            while self._taken + size > self._most:
                self._freed.wait(WAIT_SECONDS)
                sign()
            self._taken += size
        try:
            yield
        finally:
            with self._freed:
                self._taken -= size
                self._freed.notify_all()

    def _watched(self, batches: Iterator[pa.RecordBatch], sign: Callable[[], None]) -> Iterator[pa.RecordBatch]:
        """Batches, with a sign of each. Raises MergeRefused where far more memory is taken than was estimated."""
        for batch in batches:
            sign()
            if pa.total_allocated_bytes() > 2 * self._most:
                raise MergeRefused("a merge takes more memory here than its files say")
            yield batch


def memory_of(storage: Storage, uris: Sequence[str], target_file_bytes: int, sign: Callable[[], None]) -> int:
    """What a merge of these files takes: the largest row group of each, read and put in order, and a growing file."""
    groups = stored = 0
    for uri in uris:
        sign()
        footer = storage.within_deadline("read", uri, partial(_footer, storage, uri))
        groups += max((footer.row_group(number).total_byte_size for number in range(footer.num_row_groups)), default=0)
        stored += storage.size_of(uri) or 0
    return 2 * groups + min(stored, target_file_bytes)


def _footer(storage: Storage, uri: str) -> pq.FileMetaData:
    filesystem, path = storage.filesystem(uri)
    with filesystem.open_input_file(path) as stream:
        return pq.read_metadata(stream)
