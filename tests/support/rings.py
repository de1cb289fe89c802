"""Small clusters with a table on the ring, whose operations are moved on step by step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path

from epochlake.jobs import administration
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.coordinator.coordinator import Coordinator
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.replica import open_snapshot
from epochlake.jobs.upkeep.verification import verify_replicas
from epochlake.metastore.configuration import Configuration, CoordinatorSettings, PipelineSettings
from epochlake.metastore.metadata.model import NodeState, PlacementKind, TopologyRequest, VolumeId
from epochlake.placement.consistency import majority
from epochlake.placement.ring.state import STEPS, Step
from epochlake.placement.tokens import MAX_TOKEN

from tests.support.clusters import COLUMNS, SmallTable, appended_at_once, begin
from tests.support.storages import STORAGE

NodeSpec = tuple[str, str, Sequence[int]]
"""Datacenter, rack, tokens."""

TURN = 1 << 60
"""Tokens are given as multiples of this: from -8 to 7."""

FOUR: dict[str, NodeSpec] = {
    "A": ("dc1", "r1", (-6,)),
    "B": ("dc1", "r2", (-2,)),
    "C": ("dc1", "r3", (2,)),
    "D": ("dc1", "r1", (6,)),
}
SPREAD = {row: row * TURN + TURN // 2 for row in range(-8, 8)}
"""Rows (id -> token) in all parts of the ring."""


QUICK = Configuration(
    pipeline=PipelineSettings(attempts=1), coordinator=CoordinatorSettings(backoff_seconds=0.0, streams_per_volume=4)
)
JOINER: NodeSpec = ("dc1", "r2", (0,))


@dataclass
class RingCluster(SmallTable):
    """A small table on the ring."""

    def add(self, name: str, place: NodeSpec, *, volumes: int = 1, replaces: str | None = None) -> str:
        """Ask that a node joins, or replaces another; the request's id."""
        datacenter, rack, tokens = place
        return add_node(
            self.cluster, self.directory, name, datacenter, rack, scaled(tokens), volumes=volumes, replaces=replaces
        )

    def step(self) -> tuple[Step | None, bool]:
        """The last step of the one operation in flight, and whether it is on its way back; None when there is none."""
        operations = list(self.metadata.rings.operations.values())
        return (STEPS[operations[0].next_step - 1], operations[0].cancelling) if operations else (None, False)

    def until(self, step: Step | None, rounds: int = 30) -> None:
        """Let the coordinator do rounds until that step is the last one; None: until nothing is in flight."""
        for _ in range(rounds):
            if self.step()[0] is step:
                return
            if step is Step.PREPARE:
                # A round prepares and starts: only the first half of it.
                requests, *_ = self.coordinator.tracks
                requests.advance(self.metadata)
            else:
                self.round()
        raise AssertionError(f"stays at {self.step()}: {self.coordinator._blocked}")

    def request(self, request_id: str) -> TopologyRequest:
        return self.metadata.requests[request_id]

    def restart(self) -> None:
        """Another coordinator, which knows nothing but the metadata, goes on."""
        self.__dict__["coordinator"] = Coordinator(self.cluster)


def join(ring: RingCluster) -> str:
    return ring.add("X", JOINER)


def leave(ring: RingCluster) -> str:
    return administration.decommission(ring.cluster, "D").request_id


def move(ring: RingCluster) -> str:
    return administration.move_node(ring.cluster, "D", tokens=scaled((4, -4))).request_id


def remove(ring: RingCluster) -> str:
    ring.lose("D")
    return administration.remove_node(ring.cluster, "D").request_id


def replace(ring: RingCluster) -> str:
    ring.lose("D")
    return ring.add("X", ("dc1", "r1", ()), replaces="D")


def rebuild(ring: RingCluster) -> str:
    return administration.rebuild_node(ring.cluster, "D").request_id


def more_replicas(ring: RingCluster) -> str:
    return administration.change_replication(ring.cluster, "air", {"dc1": 4}).request_id


def fewer_replicas(ring: RingCluster) -> str:
    return administration.change_replication(ring.cluster, "air", {"dc1": 1}).request_id


KINDS = [join, leave, move, remove, replace, rebuild, more_replicas, fewer_replicas]
"""Every kind of operation, begun on the nodes of `FOUR`: the request's id."""

CANCELLABLE = [join, leave, move, remove, rebuild, more_replicas, fewer_replicas]
STEPS_IN_FLIGHT = [Step.PREPARE, Step.START, Step.MID]


