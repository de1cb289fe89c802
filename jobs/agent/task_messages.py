"""What is said about tasks near the disks: orders of a coordinator or a job, and where a data file may lie.

What comes in names nodes and volumes by their names; where these are only the log says, as the agent has followed it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum

import msgspec
from epochlake.jobs.agent.messages import LoggedNode, Refusal, Tag
from epochlake.placement.decoding import decodable

MOST_TASKS = 64
"""Of one order."""

LONGEST_NAME = 255
MIN_TOKEN, MAX_TOKEN = -(2**63), 2**63 - 1
"""As in placement/tokens.py, which loads more than an agent is to."""

_DATA_FILE = re.compile(r"_tablet=[0-9a-f]+-[0-9a-f]+/[A-Za-z0-9][\w.-]*\.parquet\Z", re.ASCII)
_OF_REPLICA = re.compile(r"[^/\x00-\x1f\x7f]+/[\w-]+/(?P<file>[^/]+/[^/]+)\Z", re.ASCII)
_UNSAFE = re.compile(r"[/\x00-\x1f\x7f]")


class TaskKind(StrEnum):
    """What an agent does near its disks. None of it commits anything or changes what is committed."""

    COPY = "copy"
    """Bring a data file, or the piece of it that is wanted, to a replica on this node, where nothing names it yet."""
    CHECK = "check"
    """Read every byte of a data file on this node."""
    MERGE = "merge"
    """Put data files of a replica on this node together, as files beside them that nothing names yet."""


class ReplicaPlace(msgspec.Struct, frozen=True):
    """A replica table, by the names of its node and volume; `volume_id` is the number in the volume's marker."""

    node: str
    volume: str
    volume_id: int
    directory: str
    table_id: str


class MergeSource(msgspec.Struct, frozen=True):
    """Rows that take part in a merge: those of a file of the target from token `low` to `high`, or the `whole` file."""

    path: str
    low: int
    high: int
    whole: bool


class MergeWork(msgspec.Struct, frozen=True):
    """What is put together and how: as `RangeMerge` says it (replicas/merging.py). `table`: the table as JSON."""

    table: msgspec.Raw
    label: str
    sources: tuple[MergeSource, ...]
    purge_before: int
    expired_before: dict[str, int]
    target_file_bytes: int
    derived_tokens: bool = False


class Task(msgspec.Struct, frozen=True):
    """One task for the agent of the target's node. `file`: the data file as JSON, `low`, `high`: the tokens wanted; of
    a merge the tokens of its range, and `merge` says the rest.
    """

    number: int
    kind: TaskKind
    file: msgspec.Raw
    low: int
    high: int
    target: ReplicaPlace
    source: ReplicaPlace | None = None
    merge: MergeWork | None = None


class NamedFile(msgspec.Struct, frozen=True):
    """What is looked at of a task's data file before anything is done with it."""

    file_id: str
    path: str
    size: int


class TaskOrder(msgspec.Struct, frozen=True):
    """Tasks that somebody wants done, and each further question about them, which leaves out the tasks.

    `epoch`: that of the metadata from which places were taken; an agent that does not know them yet waits for it.
    `after`: so many results are known already. `pace`: orders of one pace share its bytes per second. `cancel`: nobody
    asks any more.
    """

    tag: Tag
    protocol: int
    nonce: str
    order_id: str
    tasks: tuple[Task, ...] = ()
    epoch: int = 0
    after: int = 0
    pace: str = ""
    bytes_per_second: float = 0.0
    cancel: bool = False


NO_RESULT = msgspec.Raw(b"null")


class TaskResult(msgspec.Struct, frozen=True):
    """What became of a task: its result as JSON, or `why` it was not done here. Who asked does it himself then."""

    number: int
    result: msgspec.Raw = NO_RESULT
    why: str = ""


class TaskAnswer(msgspec.Struct, frozen=True):
    """The results after those that were known, in the order in which they came. `signs` grows while work goes on."""

    tag: Tag
    node: str
    nonce: str
    results: tuple[TaskResult, ...]
    running: bool
    signs: int


class TasksSeen(msgspec.Struct, frozen=True):
    """What an agent has done since it was started: tasks done and not done, bytes that came from other agents and went
    to them.
    """

    done: int = 0
    undone: int = 0
    received: int = 0
    served: int = 0


class ResolvedPlace(msgspec.Struct, frozen=True):
    """A replica table where the log says that it is. `address`: the agent that is asked for it; empty: it is here."""

    cluster_id: str
    volume: str
    volume_id: int
    volume_uri: str
    directory: str
    table_id: str
    address: str = ""


