"""Tasks near the disks, with agents as processes: files go from agent to agent, and what no agent does is done here."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import epochlake
import pytest
from epochlake.jobs.administration import move_tablets
from epochlake.jobs.agent.agent_workers import AgentWorkers
from epochlake.jobs.agent.http_client import HttpClient
from epochlake.jobs.coordinator.coordinator import Coordinator
from epochlake.jobs.coordinator.effects.pre_split import PreSplit, PreSplitter
from epochlake.jobs.replicas.damage import ExpectedFile, check_files
from epochlake.jobs.replicas.files import DataFile
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.replica import open_snapshot
from epochlake.jobs.replicas.streaming import Copier
from epochlake.jobs.upkeep.compacting import EVERYTHING
from epochlake.jobs.upkeep.compaction import compact
from epochlake.jobs.upkeep.repair import repair
from epochlake.jobs.workers.threads import ThreadWorkers
from epochlake.testing import LocalCluster, local_cluster

from tests.support.agents import AgentProcess, agents
from tests.support.ports import free_ports
from tests.support.tablets import EVENTS, ids, nodes_of
from tests.support.waiting import eventually
from tests.support.workers import WorkersContract


@contextmanager
def lake_of(
    tmp_path: Path, nodes: int = 3, replication: int = 3, racks: int = 3, tablets: int = 4
) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path / "lake", nodes=nodes, replication=replication, racks=racks) as lake:
        epochlake.pause_balancing(lake.cluster, reason="moves are by hand")
        columns = [("id", "bigint", False), ("note", "string", True)]
        epochlake.create_table(lake.cluster, EVENTS, columns, ["id"], tablets=tablets)
        yield lake


def write(lake: LocalCluster, numbers: range) -> None:
    lake.cluster.write(EVENTS, [{"id": number, "note": f"note {number}"} for number in numbers], consistency="QUORUM")


@contextmanager
def served(tmp_path: Path, lake: LocalCluster, count: int, *words: str) -> Iterator[list[AgentProcess]]:
    """Agents of the first nodes that follow the log and know each other."""
    with agents(tmp_path / "homes", count, "--root", str(lake.cluster.root.uri), *words) as made:
        for agent in made:
            agent.start()
        for agent in made:
            agent.until(lambda state: state.log.epoch == lake.epoch)
        # Each has heard of each, and that it answers.
        eventually(lambda: all(sum(node.seen == "alive" for node in one.nodes().values()) == count for one in made))
        yield made


def workers_of(lake: LocalCluster, made: list[AgentProcess], **more: float) -> AgentWorkers:
    """Workers with all the time that agents need to follow the log on a busy machine."""
    given = {"seconds": 120.0, "patience": 300.0, "behind": 300.0, **more}
    return AgentWorkers([one.address for one in made], HttpClient(), lambda: lake.cluster.metadata, **given)


def bytes_on(lake: LocalCluster, node: str) -> dict[str, str]:
    """The data files on the volume of a node, whether committed or not: path -> digest."""
    volume = lake.volume(node)
    return {
        str(path.relative_to(volume)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in volume.rglob("*.parquet")
        if "_delta_log" not in path.parts and ".tmp-" not in path.name
    }


def task_process_of(agent: AgentProcess) -> int:
    assert agent.process is not None
    children = Path(f"/proc/{agent.process.pid}/task/{agent.process.pid}/children").read_text(encoding="ascii")
    [found] = [pid for pid in children.split() if b"task_process" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return int(found)


class TestAgentsKeepTheContract(WorkersContract):
    """For tasks that agents do not know; the threads of the process do two at a time."""

    @pytest.fixture
    def workers(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentWorkers]:
        with local_cluster(tmp_path_factory.mktemp("lake"), nodes=1, replication=1) as lake:
            [port] = free_ports(1)
            yield AgentWorkers([f"127.0.0.1:{port}"], HttpClient(), lambda: lake.cluster.metadata, ThreadWorkers(2))


def test_a_replica_gets_what_it_lacks_from_agent_to_agent_and_its_bytes_are_checked_where_they_lie(
    tmp_path: Path,
) -> None:
    with lake_of(tmp_path) as lake:
        with lake.away("n3"):
            write(lake, range(200))
        with served(tmp_path, lake, 3) as (n1, n2, n3):
            workers = workers_of(lake, [n1, n2, n3])
            done = repair(lake.cluster, EVENTS, check_bytes=True, workers=workers)
            assert done.complete
            assert done.checked_files > 0
            copied = sum(one.files for one in done.replicas)
            assert copied > 0
            assert (workers.by_agents, workers.by_itself) == (copied + done.checked_files, 0)
            assert bytes_on(lake, "n3") == bytes_on(lake, "n1") == bytes_on(lake, "n2")
            assert ids(lake.cluster, "ALL") == [*range(200)]
            received = n3.until(lambda state: state.tasks.received > 0).tasks
            assert received.received >= sum(one.size for one in done.replicas)
            assert sum(one.until(lambda _: True).tasks.served for one in (n1, n2)) >= received.received
            assert received.undone == 0


def test_damage_that_an_agent_finds_is_found(tmp_path: Path) -> None:
    with lake_of(tmp_path) as lake:
        for first in range(0, 90, 30):
            write(lake, range(first, first + 30))
        metadata = lake.cluster.catch_up()
        table = metadata.table(EVENTS)
        [volume] = metadata.node("n2").volumes
        address = address_of(lake.cluster.storage, metadata, table, volume.volume_id)
        files = [ExpectedFile(file, address) for file in open_snapshot(address).all_files.values()]
        path = Path(files[1].uri)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4
        path.write_bytes(data)
        with served(tmp_path, lake, 2) as made:
            workers = workers_of(lake, made)
            found = check_files(files, workers)
            assert workers.by_agents == len(files)
        assert found == check_files(files)
        assert [number for number, one in enumerate(found) if one.damage] == [1]


def test_a_tablet_is_streamed_and_cut_by_agents_and_the_coordinator_commits(tmp_path: Path) -> None:
    with lake_of(tmp_path, nodes=4, replication=2, racks=2, tablets=32) as lake:
        cluster = lake.cluster
        write(lake, range(300))
        with served(tmp_path, lake, 4) as made:
            workers = workers_of(lake, made)
            source, *_ = nodes_of(cluster, 1)
            rack = cluster.metadata.node(source).rack
            target = next(
                node.name
                for node in cluster.metadata.directory.members()
                if node.rack == rack and node.name not in nodes_of(cluster, 1)
            )
            # Neighbours on the same volumes share a file, of which one tablet is a piece.
            move_tablets(cluster, EVENTS, (1,), source, target, reason="hot")
            report = Coordinator(cluster, copier=Copier(workers)).run(until_idle=True)
            assert report.idle
            assert (report.tablets_moved, workers.by_itself) == (1, 0)
            assert workers.by_agents > 0
        assert target in nodes_of(cluster, 1)
        pieces = [Path(path).name for path in bytes_on(lake, target) if "." in Path(path).stem]
        assert pieces, "nothing had to be cut"
        assert ids(cluster, "ALL") == [*range(300)]


def test_pieces_of_a_split_are_cut_by_the_agent_of_the_node_and_committed_here(tmp_path: Path) -> None:
    with lake_of(tmp_path, tablets=1) as lake:
        write(lake, range(300))
        metadata = lake.cluster.catch_up()
        [volume] = metadata.node("n1").volumes
        address = address_of(lake.cluster.storage, metadata, metadata.table(EVENTS), volume.volume_id)
        with served(tmp_path, lake, 1) as made:
            workers = workers_of(lake, made)
            splitter = PreSplitter(cutter=Copier(workers))
            [result] = splitter.pre_split([PreSplit(address, 2, metadata.fence, 0, 1 << 40)])
            assert result.ready
            assert (workers.by_agents, workers.by_itself) == (2, 0)
        assert len(open_snapshot(address).all_files) == 2
        assert ids(lake.cluster, "ALL") == [*range(300)]


def test_nodes_without_an_agent_and_agents_that_are_killed_are_done_without(tmp_path: Path) -> None:
    with lake_of(tmp_path) as lake:
        with lake.away("n3"):
            write(lake, range(100))
        with served(tmp_path, lake, 2) as made:
            workers = workers_of(lake, made)
            assert repair(lake.cluster, EVENTS, workers=workers).complete
            assert (workers.by_agents, workers.by_itself) == (0, 0)
        with lake.away("n2"):
            write(lake, range(100, 200))
        workers = workers_of(lake, made)
        assert repair(lake.cluster, EVENTS, workers=workers).complete
        assert bytes_on(lake, "n2") == bytes_on(lake, "n1") == bytes_on(lake, "n3")
        assert ids(lake.cluster, "ALL") == [*range(200)]


def test_an_agent_that_hangs_is_given_up_and_what_it_does_late_harms_nobody(tmp_path: Path) -> None:
    with lake_of(tmp_path) as lake:
        with lake.away("n3"):
            write(lake, range(100))
        with served(tmp_path, lake, 3) as made:
            n3 = made[2]
            workers = workers_of(lake, made, patience=3.0)
            assert repair(lake.cluster, EVENTS, workers=workers).complete
            assert workers.by_itself == 0
            by_agents = workers.by_agents
            # Its process stands still: the agent answers, and nothing that it was asked for goes on.
            hangs = task_process_of(n3)
            os.kill(hangs, signal.SIGSTOP)
            with lake.away("n3"):
                write(lake, range(100, 200))
            assert repair(lake.cluster, EVENTS, workers=workers).complete
            assert (workers.by_agents, workers.by_itself) == (by_agents, 1)
            assert ids(lake.cluster, "ALL") == [*range(200)]
            before, told = bytes_on(lake, "n3"), n3.until(lambda _: True).tasks
            with suppress(ProcessLookupError):  # the agent has killed it by now
                os.kill(hangs, signal.SIGCONT)
            n3.until(lambda state: state.tasks.done + state.tasks.undone > told.done + told.undone)
            assert bytes_on(lake, "n3") == before == bytes_on(lake, "n1")
            assert repair(lake.cluster, EVENTS).differing == 0
            assert ids(lake.cluster, "ALL") == [*range(200)]


def test_an_agent_that_is_killed_within_a_task_has_stored_nothing_or_a_whole_file(tmp_path: Path) -> None:
    with lake_of(tmp_path) as lake:
        with lake.away("n3"):
            write(lake, range(400))
        with served(tmp_path, lake, 3) as made:
            n3 = made[2]
            workers = workers_of(lake, made, seconds=20.0)
            epochs = lake.epoch
            asked = threading.Event()
            ask = HttpClient.ask

            async def noted(self: HttpClient, address: str, path: str, *more: object, **named: object):  # type: ignore[no-untyped-def]
                found = await ask(self, address, path, *more, **named)  # type: ignore[arg-type]
                if path == "/tasks":
                    asked.set()
                return found

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(HttpClient, "ask", noted)
                killer = threading.Thread(target=lambda: (asked.wait(120), n3.kill()), daemon=True)
                killer.start()
                assert repair(lake.cluster, EVENTS, workers=workers).complete
                killer.join(120)
            assert bytes_on(lake, "n3") == bytes_on(lake, "n1")
            assert ids(lake.cluster, "ALL") == [*range(400)]
            assert lake.epoch == epochs, "what agents do near their disks has changed the metadata"
            n3.start()
            n3.until(lambda state: state.log.epoch == lake.epoch)
            eventually(lambda: made[0].nodes()["n3"].seen == "alive")
            with lake.away("n3"):
                write(lake, range(400, 500))
            again = workers_of(lake, made)
            eventually(lambda: made[1].nodes()["n3"].seen == "alive")
            eventually(lambda: n3.nodes()["n1"].seen == n3.nodes()["n2"].seen == "alive")
            assert repair(lake.cluster, EVENTS, workers=again).complete
            assert again.by_agents > 0


def overwrite(lake: LocalCluster, times: int, rows: int) -> None:
    """Files that lie upon each other, with versions and a delete."""
    for turn in range(times):
        notes = [{"id": number, "note": f"turn {turn} of {number}"} for number in range(turn, rows)]
        lake.cluster.write(EVENTS, notes, consistency="ALL")
    lake.cluster.delete(EVENTS, [{"id": rows - 1}], consistency="ALL")


def shown(lake: LocalCluster) -> list[tuple[int, str]]:
    rows = lake.cluster.scan(EVENTS, consistency="ALL").read_all().to_pylist()
    return sorted((row["id"], row["note"]) for row in rows)


def live_on(lake: LocalCluster, node: str) -> dict[str, DataFile]:
    metadata = lake.cluster.catch_up()
    [volume] = metadata.node(node).volumes
    address = address_of(lake.cluster.storage, metadata, metadata.table(EVENTS), volume.volume_id)
    return dict(open_snapshot(address).all_files)


def test_ranges_are_merged_by_the_agents_of_their_replicas_and_committed_here(tmp_path: Path) -> None:
    with lake_of(tmp_path) as lake:
        overwrite(lake, 3, 200)
        before = shown(lake)
        with served(tmp_path, lake, 3) as made:
            workers = workers_of(lake, made)
            done = compact(lake.cluster, EVENTS, policy=EVERYTHING, workers=workers)
            assert done.complete
            assert done.compacted
            assert workers.by_itself == 0
            assert workers.by_agents > 0
            live = [live_on(lake, node) for node in ("n1", "n2", "n3")]
            assert live[0] == live[1] == live[2]
            assert all(file.is_merged for file in live[0].values())
            assert shown(lake) == before
            assert repair(lake.cluster, EVENTS, check_bytes=True, workers=workers).differing == 0
            assert sum(one.until(lambda _: True).tasks.undone for one in made) == 0
            assert all(one.memory() < 100 << 20 for one in made)


@contextmanager
def before_each_merge(act: Callable[[str], None]) -> Iterator[None]:
    """Do something to the agent at an address just before it is asked to merge."""
    ask = HttpClient.ask

    async def noted(self: HttpClient, address: str, path: str, body: bytes | None, **named: Any) -> tuple[int, bytes]:
        if b'"kind":"merge"' in (body or b""):
            act(address)
        return await ask(self, address, path, body, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HttpClient, "ask", noted)
        yield


@pytest.mark.parametrize("what", ["hangs", "dies"])
def test_a_range_whose_agent_does_not_end_its_merge_is_merged_here_and_once(tmp_path: Path, what: str) -> None:
    with lake_of(tmp_path) as lake:
        overwrite(lake, 3, 200)
        before = shown(lake)
        with served(tmp_path, lake, 3) as made:
            workers = workers_of(lake, made, patience=3.0)
            by_address = {agent.address: agent for agent in made}
            stopped: dict[str, int] = {}

            def act(address: str) -> None:
                if what == "dies":
                    by_address[address].kill()
                elif address not in stopped:
                    # The process that merges stands still: its agent answers, and nothing goes on.
                    stopped[address] = task_process_of(by_address[address])
                    os.kill(stopped[address], signal.SIGSTOP)

            with before_each_merge(act):
                done = compact(lake.cluster, EVENTS, policy=EVERYTHING, workers=workers)
            assert done.complete
            assert workers.by_itself > 0
            assert shown(lake) == before
            live = live_on(lake, "n1")
            for address, process in stopped.items():
                told = by_address[address].until(lambda _: True).tasks
                with suppress(ProcessLookupError):  # its agent has killed it by now
                    os.kill(process, signal.SIGCONT)
                    by_address[address].until(lambda state, then=told: state.tasks != then)  # type: ignore[misc]
            # What comes late nobody names.
            assert live_on(lake, "n1") == live_on(lake, "n2") == live_on(lake, "n3") == live
            assert all(file.is_merged for file in live.values())
            assert shown(lake) == before
