"""Finding stored files whose bytes are not those that were written, and healing them from a good replica.

The one idea: every page of a data file carries a checksum (encoding.py writes them), so a file that decodes with its
checksums verified is good, wherever it lies. As a file has the same bytes under its name on every replica, two that
both decode and differ all the same (a flipped bit in a footer, say) are told apart by their hashes: most votes win.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from epochlake.jobs.dataplane.copying import copy_data_file, file_copy
from epochlake.jobs.dataplane.files import DataFile
from epochlake.jobs.dataplane.replica import STORAGE_ERRORS, ReplicaAddress
from epochlake.metastore import storage
from epochlake.metastore.errors import StorageUnavailable, WrongCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

THREADS = 8
BATCH_ROWS = 1 << 15
CHUNK = 4 << 20

_RESULT_DDL = "number bigint, digest string, damage string"


class StoredFile(msgspec.Struct, frozen=True):
    """A live file of a replica, where it should be stored."""

    file: DataFile
    address: ReplicaAddress

    @property
    def uri(self) -> str:
        return storage.join(self.address.uri, self.file.path)


class Checked(msgspec.Struct, frozen=True):
    """What was found: the hash of all bytes, or what is wrong with them."""

    digest: str | None
    damage: str | None


def check_bytes(stored: StoredFile) -> Checked:
    """Read every byte of a file, and every page with its checksum. Never raises for what is stored there."""
    try:
        size = storage.size_of(stored.uri)
        if size is None:
            return Checked(None, "the file is not there")
        if size != stored.file.size:
            return Checked(None, f"it has {size} bytes of {stored.file.size}")
        filesystem, path = storage.filesystem(stored.uri)
        digest = hashlib.blake2b(digest_size=16)
        with filesystem.open_input_file(path) as stream:
            while chunk := stream.read(CHUNK):
                digest.update(chunk)
            stream.seek(0)
            rows = _decoded_rows(stream)
    except STORAGE_ERRORS as error:
        return Checked(None, str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__)
    except StorageUnavailable as error:
        return Checked(None, str(error))
    if rows != stored.file.rows:
        return Checked(None, f"it has {rows} rows of {stored.file.rows}")
    return Checked(digest.hexdigest(), None)


def _decoded_rows(stream: pa.NativeFile) -> int:
    file = pq.ParquetFile(stream, page_checksum_verification=True)
    return sum(batch.num_rows for batch in file.iter_batches(BATCH_ROWS, use_threads=False))


def check_in_threads(files: Sequence[StoredFile]) -> list[Checked]:
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(check_bytes, files))


def check_with_spark(spark: SparkSession, files: Sequence[StoredFile], partitions: int = 16) -> list[Checked]:
    """`check_bytes` of all files in the executors of a Spark session."""
    if not files:
        return []
    numbers = spark.range(0, len(files), numPartitions=min(partitions, len(files)))
    task = partial(_check_numbered, tuple(files), storage.used_options())
    rows = numbers.mapInArrow(task, _RESULT_DDL).toArrow().sort_by("number").to_pylist()
    return [Checked(row["digest"], row["damage"]) for row in rows]


def _check_numbered(
    files: Sequence[StoredFile], options: dict[str, str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    storage.use_options(options)
    for batch in batches:
        numbers = batch.column(0).to_pylist()
        found = [check_bytes(files[number]) for number in numbers]
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(numbers, pa.int64()),
                pa.array([one.digest for one in found], pa.string()),
                pa.array([one.damage for one in found], pa.string()),
            ],
            names=["number", "digest", "damage"],
        )


def torn_or_missing(address: ReplicaAddress, files: Iterable[DataFile]) -> dict[str, str]:
    """What a listing tells without opening a file: path -> what is wrong with it. Raises StorageUnavailable."""
    sizes = {entry.name: entry.size for entry in storage.list_files(address.uri)}
    found = {}
    for file in files:
        size = sizes.get(file.path)
        if size is None:
            found[file.path] = "the file is not there"
        elif size != file.size:
            found[file.path] = f"it has {size} bytes of {file.size}"
    return found


def outvoted(checked: Sequence[tuple[StoredFile, Checked]]) -> dict[int, str]:
    """Among good copies of one file with one size: numbers of those whose bytes differ from what most of them have.

    All of them where no bytes have most votes: then nobody knows which are right.
    """
    votes = Counter(found.digest for _, found in checked if found.digest is not None)
    if len(votes) <= 1:
        return {}
    (winner, most), (_, second) = votes.most_common(2)
    reason = "its bytes differ from those of the other replicas"
    return {
        number: reason
        for number, (_, found) in enumerate(checked)
        if found.digest is not None and (most == second or found.digest != winner)
    }


def heal(damaged: StoredFile, sources: Sequence[ReplicaAddress]) -> str | None:
    """Put the bytes of a good replica in a damaged file's place, whole or not at all; why not, when that fails."""
    obstacle = "no other replica has good bytes of it: restore it from a backup, or write its rows again"
    for source in sources:
        try:
            copy_data_file(file_copy(damaged.file, source, damaged.address))
        except (StorageUnavailable, WrongCluster) as error:
            obstacle = str(error)
            continue
        again = check_bytes(damaged)
        if again.damage is None:
            return None
        obstacle = f"the copy is damaged as well: {again.damage}"
    return obstacle
