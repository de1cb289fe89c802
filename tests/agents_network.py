"""Agents on a network that is cut: `make agents-network` (ARGS="--agents 8 --seed 7" for others).

Each agent is a process in a network namespace of its own (tests/support/namespaces.py). Twenty of them find each other
while their seed is out of reach and some are killed; one founds. Rows are written on three nodes, and the others join
by themselves, while agents are killed and cut off and files go from agent to agent. The agents merge the files of a
table. The network is split and healed. At last a cluster is begun by hand, first with a node that is cut off. After
each part everything is in the state that the seeds of the design name, and nothing has joined by half. Without the
rights of root it says so, and does nothing.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import epochlake
from epochlake.jobs.agent.agent_workers import AgentWorkers
from epochlake.jobs.agent.asking import AgentRefused, init, nodes_of, state_of
from epochlake.jobs.agent.documents import AgentState
from epochlake.jobs.agent.http_client import AgentUnreachable, HttpClient
from epochlake.jobs.agent.initialising import InitOrder
from epochlake.jobs.agent.joining import Phase
from epochlake.jobs.agent.messages import Seen
from epochlake.jobs.upkeep.compacting import EVERYTHING
from epochlake.jobs.upkeep.compaction import compact
from epochlake.jobs.upkeep.verification import verify_replicas
from epochlake.metastore.configuration import load
from epochlake.metastore.log.delta import DeltaLog
from epochlake.metastore.metadata.model import NodeState
from epochlake.placement.errors import EpochlakeError

from tests.support.namespaces import DRIVER, Network, NoNamespaces, network
from tests.support.storages import STORAGE
from tests.support.zookeeper import Ensemble

PORT = 7610
TABLE = "net.events"
ROWS = 3000
SECONDS = 1800.0
PERIOD = 0.5
RACKS = ("r1", "r2", "r3")


class Failed(Exception):
    """Something is not as it should be."""


class Agent:
    """An agent on a machine; it is started and killed as often as one likes."""

    def __init__(self, net: Network, directory: Path, machine: int, name: str, port: int = PORT) -> None:
        self.net, self.machine, self.name, self.port = net, machine, name, port
        self.address = f"{net.address(machine)}:{port}"
        self.home = directory / "homes" / name
        self.volume = directory / "disks" / name
        self.words: list[str] = []
        self._out = directory / f"{name}.out"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *words: str) -> None:
        self.words = [*words] or self.words
        given = ["--home", str(self.home), "--name", self.name, "--listen", self.address, "--period", str(PERIOD)]
        command = [sys.executable, "-P", "-m", "epochlake.jobs.agent", *given, *self.words]
        with open(self._out, "ab") as out:
            run = self.net.command(self.machine, command)
            self._process = subprocess.Popen(run, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def again(self, *words: str) -> None:
        self.kill()
        self.start(*words)

    def state(self) -> AgentState | None:
        """What it says of itself, asked on its own machine, whatever is cut."""
        return self._asked(lambda: state_of(self.address, HttpClient()))

    def seen(self) -> dict[str, Seen | None]:
        """How it sees the nodes."""
        nodes = self._asked(lambda: nodes_of(self.address, HttpClient()))
        return {node.name: node.seen for node in nodes or ()}

    def _asked(self, ask: Callable[[], Any]) -> Any:
        try:
            return self.net.on(self.machine, ask)
        except (AgentUnreachable, AgentRefused):
            return None


def wait(what: str, condition: Callable[[], Any], seconds: float = SECONDS) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not within {seconds:g} s")
        time.sleep(0.5)
    return found


def require(holds: object, what: str) -> None:
    if not holds:
        raise Failed(what)


@contextmanager
def part(name: str) -> Iterator[None]:
    print(f"{name} …", flush=True)
    began = time.monotonic()
    yield
    print(f"{name}: holds, after {time.monotonic() - began:.0f} s", flush=True)


class Story:
    """The parts, one after the other, on one cluster."""

    def __init__(self, net: Network, directory: Path, chance: random.Random, count: int) -> None:
        self.net, self.directory, self.chance = net, directory, chance
        self.agents = [Agent(net, directory, machine, f"n{machine}") for machine in range(1, count + 1)]
        self.conf = directory / "epochlake.toml"
        self.root = directory / "root"
        # Two seeds: the first one cannot decide without the second while it is cut off.
        seeds = [word for agent in self.agents[:2] for word in ("--seed", agent.address)]
        self.words = ["--conf", str(self.conf), "--root", str(self.root), *seeds]

    def log(self) -> DeltaLog:
        return DeltaLog(STORAGE, f"{self.root}/log")

    def states(self) -> list[AgentState | None]:
        return [agent.state() for agent in self.agents]

    def discovery(self) -> None:
        """All start at once, in any order; their seed is cut off, and some are killed. Then it is there."""
        seed = self.agents[0].address
        words = [*self.words, "--found"]
        self.net.cut(1)
        for agent in self.chance.sample(self.agents, len(self.agents)):
            agent.start(*words)
        others = self.agents[1:]
        wait(
            "those who cannot reach their seed wait for it",
            lambda: all(state is not None and seed in state.waits for state in (a.state() for a in others)),
        )
        for agent in self.chance.sample(self.agents, len(self.agents) // 3):
            time.sleep(self.chance.random())
            agent.again()
        time.sleep(10 * PERIOD)
        require(not (self.root / "log").exists(), "somebody has founded without the seed")
        self.net.heal()
        for agent in self.chance.sample(self.agents, len(self.agents) // 4):
            time.sleep(self.chance.random())
            agent.again()
        states = wait("all know of a cluster", lambda: all_of(self.states(), lambda s: s.discovered is not None))
        tags = {state.discovered.id for state in states}
        [entry] = self.log().read(0)
        require(len(tags) == 1, f"they know of {len(tags)} clusters")
        require(entry.event == "Initialise", f"the log begins with {entry.event}")
        lowest = min(state.agent_id for state in states)
        require(lowest in entry.request_id, f"{entry.request_id} is not of the agent with the lowest id, {lowest}")
        require(all(state.tag is None for state in states), "an agent belongs to a cluster that has no node")

    def joins(self) -> None:
        """Three nodes are added by hand and have rows; all others ask. Agents are killed and cut off meanwhile."""
        first, rest = self.agents[:3], self.agents[3:]
        for agent in first:
            agent.again(*self.words, "--admit")
        with epochlake.open_cluster(load(self.conf, environ={})) as cluster:
            coordinator = self._coordinator()
            try:
                for agent, rack in zip(first, RACKS, strict=True):
                    epochlake.add_node(cluster, agent.name, "dc1", rack, [("d1", str(agent.volume), 10**10)])
                wait("the first nodes have joined", lambda: normal(cluster, 3))
                epochlake.create_keyspace(cluster, "net", {"dc1": 3})
                columns = [("id", "bigint", False), ("note", "string", True)]
                epochlake.create_table(cluster, TABLE, columns, ["id"], tablets=32)
                for start in range(0, ROWS, 500):
                    rows = [{"id": number, "note": f"note {number}"} for number in range(start, start + 500)]
                    cluster.write(TABLE, rows, consistency="ALL")
                wait("the first agents are members", lambda: all_of([a.state() for a in first], lambda s: s.tag))
                for number, agent in enumerate(rest):
                    join = ["--join", f"dc1/{RACKS[number % 3]}", "--volume", f"d1={agent.volume},{10**10}"]
                    # As long as all of them together may take, on a machine with other work.
                    join += ["--join-timeout", str(2 * SECONDS)]
                    agent.again(*self.words, *join)
                for _ in range(len(rest)):
                    time.sleep(2 * self.chance.random())
                    which = self.chance.choice(self.agents)
                    if self.chance.random() < 0.5:
                        which.again()
                    else:
                        self.net.cut(which.machine)
                        time.sleep(4 * self.chance.random())
                        self.net.heal()
                wait(
                    "all joins are accepted",
                    lambda: all_of(self.states(), lambda s: s.join is None or s.join.phase is Phase.ACCEPTED),
                )
                wait("all nodes are there", lambda: normal(cluster, len(self.agents)))
                wait("files go from agent to agent", lambda: any(s.tasks.received for s in self.states() if s))
                wait("nothing is on its way", lambda: settled(cluster))
                states = wait("all belong to the cluster", lambda: all_of(self.states(), lambda s: s.tag is not None))
                self._joined_once(cluster, states)
                require(read(cluster) == [*range(ROWS)], "the rows are not those that were written")
                report = verify_replicas(cluster.storage, cluster.catch_up(), cluster.ledger)
                require(not report.violations and not report.unreachable, f"replicas: {report.violations}")
            finally:
                coordinator.terminate()
                coordinator.wait(120)

    def merges(self) -> None:
        """The agents merge what a table has too many files of; some are cut off or killed before and meanwhile."""
        with epochlake.open_cluster(load(self.conf, environ={})) as cluster:
            for _ in range(3):
                for start in range(0, ROWS, 500):
                    rows = [{"id": number, "note": f"note {number}"} for number in range(start, start + 500)]
                    cluster.write(TABLE, rows, consistency="ALL")
            workers = AgentWorkers([agent.address for agent in self.agents], HttpClient(), lambda: cluster.metadata)
            others = self.chance.sample(self.agents[1:], len(self.agents) // 4)
            for agent in others[::2]:
                self.net.cut(agent.machine)
            timers = [threading.Timer(5 * self.chance.random(), agent.again) for agent in others[1::2]]
            for timer in timers:
                timer.start()
            done = compact(cluster, TABLE, policy=EVERYTHING, workers=workers)
            for timer in timers:
                timer.join()
            self.net.heal()
            print(
                f"  {len(done.compacted)} ranges, {workers.by_agents} tasks by agents, {workers.by_itself} here",
                flush=True,
            )
            require(done.complete and done.compacted, f"not all was compacted: {done.skipped}")
            require(workers.by_agents, "no agent has done anything")
            require(read(cluster) == [*range(ROWS)], "the rows are not those that were written")
            report = verify_replicas(cluster.storage, cluster.catch_up(), cluster.ledger)
            require(not report.violations and not report.unreachable, f"replicas: {report.violations}")

    def _joined_once(self, cluster: Any, states: Sequence[AgentState]) -> None:
        metadata = cluster.catch_up()
        names = Counter(node.name for node in metadata.directory.nodes.values())
        require(names == Counter(agent.name for agent in self.agents), f"the log has {names}")
        asked = Counter(entry.request_id for entry in self.log().read(0) if entry.request_id.startswith("join-"))
        expected = Counter(f"join-{state.agent_id}" for state in states if state.join is not None)
        require(asked == expected, f"requests to join: {asked}")

    def _coordinator(self) -> subprocess.Popen[bytes]:
        words = ["--conf", str(self.conf), "coordinator", "run", "--streaming", "agents"]
        asked = [word for agent in self.agents[:3] for word in ("--agent", agent.address)]
        with open(self.directory / "coordinator.out", "ab") as out:
            command = [sys.executable, "-P", "-m", "epochlake.jobs.cli.entry", *words, *asked]
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def partition(self) -> None:
        """A third of the machines is on the other side; who is unreachable is shown, and nothing else follows."""
        others = self.chance.sample(self.agents, len(self.agents) // 3)
        here = [agent for agent in self.agents if agent not in others]
        wait("all see all", lambda: all(sees(agent, self.agents) for agent in self.agents))
        before = self.log().read(0)[-1].epoch
        self.net.split([agent.machine for agent in others])
        for side, far in ((here, others), (others, here)):
            wait("each side sees itself, and the other one gone", lambda: all(sees(a, side, far) for a in side))  # noqa: B023
        which = self.chance.choice(others)
        which.again()
        stayed = [agent for agent in others if agent is not which]
        wait("one that was killed is seen again on its side", lambda: all(sees(a, others, here) for a in stayed))
        wait("and sees its side", lambda: sees(which, others))
        # It has only known the others by the addresses that it remembers, and nobody has answered there.
        far = [one.name for one in here if which.seen().get(one.name) is Seen.ALIVE]
        require(not far, f"{far} are said to be alive by one that has never heard them")
        self.net.heal()
        wait("all see all again", lambda: all(sees(agent, self.agents) for agent in self.agents))
        since = {entry.event for entry in self.log().read(before)}
        require(since <= {"AnnounceVersion"}, f"what agents see has changed the metadata: {since}")

    def init_by_hand(self) -> None:
        """All named nodes begin it or none; with one that is cut off nothing begins."""
        root = self.directory / "by-hand"
        made = [Agent(self.net, self.directory, n, f"m{n}", PORT + 1) for n in range(1, 5)]
        words = ["--conf", str(self.conf), "--root", str(root), "--seed", made[0].address]
        order = InitOrder(("m1", "m2", "m3"), "by-hand")
        try:
            for agent in made:
                agent.start(*words)
            wait("they know each other", lambda: all(sees(agent, made) for agent in made))
            self.net.cut(3)
            try:
                init(made[0].address, order, HttpClient(), 120.0)
            except EpochlakeError as error:
                require("m3" in str(error), f"who failed is not said: {error}")
            else:
                raise Failed("a cluster has begun on a node that is cut off")
            require(not (root / "log").exists(), "something has begun")
            self.net.heal()
            wait("they know each other again", lambda: all(sees(agent, made) for agent in made))

            def begun(by: Agent) -> Any:
                try:
                    return init(by.address, order, HttpClient(), 60.0)
                except EpochlakeError as error:
                    print(f"  asked again: {error}", flush=True)
                    return None

            first = wait("it has begun", lambda: begun(made[1]))
            made[1].kill()
            again = wait("another one says so as well", lambda: begun(made[3]))
            require(first.tag == again.tag, "there are two clusters")
            [entry] = DeltaLog(STORAGE, f"{root}/log").read(0)
            require(entry.event == "Initialise", f"the log begins with {entry.event}")
        finally:
            for agent in made:
                agent.kill()


def all_of(states: Sequence[AgentState | None], what: Callable[[AgentState], object]) -> list[AgentState] | None:
    """All states, when each agent has answered and what is asked holds of each."""
    found = [state for state in states if state is not None and what(state)]
    return found if len(found) == len(states) else None


def sees(agent: Agent, alive: Sequence[Agent], gone: Sequence[Agent] = ()) -> bool:
    """Whether an agent sees these alive, and those unreachable."""
    seen = agent.seen()
    there = all(seen.get(one.name) is Seen.ALIVE for one in alive)
    return there and all(seen.get(one.name) is Seen.UNREACHABLE for one in gone)


def normal(cluster: Any, count: int) -> bool:
    states = [node.state for node in cluster.catch_up().directory.nodes.values()]
    return len(states) == count and all(state is NodeState.NORMAL for state in states)


def settled(cluster: Any) -> bool:
    metadata = cluster.catch_up()
    return not metadata.tablets.transitions and not any(metadata.open_requests())


def read(cluster: Any) -> list[int]:
    return sorted(row["id"] for row in cluster.scan(TABLE, consistency="ALL").read_all().to_pylist())


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.agents_network", description=__doc__)
    parser.add_argument("--agents", type=int, default=20, metavar="N", help="from 6 (%(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="of who is killed and cut off, and when")
    given = parser.parse_args(argv)
    count = max(6, given.agents)
    seed = random.randrange(10**6) if given.seed is None else given.seed
    print(f"{count} agents, seed {seed}", flush=True)
    # Whoever ends it leaves no agent and no namespace behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="epochlake-network-", ignore_cleanup_errors=True) as made:
        directory = Path(made)
        try:
            with network(count) as net, Ensemble(directory, 1, DRIVER) as zookeeper:
                (directory / "epochlake.toml").write_text(
                    f'root = "{directory}/root"\n[zookeeper]\nconnect = "{zookeeper.connect_string}"\n'
                    "[coordinator]\nbackoff_seconds = 0.2\n",
                    encoding="utf-8",
                )
                story = Story(net, directory, random.Random(seed), count)
                try:
                    with part("discovery without the seed, and with kills"):
                        story.discovery()
                    with part("joins with kills and cuts, and files from agent to agent"):
                        story.joins()
                    with part("merges by agents, with kills and cuts"):
                        story.merges()
                    with part("a network that is split and healed"):
                        story.partition()
                    with part("init by hand"):
                        story.init_by_hand()
                except Failed as failed:
                    print(f"does not hold: {failed}", flush=True)
                    for agent in story.agents:
                        print(f"  {agent.name}: {agent.state()}", flush=True)
                    return 1
                finally:
                    for agent in story.agents:
                        agent.kill()
        except NoNamespaces as error:
            print(f"skipped: {error}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
