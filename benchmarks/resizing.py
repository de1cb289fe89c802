"""Ending a split and a merge at sizes that are ten times apart, and cutting files for a split beside copying them.

An end changes numbers and labels, so its time must not depend on bytes. The table has three replicas of each tablet;
their files are one file with three names on disk, which nothing of what is measured can tell.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
from epochlake.jobs.administration.schema import create_table
from epochlake.jobs.coordinator.coordinator import Coordinator
from epochlake.jobs.coordinator.effects.pre_split import THREADS, PreSplit, pre_split_replica
from epochlake.jobs.replicas.commits import commit_files
from epochlake.jobs.replicas.files import DataFile, new_file_id, path_of
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.outcomes import Acknowledged
from epochlake.jobs.replicas.replica import ReplicaAddress
from epochlake.jobs.replicas.row_groups import in_row_groups
from epochlake.jobs.replicas.sealing import sealed_writer
from epochlake.jobs.workers.pace import Pace
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore.metadata.model import Column, Table
from epochlake.placement.tokens import tablet_label, tokens_of_label

from benchmarks.clusters import three_nodes
from benchmarks.harness import STORAGE, Result, ratio_at_least, ratio_at_most, seconds

GIB = 1 << 30
SIZES = (GIB // 10, GIB, 10 * GIB)
TABLETS = 8
FILE_BYTES = 128 << 20
ROW_BYTES = 1 << 10
ROUNDS = 5
COLUMNS = [Column("id", "bigint", False), Column("payload", "binary")]


class _Bench:
    """A cluster of three nodes in three racks with one table, and files of random bytes in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.cluster = three_nodes(directory)
        create_table(self.cluster, "air.blobs", COLUMNS, ("id",), append_only=True, tablets=TABLETS)
        self._dice = np.random.default_rng(42)

    @property
    def table(self) -> Table:
        return self.cluster.catch_up().table("air.blobs")

    @property
    def addresses(self) -> list[ReplicaAddress]:
        metadata = self.cluster.catch_up()
        return [address_of(STORAGE, metadata, self.table, volume) for volume in sorted(metadata.directory.volumes)]

    def fill(self, size: int, count: int) -> int:
        """Files of `size` bytes altogether, each of one of `count` equal ranges, on every replica; how many."""
        files = max(count, -(-size // FILE_BYTES))
        staged = [self._store(tablet_label(number % count, count), size // files) for number in range(files)]
        for number, address in enumerate(self.addresses):
            outcome = commit_files(
                address, staged, epoch=self.cluster.metadata.epoch, app_id=f"fill-{number}", app_version=1
            )
            if not isinstance(outcome, Acknowledged):
                raise RuntimeError(f"the files were not acknowledged: {outcome}")
        return files

    def _store(self, label: str, size: int) -> DataFile:
        rows = max(2, size // ROW_BYTES)
        low, high = tokens_of_label(label)
        tokens = np.sort(self._dice.integers(low, high, rows, dtype=np.int64, endpoint=True))
        noise = pa.py_buffer(self._dice.bytes(rows * ROW_BYTES))
        payload = pa.FixedSizeBinaryArray.from_buffers(pa.binary(ROW_BYTES), rows, [None, noise]).cast(pa.binary())
        content = pa.table(
            {
                "_token": tokens,
                "_written_at": np.ones(rows, np.int64),
                "_deleted": np.zeros(rows, bool),
                "id": tokens,
                "payload": payload,
            }
        )
        file_id = new_file_id()
        first, *others = [Path(address.uri) / path_of(label, file_id) for address in self.addresses]
        first.parent.mkdir(exist_ok=True)
        with STORAGE.new_file(str(first)) as sink, sealed_writer(sink, content.schema, file_id) as writer:
            for group in in_row_groups(content.to_batches()):
                writer.write(group)
        for other in others:
            other.parent.mkdir(exist_ok=True)
            os.link(first, other)
        return DataFile(
            file_id=file_id,
            label=label,
            path=path_of(label, file_id),
            size=first.stat().st_size,
            rows=rows,
            min_token=int(tokens[0]),
            max_token=int(tokens[-1]),
            min_written_at=1,
            max_written_at=1,
            has_tombstones=False,
        )

    def aim(self, target_bytes: int) -> Coordinator:
        """A coordinator that aims at this size of a tablet."""
        settings = self.cluster.configuration
        tablets = msgspec.structs.replace(settings.tablets, target_bytes=target_bytes)
        self.cluster.configuration = msgspec.structs.replace(settings, tablets=tablets)
        return Coordinator(self.cluster)

    def resize(self, target_bytes: int, count: int) -> float:
        """Seconds of one turn of the coordinator: measured, decided, found ready, ended behind a barrier, labelled."""
        track = self.aim(target_bytes).resizing
        taken = seconds(lambda: track.advance(self.cluster.catch_up()))
        [tablet_map] = self.cluster.catch_up().tablets.maps.values()
        if tablet_map.count != count or tablet_map.resize_type != "none":
            raise RuntimeError(f"not ended: {tablet_map.count} tablets, {tablet_map.resize_type}, {track.blocked}")
        return taken


@contextmanager
def _bench() -> Iterator[_Bench]:
    with tempfile.TemporaryDirectory(prefix="epochlake-benchmark-") as directory:
        bench = _Bench(Path(directory))
        try:
            yield bench
        finally:
            bench.cluster.close()


def ending() -> list[Result]:
    """A split and the merge that takes it back, in turns at every size that fits the disk."""
    with ExitStack() as stack:
        benches: dict[int, tuple[_Bench, int]] = {}
        for size in SIZES:
            bench = stack.enter_context(_bench())
            if size > shutil.disk_usage(bench.directory).free // 2:
                print(f"{size / GIB:g} GiB does not fit the disk: left out", file=sys.stderr)
                break
            benches[size] = (bench, bench.fill(size, 2 * TABLETS))
        works = {
            (what, size): partial(bench.resize, target, count)
            for what, target, count in (("split", 1, 2 * TABLETS), ("merge", 1 << 60, TABLETS))
            for size, (bench, _) in benches.items()
        }
        taken: dict[tuple[str, int], list[float]] = {key: [] for key in works}
        for turn in range(ROUNDS + 1):
            for key, work in works.items():
                once = work()
                if turn:
                    taken[key].append(once)
        figures = {key: statistics.median(times) * 1000 for key, times in taken.items()}
        return [
            Result(
                f"ending a {what} of {size / GIB:.1f} GiB in {benches[size][1]} files, {TABLETS} tablets, RF 3",
                figure,
                "ms",
                figures[(what, SIZES[0])],
                f"that of {SIZES[0] / GIB:.1f} GiB",
                ratio_at_most(2),
            )
            for (what, size), figure in figures.items()
        ]


def cutting() -> list[Result]:
    """Making one replica table ready for a split when every file of it straddles a middle."""
    size = GIB // 2
    taken: dict[str, list[float]] = {"cut": [], "copy": [], "safe": []}
    for _ in range(ROUNDS):
        with _bench() as bench:
            bench.fill(size, TABLETS)
            address = bench.addresses[0]
            asked = PreSplit(address, 2 * TABLETS, bench.cluster.metadata.epoch, 0, 1 << 60)
            names = [path for path in Path(address.uri).rglob("*.parquet") if "_delta_log" not in path.parts]
            folder = bench.directory / "copy"
            folder.mkdir()
            taken["copy"].append(seconds(lambda: [shutil.copyfile(path, folder / path.name) for path in names]))  # noqa: B023
            shutil.rmtree(folder)
            folder.mkdir()
            taken["safe"].append(seconds(lambda: _copy_safely(names, folder)))  # noqa: B023
            taken["cut"].append(seconds(lambda: pre_split_replica(asked, Pace(0))))  # noqa: B023
            if not pre_split_replica(asked, Pace(0)).ready:
                raise RuntimeError("files are left that straddle")
    megabytes = size / 1e6
    speeds = {what: megabytes / statistics.median(times) for what, times in taken.items()}
    what = f"cutting {megabytes:.0f} MB in {TABLETS} files at their middles"
    safe = "hashing, copying and syncing the same files"
    return [
        Result(what, speeds["cut"], "MB/s", speeds["safe"], safe, ratio_at_least(0.5)),
        Result(
            "the same, beside a plain copy",
            speeds["cut"],
            "MB/s",
            speeds["copy"],
            "copying the same files, unverified, unsynced",
        ),
    ]


def _copy_safely(names: list[Path], folder: Path) -> None:
    """What a move does: every byte is verified before it is copied, and the copies are on the disk. Four at a time."""

    def copy(path: Path) -> None:
        with open(path, "rb") as stream:
            hashlib.file_digest(stream, "sha256")
        target = folder / path.name
        shutil.copyfile(path, target)
        STORAGE.syncing.sync([str(target)])

    ThreadWorkers(THREADS).run(copy, names)


BENCHMARKS: dict[str, Callable[[], list[Result]]] = {"ending": ending, "cutting": cutting}
