"""The demo's stage: a real cluster in a directory, with the processes that work on it.

This process runs nothing of the cluster itself; it begins it, tells the writer and the operator's
commands what to do, and watches the log like anyone else. When the stage is left, however that happens, no process is.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from epochlake import Cluster, EpochlakeError, add_node, create_keyspace, create_table, init_cluster, open_cluster
from epochlake.jobs.demo import checksum, children, flights
from epochlake.jobs.demo.agents import DemoAgents
from epochlake.jobs.demo.children import Child, ChildFailed
from epochlake.jobs.demo.directory import DemoDirectory
from epochlake.jobs.demo.flights import PARTS
from epochlake.jobs.demo.orders import WRITER, Answer, Command
from epochlake.jobs.demo.progress import DemoProgress
from epochlake.jobs.demo.story import CoordinatorTotals, Deed, Holding, Moment, Read, ReadBack, Story, Write
from epochlake.jobs.upkeep.verification import verify_replicas
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.model import NodeState
from epochlake.placement.decoding import decodable

if TYPE_CHECKING:
    import pandas as pd

CLI = "epochlake.jobs.cli.entry"
DATACENTER = "dc1"
FIRST_NODES = {"n1": "r1", "n2": "r2", "n3": "r3"}
CAPACITY = 10 * 1000**3
REPLICATION = 3
TABLETS = 16

ANSWER_SECONDS = 600.0
COMMAND_SECONDS = 120.0
END_SECONDS = 60.0
JOIN_SECONDS = 240.0
LOOK_SECONDS = 0.25
"""How often the log is looked at while something is waited for."""


class DemoFailed(EpochlakeError):
    """Something did not happen that should have."""


class RunningDemo:
    """The cluster and the processes of a running demo, and the story so far."""

    def __init__(
        self,
        place: DemoDirectory,
        cluster: Cluster,
        coordinator: Child,
        writer: Child,
        story: Story,
        progress: DemoProgress,
        agents: DemoAgents | None = None,
    ) -> None:
        self.place = place
        self.cluster = cluster
        self.story = story
        self.progress = progress
        self.agents = agents
        self._coordinator = coordinator
        self._writer = writer
        self._orders: list[Child] = []
        self._pending: list[tuple[Child, str]] = []
        self._looked = 0.0
        self.lost: list[str] = []

    def write(
        self,
        batch: int,
        meanwhile: Callable[[], None] = lambda: None,
        until: Callable[[float, float], bool] | None = None,
    ) -> Write:
        """Have a batch written; `meanwhile` is called once, while it is being written.

        With `until` it is written part by part as long as that does not hold of when it began and when its last part
        ended, in seconds since 1970; what is left then is written in one go.
        """
        one_go = until is None
        answers: list[Answer] = []
        done = 0
        while done < PARTS:
            last = PARTS if one_go else done + 1
            self._writer.send(Command(write=batch, first=done, last=last))
            if not answers:
                meanwhile()
            answers.append(self._answer(f"write {flights.name_of(batch)}"))
            one_go = until is None or until(answers[0].started, answers[-1].ended)
            done = last
        written = Write(
            batch=batch,
            name=flights.name_of(batch),
            rows=sum(answer.rows for answer in answers),
            files=sum(answer.files for answer in answers),
            bytes=sum(answer.bytes for answer in answers),
            planned_epoch=answers[0].planned_epoch,
            epoch=answers[-1].epoch,
            rounds=max(answer.rounds for answer in answers),
            missing={name: what for answer in answers for name, what in answer.missing.items()},
            started=answers[0].started,
            ended=answers[-1].ended,
        )
        self.story.writes.append(written)
        self.progress.wrote(written, self.story)
        return written

    def read(self) -> Read:
        """Have the rows counted at QUORUM."""
        expected = self.story.acknowledged
        self._writer.send(Command(count=True))
        answer = self._answer("count the rows")
        read = Read(answer.rows, expected, answer.epoch, answer.started, answer.ended)
        self.story.reads.append(read)
        self.progress.counted(read)
        return read

    def read_back(self, level: str) -> ReadBack:
        """Have everything read at `level`; a read that fails is a result, too."""
        self.progress.say(f"reading everything back at {level}")
        self._writer.send(Command(checksum=level))
        answer = msgspec.json.decode(self._writer.receive(ANSWER_SECONDS, self.look), type=decodable(Answer))
        return ReadBack(level, answer.checksum, answer.error, answer.ended - answer.started)

    def order(self, arguments: Sequence[str], node: str, what: str) -> None:
        """Begin a command of `epochlake` as an operator would, in a process of its own; `finish_orders` awaits it."""
        name = f"command-{len(self._orders) + 1}"
        words = [CLI, "--conf", str(self.place.configuration_file), "--output", "json", *arguments]
        child = Child(name, words, self.place.messages / f"{name}.txt")
        self._orders.append(child)
        self._pending.append((child, "epochlake " + " ".join(arguments)))
        self.note(what, node)

    def join(self, node: str, rack: str) -> None:
        """Start the agent of a new node, which asks that the node may join."""
        assert self.agents is not None
        volume = f"d1={self.place.volume_of(node)},{CAPACITY}"
        self.agents.begin(node, "--join", f"{DATACENTER}/{rack}", "--volume", volume)
        self.note(f"the agent of {node} asks to join in rack {rack}", node)

    def finish_orders(self) -> None:
        """Wait for the commands that were begun. Raises ChildFailed when one of them fails."""
        while self._pending:
            child, command = self._pending[0]
            ended, _ = child.finish(COMMAND_SECONDS)
            if ended.exit_code != 0:
                raise child.failure("failed")
            self.story.processes.append(msgspec.structs.replace(ended, command=command))
            del self._pending[0]

    def stop_orders(self) -> None:
        """End the commands that still run."""
        for child in self._orders:
            child.stop()

    def lose(self, node: str) -> None:
        """Take away a node's storage for good."""
        self.place.lose(node)
        self.lost.append(node)
        self.note(f"the storage of {node} is gone for good", node)

    def files_of(self, node: str) -> int:
        """How many data files are stored on a node, committed or not."""
        return sum(1 for _ in self.place.storage_of(node).rglob("*.parquet"))

    def note(self, what: str, node: str) -> None:
        self.story.deeds.append(Deed(time.time(), what, node))
        self.progress.say(what)

    def wait(
        self,
        what: str,
        condition: Callable[[ClusterMetadata], bool],
        seconds: float,
        meanwhile: Callable[[], Any] = lambda: time.sleep(LOOK_SECONDS),
    ) -> None:
        """Wait until the metadata is as wanted. Raises DemoFailed, with what the coordinator says, when time is up."""
        deadline = time.monotonic() + seconds
        while not condition(self.cluster.catch_up()):
            if time.monotonic() > deadline:
                raise DemoFailed(
                    f"{what} did not happen within {seconds:.0f} s; of the coordinator, "
                    f"{children.tail(self._coordinator.messages)}"
                )
            self.look()
            meanwhile()

    def look(self) -> None:
        """Look whether the coordinator lives and what is on its way; not more often than a few times a second."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        self._coordinator.require_running()
        if self.agents is not None:
            self.agents.require_running()
        for child, _ in self._pending:
            child.require_no_failure()
        self.progress.looked(self.cluster.catch_up())

    def moment(self, name: str) -> Moment:
        """Look at what every node holds now."""
        metadata = self.cluster.catch_up()
        held = {stored.node: stored for stored in verify_replicas(self.cluster.storage, metadata).replicas}
        holdings = []
        for node in metadata.directory.nodes.values():
            if node.state is NodeState.LEFT:
                continue
            stored = held.get(node.name)
            counts = (stored.tablets, stored.rows, stored.bytes) if stored else (0, 0, 0)
            holdings.append(Holding(node.name, node.rack, str(node.state), *counts))
        moment = Moment(name, metadata.epoch, tuple(holdings), tuple(self.lost))
        self.story.moments.append(moment)
        return moment

    def dismiss(self) -> None:
        """End writer and coordinator, and write down how they ended. Raises ChildFailed when one does not."""
        self.progress.say("ending the other processes")
        self.finish_orders()
        ended, _ = self._writer.finish(END_SECONDS)
        self.story.processes.append(msgspec.structs.replace(ended, command=f"the pipeline ({ended.command})"))
        if self.agents is not None:
            self.story.processes += self.agents.finish(lambda child: child.finish(END_SECONDS, by=signal.SIGTERM)[0])
        ended, output = self._coordinator.finish(END_SECONDS, by=signal.SIGTERM)
        self.story.processes.append(msgspec.structs.replace(ended, command="epochlake coordinator run"))
        if ended.exit_code == 0:
            try:
                self.story.streamed = msgspec.json.decode(output, type=decodable(CoordinatorTotals))
            except msgspec.MsgspecError as error:
                raise ChildFailed(f"the coordinator's report cannot be read ({error}): {output[:200]!r}") from error

    def _answer(self, asked: str) -> Answer:
        answer = msgspec.json.decode(self._writer.receive(ANSWER_SECONDS, self.look), type=decodable(Answer))
        if answer.error is not None:
            raise DemoFailed(f"the writer could not {asked}: {answer.error}")
        return answer


@contextmanager
def raised(
    place: DemoDirectory, source: pd.DataFrame, months: int, progress: DemoProgress, *, with_agents: bool = False
) -> Iterator[RunningDemo]:
    """Begin a cluster of three nodes with an empty table, and the processes; end them when the block ends.

    With agents the first node is added by hand, and the others' agents ask that they may join.
    """
    configuration = place.configuration()
    started = time.time()
    with ExitStack() as leaving:
        leaving.callback(place.wait_for_server_to_end)
        progress.say("a cluster of three nodes in three racks")
        init_cluster(configuration, reason="epochlake demo")
        cluster = leaving.enter_context(open_cluster(configuration))
        cluster.coordination()

        def start(name: str, arguments: Sequence[str]) -> Child:
            child = Child(name, arguments, place.messages / f"{name}.txt")
            leaving.callback(child.stop)
            return child

        agents = DemoAgents(place, start) if with_agents else None
        if agents is not None:
            first = next(iter(FIRST_NODES))
            progress.say("an agent on each node")
            place.configure(agents.begin(first))
        conf = str(place.configuration_file)
        coordinator = start("coordinator", [CLI, "--conf", conf, "--output", "json", "coordinator", "run"])
        writer = start("writer", [WRITER, conf, str(months), str(len(source))])
        # While Spark starts there; it has nothing to do with what the writer makes of the same file.
        story = Story(started, checksum.of_source(source), batches=months, tablets=TABLETS, replication=REPLICATION)
        stage = RunningDemo(place, cluster, coordinator, writer, story, progress, agents)
        leaving.callback(stage.stop_orders)
        for node, rack in FIRST_NODES.items():
            if agents is not None and node != first:
                stage.join(node, rack)
                continue
            volumes = [("d1", str(place.volume_of(node)), CAPACITY)]
            add_node(cluster, node, DATACENTER, rack, volumes, reason="the first nodes")
        seconds = JOIN_SECONDS if with_agents else END_SECONDS
        stage.wait("that the first nodes join", lambda now: settled(now, FIRST_NODES), seconds)
        create_keyspace(cluster, flights.KEYSPACE, {DATACENTER: REPLICATION})
        create_table(
            cluster, flights.TABLE, flights.COLUMNS, flights.PRIMARY_KEY, tablets=TABLETS, reason="the flights of 2013"
        )
        progress.say("starting Spark for the pipeline")
        writer.receive(ANSWER_SECONDS, stage.look)
        yield stage


def settled(metadata: ClusterMetadata, nodes: Sequence[str] | dict[str, str]) -> bool:
    """Whether these nodes have joined and nothing is on its way."""
    known = metadata.directory.by_name
    joined = all(node in known and known[node].state is NodeState.NORMAL for node in nodes)
    return joined and not metadata.tablets.transitions and not any(metadata.open_requests())


def tablets_coming_to(metadata: ClusterMetadata, node: str) -> int:
    """Tablets that have, or are getting, a replica on the node; none when it is not known yet."""
    known = metadata.directory.by_name.get(node)
    volumes = {volume.volume_id for volume in known.volumes} if known is not None else set()
    return len(metadata.replicas_in_use(volumes))
