"""Workers in agents: what is to be done near a disk its agent does, and bytes go from node to node, not through here.

An agent is only asked for what it may do late without harm (task_messages.py): it stores data files, and whoever runs
these workers commits them. What an agent does not do, for whatever reason, is done here, as if there were none; one
that has failed is left alone for a while.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from queue import SimpleQueue
from threading import Event, Lock
from typing import Any, Generic, TypeVar

import msgspec
from epochlake.jobs.agent.asking import AgentRefused, nodes_of
from epochlake.jobs.agent.http_client import AgentUnreachable, HttpClient
from epochlake.jobs.agent.messages import LARGEST, PROTOCOL, Refusal, Seen, Tag
from epochlake.jobs.agent.task_messages import (
    MOST_TASKS,
    NO_RESULT,
    MergeSource,
    MergeWork,
    ReplicaPlace,
    Task,
    TaskAnswer,
    TaskKind,
    TaskOrder,
)
from epochlake.jobs.agent.volumes import local_path
from epochlake.jobs.replicas.copying import PartCopy, copy_data_file
from epochlake.jobs.replicas.damage import ExpectedFile, check_bytes
from epochlake.jobs.replicas.merging_near import RangeMerger, RangeToMerge, path_in
from epochlake.jobs.replicas.replica import ReplicaAddress
from epochlake.jobs.replicas.streaming import attempt
from epochlake.jobs.workers.pace import Paced, divided
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.metastore import threads
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.placement.decoding import decodable
from epochlake.placement.errors import EpochlakeError

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

SECONDS = 15.0
"""How long an agent may take to answer; it waits for news for a part of that."""

PATIENCE_SECONDS = 120.0
"""How long an agent may do tasks without a sign that any goes on: more than an access to its storage may take."""

BEHIND_SECONDS = 20.0
"""How long an agent is waited for that has not followed the log as far as this process."""

KNOWN_SECONDS = 10.0
LOOK_SECONDS = 1.0
AGAIN_SECONDS = 0.5
MOST_BYTES = LARGEST // 2
"""Of the tasks of one order, as they are sent."""

BEHIND = frozenset({"behind", "blank"})
"""What an agent says that has not followed the log far enough."""

LEFT_ALONE_SECONDS = 30.0
LONGEST_SECONDS = 900.0
"""An agent that has failed is asked again after a while, then after twice as long, and so on up to this."""


class AgentFailed(EpochlakeError):
    """An agent does not do what it was asked for: why, for a log. Nobody has to mend anything for it."""


class MergesUnknown(AgentFailed):
    """An agent does not understand what a merge is: it is of a release before. It does all else."""


class _Agents:
    """Where agents of nodes are, by what any of some addresses says, and which of them have failed lately."""

    def __init__(self, addresses: Sequence[str], client: HttpClient) -> None:
        self._asked = tuple(addresses)
        self._client = client
        self._lock = Lock()
        self._known: dict[str, str] = {}
        self._looked: float | None = None
        self._failed: dict[str, tuple[float, float]] = {}
        self._merge_nothing_until: dict[str, float] = {}

    def now(self, wanted: Collection[str], kind: TaskKind = TaskKind.COPY) -> dict[str, str]:
        """Node -> the address of its agent, of those that answer and have not failed lately. Some are `wanted`: where
        one is not known, it is looked for again. `kind`: of the tasks that they are to do.
        """
        with self._lock:
            now = time.monotonic()
            seconds = KNOWN_SECONDS if self._known.keys() >= {*wanted} else LOOK_SECONDS
            if self._looked is None or now - self._looked > seconds:
                self._known, self._looked = self._look(), time.monotonic()
            found = {n: a for n, a in self._known.items() if self._failed.get(a, (0.0, 0.0))[0] <= now}
            if kind is TaskKind.MERGE:
                found = {n: a for n, a in found.items() if self._merge_nothing_until.get(a, 0.0) <= now}
            return found

    def cannot_merge(self, address: str) -> None:
        with self._lock:
            self._merge_nothing_until[address] = time.monotonic() + LONGEST_SECONDS
        logger.info("the agent at %s is of a release that merges nothing", address)

    def failed(self, address: str, why: str) -> None:
        with self._lock:
            pause = min(2 * self._failed.get(address, (0.0, 0.0))[1] or LEFT_ALONE_SECONDS, LONGEST_SECONDS)
            self._failed[address] = time.monotonic() + pause, pause
        logger.warning("the agent at %s is not asked for %g s: %s", address, pause, why)

    def answered(self, address: str) -> None:
        with self._lock:
            self._failed.pop(address, None)

    def _look(self) -> dict[str, str]:
        for address in self._asked:
            try:
                nodes = nodes_of(address, self._client)
            except EpochlakeError as error:
                logger.warning("%s", error)
                continue
            found: dict[str, list[str]] = defaultdict(list)
            for node in nodes:
                if node.seen is Seen.ALIVE and node.address:
                    found[node.name].append(node.address)
            return {name: there[0] for name, there in found.items() if len(there) == 1}
        return {}


class AgentWorkers:
    """At each node at most what its agent does at a time; what no agent does, `own` workers do in this process.

    `metadata`: what names nodes and volumes. `addresses`: some agents, of which the first that answers tells of all.
    Keeps the contract of workers for any task: those that agents know are given to them. An agent may do an item that
    is then done here as well; it is one that may be done twice.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        client: HttpClient,
        metadata: Callable[[], ClusterMetadata],
        own: ThreadWorkers | None = None,
        *,
        seconds: float = SECONDS,
        patience: float = PATIENCE_SECONDS,
        behind: float = BEHIND_SECONDS,
    ) -> None:
        self.by_agents = self.by_itself = 0
        """Items that agents have done, and that agents could have done and were done here."""
        self._counting = Lock()
        self._agents = _Agents(addresses, client)
        self._client = client
        self._metadata = metadata
        self._own = own or ThreadWorkers()
        self._limits = _Limits(seconds, patience, behind)
        self._pace = secrets.token_hex(8)

    def run(self, task: Callable[[T], R], items: Iterable[T], *, returns: type[R]) -> list[R]:
        """See `Workers.run`."""
        asked = list(items)
        ended = {one.number: one for one in self._ended(task, asked, returns)}
        return [ended[number].taken() for number in range(len(asked))]

    def each(self, task: Callable[[T], R], items: Iterable[T], *, returns: type[R]) -> Iterator[tuple[T, R]]:
        """See `Workers.each`."""
        asked = list(items)
        for one in self._ended(task, asked, returns):
            yield asked[one.number], one.taken()

    def _ended(self, task: Callable[[T], R], asked: Sequence[T], returns: type[R]) -> Iterator[_Ended[R]]:
        """What became of each item, as it ends."""
        if not asked:
            return
        metadata = self._metadata()
        tag = Tag(metadata.identity.name, metadata.identity.cluster_id)
        orders, rest = self._divided(metadata, task, asked)
        ended: SimpleQueue[_Ended[R]] = SimpleQueue()
        given_up = Event()
        with divided(task, len(orders) + bool(rest)) as share:
            rate = share.bytes_per_second if isinstance(share, Paced) else 0.0
            like = TaskOrder(tag, PROTOCOL, "", "", epoch=metadata.epoch, pace=self._pace, bytes_per_second=rate)

            def here(numbers: Sequence[int]) -> None:
                left = set(numbers)
                try:
                    for _, one in self._own.each(partial(_attempted, share, asked), numbers):
                        if given_up.is_set():
                            return
                        left.remove(one.number)
                        ended.put(one)
                except BaseException as error:  # nobody waits for ever for what could not be begun
                    for number in left:
                        ended.put(_Ended(number, error=error))

            def there(address: str, node: str, tasks: Sequence[Task]) -> None:
                left = {one.number: one for one in tasks}
                try:
                    order = _Order(self._client, address, node, like, self._limits)
                    for number, result in order.done(tasks, given_up):
                        found = msgspec.json.decode(result, type=decodable(returns))
                        del left[number]
                        self._count(by_agents=1)
                        ended.put(_Ended(number, found))
                except MergesUnknown:
                    self._agents.cannot_merge(address)
                except AgentFailed as error:
                    self._agents.failed(address, error.reason)
                except BaseException as error:
                    logger.exception("the agent at %s was not asked", address)
                    self._agents.failed(address, f"{type(error).__name__}: {error}")
                else:
                    self._agents.answered(address)
                if left and not given_up.is_set():
                    self._count(by_itself=len(left))
                    here(sorted(left))

            for (address, node), tasks in orders.items():
                threads.begin(partial(there, address, node, tasks))
            if rest:
                threads.begin(partial(here, rest))
            try:
                for _ in asked:
                    yield ended.get()
            finally:
                given_up.set()

    def _count(self, by_agents: int = 0, by_itself: int = 0) -> None:
        with self._counting:
            self.by_agents += by_agents
            self.by_itself += by_itself

    def _divided(
        self, metadata: ClusterMetadata, task: Callable[[Any], Any], asked: Sequence[Any]
    ) -> tuple[dict[tuple[str, str], list[Task]], list[int]]:
        """The tasks of each agent, by its address and node, and the numbers of the items that none does."""
        kind = _kind(task)
        if kind is None:
            return {}, [*range(len(asked))]
        tasks = [_task(metadata, number, kind, item) for number, item in enumerate(asked)]
        agents = self._agents.now({node for made in tasks if made is not None for node in _nodes(made)}, kind)
        orders: dict[tuple[str, str], list[Task]] = defaultdict(list)
        rest: list[int] = []
        for number, made in enumerate(tasks):
            if made is None or not agents.keys() >= _nodes(made):
                rest.append(number)
            else:
                orders[agents[made.target.node], made.target.node].append(made)
        return dict(orders), rest


