"""The demo's pipeline: one process with a Spark session, which writes the batches and reads the table.

It does what it is told, a line of JSON on stdin each, and answers with a line on stdout; so whoever tells
it knows at every instant what was acknowledged. `{"write": 3}` writes the third month, `{"write": 3, "last": 1}` the
first of its parts, `{"count": true}` counts at QUORUM, `{"checksum": "ALL"}` reads everything at a level. It ends with
its input.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

import msgspec
from epochlake import EpochlakeError, Pipeline, open_cluster, session
from epochlake.jobs.demo import checksum, flights
from epochlake.jobs.demo.orders import Answer, Command
from epochlake.metastore.configuration import load
from epochlake.metastore.diagnostics import start_logging
from epochlake.placement.decoding import decodable
from pyspark.errors import PySparkException

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession

PIPELINE = "demo-flights"
LEVEL = "QUORUM"
SPARK = {
    "spark.driver.memory": "1500m",
    "spark.sql.shuffle.partitions": "2",
    # Many short jobs on few cores: what is compiled best is hardly run before the end, and starting counts.
    "spark.driver.defaultJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}


def main(argv: list[str]) -> int:
    """`writer CONFIGURATION MONTHS ROWS`: serve commands until stdin ends. The first line out says that it is ready."""
    configuration_file, months, rows = argv
    configuration = load(configuration_file)
    start_logging(configuration.logging)
    with _answers() as answers:
        spark = session("epochlake-demo", master="local[2]", extra=SPARK)
        source = flights.source(int(months), int(rows))
        try:
            with open_cluster(configuration) as cluster, cluster.pipeline(PIPELINE, spark) as pipeline:
                _warm_up(spark)
                _say(answers, Answer(time.time(), time.time(), pipeline.epoch))
                for line in sys.stdin.buffer:
                    _say(
                        answers,
                        _carried_out(msgspec.json.decode(line, type=decodable(Command)), pipeline, spark, source),
                    )
        finally:
            spark.stop()
    return 0


def _carried_out(command: Command, pipeline: Pipeline, spark: SparkSession, source: pd.DataFrame) -> Answer:
    started = time.time()
    planned = pipeline.epoch
    try:
        found = _results(command, pipeline, spark, source)
    except (EpochlakeError, PySparkException) as error:
        found = {"error": f"{type(error).__name__}: {error}"}
    return Answer(started=started, ended=time.time(), epoch=pipeline.epoch, planned_epoch=planned, **found)


def _results(command: Command, pipeline: Pipeline, spark: SparkSession, source: pd.DataFrame) -> dict[str, Any]:
    if command.write is not None:
        part = flights.part_of(source, command.write, command.first, command.last)
        rows = spark.createDataFrame(flights.as_arrow(part))
        batch = f"month-{command.write}-parts-{command.first + 1}-to-{command.last}"
        written = pipeline.write(rows, flights.TABLE, consistency=LEVEL, batch=batch)
        return {
            "rows": written.rows,
            "files": written.files,
            "bytes": written.bytes,
            "rounds": written.rounds,
            "missing": written.missing,
        }
    if command.checksum is not None:
        return {"checksum": checksum.of_rows(pipeline.read(flights.TABLE, consistency=command.checksum))}
    return {"rows": pipeline.read(flights.TABLE, consistency=LEVEL).count()}


def _warm_up(spark: SparkSession) -> None:
    """Start Spark's Python workers, so that the first batch is as fast as the others."""
    spark.range(2).mapInArrow(lambda batches: batches, "id bigint").collect()


@contextmanager
def _answers() -> Iterator[IO[bytes]]:
    """Where answers go: stdout as it was, while all else that is printed here or by Spark's JVM goes to stderr."""
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        yield answers


def _say(answers: IO[bytes], answer: Answer) -> None:
    answers.write(msgspec.json.encode(answer) + b"\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
