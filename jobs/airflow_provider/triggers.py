"""The trigger behind the sensors: it looks at the cluster now and then, in a process with many of its kind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.sdk import BaseHook
from airflow.triggers.base import BaseTrigger, TriggerEvent
from epochlake.jobs.airflow_provider.conditions import restored
from epochlake.jobs.airflow_provider.connecting import configuration_of
from epochlake.jobs.airflow_provider.ending import WORTH_RETRYING
from epochlake.jobs.airflow_provider.following import FOLLOWED, in_thread
from epochlake.jobs.airflow_provider.hook import said_by
from epochlake.placement.errors import EpochlakeError


class EpochlakeTrigger(BaseTrigger):
    """Waits until a condition holds, or cannot hold any more; looks every `poll_seconds`.

    `condition` is as `conditions.stored` has made it. What passes (a disk that is away) is waited for; another error
    ends the wait, and the task is told.
    """

    def __init__(self, condition: dict[str, Any], epochlake_conn_id: str | None, poll_seconds: float) -> None:
        super().__init__()
        self.condition = condition
        self.epochlake_conn_id = epochlake_conn_id
        self.poll_seconds = poll_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The path of this class, which Airflow keeps, and its arguments."""
        return f"{__name__}.{type(self).__name__}", {
            "condition": self.condition,
            "epochlake_conn_id": self.epochlake_conn_id,
            "poll_seconds": self.poll_seconds,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """One event: what was found, or the error that ended the wait."""
        yield TriggerEvent(await self._end())

    async def _end(self) -> dict[str, Any]:
        while True:
            try:
                return await self._awaited()
            except EpochlakeError as error:
                if error.exit_code != WORTH_RETRYING:
                    return {"error": str(error), "exit_code": error.exit_code}
                self.log.warning("%s", error)
                await asyncio.sleep(self.poll_seconds)

    async def _awaited(self) -> dict[str, Any]:
        """What is found in the end, while the cluster stays open."""
        condition = restored(self.condition)
        variables = {}
        if self.epochlake_conn_id is not None:
            variables = said_by(await BaseHook.aget_connection(self.epochlake_conn_id))
        configuration = await in_thread(configuration_of, variables)
        async with FOLLOWED.cluster(configuration) as cluster:
            said = ""
            while True:
                found = await in_thread(condition.look, cluster)
                if found.met or found.impossible:
                    return {"impossible": found.impossible, "epoch": found.epoch, "detail": found.detail}
                if found.detail != said:
                    said = found.detail
                    self.log.info("waiting: %s", said)
                await asyncio.sleep(self.poll_seconds)