class _Ended(msgspec.Struct, Generic[R], frozen=True):
    """What became of an item."""

    number: int
    result: R | None = None
    error: BaseException | None = None

    def taken(self) -> R:
        """Raises the error of the task."""
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]


def _attempted(task: Callable[[T], R], asked: Sequence[T], number: int) -> _Ended[R]:
    try:
        return _Ended(number, task(asked[number]))
    except BaseException as error:
        return _Ended(number, error=error)


class _Limits(msgspec.Struct, frozen=True):
    """Seconds: see `SECONDS`, `PATIENCE_SECONDS` and `BEHIND_SECONDS`."""

    seconds: float = SECONDS
    patience: float = PATIENCE_SECONDS
    behind: float = BEHIND_SECONDS


class _Order:
    """Tasks for one agent, as they are asked for until none is open."""

    def __init__(self, client: HttpClient, address: str, node: str, like: TaskOrder, limits: _Limits) -> None:
        self._client = client
        self._address = address
        self._node = node
        self._like = like
        self._limits = limits

    def done(self, tasks: Sequence[Task], given_up: Event) -> Iterator[tuple[int, msgspec.Raw]]:
        """The results of what the agent has done, as they come; others are left out. Raises AgentFailed."""
        for some in _orders(tasks):
            yield from self._one(some, given_up)

    def _one(self, tasks: Sequence[Task], given_up: Event) -> Iterator[tuple[int, msgspec.Raw]]:
        like = msgspec.structs.replace(self._like, order_id=secrets.token_hex(16))
        wanted = {task.number for task in tasks}
        known, signs, moved_at = 0, -1, time.monotonic()
        behind_until = moved_at + self._limits.behind
        begun, again = tuple(tasks), 1
        running = True
        try:
            while running:
                if given_up.is_set():
                    return
                answer = self._ask(msgspec.structs.replace(like, tasks=begun, after=known))
                if isinstance(answer, Refusal):
                    if answer.code in BEHIND and time.monotonic() < behind_until:
                        given_up.wait(AGAIN_SECONDS)
                        continue
                    if answer.code == "malformed" and tasks[0].kind is TaskKind.MERGE:
                        raise MergesUnknown(answer.reason)
                    if answer.code != "unknown-order" or not again:
                        raise AgentFailed(answer.reason)
                    # It was started again: what it has stored is there, and is not stored twice.
                    again, known, begun = again - 1, 0, tuple(task for task in tasks if task.number in wanted)
                    continue
                begun, running = (), answer.running
                known += len(answer.results)
                for result in answer.results:
                    if result.number not in wanted:
                        continue
                    if result.why:
                        logger.warning("the agent at %s has not done a task: %s", self._address, result.why)
                        continue
                    wanted.remove(result.number)
                    yield result.number, result.result
                now = time.monotonic()
                if answer.results or answer.signs != signs:
                    signs, moved_at = answer.signs, now
                elif running and now - moved_at > self._limits.patience:
                    raise AgentFailed(f"none of its tasks went on for {self._limits.patience:g} s")
        finally:
            if running:
                self._cancel(like)

    def _ask(self, order: TaskOrder) -> TaskAnswer | Refusal:
        """The answer of the agent, of this node and cluster, to this question. Raises AgentFailed."""
        order = msgspec.structs.replace(order, nonce=secrets.token_hex(8))
        body = msgspec.json.encode(order)
        try:
            asked = self._client.ask(self._address, "/tasks", body, timeout=self._limits.seconds)
            status, answered = asyncio.run(asked)
            if status != 200:
                return msgspec.json.decode(answered, type=decodable(Refusal))
            answer = msgspec.json.decode(answered, type=decodable(TaskAnswer))
        except (AgentUnreachable, AgentRefused) as error:
            raise AgentFailed(error.reason) from error
        except msgspec.MsgspecError as error:
            raise AgentFailed("its answer cannot be understood") from error
        if answer.nonce != order.nonce:
            raise AgentFailed("it repeats an answer to another question")
        if (answer.tag.id, answer.node) != (order.tag.id, self._node):
            raise AgentFailed(f"it is of node {answer.node} in cluster {answer.tag}")
        return answer

    def _cancel(self, like: TaskOrder) -> None:
        """Let the agent stop: it would notice by itself that nobody asks any more."""
        try:
            self._ask(msgspec.structs.replace(like, cancel=True, epoch=0))
        except AgentFailed as error:
            logger.debug("%s", error)


