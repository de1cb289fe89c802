"""Where a cluster keeps its log, and how a handle on it is opened: below its root, or in a table that Spark writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from epochlake.metastore.errors import NotInitialised
from epochlake.metastore.log.delta import DeltaLog, create_log_table
from epochlake.metastore.log.epoch_log import EpochLog
from epochlake.metastore.log.generations import DIRECTORY
from epochlake.metastore.log.log_member import DeltaMemberLogs, MemberLogs
from epochlake.metastore.log.majority_log import MajorityLog
from epochlake.metastore.log.no_members import LogWithoutMembers
from epochlake.metastore.log.spark_log import SparkLog, create_spark_log
from epochlake.metastore.storage import places
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class LogPlace(Protocol):
    """A log that may not be there yet."""

    @property
    def uri(self) -> str:
        """Where its files are; empty where Spark keeps them."""
        ...

    @property
    def table(self) -> str:
        """The name of its table where Spark keeps it, else empty."""
        ...

    def is_there(self) -> bool:
        """Whether there is a log that has begun. Raises StorageUnavailable."""
        ...

    def create(self) -> None:
        """Make the empty log; one that is there stays."""
        ...

    def open(self) -> EpochLog:
        """A handle of its own."""
        ...

    def delta(self) -> DeltaLog:
        """A handle on the log's own files. Raises InvalidRequest where Spark keeps them."""
        ...

    def frame(self, spark: SparkSession) -> DataFrame:
        """The log's own table as Spark reads it."""
        ...


class LogBelowRoot(NamedTuple):
    """The Delta table below the root, which is written without Spark.

    `register`: where the root names log members, for a log that is to have none; "" where it may.
    """

    storage: Storage
    uri: str
    compact_every: int = 32
    register: str = ""

    @property
    def table(self) -> str:
        return ""

    def is_there(self) -> bool:
        return self.storage.exists(places.join(self.uri, "_delta_log"))

    def create(self) -> None:
        create_log_table(self.storage, self.uri)

    def open(self) -> EpochLog:
        if not self.register:
            return self.delta()
        log = LogWithoutMembers(self.storage, self.register, self.delta())
        log.require_none()
        return log

    def delta(self) -> DeltaLog:
        return DeltaLog(self.storage, self.uri, compact_every=self.compact_every)

    def frame(self, spark: SparkSession) -> DataFrame:
        return spark.read.format("delta").load(places.spark_uri(self.uri))


class LogWithMembers(NamedTuple):
    """`[log] acknowledge = "majority"`: the log below the root, whose entries count when members have them too."""

    storage: Storage
    root: str
    below: LogBelowRoot

    @property
    def uri(self) -> str:
        return self.below.uri

    @property
    def table(self) -> str:
        return ""

    @property
    def register(self) -> str:
        """Where the root keeps the generations of its members."""
        return places.join(self.root, DIRECTORY)

    @property
    def logs(self) -> MemberLogs:
        """How copies are made and opened."""
        return DeltaMemberLogs(self.storage, self.below.compact_every)

    def is_there(self) -> bool:
        return self.below.is_there()

    def create(self) -> None:
        self.below.create()

    def open(self) -> EpochLog:
        return MajorityLog(self.storage, self.register, self.below.open, self.logs)

    def delta(self) -> DeltaLog:
        return self.below.delta()

    def frame(self, spark: SparkSession) -> DataFrame:
        return self.below.frame(spark)


class LogOfSpark(NamedTuple):
    """`[log] table`: a table by its name, which a Spark session reads and writes."""

    spark: SparkSession
    table: str
    compact_every: int = 32

    @property
    def uri(self) -> str:
        return ""

    def is_there(self) -> bool:
        try:
            return bool(SparkLog(self.spark, self.table).entries(1, 1))
        except NotInitialised:
            return False

    def create(self) -> None:
        create_spark_log(self.spark, self.table)

    def open(self) -> EpochLog:
        return SparkLog(self.spark, self.table, compact_every=self.compact_every)

    def delta(self) -> DeltaLog:
        raise InvalidRequest(
            f"the log is in the table {self.table}, whose files Spark keeps, and this works on files below the root",
            hint="Compact it by OPTIMIZE, and mend it by RESTORE, of the catalog",
        )

    def frame(self, spark: SparkSession) -> DataFrame:
        return spark.table(self.table)
