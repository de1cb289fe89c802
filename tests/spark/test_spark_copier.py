"""Streaming through executors does what streaming in threads does."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from epochlake.jobs.replicas.copying import PartCopy, file_copy, link_data_file
from epochlake.jobs.replicas.intervals import FilePart
from epochlake.jobs.replicas.streaming import Copied, Copier
from epochlake.jobs.workers.spark import SparkWorkers

from tests.support.replicas import make_replica, store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_executors_copy_files_and_say_which_failed(spark: SparkSession, tmp_path: Path) -> None:
    source, target = make_replica(tmp_path, 1), make_replica(tmp_path, 2)
    files = [store(source, ids=range(n)) for n in range(1, 12)]
    (Path(source.uri) / files[4].path).unlink()
    arrived: list[int] = []
    copied = Copier(SparkWorkers(spark, 3)).copy(
        [file_copy(file, source, target) for file in files], lambda size, rows: arrived.append(size)
    )
    assert list(copied.failed) == [files[4].file_id]
    assert copied.arrived == tuple(file for file in files if file is not files[4])
    assert sum(arrived) == sum(file.size for file in copied.arrived)
    for file in copied.arrived:
        assert (Path(target.uri) / file.path).read_bytes() == (Path(source.uri) / file.path).read_bytes()


def test_executors_link_where_volumes_share_a_file_system(spark: SparkSession, tmp_path: Path) -> None:
    source, target = make_replica(tmp_path, 1), make_replica(tmp_path, 2)
    file = store(source)
    linking = Copier(SparkWorkers(spark), how=link_data_file)
    assert linking.copy([file_copy(file, source, target)]) == Copied((file,), {})
    assert (Path(target.uri) / file.path).samefile(Path(source.uri) / file.path)
    assert Copier(SparkWorkers(spark)).copy([]) == Copied((), {})


def test_executors_cut_what_is_not_wanted_whole_and_keep_to_a_pace(spark: SparkSession, tmp_path: Path) -> None:
    source, target = make_replica(tmp_path, 1), make_replica(tmp_path, 2)
    files = [store(source, ids=range(20)) for _ in range(4)]
    copies = [PartCopy(FilePart(file, file.min_token, file.min_token + 4), source, target) for file in files]
    began = time.monotonic()
    copied = Copier(SparkWorkers(spark, 2), bytes_per_second=sum(copy.size for copy in copies)).copy(copies)
    assert time.monotonic() - began >= 0.4, "each of the two tasks waits for its first copy's time to be over"
    assert copied == Copier().copy(copies)
    assert [(file.rows, file.window) for file in copied.arrived] == [(5, (c.part.low, c.part.high)) for c in copies]
