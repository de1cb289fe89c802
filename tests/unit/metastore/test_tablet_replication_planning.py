"""Which replicas tablets get and give up when the replication of their keyspace is altered: properties of the plan."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import pytest
from epochlake.metastore.errors import Rejected
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import (
    AlterTabletReplication,
    ChangeReplicas,
    CreateKeyspace,
    EnableFeatures,
    FinishTabletReplication,
    ReplicaChange,
    RequestTopology,
    SetMaintenance,
)
from epochlake.metastore.metadata.features import SUPPORTED
from epochlake.metastore.metadata.model import RequestKind
from epochlake.metastore.metadata.replica_numbers import altering, tablets_left, unlike
from epochlake.metastore.planning.balancing import Loads
from epochlake.metastore.planning.streams import StreamLimits
from epochlake.metastore.planning.tablet_replication import next_replica_changes

from tests.support.histories import INITIALISE, applied, joined, keyspace, table

FLIGHTS = "id-flights"
LIMITS = StreamLimits(2, 0)


def cluster(dice: random.Random, start: int, tablets: int = 8) -> ClusterMetadata:
    """A cluster of 5 to 7 nodes in 1 to 3 racks, all of dc1, with tablets of `start` replicas on nodes by chance."""
    metadata = applied([INITIALISE, EnableFeatures(SUPPORTED)])
    racks = dice.randint(1, 3)
    for number in range(dice.randint(5, 7)):
        metadata = joined(metadata, f"n{number}", rack=f"r{number % racks}")
    volumes = list(metadata.directory.volumes)
    rows = [dice.sample(volumes, start) for _ in range(tablets)]
    return applied([CreateKeyspace(keyspace("air", dc1=start)), table("flights", rows)], metadata)


def loads(metadata: ClusterMetadata, dice: random.Random, silent: frozenset[int] = frozenset()) -> Loads:
    tablet_map = metadata.tablets.maps[FLIGHTS]
    sizes = {
        (FLIGHTS, tablet, volume): dice.randint(0, 1 << 30)
        for tablet in range(tablet_map.count)
        for volume in tablet_map.replicas(tablet)
        if volume not in silent
    }
    return Loads(sizes, silent)


def ended(metadata: ClusterMetadata, dice: random.Random) -> ClusterMetadata:
    """Some transitions have ended, most with their new replicas and some with the old ones, others go on."""
    moved, left = {}, dict(metadata.tablets.transitions)
    for key, transition in metadata.tablets.transitions.items():
        if dice.random() < 0.7:
            del left[key]
            if dice.random() < 0.8:
                moved[transition.tablet] = transition.new_replicas
    maps = {**metadata.tablets.maps, FLIGHTS: metadata.tablets.maps[FLIGHTS].with_replicas(moved, metadata.epoch)}
    tablets = msgspec.structs.replace(metadata.tablets, maps=maps, transitions=left)
    return msgspec.structs.replace(metadata, tablets=tablets)


def rack(metadata: ClusterMetadata, volume: int) -> str:
    return metadata.directory.node_of_volume[volume].rack


def assert_well_chosen(metadata: ClusterMetadata, change: ReplicaChange) -> None:
    """What comes is in a rack with the fewest replicas that has another node, what goes in one with the most."""
    replicas = metadata.tablets.maps[FLIGHTS].replicas(change.tablet)
    held = Counter(rack(metadata, volume) for volume in replicas)
    if change.leaving is None:
        free = [volume for volume in metadata.directory.volumes if volume not in replicas]
        assert held[rack(metadata, change.pending)] == min(held[rack(metadata, volume)] for volume in free)
    else:
        assert held[rack(metadata, change.leaving)] == max(held.values())


@pytest.mark.parametrize("seed", range(40))
def test_every_tablet_comes_to_the_last_replication_that_was_asked_for(seed: int) -> None:
    dice = random.Random(seed)
    metadata = cluster(dice, start=dice.randint(1, 3))
    metadata, wanted = altered(metadata, dice, [{"dc1": number} for number in (1, 2, 3, 4)], a_round)
    tablet_map = metadata.tablets.maps[FLIGHTS]
    assert {len({*tablet_map.replicas(tablet)}) for tablet in range(tablet_map.count)} == {wanted["dc1"]}
    assert not unlike(metadata, FLIGHTS).any()
    metadata = applied([FinishTabletReplication("air")], metadata)
    assert not altering(metadata)
    assert next_replica_changes(metadata, loads(metadata, dice), LIMITS) == ([], [])


def altered(
    metadata: ClusterMetadata,
    dice: random.Random,
    choices: Sequence[dict[str, int]],
    a_round: Callable[[ClusterMetadata, random.Random], ClusterMetadata],
) -> tuple[ClusterMetadata, dict[str, int]]:
    """The metadata when its tablets have the last of some replications that are asked for, and which that is."""
    rounds, wanted = 0, metadata.schema.keyspaces["air"].replication
    for _ in range(dice.randint(1, 3)):
        wanted = dice.choice([one for one in choices if one != wanted])
        metadata = applied([AlterTabletReplication("air", wanted)], metadata)
        for _ in range(dice.randint(0, 8)):
            metadata, rounds = a_round(metadata, dice), rounds + 1
    while tablets_left(metadata, "air"):
        metadata, rounds = a_round(metadata, dice), rounds + 1
        assert rounds < 400
    return metadata, wanted


def a_round(metadata: ClusterMetadata, dice: random.Random) -> ClusterMetadata:
    changes, stuck = next_replica_changes(metadata, loads(metadata, dice), LIMITS)
    assert not stuck
    for change in changes:
        assert (FLIGHTS, change.tablet) not in metadata.tablets.transitions
        assert_well_chosen(metadata, change)
    ends = Counter(end for change in changes for end in (change.pending, change.leaving) if end is not None)
    assert max(ends.values(), default=0) <= LIMITS.per_volume
    if changes:
        metadata = applied([ChangeReplicas(tuple(changes))], metadata)
    return ended(metadata, dice)


@pytest.mark.parametrize("seed", range(40))
def test_datacenters_come_before_others_go_and_no_tablet_is_ever_without_a_replica(seed: int) -> None:
    dice = random.Random(1000 + seed)
    metadata = cluster(dice, start=dice.randint(1, 3))
    for number in range(dice.randint(3, 5)):
        metadata = joined(metadata, f"m{number}", datacenter="dc2", rack=f"r{number % 2}")
    choices = [{"dc2": 2}, {"dc1": 2, "dc2": 1}, {"dc1": 1}, {"dc1": 3, "dc2": 3}, {"dc1": 0, "dc2": 1}]
    metadata, wanted = altered(metadata, dice, choices, a_round_elsewhere)
    tablet_map = metadata.tablets.maps[FLIGHTS]
    expected = {name: factor for name, factor in wanted.items() if factor}
    for tablet in range(tablet_map.count):
        assert Counter(map(metadata.directory.datacenter_of, tablet_map.replicas(tablet))) == expected
    metadata = applied([FinishTabletReplication("air")], metadata)
    assert next_replica_changes(metadata, loads(metadata, dice), LIMITS) == ([], [])


def a_round_elsewhere(metadata: ClusterMetadata, dice: random.Random) -> ClusterMetadata:
    """A round in which a datacenter that goes keeps what it has while a tablet lacks a replica where one stays."""
    changes, stuck = next_replica_changes(metadata, loads(metadata, dice), LIMITS)
    assert not stuck
    asked = metadata.schema.keyspaces["air"].replication
    datacenter_of = metadata.directory.datacenter_of
    for change in changes:
        held = Counter(map(datacenter_of, metadata.tablets.maps[FLIGHTS].replicas(change.tablet)))
        lacks = any(held[name] < factor for name, factor in asked.items())
        assert (change.leaving is None) == lacks or asked.get(datacenter_of(change.leaving or 0), 0)
    if changes:
        metadata = applied([ChangeReplicas(tuple(changes))], metadata)
    return ended(metadata, dice)


def test_single_tablets_get_replicas_in_no_datacenter_that_their_keyspace_does_not_ask_for() -> None:
    metadata = joined(cluster(random.Random(4), start=2), "m0", datacenter="dc2")
    [there] = [volume for volume in metadata.directory.volumes if metadata.directory.datacenter_of(volume) == "dc2"]
    first, second = metadata.tablets.maps[FLIGHTS].replicas(0)
    comes = ChangeReplicas((ReplicaChange(FLIGHTS, 0, there),))
    with pytest.raises(Rejected, match="its keyspace asks for none there"):
        metadata.check(comes)
    coming = applied([AlterTabletReplication("air", {"dc2": 1})], metadata)
    coming.check(comes)
    moved = coming.tablets.maps[FLIGHTS].with_replicas({0: (first, second, there)}, coming.epoch)
    held = msgspec.structs.replace(coming.tablets, maps={FLIGHTS: moved})
    for keeps, replication in ((False, {"dc2": 1}), (True, {"dc1": 1, "dc2": 1})):
        keyspaces = {"air": msgspec.structs.replace(coming.schema.keyspaces["air"], replication=replication)}
        asked = msgspec.structs.replace(
            coming, tablets=held, schema=msgspec.structs.replace(coming.schema, keyspaces=keyspaces)
        )
        with pytest.raises(Rejected, match="has to keep a replica in datacenter dc1"):
            asked.check(ChangeReplicas((ReplicaChange(FLIGHTS, 0, there, first),)))  # the second takes over
        fewer = moved.with_replicas({0: (first, there)}, coming.epoch)
        last = msgspec.structs.replace(asked, tablets=msgspec.structs.replace(coming.tablets, maps={FLIGHTS: fewer}))
        goes = ChangeReplicas((ReplicaChange(FLIGHTS, 0, there, first),))
        if keeps:
            with pytest.raises(Rejected, match="has to keep a replica in datacenter dc1"):
                last.check(goes)
        else:
            last.check(goes)


def test_a_node_that_goes_gives_up_its_replica_first_and_gets_none() -> None:
    dice = random.Random(1)
    metadata = cluster(dice, start=3)
    request = RequestTopology("leave", RequestKind.LEAVE, 1)
    metadata = applied([request, AlterTabletReplication("air", {"dc1": 2})], metadata)
    volume = metadata.directory.nodes[1].volumes[0].volume_id
    changes, _ = next_replica_changes(metadata, loads(metadata, dice), StreamLimits(100, 0))
    tablet_map = metadata.tablets.maps[FLIGHTS]
    assert len(changes) == tablet_map.count
    for change in changes:
        assert change.pending != volume
        assert (change.leaving == volume) == (volume in tablet_map.replicas(change.tablet))


def test_what_is_away_or_rests_is_no_target_and_what_has_a_silent_replica_gives_up_none() -> None:
    dice = random.Random(2)
    metadata = cluster(dice, start=3)
    silent, resting = (metadata.directory.nodes[number].volumes[0].volume_id for number in (1, 2))
    more = applied([SetMaintenance(2, on=True), AlterTabletReplication("air", {"dc1": 4})], metadata)
    changes, _ = next_replica_changes(more, loads(more, dice, frozenset({silent})), StreamLimits(100, 0))
    assert changes
    assert not {change.pending for change in changes} & {silent, resting}
    fewer = applied([AlterTabletReplication("air", {"dc1": 2})], metadata)
    changes, stuck = next_replica_changes(fewer, loads(fewer, dice, frozenset({silent})), StreamLimits(100, 0))
    tablet_map = fewer.tablets.maps[FLIGHTS]
    assert {change.tablet for change in changes} == {
        tablet for tablet in range(tablet_map.count) if silent not in tablet_map.replicas(tablet)
    }
    assert len(stuck) == 1


def test_a_replica_waits_for_a_node_that_does_not_answer_where_it_would_double_a_rack_elsewhere() -> None:
    """Nothing would move it away again; who does not come back is set in maintenance."""
    dice = random.Random(4)
    metadata = applied([INITIALISE, EnableFeatures(SUPPORTED)])
    for number, rack_name in enumerate(("r0", "r1", "r0", "r2")):
        metadata = joined(metadata, f"n{number}", rack=rack_name)
    a, b, other, away = list(metadata.directory.volumes)
    metadata = applied([CreateKeyspace(keyspace("air", dc1=2)), table("flights", [[a, b]])], metadata)
    metadata = applied([AlterTabletReplication("air", {"dc1": 3})], metadata)
    silent = loads(metadata, dice, frozenset({away}))
    avoided = msgspec.structs.replace(loads(metadata, dice), avoided=frozenset({away}))
    for given in (silent, avoided):
        changes, [stuck] = next_replica_changes(metadata, given, LIMITS)
        assert changes == []
        assert "node n3 of rack r2 does not answer" in stuck
    [change], _ = next_replica_changes(metadata, loads(metadata, dice), LIMITS)
    assert change.pending == away
    without = applied([SetMaintenance(metadata.directory.node_of_volume[away].node_id, on=True)], metadata)
    [change], _ = next_replica_changes(without, silent, LIMITS)
    assert change.pending == other


def test_a_table_that_is_about_to_be_split_waits() -> None:
    metadata = applied([AlterTabletReplication("air", {"dc1": 2})], cluster(random.Random(3), start=1))
    held = msgspec.structs.replace(loads(metadata, random.Random(3)), held=frozenset({FLIGHTS}))
    assert next_replica_changes(metadata, held, LIMITS) == ([], [])
