"""The ring in the cluster metadata: covers of the token space, and what operations do to nodes and keyspaces."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
import pytest
from epochlake.metastore.errors import Rejected
from epochlake.metastore.log.entry import decode_event, encode_event
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import (
    CancelRequest,
    CreateKeyspace,
    Event,
    FinishRequest,
    RequestReplication,
    RequestTopology,
    RetreatOperation,
    StartRequest,
)
from epochlake.metastore.metadata.model import Keyspace, NodeState, PlacementKind, RequestKind, RequestState, Volume
from epochlake.metastore.metadata.placements import RingPlacements, highs, index_of, volume_slices
from epochlake.metastore.metadata.ring_state import ring_state, settles
from epochlake.placement.ring.codec import encode_state
from epochlake.placement.ring.errors import PlanRejected
from epochlake.placement.ring.state import Step
from epochlake.placement.ring.strategies import Replication
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN, tokens_of_label

from tests.support.histories import (
    INITIALISE,
    applied,
    joined,
    joined_ring,
    register,
    replication_step,
    ring_cluster,
    ring_keyspace,
    ring_nodes,
    ring_plan,
    ring_table,
    start,
    steps,
    tokens_of,
)
from tests.support.ring_event_cases import scenes, sparse

START, MID, FINISH, PREPARE = Step.START, Step.MID, Step.FINISH, Step.PREPARE
STARS = "id-stars"
TOKENS = np.array([MIN_TOKEN, MIN_TOKEN + 1, *range(MIN_TOKEN + 5, MAX_TOKEN, (1 << 64) // 199), MAX_TOKEN])


def joining(*done: Step, volumes: int = 1) -> ClusterMetadata:
    """Node m7 on its way into the ring, with PREPARE and these steps done."""
    metadata = ring_cluster(volumes)
    metadata = applied([register(metadata, "m7", rack="r1", volumes=volumes)], metadata)
    metadata = applied([start(metadata, "join-m7")], metadata)
    return applied(steps("join-m7", *done) if done else [], metadata)


def cover_of(metadata: ClusterMetadata) -> RingPlacements:
    return metadata.ring_placements("sky")


def asked(metadata: ClusterMetadata, kind: RequestKind, node: int, **more: object) -> ClusterMetadata:
    """The request asked for, and started with its plan."""
    metadata = applied([RequestTopology("r", kind, node, **more)], metadata)  # type: ignore[arg-type]
    return applied([start(metadata, "r")], metadata)


def state_bytes(metadata: ClusterMetadata) -> bytes:
    state = ring_state(metadata)
    return encode_state(msgspec.structs.replace(state, nodes=dict(list(state.nodes.items())[:6])))


# The cover


@pytest.mark.parametrize("metadata", [joining(), joining(START, MID, volumes=3)], ids=["at rest", "on the move"])
def test_the_ranges_of_a_cover_hold_every_token_once(metadata: ClusterMetadata) -> None:
    cover = metadata.placements(STARS)
    assert cover.lows[0] == MIN_TOKEN
    assert (np.diff(cover.lows.astype(object)) > 0).all()
    assert highs(cover.lows)[-1] == MAX_TOKEN
    assert [tokens_of_label(cover.label(i)) for i in range(len(cover.lows))] == list(
        zip(cover.lows.tolist(), highs(cover.lows).tolist(), strict=True)
    )


def test_a_token_is_on_the_volume_of_its_slice_on_each_of_its_nodes() -> None:
    metadata = ring_cluster(volumes=3)
    cover, state = cover_of(metadata), ring_state(metadata)
    reads = next(iter(state.placements.values())).reads
    for token in TOKENS.tolist():
        row = 0 if token == MIN_TOKEN else int(np.searchsorted(reads.starts, token, side="left")) - 1
        placed = cover.placement(int(index_of(cover.lows, np.array([token]))[0]))
        assert [metadata.directory.node_of_volume[v].node_id for v in placed.reads] == reads.replicas[row].tolist()
        for volume in placed.reads:
            slices = volume_slices(metadata.directory.node_of_volume[volume].volumes)
            assert [v for low, v in slices if low <= token][-1] == volume


def test_slices_are_in_proportion_to_the_capacities_in_volume_order() -> None:
    slices = volume_slices([Volume(4, "a", "/a", 1), Volume(9, "b", "/b", 2), Volume(7, "c", "/c", 1)])
    assert slices == [(MIN_TOKEN, 4), (-(2**62), 9), (2**62, 7)]


def test_ring_tokens_at_both_ends_of_the_token_space_make_no_empty_range() -> None:
    metadata = applied([INITIALISE])
    for name, tokens in (("m1", (MIN_TOKEN, 5)), ("m2", (MAX_TOKEN, 9)), ("m3", (MAX_TOKEN - 1,))):
        metadata = applied([register(metadata, name, rack="r1", tokens=tokens)], metadata)
        metadata = applied([start(metadata, f"join-{name}"), FinishRequest(f"join-{name}")], metadata)
    metadata = applied([CreateKeyspace(ring_keyspace(dc1=1)), ring_table()], metadata)
    cover = metadata.placements(STARS)
    assert cover.lows.tolist() == [MIN_TOKEN, 6, 10, MAX_TOKEN]
    assert [cover.placement(i).reads for i in range(4)] == [(1,), (2,), (3,), (2,)]


def test_ranges_begin_exactly_after_tokens_that_no_float_can_hold() -> None:
    metadata = applied([INITIALISE])
    odd = ((2**62 + 1, -(2**61) - 3), (2**53 + 1, 2**62 + 3))
    for name, tokens in zip(("m1", "m2"), odd, strict=True):
        metadata = applied([register(metadata, name, rack="r1", tokens=tokens)], metadata)
        metadata = applied([start(metadata, f"join-{name}"), FinishRequest(f"join-{name}")], metadata)
    lows = applied([CreateKeyspace(ring_keyspace(dc1=1))], metadata).ring_placements("sky").lows
    assert lows.dtype == np.int64
    assert lows.tolist() == [MIN_TOKEN, *sorted(token + 1 for tokens in odd for token in tokens)]


@pytest.mark.parametrize(("done", "sets"), [((), 1), ((START,), 2), ((START, MID), 2)])
def test_writes_count_in_the_old_and_in_the_new_replicas_from_start_until_finish(done, sets) -> None:
    metadata = joining(*done)
    cover = metadata.placements(STARS)
    moving = [i for i in range(len(cover.lows)) if cover.since(i).started_epoch is not None]
    assert moving
    assert {len(cover.placement(i).write_sets) for i in moving} == {sets}
    at_rest = set(range(len(cover.lows))) - set(moving)
    assert {len(cover.placement(i).write_sets) for i in at_rest} == {1}
    new_readers = {v for i in moving for v in cover.placement(i).reads}
    assert (7 in new_readers) == (MID in done)
    assert (7 in metadata.ring_volumes(STARS)) == bool(done)


def test_since_names_the_replicas_of_before_while_a_range_moves_and_the_new_ones_after() -> None:
    moved, finished = joining(START, MID), joining(START, MID, FINISH)
    cover = moved.placements(STARS)
    [row, *_] = cover_of(moved).changing_sets[0].tolist()
    old, new = cover.placement(row).write_sets
    assert cover.since(row).replicas == old
    assert cover.since(row).started_epoch == moved.rings.running["join-m7"].started_epoch
    after = finished.placements(STARS)
    here = int(index_of(after.lows, cover.lows[row : row + 1])[0])
    assert set(after.since(here).replicas) == set(new)
    assert after.since(here).placed_epoch == finished.epoch > cover.since(row).placed_epoch
    assert after.since(here).started_epoch is None


def test_a_rebuild_takes_reads_away_and_leaves_writes_in_one_set() -> None:
    metadata = applied(steps("r", START), asked(ring_cluster(), RequestKind.REBUILD, 2))
    cover = metadata.placements(STARS)
    placed = [cover.placement(i) for i in range(len(cover.lows))]
    assert all(2 not in one.reads for one in placed)
    assert any(2 in one.writes for one in placed)
    assert {len(one.write_sets) for one in placed} == {1}
    back = applied(steps("r", MID), metadata).placements(STARS)
    assert any(2 in back.placement(i).reads for i in range(len(back.lows)))


def test_the_cover_is_made_once_for_all_tables_and_until_the_rings_change() -> None:
    metadata = applied([ring_table("moons")], ring_cluster())
    assert metadata.placements(STARS) is metadata.placements("id-moons")
    later = applied([CreateKeyspace(ring_keyspace("sea"))], metadata)
    assert later.ring_placements("sea") is metadata.placements(STARS)


def test_the_placements_of_the_whole_ring_are_those_of_its_ranges_one_by_one() -> None:
    cover = cover_of(joining(START, volumes=2))
    rows, old, new = cover.changing_sets
    for i in range(len(cover.lows)):
        placed = cover.placement(i)
        assert [v for v in cover.read_volumes[i].tolist() if v >= 0] == list(placed.reads)
        assert [v for v in cover.write_volumes[i].tolist() if v >= 0] == list(placed.writes)
    for row, is_old, is_new in zip(rows.tolist(), old, new, strict=True):
        writes = np.array(cover.placement(row).writes)
        marked = [set(writes[marks[: len(writes)]]) for marks in (is_old, is_new)]
        assert marked == [set(replicas) for replicas in cover.placement(row).write_sets]


# What operations do


def test_a_join_goes_through_its_steps_with_a_session_from_start_to_mid() -> None:
    seen = [(m.open_sessions(), m.directory.nodes[7].state) for m in (joining(), joining(START), joining(START, MID))]
    bootstrapping = NodeState.BOOTSTRAPPING
    assert seen == [
        (frozenset(), bootstrapping),
        ({"session-join-m7"}, bootstrapping),
        (frozenset(), bootstrapping),
    ]
    finished = joining(START, MID, FINISH)
    assert finished.directory.nodes[7].tokens == tokens_of(7)
    done = applied([FinishRequest("join-m7")], finished)
    assert (done.directory.nodes[7].state, dict(done.rings.operations)) == (NodeState.NORMAL, {})


@pytest.mark.parametrize("done", [(), (START,)])
def test_a_cancel_before_mid_takes_the_operation_back_in_its_epoch(done: tuple[Step, ...]) -> None:
    cancelled = applied([CancelRequest("join-m7")], joining(*done))
    assert not cancelled.rings.operations
    assert not cancelled.open_sessions()
    assert state_bytes(cancelled) == state_bytes(ring_cluster())
    assert cancelled.requests["join-m7"].state is RequestState.CANCELLING
    assert cancelled.directory.nodes[7].state is NodeState.BOOTSTRAPPING
    ended = applied([FinishRequest("join-m7")], cancelled)
    assert ended.requests["join-m7"].state is RequestState.CANCELLED
    assert ended.directory.nodes[7].state is NodeState.LEFT


@pytest.mark.parametrize("way", [(MID, START, PREPARE), (MID, PREPARE)])
def test_a_cancel_after_mid_goes_back_with_mid_in_an_epoch_of_its_own(way: tuple[Step, ...]) -> None:
    metadata = applied([CancelRequest("join-m7")], joining(START, MID))
    assert metadata.rings.operations["join-m7"].cancelling
    for step in way:
        with pytest.raises(Rejected, match="operation-in-flight"):
            metadata.check(FinishRequest("join-m7"))
        metadata = applied([RetreatOperation("join-m7", step)], metadata)
    assert state_bytes(metadata) == state_bytes(ring_cluster())
    assert applied([FinishRequest("join-m7")], metadata).directory.nodes[7].state is NodeState.LEFT


@pytest.mark.parametrize("kind", [RequestKind.LEAVE, RequestKind.REMOVE, RequestKind.MOVE, RequestKind.REBUILD])
def test_a_node_whose_request_was_cancelled_is_normal_again_with_its_tokens(kind: RequestKind) -> None:
    before = ring_cluster()
    metadata = applied(steps("r", START), asked(before, kind, 5))
    assert metadata.directory.nodes[5].state is not NodeState.NORMAL
    metadata = applied([CancelRequest("r"), FinishRequest("r")], metadata)
    assert metadata.directory.nodes[5].state is NodeState.NORMAL
    assert metadata.directory.nodes[5].tokens == before.directory.nodes[5].tokens


@pytest.mark.parametrize(
    ("kind", "during"),
    [(RequestKind.MOVE, NodeState.MOVING), (RequestKind.REBUILD, NodeState.REBUILDING)],
)
def test_a_move_and_a_rebuild_end_normal(kind: RequestKind, during: NodeState) -> None:
    metadata = asked(ring_cluster(), kind, 5)
    assert metadata.directory.nodes[5].state is during
    metadata = applied([*steps("r"), FinishRequest("r")], metadata)
    assert metadata.directory.nodes[5].state is NodeState.NORMAL
    assert settles(ring_state(metadata))


def test_a_node_that_leaves_owns_nothing_after_finish_and_has_left_when_its_request_ends() -> None:
    metadata = applied(steps("r"), asked(ring_cluster(), RequestKind.LEAVE, 5))
    assert (metadata.directory.nodes[5].state, metadata.directory.nodes[5].tokens) == (NodeState.DECOMMISSIONING, ())
    assert 5 not in metadata.ring_volumes(STARS)
    assert applied([FinishRequest("r")], metadata).directory.nodes[5].state is NodeState.LEFT


def test_a_replaced_node_keeps_its_ranges_until_they_are_handed_over() -> None:
    before = ring_cluster()
    metadata = applied([register(before, "m7", rack="r2", replaces=5)], before)
    metadata = applied([start(metadata, "join-m7")], metadata)
    old, new = metadata.directory.nodes[5], metadata.directory.nodes[7]
    assert (old.state, new.state, old.replaced_by) == (NodeState.LEFT, NodeState.NORMAL, 7)
    assert (old.tokens, new.tokens) == (before.directory.nodes[5].tokens, ())
    seen = []
    for step in steps("join-m7"):
        metadata = applied([step], metadata)
        cover = cover_of(metadata)
        seen.append([(5 in cover.read_volumes, 5 in cover.write_volumes, 7 in cover.read_volumes)])
    assert seen == [[(True, True, False)], [(False, True, True)], [(False, False, True)]]
    old, new = metadata.directory.nodes[5], metadata.directory.nodes[7]
    assert (old.tokens, new.tokens) == ((), before.directory.nodes[5].tokens)


def test_a_change_of_replication_goes_a_replica_at_a_time_to_what_was_asked_for() -> None:
    metadata = applied(
        [RequestReplication("more", "sky", "NetworkTopologyStrategy", {"dc1": 5}), StartRequest("more")], ring_cluster()
    )
    for number, factor in ((1, 4), (2, 5)):
        metadata = applied([replication_step(metadata, "more", number)], metadata)
        assert metadata.rings.changing == {"sky": Replication("NetworkTopologyStrategy", (("dc1", factor - 1),), "sky")}
        metadata = applied(steps(f"more/{number}"), metadata)
        assert metadata.schema.keyspaces["sky"].replication == {"dc1": factor}
    metadata = applied([FinishRequest("more")], metadata)
    cover = metadata.placements(STARS)
    assert {len(cover.placement(i).reads) for i in range(len(cover.lows))} == {5}
    assert settles(ring_state(metadata))


def test_a_cancelled_change_of_replication_keeps_the_steps_that_were_finished() -> None:
    metadata = applied(
        [RequestReplication("more", "sky", "NetworkTopologyStrategy", {"dc1": 5}), StartRequest("more")], ring_cluster()
    )
    metadata = applied([replication_step(metadata, "more", 1)], metadata)
    metadata = applied(steps("more/1"), metadata)
    metadata = applied([replication_step(metadata, "more", 2)], metadata)
    metadata = applied([*steps("more/2", START), CancelRequest("more"), FinishRequest("more")], metadata)
    assert metadata.schema.keyspaces["sky"].replication == {"dc1": 4}
    assert metadata.requests["more"].state is RequestState.CANCELLED
    assert settles(ring_state(metadata))


def test_keyspaces_that_share_a_setting_share_placements_until_one_of_them_changes() -> None:
    metadata = applied([CreateKeyspace(ring_keyspace("sea"))], ring_cluster())
    assert len(metadata.rings.placements) == 1
    metadata = applied(
        [RequestReplication("less", "sea", "NetworkTopologyStrategy", {"dc1": 2}), StartRequest("less")], metadata
    )
    metadata = applied([replication_step(metadata, "less")], metadata)
    assert len(metadata.rings.placements) == 2
    metadata = applied([*steps("less/1"), FinishRequest("less")], metadata)
    sizes = {name: cover.read_volumes.shape[1] for name in ("sky", "sea") if (cover := metadata.ring_placements(name))}
    assert sizes == {"sky": 3, "sea": 2}


def test_simple_strategy_places_replicas_whatever_the_rack() -> None:
    simple = Keyspace("sky", PlacementKind.RING, "SimpleStrategy", {"replication_factor": 2})
    cover = applied([CreateKeyspace(simple)], ring_nodes()).ring_placements("sky")
    assert {len(cover.placement(i).reads) for i in range(len(cover.lows))} == {2}


def test_without_keyspaces_on_the_ring_tokens_change_at_once_but_for_nodes_on_their_way_out() -> None:
    bare = ring_nodes()
    metadata = asked(bare, RequestKind.MOVE, 1, tokens=(3, 4))
    assert metadata.directory.nodes[1].tokens == (3, 4)
    assert not metadata.rings.operations
    leaving = asked(bare, RequestKind.LEAVE, 1)
    assert leaving.directory.nodes[1].tokens == tokens_of(1)
    assert applied([CancelRequest("r")], leaving).directory.nodes[1].tokens == tokens_of(1)
    assert applied([FinishRequest("r")], leaving).directory.nodes[1].tokens == ()


def test_a_replacement_without_a_plan_takes_the_tokens_with_the_place() -> None:
    bare = ring_nodes()
    metadata = applied([register(bare, "m7", rack="r1", replaces=1), StartRequest("join-m7")], bare)
    assert (metadata.directory.nodes[1].tokens, metadata.directory.nodes[7].tokens) == ((), tokens_of(1))


def test_clusters_without_tokens_go_on_as_before() -> None:
    metadata = joined(applied([INITIALISE]), "n1", "n2", "n3", "n4")
    assert all(not node.tokens for node in metadata.directory.nodes.values())
    metadata = applied([RequestTopology("r", RequestKind.LEAVE, 1), StartRequest("r"), FinishRequest("r")], metadata)
    assert metadata.directory.nodes[1].state is NodeState.LEFT


def test_what_the_ring_refuses_is_told_with_the_names_of_nodes_and_of_the_operation_in_the_way() -> None:
    metadata = joining()
    metadata = applied([register(metadata, "m8", rack="r1")], metadata)
    other = joined_ring(ring_cluster(), "m7", rack="r1")
    plan = start(applied([register(other, "m8", rack="r1")], other), "join-m8")
    with pytest.raises(Rejected) as rejected:
        metadata.check(plan)
    assert rejected.value.code == "ranges-locked"
    assert "locked by operation join-m7 (join of node 'm7')" in rejected.value.reason


def test_a_node_that_once_replaced_another_can_leave() -> None:
    metadata = applied([register(ring_cluster(), "m7", rack="r2", replaces=5)], ring_cluster())
    metadata = applied([start(metadata, "join-m7")], metadata)
    metadata = applied([*steps("join-m7"), FinishRequest("join-m7")], metadata)
    metadata = asked(metadata, RequestKind.LEAVE, 7)
    metadata = applied([*steps("r"), FinishRequest("r")], metadata)
    assert metadata.directory.nodes[7].state is NodeState.LEFT


def test_a_change_of_replication_and_a_plan_for_its_setting_exclude_each_other_also_without_common_ranges() -> None:
    replacing = scenes()["a replace elsewhere beside a change"]
    with pytest.raises(PlanRejected) as rejected:
        ring_plan(replacing, "join-m8")
    assert (rejected.value.code, rejected.value.operation_id) == ("ranges-locked", "fewer/1")
    changing = scenes()["a change beside a replace elsewhere"]
    with pytest.raises(PlanRejected) as rejected:
        replication_step(changing, "fewer")
    assert (rejected.value.code, rejected.value.operation_id) == ("ranges-locked", "join-m8")


def test_operations_on_disjoint_ranges_go_on_side_by_side_in_any_order() -> None:
    base = sparse()
    base = applied([start(base, "join-m8")], base)
    one, other = steps("join-m7"), steps("join-m8")
    ends = []
    for order in ([*one, *other], [*other, *one], [event for pair in zip(one, other, strict=True) for event in pair]):
        ended = applied([*order, FinishRequest("join-m7"), FinishRequest("join-m8")], base)
        assert settles(ring_state(ended))
        ends.append(encode_state(ring_state(ended)))
    assert all(left == right for left, right in pairwise(ends))


@pytest.mark.parametrize("event", [StartRequest("r"), StartRequest("r", b"plan")], ids=["without", "with"])
def test_a_plan_travels_as_attachment_and_never_in_the_payload(event: Event) -> None:
    encoded = encode_event(event)
    assert encoded.payload == '{"request_id":"r"}'
    assert encoded.attachment == (b"plan" if getattr(event, "attachment", b"") else None)
    assert decode_event(encoded.event, encoded.payload, encoded.attachment, epoch=1) == event
