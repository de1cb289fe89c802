"""Data files that lie on volumes, whether their replicas still have them or not.

A file is told by its name, and proved whole by its seal: it has the same rows wherever it lies, and whoever has taken
it out. What is not known of it from Delta's log any more its footer says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from epochlake.jobs.replicas.damage import ExpectedFile
from epochlake.jobs.replicas.files import DataFile, id_in
from epochlake.jobs.replicas.footers import column_number, range_in_group
from epochlake.jobs.replicas.replica import ReplicaAddress, require_place
from epochlake.jobs.replicas.schema import DELETED, WRITTEN_AT
from epochlake.jobs.replicas.sealing import DamagedBytes, require_sealed
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore.errors import StorageUnavailable, WrongCluster
from epochlake.metastore.storage import failures, places
from epochlake.metastore.storage.storage import FileEntry
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.tokens import TABLET, TOKEN

THREADS = 16

_Listed = tuple[ReplicaAddress, FileEntry]


class StoredFiles:
    """The data files in the directories of some replica tables, listed once.

    `unreachable`: the replicas that could not be listed, each with why. Where there is no directory there is no file.
    """

    def __init__(self, addresses: Iterable[ReplicaAddress]) -> None:
        self.unreachable: dict[ReplicaAddress, str] = {}
        self._listed: dict[str, list[_Listed]] = defaultdict(list)
        self._known: dict[str, list[ExpectedFile]] = {}
        addresses = list(addresses)
        for address, found in zip(addresses, ThreadWorkers(THREADS).run(_list, addresses), strict=True):
            if isinstance(found, str):
                self.unreachable[address] = found
                continue
            for entry in found:
                self._listed[_origin(entry.name)].append((address, entry))

    def of(self, origins: Collection[str]) -> dict[str, list[ExpectedFile]]:
        """Every whole file of these origins, in each place where it lies: origin -> files."""
        asked = [(origin, one) for origin in origins if origin not in self._known for one in self._listed[origin]]
        described = ThreadWorkers(THREADS).run(lambda one: _described(*one[1]), asked)
        for origin in origins:
            self._known.setdefault(origin, [])
        for (origin, _), file in zip(asked, described, strict=True):
            if file is not None:
                self._known[origin].append(file)
        return {origin: self._known[origin] for origin in origins}


def _origin(name: str) -> str:
    return id_in(name).partition(".")[0]


def _list(address: ReplicaAddress) -> list[FileEntry] | str:
    try:
        require_place(address)
        if not address.storage.exists(address.uri):
            return []
        entries = address.storage.list_files(address.uri)
    except (StorageUnavailable, WrongCluster) as error:
        return str(error)
    except failures.STORAGE_ERRORS as error:
        return str(failures.unavailable("list the files of", address.uri, error))
    return [
        entry
        for entry in entries
        if entry.name.startswith(f"{TABLET}=")
        and entry.name.endswith(".parquet")
        and places.TEMPORARY not in entry.name
    ]


def _described(address: ReplicaAddress, entry: FileEntry) -> ExpectedFile | None:
    """A file by its footer; None for one that is not whole, or cannot be read now."""
    uri = places.join(address.uri, entry.name)
    try:
        file = address.storage.within_deadline("read", uri, partial(_by_footer, address, entry))
        _ = file.window
        require_sealed(address.storage, file, uri)
    except (DamagedBytes, StorageUnavailable, InvalidRequest, pa.ArrowException, OSError, ValueError):
        return None
    return ExpectedFile(file, address)


def _by_footer(address: ReplicaAddress, entry: FileEntry) -> DataFile:
    filesystem, path = address.storage.filesystem(places.join(address.uri, entry.name))
    source = pq.ParquetFile(filesystem.open_input_file(path), page_checksum_verification=True)
    tokens, times, deletes = (_range(source, name) for name in (TOKEN, WRITTEN_AT, DELETED))
    return DataFile(
        file_id=id_in(entry.name),
        label=entry.name.partition("/")[0].partition("=")[2],
        path=entry.name,
        size=entry.size,
        rows=source.metadata.num_rows,
        min_token=tokens[0],
        max_token=tokens[1],
        min_written_at=times[0],
        max_written_at=times[1],
        has_tombstones=bool(deletes[1]),
    )


def _range(source: pq.ParquetFile, name: str) -> tuple[int, int]:
    """The least and the greatest value of a system column, by the footer or else by its values; zeros without a row."""
    footer = source.metadata
    if not footer.num_rows:
        return 0, 0
    number = column_number(footer, name)
    ranges = [range_in_group(footer, group, number) for group in range(footer.num_row_groups)]
    known = [one for one in ranges if one is not None]
    if len(known) == len(ranges):
        return min(low for low, _ in known), max(high for _, high in known)
    found = pc.min_max(source.read([name], use_threads=False).column(name)).as_py()
    return found["min"], found["max"]
