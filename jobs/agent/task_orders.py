"""Who may have an agent do tasks, and where: only what the log names, and nothing that could lead elsewhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from epochlake.jobs.agent.file_serving import FileServing
from epochlake.jobs.agent.home import View
from epochlake.jobs.agent.http_server import Refused, Request, Streamed
from epochlake.jobs.agent.messages import PROTOCOL, Tag
from epochlake.jobs.agent.task_messages import (
    ReplicaPlace,
    ResolvedPlace,
    TaskAnswer,
    TaskOrder,
    malformed,
    volume_uri,
)
from epochlake.jobs.agent.tasking import Tasking, TaskPlaces
from epochlake.jobs.agent.volumes import local_path

MOST_DIGITS = 19
BEHIND_SECONDS = 5.0
"""How long an order waits for what its agent has not followed yet."""

LOOK_SECONDS = 0.1


class TaskOrders:
    """The orders that one agent takes, for its own node.

    `standing`: its tag and its view of the log, as they are now. `addresses_of`: where agents of another node answer.
    """

    def __init__(
        self,
        tasking: Tasking,
        name: str,
        standing: Callable[[], tuple[Tag | None, View | None]],
        addresses_of: Callable[[str], list[str]],
        seconds: float = BEHIND_SECONDS,
    ) -> None:
        self._tasking = tasking
        self._standing = standing
        self._seconds = seconds
        self._name = name
        self._addresses_of = addresses_of

    async def answer(self, order: TaskOrder) -> TaskAnswer:
        """Begin an order or go on with it; what has come of it. Raises Refused."""
        why = malformed(order)
        if why is not None:
            raise Refused(400, why.code, why.reason)
        if order.protocol != PROTOCOL:
            raise Refused(409, "protocol", f"this agent speaks protocol {PROTOCOL}, not {order.protocol}")
        tag, seen = await self._caught_up(order)
        if order.cancel:
            await self._tasking.cancel(order.order_id)
            return TaskAnswer(tag, self._name, order.nonce, (), False, self._tasking.signs)
        if not self._tasking.knows(order.order_id):
            await self._begin(order, tag, seen)
        results, running = await self._tasking.results(order.order_id, order.after)
        return TaskAnswer(tag, self._name, order.nonce, results, running, self._tasking.signs)

    async def _caught_up(self, order: TaskOrder) -> tuple[Tag, View]:
        """The tag and the view of this agent, once it knows the places of an order, or all that it was made from.

        Raises Refused.
        """
        deadline = time.monotonic() + self._seconds
        while True:
            mine, view = self._standing()
            if mine is not None and view is not None:
                member(mine, view, order.tag.id)
                if view.epoch >= order.epoch or _names_all(view, order):
                    return mine, view
            if time.monotonic() > deadline:
                member(mine, view, order.tag.id)
                raise Refused(409, "behind", f"this agent has not followed the log to epoch {order.epoch} yet")
            await asyncio.sleep(LOOK_SECONDS)

    async def _begin(self, order: TaskOrder, tag: Tag, view: View) -> None:
        if not order.tasks:
            raise Refused(409, "unknown-order", "this agent knows no such order: it was started again, or gave it up")
        if not self._tasking.has_room(len(order.tasks)):
            raise Refused(503, "too-many", "this agent has as many tasks as it takes")
        begun: list[TaskPlaces] = []
        undone: list[tuple[int, str]] = []
        for task in order.tasks:
            target = self._here(task.target, tag, view)
            source = None
            if task.source is not None and task.source.node == self._name:
                source = self._here(task.source, tag, view)
            elif task.source is not None:
                there = self._elsewhere(task.source, tag, view)
                if isinstance(there, str):
                    undone.append((task.number, there))
                    continue
                source = there
            begun.append(TaskPlaces(task, target, source))
        await self._tasking.begin(order, begun)
        for number, why in undone:
            self._tasking.refuse(order.order_id, number, why)

    def _here(self, place: ReplicaPlace, tag: Tag, view: View) -> ResolvedPlace:
        """A replica table of this node. Raises Refused."""
        uri = volume_uri(view.nodes, place.node, place.volume) if place.node == self._name else None
        if uri is None or local_path(uri) is None:
            raise Refused(
                409,
                "not-here",
                f"the log, as this agent knows it, names no volume {place.node}/{place.volume} on a disk of this node",
            )
        return _resolved(place, tag, uri, "")

    def _elsewhere(self, place: ReplicaPlace, tag: Tag, view: View) -> ResolvedPlace | str:
        """A replica table of another node, or why its agent cannot be asked."""
        uri = volume_uri(view.nodes, place.node, place.volume)
        if uri is None:
            return f"the log, as this agent knows it, names no volume {place.node}/{place.volume}"
        addresses = self._addresses_of(place.node)
        if len(addresses) != 1:
            return f"{len(addresses) or 'no'} agents of node {place.node} answer this one"
        return _resolved(place, tag, uri, addresses[0])


async def served(request: Request, serving: FileServing, mine: Tag | None, view: View | None, name: str) -> Streamed:
    """The bytes of a data file of this node, for another agent. Raises Refused."""
    query = request.query
    tag, seen = member(mine, view, query.get("cluster", ""))
    uri = volume_uri(seen.nodes, name, query.get("volume", ""))
    if uri is None:
        raise Refused(404, "unknown-volume", "the log, as this agent knows it, names no such volume of this node")
    start, size = _number(query.get("from", "0"), "from"), query.get("size")
    if size is not None and size.startswith("-"):
        raise Refused(400, "malformed", "size is a number of bytes")
    length = None if size is None else _number(size, "size")
    return await serving.read(uri, query.get("path", ""), start, length, tag.id)


def member(mine: Tag | None, view: View | None, cluster_id: str) -> tuple[Tag, View]:
    """The tag and the view of an agent that belongs to a cluster, for somebody who does as well. Raises Refused."""
    if mine is None or view is None:
        raise Refused(409, "blank", "this agent belongs to no cluster yet")
    if cluster_id != mine.id:
        raise Refused(409, "cluster-tag", f"this agent belongs to cluster {mine}, not to {cluster_id[:80]!r}")
    return mine, view


def _names_all(view: View, order: TaskOrder) -> bool:
    """Whether the log, as it is known, names every place of an order."""
    places = {place for task in order.tasks for place in (task.target, task.source) if place is not None}
    return all(volume_uri(view.nodes, place.node, place.volume) is not None for place in places)


def _resolved(place: ReplicaPlace, tag: Tag, uri: str, address: str) -> ResolvedPlace:
    return ResolvedPlace(
        cluster_id=tag.id,
        volume=place.volume,
        volume_id=place.volume_id,
        volume_uri=uri,
        directory=place.directory,
        table_id=place.table_id,
        address=address,
    )


def _number(text: str, name: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= MOST_DIGITS - 1):
        raise Refused(400, "malformed", f"{name} is a number of bytes")
    return int(text)
