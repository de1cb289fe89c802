"""Whatever is under way, and whichever disk dies: what `status` says to do ends it, loses no row, and leaves no lock.

A case is an operation, how far it is, and the node whose storage dies. A cluster is brought there once; for each node
it is put back, in the same place, and an operator does what the coordinator's status says, until nothing is left.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from epochlake.jobs import administration
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.coordinator.tracks import tablets as tablet_track
from epochlake.jobs.gate import commit_phase
from epochlake.metastore.metadata.model import NodeState, RequestState
from epochlake.metastore.metadata.placements import highs
from epochlake.placement.ring.checks import gaining
from epochlake.placement.ring.state import Step
from epochlake.placement.tablets.transitions import Kind, Stage

from tests.support import rings
from tests.support.clusters import SmallTable, placed, without_zookeeper
from tests.support.command_line import CommandLine
from tests.support.rings import QUICK, RingCluster, more_replicas, rebuild, remove, replace, ringed, scaled
from tests.support.slices import THOROUGH, sliced

SIX: dict[str, rings.NodeSpec] = {
    "A": ("dc1", "r1", (-7,)),
    "B": ("dc1", "r2", (-4,)),
    "C": ("dc1", "r3", (-2,)),
    "D": ("dc1", "r1", (1,)),
    "E": ("dc1", "r2", (4,)),
    "F": ("dc1", "r3", (6,)),
}
SEVEN = {name: ("dc1", f"r{1 + number % 3}") for number, name in enumerate("ABCXEFD")}
SPREAD = rings.SPREAD
ENDED = {RequestState.DONE, RequestState.CANCELLED, RequestState.FAILED}
COMMAND = re.compile(r"`epochlake (node (?:remove|replace) [^`]+)`")


def join(ring: RingCluster) -> str:
    return ring.add("X", ("dc1", "r1", (-1,)))


def leave(ring: RingCluster) -> str:
    return administration.decommission(ring.cluster, "D").request_id


def move(ring: RingCluster) -> str:
    return administration.move_node(ring.cluster, "D", tokens=scaled((-6, 5))).request_id


def fewer_replicas(ring: RingCluster) -> str:
    return administration.change_replication(ring.cluster, "air", {"dc1": 2}).request_id


RING_STAGES = ("PREPARE", "START", "MID", "FINISH")
RING = [join, leave, move, remove, replace, rebuild, more_replicas, fewer_replicas]
TABLET_STAGES = [stage for stage in Stage if stage not in (Stage.END_MIGRATION, Stage.REVERT_MIGRATION)]
"""Those in which a transition waits; the others end in the round that they begin in."""


@dataclass
class Scene:
    """A cluster that was brought somewhere, and is put back there in the same place, as its volumes have one."""

    ring: Any
    kept: Path

    @staticmethod
    def of(ring: SmallTable, kept: Path) -> Scene:
        shutil.copytree(ring.directory.parent, kept)
        return Scene(ring, kept)

    def again(self) -> Any:
        """The cluster as it was, opened anew."""
        root = self.ring.directory.parent
        self.ring.cluster.close()
        shutil.rmtree(root)
        shutil.copytree(self.kept, root, copy_function=shutil.copyfile)
        cluster = Cluster(self.ring.cluster.configuration)
        self.ring = type(self.ring)(cluster, cluster.catch_up().table("air.flights"), self.ring.directory)
        return self.ring


@pytest.fixture(scope="module")
def at_first(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Six nodes at rest with rows that each miss one replica."""
    directory = tmp_path_factory.mktemp("ways")
    with pytest.MonkeyPatch.context() as patched:
        without_zookeeper(patched)
        patched.setattr(commit_phase, "RETRY_SECONDS", 0.0)
        ring = ringed(directory / "case", SIX, configuration=QUICK)
        for first, away in ((100, "B"), (200, "D"), (300, "F")):
            with ring.without(away):
                ring.write_rows(ring.pipeline(), {first + row: token for row, token in SPREAD.items()})
    return Scene.of(ring, directory / "kept")


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    without_zookeeper(monkeypatch)
    monkeypatch.setattr(commit_phase, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(tablet_track, "AVOIDED_SECONDS", 0.0)


def at_step(ring: RingCluster, step: str) -> None:
    ring.until(Step.PREPARE if step == "PREPARE" else Step.START)
    if step in ("MID", "FINISH"):
        ring.until(Step.MID)
    if step == "FINISH":
        ring.until(None)


def roles(ring: RingCluster) -> tuple[str, ...]:
    """A node of each part in the operation: its own, one that comes, one that gains, one that gives, a bystander."""
    [operation] = ring.metadata.rings.operations.values()
    names = {node.node_id: name for name, node in ring.metadata.directory.by_name.items()}
    own = [names[node] for node in (operation.node_id,) if node in names and not is_away(ring, names[node])]
    gains = [name for name in (names[node] for node in sorted(gaining(operation))) if name not in own]
    others = [name for name in SIX if name not in (*own, *gains) and not is_away(ring, name)]
    return tuple(dict.fromkeys((*own, *gains[:1], *others[:1], *others[-1:])))


def is_away(ring: SmallTable, name: str) -> bool:
    return (ring.directory / name / "away").exists()


@sliced("begin", "step")
@pytest.mark.parametrize("step", RING_STAGES)
@pytest.mark.parametrize("begin", RING)
def test_an_operation_of_the_ring_ends_whichever_disk_dies(
    at_first: Scene,
    tmp_path: Path,
    begin: Callable[[RingCluster], str],
    step: str,
    seed: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ring = at_first.again()
    begin(ring)
    ring.until(Step.PREPARE)
    # Every part where there is time.
    victims = roles(ring) if THOROUGH else [random.Random(seed).choice(roles(ring))]
    at_step(ring, step)
    scene = Scene.of(ring, tmp_path / "kept")
    failed = {}
    for victim in victims:
        try:
            ends_without_losing_rows(scene.again(), victim, capsys)
        except AssertionError as error:
            failed[victim] = str(error)
    assert not failed, "\n".join(f"{victim}: {why}" for victim, why in failed.items())


@sliced("stage", "kind")
@pytest.mark.parametrize("kind", [Kind.MIGRATION, Kind.REBUILD])
@pytest.mark.parametrize("stage", TABLET_STAGES)
def test_a_transition_of_a_tablet_ends_whichever_disk_dies(
    tmp_path: Path, stage: Stage, kind: Kind, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tablet 0 goes from A to X, or is rebuilt there, and stays on B and C; D has no part in that."""
    table = placed(tmp_path / "case", SEVEN, {0: "ABC", 1: "DBC"}, configuration=QUICK)
    for first, away in ((100, "B"), (200, "A"), (300, "C")):
        with table.without(away):
            table.write_rows(table.pipeline(), {first + row: token for row, token in SPREAD.items()})
    table.start("A", "X", kind)
    if stage is Stage.CLEANUP_TARGET:
        table.until(Stage.STREAMING)
        with table.without("X"):
            table.until(stage)
    else:
        table.until(stage)
    scene = Scene.of(table, tmp_path / "kept")
    failed = {}
    for victim in "AXBD" if THOROUGH else random.Random(seed).choice("AXBD"):
        try:
            ends_without_losing_rows(scene.again(), victim, capsys)
        except AssertionError as error:
            failed[victim] = str(error)
    assert not failed, "\n".join(f"{victim}: {why}" for victim, why in failed.items())


def ends_without_losing_rows(ring: SmallTable, victim: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = list(ring.metadata.directory.by_name)
    dead = {name for name in names if is_away(ring, name)} | {victim}
    ring.lose(victim)
    acknowledged = still_held(ring, dead)
    command = CommandLine(ring.directory.parent / "root", capsys)
    said: list[str] = []
    for _ in range(8):
        run_until_fruitless(ring)
        if not list(ring.metadata.open_requests()) and is_out(ring, victim):
            break
        words = next_words(ring, command, victim, said)
        done = command.text(*words)
        assert done.code == 0, f"{words}: {done.err}"
    open_now = [(r.kind.value, r.state.value) for r in ring.metadata.open_requests()]
    assert not open_now, f"{open_now} after {said}: {ring.coordinator._blocked}"
    assert is_out(ring, victim), said
    assert_at_rest(ring, acknowledged)


def still_held(ring: SmallTable, dead: set[str]) -> set[int]:
    """The rows that some replica has which is read and whose disk is alive."""
    metadata = ring.metadata
    placements = metadata.placements(ring.table.table_id)
    lows, last = placements.lows.tolist(), highs(placements.lows).tolist()
    rows_on = rings.rows_by_volume(ring)
    return {
        row
        for index, (low, high) in enumerate(zip(lows, last, strict=True))
        for volume in placements.placement(index).reads
        if metadata.directory.node_of_volume[volume].name not in dead
        for row in rows_on(volume, low, high)
    }


def is_out(ring: SmallTable, name: str) -> bool:
    return ring.metadata.node(name).state is NodeState.LEFT


def run_until_fruitless(ring: SmallTable) -> None:
    fruitless = 0
    for _ in range(60):
        fruitless = 0 if ring.round() else fruitless + 1
        if fruitless == 3:
            return
    raise AssertionError(f"goes on for ever: {ring.coordinator._blocked}")


def next_words(ring: SmallTable, command: CommandLine, victim: str, said: list[str]) -> list[str]:
    """The words of the command that `status` names for what is open; where nothing waits, the removal of the node."""
    status = command.done("status")
    lines = [line for request in status["requests"] for line in request["blocked_by"]]
    found = [match[1] for line in lines for match in COMMAND.finditer(line)]
    assert found or not status["requests"], f"no way out is named: {lines}"
    words = (found or [f"node remove {victim}"])[0]
    assert words not in said, f"{words} did not help: {lines}"
    said.append(words)
    place = ring.directory / "Y"
    return words.replace(" NEW ", " Y ").replace("NAME=URI", f"d1={place},1GiB").split()


def assert_at_rest(ring: SmallTable, acknowledged: set[int]) -> None:
    metadata = ring.metadata
    assert not metadata.rings.operations
    assert not metadata.rings.changing
    assert not metadata.tablets.transitions
    assert not metadata.open_sessions()
    assert {node.state for node in metadata.directory.nodes.values()} <= {NodeState.NORMAL, NodeState.LEFT}
    assert not any(node.lost for node in metadata.directory.members())
    assert all(
        r.state in (RequestState.DONE, RequestState.CANCELLED, RequestState.FAILED) for r in metadata.requests.values()
    )
    lost = acknowledged - rings.read_at_every_quorum(ring)
    assert not lost, f"rows {sorted(lost)} are lost"
