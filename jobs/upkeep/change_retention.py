"""What of a change stream is kept, for whom, and what goes: entries that are over, and files that nobody names.

Entries go in their order. The age of an entry is told by when its commit was put, by the one clock of the root, and
never by the clock of its writer; nor by that of a coordinator that is ahead of the root's.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
from epochlake.jobs.replicas.change_entries import ChangeEntry
from epochlake.jobs.replicas.change_index import ChangeIndex
from epochlake.jobs.replicas.change_intents import Intents
from epochlake.jobs.replicas.change_readers import Reader, Readers
from epochlake.metastore.metadata.components.change_streams import ChangeStream
from epochlake.metastore.storage.clocks import behind

if TYPE_CHECKING:
    from epochlake.jobs.replicas.store import Store


class Over(msgspec.Struct, frozen=True):
    """The entries of a stream that are over, but for what has to be compared with them, and `kept_for`: what holds the
    next one back; empty where there is none.
    """

    entries: tuple[ChangeEntry, ...]
    kept_for: str


def drop_old(cluster: Store, stream: ChangeStream) -> tuple[int, int]:
    """Drop the changes that are older than the stream's retention and that no reader needs: how many, and bytes.

    A named reader holds back what it has not read, up to the stream's limit. Writes that may still land hold back what
    they may be late to, and so do those that are kept.
    """
    index = cluster.change_indexes.of(stream)
    over = what_is_over(cluster, stream).entries
    if over and (now := behind(cluster.storage, cluster.root.uri)) is not None:
        over = what_is_over(cluster, stream, now).entries
    last = index.compared_from(over[-1].position, index.tail().position) if over else 0
    if index.begun() is None or not (last > index.floor() or index.is_interrupted()):
        return 0, 0
    dropped = index.drop(last)
    return len(dropped), sum(entry.size for entry in dropped)


def what_is_over(cluster: Store, stream: ChangeStream, now: int | None = None) -> Over:
    """What is over, and what keeps the rest; changes nothing. `now`: microseconds since 1970, None: as this machine has
    it.
    """
    index = cluster.change_indexes.of(stream)
    now = time.time_ns() // 1000 if now is None else now
    least = now - int(stream.retention_seconds * 1_000_000)
    limit = now - int(stream.limit_seconds * 1_000_000)
    # Intents before the tail: a write that is among them no more is in the index.
    intents = [intent for intent in Intents(cluster.storage, index).all() if intent.files]
    tail, floor = index.tail(), index.floor()
    readers = [reader for reader in Readers(cluster.storage, index).all() if not is_gone(index, reader, floor)]
    slowest = min(readers, key=lambda reader: reader.position, default=None)
    held = [
        (index.before(min(staged.file.min_written_at for staged in intent.files), tail), intent) for intent in intents
    ]
    held_at, holder = min(held, key=lambda one: one[0], default=(tail.position, None))
    over: list[ChangeEntry] = []
    kept_for = ""
    for entry in index.entries(floor, tail.position):
        unread = slowest is not None and entry.position > slowest.position
        if entry.position > held_at and holder is not None:
            kept_for = f"a write by {holder.by} that may still land"
        elif _committed_at(index, entry) >= least:
            kept_for = "the retention"
        elif unread and slowest is not None and _committed_at(index, entry) >= limit:
            kept_for = f"reader {slowest.name}"
        if kept_for:
            break
        over.append(entry)
    return Over(tuple(over), kept_for)


def is_gone(index: ChangeIndex, reader: Reader, floor: int) -> bool:
    """Whether a reader needs what is not kept any more: it has to begin again, and nothing is kept for it until then.

    `floor`: the last position that is not kept.
    """
    begun = index.begun()
    return reader.position < max(floor, 0 if begun is None else begun.position)


def _committed_at(index: ChangeIndex, entry: ChangeEntry) -> int:
    return index.committed_at(entry.position) or entry.at
