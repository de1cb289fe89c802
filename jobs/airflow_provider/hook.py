"""`EpochlakeHook`: the cluster of a connection, for operators, sensors and tasks of one's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook, get_current_context
from epochlake.jobs.airflow_provider.assets import tell_assets
from epochlake.jobs.airflow_provider.connecting import configuration_of, variables_of
from epochlake.jobs.airflow_provider.ending import task_ends
from epochlake.jobs.airflow_provider.naming import Names, TaskOfRun
from epochlake.jobs.airflow_provider.provider_info import CONNECTION_TYPE
from epochlake.placement.errors import EpochlakeError, InvalidRequest

if TYPE_CHECKING:
    from airflow.sdk import Connection
    from epochlake.jobs.airflow_provider.task_cluster import TaskCluster
    from epochlake.jobs.cluster import Cluster
    from epochlake.metastore.configuration import Configuration

DEFAULT_CONNECTION = "epochlake_default"


class EpochlakeHook(BaseHook):
    """The cluster that a connection of the type `epochlake` leads to.

    `epochlake_conn_id`: the connection; None: the configuration that the process finds by itself, as `open_cluster`
    does. Nothing is opened before it is asked for.
    """

    conn_name_attr = "epochlake_conn_id"
    default_conn_name = DEFAULT_CONNECTION
    conn_type = CONNECTION_TYPE
    hook_name = "Epochlake"

    def __init__(self, epochlake_conn_id: str | None = DEFAULT_CONNECTION) -> None:
        super().__init__()
        self.epochlake_conn_id = epochlake_conn_id

    def variables(self) -> dict[str, str]:
        """The environment variables that say what the connection says; for a process of another program."""
        return {} if self.epochlake_conn_id is None else said_by(self.get_connection(self.epochlake_conn_id))

    def configuration(self) -> Configuration:
        """The configuration with what the connection says put over it. Raises ConfigurationError, InvalidRequest."""
        return configuration_of(self.variables())

    def get_conn(self) -> Cluster:
        """The open cluster; use it in a `with`. Raises what `open_cluster` raises."""
        from epochlake.jobs.cluster import open_cluster  # only here: parsing a DAG imports no Delta

        return open_cluster(self.configuration())

    @contextmanager
    def cluster_of(
        self,
        context: Mapping[str, Any] | None = None,
        *,
        batch: str | None = None,
        outlets: Iterable[object] | None = None,
    ) -> Iterator[TaskCluster]:
        """The open cluster in a task, for a `with`: what is written and changed is named after the task in its run.

        Errors end the task as their exit codes say; at the end assets among the outlets are told what was written.
        `context`: None: that of the task that runs now. `batch`: what goes before names in place of the task's own.
        `outlets`: None: those of the task.
        """
        from epochlake.jobs.airflow_provider.task_cluster import TaskCluster  # only here: it imports Delta

        told = get_current_context() if context is None else context
        with task_ends(), TaskCluster(self.configuration(), Names(batch or TaskOfRun.of(told).name)) as cluster:
            yield cluster
            tell_assets(told, told["task"].outlets if outlets is None else outlets, cluster)

    def test_connection(self) -> tuple[bool, str]:
        """Whether the cluster can be opened, and what it says of itself: for the button of the user interface."""
        try:
            with self.get_conn() as cluster:
                metadata = cluster.metadata
                return True, f"cluster {metadata.identity.name!r} is at epoch {metadata.epoch}"
        except EpochlakeError as error:
            return False, str(error)


def said_by(connection: Connection) -> dict[str, str]:
    """The variables that a connection stands for. Raises InvalidRequest for one of another type."""
    if connection.conn_type != CONNECTION_TYPE:
        raise InvalidRequest(
            f"the connection {connection.conn_id!r} has the type {connection.conn_type!r}",
            hint=f"Make it of the type {CONNECTION_TYPE}",
        )
    return variables_of(connection.host, connection.extra_dejson)
