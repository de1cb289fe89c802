"""The member that is asked to let nodes join: it has the log decide, and remembers what came of it for a while."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec
from epochlake.jobs.agent.join_messages import JoinAnswer, JoinRequest, Outcome
from epochlake.jobs.agent.processes import configured, said_by
from epochlake.placement.decoding import decodable

logger = logging.getLogger(__name__)

ADMISSION_SECONDS = 120.0
AT_ONCE = 2
"""So many requests are decided at a time: each takes a process. The others wait, and are told so."""

MOST_REMEMBERED = 100
"""Outcomes are in the log as well: who asks again later is told the same by another try."""

Admission = Callable[[JoinRequest], Awaitable[JoinAnswer]]


class Admitting:
    """The joins that one member takes care of. `admission` has the log decide one."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._running: dict[str, tuple[str, asyncio.Task[None]]] = {}
        self._ended: dict[str, JoinAnswer] = {}
        self._last_reason: dict[str, str] = {}
        self._deciding = asyncio.Semaphore(AT_ONCE)

    def open_as(self, name: str) -> str | None:
        """The request id under which a node is being let in now."""
        return next((request for request, (other, _) in self._running.items() if other == name), None)

    def asked(self, request: JoinRequest) -> JoinAnswer:
        """What came of a request, or that it is to be waited for. It is begun where it is not known."""
        ended = self._ended.get(request.request_id)
        if ended is not None:
            return msgspec.structs.replace(ended, nonce=request.nonce)
        if request.request_id not in self._running:
            task = asyncio.ensure_future(self._admit(request))
            self._running[request.request_id] = request.sender.name, task
        reason = self._last_reason.get(request.request_id, "")
        return JoinAnswer(request.nonce, Outcome.PENDING, reason)

    def refused(self, request: JoinRequest, reason: str) -> None:
        """Say on this side as well why a node was not let in."""
        logger.warning("node %s at %s is not let in: %s", request.sender.name, request.sender.address, reason)

    async def _admit(self, request: JoinRequest) -> None:
        try:
            async with self._deciding:
                answer = await self._admission(request)
        except Exception as error:
            answer = JoinAnswer(request.nonce, Outcome.PENDING, f"the member could not find out: {error!r}")
        finally:
            self._running.pop(request.request_id, None)
        if answer.outcome is Outcome.PENDING:
            self._last_reason = {**dict(list(self._last_reason.items())[-MOST_REMEMBERED:])}
            self._last_reason[request.request_id] = answer.reason
            logger.warning("node %s waits to be let in: %s", request.sender.name, answer.reason)
            return
        self._last_reason.pop(request.request_id, None)
        self._ended[request.request_id] = answer
        if len(self._ended) > MOST_REMEMBERED:
            del self._ended[next(iter(self._ended))]
        if answer.outcome is Outcome.REJECTED:
            self.refused(request, answer.reason)
        else:
            logger.info(
                "node %s at %s asks to join in epoch %s", request.sender.name, request.sender.address, answer.epoch
            )


def by_process(conf: str | None, root: str | None) -> Admission:
    """Have the log decide in a process of its own."""

    async def admission(request: JoinRequest) -> JoinAnswer:
        body = msgspec.json.encode(request)
        try:
            said = await said_by("admission", configured(conf, root), ADMISSION_SECONDS, body)
            return msgspec.json.decode(said, type=decodable(JoinAnswer))
        except TimeoutError:
            return JoinAnswer(request.nonce, Outcome.PENDING, f"no outcome within {ADMISSION_SECONDS:g} s")
        except (OSError, msgspec.MsgspecError):
            return JoinAnswer(request.nonce, Outcome.PENDING, "the process that asks the log ended without a word")

    return admission