def _kind(task: Callable[[Any], Any]) -> TaskKind | None:
    """What agents call a task; None for one that they do not know."""
    inner = task.task if isinstance(task, Paced) else task
    if inner is check_bytes:
        return TaskKind.CHECK
    if isinstance(inner, RangeMerger):
        return TaskKind.MERGE
    copies = isinstance(inner, partial) and inner.func is attempt and inner.args == (copy_data_file,)
    return TaskKind.COPY if copies else None


def _nodes(task: Task) -> set[str]:
    """The nodes whose agents have to do with a task."""
    return {place.node for place in (task.target, task.source) if place is not None}


def _task(metadata: ClusterMetadata, number: int, kind: TaskKind, item: Any) -> Task | None:
    """An item as a task for an agent; None where a volume is on no disk, or the metadata does not know it."""
    if kind is TaskKind.CHECK:
        assert isinstance(item, ExpectedFile)
        target = _place(metadata, item.address)
        if target is None:
            return None
        return Task(number, kind, _encoded(item.file), *item.file.window, target)
    if kind is TaskKind.MERGE:
        assert isinstance(item, RangeToMerge)
        return _merge_task(metadata, number, item)
    assert isinstance(item, PartCopy)
    target, source = _place(metadata, item.target), _place(metadata, item.source)
    if target is None or source is None:
        return None
    return Task(number, kind, _encoded(item.file), item.part.low, item.part.high, target, source)


