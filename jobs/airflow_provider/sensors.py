"""Sensors: they wait for a cluster to be as a DAG needs it, by default in a triggerer and not in a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from epochlake.jobs.airflow_provider.conditions import (
    BatchLanded,
    ClusterSettled,
    Condition,
    EpochCommitted,
    RequestEnded,
    TableWritten,
    stored,
)
from epochlake.jobs.airflow_provider.ending import WORTH_RETRYING, AirflowFailException, ended_with, task_ends
from epochlake.jobs.airflow_provider.hook import DEFAULT_CONNECTION, EpochlakeHook
from epochlake.jobs.airflow_provider.triggers import EpochlakeTrigger
from epochlake.placement.errors import EpochlakeError, InvalidRequest


class EpochlakeSensor(BaseSensorOperator):
    """Waits until a condition of a cluster holds; its value is the epoch as of which it was found to hold.

    `deferrable`: a triggerer looks every `poke_interval` seconds, and no worker is held; else the worker does. Fails
    for good where the condition cannot hold any more.
    """

    template_fields: Sequence[str] = ("epochlake_conn_id",)
    ui_color = "#dff0ea"

    def __init__(
        self,
        *,
        epochlake_conn_id: str | None = DEFAULT_CONNECTION,
        deferrable: bool = True,
        poke_interval: timedelta | float = 10,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.epochlake_conn_id = epochlake_conn_id
        self.deferrable = deferrable

    def condition(self) -> Condition:
        """What it waits for, made when the templates are rendered."""
        raise TypeError(f"{type(self).__name__} does not say what it waits for")

    def execute(self, context: Mapping[str, Any]) -> Any:
        """Look once here; where that is not enough, leave it to a triggerer."""
        if not self.deferrable:
            return super().execute(context)
        try:
            found = self.poke(context)
        except EpochlakeError as error:
            if error.exit_code != WORTH_RETRYING:
                raise
            self.log.warning("%s", error)
        else:
            if found.is_done:
                return found.xcom_value
        self.defer(
            trigger=EpochlakeTrigger(stored(self.condition()), self.epochlake_conn_id, self.poke_interval),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )

    def poke(self, context: Mapping[str, Any]) -> PokeReturnValue:
        """Whether the condition holds now."""
        with task_ends():
            condition = self.condition()
            with EpochlakeHook(self.epochlake_conn_id).get_conn() as cluster:
                found = condition.look(cluster)
        self.log.info("%s", found.detail)
        if found.impossible:
            raise AirflowFailException(found.detail)
        return PokeReturnValue(is_done=found.met, xcom_value=found.epoch)

    def execute_complete(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> int:
        """What the triggerer has found: the epoch. Raises what it met instead."""
        if "error" in event:
            raise ended_with(event["exit_code"], event["error"])
        self.log.info("%s", event["detail"])
        if event["impossible"]:
            raise AirflowFailException(event["detail"])
        return event["epoch"]


class EpochlakeEpochSensor(EpochlakeSensor):
    """Waits until the log has reached an epoch. `epoch`: a number, or a template that gives one."""

    template_fields: Sequence[str] = ("epochlake_conn_id", "epoch")

    def __init__(self, *, epoch: int | str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.epoch = epoch

    def condition(self) -> Condition:
        """The epoch, as a number."""
        try:
            return EpochCommitted(int(self.epoch))
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"{self.epoch!r} is no epoch", hint="Give a whole number") from error


class EpochlakeRequestSensor(EpochlakeSensor):
    """Waits until what was asked under a request id is carried out: a node has joined, a decommission is done.

    Fails for good where the request was cancelled or has failed. What was not asked yet is waited for.
    """

    template_fields: Sequence[str] = ("epochlake_conn_id", "request_id")

    def __init__(self, *, request_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.request_id = request_id

    def condition(self) -> Condition:
        """The end of the request."""
        return RequestEnded(_name("request id", self.request_id))


class EpochlakeSettledSensor(EpochlakeSensor):
    """Waits until nothing is open and nothing moves: no request, no tablet on its way, no split or merge decided."""

    def condition(self) -> Condition:
        """A settled cluster."""
        return ClusterSettled()


class EpochlakeFreshnessSensor(EpochlakeSensor):
    """Waits until a table has rows that were written at `since` or later, on enough replicas for `consistency`.

    `since`: a time with its zone, as a template gives it (`"{{ data_interval_end }}"`). It tells that something was
    written, not that a load is complete: for a load of a known name there is `EpochlakeBatchSensor`.
    """

    template_fields: Sequence[str] = ("epochlake_conn_id", "table", "since", "consistency", "datacenter")

    def __init__(
        self,
        *,
        table: str,
        since: datetime | str,
        consistency: str | None = None,
        datacenter: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.since = since
        self.consistency = consistency
        self.datacenter = datacenter

    def condition(self) -> Condition:
        """Newer rows of the table."""
        try:
            # Airflow's own kind of time becomes a plain one as well.
            since = datetime.fromisoformat(str(self.since))
        except ValueError as error:
            raise InvalidRequest(
                f"{self.since!r} is no time", hint="Give it as 2013-01-02T03:04:05+00:00, or as a template"
            ) from error
        if since.tzinfo is None:
            raise InvalidRequest(f"{since.isoformat()} says no time zone", hint="Give a time with one")
        return TableWritten(self.table, since, self.consistency, self.datacenter)


class EpochlakeBatchSensor(EpochlakeSensor):
    """Waits until all rows of a named batch are on enough replicas for `consistency`.

    `batch`: the whole name, as `Written` and the asset event of its writer tell it.
    """

    template_fields: Sequence[str] = ("epochlake_conn_id", "table", "batch", "consistency", "datacenter")

    def __init__(
        self,
        *,
        table: str,
        batch: str,
        consistency: str | None = None,
        datacenter: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.batch = batch
        self.consistency = consistency
        self.datacenter = datacenter

    def condition(self) -> Condition:
        """The batch, landed."""
        return BatchLanded(self.table, _name("batch", self.batch), self.consistency, self.datacenter)


def _name(what: str, given: object) -> str:
    """A name that something may have. Raises InvalidRequest for what a template gives where there is nothing."""
    if given is None or not str(given).strip():
        raise InvalidRequest(
            f"the {what} to wait for is {given!r}, which nothing is called", hint="Look at what its template gives"
        )
    return str(given)
