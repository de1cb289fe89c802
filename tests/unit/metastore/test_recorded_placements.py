"""A new ring keyspace records where its ranges are, so that a replay never asks a strategy."""

from __future__ import annotations

import numpy as np
import pytest
from epochlake.metastore.committing.committer import Committed
from epochlake.metastore.errors import Rejected
from epochlake.metastore.following.follower import Follower
from epochlake.metastore.following.verification import verify
from epochlake.metastore.log.entry import Entry, encode_event, position_of
from epochlake.metastore.log.in_memory import InMemoryLog
from epochlake.metastore.metadata.attachments import decode_replicas
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.digest import digest_of
from epochlake.metastore.metadata.events import CreateKeyspace, DropKeyspace, FinishRequest
from epochlake.metastore.metadata.model import Keyspace, PlacementKind
from epochlake.metastore.metadata.ring_state import ring_state
from epochlake.placement.ring import placements
from epochlake.placement.ring.placements import calculated
from epochlake.placement.ring.strategies import Replication, natural_replicas
from epochlake.placement.ring.tokens import NodeIds, Ring

from tests.support.histories import INITIALISE, keyspace, register, ring_keyspace, start
from tests.support.logs import committer, put, sealed

SIMPLE = Keyspace("sky", PlacementKind.RING, "SimpleStrategy", {"replication_factor": 2})
BOTH = pytest.mark.parametrize("asked", [ring_keyspace(), SIMPLE], ids=["datacenters", "simple"])


def mended(ring: Ring, replication: Replication) -> NodeIds:
    """A strategy that gives every range other nodes."""
    replicas = natural_replicas(ring, replication)
    return np.roll(replicas, 5, axis=0)


def begun() -> InMemoryLog:
    """A log with four nodes on the ring and no keyspace."""
    log = InMemoryLog()
    first = committer(log)
    first.commit(INITIALISE)
    for number in (1, 2, 3, 4):
        name = f"m{number}"
        first.commit(lambda metadata, name=name: register(metadata, name))
        first.commit(lambda metadata, name=name: start(metadata, f"join-{name}"))
        first.commit(FinishRequest(f"join-{name}"))
    return log


def followed(log: InMemoryLog) -> ClusterMetadata:
    return Follower(InMemoryLog(log.shared)).catch_up()


def last(log: InMemoryLog) -> Entry:
    return log.shared.entries[-1]


def rows_of(metadata: ClusterMetadata) -> list[list[int]]:
    [found] = metadata.rings.placements.values()
    return found.reads.replicas.tolist()


@BOTH
def test_a_replay_uses_what_was_recorded_whatever_the_strategy_gives_by_then(
    asked: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = begun()
    committer(log).commit(CreateKeyspace(asked))
    then = followed(log)
    monkeypatch.setattr(placements, "natural_replicas", mended)
    state = ring_state(then)
    [setting] = state.placements
    assert calculated(state.ring(), setting).replicas.tolist() != rows_of(then)
    assert rows_of(followed(log)) == rows_of(then)
    assert digest_of(followed(log)) == digest_of(then)
    # No event was wrong; that the placement is not the one of the mended strategy is said, and true.
    assert {finding.code for finding in verify(InMemoryLog(log.shared)).findings} == {"ring-astray"}


@BOTH
def test_the_first_placement_is_the_one_that_the_strategy_gives(asked: Keyspace) -> None:
    log = begun()
    committer(log).commit(CreateKeyspace(asked))
    recorded = last(log).attachment
    assert recorded is not None
    state = ring_state(followed(log))
    [(setting, found)] = state.placements.items()
    assert decode_replicas(recorded).tolist() == natural_replicas(state.ring(), setting).tolist()
    assert found.reads is found.writes
    assert found.reads.starts.tolist() == state.ring().starts.tolist()


def test_an_entry_from_before_placements_were_recorded_is_replayed_as_before() -> None:
    log = begun()
    old = sealed(CreateKeyspace(ring_keyspace()), position_of(last(log)))
    put(log, [old])
    assert (old.attachment, "attachment" in old.payload) == (None, False)
    assert old.decode() == CreateKeyspace(ring_keyspace())
    new = begun()
    committer(new).commit(CreateKeyspace(ring_keyspace()))
    assert encode_event(CreateKeyspace(ring_keyspace())).payload == old.payload == last(new).payload
    assert rows_of(followed(log)) == rows_of(followed(new))


def test_only_the_first_keyspace_of_a_setting_records_a_placement() -> None:
    log = begun()
    keyspaces = [ring_keyspace("sky"), ring_keyspace("sea"), ring_keyspace("air", dc1=1), keyspace("flat")]
    attached = []
    for one in keyspaces:
        committer(log).commit(CreateKeyspace(one))
        attached.append(last(log).attachment is not None)
    assert attached == [True, False, True, False]


def test_the_same_request_comes_again_as_it_was_asked() -> None:
    log = begun()
    create = CreateKeyspace(ring_keyspace())
    first = committer(log).commit(create, request_id="mine")
    assert last(log).decode().as_asked() == create != last(log).decode()
    assert committer(InMemoryLog(log.shared)).commit(create, request_id="mine") == Committed(first.epoch, "mine", True)
    with pytest.raises(Rejected, match="request-id-used"):
        committer(InMemoryLog(log.shared)).commit(CreateKeyspace(ring_keyspace("sea")), request_id="mine")


def test_a_keyspace_that_is_dropped_and_made_again_is_placed_on_the_ring_of_then() -> None:
    log = begun()
    for event in (CreateKeyspace(ring_keyspace()), DropKeyspace("sky"), CreateKeyspace(ring_keyspace())):
        committer(log).commit(event)
    assert last(log).attachment is not None
    assert len(rows_of(followed(log))) == len(ring_state(followed(log)).ring().starts)
