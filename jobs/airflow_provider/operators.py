"""Operators: a gated pipeline, work without Spark, a coordinator's run, repair, compaction."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import msgspec
from airflow.sdk import BaseOperator
from epochlake.jobs.airflow_provider.ending import AirflowFailException
from epochlake.jobs.airflow_provider.hook import DEFAULT_CONNECTION, EpochlakeHook
from epochlake.jobs.airflow_provider.naming import TaskOfRun

if TYPE_CHECKING:
    from epochlake.jobs.airflow_provider.task_cluster import TaskCluster
    from pyspark.sql import SparkSession


class EpochlakeOperator(BaseOperator):
    """What all operators share: the connection, and how errors end a task.

    What may pass (exit code 75) and what nobody knows fails the try, and Airflow tries again as often as `retries`
    says. What is rejected, cannot be meant or does not hold fails the task for good.
    """

    template_fields: Sequence[str] = ("epochlake_conn_id",)
    ui_color = "#dff0ea"

    def __init__(self, *, epochlake_conn_id: str | None = DEFAULT_CONNECTION, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.epochlake_conn_id = epochlake_conn_id

    def execute(self, context: Mapping[str, Any]) -> Any:
        """Do the work with the cluster open; the value is made of plain dicts and lists."""
        with self.opened(context) as cluster:
            return plain(self.work(context, cluster))

    def work(self, context: Mapping[str, Any], cluster: TaskCluster) -> Any:
        """What the operator is for."""
        raise TypeError(f"{type(self).__name__} does not say what it does")

    def opened(self, context: Mapping[str, Any], batch: str | None = None) -> AbstractContextManager[TaskCluster]:
        """The cluster as `EpochlakeHook.cluster_of` gives it."""
        return EpochlakeHook(self.epochlake_conn_id).cluster_of(context, batch=batch, outlets=self.outlets)


class EpochlakePipelineOperator(EpochlakeOperator):
    """A gated pipeline in this process: `python_callable(spark, pipeline, *op_args, **op_kwargs)`.

    The pipeline is a `Pipeline`, begun; writes and deletes of it are batches with names of the task in its run, so that
    they land once however often the task is tried. `batch` is what goes before their names in place of the task's: with
    `"{{ ds }}"` a day lands once whatever run brings it. `outlets` that are tables (`table_asset`) learn the epoch.

    `spark_conf`, `master` and `remote` are for `epochlake.session`, which starts Spark where none is there.
    """

    template_fields: Sequence[str] = (
        "epochlake_conn_id",
        "op_args",
        "op_kwargs",
        "batch",
        "datacenter",
        "spark_conf",
        "master",
        "remote",
    )

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] = (),
        op_kwargs: Mapping[str, Any] | None = None,
        batch: str | None = None,
        datacenter: str | None = None,
        spark_conf: Mapping[str, str] | None = None,
        master: str | None = None,
        remote: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not callable(python_callable):
            raise ValueError(f"python_callable is {python_callable!r}: give a function")
        self.python_callable = python_callable
        self.op_args = op_args
        self.op_kwargs = op_kwargs or {}
        self.batch = batch
        self.datacenter = datacenter
        self.spark_conf = spark_conf
        self.master = master
        self.remote = remote

    def execute(self, context: Mapping[str, Any]) -> Any:
        """Open the cluster, start Spark, begin the pipeline, call."""
        name = TaskOfRun.of(context).name
        with self.opened(context, self.batch) as cluster:
            spark = spark_session(name, master=self.master, remote=self.remote, extra=self.spark_conf)
            with cluster.pipeline(name, spark, datacenter=self.datacenter) as pipeline:
                return plain(self.python_callable(spark, pipeline, *self.op_args, **self.op_kwargs))


class EpochlakeClusterOperator(EpochlakeOperator):
    """Work without Spark: `python_callable(cluster, *op_args, **op_kwargs)`.

    The cluster is a `Cluster`, whose writes, deletes and changes have names of the task in its run:
    `cluster.write(table, rows)` lands once, `epochlake.add_node(cluster, …)` asks once. `batch` and `outlets` as for a
    pipeline.
    """

    template_fields: Sequence[str] = ("epochlake_conn_id", "op_args", "op_kwargs", "batch")

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] = (),
        op_kwargs: Mapping[str, Any] | None = None,
        batch: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not callable(python_callable):
            raise ValueError(f"python_callable is {python_callable!r}: give a function")
        self.python_callable = python_callable
        self.op_args = op_args
        self.op_kwargs = op_kwargs or {}
        self.batch = batch

    def execute(self, context: Mapping[str, Any]) -> Any:
        """Open the cluster and call."""
        with self.opened(context, self.batch) as cluster:
            return plain(self.python_callable(cluster, *self.op_args, **self.op_kwargs))


class EpochlakeCoordinatorOperator(EpochlakeOperator):
    """A coordinator's run, until nothing is left to do or for so many `rounds`.

    Where another coordinator leads, this one waits for what that one does. Worth retrying while something is waited
    for.
    """

    def __init__(self, *, rounds: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if rounds is not None and rounds < 1:
            raise ValueError(f"rounds is {rounds}: give at least 1, or None until nothing is left to do")
        self.rounds = rounds
        self._stop = threading.Event()

    def work(self, context: Mapping[str, Any], cluster: TaskCluster) -> Any:
        """The report of the run."""
        from epochlake.jobs.coordinator.coordinator import Coordinator

        done = Coordinator(cluster).run(self.rounds is None, most_rounds=self.rounds, should_stop=self._stop.is_set)
        if self.rounds is None and not self._stop.is_set():
            done.require_idle()
        return done

    def on_kill(self) -> None:
        """Stop between two steps: the next coordinator goes on from there."""
        self._stop.set()


class EpochlakeRepairOperator(EpochlakeOperator):
    """Bring every replica of a table what it lacks, and heal what is damaged; worth retrying where that is not all."""

    template_fields: Sequence[str] = ("epochlake_conn_id", "table")

    def __init__(self, *, table: str, check_bytes: bool = False, spark: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.check_bytes = check_bytes
        self.spark = spark

    def work(self, context: Mapping[str, Any], cluster: TaskCluster) -> Any:
        """The report of the repair."""
        from epochlake.jobs.upkeep.repair import repair

        spark = spark_session(TaskOfRun.of(context).name) if self.spark else None
        done = repair(cluster, self.table, check_bytes=self.check_bytes, spark=spark)
        done.require_complete()
        return done


class EpochlakeCompactOperator(EpochlakeOperator):
    """Put the files of a table together where its readers pay for them; by this process, or with `spark` by executors.

    `seconds` and `bytes`: begin nothing after so much; the next run goes on. Worth retrying where something stood in
    the way.
    """

    template_fields: Sequence[str] = ("epochlake_conn_id", "table")

    def __init__(
        self,
        *,
        table: str,
        spark: bool = False,
        seconds: float | None = None,
        bytes: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        for name, most in (("seconds", seconds), ("bytes", bytes)):
            if most is not None and most <= 0:
                raise ValueError(f"{name} is {most}: give more than 0, or None without an end")
        self.table = table
        self.spark = spark
        self.seconds = seconds
        self.bytes = bytes

    def work(self, context: Mapping[str, Any], cluster: TaskCluster) -> Any:
        """The report of the compaction."""
        from epochlake.jobs.upkeep.compaction import Budget, compact

        spark = spark_session(TaskOfRun.of(context).name) if self.spark else None
        done = compact(cluster, self.table, spark, budget=Budget(self.bytes, self.seconds))
        done.require_complete()
        return done


def spark_session(
    name: str, *, master: str | None = None, remote: str | None = None, extra: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of this process. Raises AirflowFailException where PySpark is not installed."""
    try:
        from epochlake.jobs.spark_session import session
    except ImportError as error:
        raise AirflowFailException(
            f"this task needs PySpark in the worker, and {error.name} is not installed there. Install it, or submit "
            "the job to a Spark of its own with EpochlakeSubmitOperator"
        ) from error
    return session(name, master=master, remote=remote, extra=extra)


def plain(value: object) -> Any:
    """A value as a task hands it on: structs become dicts, all else stays."""
    return msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else value
