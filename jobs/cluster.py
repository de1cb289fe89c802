"""A cluster as a program uses it: its metadata, committing to it, its rows with Spark (pipelines) and without."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

from epochlake.jobs.gate.standing import StandingGates
from epochlake.jobs.gate.writing import Written
from epochlake.jobs.replicas.store import Store
from epochlake.metastore import configuration as configurations
from epochlake.metastore import metastore
from epochlake.metastore.committing.committer import Committed
from epochlake.metastore.committing.queue import CommitQueue
from epochlake.metastore.configuration import Configuration
from epochlake.metastore.errors import LogWentBack
from epochlake.metastore.following.history import entries
from epochlake.metastore.log.epoch_log import EpochLog
from epochlake.metastore.log.log_place import LogOfSpark, LogPlace
from epochlake.metastore.planning.streams import StreamLimits
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.showing import Listing, html_of

if TYPE_CHECKING:
    from datetime import datetime

    import pyarrow as pa
    import pyarrow.compute as pc
    from epochlake.jobs.exchange.loading import LoadedPart
    from epochlake.jobs.gate.change_streaming import Changes
    from epochlake.jobs.gate.gate import Gate
    from epochlake.jobs.gate.merge import Merge, Run
    from epochlake.jobs.gate.merging import Merged
    from epochlake.jobs.gate.pipeline import Pipeline
    from epochlake.jobs.views.balancing import BalancePlan
    from epochlake.jobs.views.change_generations import GenerationStatus
    from epochlake.jobs.views.history import Differences, LogRow
    from epochlake.jobs.views.nodes import NodeStatus
    from epochlake.jobs.views.requests import RequestRow
    from epochlake.jobs.views.schema import KeyspaceRow, TableRow, TableShown
    from epochlake.jobs.views.status import Status
    from pyspark.sql import SparkSession


LOOKS, LOOK_SECONDS = 3, 1.0
"""How often the log is looked at before it is said to have gone back, and how long it is waited for in between."""


def open_cluster(conf: str | Path | Configuration | None = None, *, spark: SparkSession | None = None) -> Cluster:
    """Open the cluster of a configuration, or of a file; None: as `configuration.load` finds it.

    Use it in a `with`. Only the log is read: ZooKeeper and Spark start when something needs them. Where `[log] table`
    names a table, `spark` reads and writes it; None: the session that is there, or a new one. Raises NotInitialised
    where there is no cluster, WrongCluster where there is another one than the configuration names, ConfigurationError,
    StorageUnavailable, and LogUnreadable.
    """
    configuration = configurations.given(conf)
    return Cluster(configuration, log_place=log_place(configuration, spark))


def init_cluster(
    conf: str | Path | Configuration | None = None,
    name: str | None = None,
    *,
    reason: str = "",
    request_id: str | None = None,
    spark: SparkSession | None = None,
) -> Committed:
    """Begin a cluster at the root of a configuration, or of a file; None: as `configuration.load` finds it.

    `name` goes before the name in the configuration. Of two programs that begin at once, one is Rejected
    (already-initialised). A call that was killed half-way can be made again; with the same `request_id`, also a call
    that was not. `spark`: see `open_cluster`. Raises Rejected, ConfigurationError, CommitTimeout, CommitUnknown,
    StorageUnavailable, and LogUnreadable where the root has files of a cluster that has lost its log.
    """
    configuration = configurations.given(conf)
    place = log_place(configuration, spark)
    return metastore.init_cluster(configuration, name, reason=reason, request_id=request_id, log_place=place)


def log_place(configuration: Configuration, spark: SparkSession | None = None) -> LogPlace | None:
    """Where the log is when it is not below the root; then a session is started where there is none."""
    if not configuration.log.table:
        return None
    from epochlake.jobs.spark_session import session  # only here: a log below the root needs no Spark

    return LogOfSpark(spark or session("epochlake"), configuration.log.table, configuration.log.compact_every)


def initialise(
    configuration: Configuration, name: str | None = None, *, reason: str = "", request_id: str | None = None
) -> Committed:
    """`init_cluster`, by the name that it had before the public API. Goes with release 0.3."""
    _warn_of("initialise", "init_cluster")
    return init_cluster(configuration, name, reason=reason, request_id=request_id)


def _warn_of(old: str, new: str) -> None:
    message = f"epochlake.jobs.cluster.{old} is now epochlake.{new}; release 0.3 drops the old name"
    warnings.warn(message, DeprecationWarning, stacklevel=3)


class Cluster(Store):
    """An open cluster: see `open_cluster`. Safe for use by several threads; close it, or use it in a `with`.

    `metadata` is the newest metadata known here; `catch_up()` asks the log.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        storage: Storage | None = None,
        log: EpochLog | None = None,
        queue: CommitQueue | None = None,
        log_place: LogPlace | None = None,
    ) -> None:
        """See `Metastore`."""
        super().__init__(configuration, storage=storage, log=log, queue=queue, log_place=log_place)
        self._gates = StandingGates(self)

    def _compare_with_replicas(self) -> None:
        from epochlake.jobs.upkeep.known_to_replicas import newest_beyond  # only here: most processes never ask

        for look in range(LOOKS):
            # The log is looked at again: network file systems show files late.
            found = newest_beyond(self.storage, self.catch_up(), self.log)
            if found is None:
                return
            if look + 1 == LOOKS:
                name, fence = found
                raise LogWentBack(self.metadata.epoch, fence.epoch, "", f"the replica table {name}")
            time.sleep(LOOK_SECONDS)

    def __repr__(self) -> str:
        known = self.follower.metadata
        closed = ", closed" if self._closed else ""
        return f"<cluster {known.identity.name} at epoch {known.epoch}, root {self.root.uri}{closed}>"

    def _repr_html_(self) -> str:
        from epochlake.jobs.views.overview import overview

        return html_of(overview(self.root.uri, self.storage, self.follower.metadata))

    @classmethod
    def open(cls, conf: str | Path | Configuration | None = None) -> Self:
        """`open_cluster`, by the name that it had before the public API. Goes with release 0.3."""
        _warn_of("Cluster.open", "open_cluster")
        return cls(configurations.given(conf))

    def pipeline(self, name: str, spark: SparkSession, *, datacenter: str | None = None) -> Pipeline:
        """A run of a Spark job at the gate of this cluster; use it in a `with`, while the cluster is open.

        `name` is shown to operators. LOCAL_QUORUM counts in `datacenter`, and reads prefer its replicas. Raises
        InvalidRequest when the cluster was closed.
        """
        from epochlake.jobs.gate.pipeline import Pipeline  # only here: most commands start no Spark
        from epochlake.jobs.spark_session import require_session

        self.require_open()
        require_session(spark)
        return Pipeline(self, name, spark, datacenter)

    def write(
        self,
        table: str,
        rows: object,
        *,
        deletes: object = None,
        consistency: str | None = None,
        batch: str | None = None,
        datacenter: str | None = None,
    ) -> Written:
        """Write rows without Spark, as `Pipeline.write` does: the same promises, levels, batches and errors.

        `rows` are a table, a batch or a reader of Arrow (which gives its rows once: a second write needs another one),
        whatever else gives itself as a stream of Arrow, a DataFrame of pandas (its index does not count, and what it
        takes for missing is null), or a list of dicts. They are held in memory. No value is changed: a type is widened
        where that changes nothing (an int for a bigint), and only a number of Python for a column of the type float is
        rounded. `deletes`: keys whose rows are deleted in the same write; none may be among those of `rows`.
        LOCAL_QUORUM counts in `datacenter`. A batch may be begun with Spark and tried again without, and the
        other way round. Raises InvalidRequest for rows that do not fit and for a closed cluster, ConsistencyNotReached,
        Rejected, CoordinationUnavailable.
        """
        from epochlake.jobs.gate.arrow_conform import held
        from epochlake.jobs.gate.arrow_rows import rows_to_change, rows_to_write  # only here: most commands write none

        rows = held(rows)
        with self._gates.gate(datacenter) as gate:
            if deletes is None:
                fitting, target = gate.planning.conformed(table, lambda target: rows_to_write(rows, target))
                return gate.write(fitting, target, consistency, batch)
            gone = held(deletes)
            changes, target = gate.planning.conformed(table, lambda target: rows_to_change(rows, gone, target))
            return gate.write(changes, target, consistency, batch, changes=True)

    def delete(
        self,
        table: str,
        keys: object,
        *,
        consistency: str | None = None,
        batch: str | None = None,
        datacenter: str | None = None,
    ) -> Written:
        """Delete the rows with the primary keys in `keys` (its other columns do not count), as `write` writes them."""
        from epochlake.jobs.gate.arrow_conform import held
        from epochlake.jobs.gate.arrow_rows import rows_to_delete

        keys = held(keys)
        with self._gates.gate(datacenter) as gate:
            fitting, target = gate.planning.conformed(table, lambda target: rows_to_delete(keys, target))
            return gate.write(fitting, target, consistency, batch, deleted=True)

    def merge(self, table: str, source: object, *, datacenter: str | None = None) -> Merge:
        """Merge rows into a table by its key: say with clauses what becomes of rows that are there and of others.

            cluster.merge("shop.stock", rows).when_matched_update({"n": "target.n + source.n"}).execute()

        `source`: rows in any form that `write` takes, with the key and any other columns. Nothing is done before
        `Merge.execute`, which says what it promises and raises.
        """
        from epochlake.jobs.gate.merge import Merge

        return Merge(lambda: self._gates.gate(datacenter), table, source, around=self._around_merges(table))

    def _around_merges(self, table: str) -> Callable[[Run, str | None], Merged]:
        from epochlake.jobs.gate.merge import as_named

        return as_named

    def overwrite(
        self,
        table: str,
        rows: object,
        *,
        where: pc.Expression | None = None,
        consistency: str | None = None,
        batch: str | None = None,
        datacenter: str | None = None,
    ) -> Merged:
        """Make `rows` the rows of a table, or with `where` of that part of it: others that are there are deleted.

        New rows and deletes are one write. Of each replica they become part in one commit, so that no read of it sees
        neither; while the commits of several replicas and ranges come in, a read may see some of them. Rows that others
        write meanwhile stay, unless they replace one that is deleted here and were begun before. Merges and overwrites
        come one after another. `where`: an expression of Arrow, true for all of `rows`. Levels and batches are those
        of `Merge.execute`, which says what is raised as well.
        """
        from epochlake.jobs.gate.merge import overwrite

        return overwrite(lambda: self._gates.gate(datacenter), table, rows, where, consistency, batch)

    def get(
        self,
        table: str,
        key: object,
        *,
        consistency: str | None = None,
        datacenter: str | None = None,
        as_of: datetime | str | None = None,
    ) -> Mapping[str, object] | None:
        """The row with a primary key, as a dict; None when there is none.

        `key`: a dict with the key's columns, or its value where it is one column. The same row that a read of the whole
        table shows at this moment, or with `as_of` as of that time; in a table that is append-only one of those that
        have the key. Raises InvalidRequest for a key that does not fit, ConsistencyNotReached, RowsUnreadable,
        ReadDisturbed, HistoryNotKept, Rejected for a table that there is not.
        """
        from epochlake.jobs.gate.arrow_reading import key_of, question, read_one

        with self._gates.gate(datacenter) as gate:
            return gate.planning.as_it_is(
                table,
                lambda target: read_one(gate, question(target, keys=key_of(target, key), as_of=as_of), consistency),
            )

    def scan(
        self,
        table: str,
        *,
        columns: Iterable[str] | None = None,
        where: pc.Expression | None = None,
        keys: object = None,
        consistency: str | None = None,
        datacenter: str | None = None,
        as_of: datetime | str | None = None,
    ) -> pa.RecordBatchReader:
        """The rows of a table without Spark, pinned now, as a stream of batches of Arrow, in no order.

        `columns`: only these. `where`: only rows for which it is true, an expression of Arrow
        (`pyarrow.compute.field("delay") > 30`). `keys`: only the rows with these primary keys, in any form that `write`
        takes. Memory is bounded, however many rows there are. Until the stream has been read, or nobody holds it any
        more, a lease keeps its files where they are.

        `as_of`: the rows as the writes up to this time have left them, a `datetime` with a zone or ISO 8601 with one
        (docs/history.md). Files that only the past needs stay until the end as well.

        Raises InvalidRequest for what does not fit the table, ConsistencyNotReached, RowsUnreadable, Rejected,
        HistoryNotKept for a time of which not all is kept. Reading
        the stream raises ReadDisturbed for a file that is found damaged only then: the next read goes round it.
        """
        from epochlake.jobs.gate.arrow_conform import held
        from epochlake.jobs.gate.arrow_reading import question, read_all

        with ExitStack() as stack:
            gate = stack.enter_context(self._gates.gate(datacenter))
            # Asked as often as need be: lists stay what they are.
            names = list(columns) if isinstance(columns, Iterator) else columns
            wanted = held(keys)
            return gate.planning.as_it_is(
                table, lambda target: read_all(gate, stack, question(target, names, where, wanted, as_of), consistency)
            )

    def changes(
        self,
        table: str,
        *,
        after: int | str | None = None,
        up_to: int | None = None,
        reader: str | None = None,
        columns: Iterable[str] | None = None,
        late: bool = True,
        follow: bool = False,
        before: bool = False,
        generation: int | None = None,
        stream: int | None = None,
    ) -> Changes:
        """The changes of a table whose changes are kept (`keep_changes`), in order; iterate over it for batches.

        A batch has the table's columns (or `columns`), `_change` (upsert, insert in a table that is append-only, or
        delete), `_written_at`, `_position` and `_late`: whether a newer change of the key comes before it. Whoever
        applies the changes that are not late, in their order, comes to what reads show; `late=False` leaves these out.

        After `after`, a position or a `bookmark`; None: after what the named `reader` has told of, or from the oldest
        that is kept. Up to the position `up_to`, None: the newest; with `follow` it ends with the stream.
        With `before` each change has `_before` as well: the row that its key had before it, in the order of the stream;
        null where there was none, and for changes that are late. Where that is older than all changes that are kept, it
        is read from the table as it was, and HistoryNotKept is raised where that is not kept (`keep_history`).
        With a `generation` and a `stream` of it (`change_generations`) only the changes of that range of tokens are
        given, from where the generation begins to where it ends.
        docs/changes.md says all of it. Raises Rejected (no-changes), ChangesGone where the position is not kept any
        more, or is of another stream, InvalidRequest for what is no position, StorageUnavailable.
        """
        from epochlake.jobs.gate.change_before import rows_as_of
        from epochlake.jobs.gate.change_streaming import Changes, require_switches

        require_switches(before=before)
        return Changes(
            self,
            table,
            after=after,
            up_to=up_to,
            reader=reader,
            columns=columns,
            late=late,
            follow=follow,
            as_of=rows_as_of(self) if before else None,
            generation=generation,
            stream=stream,
        )

    def change_generations(self, table: str) -> Listing[GenerationStatus]:
        """The generations of streams that the changes of a table are divided into, the oldest first. Raises Rejected
        where its changes are not kept.
        """
        from epochlake.jobs.views.change_generations import generations_of

        return generations_of(self.catch_up(), table)

    def changes_position(self, table: str) -> int:
        """Where the changes of a table end now: a scan that begins after this call shows all of them up to there."""
        from epochlake.jobs.gate.change_streaming import open_stream

        return open_stream(self, self.catch_up(), table).index.tail().position

    def load(
        self,
        table: str,
        files: str | Path | Iterable[str | Path],
        *,
        batch: str | None = None,
        consistency: str | None = None,
        datacenter: str | None = None,
    ) -> list[LoadedPart]:
        """Write the rows of files: Parquet, CSV, JSON by the line or Arrow, directories and patterns of them.

        Each 500,000 rows of a file are a write. With `batch` each has a name of its own, and a load that ended half-way
        is called again: what has landed is `already` there. Columns that a file lacks have their default, or are null,
        and types are cast where that loses nothing; the results say so. Raises InvalidRequest for a file that does not
        fit, of which nothing has landed then, and as `write`.
        """
        from epochlake.jobs.exchange.loading import load_files

        named = [files] if isinstance(files, str | Path) else files
        if not isinstance(named, Iterable):
            raise InvalidRequest(f"{files!r} is no name of a file", hint="Give a path, or a list of them")
        return load_files(self, table, named, batch=batch, consistency=consistency, datacenter=datacenter)

    def sql(self, query: str, *, consistency: str | None = None, datacenter: str | None = None) -> pa.RecordBatchReader:
        """Ask a SELECT of DuckDB over tables by their names (`FROM air.flights`), as a stream of batches of Arrow.

        Each table is read as `scan` does, once, and only the columns that are needed. Needs `epochlake[sql]`. Raises
        InvalidRequest for what is no SELECT or does not fit, and as `scan`.
        """
        from epochlake.jobs.exchange.sql import ask

        if not isinstance(query, str):
            raise InvalidRequest(f"{query!r} is no query", hint='Write one SELECT: "SELECT count(*) FROM air.flights"')
        return ask(self, query, consistency, datacenter)

    def count(
        self,
        table: str,
        *,
        where: pc.Expression | None = None,
        keys: object = None,
        consistency: str | None = None,
        datacenter: str | None = None,
        as_of: datetime | str | None = None,
    ) -> int:
        """How many rows `scan` shows, counted without handing them out.

        Raises as `get`, and InvalidRequest for a filter that does not fit.
        """
        from epochlake.jobs.gate.arrow_conform import held
        from epochlake.jobs.gate.arrow_reading import count_all, question

        keys = held(keys)
        with self._gates.gate(datacenter) as gate:
            return gate.planning.as_it_is(
                table,
                lambda target: count_all(gate, question(target, where=where, keys=keys, as_of=as_of), consistency),
            )

    def changed_rows(
        self,
        table: str,
        since: datetime | str,
        until: datetime | str | None = None,
        *,
        consistency: str | None = None,
        datacenter: str | None = None,
    ) -> pa.RecordBatchReader:
        """The rows that differ between two times (`until` None: now), as a stream of batches of Arrow, in no order.

        The columns of the table, as they were at `until`, of a removed row as they were at `since`; `_change`, which is
        `added`, `removed` or `changed`; and `_before`, a struct of the row as it was at `since`, null for an added one.
        A row that was changed and changed back is not among them. Raises as `scan`.
        """
        from epochlake.jobs.administration.past_rows import changed_rows

        return changed_rows(self, table, since, until, consistency=consistency, datacenter=datacenter)

    def status(self, *, at: int | None = None, ask_volumes: bool = True) -> Status:
        """The state of the cluster now, or as it was at an epoch: what `epochlake status` shows.

        Without `ask_volumes` only what the metadata says. Raises InvalidRequest for an epoch that is not there.
        """
        from epochlake.jobs.views.status import status

        return status(self, at=at, ask_volumes=ask_volumes)

    def nodes(self, *, at: int | None = None, everything: bool = False) -> Listing[NodeStatus]:
        """The nodes by what the metadata says of them, with `everything` also those that have left."""
        from epochlake.jobs.views.nodes import node_rows

        return node_rows(self.storage, self.at(at), everything=everything)

    def keyspaces(self, *, at: int | None = None) -> Listing[KeyspaceRow]:
        """The keyspaces, now or at an epoch."""
        from epochlake.jobs.views.schema import keyspace_rows

        return keyspace_rows(self.at(at))

    def tables(self, *, at: int | None = None) -> Listing[TableRow]:
        """The tables, now or at an epoch."""
        from epochlake.jobs.views.schema import table_rows

        return table_rows(self.at(at))

    def table(self, name: str, *, at: int | None = None) -> TableShown:
        """A table's columns, options, and how its tablets or ranges are spread. Raises Rejected (unknown-table)."""
        from epochlake.jobs.views.schema import shown_table

        return shown_table(self.at(at), name)

    def requests(self, *, at: int | None = None, everything: bool = False) -> Listing[RequestRow]:
        """The open topology requests, with `everything` also those that have ended; the newest last."""
        from epochlake.jobs.views.requests import request_rows

        return request_rows(self.at(at), everything=everything)

    def history(self, first: int = 1, last: int | None = None) -> Listing[LogRow]:
        """What changed, when, by whom and why: the entries of epochs `first` to `last`, both included.

        Raises InvalidRequest for a range that is empty or begins after the tail, LogUnreadable.
        """
        from epochlake.jobs.views.history import log_row

        metadata = self.catch_up()
        return Listing(log_row(entry, metadata) for entry in entries(self.log(), first, last))

    def diff(self, before: int, after: int | None = None) -> Differences:
        """What differs between two epochs; None: the newest."""
        from epochlake.jobs.views.history import differences

        newer = self.at(after)
        return differences(self.at(before), newer)

    def plan_balance(self) -> BalancePlan:
        """What balancing would do now, with its reasons: what `epochlake plan balance` shows. Nothing is changed."""
        from epochlake.jobs.views.balancing import plan_balance

        return plan_balance(self.storage, self.catch_up(), StreamLimits.of(self.configuration.coordinator))

    def gate(self, datacenter: str | None = None) -> AbstractContextManager[Gate]:
        """A run at the gate for a block, for engines that bring rows of their own kind (`jobs/gate/rows.py`)."""
        return self._gates.gate(datacenter)

    def close(self) -> None:
        """Stop what follows the log, end the gates of writes, and leave ZooKeeper. Closing twice does no harm."""
        self._gates.close()
        super().close()