def _merge_task(metadata: ClusterMetadata, number: int, item: RangeToMerge) -> Task | None:
    """A merge as a task; None where its files are not all on one replica, or are too many for one order."""
    target = None if item.home is None else _place(metadata, item.home)
    if target is None:
        return None
    merge = item.merge
    work = MergeWork(
        table=_encoded(item.plan.table),
        label=merge.label,
        sources=tuple(MergeSource(path_in(one.uri), one.low, one.high, one.whole) for one in merge.sources),
        purge_before=merge.purge_before,
        expired_before=merge.expired_before,
        target_file_bytes=item.plan.target_file_bytes,
        derived_tokens=item.plan.derived_tokens,
    )
    made = Task(number, TaskKind.MERGE, NO_RESULT, merge.low, merge.high, target, merge=work)
    return made if len(msgspec.json.encode(made)) <= MOST_BYTES else None


def _orders(tasks: Sequence[Task]) -> Iterator[Sequence[Task]]:
    """Tasks as orders that an agent takes, by their number and their bytes."""
    some: list[Task] = []
    size = 0
    for task in tasks:
        more = len(msgspec.json.encode(task))
        if some and (len(some) == MOST_TASKS or size + more > MOST_BYTES):
            yield some
            some, size = [], 0
        some.append(task)
        size += more
    if some:
        yield some


def _encoded(file: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(file))


def _place(metadata: ClusterMetadata, address: ReplicaAddress) -> ReplicaPlace | None:
    node = metadata.directory.node_of_volume.get(address.volume_id)
    volume = metadata.directory.volumes.get(address.volume_id)
    if node is None or volume is None or address.lost or local_path(volume.uri) is None:
        return None
    return ReplicaPlace(node.name, volume.name, address.volume_id, address.directory, address.table_id)