def ringed(
    root: Path,
    nodes: Mapping[str, NodeSpec],
    replication: Mapping[str, int] | None = None,
    *,
    volumes: int = 1,
    configuration: Configuration | None = None,
    rows: Mapping[int, int] = SPREAD,
) -> RingCluster:
    """A cluster of `nodes` with table `air.flights` on the ring, and rows that are on all their replicas."""
    cluster = begin(root, configuration=configuration)
    directory = root / "volumes"
    with appended_at_once(cluster):
        for name, (datacenter, rack, tokens) in nodes.items():
            add_node(cluster, directory, name, datacenter, rack, scaled(tokens), volumes=volumes)
        coordinator = Coordinator(cluster)
        while coordinator._round_safely() or not coordinator._is_idle(cluster.catch_up()):
            pass
        administration.pause_balancing(cluster)
        administration.create_keyspace(cluster, "air", replication or {"dc1": 3}, placement=PlacementKind.RING)
    table = administration.create_table(cluster, "air.flights", COLUMNS, ["id"])
    assert table.table_id
    ring = RingCluster(cluster, cluster.catch_up().table("air.flights"), directory)
    if rows:
        ring.write_rows(ring.pipeline(), rows, "ALL")
    return ring


def add_node(
    cluster: Cluster,
    directory: Path,
    name: str,
    datacenter: str,
    rack: str,
    tokens: Sequence[int],
    *,
    volumes: int = 1,
    replaces: str | None = None,
) -> str:
    places = [(f"d{n}", str(directory / (name if n == 1 else f"{name}{n}")), 1 << 30) for n in range(1, volumes + 1)]
    done = administration.add_node(cluster, name, datacenter, rack, places, tokens=tokens, replaces=replaces)
    return done.request_id


def scaled(tokens: Iterable[int]) -> list[int]:
    return [token * TURN for token in tokens]


def assert_settled(ring: RingCluster, acknowledged: Collection[int], datacenter: str | None = None) -> None:
    """Nothing is in flight, asked for or locked; volumes hold what they own and no more; every quorum has all rows.

    With a datacenter, every LOCAL_QUORUM there has them.
    """
    metadata = ring.metadata
    assert not metadata.rings.operations
    assert not metadata.rings.running
    assert not metadata.rings.changing
    assert not metadata.tablets.transitions
    assert not metadata.open_sessions()
    assert not list(metadata.open_requests())
    for table in metadata.schema.tables.values():
        if metadata.is_on_ring(table.table_id):
            _assert_no_session_is_open(ring, table.table_id)
    report = verify_replicas(STORAGE, metadata)
    assert (report.violations, report.unswept) == ((), ())
    assert set(acknowledged) <= read_at_every_quorum(ring, datacenter)
    rows = ring.read_rows(ring.pipeline())
    assert len(rows) == len(set(rows))


def read_at_every_quorum(ring: SmallTable, datacenter: str | None = None) -> set[int]:
    """The rows that each quorum of replicas has, or of those in one datacenter."""
    metadata = ring.metadata
    placements = metadata.placements(ring.table.table_id)
    found: set[int] = set()
    rows_on = rows_by_volume(ring)
    bounds = [*placements.lows.tolist(), MAX_TOKEN + 1]
    for index, (low, after) in enumerate(pairwise(bounds)):
        reads = [
            volume
            for volume in placements.placement(index).reads
            if datacenter in (None, metadata.directory.datacenter_of(volume))
        ]
        held = {volume: rows_on(volume, low, after - 1) for volume in reads}
        quorums = [set().union(*quorum) for quorum in combinations(held.values(), majority(len(reads)))]
        found |= set.intersection(*quorums)
    return found


def rows_by_volume(ring: SmallTable) -> Callable[[VolumeId, int, int], set[int]]:
    """What gives the rows of a volume from a first to a last token. It looks at each volume once."""
    nodes = ring.metadata.directory.node_of_volume

    @cache
    def all_rows(volume: VolumeId) -> list[tuple[int, int]]:
        assert len(nodes[volume].volumes) == 1
        return ring.tokens_on(nodes[volume].name)

    return lambda volume, low, high: {row for token, row in all_rows(volume) if low <= token <= high}


def _assert_no_session_is_open(ring: RingCluster, table_id: str) -> None:
    metadata = ring.metadata
    for node in metadata.directory.nodes.values():
        if node.state is NodeState.LEFT:
            continue
        assert node.state is NodeState.NORMAL
        for volume in node.volumes:
            address = address_of(ring.cluster.storage, metadata, metadata.schema.tables[table_id], volume.volume_id)
            if Path(address.uri).exists():
                assert open_snapshot(address).sessions == frozenset()
