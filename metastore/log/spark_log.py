"""The epoch log in a Delta table that only Spark may write, such as one that a catalog manages (decision 062).

Delta gives a DataFrame two things to build a compare-and-append on: a write with `txnAppId` and `txnVersion` is left
out when the table has a transaction of that application with the same or a greater version, and of two that run at once
with one application one fails. So an append is the transaction (`epoch-log/G`, first epoch) of the generation G that
was read: whoever has read the same tail wants the same number, and only one gets it, also when the other one was paused
for a day. A write that was left out returns like one that was made, so each append is read back.

A fence begins another generation: it puts one more property, and burns the generation before by an empty write with the
greatest version there is. Properties are only added, so nobody who is slow sets the number back. Who meets a new
generation burns the one before as well before it reads or fences, so that a fence that was killed half-way leaves no
old generation open beside a new one.

Transactions are never forgotten: `delta.setTransactionRetentionDuration` is not to be set. Epochs are no versions of
the table here either; `OPTIMIZE` may run at any time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from epochlake.metastore.errors import ConfigurationError, LogUnreadable, NotInitialised, StorageUnavailable
from epochlake.metastore.log.entry import Entry
from epochlake.metastore.log.epoch_log import AppendConflict, AppendUncertain, ends_too_early
from epochlake.metastore.log.files import SCHEMA, distinct, from_arrow, to_arrow
from epochlake.placement.errors import words_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GENERATION = "epochlake.generation."
"""What properties of the table begin with that number the generations; the greatest is the one that is written in."""

KEPT_GENERATIONS = 20
"""So many properties stay: who is slower than that adds a small number again, which says nothing."""

BURNED = 2**63 - 1
"""The transaction version after which nothing of a generation is written."""

FENCE_TRIES = 20
"""How often a generation is burned while others append."""

_SQL_TYPES = {
    pa.int64(): "BIGINT",
    pa.int32(): "INT",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    # A session may say that TIMESTAMP has no zone.
    pa.timestamp("us", tz="UTC"): "TIMESTAMP_LTZ",
}

_COLUMNS = [(field.name, _SQL_TYPES[field.type], field.nullable) for field in SCHEMA]

_CONFLICT = re.compile(
    r"\[?DELTA_(CONCURRENT_\w+|METADATA_CHANGED|PROTOCOL_CHANGED)\b"
    r"|\bio\.delta\.exceptions\.(Concurrent|MetadataChanged|ProtocolChanged)\w*"
)
"""What an error of Delta says of a write that has met another one, and was certainly not made."""


def create_spark_log(spark: SparkSession, table: str) -> None:
    """Create the empty table, in the form `catalog.schema.table` or ``delta.`/path` ``; keeps one that is there.

    A table that somebody has made with the columns of the log, and properties of a catalog, is taken while it is empty.
    Raises LogUnreadable for one that holds what this log did not write, ConfigurationError, StorageUnavailable.
    """
    columns = ", ".join(f"{name} {kind}{'' if nullable else ' NOT NULL'}" for name, kind, nullable in _COLUMNS)
    try:
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {table} ({columns}) USING delta COMMENT "
            "'Epochlake: one row per epoch. Append only; do not write by hand.' "
            f"TBLPROPERTIES ('delta.appendOnly' = 'true', '{GENERATION}0' = 'begun')"
        )
        if _generations(spark, table):
            return
        if not spark.table(table).isEmpty():
            raise LogUnreadable(
                f"the table {table} holds rows, and is no log that Spark writes", hint="Name another one in [log] table"
            )
        _begin(spark, table, 0)
    except _spark_errors() as error:
        raise _failed("create", table, error) from error


class SparkLog:
    """One handle on the log in a table of Spark; see `EpochLog` for its promises. An append takes seconds.

    `compact_every`: the table is compacted when so many epochs have come.
    """

    def __init__(self, spark: SparkSession, table: str, *, compact_every: int = 32) -> None:
        self.table = table
        self._spark = spark
        self._compact_every = compact_every
        self._generation: int | None = None
        self._used_up: int | None = None
        """The generation in which an append was left out, and nothing had come: its end was announced nowhere."""
        self._version: int | None = None
        self._tail = 0
        self._last: Entry | None = None
        self._is_due = False

    def read(self, after: int, up_to: int | None = None) -> list[Entry]:
        try:
            self._adopt_generation()
            version = self._newest_version()
            if up_to is None and version == self._version and self._last is not None:
                if after == self._last.epoch:
                    return []
                if after == self._last.epoch - 1:
                    return [self._last]
            self._version = self._last = None
            found = self._entries(version, max(after, 1), up_to)
            tail = found[-1].epoch if found and up_to is None else self._last_epoch(version)
            if tail < after:
                raise ends_too_early(after, tail)
            self._version, self._tail, self._last = version, tail, found[-1] if found and up_to is None else None
        except _spark_errors() as error:
            raise _failed("read", self.table, error) from error
        return [entry for entry in found if entry.epoch > after]

    def version(self) -> int | None:
        return self._version

    def append(self, entries: Sequence[Entry]) -> None:
        generation, self._version, self._last = self._generation if self._version is not None else None, None, None
        if generation is None:
            raise AppendConflict("the log was not read before it was appended to")
        first, last = entries[0].epoch, entries[-1].epoch
        if first != self._tail + 1:
            raise AppendConflict(f"epoch {first} was not appended: the log was read up to epoch {self._tail}")
        try:
            self._write(to_arrow(entries), generation, first)
        except _spark_errors() as error:
            if _is_conflict(error):
                raise AppendConflict(f"epoch {first} was not appended: {_said(error)}") from error
            raise AppendUncertain(f"epoch {first}: {_failed('write', self.table, error)}") from error
        # A write that was left out, as somebody else was first, has returned as well.
        try:
            version, found = self._read_back(first)
        except (StorageUnavailable, LogUnreadable, NotInitialised) as error:
            raise AppendUncertain(f"epoch {first} cannot be read back: {_said(error)}") from error
        if found[: len(entries)] != list(entries):
            if not found:
                self._used_up = generation
            raise AppendConflict(f"epoch {first} was not appended: somebody else has appended or fenced before")
        if len(found) == len(entries):
            self._version, self._tail, self._last = version, last, found[-1]
        self._is_due = self._is_due or (first - 1) // self._compact_every != last // self._compact_every

    def fence(self) -> None:
        try:
            generation = _generation(self._spark, self.table)
            self._burn(generation - 1)
            self._repeated(partial(_begin, self._spark, self.table, generation + 1))
            self._burn(generation)
        except _spark_errors() as error:
            raise AppendUncertain(f"the log in {self.table} cannot be fenced: {_said(error)}") from error
        except (LogUnreadable, StorageUnavailable) as error:
            raise AppendUncertain(f"the log in {self.table} cannot be fenced: {error}") from error

    def request_epochs(self, up_to: int) -> dict[str, int]:
        try:
            rows = self._spark.table(self.table).where(f"epoch <= {up_to}").select("request_id", "epoch").collect()
        except _spark_errors() as error:
            raise _failed("read", self.table, error) from error
        return {row.request_id: row.epoch for row in rows}

    def entry(self, epoch: int) -> Entry:
        found = SparkLog(self._spark, self.table).entries(epoch, epoch)
        if not found:
            raise LogUnreadable(f"epoch {epoch} is not in the log in {self.table}")
        return found[0]

    def entries(self, first: int, last: int | None = None) -> list[Entry]:
        """The entries of some epochs, as they are now. The handle stays where it is. Raises as `read`."""
        return self._read_back(first, last)[1]

    def _read_back(self, first: int, last: int | None = None) -> tuple[int, list[Entry]]:
        """The version of the table that is the newest now, and the entries of some epochs in it."""
        try:
            version = self._newest_version()
            return version, self._entries(version, first, last)
        except _spark_errors() as error:
            raise _failed("read", self.table, error) from error

    def compact_if_due(self) -> bool:
        if not self._is_due:
            return False
        self._is_due = False
        try:
            self._spark.sql(f"OPTIMIZE {self.table}").collect()
        except _spark_errors() as error:
            if _is_conflict(error):
                return False
            raise _failed("compact", self.table, error) from error
        return True

    def _adopt_generation(self) -> None:
        generation = _generation(self._spark, self.table)
        if generation == self._used_up:
            # As after `RESTORE` of the table: it knows of writes whose rows have gone, and would leave all of ours out.
            generation += 1
            self._repeated(partial(_begin, self._spark, self.table, generation))
        if generation == self._generation:
            return
        self._version = self._last = None
        self._burn(generation - 1)
        self._generation = generation

    def _burn(self, generation: int) -> None:
        if generation >= 0:
            self._repeated(partial(self._write, SCHEMA.empty_table(), generation, BURNED))

    def _repeated(self, change: Callable[[], None]) -> None:
        """Make a change, again while it meets those of others."""
        for _ in range(FENCE_TRIES):
            try:
                return change()
            except _spark_errors() as error:
                if not _is_conflict(error):
                    raise
        raise StorageUnavailable(
            f"the log in {self.table} cannot be fenced: others write to it all the time", hint="Try again"
        )

    def _write(self, rows: pa.Table, generation: int, version: int) -> None:
        (
            self._frame(rows)
            .write.format("delta")
            .mode("append")
            .option("txnAppId", f"epoch-log/{generation}")
            .option("txnVersion", version)
            .saveAsTable(self.table)
        )

    def _frame(self, rows: pa.Table) -> DataFrame:
        schema = ", ".join(f"{name} {kind}{'' if nullable else ' NOT NULL'}" for name, kind, nullable in _COLUMNS)
        if not rows.num_rows:
            return self._spark.createDataFrame([], schema)
        return self._spark.createDataFrame(rows).coalesce(1)

    def _newest_version(self) -> int:
        [row] = self._spark.sql(f"DESCRIBE HISTORY {self.table} LIMIT 1").select("version").collect()
        return int(row.version)

    def _entries(self, version: int, first: int, last: int | None) -> list[Entry]:
        wanted = f"epoch >= {first}" + ("" if last is None else f" AND epoch <= {last}")
        rows = self._at(version).where(wanted).select(*SCHEMA.names).toArrow()
        return distinct(from_arrow(rows.cast(SCHEMA).sort_by("epoch")))

    def _last_epoch(self, version: int) -> int:
        return int(self._at(version).agg({"epoch": "max"}).collect()[0][0] or 0)

    def _at(self, version: int) -> DataFrame:
        return self._spark.read.option("versionAsOf", version).table(self.table)


def _generations(spark: SparkSession, table: str) -> list[int]:
    """The generations that the table names, ascending."""
    keys = [row.key for row in spark.sql(f"SHOW TBLPROPERTIES {table}").collect()]
    told = [key.removeprefix(GENERATION) for key in keys if key.startswith(GENERATION)]
    return sorted(int(number) for number in told if number.isdigit())


def _generation(spark: SparkSession, table: str) -> int:
    """The newest. Raises LogUnreadable for a table that is no log of this kind."""
    if generations := _generations(spark, table):
        return generations[-1]
    raise LogUnreadable(
        f"the table {table} is no log that Spark writes: it has no property {GENERATION}0",
        hint="Correct [log] table, or run `epochlake init`",
    )


def _begin(spark: SparkSession, table: str, generation: int) -> None:
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{GENERATION}{generation}' = 'begun')").collect()
    if old := _generations(spark, table)[:-KEPT_GENERATIONS]:
        keys = ", ".join(f"'{GENERATION}{number}'" for number in old)
        spark.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES IF EXISTS ({keys})").collect()


def _spark_errors() -> tuple[type[Exception], ...]:
    """What Spark raises; imported late, as opening a metastore needs no Spark."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return (PySparkException, Py4JError, OSError)


def _is_conflict(error: Exception) -> bool:
    return _CONFLICT.search(_said(error)) is not None


def _said(error: Any) -> str:
    java = getattr(error, "java_exception", None)
    return words_of(error) if java is None else str(java)


def _failed(what: str, table: str, error: Exception) -> Exception:
    said = _said(error).splitlines()[0]
    if "TABLE_OR_VIEW_NOT_FOUND" in said or "DELTA_TABLE_NOT_FOUND" in said or "DELTA_MISSING_DELTA_TABLE" in said:
        return NotInitialised(f"there is no log in the table {table}", hint="Run `epochlake init` first")
    if "PARSE_SYNTAX_ERROR" in said or "INVALID_IDENTIFIER" in said:
        return ConfigurationError(f"{table!r} is no name of a table: {said}", hint="Correct [log] table")
    return StorageUnavailable(f"cannot {what} the log in the table {table}: {said}", hint="Try again")