class Work(msgspec.Struct, frozen=True):
    """A task as the process that does tasks is told it."""

    key: int
    kind: TaskKind
    file: msgspec.Raw
    low: int
    high: int
    target: ResolvedPlace
    source: ResolvedPlace | None
    pace: str
    bytes_per_second: float
    merge: MergeWork | None = None


class ToProcess(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line for the process: work, or the keys of works that nobody waits for any more."""

    work: Work | None = None
    stop: tuple[int, ...] = ()


class FromProcess(msgspec.Struct, frozen=True):
    """A line of the process: what became of a work (`key`), or that it lives. `signs` and `received` are totals."""

    signs: int
    received: int
    key: int | None = None
    result: msgspec.Raw = NO_RESULT
    why: str = ""


def malformed(order: TaskOrder) -> Refusal | None:
    """Why an order is none, whoever gives it: what it names could lead out of a replica table."""
    words = (order.nonce, order.order_id, order.tag.id)
    if any(not 0 < len(word) <= LONGEST_NAME for word in words) or len(order.pace) > LONGEST_NAME:
        return Refusal("malformed", f"an order has a cluster, an id and a nonce, of {LONGEST_NAME} characters at most")
    if (
        len(order.tasks) > MOST_TASKS
        or not 0 <= order.epoch < 2**53
        or order.after < 0
        or not 0 <= order.bytes_per_second < 2**63
    ):
        return Refusal("malformed", f"an order has at most {MOST_TASKS} tasks")
    if len({task.number for task in order.tasks}) < len(order.tasks):
        return Refusal("malformed", "two tasks have the same number")
    for task in order.tasks:
        if not all(_is_safe(place) for place in (task.target, task.source) if place is not None):
            return Refusal("malformed", "a replica table is named by names, not by paths")
        if (task.merge is not None) != (task.kind is TaskKind.MERGE):
            return Refusal("malformed", f"{task.kind} is not of this shape")
        if task.merge is not None:
            if task.source is not None or not _can_be_merged(task, task.merge):
                return Refusal("malformed", "a merge is of data files of its own replica, within one range of tokens")
            continue
        try:
            file = msgspec.json.decode(task.file, type=decodable(NamedFile))
        except (msgspec.MsgspecError, RecursionError):
            return Refusal("malformed", "a task is about a data file")
        if not is_data_file(file.path) or not file.path.endswith(f"/{file.file_id}.parquet") or file.size < 0:
            return Refusal("malformed", f"{file.path[:200]!r} is no path of a data file")
        if (task.source is None) != (task.kind is TaskKind.CHECK):
            return Refusal("malformed", f"{task.kind} is not of this shape")
    return None


def _can_be_merged(task: Task, merge: MergeWork) -> bool:
    bounds = [merge.purge_before, *merge.expired_before.values()]
    spans = [(task.low, task.high), *((source.low, source.high) for source in merge.sources)]
    return (
        len(merge.sources) > 0
        and all(is_data_file(source.path) for source in merge.sources)
        and 0 < len(merge.label) <= LONGEST_NAME
        and 0 < merge.target_file_bytes <= MAX_TOKEN
        and all(MIN_TOKEN <= bound <= MAX_TOKEN for bound in bounds)
        and all(MIN_TOKEN <= low <= high <= MAX_TOKEN for low, high in spans)
    )


def is_data_file(path: str) -> bool:
    """Whether a path below a replica table can be that of a data file."""
    return len(path) <= 2 * LONGEST_NAME and _DATA_FILE.match(path) is not None


def is_stored_file(path: str) -> bool:
    """Whether a path below a volume can be that of a data file of a replica table."""
    found = _OF_REPLICA.match(path)
    return (
        found is not None
        and len(path) <= 4 * LONGEST_NAME
        and not path.startswith((".", "_"))
        and is_data_file(found["file"])
    )


def volume_uri(nodes: Iterable[LoggedNode], node: str, volume: str) -> str | None:
    """Where the log says that a volume of a node is; None where it names no such volume."""
    for one in nodes:
        if one.name == node:
            return next((found.uri for found in one.volumes if found.name == volume), None)
    return None


def _is_safe(place: ReplicaPlace) -> bool:
    names = (place.node, place.volume, place.directory, place.table_id)
    short = all(0 < len(name) <= LONGEST_NAME and not _UNSAFE.search(name) for name in names)
    return short and not place.directory.startswith((".", "_")) and not place.table_id.startswith((".", "_"))
