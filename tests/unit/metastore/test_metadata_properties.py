"""Random histories of the cluster metadata: what holds after every event, and however the metadata was arrived at."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
from epochlake.metastore.errors import Rejected
from epochlake.metastore.following.follower import Follower
from epochlake.metastore.following.history import replay
from epochlake.metastore.following.quorums import quorums_of
from epochlake.metastore.following.snapshot_format import decode_snapshot, encode_snapshot
from epochlake.metastore.log.entry import Entry, Position, position_of
from epochlake.metastore.log.in_memory import InMemoryLog
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.components.component import components_of
from epochlake.metastore.metadata.components.upgrade import UpgradeState
from epochlake.metastore.metadata.digest import digest_of
from epochlake.metastore.metadata.events import (
    KINDS,
    AdvanceTransitions,
    AdvanceUpgrade,
    CreateKeyspace,
    EnableFeatures,
    Event,
    FinishRequest,
    FinishTransitions,
    ResumeChanges,
    StartRequest,
)
from epochlake.metastore.metadata.features import REPLICA_COUNTS, SUPPORTED, UPGRADES
from epochlake.metastore.metadata.model import Keyspace, NodeState, RequestKind, RequestState
from epochlake.metastore.metadata.replication import ring_keyspaces
from epochlake.metastore.metadata.ring_state import ring_state, settles
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.support.histories import (
    INITIALISE,
    KINDS_OF_CHANGE,
    a_request_taken_further,
    keyspace,
    register,
    ring_keyspace,
    ring_table,
    start,
)
from tests.support.logs import put, sealed
from tests.support.random_ring import RING_CHANGES, towards_rest
from tests.support.slices import some

ACCEPTED: Counter[str] = Counter()
REJECTED: Counter[str] = Counter()
ONWARD = {
    ("allow_write_both_read_old", "write_both_read_old"),
    ("write_both_read_old", "streaming"),
    ("streaming", "write_both_read_new"),
    ("write_both_read_new", "use_new"),
    ("use_new", "cleanup"),
    ("cleanup", "end_migration"),
    ("cleanup_target", "revert_migration"),
}
BACK = {
    ("allow_write_both_read_old", "cleanup_target"),
    ("write_both_read_old", "cleanup_target"),
    ("streaming", "cleanup_target"),
    ("write_both_read_new", "write_both_read_old"),
}


SEEDS = st.integers(0, 2**32 - 1)


class History(RuleBasedStateMachine):
    """One cluster from its beginning: every event goes into the log, or is rejected and changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.metadata = ClusterMetadata.empty()
        self.replayed = ClusterMetadata.empty()
        self.position = Position()
        self.entries: list[Entry] = []
        self.snapshots: list[tuple[ClusterMetadata, Position, bytes]] = []
        self.versions: list[ClusterMetadata] = []
        self.directories: dict[str, str] = {}
        self.nodes: dict[int, tuple[str, tuple[int, ...]]] = {}

    @initialize(nodes=st.integers(3, 6), number=SEEDS, on_ring=st.booleans())
    def begin(self, nodes: int, number: int, on_ring: bool) -> None:
        self.submit(INITIALISE)
        if number % 2:
            # Once there are nodes it is too late.
            self.submit(EnableFeatures((UPGRADES,)))
            for _ in range(4):
                self.submit(KINDS_OF_CHANGE["upgrade"](self.metadata, random.Random(number)))
            if self.metadata.upgrade.going_on:
                self.submit(AdvanceUpgrade(UpgradeState.DONE, True, "at last"))
        for index in range(nodes):
            event = register(self.metadata, f"m{index}", rack=f"r{index % 3 + 1}", volumes=1 + index % 2)
            self.submit(event)
            self.submit(start(self.metadata, event.request_id) if on_ring else StartRequest(event.request_id))
            self.submit(FinishRequest(event.request_id))
        self.submit(CreateKeyspace(keyspace("air", dc1=2)))
        if on_ring:
            self.submit(CreateKeyspace(ring_keyspace("sky", dc1=number % 3 + 1)))
            self.submit(ring_table("stars"))
        dice = random.Random(number)
        self.submit(KINDS_OF_CHANGE["table"](self.metadata, dice))
        # At rest most changes are accepted, so that no kind is missing in the few histories of a slice.
        at_rest = [*["word of an operator"] * 4, *["resize"] * 3]
        if number % 3:
            names = tuple(name for name in SUPPORTED if name not in self.metadata.features.enabled)
            self.submit(EnableFeatures(names))
            divided = random.Random(number)
            for kind in ["change stream", *["generation"] * 3]:
                self.submit(KINDS_OF_CHANGE[kind](self.metadata, divided))
            at_rest += [
                "pin",
                "keyspace name",
                *["tablet replication"] * 4,
                *["topology"] * 2,
                "forgotten request",
                "unregistered node",
                *["replica count"] * 6,
                *["time to live"] * 3,
                *["feature"] * 2,
            ]
        else:
            at_rest += [*["dropped table"] * 3, *["keyspace"] * 3]
        at_rest += dice.sample(sorted(KINDS_OF_CHANGE), 6)
        for kind in at_rest:
            self.submit(KINDS_OF_CHANGE[kind](self.metadata, dice))
        self.submit(ResumeChanges())
        if on_ring and number % 4 > 1:
            for kind in [*["replication"] * 3, *["begun"] * 3]:
                self.submit(RING_CHANGES[kind](self.metadata, dice))
        for _ in range(2):
            self.submit(KINDS_OF_CHANGE["switch"](self.metadata, dice))
        self.submit(ResumeChanges())

    @rule(
        kinds=st.lists(st.sampled_from(sorted(KINDS_OF_CHANGE)), min_size=3, max_size=12),
        number=SEEDS,
    )
    def change(self, kinds: list[str], number: int) -> None:
        dice = random.Random(number)
        for kind in kinds:
            self.submit(KINDS_OF_CHANGE[kind](self.metadata, dice))
            if not self.metadata.switches.changes and dice.random() < 0.5:
                self.submit(ResumeChanges())

    @rule(rounds=st.integers(1, 8), number=SEEDS)
    def move_tablets(self, rounds: int, number: int) -> None:
        dice = random.Random(number)
        self.submit(KINDS_OF_CHANGE["transitions"](self.metadata, dice))
        for _ in range(rounds):
            self.submit(KINDS_OF_CHANGE["advance"](self.metadata, dice))
        self.submit(KINDS_OF_CHANGE["end"](self.metadata, dice))

    @rule(number=SEEDS)
    def resize_tables(self, number: int) -> None:
        dice = random.Random(number)
        for _ in range(4):
            self.submit(KINDS_OF_CHANGE["resize"](self.metadata, dice))

    @rule(number=SEEDS)
    def drop_tables_and_restore_them(self, number: int) -> None:
        dice = random.Random(number)
        for _ in range(4):
            self.submit(KINDS_OF_CHANGE["dropped table"](self.metadata, dice))
            self.submit(KINDS_OF_CHANGE["change stream"](self.metadata, dice))

    @rule(number=SEEDS)
    def go_on_with_requests(self, number: int) -> None:
        dice = random.Random(number)
        for _ in range(3):
            self.submit(a_request_taken_further(self.metadata, dice))

    @rule(kinds=st.lists(st.sampled_from(sorted(RING_CHANGES)), min_size=1, max_size=8), number=SEEDS)
    def change_the_ring(self, kinds: list[str], number: int) -> None:
        dice = random.Random(number)
        for kind in kinds:
            self.submit(RING_CHANGES[kind](self.metadata, dice))

    @rule(rounds=st.integers(6, 16), number=SEEDS)
    def go_on_with_operations(self, rounds: int, number: int) -> None:
        dice = random.Random(number)
        for _ in range(rounds):
            self.submit(RING_CHANGES[dice.choice(["begun", "step", "step", "step"])](self.metadata, dice))

    @rule(number=SEEDS)
    def come_to_rest(self, number: int) -> None:
        """Everything on the ring ends, some way or other."""
        dice = random.Random(number)
        self.submit(ResumeChanges())
        for _ in range(200):
            event = towards_rest(self.metadata, dice)
            if event is None or not self.submit(event):
                break
        assert not self.metadata.rings.operations
        assert not self.metadata.open_sessions() - {t.session for t in self.metadata.tablets.transitions.values()}

    def submit(self, event: Event) -> bool:
        before = self.metadata
        try:
            before.check(event)
        except Rejected as rejected:
            REJECTED[f"{event.kind()} {rejected.code}"] += 1
            return False
        ACCEPTED[event.kind()] += 1
        entry = sealed(event, self.position)
        after = before.apply(event, entry.state_id)
        self.replayed = self.replayed.apply(entry.decode(), entry.state_id)
        assert_epochs_of_changed_components(before, after)
        assert_stages_in_order(before, event)
        self.metadata, self.position = after, position_of(entry)
        self.entries.append(entry)
        self.versions.append(after)
        return True

    @invariant()
    def nothing_that_was_committed_has_changed_since(self) -> None:
        """Neither the last version, which rejected events were checked on, nor an older one."""
        if self.snapshots:
            for metadata, position, then in (
                self.snapshots[-1],
                self.snapshots[self.metadata.epoch % len(self.snapshots)],
            ):
                assert encode_snapshot(metadata, position) == then, "what is immutable was changed"
        if self.versions and (not self.snapshots or self.snapshots[-1][0] is not self.metadata):
            self.snapshots.append((self.metadata, self.position, encode_snapshot(self.metadata, self.position)))

    @invariant()
    def no_column_has_a_number_or_a_name_in_files_that_another_one_has_or_had(self) -> None:
        for table in self.metadata.schema.tables.values():
            columns = [(column.column_id, column.stored_name.lower()) for column in table.numbered]
            columns += [(column.column_id, column.stored_as.lower()) for column in table.dropped]
            assert len({number for number, _ in columns}) == len({name for _, name in columns}) == len(columns)
            assert max(number for number, _ in columns) == table.last_column_id
            assert {*table.primary_key} <= {column.name for column in table.columns}

    @invariant()
    def replay_equals_incremental_apply(self) -> None:
        assert self.replayed == self.metadata
        assert self.metadata.epoch == self.position.epoch

    @invariant()
    def a_tablet_is_in_one_transition_at_most_and_that_one_is_about_its_replicas(self) -> None:
        for key, transition in self.metadata.tablets.transitions.items():
            replicas = self.metadata.tablets.maps[key[0]].replicas(key[1])
            assert transition.key == key
            assert transition.replicas == replicas
            assert {*transition.new_replicas} == {*replicas, transition.pending} - {transition.leaving}
            assert (transition.session is not None) == (transition.stage == "streaming")

    @invariant()
    def each_name_that_a_keyspace_had_leads_to_one_of_them_and_tables_have_keyspaces(self) -> None:
        keyspaces = self.metadata.schema.keyspaces
        assert all(one.name == name for name, one in keyspaces.items())
        former = Counter(name for one in keyspaces.values() for name in one.former_names)
        assert set(former.values()) <= {1}
        assert {table.keyspace for table in self.metadata.schema.tables.values()} <= keyspaces.keys()
        assert len(self.metadata.schema.by_name) == len(self.metadata.schema.tables)

    @invariant()
    def a_replica_table_is_where_its_table_was_made(self) -> None:
        for table_id, table in self.metadata.schema.tables.items():
            self.directories.setdefault(table_id, table.directory)
            assert table.directory == self.directories[table_id]

    @invariant()
    def the_replicas_of_a_tablet_are_on_different_nodes_and_as_many_as_the_keyspace_or_somebody_says(self) -> None:
        directory, schema = self.metadata.directory, self.metadata.schema
        for table_id, tablet_map in self.metadata.tablets.maps.items():
            wanted = schema.keyspaces[schema.tables[table_id].keyspace].replication
            for replicas in tablet_map:
                nodes = [directory.node_of_volume[replica] for replica in replicas]
                assert len({node.node_id for node in nodes}) == len(nodes)
                found = Counter(node.datacenter for node in nodes)
                by_hand = REPLICA_COUNTS in self.metadata.features.enabled
                assert found == +Counter(wanted) or (by_hand and found.keys() == (+Counter(wanted)).keys())

    @invariant()
    def a_node_that_has_left_has_no_tablet_but_those_that_are_rebuilt_after_a_replace(self) -> None:
        for node in self.metadata.directory.nodes.values():
            volumes = {volume.volume_id for volume in node.volumes}
            if node.state is NodeState.LEFT and self.metadata.replicas_in_use(volumes):
                assert any(
                    request.kind is RequestKind.REPLACE
                    and request.state is RequestState.RUNNING
                    and self.metadata.directory.nodes[request.node_id].replaces == node.node_id
                    for request in self.metadata.requests.values()
                )

    @invariant()
    def no_number_of_a_node_or_volume_and_no_host_id_is_ever_given_again(self) -> None:
        known = self.metadata.directory.known
        assert known.keys() >= self.nodes.keys()
        for node_id, node in known.items():
            said = (node.host_id, tuple(volume.volume_id for volume in node.volumes))
            assert self.nodes.setdefault(node_id, said) == said
        assert len({host_id for host_id, _ in self.nodes.values()}) == len(self.nodes)
        volumes = [volume for _, of_node in self.nodes.values() for volume in of_node]
        assert len(set(volumes)) == len(volumes)

    @invariant()
    def nothing_that_goes_on_is_about_a_node_that_was_unregistered(self) -> None:
        gone = self.metadata.directory.unregistered
        assert not gone.keys() & self.metadata.directory.nodes.keys()
        assert not gone.keys() & self.metadata.features.announced.keys()
        for node in gone.values():
            assert not self.metadata.replicas_in_use({volume.volume_id for volume in node.volumes})
        for request in self.metadata.open_requests():
            node = self.metadata.directory.nodes.get(request.node_id)
            assert request.node_id not in gone
            assert request.kind is not RequestKind.REPLACE or (node is not None and node.replaces not in gone)
        for operation in self.metadata.rings.operations.values():
            assert not {operation.node_id, operation.replaced} & gone.keys()

    @invariant()
    def ranges_end_where_the_strategies_say_whatever_is_in_flight(self) -> None:
        state = ring_state(self.metadata)
        assert settles(state)
        assert set(state.placements) == set(state.keyspaces.values())
        assert bool(state.operations) or not self.metadata.rings.changing

    @invariant()
    def operations_in_flight_are_those_of_open_requests(self) -> None:
        rings, requests = self.metadata.rings, self.metadata.requests
        assert list(rings.running) == list(rings.operations)
        for running in rings.running.values():
            operation, request = rings.operations[running.operation_id], requests[running.request_id]
            assert request.state in (RequestState.RUNNING, RequestState.CANCELLING)
            assert operation.cancelling == (request.state is RequestState.CANCELLING)
            assert request.node_id in (operation.node_id, 0)
            assert (running.session is not None) <= (operation.next_step == 2)
        assert len({running.request_id for running in rings.running.values()}) == len(rings.running)

    @invariant()
    def the_cover_of_a_ring_keyspace_places_every_token_on_volumes_of_different_nodes(self) -> None:
        node_of = self.metadata.directory.node_of_volume
        for name in ring_keyspaces(self.metadata):
            cover = self.metadata.ring_placements(name)
            reads, writes = cover.read_volumes.tolist(), cover.write_volumes.tolist()
            assert (cover.lows[0], len(set(cover.lows.tolist()))) == (-(2**63), len(cover.lows))
            for index in range(len(cover.lows)):
                placed = cover.placement(index)
                assert list(placed.reads) == [volume for volume in reads[index] if volume >= 0]
                assert set(placed.writes) == {volume for volume in writes[index] if volume >= 0}
                assert set(placed.writes) == {volume for replicas in placed.write_sets for volume in replicas}
                assert set(placed.reads) <= set(placed.writes)
                for replicas in (placed.reads, *placed.write_sets):
                    assert len({node_of[volume].node_id for volume in replicas}) == len(replicas)

    @invariant()
    def a_node_that_has_left_owns_tokens_only_while_its_replacement_takes_them_over(self) -> None:
        handing = {operation.replaced for operation in self.metadata.rings.operations.values()}
        for node in self.metadata.directory.nodes.values():
            assert node.state is not NodeState.LEFT or not node.tokens or node.node_id in handing

    def teardown(self) -> None:
        assert quorums_of(self.versions) == ()
        log = InMemoryLog()
        put(log, self.entries)
        assert Follower(log).catch_up() == self.metadata
        for _, _, data in self.snapshots[:: max(1, len(self.snapshots) // 5)]:
            metadata, position = decode_snapshot(data)
            assert encode_snapshot(metadata, position) == data
            replayed = replay(metadata, position, self.entries[position.epoch :])
            assert replayed[0] == self.metadata
            assert encode_snapshot(*replayed) == encode_snapshot(self.metadata, self.position)
            assert digest_of(metadata) == digest_of(decode_snapshot(data)[0])


def assert_epochs_of_changed_components(before: ClusterMetadata, after: ClusterMetadata) -> None:
    """What differs carries the new epoch; what does not is the same as before, epoch included."""
    assert after.epoch == before.epoch + 1
    assert after.state_id > before.state_id
    then, now = before.last_changes(), after.last_changes()
    forgets = len(after.requests) < len(before.requests)
    if forgets:
        assert all(before.requests[key] == request for key, request in after.requests.items())
    for name in components_of(ClusterMetadata):
        if name == "requests" and forgets:
            continue  # what is forgotten carries no epoch, and what is kept was not changed
        assert getattr(after, name) == getattr(before, name) or now[name] == after.epoch, f"{name} changed silently"
        assert now[name] in (then[name], after.epoch), name
    for old_parts, new_parts in (
        (before.directory.nodes, after.directory.nodes),
        (before.schema.keyspaces, after.schema.keyspaces),
        (before.schema.tables, after.schema.tables),
        (before.tablets.maps, after.tablets.maps),
        (before.tablets.transitions, after.tablets.transitions),
        (before.requests, after.requests),
        (before.rings.running, after.rings.running),
    ):
        for key, part in new_parts.items():
            old = old_parts.get(key)
            changed_by = part.epoch
            if isinstance(part, Keyspace):
                changed_by = max(part.epoch, part.name_since)
                # A name that it had leads to another keyspace from now on, which has given it up later.
                old = old and msgspec.structs.replace(old, former=part.former)
            assert part == old or changed_by == after.epoch, f"{key} changed silently"


def assert_stages_in_order(before: ClusterMetadata, event: Event) -> None:
    if isinstance(event, AdvanceTransitions):
        for change in event.changes:
            assert before.tablets.transitions[change.table_id, change.tablet].stage is change.from_stage
            assert (change.from_stage.value, change.to_stage.value) in ONWARD | BACK
    if isinstance(event, FinishTransitions):
        stages = {before.tablets.transitions[key].stage.value for key in event.tablets}
        assert stages <= {"end_migration", "revert_migration"}


HISTORIES = settings(
    max_examples=some(140, 20),
    stateful_step_count=30,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_random_histories_keep_every_property() -> None:
    ACCEPTED.clear()
    REJECTED.clear()
    for tenths in (10, 12, 15, 20, 40):
        enough = settings(HISTORIES, max_examples=tenths * HISTORIES.max_examples // 10)
        run_state_machine_as_test(History, settings=enough)
        # What is drawn also depends on which modules the process has imported: rarely some kind of event is not met.
        if set(ACCEPTED) == set(KINDS):
            break
    # Histories in which nothing happens would prove nothing.
    assert set(ACCEPTED) == set(KINDS), set(KINDS) - set(ACCEPTED)
    assert len(REJECTED) > 25, REJECTED
