"""A cluster as a program uses it: its metadata, committing to it, and pipelines through its gate."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Self

from epochlake.jobs.replicas.store import Store
from epochlake.metastore import configuration as configurations
from epochlake.metastore.committing.committer import Committed
from epochlake.metastore.configuration import Configuration
from epochlake.metastore.metastore import init_cluster

if TYPE_CHECKING:
    from epochlake.jobs.gate.pipeline import Pipeline
    from pyspark.sql import SparkSession


def open_cluster(conf: str | Path | Configuration | None = None) -> Cluster:
    """Open the cluster of a configuration, or of a file; None: as `configuration.load` finds it.

    Use it in a `with`. Only the log is read: ZooKeeper and Spark start when something needs them. Raises
    NotInitialised where there is no cluster, WrongCluster where there is another one than the configuration names,
    ConfigurationError, StorageUnavailable, and LogUnreadable.
    """
    return Cluster(configurations.given(conf))


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

        self.require_open()
        return Pipeline(self, name, spark, datacenter)
