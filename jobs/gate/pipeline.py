"""`Pipeline`: one run of a Spark job that reads and writes through the gate."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from epochlake.jobs.few_rows import few_rows
from epochlake.jobs.gate.arrow_conform import held
from epochlake.jobs.gate.arrow_reading import count_all, question, round_damage
from epochlake.jobs.gate.arrow_rows import ArrowRows, rows_to_write
from epochlake.jobs.gate.batches import Count
from epochlake.jobs.gate.conform import conform, conform_changes, conform_keys, only_windows, require_dataframe
from epochlake.jobs.gate.gate import Gate
from epochlake.jobs.gate.merge import Merge, Run, as_named, overwrite
from epochlake.jobs.gate.merging import Merged
from epochlake.jobs.gate.row_digests import RowDigest
from epochlake.jobs.gate.rows import Rows
from epochlake.jobs.gate.writing import Written
from epochlake.jobs.replicas.answering import read_asked
from epochlake.jobs.replicas.encoding import ROW_DIGEST
from epochlake.jobs.replicas.reading import read_plan
from epochlake.jobs.replicas.schema import DELETED
from epochlake.jobs.replicas.staging import Announce, StagedFile, stage, wrapped
from epochlake.jobs.replicas.staging_plan import StagingPlan
from epochlake.metastore.errors import StorageUnavailable
from epochlake.metastore.metadata.model import Table
from epochlake.placement.tokens import Interval
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    from epochlake.jobs.replicas.store import Store


class SparkRows:
    """Rows in a DataFrame, which Spark stages (rows.py). Where they are few they are taken once, and staged here."""

    def __init__(self, rows: DataFrame, table: Table) -> None:
        self._rows = rows
        self._table = table

    def stage(
        self, plan: StagingPlan, *, digest: RowDigest | None = None, announce: Announce | None = None
    ) -> list[StagedFile]:
        if self._few is not None:
            return self._few.stage(plan, digest=digest, announce=announce)
        rows = self._rows
        return stage(rows if digest is None else rows.withColumn(ROW_DIGEST, digest.of_spark(rows.columns)), plan)

    def counted(self, digest: RowDigest) -> Count:
        if self._few is not None:
            return self._few.counted(digest)
        total = F.sum(digest.of_spark(self._rows.columns).cast("decimal(20,0)"))
        [row] = self._rows.agg(F.count(F.lit(1)).alias("rows"), total.alias("digest")).collect()
        return Count(int(row["rows"]), wrapped(int(row["digest"] or 0)))

    def within(self, windows: Collection[Interval]) -> Rows:
        if self._few is not None:
            return self._few.within(windows)
        return SparkRows(self._rows.transform(only_windows(self._table, windows)), self._table)

    @cached_property
    def _few(self) -> ArrowRows | None:
        few = None if DELETED in self._rows.columns else few_rows(self._rows)
        return None if few is None else rows_to_write(few, self._table)


class _Collected:
    """The rows of a DataFrame as Arrow, taken once when they are asked for."""

    def __init__(self, rows: DataFrame) -> None:
        self._rows = rows

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._taken.__arrow_c_stream__(requested_schema)

    @cached_property
    def _taken(self) -> pa.Table:
        return self._rows.toArrow()


class Pipeline:
    """A run of a Spark job at the gate; use it in a `with`. Its methods are not for several threads at once.

    `datacenter` is where it runs: LOCAL_QUORUM counts there, and reads prefer it.
    """

    def __init__(self, cluster: Store, name: str, spark: SparkSession, datacenter: str | None = None) -> None:
        self.gate = Gate(cluster, name, datacenter)
        self._spark = spark

    def __repr__(self) -> str:
        return f"<pipeline {self.name} of cluster {self.cluster.metadata.identity.name}>"

    @property
    def cluster(self) -> Store:
        return self.gate.cluster

    @property
    def name(self) -> str:
        return self.gate.name

    @property
    def pipeline_id(self) -> str:
        return self.gate.pipeline_id

    @property
    def epoch(self) -> int:
        """The committed epoch that this pipeline plans at."""
        return self.gate.epoch

    def __enter__(self) -> Self:
        """Announce the pipeline. Raises CoordinationUnavailable when that is impossible: see `Presence.begin`."""
        self.gate.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.gate.__exit__(kind, error, trace)

    def write(
        self,
        rows: DataFrame,
        table: str,
        *,
        deletes: DataFrame | None = None,
        consistency: str | None = None,
        batch: str | None = None,
    ) -> Written:
        """Write rows: insert them, or replace those with the same primary key (append-only tables only insert).

        Returns when every range's acknowledgements have reached `consistency` in the placement of the newest epoch.
        `batch` names the write, so that writing it again (a retried job) lands it once: what was staged first counts.
        The rows given then have to be the same, in any order, else it is Rejected (batch-used). Without a name each
        call is a batch of its own. Rows that are surely few are taken once, and staged by this process, which is sooner
        done. `deletes`: keys whose rows are deleted in the same write; none may be among those of `rows`. Raises
        InvalidRequest for rows that do not fit, ConsistencyNotReached.
        """
        self.gate.require_open()
        self.gate.planning.follow_names(table)
        if deletes is None:
            fitting, target = self.gate.planning.conformed(table, partial(conform, rows))
            return self.gate.write(SparkRows(fitting, target), target, consistency, batch)
        fitting, target = self.gate.planning.conformed(table, partial(conform_changes, rows, deletes))
        return self.gate.write(SparkRows(fitting, target), target, consistency, batch, changes=True)

    def delete(
        self, keys: DataFrame, table: str, *, consistency: str | None = None, batch: str | None = None
    ) -> Written:
        """Delete the rows with the primary keys in `keys` (its other columns do not count)."""
        self.gate.require_open()
        self.gate.planning.follow_names(table)
        fitting, target = self.gate.planning.conformed(table, partial(conform_keys, keys))
        return self.gate.write(SparkRows(fitting, target), target, consistency, batch, deleted=True)

    def merge(self, source: DataFrame, table: str) -> Merge:
        """Merge rows into a table by its key: say with clauses what becomes of rows that are there and of others.

            pipeline.merge(rows, "shop.stock").when_matched_update({"n": "target.n + source.n"}).execute()

        Nothing is done before `Merge.execute`, which says what it promises. The source is brought to the driver then.
        """
        require_dataframe(source, self.gate.planning.table(table), ())
        return Merge(self._opened, table, _Collected(source), around=self._around_merges(table))

    def _around_merges(self, table: str) -> Callable[[Run, str | None], Merged]:
        return as_named

    def overwrite(
        self,
        rows: DataFrame,
        table: str,
        *,
        where: pc.Expression | None = None,
        consistency: str | None = None,
        batch: str | None = None,
    ) -> Merged:
        """Make `rows` the rows of a table, or with `where` of that part of it: see `Cluster.overwrite`.

        The rows are brought to the driver.
        """
        self.gate.require_open()
        fitting = conform(rows, self.gate.planning.table(table))
        return overwrite(self._opened, table, fitting.toArrow(), where, consistency, batch)

    @contextmanager
    def _opened(self) -> Iterator[Gate]:
        self.gate.require_open()
        self.gate.planning.catch_up(0)
        yield self.gate

    def read(
        self,
        table: str,
        *,
        columns: Iterable[str] | None = None,
        where: pc.Expression | None = None,
        keys: object = None,
        consistency: str | None = None,
        as_of: datetime | str | None = None,
    ) -> DataFrame:
        """The rows of a table at a consistency level, pinned now: later writes and clean-ups do not change the result.

        `columns`: only these. `where`: only rows for which it is true, an expression of Arrow, as `Cluster.scan` takes
        it (`pyarrow.compute.field("delay") > 30`). `keys`: only the rows with these primary keys, as a DataFrame, which
        is collected at once, or in any form that `Cluster.write` takes. The result is that of reading everything, and
        choosing then; but keys choose ranges, replicas, files and row groups by their tokens, and a filter on columns
        of the key leaves out row groups before anything is merged.

        Spark reads the files when it needs the rows. Until the end of the `with` they stay where they are. After it
        vacuum may delete files that the table does not have any more, at the earliest an hour later unless it is told
        otherwise: then Spark fails to find them. It never gets other rows than those that were pinned. Collect or
        write before the end what is needed after it.

        Columns that a query does not ask for are not read either, and its filters may skip rows in the files, also
        where several versions of a row are stored. Where `where` or `keys` are given, filters of Spark come after them.
        Of a table with many upserts a filter of Spark on other columns than those of the key is the quicker one.

        A file that is missing or damaged on one replica is read on another; the log says so and `repair` is told. What
        is found damaged only when the frame is executed fails it; leaving the pipeline's `with` by that error notes it
        and raises ReadDisturbed: the next read uses another replica.

        `as_of`: the rows as the writes up to this time have left them, a `datetime` with a zone or ISO 8601 with one
        (docs/history.md). Files that only the past needs stay until the end as well.

        Raises ConsistencyNotReached when too few replicas can be read, RowsUnreadable when no replica has whole copies
        of all rows, InvalidRequest for columns, a filter or keys that do not fit the table, Rejected for an unknown
        table, HistoryNotKept for a time of which not all is kept.
        """
        self.gate.require_open()
        # Asked as often as need be: lists stay what they are.
        columns = list(columns) if isinstance(columns, Iterator) else columns
        keys = held(keys)

        def read(target: Table) -> DataFrame:
            asked_keys = _collected(keys, target) if isinstance(keys, DataFrame) else keys
            everything = columns is None and where is None and asked_keys is None
            of = question(target, columns, where, asked_keys, as_of)

            def planned() -> DataFrame:
                plan = self.gate.plan_read(target, consistency, of.windows, of.as_of)
                try:
                    if everything:
                        return read_plan(self._spark, target, plan).transform(_live(of.bounds))
                    return read_asked(self._spark, target, plan, of.asked)
                except StorageUnavailable as error:
                    self.gate.look_for_damage(error)
                    raise

            return round_damage(planned)

        return self.gate.planning.as_it_is(table, read)

    def count(
        self,
        table: str,
        *,
        where: pc.Expression | None = None,
        keys: object = None,
        consistency: str | None = None,
        as_of: datetime | str | None = None,
    ) -> int:
        """How many rows `read` has: what files say of themselves counts, and the rest is not moved to Spark.

        Sooner than counting a DataFrame. Where there is much to look at, Spark's tasks count. Raises as `read`, and
        ReadDisturbed when files go on being found damaged.
        """
        self.gate.require_open()
        keys = held(keys)

        def count(target: Table) -> int:
            asked_keys = _collected(keys, target) if isinstance(keys, DataFrame) else keys
            return count_all(
                self.gate, question(target, where=where, keys=asked_keys, as_of=as_of), consistency, self._spark
            )

        return self.gate.planning.as_it_is(table, count)


def _live(bounds: Mapping[str, int]) -> Callable[[DataFrame], DataFrame]:
    """Leaves out rows that have expired, in Spark, which skips files and columns by its own filters then."""

    def live(rows: DataFrame) -> DataFrame:
        for name, bound in bounds.items():
            column = F.col(f"`{name}`")
            rows = rows.where(column.isNull() | (column >= F.timestamp_micros(F.lit(bound))))
        return rows

    return live


def _collected(keys: DataFrame, table: Table) -> pa.Table:
    return conform_keys(keys, table).select(*[f"`{name}`" for name in table.primary_key]).toArrow()
