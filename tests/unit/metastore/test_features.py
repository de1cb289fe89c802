"""Features: enabled once for ever, needed by newer kinds of events, and who lacks one stops with one line."""

from __future__ import annotations

import pytest
from epochlake.metastore.errors import Rejected, UnknownFormat
from epochlake.metastore.following.follower import Follower
from epochlake.metastore.following.snapshot_format import decode_snapshot, encode_snapshot, format_of
from epochlake.metastore.log.entry import Position, decode_event, encode_event
from epochlake.metastore.log.in_memory import InMemoryLog
from epochlake.metastore.metadata import features
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.differences import diff
from epochlake.metastore.metadata.events import EVENT_KINDS, AnnounceVersion, EnableFeatures, Event, Initialise
from epochlake.metastore.metadata.events.kinds import GENERATION
from epochlake.metastore.metadata.features import ANNOUNCEMENTS, FEATURES, SUPPORTED
from epochlake.metastore.tables.metadata import PARTS
from epochlake.placement.rejections import Code

from tests.support.golden import entry_of
from tests.support.histories import applied, small_cluster
from tests.support.logs import put

OF_THE_FUTURE = "of-the-future"


def enabled() -> ClusterMetadata:
    return applied([EnableFeatures((ANNOUNCEMENTS,)), AnnounceVersion(1, "0.1.0", SUPPORTED)], small_cluster())


def from_the_future(monkeypatch: pytest.MonkeyPatch, make: type[Event], *fields: object) -> Event:
    """An event that a newer version has made."""
    with monkeypatch.context() as patch:
        patch.setattr(features, "SUPPORTED", (*SUPPORTED, OF_THE_FUTURE))
        return make(*fields)


def test_every_kind_of_event_that_older_members_cannot_read_belongs_to_a_feature() -> None:
    free = [kind.name for kind in EVENT_KINDS if kind.since >= 7 and not kind.feature]
    assert free == ["EnableFeatures"]
    known = {feature.name: feature.since for feature in FEATURES}
    assert {kind.feature for kind in EVENT_KINDS} - {""} <= known.keys()
    assert all(known[kind.feature] <= kind.since <= GENERATION for kind in EVENT_KINDS if kind.feature)


def test_an_event_of_a_feature_that_is_not_enabled_is_refused_and_says_how_to_enable_it() -> None:
    with pytest.raises(Rejected) as refused:
        small_cluster().check(AnnounceVersion(1, "0.1.0", SUPPORTED))
    assert refused.value.code == Code.FEATURE_NOT_ENABLED
    assert refused.value.hint == "Run `epochlake feature enable announcements` when every member has been upgraded"


def test_a_cluster_that_begins_uses_what_its_founder_supports() -> None:
    begun = ClusterMetadata.empty().apply(Initialise("c", "id", "0.1.0", SUPPORTED), "s1")
    assert dict.fromkeys(SUPPORTED, 1) == {name: one.epoch for name, one in begun.features.enabled.items()}
    older = ClusterMetadata.empty().apply(Initialise("c", "id", "0.1.0"), "s1")
    assert older.features == ClusterMetadata.empty().features


def test_no_event_disables_a_feature() -> None:
    metadata = enabled()
    for event in (EnableFeatures((ANNOUNCEMENTS,)), AnnounceVersion(1, "0.2.0", SUPPORTED)):
        after = metadata.apply(event, "later")
        assert after.features.enabled.keys() >= metadata.features.enabled.keys()


@pytest.mark.parametrize("make", [lambda: (EnableFeatures,), lambda: (Initialise, "c", "id", "9.0")])
def test_a_version_that_lacks_a_feature_stops_where_it_is_enabled_with_one_line(
    make: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, *fields = make()  # type: ignore[operator]
    event = from_the_future(monkeypatch, kind, *fields, (OF_THE_FUTURE,))
    encoded = encode_event(event)
    with pytest.raises(UnknownFormat) as stopped:
        decode_event(encoded.event, encoded.payload, None, epoch=17)
    assert str(stopped.value).startswith(f"epoch 17: the payload of {kind.__name__} cannot be read")
    assert "the cluster uses of-the-future, which version" in str(stopped.value)
    assert "\n" not in str(stopped.value)


def test_a_follower_stays_at_the_epoch_before_and_hands_out_nothing_newer(monkeypatch: pytest.MonkeyPatch) -> None:
    log, position, entries = InMemoryLog(), Position(), []
    for event in (Initialise("c", "id", "0.1.0"), from_the_future(monkeypatch, EnableFeatures, (OF_THE_FUTURE,))):
        entries.append(entry_of(event, position))
        position = Position(entries[-1].epoch, entries[-1].state_id, entries[-1].hash)
    put(log, entries)
    follower = Follower(log)
    for _ in range(2):
        with pytest.raises(UnknownFormat, match="of-the-future"):
            follower.catch_up()
        assert follower.metadata.epoch == 1


def test_a_snapshot_with_a_feature_that_is_lacking_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    event = from_the_future(monkeypatch, EnableFeatures, (OF_THE_FUTURE,))
    metadata = small_cluster().apply(event, "s9")
    data = encode_snapshot(metadata, Position(metadata.epoch, "s9", "0" * 64))
    with pytest.raises(UnknownFormat, match="of-the-future"):
        decode_snapshot(data)


def test_a_snapshot_keeps_features_and_announcements_and_without_them_its_bytes_are_as_before() -> None:
    metadata = enabled()
    position = Position(metadata.epoch, metadata.state_id, "0" * 64)
    assert decode_snapshot(encode_snapshot(metadata, position))[0].features == metadata.features
    assert format_of(encode_snapshot(metadata, position)) == 4
    small = small_cluster()
    assert format_of(encode_snapshot(small, Position(small.epoch, small.state_id, "0" * 64))) == 2


def test_the_tables_and_differences_say_what_is_enabled_and_what_nodes_run() -> None:
    metadata = enabled()
    assert PARTS["features"](metadata).to_pylist() == [
        {"feature": ANNOUNCEMENTS, "enabled_epoch": small_cluster().epoch + 1}
    ]
    first, second, *_ = PARTS["nodes"](metadata).to_pylist()
    assert (first["product_version"], first["supported_features"]) == ("0.1.0", list(SUPPORTED))
    assert (second["product_version"], second["supported_features"]) == (None, [])
    told = {(one.component, one.name) for one in diff(small_cluster(), metadata)}
    assert told == {("feature", ANNOUNCEMENTS), ("announced version", "n1")}
