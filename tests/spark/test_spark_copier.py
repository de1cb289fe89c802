"""Streaming through executors does what streaming in threads does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from epochlake.jobs.dataplane.copying import file_copy, link_data_file
from epochlake.jobs.dataplane.streaming import Copied, SparkCopier

from tests.support.replicas import make_replica, store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_executors_copy_files_and_say_which_failed(spark: SparkSession, tmp_path: Path) -> None:
    source, target = make_replica(tmp_path, 1), make_replica(tmp_path, 2)
    files = [store(source, ids=range(n)) for n in range(1, 12)]
    (Path(source.uri) / files[4].path).unlink()
    arrived: list[int] = []
    copied = SparkCopier(spark, 3).copy(
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
    assert SparkCopier(spark, how=link_data_file).copy([file_copy(file, source, target)]) == Copied((file,), {})
    assert (Path(target.uri) / file.path).samefile(Path(source.uri) / file.path)
    assert SparkCopier(spark).copy([]) == Copied((), {})
